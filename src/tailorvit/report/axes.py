"""Axes: scales, ticks and marks of one chart as inline SVG text, coloured by the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from tailorvit.report.figure import tip

Point = tuple[float, float]
Scale = Callable[[float], float]  # from data to place
WIDTH, HEIGHT = 440, 260  # small enough that text stays readable when a phone shrinks the drawing
COLOURS = 6  # classes c0 ... c5 in the style sheet


class Box(NamedTuple):
    """Where a chart lies on its drawing, with room for labels around the plot."""

    x: float = 0
    y: float = 0
    width: float = WIDTH
    height: float = HEIGHT
    left: float = 52
    right: float = 18
    top: float = 22
    bottom: float = 38


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover [low, high]."""
    raw = (high - low) / count
    if not high > low or not 0 < raw < math.inf:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 2.5, 5) if m * power >= raw), 10 * power)
    if not step > 0 or max(abs(low), abs(high)) / step > 1e12:  # beyond what a float tells apart
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
    """At most ``most`` items, evenly picked, first and last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def span(values: Iterable[float]) -> tuple[float, float]:
    """The range of some values with a margin, never empty."""
    every = list(values)
    low, high = min(every), max(every)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return (low - margin, high + margin) if math.isfinite(high - low) else (low, high)


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
        """``x_names`` replaces the numbers of the x axis by words at given places."""
        across = list(xs)
        (self.x0, self.x1), (self.y0, self.y1) = span(across), span(ys)
        self.box = box or Box()
        b = self.box
        self.left, self.right = b.x + b.left, b.x + b.width - b.right
        self.top, self.bottom = b.y + b.top, b.y + b.height - b.bottom
        self.parts: list[str] = []
        for v in ticks(self.y0, self.y1, marks):
            y = self.y(v)
            self.parts.append(f'<path class="grid" d="M{self.left:g} {y:.1f}H{self.right:g}"/>')
            self.parts.append(text(self.left - 5, y + 4, short(v), "end"))
        whole = all(float(v).is_integer() for v in across)  # between two generations there is none
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
        """Where a value lies across the drawing."""
        return self.left + (value - self.x0) / (self.x1 - self.x0) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Where a value lies down the drawing."""
        return self.bottom - (value - self.y0) / (self.y1 - self.y0) * (self.bottom - self.top)

    def path(self, points: Sequence[Point], style: str, stairs: bool = False) -> None:
        """A line through points; as stairs it keeps its height until the next point."""
        places = [(f"{self.x(a):.1f}", f"{self.y(b):.1f}") for a, b in points]
        if not places:
            return
        joined = "".join(f"H{a}V{b}" if stairs else f"L{a} {b}" for a, b in places[1:])
        self.parts.append(f'<path class="{style}" d="M{places[0][0]} {places[0][1]}{joined}"/>')

    def cloud(self, points: Iterable[Point], style: str) -> None:
        """Many dots as one path of round ends: 5,000 take some 60 kB; dots on the same spot are drawn once."""
        places = dict.fromkeys(f"M{self.x(a):.1f} {self.y(b):.1f}h.01" for a, b in points)
        if places:
            self.parts.append(f'<path class="cloud {style}" d="{"".join(places)}"/>')

    def dot(self, point: Point, style: str, radius: float = 2.5, words: str = "") -> None:
        """One dot, with words for those who point at it."""
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
