"""Spread: mean and deviation over runs, and differences with the interval they may lie in. Numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

LEVEL = 0.95
ENOUGH = 3  # runs on each side before a difference is worth a verdict


@dataclass(frozen=True)
class Stat:
    """A figure over runs; one run has no spread."""

    n: int
    mean: float
    sd: float | None
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"n": self.n, "mean": self.mean, "sd": self.sd, "min": self.low, "max": self.high}


@dataclass(frozen=True)
class Gap:
    """A mean difference; ``low`` and ``high`` bound its 95 % t interval where two or more runs give one."""

    kind: str  # paired (by seed), welch (unpaired) or plain (no interval)
    n: tuple[int, int]  # runs behind each side; pairs where paired
    mean: float
    low: float | None = None
    high: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"kind": self.kind, "n": list(self.n), "mean": self.mean, "low": self.low, "high": self.high}

    def words(self, unit: str = "points") -> str:
        """What these runs tell, and how far it can be trusted."""
        count = {
            "paired": f"{self.n[0]} pairs of the same seed",
            "welch": f"unpaired, n = {self.n[0]} and {self.n[1]}",
            "plain": f"n = {self.n[0]} and {self.n[1]}",
        }[self.kind]
        text = f"{self.mean:+.2f} {unit} ({count})"
        if self.low is not None and self.high is not None:
            text += f", 95 % interval {self.low:+.2f} to {self.high:+.2f}"
        if min(self.n) < ENOUGH:
            return f"{text}; too few runs to judge."
        if self.low is None or self.high is None:
            return f"{text}."
        inside = self.low <= 0 <= self.high
        return f"{text}; {'it holds 0: these runs do not tell the two apart' if inside else 'it does not hold 0'}."


def stat(values: Sequence[float]) -> Stat | None:
    """Mean, sample deviation and range; None without values."""
    if not values:
        return None
    return Stat(len(values), fmean(values), stdev(values) if len(values) > 1 else None, min(values), max(values))


def _reach(error: float, freedom: float) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom)) * error


def paired(differences: Sequence[float]) -> Gap:
    """From differences within pairs: the paired t interval."""
    n, mean = len(differences), fmean(differences)
    if n < 2:
        return Gap("plain", (n, n), mean)
    reach = _reach(stdev(differences) / math.sqrt(n), n - 1)
    return Gap("paired", (n, n), mean, mean - reach, mean + reach)


def welch(first: Sequence[float], second: Sequence[float]) -> Gap:
    """Second less first, of unequal spread: Welch's t interval."""
    sizes, mean = (len(first), len(second)), fmean(second) - fmean(first)
    if min(sizes) < 2:
        return Gap("plain", sizes, mean)
    parts = [stdev(side) ** 2 / len(side) for side in (first, second)]
    if not sum(parts):
        return Gap("welch", sizes, mean, mean, mean)
    freedom = sum(parts) ** 2 / sum(p * p / (len(side) - 1) for p, side in zip(parts, (first, second), strict=True))
    reach = _reach(math.sqrt(sum(parts)), freedom)
    return Gap("welch", sizes, mean, mean - reach, mean + reach)


def gap(first: Sequence[tuple[int | None, float]], second: Sequence[tuple[int | None, float]]) -> Gap | None:
    """Second less first, from (seed, value): by pairs of the same seed where there are two or more, else unpaired."""
    if not first or not second:
        return None
    a, b = _by_seed(first), _by_seed(second)
    shared = sorted(set(a) & set(b))
    if len(shared) >= 2:
        return paired([b[seed] - a[seed] for seed in shared])
    return welch([v for _, v in first], [v for _, v in second])


def _by_seed(values: Sequence[tuple[int | None, float]]) -> Mapping[int, float]:
    """One value a seed: the mean where a seed was run more than once."""
    every: dict[int, list[float]] = {}
    for seed, value in values:
        if seed is not None:
            every.setdefault(seed, []).append(value)
    return {seed: fmean(vs) for seed, vs in every.items()}
