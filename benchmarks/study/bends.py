"""A surface through trained networks: a slope for every dimension, a bend for those where the networks show one.

What a dimension gives shrinks as it grows, and a straight surface does not know where that ends: one through the first
43 networks, bent in depth alone, promised 77.7 % far out, and the networks it named had 73.4 to 75.3 (`summit`). Bends
cost networks, so only those are fitted that pay for themselves by the corrected Akaike criterion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailorvit.seek.directions import Floats

EXACT = 1e-9  # of the variance of what is fitted: what is left below it is rounding, and no bend may follow it


@dataclass(frozen=True)
class Surface:
    """Percent over places: a constant, slopes and bends, counted from the middle of the networks."""

    centre: Floats
    constant: float
    slopes: Floats
    bends: Floats  # 0 where none was fitted
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
    """Least squares; bends are taken in one after the other while the criterion falls.

    Where ``of`` names a group for every network, each group has a constant of its own and the mean one is told.
    """
    count, centre = places.shape[1], np.asarray(places.mean(axis=0))
    away: Floats = places - centre
    names = sorted(set(of))
    groups = np.array([[float(g == name) - 1 / len(names) for name in names[1:]] for g in of])
    groups = groups if len(names) > 1 else np.empty((len(places), 0))
    bent: list[int] = []
    best = criterion(_rows(away, bent, groups), values)
    while len(bent) < count:
        options = [(criterion(_rows(away, [*bent, i], groups), values), i) for i in range(count) if i not in bent]
        score, i = min(options)
        if score >= best:
            break
        best, bent = score, [*bent, i]
    rows = _rows(away, bent, groups)
    found, left = _fitted(rows, values)
    variance, known = left / (len(values) - rows.shape[1]), 1 + count + len(bent)
    bends, covariance = np.zeros(count), np.zeros((2 * count, 2 * count))
    bends[bent] = found[1 + count : known]
    where = [*range(count), *(count + i for i in bent)]
    covariance[np.ix_(where, where)] = variance * np.linalg.inv(rows.T @ rows)[1:known, 1:known]
    return Surface(centre, float(found[0]), found[1 : 1 + count], bends, covariance, math.sqrt(variance), len(values))
