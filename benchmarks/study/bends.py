"""A surface through trained networks: a slope for every dimension, and a bend as far as the networks show one.

What a dimension gives shrinks as it grows, and a straight surface does not know where that ends: one through the first
43 networks, bent in depth alone, promised 77.7 % far out, and the networks it named had 73.4 to 75.3 (`summit`). Which
dimensions bend is itself a guess: with nine networks more the corrected Akaike criterion named another set, whose top
lay elsewhere. So all sets of bends are fitted, those that bend upwards left out, and the rest averaged by how likely
the criterion calls each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tailorvit.seek.directions import Floats

EXACT = 1e-9  # of the variance of what is fitted: what is left below it is rounding, and no bend may follow it


@dataclass(frozen=True)
class Surface:
    """Percent over places: a constant, slopes and bends, counted from the middle of the networks."""

    centre: Floats
    constant: float
    slopes: Floats
    bends: Floats  # never upwards
    covariance: Floats  # of slopes and bends, one after the other
    deviation: float  # of one network from it
    networks: int

    def at(self, place: Floats) -> float:
        """Percent at a place."""
        return float(self.all_at(place))

    def all_at(self, places: Floats) -> Floats:
        """Percent at many places."""
        away = places - self.centre
        return np.asarray(self.constant + away @ self.slopes + away**2 @ self.bends)

    def between(self, place: Floats, other: Floats) -> tuple[float, float]:
        """By how much a place lies above another, and the standard error of that."""
        a, b = place - self.centre, other - self.centre
        away = np.concatenate([a - b, a**2 - b**2])
        return self.at(place) - self.at(other), float(np.sqrt(away @ self.covariance @ away))

    def slopes_at(self, place: Floats) -> Floats:
        """Slopes there."""
        return np.asarray(self.slopes + 2 * self.bends * (place - self.centre))

    def doubt_at(self, place: Floats) -> Floats:
        """Covariance of the slopes there."""
        both = np.hstack([np.eye(len(self.slopes)), np.diag(2 * (place - self.centre))])
        return np.asarray(both @ self.covariance @ both.T)

    def errors_at(self, place: Floats) -> Floats:
        """Standard errors of the slopes there."""
        return np.asarray(np.sqrt(np.diag(self.doubt_at(place))))


def _rows(away: Floats, bent: Sequence[int], groups: Floats) -> Floats:
    return np.column_stack([np.ones(len(away)), away, away[:, list(bent)] ** 2, groups])


def _fitted(rows: Floats, values: Floats) -> tuple[Floats, float]:
    """Coefficients and the squares they leave."""
    found = np.asarray(np.linalg.lstsq(rows, values, rcond=None)[0])
    return found, float(((values - rows @ found) ** 2).sum())


def criterion(rows: Floats, values: Floats) -> float:
    """The corrected Akaike criterion of normal errors; infinite with too few networks."""
    n, k = len(rows), rows.shape[1] + 1  # the deviation is estimated too
    if n - k - 1 <= 0 or np.linalg.matrix_rank(rows) < rows.shape[1]:
        return math.inf
    left = _fitted(rows, values)[1] / n + EXACT * float(values.var()) + 1e-300
    return n * math.log(left) + 2 * k + 2 * k * (k + 1) / (n - k - 1)


def fit(places: Floats, values: Floats, of: Sequence[int] = ()) -> Surface:
    """Least squares with every set of bends, averaged; errors hold what the sets differ by, too.

    Where ``of`` names a group for every network, each group has a constant of its own and the mean one is told.
    """
    count, centre = places.shape[1], np.asarray(places.mean(axis=0))
    away: Floats = places - centre
    names = sorted(set(of))
    groups = np.array([[float(g == name) - 1 / len(names) for name in names[1:]] for g in of])
    groups = groups if len(names) > 1 else np.empty((len(places), 0))
    every = (some for n in range(count + 1) for some in combinations(range(count), n))
    found = [one for some in every if (one := _with(away, some, groups, values)) is not None]
    scores = np.array([one.score for one in found])
    likely = np.exp((scores.min() - scores) / 2) if np.isfinite(scores.min()) else np.eye(len(found))[0]
    likely = likely / likely.sum()
    mean = np.asarray(likely @ np.array([one.known for one in found]))
    apart = [one.known[1:] - mean[1:] for one in found]
    covariance = sum(w * (one.covariance + np.outer(d, d)) for w, one, d in zip(likely, found, apart))
    deviation = math.sqrt(float(likely @ [one.variance for one in found]))
    slopes, bends = mean[1 : 1 + count], mean[1 + count :]
    return Surface(centre, float(mean[0]), slopes, bends, np.asarray(covariance), deviation, len(values))


@dataclass(frozen=True)
class _Set:
    """One set of bends fitted: a constant, slopes and bends (0 outside the set), what they leave, the criterion."""

    known: Floats
    covariance: Floats  # of slopes and bends
    variance: float
    score: float


def _with(away: Floats, bent: Sequence[int], groups: Floats, values: Floats) -> _Set | None:
    """Nothing where a bend goes upwards or there are too few networks; the straight one is there always."""
    count, rows = away.shape[1], _rows(away, bent, groups)
    score = criterion(rows, values)
    found, left = _fitted(rows, values)
    upwards = bool((found[1 + count : 1 + count + len(bent)] > 0).any())
    if bent and (upwards or not math.isfinite(score)):
        return None
    where = [*range(1 + count), *(1 + count + i for i in bent)]
    known, covariance = np.zeros(1 + 2 * count), np.zeros((1 + 2 * count, 1 + 2 * count))
    known[where] = found[: len(where)]
    variance = left / (len(values) - rows.shape[1])
    covariance[np.ix_(where, where)] = variance * np.linalg.inv(rows.T @ rows)[: len(where), : len(where)]
    return _Set(known, covariance[1:, 1:], variance, score)
