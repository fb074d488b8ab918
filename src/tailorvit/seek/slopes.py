"""Slopes: how accuracy changes along each dimension, from pairs of architectures that differ in one dimension only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailorvit.arch import Arch, Value
from tailorvit.rng import generator
from tailorvit.space import Dim, Space

Floats = NDArray[np.float64]
Accuracies = Callable[[Sequence[Arch]], list[float]]  # percent on the search split, or scores in the unit of a Scale
ROUND = 10  # pairs a dimension between two looks at whether they are enough


@dataclass(frozen=True)
class Scale:
    """The unit of an evaluator's figures; larger is always better."""

    unit: str = "points"  # the name of a difference of one
    full: float = 100.0  # S3's errors count down from here


POINTS = Scale()


@dataclass(frozen=True)
class Pair:
    """Two architectures that differ in one dimension: its value is u in the first and v in the second."""

    first: Arch
    second: Arch
    u: Value
    v: Value


@dataclass(frozen=True)
class Slope:
    """Accuracy points per unit of one dimension, with the standard error."""

    dim: str
    z: float
    se: float
    shift: Value
    pairs: tuple[tuple[Value, Value, float, float], ...]  # (u, v, accuracy at u, accuracy at v)

    @property
    def z_step(self) -> float:
        """Points per step of the space."""
        return self.z * float(self.shift)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the figures per step that a report shows."""
        return {**asdict(self), "z_step": self.z_step, "se_step": self.se * float(self.shift), "n": len(self.pairs)}


def draw_pair(space: Space, dim: Dim, rng: np.random.Generator) -> Pair:
    """A random architecture with the dimension at two different choices; everything else is shared."""
    arch = space.sample(rng)
    i, j = rng.choice(len(dim.choices), size=2, replace=False)
    u, v = dim.choices[int(i)], dim.choices[int(j)]
    # The deeper side draws its extra layers; the shallower one cuts the same list, so common layers agree.
    high = space.with_value(arch, dim.key, max(u, v), rng)
    low = space.with_value(high, dim.key, min(u, v), rng)
    return Pair(low, high, u, v) if u < v else Pair(high, low, u, v)


def slope_of(dim: Dim, pairs: Sequence[Pair], first: Sequence[float], second: Sequence[float]) -> Slope:
    """Mean and standard error of the slopes of single pairs."""
    single: Floats = np.array(
        [(b - a) / (float(p.v) - float(p.u)) for p, a, b in zip(pairs, first, second, strict=True)]
    )
    error = float(single.std(ddof=1) / np.sqrt(len(single))) if len(single) > 1 else float("inf")
    evidence = tuple((p.u, p.v, a, b) for p, a, b in zip(pairs, first, second, strict=True))
    return Slope(dim.key, float(single.mean()), error, dim.shift, evidence)


def no_slope(dim: Dim) -> Slope:
    """The slope of a dimension without evidence."""
    return Slope(dim.key, 0.0, 0.0, dim.shift, ())


def estimate(
    space: Space,
    accuracies: Accuracies,
    pairs: int,
    seed: int,
    step: int,
    enough: Callable[[Sequence[Slope]], bool] | None = None,
    keys: Sequence[str] | None = None,
) -> list[Slope]:
    """Slopes of all dimensions from up to ``pairs`` pairs each; ``enough`` may stop the rounds early.

    Pair j of dimension k is a function of (seed, step, k, j), so fewer rounds use a prefix of the same pairs. A
    dimension with one choice, or not among ``keys``, has slope zero.
    """
    wanted = space.keys if keys is None else keys
    drawn: dict[str, list[Pair]] = {d.key: [] for d in space.dims if len(d.choices) > 1 and d.key in wanted}
    while True:
        have = min((len(p) for p in drawn.values()), default=pairs)
        target = min(pairs, have + ROUND) if enough else pairs
        for k, dim in enumerate(space.dims):
            if dim.key in drawn:
                more = range(len(drawn[dim.key]), target)
                drawn[dim.key] += [draw_pair(space, dim, generator(seed, "pair", step, k, j)) for j in more]
        answers = iter(accuracies([arch for ps in drawn.values() for p in ps for arch in (p.first, p.second)]))
        slopes = []
        for dim in space.dims:
            sides = [(next(answers), next(answers)) for _ in drawn.get(dim.key, [])]
            first, second = [a for a, _ in sides], [b for _, b in sides]
            slopes.append(slope_of(dim, drawn[dim.key], first, second) if sides else no_slope(dim))
        if target >= pairs or enough is None or enough(slopes):
            return slopes
