"""The neighbours of a space: which moves there are, how large the space is after each, and which are legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tailorvit.arch import Arch
from tailorvit.costs.meter import Meter
from tailorvit.errors import TailorError, unknown
from tailorvit.rng import generator
from tailorvit.seek.directions import neighbours
from tailorvit.space import Space

MAX_DIMS = 10  # 59,048 neighbours, each counted once a step
SizedBy = Literal["largest", "middle"]


@dataclass(frozen=True)
class Move:
    """A neighbour: the direction that leads there and the cost of the member it is sized by."""

    gamma: tuple[int, ...]
    space: Space = field(repr=False)
    size: float


def size_metric(meter: Meter) -> str:
    """The cost a space is sized by: the first with an upper limit, else parameters."""
    return next((m for m, _, high in meter.limits if high is not None), "params")


def middle(space: Space) -> Arch:
    """The member with middle values."""
    arch = space.largest()
    rng = generator(0, "middle")  # asked for blocks a greater depth adds; going down from the largest adds none
    for dim in space.dims:
        arch = space.with_value(arch, dim.key, dim.choices[(len(dim.choices) - 1) // 2], rng)
    return arch


def size_of(space: Space, meter: Meter, metric: str, by: SizedBy = "largest") -> float:
    """What the member costs that a space is sized by: the largest, as in the paper, or the one with middle values."""
    if by == "largest":
        return meter.most(metric, space)  # type: ignore[arg-type]
    return meter.cost(metric, middle(space))  # type: ignore[arg-type]


def over(space: Space, meter: Meter, by: SizedBy = "largest") -> str | None:
    """The first cost by which that member is not strictly under its upper limit."""
    return next((m for m, _, high in meter.limits if high is not None and size_of(space, meter, m, by) >= high), None)


def too_small(space: Space, meter: Meter, by: SizedBy = "largest") -> bool:
    """Does it miss a lower limit?"""
    return any(low is not None and size_of(space, meter, m, by) < low for m, low, _ in meter.limits)


def movable(space: Space, named: Sequence[str] = ()) -> tuple[str, ...]:
    """The dimensions that move: those named, or all; an error where their neighbours are too many to look at."""
    for key in named:
        if key not in space.keys:
            raise unknown("dimension in s4.dims", key, space.keys)
    keys = tuple(k for k in space.keys if k in named) if named else space.keys
    if len(keys) > MAX_DIMS:
        raise TailorError(
            f"S4 looks at all 3^n - 1 neighbours of a space, and this one has n = {len(keys)} dimensions; {MAX_DIMS} "
            "at most: name those that move in s4.dims, or use a method without neighbours (s3, autoformer)."
        )
    return keys


def moves(
    space: Space,
    meter: Meter,
    nonpositive: Literal["drop", "strict"] = "drop",
    legal: bool = True,
    dims: Sequence[str] = (),
    by: SizedBy = "largest",
    stride: int = 1,
) -> list[Move]:
    """The neighbours of a space; by default those whose sizing member lies strictly under every upper limit.

    A lower limit asks the same member to reach it, so that something in the space can; while a space lies under it,
    every larger neighbour will do. A neighbour lies ``stride`` steps away in every dimension that moves.
    """
    metric, found = size_metric(meter), list[Move]()
    here = {m: size_of(space, meter, m, by) for m, low, _ in meter.limits if low is not None}

    def keeps(sizes: dict[str, float], moved: Space) -> bool:
        for m, low, high in meter.limits:  # counted costs come first
            if m not in sizes:
                sizes[m] = size_of(moved, meter, m, by)
            if (high is not None and sizes[m] >= high) or (low is not None and sizes[m] < low and sizes[m] <= here[m]):
                return False
        return True

    at = [space.keys.index(key) for key in movable(space, dims)]
    directions = np.zeros((3 ** len(at) - 1, len(space.dims)), dtype=np.int64)
    directions[:, at] = stride * neighbours(len(at))
    for gamma in directions.tolist():
        try:
            moved = space.shift(dict(zip(space.keys, gamma, strict=True)), nonpositive)
            size = size_of(moved, meter, metric, by)
        except TailorError:
            continue  # a dimension would lose all its choices, or a width has no whole heads
        if not legal or keeps({metric: size}, moved):
            found.append(Move(tuple(gamma), moved, size))
    return found


def next_stride(stride: int, before: Sequence[int], now: Sequence[int], most: int) -> int:
    """Twice the stride after a move along the one before it (within 60 degrees), half of it after a turn."""
    a, b = np.asarray(before, dtype=np.float64), np.asarray(now, dtype=np.float64)
    along = float(a @ b) >= 0.5 * float(np.linalg.norm(a) * np.linalg.norm(b))
    return min(most, 2 * stride) if along else max(1, stride // 2)
