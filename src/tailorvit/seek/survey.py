"""Slopes from a survey: members from far around the space, each judged by itself, and a surface through their figures.

An inherited accuracy also tells how well a supernet trains its parts. On CIFAR-10 supernets overrate heads and
underrate width, all of them alike, which cost S4 more than chance did (benchmarks/cifar10.md). A member's own training
has no such bias but more noise, so members must lie farther apart than a space is wide. They are asked once; later
steps read their slopes from the same surface, on which every doubling of a dimension gives the same. It does not see
where a dimension stops paying: near the good region few moves are better than many (docs/log.md, 32).
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
from tailorvit.seek.directions import Floats
from tailorvit.seek.moves import middle, size_metric
from tailorvit.seek.plane import least_squares, value_of
from tailorvit.seek.slopes import Accuracies, Size, Slope, per_log_size
from tailorvit.space import Dim, Space

BAND = 1.3  # a member's size against the upper limit, either way: what pays at another size is not asked
TRIES = 40  # draws for every member wanted
Known = list[tuple[Arch, float]]


def wider(space: Space, reach: int, keys: Sequence[str]) -> Space:
    """The space with choices up to ``reach`` steps beyond both ends of these dimensions, as far as their bounds go."""
    dims = []
    for d in space.dims:
        found: set[Value] = set(d.choices)
        for steps in range(-reach, reach + 1) if d.key in keys else ():
            try:
                found.update(d.moved(steps).choices)
            except TailorError:
                continue  # all of them fall under the minimum
        most = math.inf if d.maximum is None else d.maximum
        dims.append(replace(d, choices=tuple(sorted(v for v in found if v <= most))))
    return replace(space, dims=tuple(dims))


def doublings(arch: Arch, dims: Sequence[Dim]) -> Floats:
    """A member's place on the surface, before which stands the constant."""
    return np.array([1.0, *(math.log2(value_of(arch, d)) for d in dims)])


def candidates(
    space: Space, dims: Sequence[Dim], region: Space, meter: Meter, tries: int, rng: np.random.Generator
) -> list[Arch]:
    """Different members with alike blocks, drawn evenly over doublings; near the upper limit where some are.

    Only where the limit is counted: latency and memory of a thousand members would have to be measured.
    """
    metric = size_metric(meter)
    high = meter.limits.high(metric) if metric in ("params", "macs") else None  # type: ignore[arg-type]
    held = [d.key for d in space.dims if d.scope == "block" and d not in dims]
    found: dict[Arch, bool] = {}
    for _ in range(tries):
        arch = middle(space)
        for d in sorted((region[d.key] for d in dims), key=lambda d: d.scope == "block"):  # depth decides on blocks
            at = rng.uniform(math.log2(d.low), math.log2(d.high))
            arch = region.with_value(arch, d.key, min(d.choices, key=lambda c: abs(math.log2(c) - at)), rng)
        for key in held:  # blocks that depth added have drawn theirs: they take after the first
            arch = region.with_value(arch, key, arch.many(key)[0], rng) if len({*arch.many(key)}) > 1 else arch
        found[arch] = high is None or high / BAND <= meter.cost(metric, arch) <= high * BAND  # type: ignore[arg-type]
    near = [a for a, ok in found.items() if ok]
    return near if len(near) >= 2 * (1 + len(dims)) else [*found]


def spread(members: Sequence[Arch], dims: Sequence[Dim], count: int) -> list[Arch]:
    """Some of the members, each the one the surface knows least about so far."""
    rows: Floats = np.array([doublings(a, dims) for a in members])
    known: Floats = 1e-3 * np.eye(rows.shape[1])
    chosen: list[int] = []
    for _ in range(min(count, len(members))):
        unsure = np.einsum("ij,jk,ik->i", rows, np.linalg.inv(known), rows)
        unsure[chosen] = -1
        chosen.append(int(unsure.argmax()))
        known += np.outer(rows[chosen[-1]], rows[chosen[-1]])
    return [members[i] for i in chosen]


def read(space: Space, dims: Sequence[Dim], known: Known, size: Size | None = None) -> list[Slope]:
    """Slopes of the surface in the middle of the space; zero for dimensions that were not asked about."""
    members, scores = [a for a, _ in known], [v for _, v in known]
    rate = per_log_size(members, scores, size) if size else 0.0
    values: Floats = np.array([v - (rate * math.log(size(a)) if size else 0.0) for a, v in known])
    rows: Floats = np.array([doublings(a, dims) for a in members])
    gains, errors = least_squares(rows, values)
    found = {}
    for i, d in enumerate(dims, 1):
        unit = 1 / (math.log(2) * (float(d.low) + float(d.high)) / 2)  # doublings in one unit, in the middle
        found[d.key] = Slope(d.key, float(gains[i]) * unit, float(errors[i]) * unit, d.shift, (), rate)
    return [found.get(d.key, Slope(d.key, 0.0, 0.0, d.shift, ())) for d in space.dims]


@dataclass
class Survey:
    """What was asked so far; the first step asks, and a later one only where the space has left what is known."""

    meter: Meter
    count: int
    reach: int
    seed: int
    known: Known = field(default_factory=list)
    regions: list[Space] = field(default_factory=list)  # around which it has asked

    def slopes(
        self, space: Space, t: int, accuracies: Accuracies, keys: Sequence[str], size: Size | None = None
    ) -> list[Slope]:
        """Slopes at a space, from all members asked by then."""
        dims = [d for d in space.dims if d.key in keys]
        if not any(_holds(region, dims) for region in self.regions):
            self.regions.append(wider(space, self.reach, keys))
            rng = generator(self.seed, "survey", t)
            drawn = candidates(space, dims, self.regions[-1], self.meter, TRIES * self.count, rng)
            if len(drawn) + len(self.known) < len(dims) + 2:
                raise TailorError(
                    f"A survey of {len(dims)} dimensions needs {len(dims) + 2} different members; within s4.reach = "
                    f"{self.reach} steps of the space there are {len(drawn)}."
                )
            chosen = spread(drawn, dims, self.count)
            self.known += zip(chosen, accuracies(chosen), strict=True)
        return read(space, dims, self.known, size)


def _holds(region: Space, dims: Sequence[Dim]) -> bool:
    """Does the middle of every dimension lie in the region?"""
    return all(region[d.key].low <= (float(d.low) + float(d.high)) / 2 <= region[d.key].high for d in dims)
