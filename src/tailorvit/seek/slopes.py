"""How accuracy changes along each dimension: slopes from pairs of architectures that differ in one dimension only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from tailorvit.arch import Arch, Value
from tailorvit.rng import generator
from tailorvit.seek.directions import Floats
from tailorvit.space import Dim, Space

Accuracies = Callable[[Sequence[Arch]], list[float]]  # percent, on the search split, or what Scale says
Size = Callable[[Arch], float]


@dataclass(frozen=True)
class Scale:
    """What an evaluator's figures are; larger is better in any."""

    unit: str = "points"  # what a difference of one is called
    full: float = 100.0  # S3's errors count down from here


POINTS = Scale()


@dataclass(frozen=True)
class Pair:
    """Two architectures that differ in one dimension, u against v; ``weight`` scales one-block pairs."""

    first: Arch
    second: Arch
    u: Value
    v: Value
    weight: float = 1.0


@dataclass(frozen=True)
class Slope:
    """Accuracy points per unit of one dimension, with its standard error, also per space step."""

    dim: str
    z: float
    se: float
    shift: Value
    pairs: tuple[tuple[Value, Value, float, float], ...]  # (u, v, accuracy at u, accuracy at v)
    per_log_size: float = 0.0  # points that a size e times as large gives, taken out of z where slopes are beyond size
    added: float = 0.0  # what anchors added to z
    carried: float = 0.0  # what slopes of the steps before added to z

    @property
    def z_step(self) -> float:
        """Points per step of the space."""
        return self.z * float(self.shift)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the pairs it was made from."""
        return {**asdict(self), "z_step": self.z_step, "se_step": self.se * float(self.shift), "n": len(self.pairs)}


def draw_pair(space: Space, dim: Dim, rng: np.random.Generator, blocks: Literal["all", "one"] = "all") -> Pair:
    """A random member with the dimension at two different choices; everything else, and common layers, shared."""
    member = space.sample(rng)
    i, j = rng.choice(len(dim.choices), size=2, replace=False)
    u, v = dim.choices[int(i)], dim.choices[int(j)]
    if dim.scope == "block" and blocks == "one":
        values = list(member.many(dim.key))
        at = int(rng.integers(len(values)))
        sides = [member.replace(**{dim.key: [*values[:at], w, *values[at + 1 :]]}) for w in (u, v)]
        return Pair(sides[0], sides[1], u, v, weight=float(len(values)))
    # The deeper side draws its extra layers; the shallower one cuts the same list, so common layers agree.
    high = space.with_value(member, dim.key, max(u, v), rng)
    low = space.with_value(high, dim.key, min(u, v), rng)
    return Pair(low, high, u, v) if u < v else Pair(high, low, u, v)


def slope_of(
    dim: Dim, pairs: Sequence[Pair], first: Sequence[float], second: Sequence[float], due: Size | None = None
) -> Slope:
    """Mean and standard error of the pairwise slopes; ``due`` is the accuracy a member owes to its size."""
    each: Floats = np.array(
        [
            p.weight * (b - a - (due(p.second) - due(p.first) if due else 0.0)) / (float(p.v) - float(p.u))
            for p, a, b in zip(pairs, first, second, strict=True)
        ]
    )
    error = float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else float("inf")
    seen = tuple((p.u, p.v, a, b) for p, a, b in zip(pairs, first, second, strict=True))
    return Slope(dim.key, float(each.mean()), error, dim.shift, seen)


def estimate(
    space: Space,
    accuracies: Accuracies,
    pairs: int,
    seed: int,
    step: int,
    blocks: Literal["all", "one"] = "all",
    enough: Callable[[Sequence[Slope]], bool] | None = None,
    round_size: int = 10,
    keys: Sequence[str] | None = None,
    size: Size | None = None,
) -> list[Slope]:
    """Slopes of all dimensions from up to ``pairs`` pairs each; ``enough`` may stop the rounds early.

    Pair j of dimension k comes from (seed, step, k, j), so fewer rounds use a prefix of the same pairs. A dimension
    with one choice has slope zero, as there is no evidence to move it by; so has one not among ``keys``. With
    ``size`` the slopes are of what accuracy is beyond a least-squares line over the logarithm of the size.
    """
    asked = space.keys if keys is None else keys
    drawn: dict[str, list[Pair]] = {d.key: [] for d in space.dims if len(d.choices) > 1 and d.key in asked}
    slopes: list[Slope] = []
    while True:
        have = min((len(p) for p in drawn.values()), default=pairs)
        want = min(pairs, have + round_size) if enough else pairs
        for k, dim in enumerate(space.dims):
            if dim.key in drawn:
                more = range(len(drawn[dim.key]), want)
                drawn[dim.key] += [draw_pair(space, dim, generator(seed, "pair", step, k, j), blocks) for j in more]
        flat = [arch for ps in drawn.values() for p in ps for arch in (p.first, p.second)]
        answers = accuracies(flat)
        rate = per_log_size(flat, answers, size) if size else 0.0
        scores, due = iter(answers), (lambda a, r=rate: r * math.log(size(a))) if size else None
        slopes = []
        for dim in space.dims:
            sides = [(next(scores), next(scores)) for _ in drawn.get(dim.key, [])]
            if sides:
                found = slope_of(dim, drawn[dim.key], [a for a, _ in sides], [b for _, b in sides], due)
                slopes.append(replace(found, per_log_size=rate))
            else:
                slopes.append(Slope(dim.key, 0.0, 0.0, dim.shift, ()))
        if want >= pairs or enough is None or enough(slopes):
            return slopes


def per_log_size(archs: Sequence[Arch], answers: Sequence[float], size: Size) -> float:
    """Points that a size e times as large gives, by least squares over the members asked for; 0 where all are alike."""
    x: Floats = np.log([size(a) for a in archs])
    away = x - x.mean()
    spread = float(away @ away)
    return float(away @ np.asarray(answers)) / spread if spread > 0 else 0.0
