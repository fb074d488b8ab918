"""S3's drawings of a staged space: choices per stage and dimension, and E-T error per choice with its line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tailorvit.report import charts
from tailorvit.report.charts import WIDTH, Axes, Box
from tailorvit.report.facts import Facts, Slope
from tailorvit.report.figure import Figure, tip
from tailorvit.report.parts import clean

_POINTS = "points of accuracy"
_ROWS, _STAGES, _FITS = 12, 8, 48  # more would not be read; the numbers have all


def _split(key: str) -> tuple[str, str]:
    name, _, stage = key.partition(".")
    return name, stage


def stages(facts: Facts) -> Figure | None:
    """A grid: rows are dimensions, columns stages; in each cell the choices of every step, a line through the mean."""
    keys = [k for k in dict.fromkeys(k for s in facts.spaces for k in s.dims) if "." in k]
    names = list(dict.fromkeys(_split(k)[0] for k in keys))[:_ROWS]
    columns = sorted({_split(k)[1] for k in keys}, key=lambda s: (len(s), s))[:_STAGES]
    if not keys:
        return None
    left, top, high = 62.0, 20.0, 78.0
    wide = (WIDTH - left) / len(columns)
    parts = [charts.text(left + wide * (i + 0.5), 13, f"stage {clean(c, 12)}", "middle") for i, c in enumerate(columns)]
    for r, name in enumerate(names):
        y0 = top + high * r
        values = [c for s in facts.spaces for k, cs in s.dims.items() if _split(k)[0] == name and "." in k for c in cs]
        parts.append(charts.text(2, y0 + high / 2, clean(name, 12), style="strong"))
        if not values:
            continue
        low, top_value = charts.span(values)

        def at(v: float, y0: float = y0, low: float = low, top_value: float = top_value) -> float:
            return y0 + high - 8 - (v - low) / (top_value - low) * (high - 16)

        for v in (min(values), max(values)):
            parts.append(charts.text(left - 4, at(v) + 4, charts.short(v), "end"))
            parts.append(f'<path class="grid" d="M{left} {at(v):.1f}H{WIDTH}"/>')
        for c, stage in enumerate(columns):
            parts += _cell(facts, f"{name}.{stage}", left + wide * c, wide, at)
    for i in range(len(columns) + 1):
        parts.append(f'<path class="grid" d="M{left + wide * i:.1f} {top}V{top + high * len(names):.1f}"/>')
    title = "The path of the space, stage by stage"
    rows = [
        (s.step, s.repair, *_split(k), " ".join(f"{c:g}" for c in s.dims[k]), sum(s.dims[k]) / len(s.dims[k]))
        for s in facts.spaces
        for k in keys
        if s.dims.get(k)
    ]
    return Figure(
        "space-stages",
        title,
        "In each cell the steps go from left to right: dots are the choices, the line joins their means.",
        ("step", "repair", "dimension", "stage", "choices", "mean"),
        rows,
        charts.svg(parts, title, WIDTH, top + high * len(names) + 4),
    )


def _cell(facts: Facts, key: str, x0: float, wide: float, at: charts.Scale) -> list[str]:
    """The choices of one dimension in one stage over all steps."""
    parts, means = [], []
    gap = wide / len(facts.spaces)
    for i, space in enumerate(facts.spaces):
        choices = space.dims.get(key, ())
        if not choices:
            continue
        x, words = x0 + gap * (i + 0.5), f"{clean(key)}, step {space.label}: {', '.join(f'{v:g}' for v in choices)}"
        parts += [f'<circle class="dot c0" cx="{x:.1f}" cy="{at(v):.1f}" r="2.6"{tip(words)}/>' for v in choices]
        means.append((x, at(sum(choices) / len(choices))))
    for (a, b), (c, d) in pairwise(means):
        parts.append(f'<path class="line c1" d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}"/>')
    return parts


def fits(t: int, here: Sequence[Slope], scale: str = _POINTS) -> Figure | None:
    """A panel per dimension: E-T error of each choice and the fitted line, whose slope decides the shift."""
    shown = [s for s in here if s.fit is not None and any(e is not None for e in s.fit.errors)]
    if not shown:
        return None
    names = list(dict.fromkeys(_split(s.dim)[0] for s in shown))
    shown.sort(key=lambda s: (names.index(_split(s.dim)[0]), _split(s.dim)[1]))
    parted = len({_split(s.dim)[1] for s in shown})
    columns = parted if parted in (2, 4) else 3  # a row per dimension where stages fit beside each other
    wide, high = WIDTH / columns, 118.0
    unit = "E-T error {:.3f} %" if scale == _POINTS else "{:.3f} lost"
    parts: list[str] = []
    rows: list[tuple[int, str, float | None, float | None, float | None, float | None, int | None]] = []
    for slope in shown:
        fit = slope.fit
        if fit is None:
            continue
        for x, error in enumerate(fit.errors):
            line = fit.slope * x + fit.offset if fit.slope is not None and fit.offset is not None else None
            choice = fit.choices[x] if x < len(fit.choices) else None
            rows.append((t, slope.dim, choice, error, line, fit.slope, fit.shift))
    for n, slope in enumerate(shown[:_FITS]):
        parts += _panel(slope, unit, Box(wide * (n % columns), high * (n // columns), wide, high, 36, 6, 30, 20))
    left = f" {len(shown) - _FITS} more are in the numbers only." if len(shown) > _FITS else ""
    title = f"{'E-T error' if scale == _POINTS else 'Score lost'} per choice at step {t}"
    error_words = "error in percent" if scale == _POINTS else f"{clean(scale, 60)} lost"
    return Figure(
        f"fits-{t}",
        title,
        f"Dots are the {error_words} of members with that choice, the line its fit over the choices; w is the slope"
        f" of the line per choice, k the shift that followed. A falling line asks for larger choices.{left}",
        ("step", "dimension", "choice", "E-T error", "fitted", "slope w", "shift k"),
        rows,
        charts.svg(parts, title, WIDTH, high * -(-min(len(shown), _FITS) // columns)),
    )


def _panel(slope: Slope, unit: str, box: Box) -> list[str]:
    fit = slope.fit
    if fit is None:
        return []
    points = [(float(x), e) for x, e in enumerate(fit.errors) if e is not None]
    ends = (points[0][0], points[-1][0])
    line = []
    if fit.slope is not None and fit.offset is not None:
        line = [(x, fit.slope * x + fit.offset) for x in ends]
    names = {float(x): charts.short(c) for x, c in enumerate(fit.choices)}
    axes = Axes([x for x, _ in points], [y for _, y in (*points, *line)], "", "", box, names, 3)
    if line:
        axes.path(line, "line c1")
    for x, error in points:
        axes.dot((x, error), "dot solid c0", 3, f"{clean(slope.dim)} {names.get(x, '')}: {unit.format(error)}")
    w = "" if fit.slope is None else f"w {fit.slope:+.3g}"
    k = "" if fit.shift is None else f"k {fit.shift:+d}"
    axes.parts.append(charts.text(box.x + 4, box.y + 12, clean(slope.dim, 18), style="strong"))
    axes.parts.append(charts.text(box.x + 4, box.y + 25, ", ".join(filter(None, (w, k)))))
    return axes.parts
