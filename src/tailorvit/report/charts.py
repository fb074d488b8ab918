"""Charts as inline SVG text: plain functions from numbers to drawings, coloured by the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Point = tuple[float, float]
WIDTH, HEIGHT = 440, 260  # small enough that text stays readable when a phone shrinks the drawing
COLOURS = 6  # classes c0 ... c5 in the style sheet


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 2.5, 5) if m * power >= raw), 10 * power)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


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


def front(points: Sequence[Point]) -> list[Point]:
    """Points no other beats: lower x and higher y are better; in order of x."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p[0], -p[1])):
        if not best or point[1] > best[-1][1]:
            best.append(point)
    return best


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return low - margin, high + margin


class _Frame:
    """Axes and scales of one chart."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], x_label: str, y_label: str) -> None:
        (self.x0, self.x1), (self.y0, self.y1) = _span(xs), _span(ys)
        self.left, self.right, self.top, self.bottom = 52, WIDTH - 10, 22, HEIGHT - 38
        self.parts: list[str] = []
        for v in ticks(self.y0, self.y1):
            y = self.y(v)
            self.parts.append(f'<path class="grid" d="M{self.left} {y:.1f}H{self.right}"/>')
            self.parts.append(f'<text x="{self.left - 5}" y="{y + 4:.1f}" text-anchor="end">{short(v)}</text>')
        for v in ticks(self.x0, self.x1):
            self.parts.append(
                f'<text x="{self.x(v):.1f}" y="{self.bottom + 15}" text-anchor="middle">{short(v)}</text>'
            )
        middle = (self.left + self.right) / 2
        self.parts.append(f'<path class="axis" d="M{self.left} {self.top}V{self.bottom}H{self.right}"/>')
        self.parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
        self.parts.append(f'<text x="4" y="13">{escape(y_label)}</text>')

    def x(self, value: float) -> float:
        return self.left + (value - self.x0) / (self.x1 - self.x0) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.y0) / (self.y1 - self.y0) * (self.bottom - self.top)

    def path(self, points: Sequence[Point], style: str) -> None:
        steps = "L".join(f"{self.x(a):.1f} {self.y(b):.1f}" for a, b in points)
        self.parts.append(f'<path class="{style}" d="M{steps}"/>')

    def dot(self, point: Point, style: str, radius: float = 2.5) -> None:
        self.parts.append(
            f'<circle class="{style}" cx="{self.x(point[0]):.1f}" cy="{self.y(point[1]):.1f}" r="{radius}"/>'
        )


def _svg(parts: Sequence[str], title: str, width: float = WIDTH, height: float = HEIGHT) -> str:
    name = escape(title)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{name}"><title>{name}</title>'
        f"{''.join(parts)}</svg>"
    )


def scatter(
    points: Sequence[Point], title: str, x_label: str, y_label: str, chosen: Point | None = None, most: int = 2000
) -> tuple[str, int]:
    """Dots with the front as a line, and how many dots were drawn; the front is always drawn whole."""
    if not points:
        return "", 0
    shown = [*points, chosen] if chosen else list(points)
    frame = _Frame([p[0] for p in shown], [p[1] for p in shown], x_label, y_label)
    best = front(points)
    dots = thin(points, most)
    for point in dots:
        frame.dot(point, "dot c0")
    frame.path(best, "line c1")
    for point in best:
        frame.dot(point, "dot c1", 3)
    if chosen:
        frame.dot(chosen, "ring c2", 6)
    return _svg(frame.parts, title), len(points) if len(points) <= most else len({*dots, *best})


def lines(series: Mapping[str, Sequence[Point]], title: str, x_label: str, y_label: str, most: int = 400) -> str:
    """One line per series, with a legend."""
    drawn = {name: thin(points, most) for name, points in series.items() if points}
    if not drawn:
        return ""
    every = [p for points in drawn.values() for p in points]
    frame = _Frame([p[0] for p in every], [p[1] for p in every], x_label, y_label)
    for i, points in enumerate(drawn.values()):
        frame.path(points, f"line c{i % COLOURS}")
        if len(points) == 1:
            frame.dot(points[0], f"dot c{i % COLOURS}", 3)
    names = "".join(f'<span class="key c{i % COLOURS}">{escape(name)}</span>' for i, name in enumerate(drawn))
    return f'{_svg(frame.parts, title)}<p class="legend">{names}</p>'


def slopes(rows: Sequence[tuple[str, float, float | None]], title: str) -> str:
    """A bar per dimension from zero, with a whisker of one standard error to both sides."""
    if not rows:
        return ""
    left, right, row_height = 110, WIDTH - 60, 24
    reach = max(abs(v) + (e or 0) for _, v, e in rows) or 1.0
    middle, scale = (left + right) / 2, (right - left) / 2 / reach
    height = row_height * len(rows) + 8
    parts = [f'<path class="axis" d="M{middle} 0V{height}"/>']
    for i, (name, value, error) in enumerate(rows):
        y, end = 4 + row_height * i, middle + value * scale
        parts.append(f'<text x="{left - 6}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(
            f'<rect class="bar {"c0" if value >= 0 else "c3"}" x="{min(middle, end):.1f}" y="{y + 4}"'
            f' width="{abs(end - middle):.1f}" height="{row_height - 10}"/>'
        )
        if error is not None:
            a, b = end - error * scale, end + error * scale
            parts.append(f'<path class="whisker" d="M{a:.1f} {y + 11}H{b:.1f}M{a:.1f} {y + 7}v8M{b:.1f} {y + 7}v8"/>')
        parts.append(f'<text x="{WIDTH - 4}" y="{y + 15}" text-anchor="end">{value:+.3g}</text>')
    return _svg(parts, title, WIDTH, height)


def intervals(name: str, steps: Sequence[tuple[int, Sequence[float]]]) -> str:
    """The path of one dimension: a bar from lowest to highest choice per step, a dot per choice."""
    width, height, left, top, bottom = 210, 130, 40, 20, 108
    values = [v for _, choices in steps for v in choices]
    if not values:
        return ""
    low, high = _span(values)
    gap = (width - left - 8) / len(steps)
    parts = [f'<text x="4" y="12" class="strong">{escape(name)}</text>']
    seen = sorted(set(values))
    for v in seen if len(seen) <= 6 else ticks(low, high, 4):
        y = bottom - (v - low) / (high - low) * (bottom - top)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{width - 4}"/>')
        parts.append(f'<text x="{left - 4}" y="{y + 4:.1f}" text-anchor="end">{short(v)}</text>')
    for i, (t, choices) in enumerate(steps):
        x = left + gap * (i + 0.5)
        ys = [bottom - (v - low) / (high - low) * (bottom - top) for v in choices]
        if ys:
            parts.append(f'<path class="span c0" d="M{x:.1f} {min(ys):.1f}V{max(ys):.1f}"/>')
        parts += [f'<circle class="dot c1" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for y in ys]
        parts.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle">{t}</text>')
    return _svg(parts, f"Choices of {name} at each step", width, height)
