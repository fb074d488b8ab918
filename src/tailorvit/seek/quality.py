"""S3's arithmetic on arrays: the E-T error of a subspace, the line through several, and the shift a slope asks for.

Errors are in percent everywhere: with fractions every slope would lie under the threshold of 0.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from tailorvit.seek.directions import Floats

EDGE = 1e-9  # a quotient this close under a whole number is that number; float error is some 1e-15
Quantise = Literal["floor", "trunc"]


class Quality(NamedTuple):
    """Mean error, mean error of the best, and S3's quality of a space: the mean of both."""

    mean: float
    best: float
    both: float


def quality(errors: Floats, top: int) -> Quality:
    """The E-T error of sampled members: Q = (Q_e + Q_t) / 2, Q_t over the ``top`` lowest errors or all if fewer."""
    ordered = np.sort(errors)
    mean, best = float(ordered.mean()), float(ordered[: max(top, 1)].mean())
    return Quality(mean, best, (mean + best) / 2)


def line(x: Floats, y: Floats) -> tuple[float, float]:
    """(slope, offset) of the least-squares line; level where all x are the same."""
    away = x - x.mean()
    spread = float(away @ away)
    slope = float(away @ (y - y.mean())) / spread if spread > 0 else 0.0
    return slope, float(y.mean()) - slope * float(x.mean())


def quantise(quotient: float, how: Quantise) -> int:
    """A quotient as whole steps: down (the paper) or towards zero (a dead zone of one threshold on both sides)."""
    if how == "floor":
        return math.floor(quotient + EDGE)
    steps = math.floor(abs(quotient) + EDGE)
    return steps if quotient > 0 else -steps


def slope_error(errors: Sequence[Floats], x: Floats, top: int, draws: int = 200, seed: int = 0) -> float:
    """Standard error of the line's slope, by drawing the members anew with replacement.

    Choices share their draws: member j of every choice comes from the same base, so most of its luck is common.
    """
    rng = np.random.default_rng(seed)
    slopes = np.empty(draws)
    for i in range(draws):
        places = rng.random(max(map(len, errors)))
        again = [quality(e[(places[: len(e)] * len(e)).astype(np.int64)], top).both for e in errors]
        slopes[i] = line(x, np.array(again))[0]
    return float(slopes.std(ddof=1))
