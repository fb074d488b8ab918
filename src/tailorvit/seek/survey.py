"""Slopes from a survey: architectures from around the space, each trained by itself, and a surface through them.

An inherited accuracy also tells how well a supernet trains its parts. On CIFAR-10 supernets overrate heads and
underrate width, all of them alike, which cost S4 more than chance did (benchmarks/README.md). An architecture's own
training has no such bias but more noise, so the architectures must lie farther apart than a space is wide. They are
trained once; later steps read their slopes from the same surface, on which every doubling of a dimension gives the same
gain. The surface does not see where a dimension stops paying, so few moves are better than many (docs/log.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tailorvit.arch import Arch, Value
from tailorvit.costs.meter import Meter
from tailorvit.errors import TailorError
from tailorvit.rng import generator
from tailorvit.seek.slopes import Accuracies, Floats, Slope, no_slope
from tailorvit.space import Dim, Space

SIZE_BAND = 1.3  # surveyed sizes lie within this factor of the upper limit
TRIES = 40  # draws for every architecture wanted
Surveyed = list[tuple[Arch, float]]


def widened(space: Space, reach: int, keys: Sequence[str]) -> Space:
    """The space with choices up to ``reach`` steps beyond both ends of these dimensions, as far as their bounds go."""
    dims = []
    for dim in space.dims:
        choices: set[Value] = set(dim.choices)
        for steps in range(-reach, reach + 1) if dim.key in keys else ():
            try:
                choices.update(dim.moved(steps).choices)
            except TailorError:
                continue  # all of them fall out of the bounds
        dims.append(dim.only(*sorted(choices)))
    return replace(space, dims=tuple(dims))


def value_of(arch: Arch, dim: Dim) -> float:
    """The value of a dimension in an architecture whose blocks are all alike."""
    return float(arch.many(dim.key)[0] if dim.scope == "block" else arch.one(dim.key))


def doublings(arch: Arch, dims: Sequence[Dim]) -> Floats:
    """The regression row of an architecture: a constant, then the binary logarithm of every dimension."""
    return np.array([1.0, *(math.log2(value_of(arch, d)) for d in dims)])


def draw_candidates(
    space: Space, dims: Sequence[Dim], region: Space, meter: Meter, metric: str, tries: int, rng: np.random.Generator
) -> list[Arch]:
    """Different architectures with equal blocks, drawn evenly over doublings; near the upper limit where possible.

    The size is looked at only where it is counted: latency and memory of a thousand networks would take too long.
    """
    high = meter.limits.high(metric) if metric in ("params", "macs") else None  # type: ignore[arg-type]
    held = [d.key for d in space.dims if d.scope == "block" and d not in dims]
    found: dict[Arch, bool] = {}
    for _ in range(tries):
        arch = space.middle()
        for d in sorted((region[d.key] for d in dims), key=lambda d: d.scope == "block"):  # depth decides on blocks
            at = rng.uniform(math.log2(d.low), math.log2(d.high))
            arch = region.with_value(arch, d.key, min(d.choices, key=lambda c: abs(math.log2(c) - at)), rng)
        for key in held:  # blocks that a greater depth added drew their own values: they take the first block's
            arch = region.with_value(arch, key, arch.many(key)[0], rng) if len({*arch.many(key)}) > 1 else arch
        size = 0.0 if high is None else meter.cost(metric, arch)  # type: ignore[arg-type]
        found[arch] = high is None or high / SIZE_BAND <= size <= high * SIZE_BAND
    near_limit = [arch for arch, near in found.items() if near]
    return near_limit if len(near_limit) >= 2 * (1 + len(dims)) else [*found]


def most_informative(archs: Sequence[Arch], dims: Sequence[Dim], count: int) -> list[Arch]:
    """Some of the architectures, each the one that the surface through those before it knows least about."""
    rows: Floats = np.array([doublings(a, dims) for a in archs])
    information: Floats = 1e-3 * np.eye(rows.shape[1])
    chosen: list[int] = []
    for _ in range(min(count, len(archs))):
        variance = np.einsum("ij,jk,ik->i", rows, np.linalg.inv(information), rows)
        variance[chosen] = -1
        chosen.append(int(variance.argmax()))
        information += np.outer(rows[chosen[-1]], rows[chosen[-1]])
    return [archs[i] for i in chosen]


def least_squares(rows: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Coefficients and their standard errors; the errors are infinite while the fit can follow every value."""
    found: Floats = np.linalg.lstsq(rows, values, rcond=None)[0].astype(np.float64)
    rest, freedom = values - rows @ found, len(values) - rows.shape[1]
    errors: Floats = np.full(rows.shape[1], math.inf)
    if freedom > 0 and np.linalg.matrix_rank(rows) == rows.shape[1]:
        errors = np.asarray(np.sqrt(float(rest @ rest) / freedom * np.diag(np.linalg.inv(rows.T @ rows))), np.float64)
    return found, errors


def surface_slopes(space: Space, dims: Sequence[Dim], surveyed: Surveyed) -> list[Slope]:
    """Slopes of the surface in the middle of the space; zero for dimensions that were not surveyed."""
    rows: Floats = np.array([doublings(arch, dims) for arch, _ in surveyed])
    gains, errors = least_squares(rows, np.array([accuracy for _, accuracy in surveyed]))
    found = {}
    for i, d in enumerate(dims, 1):
        unit = 1 / (math.log(2) * (float(d.low) + float(d.high)) / 2)  # doublings in one unit, in the middle
        found[d.key] = Slope(d.key, float(gains[i]) * unit, float(errors[i]) * unit, d.shift, ())
    return [found.get(d.key, no_slope(d)) for d in space.dims]


@dataclass
class Survey:
    """What was surveyed so far. The first step surveys; a later one only where the space has left the region."""

    meter: Meter
    metric: str  # of the limit that the architectures lie near
    count: int
    reach: int
    seed: int
    surveyed: Surveyed = field(default_factory=list)
    regions: list[Space] = field(default_factory=list)

    def slopes(self, space: Space, t: int, accuracies: Accuracies, keys: Sequence[str]) -> list[Slope]:
        """Slopes at a space, from all architectures surveyed by then."""
        dims = [d for d in space.dims if d.key in keys]
        if not any(_holds(region, dims) for region in self.regions):
            self.regions.append(widened(space, self.reach, keys))
            rng = generator(self.seed, "survey", t)
            tries = TRIES * self.count
            drawn = draw_candidates(space, dims, self.regions[-1], self.meter, self.metric, tries, rng)
            if len(drawn) + len(self.surveyed) < len(dims) + 2:
                raise TailorError(
                    f"A survey of {len(dims)} dimensions needs {len(dims) + 2} different architectures, and within "
                    f"s4.reach = {self.reach} steps of the space there are {len(drawn)}."
                )
            chosen = most_informative(drawn, dims, self.count)
            self.surveyed += zip(chosen, accuracies(chosen), strict=True)
        return surface_slopes(space, dims, self.surveyed)


def _holds(region: Space, dims: Sequence[Dim]) -> bool:
    """Whether the middle of every dimension lies in the region."""
    return all(region[d.key].low <= (float(d.low) + float(d.high)) / 2 <= region[d.key].high for d in dims)
