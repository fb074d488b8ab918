// Attention maps: choose image, layer, head and reference patch. Without this script the page shows the last layer.
"use strict";
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const TOP = 5;

  const make = (tag, facts, words, parent) => {
    const node = document.createElementNS(NS, tag);
    for (const [key, value] of Object.entries(facts)) node.setAttribute(key, value);
    if (words) node.textContent = words;
    if (parent) parent.append(node);
    return node;
  };
  const largest = (values) => values.reduce((a, b) => Math.max(a, b), 0);
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

  function start() {
    const holder = document.getElementById("attention-data");
    const figure = document.getElementById("attention-maps");
    const panel = document.getElementById("attention-controls");
    if (!holder || !figure || !panel || panel.dataset.ready) return;
    let data;
    try {
      data = JSON.parse(holder.textContent);
    } catch {
      return; // the drawing that came with the page stays
    }
    const drawing = figure.querySelector(".drawing");
    if (!drawing || !data.layers || !data.layers.length) return;
    panel.dataset.ready = "1";
    const state = { image: -1, layer: data.layers.length - 1, head: "all", reference: 0 };
    const unpacked = new Map();

    function layer() {
      const found = data.layers[state.layer];
      if (!unpacked.has(found)) {
        const peaks = found.peaks ? new Float32Array(bytes(found.peaks).buffer) : null;
        unpacked.set(found, { ...found, maps: bytes(found.maps), peaks });
      }
      return unpacked.get(found);
    }

    // One map as weights: a head's own, or the mean over heads with each map's largest weight given back.
    function weights(l, image, head) {
      const cells = l.grid[0] * l.grid[1];
      const first = (image * l.references.length + state.reference) * l.heads;
      const out = new Float64Array(cells);
      const heads = head === "mean" ? [...Array(l.heads).keys()] : [head];
      for (const h of heads) {
        const peak = l.peaks ? l.peaks[first + h] : 1;
        const scale = (Number.isFinite(peak) ? peak : 1) / 255 / heads.length;
        for (let k = 0; k < cells; k++) out[k] += l.maps[(first + h) * cells + k] * scale;
      }
      return out;
    }

    function picture(values, grid) {
      const canvas = document.createElement("canvas");
      [canvas.height, canvas.width] = grid;
      const context = canvas.getContext("2d");
      const pixels = context.createImageData(grid[1], grid[0]);
      const most = largest(values) || 1;
      values.forEach((value, k) => {
        const level = Math.min(data.palette.length - 1, Math.floor((value / most) * data.palette.length));
        pixels.data.set([...data.palette[level], 255], 4 * k);
      });
      context.putImageData(pixels, 0, 0);
      return canvas.toDataURL();
    }

    function cross(svg, x, y, reach) {
      const d = `M${x - reach} ${y}h${2 * reach}M${x} ${y - reach}v${2 * reach}`;
      make("path", { d }, "", svg).style.cssText = "fill:none;stroke:#fff;stroke-width:3.6";
      make("path", { class: "line c0", d }, "", svg);
    }

    function nearest(l, row, column) {
      const far = l.references.map(([r, c]) => (r - row) ** 2 + (c - column) ** 2);
      return far.indexOf(Math.min(...far));
    }

    function drawMap(svg, l, image, head, x, y, side, name) {
      const [rows, columns] = l.grid;
      const width = (side * columns) / Math.max(rows, columns);
      const height = (side * rows) / Math.max(rows, columns);
      const values = weights(l, image, head);
      const most = largest(values);
      const tip = l.peaks ? `${name}, largest weight ${most.toPrecision(3)}` : name;
      const group = make("g", { "data-tip": tip }, "", svg);
      const place = { x, y, width, height, preserveAspectRatio: "none", "image-rendering": "pixelated" };
      make("image", { href: picture(values, l.grid), ...place }, "", group);
      const [r, c] = l.references[state.reference];
      cross(group, x + (width * (c + 0.5)) / columns, y + (height * (r + 0.5)) / rows, side / 20);
      const order = [...values.keys()].sort((a, b) => values[b] - values[a] || a - b).slice(0, TOP);
      order.forEach((k, i) => {
        if (!values[k]) return;
        const beside = k === r * columns + c ? 6 : 0; // the cross stays readable
        const at = {
          x: x + (width * ((k % columns) + 0.5)) / columns + beside,
          y: y + (height * (Math.floor(k / columns) + 0.5)) / rows + 3,
        };
        const mark = make("text", { ...at, "text-anchor": "middle" }, String(i + 1), group);
        mark.style.cssText = "font-size:8px;fill:#14161a;stroke:#fff;stroke-width:1.8px;paint-order:stroke";
      });
      make("text", { x, y: y + height + 11 }, name, group);
    }

    function drawPicture(svg, l, seen, y, side) {
      const [rows, columns] = l.grid;
      const width = (side * columns) / Math.max(rows, columns);
      const height = (side * rows) / Math.max(rows, columns);
      const place = { x: 4, y, width, height, preserveAspectRatio: "none" };
      if (seen.picture && seen.picture.startsWith("data:image/png")) place["image-rendering"] = "pixelated";
      if (seen.picture) make("image", { href: seen.picture, ...place }, "", svg);
      if (Math.max(rows, columns) <= 16) {
        let d = "";
        for (let r = 1; r < rows; r++) d += `M4 ${y + (height * r) / rows}h${width}`;
        for (let c = 1; c < columns; c++) d += `M${4 + (width * c) / columns} ${y}v${height}`;
        make("path", { class: "grid", opacity: 0.5, d }, "", svg);
      }
      const [row, column] = l.references[state.reference];
      cross(svg, 4 + (width * (column + 0.5)) / columns, y + (height * (row + 0.5)) / rows, 4);
      const face = make("rect", { class: "axis", x: 4, y, width, height, "data-tip": "choose a patch" }, "", svg);
      face.style.pointerEvents = "all";
      face.style.cursor = "crosshair";
      face.addEventListener("click", (event) => {
        const box = face.getBoundingClientRect();
        const r = Math.floor(((event.clientY - box.top) / box.height) * rows);
        const c = Math.floor(((event.clientX - box.left) / box.width) * columns);
        state.reference = nearest(l, r, c);
        refresh();
      });
      return height;
    }

    function draw() {
      const l = layer();
      const single = state.head !== "all";
      const [side, big, line] = single ? [150, 150, 1] : [60, 96, 5];
      const title = `Attention of ${l.name}`;
      const svg = make("svg", { role: "img", "aria-label": title }, "");
      make("title", {}, title, svg);
      const [row, column] = l.references[state.reference];
      make("text", { x: 4, y: 11 }, `${l.name}, query patch in row ${row + 1}, column ${column + 1}`, svg);
      let y = 20;
      data.images.forEach((seen, image) => {
        if (state.image >= 0 && state.image !== image) return;
        const wrong = seen.truth === seen.predicted ? "" : `, predicted ${seen.predicted}`;
        const words = `${seen.name}: ${seen.truth}${wrong}`, letters = [...words];
        const ends = `${letters.slice(0, 34).join("")}…${letters.slice(-35).join("")}`;
        const cut = letters.length > 70 ? ends : words;
        make("text", { x: 4, y: y + 10, class: "strong", "data-tip": words }, cut, svg);
        y += 18;
        const height = drawPicture(svg, l, seen, y, big);
        const heads = single ? [state.head] : [...Array(l.heads).keys()];
        heads.forEach((head, i) => {
          const name = head === "mean" ? "mean of all heads" : `head ${head + 1}`;
          const [x, down] = [big + 16 + (i % line) * (side + 6), Math.floor(i / line) * (side + 18)];
          drawMap(svg, l, image, head, x, y + down, side, name);
        });
        y += Math.max(height + 8, Math.ceil(heads.length / line) * (side + 18)) + 6;
      });
      svg.setAttribute("viewBox", `0 0 440 ${y}`);
      drawing.replaceChildren(svg);
    }

    function choice(name, act) {
      const box = document.createElement("label");
      const select = document.createElement("select");
      select.id = `attention-${name}`;
      select.addEventListener("change", () => {
        act(select.value);
        refresh();
      });
      box.append(`${name} `, select);
      panel.append(box);
      return (options, chosen) => {
        select.replaceChildren(...options.map(([value, words]) => new Option(words, value)));
        select.value = String(chosen);
      };
    }

    const images = choice("image", (v) => { state.image = Number(v); });
    const layers = choice("layer", (v) => {
      const [old, at] = [layer(), state.reference];
      const share = old.references[at].map((place, i) => (place + 0.5) / old.grid[i]);
      state.layer = Number(v);
      const next = layer();
      state.reference = nearest(next, share[0] * next.grid[0] - 0.5, share[1] * next.grid[1] - 0.5);
    });
    const heads = choice("head", (v) => { state.head = v === "all" || v === "mean" ? v : Number(v); });
    const patches = choice("patch", (v) => { state.reference = Number(v); });

    function refresh() {
      const l = layer();
      if (typeof state.head === "number" && state.head >= l.heads) state.head = "all";
      const numbers = [...Array(l.heads).keys()];
      const named = data.images.map((seen, i) => [i, `${i + 1}: ${seen.truth}`.slice(0, 40)]);
      images([[-1, "all"], ...named], state.image);
      layers(data.layers.map((other, i) => [i, other.name]), state.layer);
      heads([["all", "all"], ["mean", "mean"], ...numbers.map((h) => [h, h + 1])], state.head);
      patches(l.references.map(([r, c], i) => [i, `row ${r + 1}, column ${c + 1}`]), state.reference);
      draw();
    }

    panel.hidden = false;
    refresh();
  }

  start();
  document.addEventListener("DOMContentLoaded", start);
  document.addEventListener("tailorvit:content", start); // the live page has swapped its content
})();
