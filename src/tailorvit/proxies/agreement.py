"""How well scores agree with accuracies: tau-b and rho, among all pairs and among pairs of like size, with intervals.

Size alone ranks most tables, so a score that only knows the size looks good on all pairs. Among pairs whose
parameters differ by a few percent it does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailorvit.rng import generator
from tailorvit.stats import ranks, spearman

Floats = NDArray[np.float64]
LEAST = 5  # rows of a bin that gets a correlation of its own
_CHUNK = 256  # rows of the pair matrices at a time: 10,000 architectures in 30 MB


@dataclass(frozen=True)
class Estimate:
    """A correlation and its 95 % bootstrap interval over rows; None where one side is all ties or no pair is left."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Agreement:
    """One score against one accuracy."""

    rows: int  # that have a score
    tau: Estimate
    rho: Estimate
    pairs: int  # within the band
    band_tau: Estimate
    bins: int  # bands of rows, cut by size
    bin_tau: float | None  # mean over the bins, weighted by pairs
    bin_rho: float | None  # mean over the bins, weighted by rows
    gain: Estimate | None = None  # band tau less that of #params on the same rows and resamples
    by_seed: tuple[float | None, ...] = ()  # band tau of each seed's scores alone

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def pair_sums(score: Floats, truth: Floats, params: Floats, band: float | None, draws: Floats) -> Floats:
    """Per draw (a row of counts, one a row of the table): agreeing less disagreeing pairs, untied in score, in truth.

    A row drawn k times stands for k rows; a row is no pair with itself.
    """
    sums = np.zeros((3, len(draws)))
    logs, reach = np.log(params), np.inf if band is None else np.log1p(band) + 1e-12
    for start in range(0, len(score), _CHUNK):
        part = slice(start, start + _CHUNK)
        near = np.abs(logs[part, None] - logs[None]) <= reach
        a = np.sign(score[part, None] - score[None]) * near
        b = np.sign(truth[part, None] - truth[None]) * near
        for k, m in enumerate((a * b, a * a, b * b)):
            sums[k] += np.einsum("ij,ij->i", draws[:, part], draws @ m.T) / 2
    return sums


def taus(score: Floats, truth: Floats, params: Floats, band: float | None, draws: Floats) -> Floats:
    """Tau-b of every draw; NaN where it has no pairs or one side is all ties."""
    balance, left, right = pair_sums(score, truth, params, band, draws)
    scale = np.sqrt(left * right)
    found: Floats = np.divide(balance, scale, out=np.full(len(draws), np.nan), where=scale > 0)
    return found


def pairs_within(params: Floats, band: float) -> int:
    """Pairs whose parameters differ by at most this share of the smaller."""
    logs = np.sort(np.log(params))
    last = np.searchsorted(logs, logs + np.log1p(band) + 1e-12, side="right")
    return int((last - np.arange(len(logs)) - 1).sum())


def size_bins(params: Floats, band: float) -> list[list[int]]:
    """Rows in groups of like size: from the smallest upward, each as wide as the band; groups of few are left out."""
    groups: list[list[int]] = []
    for i in np.argsort(params, kind="stable"):
        if groups and params[i] <= params[groups[-1][0]] * (1 + band):
            groups[-1].append(int(i))
        else:
            groups.append([int(i)])
    return [g for g in groups if len(g) >= LEAST]


def draws_of(rows: int, count: int, seed: int) -> Floats:
    """The table itself, then ``count`` tables of as many rows drawn from it with replacement, as counts."""
    rng = generator(seed, "bootstrap")
    found = [np.ones(rows)]
    found += [np.bincount(rng.integers(0, rows, rows), minlength=rows).astype(np.float64) for _ in range(count)]
    return np.array(found)


def estimate(values: Floats) -> Estimate:
    """The first value with the middle 95 % of the others."""
    first, rest = values[0], values[1:][np.isfinite(values[1:])]
    if not np.isfinite(first):
        return Estimate(None, None, None)
    low, high = (float(v) for v in np.quantile(rest, (0.025, 0.975))) if len(rest) else (None, None)
    return Estimate(float(first), low, high)


def agree(
    score: Sequence[float | None],
    truth: Floats,
    params: Floats,
    band: float,
    *,
    bootstrap: int = 200,
    seed: int = 0,
    beside: Floats | None = None,
) -> Agreement:
    """One score against one accuracy; ``beside`` is the score to be beaten, usually the parameters."""
    whole = np.array([np.nan if s is None else s for s in score], dtype=np.float64)
    there = np.isfinite(whole)
    s, t, p = whole[there], truth[there], params[there]
    if len(s) < 2:
        nothing = Estimate(None, None, None)
        return Agreement(len(s), nothing, nothing, 0, nothing, 0, None, None)
    draws = draws_of(len(s), bootstrap, seed)
    banded = taus(s, t, p, band, draws)
    gain = None
    if beside is not None:
        gain = estimate(banded - taus(beside[there], t, p, band, draws))
    groups = size_bins(p, band)
    ones = [np.ones((1, len(g))) for g in groups]
    bin_taus = [float(taus(s[g], t[g], p[g], None, o)[0]) for g, o in zip(groups, ones)]
    bin_rhos = [spearman(s[g].tolist(), t[g].tolist()) for g in groups]
    return Agreement(
        rows=len(s),
        tau=estimate(taus(s, t, p, None, draws)),
        rho=estimate(_rhos(s, t, draws)),
        pairs=pairs_within(p, band),
        band_tau=estimate(banded),
        bins=len(groups),
        bin_tau=_mean(bin_taus, [len(g) * (len(g) - 1) / 2 for g in groups]),
        bin_rho=_mean([np.nan if r is None else r for r in bin_rhos], [len(g) for g in groups]),
        gain=gain,
    )


def _rhos(score: Floats, truth: Floats, draws: Floats) -> Floats:
    """Spearman's rho of every draw: the weighted correlation of the mean ranks among the rows drawn."""
    found = []
    for counts in draws:
        x, y = (_weighted_ranks(v, counts) for v in (score, truth))
        total = counts.sum()
        x, y = x - (counts * x).sum() / total, y - (counts * y).sum() / total
        scale = np.sqrt((counts * x * x).sum() * (counts * y * y).sum())
        found.append((counts * x * y).sum() / scale if scale > 0 else np.nan)
    return np.array(found)


def _weighted_ranks(values: Floats, counts: Floats) -> Floats:
    _, place = np.unique(values, return_inverse=True)
    weight = np.bincount(place, counts)
    middle: Floats = (np.cumsum(weight) - weight / 2)[place]
    return middle


def _mean(values: Sequence[float], weights: Sequence[float]) -> float | None:
    pairs = [(v, w) for v, w in zip(values, weights, strict=True) if np.isfinite(v)]
    total = sum(w for _, w in pairs)
    return float(sum(v * w for v, w in pairs) / total) if total else None


def rank_sum(scores: Mapping[str, Sequence[float | None]]) -> list[float | None]:
    """Sum of ranks (higher is better in each); a row that lacks one of the scores has none."""
    rows = list(zip(*scores.values(), strict=True))
    whole = [i for i, row in enumerate(rows) if all(v is not None and np.isfinite(v) for v in row)]
    columns = [ranks([float(rows[i][k] or 0.0) for i in whole]) for k in range(len(scores))]
    found: list[float | None] = [None] * len(rows)
    for n, i in enumerate(whole):
        found[i] = sum(column[n] for column in columns)
    return found
