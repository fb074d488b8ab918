"""Charts: figures, axes and drawings as inline SVG text, coloured by the style sheet.

A drawing is a plain function from numbers to SVG. A `Figure` adds title, caption and the numbers themselves.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Point = tuple[float, float]
Scale = Callable[[float], float]  # from a value to its place on the drawing
WIDTH, HEIGHT = 440, 260  # small enough that text stays readable when a phone shrinks the drawing
COLOURS = 6  # classes c0 ... c5 in the style sheet
LEVELS = 16  # colours of a heat map: four bits per pixel keep a 14 x 14 map near 200 bytes
CLOUD = 2000  # points of one colour that are drawn one by one; of more, those that nearly cover each other once
CROWDED = " Of dots that nearly cover each other one is drawn; the numbers hold all."
_CELL = 2.0  # units of the drawing in which only one dot of a larger cloud is drawn; a dot is 4.5 wide
_MOST_DOTS = 60  # points of a line that each get a dot with a hint; more would crowd the line
_HEAT = ((11, 16, 38), (91, 31, 122), (196, 60, 90), (245, 143, 41), (252, 243, 165))  # dark to light


@dataclass(frozen=True)
class Figure:
    """One chart as numbers (for CSV) and as a drawing (for the page, SVG and PNG)."""

    key: str  # names its files and its place on the page: lower case letters, digits and hyphens
    title: str
    caption: str  # one or two plain sentences: what is drawn and how to read it
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]
    svg: str  # one <svg> element; colours by class, so that it fits the light and the dark page
    legend: tuple[tuple[str, str], ...] = ()  # (class, words): ("c0", "best")
    controls: str = ""  # markup of filters for the page's script; empty for most figures

    def html(self) -> str:
        """The figure as the page shows it."""
        keys = "".join(f'<span class="key {style}">{escape(words)}</span>' for style, words in self.legend)
        legend = f'<p class="legend">{keys}</p>' if keys else ""
        return (
            f'<figure id="{escape(self.key)}" class="chart"><h4>{escape(self.title)}</h4>{self.controls}'
            f'<div class="drawing">{self.svg}</div>{legend}<figcaption>{escape(self.caption)}</figcaption></figure>\n'
        )


def figures_of(*found: Figure | None) -> list[Figure]:
    """The figures that have something to draw."""
    return [figure for figure in found if figure is not None and figure.svg]


# -- numbers ----------------------------------------------------------------------------------------------------------


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover [low, high]."""
    raw = (high - low) / count
    if not high > low or not 0 < raw < math.inf:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 2.5, 5) if m * power >= raw), 10 * power)
    if not step > 0 or max(abs(low), abs(high)) / step > 1e12:  # beyond the precision of a float
        return [low, high]
    first = math.ceil(low / step - 1e-9)
    places = max(0, 2 - math.floor(math.log10(step)))
    return [round(i * step, places) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number for an axis: 5M, 1.25G, 0.001."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{value:.4g}"


def thin(items: Sequence[Point], most: int) -> list[Point]:
    """At most ``most`` items, evenly picked, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def span(values: Iterable[float], label: str = "") -> tuple[float, float]:
    """The range of some values with a margin, never empty; percentages stay in 0 to 100, shares in 0 to 1."""
    every = list(values)
    low, high = min(every), max(every)
    if not math.isfinite(high - low):
        return low, high
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    most = 100.0 if label.endswith("%") else 1.0 if label.startswith("share") else math.inf
    if most < math.inf and 0 <= low <= high <= most:
        return max(low - margin, 0.0), min(high + margin, most)
    return low - margin, high + margin


def front(points: Sequence[Point]) -> list[Point]:
    """The Pareto front, in order of x: no other point has a lower x and a higher y."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p[0], -p[1])):
        if not best or point[1] > best[-1][1]:
            best.append(point)
    return best


def crowded(groups: Iterable[Sequence[Point]]) -> str:
    """The note under clouds of which not every dot is drawn; empty where all are."""
    return CROWDED if any(len(points) > CLOUD for points in groups) else ""


# -- marks ------------------------------------------------------------------------------------------------------------


def tip(words: str) -> str:
    """The attribute of a hint: the page's script shows it when the reader points at the element."""
    return f' data-tip="{escape(words)}"'


def svg(parts: Sequence[str], title: str, width: float = WIDTH, height: float = HEIGHT, extra: str = "") -> str:
    """One drawing from its parts."""
    name = escape(title)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{name}"{extra}><title>{name}</title>'
        f"{''.join(parts)}</svg>"
    )


