"""The drawing of a survey: what its members scored over each dimension, and the surface that slopes are read from."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tailorvit.report import charts
from tailorvit.report.charts import WIDTH, Axes, Box
from tailorvit.report.facts import Facts, Trial, real, table
from tailorvit.report.figure import Figure
from tailorvit.report.parts import clean
from tailorvit.seek.directions import Floats
from tailorvit.seek.plane import least_squares

_PANELS, _COLUMNS, _HIGH = 24, 3, 132.0
_WORDS = 5  # dimensions that a dot's words name


def surveyed(facts: Facts) -> Figure | None:
    """A panel per dimension; None where S4 went by no survey, or has no slopes yet."""
    s4 = table(facts.settings.get("s4"))
    if s4.get("design") != "survey":
        return None
    keys = list(dict.fromkeys(s.dim for s in facts.slopes if s.z_step))  # those not asked about have none
    asked = [t for t in facts.trials if re.fullmatch(r"slopes-\d{1,9}", t.stage) and t.accuracy is not None]
    members = [(t, values) for t in asked if (values := _values(t.arch, keys)) is not None]
    if not keys or len(members) < len(keys) + 2:
        return None
    places: Floats = np.array([[math.log2(values[k]) for k in keys] for _, values in members])
    scores: Floats = np.array([t.accuracy for t, _ in members], dtype=np.float64)
    away: Floats = places - places.mean(axis=0)
    found, errors = least_squares(np.column_stack([np.ones(len(away)), away]), scores)
    rest: Floats = scores - found[0] - away @ found[1:]
    alone: Floats = found[0] + found[1:] * away  # the surface along each dimension, the others at their mean
    seen: Floats = alone + rest[:, None]
    columns, parts = 2 if len(keys) in (2, 4) else _COLUMNS, list[str]()
    spread = [float(v.min()) for v in (seen, alone)] + [float(v.max()) for v in (seen, alone)]  # one scale for all
    words = [_words(t, values, keys) for t, values in members]
    for n, key in enumerate(keys[:_PANELS]):
        box = Box(WIDTH / columns * (n % columns), _HIGH * (n // columns), WIDTH / columns, _HIGH, 36, 8, 32, 20)
        parts += _panel(key, box, places[:, n], alone[:, n], seen[:, n], spread, words)
        error = "" if math.isinf(errors[1 + n]) else f" ± {errors[1 + n]:.2f}"
        parts.append(charts.text(box.x + 4, box.y + 25, f"{found[1 + n]:+.2f}{error} a doubling"))
    title = "What the survey's members scored"
    left = f" {len(keys) - _PANELS} more dimensions are in the numbers only." if len(keys) > _PANELS else ""
    beyond = " Moves went by slopes beyond what size gives." if s4.get("per_size") is True else ""
    return Figure(
        "survey",
        title,
        f"Each dot is one of {len(members):,} members trained by itself: its accuracy in percent, with the other"
        " dimensions brought to their mean by the surface. The line is the surface, straight over doublings; its slope"
        f" is in points of accuracy.{beyond}{left}",
        ("stage", *keys, "accuracy", "surface"),
        [
            (t.stage, *(values[k] for k in keys), t.accuracy, float(s - r))
            for (t, values), s, r in zip(members, scores, rest, strict=True)
        ],
        charts.svg(parts, title, WIDTH, _HIGH * -(-min(len(keys), _PANELS) // columns)),
    )


def _values(arch: Mapping[str, Any], keys: Sequence[str]) -> dict[str, float] | None:
    """One positive number a dimension, of blocks that are alike; None where a row holds anything else."""
    found = {}
    for key in keys:
        value = arch.get(key)
        blocks = value if isinstance(value, (list, tuple)) else [value]
        number = real(blocks[0]) if blocks and all(b == blocks[0] for b in blocks) else None
        if number is None or number <= 0:
            return None
        found[key] = number
    return found


def _words(trial: Trial, values: Mapping[str, float], keys: Sequence[str]) -> str:
    named = ", ".join(f"{clean(k, 18)} {values[k]:g}" for k in keys[:_WORDS])
    return f"{named}: {trial.accuracy:.2f} %"


def _panel(
    key: str, box: Box, x: Floats, line: Floats, y: Floats, spread: Sequence[float], words: Sequence[str]
) -> list[str]:
    ends = [int(x.argmin()), int(x.argmax())]
    between = int(np.abs(x - x[ends].mean()).argmin())
    names = {float(x[i]): charts.short(2 ** float(x[i])) for i in (*ends, between)}
    axes = Axes(x.tolist(), spread, "", "", box, names, 3)
    axes.path([(float(x[i]), float(line[i])) for i in ends], "line c1")
    for a, b, hint in zip(x, y, words, strict=True):
        axes.dot((float(a), float(b)), "dot solid c0", 3, hint)
    axes.parts.append(charts.text(box.x + 4, box.y + 12, clean(key, 18), style="strong"))
    return axes.parts
