"""Features of an architecture that mean the same for any family and any size: logarithms and ratios.

A predictor that is linear in them ranks by their differences, so what it learned on small networks of one family can
be asked about larger ones and about others. Absolute widths would not carry over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailorvit.arch import Arch
from tailorvit.costs import Counter

Floats = NDArray[np.float64]


class Feature(NamedTuple):
    """One number of an architecture; ``unit`` is the step that counts as one, the same for every table."""

    name: str
    unit: float
    meaning: str


FEATURES = (
    Feature("size", 0.05, "log of the parameters"),
    Feature("blocks", 0.1, "log of the number of blocks: at equal size, deep and narrow against shallow and wide"),
    Feature("intensity", 0.1, "log of MACs per parameter: how early, on many tokens, the parameters sit"),
    Feature("attention", 0.1, "log of attention's parameters over the MLPs'"),
    Feature("qkv_trend", 0.1, "slope over the depth of log(QKV width / embedding)"),
    Feature("mlp_trend", 0.1, "slope over the depth of log(hidden width / embedding)"),
    Feature("width_trend", 0.5, "slope over the depth of log(embedding): 0 for a ViT, large for a pyramid"),
)
NAMES = tuple(f.name for f in FEATURES)
_UNITS = np.array([f.unit for f in FEATURES])


def describe(rows: Sequence[Mapping[str, Any]], params: int, macs: int) -> Floats:
    """The features of one architecture, in their units, from its blocks (``Family.outline``) and its counts."""
    embed, qkv, hidden = (_column(rows, key) for key in ("embed", "qkv", "hidden"))
    found = (
        np.log(params),
        np.log(len(rows)),
        np.log(macs / params),
        np.log(2 * (embed * qkv).sum() / (embed * hidden).sum()),  # four matrices against two
        _trend(qkv / embed),
        _trend(hidden / embed),
        _trend(embed),
    )
    # Rounded: the last digits of a slope of equal numbers would rank architectures that are the same.
    rounded: Floats = np.round(np.array(found) / _UNITS, 9)
    return rounded


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> Floats:
    return np.array([float(row[key]) for row in rows])


def _trend(values: Floats) -> float:
    """Least-squares slope of the logarithm from the first block (0) to the last (1)."""
    if len(values) < 2:
        return 0.0
    place = (np.arange(len(values)) + 0.5) / len(values) - 0.5
    logs = np.log(values)
    return float((place * (logs - logs.mean())).sum() / (place**2).sum())


def matrix(counters: Sequence[Counter], archs: Sequence[Arch]) -> Floats:
    """One row of features per architecture."""
    every = [describe(c.family.outline(c.frame, a), *c.both(a)) for c, a in zip(counters, archs, strict=True)]
    return np.array(every).reshape(len(archs), len(FEATURES))