def text(x: float, y: float, words: str, anchor: str = "start", style: str = "") -> str:
    """A line of text."""
    side = f' text-anchor="{anchor}"' if anchor != "start" else ""
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{side}{kind}>{escape(words)}</text>'


def bar(x: float, y: float, width: float, height: float, style: str, extra: str = "") -> str:
    """A filled box."""
    return f'<rect class="bar {style}" x="{x:g}" y="{y:g}" width="{max(width, 0):.1f}" height="{height:g}"{extra}/>'


def whisker(a: float, b: float, y: float, reach: float = 4) -> str:
    """A horizontal interval with two ends."""
    end = f"{y - reach:g}v{2 * reach:g}"
    return f'<path class="whisker" d="M{a:.1f} {y:g}H{b:.1f}M{a:.1f} {end}M{b:.1f} {end}"/>'


def trim(words: str, most: int) -> str:
    """A long name without its middle: file names differ at their ends more often than at their beginnings."""
    if len(words) <= most:
        return words
    head = (most - 1) // 2
    return f"{words[:head]}…{words[len(words) - (most - 1 - head) :]}"


def image(href: str, x: float, y: float, width: float, height: float, fit: str = "none") -> str:
    """A picture; ``href`` must be a checked data address. PNG keeps its pixels, photographs are smoothed."""
    sharp = ' style="image-rendering:pixelated"' if href.startswith("data:image/png") else ""
    return (
        f'<image href="{href}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        f' preserveAspectRatio="{fit}"{sharp}/>'
    )


def palette() -> NDArray[np.uint8]:
    """The colours of heat maps, from zero to the largest value."""
    at = np.linspace(0, len(_HEAT) - 1, LEVELS)
    channels = [np.interp(at, range(len(_HEAT)), [colour[i] for colour in _HEAT]) for i in range(3)]
    return np.stack(channels, axis=1).round().astype(np.uint8)


def heat_png(values: NDArray[Any]) -> str:
    """A matrix of bytes as the data address of a PNG, one pixel per entry."""
    levels = (values.astype(np.uint16) * LEVELS // 256).astype(np.uint8)
    height, width = levels.shape
    even = np.pad(levels, ((0, 0), (0, width % 2)))
    packed = even[:, 0::2] << 4 | even[:, 1::2]
    raw = b"".join(b"\0" + line.tobytes() for line in packed)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)  # four bits per pixel, with a palette
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"PLTE", palette().tobytes())
    data += chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def heat_scale(x: float, y: float) -> str:
    """A strip with the colours of a heat map."""
    return image(heat_png(np.arange(0, 256, 16, dtype=np.uint8)[None]), x, y, 120, 8)


# -- axes -------------------------------------------------------------------------------------------------------------


class Box(NamedTuple):
    """Where a chart lies on its drawing, with space for labels around the plot."""

    x: float = 0
    y: float = 0
    width: float = WIDTH
    height: float = HEIGHT
    left: float = 52
    right: float = 18
    top: float = 22
    bottom: float = 38


