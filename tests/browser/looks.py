"""What can be seen on an open page: charts without marks, text cut off, elements beyond the edge."""

from __future__ import annotations

from typing import Any

# A chart is drawn when it is larger than a thumb nail, when something in it has an area or a length, and when what
# takes its colour from a class has got one.
_CHARTS = """() => [...document.querySelectorAll("figure.chart")].map((figure) => {
  const svg = figure.querySelector("svg"), box = svg?.getBoundingClientRect();
  const shapes = svg ? [...svg.querySelectorAll("path,circle,rect,line,polyline,polygon,image")] : [];
  const marks = shapes.filter((shape) => {
    if (shape.matches(".axis,.grid")) return false;
    const look = getComputedStyle(shape), place = shape.getBBox();
    const painted = shape.tagName === "image" || look.stroke !== "none" || look.fill !== "none";
    return painted && look.visibility === "visible" && place.width + place.height > 0;
  });
  const pale = shapes.filter((shape) => shape.matches(".line,.dot,.bar,.cloud,.ring,.rule,.span") &&
    !getComputedStyle(shape).getPropertyValue("--c").trim());
  const words = svg ? [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim()) : [];
  const cut = words.filter((t) => {
    const b = t.getBoundingClientRect();
    return b.left < box.left - 2 || b.right > box.right + 2 || b.top < box.top - 2 || b.bottom > box.bottom + 2;
  });
  const boxes = words.map((t) => [t.textContent, t.getBoundingClientRect()]), over = [];
  boxes.forEach(([a, p], i) => boxes.slice(0, i).forEach(([b, q]) => {
    const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (x > 3 && y > 4) over.push(`${b} | ${a}`);
  }));
  return { key: figure.id, over, width: box?.width ?? 0, height: box?.height ?? 0, marks: marks.length,
    pale: pale.length, cut: cut.map((t) => t.textContent) };
})"""
# What lies in something that scrolls sideways may be as wide as it likes; that something may not.
_WIDE = """() => {
  const edge = document.documentElement.clientWidth + 1;
  const scrolls = (e) => ["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowX);
  const held = (e) => { for (let p = e.parentElement; p && p !== document.body; p = p.parentElement)
    if (scrolls(p)) return true; return false; };
  const wide = [...document.body.querySelectorAll("*")].filter((e) => {
    const box = e.getBoundingClientRect();
    return box.width > 0 && (box.right > edge || box.left < -1) && !held(e);
  });
  const said = (e) => `${e.tagName}.${e.className.baseVal ?? e.className}#${e.id}: ${e.textContent.slice(0, 60)}`;
  const whole = document.documentElement.scrollWidth > edge ? ["the page scrolls sideways"] : [];
  return [...whole, ...wide.map(said)];
}"""
# Words that a reader sees only after scrolling sideways. Plain tables and listings may do that and show a shadow.
_HIDDEN = """() => [...document.body.querySelectorAll("*")].filter((e) =>
  e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== "visible" &&
  !e.matches("pre, select") && !(e.matches(".wide") && !e.querySelector("table.stack"))
).map((e) => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 60)}`)"""
_ON_TOP = ["attention-maps"]  # there the ranks of the strongest patches lie on the maps, close together if they are
_BRIGHTNESS = """(element) => {
  const [r, g, b] = getComputedStyle(element).backgroundColor.match(/[0-9.]+/g).map(Number);
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}"""


def unfold(page: Any) -> None:
    """Open every fold, so that what is in it has a size."""
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => { d.open = true; })")


def charts(page: Any) -> dict[str, dict[str, Any]]:
    """Every chart by its key: size, marks, marks without a colour, and text cut off or printed over other text."""
    found = page.evaluate(_CHARTS)
    keys = [chart["key"] for chart in found]
    assert len(set(keys)) == len(keys), f"two charts of one name: {keys}"
    return {chart["key"]: chart for chart in found}


def faults(page: Any) -> list[str]:
    """What is wrong with the charts, in words; empty when nothing is."""
    problems = []
    for key, chart in charts(page).items():
        if chart["width"] <= 20 or chart["height"] <= 20:
            problems.append(f"{key}: drawn {chart['width']:.0f} by {chart['height']:.0f} pixels")
        elif not chart["marks"]:
            problems.append(f"{key}: nothing drawn")
        problems += [f"{key}: {chart['pale']} marks without a colour"] if chart["pale"] else []
        problems += [f"{key}: cut off: {words}" for words in chart["cut"]]
        problems += [f"{key}: over each other: {words}" for words in chart["over"] if key not in _ON_TOP]
    return problems


def too_wide(page: Any) -> list[str]:
    """Elements beyond the right or left edge of the window."""
    return page.evaluate(_WIDE)


def hidden(page: Any) -> list[str]:
    """Elements whose words are cut at their edge: navigation, titles, tables that should fit."""
    return page.evaluate(_HIDDEN)


def brightness(page: Any, selector: str = "body") -> float:
    """Of the background of an element, from 0 to 1."""
    return page.locator(selector).first.evaluate(_BRIGHTNESS)
