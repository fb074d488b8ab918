// The page's own script: hovers, sorting, light or dark, folds in print, and the filters of the search chart.
// Words from the run reach the page as textContent and attribute values only.
"use strict";
(() => {
  const NS = "http://www.w3.org/2000/svg";
  const ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const COLOURS = 6, CLOUD = 2000, CELL = 2; // as in charts.py
  document.documentElement.classList.add("js");

  // -- hovers ---------------------------------------------------------------------------------------------------------
  let bubble = null;
  let held = null; // the mark the keyboard is at: its words stay beside it when the page scrolls to it
  const hide = () => { held = null; if (bubble) bubble.hidden = true; };
  function show(words, x, y) {
    if (!bubble || !bubble.isConnected) {
      bubble = document.createElement("div");
      bubble.id = "tip";
      bubble.setAttribute("role", "tooltip");
      document.body.append(bubble);
    }
    bubble.textContent = words;
    bubble.hidden = false;
    const box = bubble.getBoundingClientRect();
    const left = Math.min(Math.max(4, x + 12), Math.max(4, innerWidth - box.width - 4));
    const top = y + 14 + box.height > innerHeight ? y - box.height - 10 : y + 14;
    bubble.style.left = `${left}px`;
    bubble.style.top = `${Math.max(4, top)}px`;
  }
  function beside(at) {
    const box = at.getBoundingClientRect();
    show(at.dataset.tip, box.left + box.width / 2, box.bottom);
  }
  const hinted = (event) => (event.target instanceof Element ? event.target.closest("[data-tip]") : null);
  document.addEventListener("pointermove", (event) => {
    const at = hinted(event);
    if (at) show(at.dataset.tip, event.clientX, event.clientY);
    else if (!nearest(event)) hide();
  });
  document.addEventListener("pointerdown", (event) => {
    const at = hinted(event);
    if (at) show(at.dataset.tip, event.clientX, event.clientY);
    else if (!nearest(event)) hide();
  });
  document.addEventListener("focusin", (event) => {
    const at = hinted(event);
    if (!at) return hide();
    beside(at);
    held = at.matches(":focus-visible") ? at : null;
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", () => {
    const box = held?.getBoundingClientRect();
    if (box && held.isConnected && box.bottom > 0 && box.top < innerHeight) beside(held);
    else hide();
  }, { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // -- light or dark, sorting -----------------------------------------------------------------------------------------
  function theme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  }
  function sort(head) {
    const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
    const down = head.getAttribute("aria-sort") !== "descending";
    const value = (row) => { const cell = row.cells[column]; return cell.dataset.v ?? cell.textContent; };
    const order = (a, b) => {
      const [x, y] = [Number(value(a)), Number(value(b))];
      const numeric = Number.isFinite(x) && Number.isFinite(y);
      return numeric ? x - y : String(value(a)).localeCompare(String(value(b)));
    };
    const rows = [...body.rows].sort(order);
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...(down ? rows.reverse() : rows));
  }
  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element)) return;
    if (event.target.closest('[data-act="theme"]')) theme();
    const head = event.target.closest(".sortable th");
    if (head) sort(head);
  });
  document.addEventListener("keydown", (event) => {
    const head = event.target instanceof Element ? event.target.closest(".sortable th") : null;
    if (head && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); sort(head); }
  });

  // -- print: everything open, then as it was -------------------------------------------------------------------------
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const each of folded) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of folded) each.open = false; });

  // -- the search chart -----------------------------------------------------------------------------------------------
  let chart = null; // { svg, spots: [[x, y, row index]], data }
  const make = (tag, facts, parent, words) => {
    const node = document.createElementNS(NS, tag);
    for (const [key, value] of Object.entries(facts)) node.setAttribute(key, value);
    if (words !== undefined) node.textContent = words;
    parent.append(node);
    return node;
  };
  function short(value) {
    for (const [size, by, unit] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]])
      if (Math.abs(value) >= size) return `${Number((value / by).toPrecision(4))}${unit}`;
    return `${Number(value.toPrecision(4))}`;
  }
  function ticks(low, high) {
    const raw = (high - low) / 5;
    if (!(raw > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = ([1, 2, 2.5, 5].find((m) => m * power >= raw) ?? 10) * power;
    const out = [];
    for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9) && out.length < 12; i++) out.push(i * step);
    return out;
  }
  function span(values, label) {
    let low = Infinity, high = -Infinity;
    for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
    const margin = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    if (label.endsWith("%") && low >= 0 && high <= 100) return [Math.max(low - margin, 0), Math.min(high + margin, 100)];
    return [low - margin, high + margin];
  }
  function architecture(data, code) {
    if (!data.genes) return code;
    const said = (part, values) => [...part].map((letter) => values[ALPHABET.indexOf(letter)]).join(" ");
    return code.split(".").map((part, i) => (part ? `${data.genes[i][0]} ${said(part, data.genes[i][1])}` : ""))
      .filter(Boolean).join(", ");
  }
  function words(data, index) {
    const row = data.rows[index], first = index === data.chosen ? "chosen\n" : "";
    const sizes = data.costs.map(([, name], i) => (row[4 + i] === null ? "" : `${name} ${short(row[4 + i])}`));
    const from = [data.sources[row[1]], row[2] === null ? "" : `generation ${row[2]}`].filter(Boolean).join(", ");
    const merit = data.merits[row[0]].replace(", %", " %");
    return `${first}${merit} ${Number(row[3].toPrecision(6))} (${from})\n${sizes.filter(Boolean).join(", ")}\n` +
      architecture(data, row[row.length - 1]);
  }
  function nearest(event) {
    if (!chart || !(event.target instanceof Element) || event.target.closest("svg") !== chart.svg) return false;
    const box = chart.svg.getBoundingClientRect(), view = chart.svg.viewBox.baseVal;
    const x = ((event.clientX - box.left) / box.width) * view.width, y = ((event.clientY - box.top) / box.height) * view.height;
    let best = -1, least = 12 ** 2; // within 12 units of the drawing
    for (const [a, b, index] of chart.spots) {
      const far = (a - x) ** 2 + (b - y) ** 2;
      if (far < least) [best, least] = [index, far];
    }
    if (best < 0) return false;
    show(words(chart.data, best), event.clientX, event.clientY);
    return true;
  }
  function wanted(panel, data) {
    const value = (name, none) => { const v = parseFloat(panel.querySelector(`[name=${name}]`)?.value); return Number.isFinite(v) ? v : none; };
    const [cost, stage, source] = ["cost", "stage", "source"].map((name) => value(name, -1));
    const [from, to] = [value("from", -Infinity), value("to", Infinity)];
    const kept = [];
    data.rows.forEach((row, i) => {
      const timely = row[2] === null || (row[2] >= from && row[2] <= to);
      if (row[3] !== null && row[4 + cost] !== null && (stage < 0 || row[0] === stage) && (source < 0 || row[1] === source) && timely) kept.push(i);
    });
    return [kept, 4 + Math.max(cost, 0)];
  }
  function draw(panel, svg, data) {
    const [kept, at] = wanted(panel, data);
    const point = (i) => [data.rows[i][at], data.rows[i][3]];
    panel.querySelector("output").textContent = `${kept.length.toLocaleString("en")} of ${data.rows.length.toLocaleString("en")} trials`;
    const title = svg.querySelector("title");
    svg.replaceChildren(...(title ? [title] : []));
    chart = { svg, data, spots: [] };
    if (!kept.length) { make("text", { x: 60, y: 120 }, svg, "No trial fits these filters."); return; }
    const { width, height } = svg.viewBox.baseVal, left = 52, right = width - 18, top = 22, bottom = height - 38;
    const label = data.merits[data.rows[kept[0]][0]];
    const [x0, x1] = span(kept.map((i) => point(i)[0]), ""), [y0, y1] = span(kept.map((i) => point(i)[1]), label);
    const px = (v) => left + ((v - x0) / (x1 - x0)) * (right - left), py = (v) => bottom - ((v - y0) / (y1 - y0)) * (bottom - top);
    for (const v of ticks(y0, y1)) {
      make("path", { class: "grid", d: `M${left} ${py(v)}H${right}` }, svg);
      make("text", { x: left - 5, y: py(v) + 4, "text-anchor": "end" }, svg, short(v));
    }
    for (const v of ticks(x0, x1)) make("text", { x: px(v), y: bottom + 15, "text-anchor": "middle" }, svg, short(v));
    make("path", { class: "axis", d: `M${left} ${top}V${bottom}H${right}` }, svg);
    make("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, svg, data.costs[at - 4][1]);
    make("text", { x: 4, y: 13 }, svg, label);
    const groups = new Map();
    for (const i of kept) {
      const [x, y] = [px(point(i)[0]), py(point(i)[1])], source = data.rows[i][1];
      chart.spots.push([x, y, i]);
      if (!groups.has(source)) groups.set(source, []);
      groups.get(source).push([x, y]);
    }
    const sources = [...groups.keys()].sort((a, b) => a - b);
    for (const source of sources) {
      const spots = groups.get(source), drawn = new Map();
      for (const [x, y] of spots) { // of a large cloud one dot a cell
        const dot = `M${x.toFixed(1)} ${y.toFixed(1)}h.01`;
        const key = spots.length > CLOUD ? `${Math.floor(x / CELL)} ${Math.floor(y / CELL)}` : dot;
        if (!drawn.has(key)) drawn.set(key, dot);
      }
      make("path", { class: `cloud c${source % COLOURS}`, d: [...drawn.values()].join("") }, svg);
    }
    const front = [];
    for (const i of [...kept].sort((a, b) => point(a)[0] - point(b)[0] || point(b)[1] - point(a)[1]))
      if (!front.length || point(i)[1] > point(front.at(-1))[1]) front.push(i);
    make("path", { class: "line front", d: `M${front.map((i) => `${px(point(i)[0]).toFixed(1)} ${py(point(i)[1]).toFixed(1)}`).join("L")}` }, svg);
    for (const i of front.slice(0, 200))
      make("circle", { class: "dot front", cx: px(point(i)[0]), cy: py(point(i)[1]), r: 3, tabindex: 0, "data-tip": words(data, i) }, svg);
    if (kept.includes(data.chosen)) {
      const [x, y] = point(data.chosen);
      make("circle", { class: "ring c3", cx: px(x), cy: py(y), r: 6, tabindex: 0, "data-tip": words(data, data.chosen) }, svg);
    }
    const figure = svg.closest("figure"), legend = figure?.querySelector(".legend"), name = figure?.querySelector("h4");
    const merit = label.startsWith("score") ? "Score" : "Accuracy";
    if (name) name.textContent = `${merit} against ${data.costs[at - 4][1]}`;
    if (legend) legend.replaceChildren(...sources.map((source) => {
      const key = document.createElement("span");
      key.className = `key c${source % COLOURS}`;
      key.textContent = data.sources[source];
      return key;
    }));
  }
  function start() {
    chart = null;
    for (const head of document.querySelectorAll(".sortable th")) head.tabIndex = 0;
    const holder = document.getElementById("search-data");
    const svg = document.querySelector('svg[data-chart="search"]'), panel = document.querySelector('[data-controls="search"]');
    if (!holder || !svg || !panel) return;
    let data;
    try { data = JSON.parse(holder.textContent); } catch { return; }
    const again = () => draw(panel, svg, data);
    panel.addEventListener("input", again);
    again();
  }
  document.addEventListener("tailorvit:content", start); // a watcher put in new content
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