class Axes:
    """Axes and scales of one chart; marks are added in the units of the data. ``parts`` is the drawing so far."""

    def __init__(
        self,
        xs: Iterable[float],
        ys: Iterable[float],
        x_label: str = "",
        y_label: str = "",
        box: Box | None = None,
        x_names: Mapping[float, str] | None = None,
        marks: int = 5,
    ) -> None:
        """``x_names`` replaces the numbers of the x axis by words."""
        across = list(xs)
        (self.x0, self.x1), (self.y0, self.y1) = span(across, x_label), span(ys, y_label)
        self.box = b = box or Box()
        self.left, self.right = b.x + b.left, b.x + b.width - b.right
        self.top, self.bottom = b.y + b.top, b.y + b.height - b.bottom
        self.parts: list[str] = []
        for v in ticks(self.y0, self.y1, marks):
            y = self.y(v)
            self.parts.append(f'<path class="grid" d="M{self.left:g} {y:.1f}H{self.right:g}"/>')
            self.parts.append(text(self.left - 5, y + 4, short(v), "end"))
        whole = all(float(v).is_integer() for v in across)  # there is nothing between two generations
        found = [v for v in ticks(self.x0, self.x1, marks) if not whole or float(v).is_integer()]
        names = x_names if x_names is not None else {v: short(v) for v in found}
        for v, words in names.items():
            self.parts.append(text(self.x(v), self.bottom + 15, words, "middle"))
        self.parts.append(f'<path class="axis" d="M{self.left:g} {self.top:g}V{self.bottom:g}H{self.right:g}"/>')
        if x_label:
            self.parts.append(text((self.left + self.right) / 2, b.y + b.height - 6, x_label, "middle"))
        if y_label:
            self.parts.append(text(b.x + 4, b.y + 13, y_label))

    def x(self, value: float) -> float:
        """The horizontal place of a value."""
        return self.left + (value - self.x0) / (self.x1 - self.x0) * (self.right - self.left)

    def y(self, value: float) -> float:
        """The vertical place of a value."""
        return self.bottom - (value - self.y0) / (self.y1 - self.y0) * (self.bottom - self.top)

    def path(self, points: Sequence[Point], style: str, stairs: bool = False) -> None:
        """A line through points; as stairs it keeps its height until the next point."""
        places = [(f"{self.x(a):.1f}", f"{self.y(b):.1f}") for a, b in points]
        if places:
            rest = "".join(f"H{a}V{b}" if stairs else f"L{a} {b}" for a, b in places[1:])
            self.parts.append(f'<path class="{style}" d="M{places[0][0]} {places[0][1]}{rest}"/>')

    def cloud(self, points: Sequence[Point], style: str) -> None:
        """Many dots as one path of round ends: 5,000 dots take about 60 kB. Dots on the same spot are drawn once."""
        places = [(self.x(a), self.y(b)) for a, b in points]
        if len(places) > CLOUD:
            places = list({(x // _CELL, y // _CELL): (x, y) for x, y in reversed(places)}.values())
        dots = dict.fromkeys(f"M{x:.1f} {y:.1f}h.01" for x, y in places)
        if dots:
            self.parts.append(f'<path class="cloud {style}" d="{"".join(dots)}"/>')

    def dot(self, point: Point, style: str, radius: float = 2.5, words: str = "") -> None:
        """One dot, with a hint."""
        hint = f'{tip(words)} tabindex="0"' if words else ""
        x, y = self.x(point[0]), self.y(point[1])
        self.parts.append(f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"{hint}/>')

    def rule(self, height: float, words: str, style: str = "c3") -> None:
        """A dashed line at one height, with its name."""
        y = self.y(height)
        self.parts.append(f'<path class="rule {style}" d="M{self.left:g} {y:.1f}H{self.right:g}"/>')
        self.parts.append(text(self.right, y - 4, words, "end"))

    def svg(self, title: str, extra: str = "") -> str:
        """The drawing."""
        return svg(self.parts, title, self.box.width, self.box.height, extra)


# -- drawings ---------------------------------------------------------------------------------------------------------


def legend(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The legend of :func:`lines`: one colour per series, in order; dashed when the colours repeat."""
    return tuple((f"c{i % COLOURS}{' dashed' if i >= COLOURS else ''}", name) for i, name in enumerate(names))


def lines(
    series: Mapping[str, Sequence[Point]],
    title: str,
    x_label: str,
    y_label: str,
    most: int = 400,
    rules: Sequence[tuple[float, str]] = (),
    x_names: Mapping[float, str] | None = None,
    stairs: bool = False,
) -> str:
    """One line per series, and dashed rules; empty series are left out but keep their colour."""
    drawn = {name: thin(points, most) for name, points in series.items()}
    every = [p for points in drawn.values() for p in points]
    if not every:
        return ""
    heights = [*(p[1] for p in every), *(h for h, _ in rules)]
    axes = Axes((p[0] for p in every), heights, x_label, y_label, None, x_names)
    for height, words in rules:
        axes.rule(height, words)
    for (style, name), points in zip(legend(list(drawn)), drawn.values(), strict=True):
        axes.path(points, f"line {style}", stairs)
        if len(points) <= _MOST_DOTS and not stairs:
            for point in points:
                where = (x_names or {}).get(point[0], short(point[0]))
                axes.dot(point, f"dot {style}", 3, f"{name}: {x_label} {where}, {y_label} {point[1]:.6g}")
    return axes.svg(title)


def scatter(
    groups: Mapping[str, Sequence[Point]],
    title: str,
    x_label: str,
    y_label: str,
    best: Sequence[tuple[Point, str]] = (),
    chosen: tuple[Point, str] | None = None,
    extra: str = "",
) -> str:
    """Groups of dots in their colours, the front as a line of dots with hints, and a ring around the chosen one."""
    every = [
        *(p for points in groups.values() for p in points),
        *(p for p, _ in best),
        *([chosen[0]] if chosen else []),
    ]
    if not every:
        return ""
    axes = Axes((p[0] for p in every), (p[1] for p in every), x_label, y_label)
    for (style, _), points in zip(legend(list(groups)), groups.values(), strict=True):
        axes.cloud(points, style)
    axes.path([p for p, _ in best], "line front")
    for point, words in best:
        axes.dot(point, "dot front", 3, words)
    if chosen:
        axes.dot(chosen[0], "ring c3", 6, chosen[1])
    return axes.svg(title, extra)


def bars(rows: Sequence[tuple[str, float, float | None]], title: str, form: str = "+.3g") -> str:
    """A bar per name to the left or right of zero, with a whisker of one standard error to both sides."""
    if not rows:
        return ""
    left, right, step = 110, WIDTH - 60, 24
    reach = max(abs(v) + (e or 0) for _, v, e in rows) or 1.0
    middle, scale = (left + right) / 2, (right - left) / 2 / reach
    height = step * len(rows) + 8
    parts = [f'<path class="axis" d="M{middle} 0V{height}"/>']
    for i, (name, exact, error) in enumerate(rows):
        value = exact if abs(exact) > 1e-9 * reach else 0.0  # rounding errors are not worth a number
        y, end = 4 + step * i, middle + value * scale
        words = f"{name}: {value:{form}}" + ("" if error is None else f", standard error {error:.3g}")
        parts.append(text(left - 6, y + 15, trim(name, 15), "end"))
        parts.append(
            f'<rect class="bar {"c0" if value >= 0 else "c3"}" x="{min(middle, end):.1f}" y="{y + 4}"'
            f' width="{abs(end - middle):.1f}" height="{step - 10}"{tip(words)}/>'
        )
        if error is not None:
            parts.append(whisker(end - error * scale, end + error * scale, y + 11))
        parts.append(text(WIDTH - 4, y + 15, f"{value:{form}}", "end"))
    return svg(parts, title, WIDTH, height)


class Mark(NamedTuple):
    """A dot in a row, with its hint and, where known, its interval."""

    value: float
    style: str
    words: str
    interval: tuple[float, float] | None = None


def dot_rows(rows: Sequence[tuple[str, Sequence[Mark]]], title: str, x_label: str, step: int = 30) -> str:
    """A row of dots per name over one scale."""
    marks = [mark for _, row in rows for mark in row]
    if not marks:
        return ""
    names = [trim(name, 24) for name, _ in rows]
    left, bottom = max(96.0, 14 + 7.4 * max(map(len, names))), step * len(rows) + 6  # on a phone a letter takes 7.4
    low, high = span([v for m in marks for v in (m.value, *(m.interval or ()))], x_label)

    def at(v: float) -> float:
        return left + (v - low) / (high - low) * (WIDTH - 14 - left)

    parts = []
    for v in ticks(low, high):
        parts.append(f'<path class="grid" d="M{at(v):.1f} 0V{bottom}"/>{text(at(v), bottom + 14, short(v), "middle")}')
    for i, (name, (_, row)) in enumerate(zip(names, rows, strict=True)):
        y = step * (i + 0.5) + 3
        parts.append(text(left - 8, y + 4, name, "end", "strong"))
        for mark in row:
            parts.append(whisker(at(mark.interval[0]), at(mark.interval[1]), y, 5) if mark.interval else "")
            hint = f'{tip(mark.words)} tabindex="0"'
            parts.append(f'<circle class="dot solid {mark.style}" cx="{at(mark.value):.1f}" cy="{y:g}" r="5"{hint}/>')
    parts.append(text((left + WIDTH) / 2, bottom + 30, x_label, "middle"))
    return svg(parts, title, WIDTH, bottom + 36)


def levels(rows: Sequence[tuple[str, float, str, str]], limits: Sequence[tuple[float, str]], title: str) -> str:
    """Bars from zero, (name, value, words, colour), against vertical marks (value, words)."""
    reach = max([*(v for _, v, _, _ in rows), *(v for v, _ in limits)], default=0.0)
    if reach <= 0:
        return ""
    left, step, top = 96, 26, 18 if limits else 2
    height = top + step * len(rows) + 4

    def at(v: float) -> float:
        return left + v / reach * (WIDTH - left - 92)

    parts = []
    for i, (name, value, words, style) in enumerate(rows):
        y = top + step * i
        parts.append(text(left - 8, y + 16, name, "end", "strong"))
        parts.append(
            f'<rect class="bar {style}" x="{left}" y="{y + 4}" width="{max(at(value) - left, 0.5):.1f}"'
            f' height="{step - 10}"{tip(f"{name}: {words}")}/>{text(WIDTH - 4, y + 16, words, "end")}'
        )
    for i, (value, words) in enumerate(sorted(limits)):
        last = i == len(limits) - 1  # the others are written to the left of their line, where there is no other line
        parts.append(f'<path class="rule c3" d="M{at(value):.1f} 4V{height}"/>')
        parts.append(text(at(value) + (3 if last else -3), 12, words, "start" if last else "end"))
    return svg(parts, title, WIDTH, height)


def stack(pieces: Sequence[tuple[str, float, str, str]], title: str) -> str:
    """One bar cut into pieces: (name, value, words, colour); pieces of size zero are left out."""
    total = sum(v for _, v, _, _ in pieces if v > 0)
    if total <= 0:
        return ""
    parts, x = [], 0.0
    for name, value, words, style in pieces:
        if value <= 0:
            continue
        width = value / total * WIDTH
        parts.append(
            f'<rect class="bar edge {style}" x="{x:.2f}" y="2" width="{width:.2f}" height="30"'
            f'{tip(f"{name}: {words}")} tabindex="0"/>'
        )
        if width > 7 * len(name) + 8:
            parts.append(text(x + width / 2, 21, name, "middle", "strong"))
        x += width
    return svg(parts, title, WIDTH, 34)


def intervals(panels: Mapping[str, Sequence[tuple[str, Sequence[float]]]], title: str, columns: int = 2) -> str:
    """A panel per dimension: a bar from the lowest to the highest choice per step, and a dot per choice."""
    shown = {name: steps for name, steps in panels.items() if any(choices for _, choices in steps)}
    if not shown:
        return ""
    wide, high, left, top, bottom = WIDTH / columns, 132.0, 40.0, 22.0, 108.0
    parts: list[str] = []
    for n, (name, steps) in enumerate(shown.items()):
        x0, y0 = wide * (n % columns), high * (n // columns)
        values = sorted({v for _, choices in steps for v in choices})
        low, top_value = span(values)
        gap = (wide - left - 12) / len(steps)

        def at(v: float, y0: float = y0, low: float = low, top_value: float = top_value) -> float:
            return y0 + bottom - (v - low) / (top_value - low) * (bottom - top)

        parts.append(text(x0 + 4, y0 + 13, name, style="strong"))
        for v in values if len(values) <= 6 else ticks(low, top_value, 4):
            parts.append(f'<path class="grid" d="M{x0 + left:.1f} {at(v):.1f}H{x0 + wide - 8:.1f}"/>')
            parts.append(text(x0 + left - 4, at(v) + 4, short(v), "end"))
        means: list[tuple[float, float]] = []
        for i, (label, choices) in enumerate(steps):
            x = x0 + left + gap * (i + 0.5)
            parts.append(text(x, y0 + bottom + 16, label, "middle"))
            if not choices:
                continue
            words = f"{name}, step {label}: {', '.join(f'{v:g}' for v in choices)}"
            ends = f"M{x:.1f} {at(min(choices)):.1f}V{at(max(choices)) - 0.01:.2f}"
            parts.append(f'<path class="span c0" d="{ends}"{tip(words)} tabindex="0"/>')
            parts += [f'<circle class="dot solid c1" cx="{x:.1f}" cy="{at(v):.1f}" r="2.5"/>' for v in choices]
            means.append((x, at(sum(choices) / len(choices))))
        for (a, b), (c, d) in pairwise(means):
            parts.append(f'<path class="line thin c0" d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}"/>')
    return svg(parts, title, WIDTH, high * -(-len(shown) // columns))
