"""Small statistics: rank correlations with ties, also among pairs of similar size; intervals of shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_CHUNK = 256  # rows of a pair matrix at a time: 10,000 rows in 30 MB
_FEW = 64  # values whose pairs are compared directly


def kendall(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Kendall's tau-b: agreement of two rankings, ties taken into account; None where one side is all ties."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    pairs = len(x) * (len(x) - 1) // 2
    left, right = pairs - _tied(x), pairs - _tied(y)
    untied = left + right - pairs + _tied(np.stack([x, y], axis=1))  # in both
    balance = untied - 2 * _inversions(y[np.lexsort((y, x))])
    return balance / math.sqrt(left * right) if left and right else None


def _tied(values: Floats) -> int:
    """Pairs of equal values, or of equal rows."""
    counts = np.unique(values, axis=0, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def _inversions(values: Floats) -> int:
    """Pairs of which the first is larger, counted by halves: 20,000 values are 200 million pairs."""
    if len(values) <= _FEW:
        return int(np.triu(values[:, None] > values[None], 1).sum())
    half = len(values) // 2
    left, right = values[:half], values[half:]
    across = half * len(right) - int(np.searchsorted(np.sort(left), right, side="right").sum())
    return _inversions(left) + _inversions(right) + across


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's rho: the correlation of the ranks, ties sharing their mean rank; None where one side is all ties."""
    x, y = ranks(a), ranks(b)
    if len(x) < 2:
        return None
    middle = (len(x) + 1) / 2
    across = sum((p - middle) * (q - middle) for p, q in zip(x, y, strict=True))
    left, right = (sum((p - middle) ** 2 for p in each) for each in (x, y))
    return across / math.sqrt(left * right) if left and right else None


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of their places."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or values[order[end]] != values[order[start]]:
            for k in order[start:end]:
                found[k] = (start + 1 + end) / 2
            start = end
    return found


def pair_sums(a: Floats, b: Floats, size: Floats, band: float | None, resamples: Floats) -> Floats:
    """Per resample: agreeing less disagreeing pairs, pairs untied in ``a``, pairs untied in ``b``.

    Only pairs whose sizes differ by at most ``band`` (a share of the smaller) count; None counts all pairs. A resample
    is one count per row: a row counted k times stands for k rows. A row is no pair with itself.
    """
    sums = np.zeros((3, len(resamples)))
    logs, reach = np.log(size), np.inf if band is None else np.log1p(band) + 1e-12
    for start in range(0, len(a), _CHUNK):
        part = slice(start, start + _CHUNK)
        similar = np.abs(logs[part, None] - logs[None]) <= reach
        x = np.sign(a[part, None] - a[None]) * similar
        y = np.sign(b[part, None] - b[None]) * similar
        for k, m in enumerate((x * y, x * x, y * y)):
            sums[k] += np.einsum("ij,ij->i", resamples[:, part], resamples @ m.T) / 2
    return sums


def band_taus(a: Floats, b: Floats, size: Floats, band: float | None, resamples: Floats) -> Floats:
    """Kendall's tau-b among pairs of similar size, per resample; NaN where no pair is left or one side is all ties."""
    balance, left, right = pair_sums(a, b, size, band, resamples)
    scale = np.sqrt(left * right)
    found: Floats = np.divide(balance, scale, out=np.full(len(resamples), np.nan), where=scale > 0)
    return found


def wilson(correct: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, in [0, 1]; right also for few images and for shares of 0 and 1."""
    if count == 0:
        return 0.0, 1.0
    share, weight = correct / count, z * z / count
    middle = (share + weight / 2) / (1 + weight)
    reach = z / (1 + weight) * math.sqrt(share * (1 - share) / count + weight / (4 * count))
    return max(0.0, middle - reach), min(1.0, middle + reach)


class Paired(NamedTuple):
    """The difference of two accuracies counted on the same images, in points, with its doubt."""

    difference: float
    se: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the 95 % interval leaves out 0."""
        return not self.low <= 0 <= self.high


def paired_difference(first: NDArray[np.bool_], second: NDArray[np.bool_], z: float = 1.96) -> Paired:
    """First less second; only images that one of the two gets right tell them apart (McNemar).

    The 95 % interval is Agresti and Min's: half an image more in each of the four cells. So it is right for few images
    too, and networks that agree on all of them still leave a doubt.
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(f"two networks are compared on the same images, not on {len(first)} and {len(second)}")
    won, lost = int((first & ~second).sum()), int((second & ~first).sum())

    def estimate(won: float, lost: float, images: int) -> tuple[float, float]:
        gap = won - lost
        return 100 * gap / images, 100 * math.sqrt(won + lost - gap * gap / images) / images

    difference, se = estimate(won, lost, len(first))
    middle, reach = estimate(won + 0.5, lost + 0.5, len(first) + 2)
    return Paired(difference, se, max(-100.0, middle - z * reach), min(100.0, middle + z * reach))
