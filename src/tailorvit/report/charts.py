"""Charts: plain functions from numbers to drawings; a Figure adds words and the numbers themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from tailorvit.report.axes import COLOURS, HEIGHT, WIDTH, Axes, Box, Point, Scale, short, span, svg, text, thin, ticks
from tailorvit.report.figure import tip

__all__ = [
    "COLOURS",
    "HEIGHT",
    "WIDTH",
    "Axes",
    "Box",
    "Point",
    "Scale",
    "bars",
    "estimates",
    "front",
    "intervals",
    "legend",
    "levels",
    "lines",
    "scatter",
    "short",
    "span",
    "stack",
    "svg",
    "text",
    "thin",
    "ticks",
]
_HINTED = 60  # points of a line with a dot and words each; more would crowd the line


def front(points: Sequence[Point]) -> list[Point]:
    """Points no other beats: lower x and higher y are better; in order of x."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p[0], -p[1])):
        if not best or point[1] > best[-1][1]:
            best.append(point)
    return best


def legend(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The legend of :func:`lines`: one colour a series, in order; dashed once the colours begin anew."""
    return tuple((f"c{i % COLOURS}{' again' if i >= COLOURS else ''}", name) for i, name in enumerate(names))


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
    """One line per series, dashed rules at given heights; empty series are left out but keep their colour."""
    drawn = {name: thin(points, most) for name, points in series.items()}
    every = [p for points in drawn.values() for p in points]
    if not every:
        return ""
    axes = Axes(
        (p[0] for p in every), [*(p[1] for p in every), *(h for h, _ in rules)], x_label, y_label, None, x_names
    )
    for height, words in rules:
        axes.rule(height, words)
    for (style, name), points in zip(legend(list(drawn)), drawn.values(), strict=True):
        axes.path(points, f"line {style}", stairs)
        if len(points) <= _HINTED and not stairs:
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
    """Groups of dots in their colours, the front as a line of dots with words, and a ring around the chosen one."""
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
    """A bar per name from zero, with a whisker of one standard error to both sides."""
    if not rows:
        return ""
    left, right, row_height = 110, WIDTH - 60, 24
    reach = max(abs(v) + (e or 0) for _, v, e in rows) or 1.0
    middle, scale = (left + right) / 2, (right - left) / 2 / reach
    height = row_height * len(rows) + 8
    parts = [f'<path class="axis" d="M{middle} 0V{height}"/>']
    for i, (name, value, error) in enumerate(rows):
        y, end = 4 + row_height * i, middle + value * scale
        words = f"{name}: {value:{form}}" + ("" if error is None else f", standard error {error:.3g}")
        parts.append(text(left - 6, y + 15, name, "end"))
        parts.append(
            f'<rect class="bar {"c0" if value >= 0 else "c3"}" x="{min(middle, end):.1f}" y="{y + 4}"'
            f' width="{abs(end - middle):.1f}" height="{row_height - 10}"{tip(words)}/>'
        )
        if error is not None:
            a, b = end - error * scale, end + error * scale
            parts.append(f'<path class="whisker" d="M{a:.1f} {y + 11}H{b:.1f}M{a:.1f} {y + 7}v8M{b:.1f} {y + 7}v8"/>')
        parts.append(text(WIDTH - 4, y + 15, f"{value:{form}}", "end"))
    return svg(parts, title, WIDTH, height)


def estimates(rows: Sequence[tuple[str, float, float, float, str]], title: str, x_label: str) -> str:
    """A dot with the interval it may lie in per row: (name, value, low, high, colour)."""
    if not rows:
        return ""
    left, step = 96, 30
    bottom = step * len(rows) + 6
    low, high = span([v for _, value, a, b, _ in rows for v in (value, a, b)])

    def at(v: float) -> float:
        return left + (v - low) / (high - low) * (WIDTH - 14 - left)

    parts = []
    for v in ticks(low, high):
        parts.append(f'<path class="grid" d="M{at(v):.1f} 0V{bottom}"/>{text(at(v), bottom + 14, short(v), "middle")}')
    for i, (name, value, a, b, style) in enumerate(rows):
        y = step * i + 18
        words = f"{name}: {value:.2f}, between {a:.2f} and {b:.2f}"
        parts.append(text(left - 8, y + 4, name, "end", "strong"))
        parts.append(
            f'<path class="whisker" d="M{at(a):.1f} {y}H{at(b):.1f}M{at(a):.1f} {y - 5}v10M{at(b):.1f} {y - 5}v10"/>'
            f'<circle class="dot solid {style}" cx="{at(value):.1f}" cy="{y}" r="5"{tip(words)} tabindex="0"/>'
        )
    parts.append(text((left + WIDTH) / 2, bottom + 30, x_label, "middle"))
    return svg(parts, title, WIDTH, bottom + 36)


def levels(rows: Sequence[tuple[str, float, str, str]], limits: Sequence[tuple[float, str]], title: str) -> str:
    """Bars from zero, (name, value, words, colour), against upright marks (value, words)."""
    reach = max([*(v for _, v, _, _ in rows), *(v for v, _ in limits)], default=0.0)
    if reach <= 0:
        return ""
    left, step, top = 96, 26, 18 if limits else 2
    height = top + step * len(rows) + 4

    def at(v: float) -> float:
        return left + v / reach * (WIDTH - left - 76)

    parts = []
    for i, (name, value, words, style) in enumerate(rows):
        y = top + step * i
        parts.append(text(left - 8, y + 16, name, "end", "strong"))
        parts.append(
            f'<rect class="bar {style}" x="{left}" y="{y + 4}" width="{max(at(value) - left, 0.5):.1f}"'
            f' height="{step - 10}"{tip(f"{name}: {words}")}/>{text(WIDTH - 4, y + 16, words, "end")}'
        )
    for i, (value, words) in enumerate(sorted(limits)):
        last = i == len(limits) - 1  # the others are written to the left of their line, where no other line is near
        parts.append(f'<path class="rule c3" d="M{at(value):.1f} 4V{height}"/>')
        parts.append(text(at(value) + (3 if last else -3), 12, words, "start" if last else "end"))
    return svg(parts, title, WIDTH, height)


def stack(pieces: Sequence[tuple[str, float, str, str]], title: str) -> str:
    """One bar cut into pieces: (name, value, words, colour); pieces of nothing are left out."""
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
    """The path of every dimension, a panel each: a bar from lowest to highest choice per step, a dot per choice."""
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
