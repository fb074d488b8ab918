"""Ties: dimensions of a space whose values must be multiples of one another (PiT: the heads of one stage and the next).

Tied dimensions form groups; a group is known by its legal rows, one value per dimension, and is drawn as one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tailorvit.arch import Arch, Gene, Value
from tailorvit.errors import TailorError

Pairs = tuple[tuple[str, str], ...]
Choices = tuple[tuple[str, tuple[Value, ...]], ...]


@dataclass(frozen=True)
class Ties:
    """One group: the dimensions it ties and their legal rows, in ascending order."""

    keys: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def choices(self, key: str) -> tuple[Value, ...]:
        """The values of one dimension that are in some row."""
        at = self.keys.index(key)
        return tuple(sorted({row[at] for row in self.rows}))

    def ends(self, top: bool) -> tuple[tuple[Value, ...], ...]:
        """The rows that no other reaches or exceeds in every value (``top``), or undercuts: one of them costs most."""
        return _ends(self.rows, top)

    def nearest(self, arch: Arch, key: str, value: Value) -> dict[str, Gene]:
        """The row with this value that moves the other dimensions least; of two as near, the one on the value's way."""
        at, old = self.keys.index(key), [arch.one(k) for k in self.keys]
        rows = [row for row in self.rows if row[at] == value]
        if not rows:
            raise TailorError(
                f"Dimension '{key}' cannot be {value}; the choices are {', '.join(map(str, self.choices(key)))}."
            )
        way = -1 if value > old[at] else 1
        row = min(rows, key=lambda r: (sum(abs(v - w) for v, w in zip(r, old, strict=True)), way * sum(r)))
        return dict(zip(self.keys, row, strict=True))

    def mended(self, genes: Mapping[str, Gene], a: Arch, b: Arch, rng: np.random.Generator) -> dict[str, Gene]:
        """A child's values as they are when legal; else all of them from one parent."""
        if tuple(genes[k] for k in self.keys) in self.rows:
            return {}
        parent = (a, b)[int(rng.integers(2))]
        return {k: parent.one(k) for k in self.keys}


def pairs_of(raw: Any) -> Pairs:
    """Plain data as pairs of dimensions."""
    if not isinstance(raw, list | tuple) or any(not isinstance(p, list | tuple) or len(p) != 2 for p in raw):
        raise TailorError(f"'multiples' of a space is a list of pairs of dimensions, not {raw!r}.")
    return tuple((str(a), str(b)) for a, b in raw)


@lru_cache(maxsize=4096)  # S4 looks at thousands of neighbours of a space, and most share their tied dimensions
def tie(choices: Choices, pairs: Pairs) -> tuple[Ties, ...]:
    """The groups that pairs (a, b), b being a multiple of a, make of the dimensions named in them."""
    groups: list[set[str]] = []
    for pair in pairs:
        joined = set(pair).union(*(g for g in groups if g & set(pair)))
        groups = [g for g in groups if not g & joined] + [joined]
    return tuple(_rows(tuple((k, c) for k, c in choices if k in group), pairs) for group in groups)


def _rows(choices: Choices, pairs: Pairs) -> Ties:
    keys = tuple(k for k, _ in choices)
    at = {k: i for i, k in enumerate(keys)}
    inside = [(at[a], at[b]) for a, b in pairs if a in at]
    every = itertools.product(*(c for _, c in choices))
    rows = tuple(row for row in every if all(row[b] % row[a] == 0 for a, b in inside))
    if not rows:
        told = "; ".join(f"{k} {', '.join(map(str, c))}" for k, c in choices)
        raise TailorError(f"No values of {told} are multiples of one another as the space wants them.")
    return Ties(keys, rows)


@lru_cache(maxsize=4096)  # as above
def _ends(rows: tuple[tuple[Value, ...], ...], top: bool) -> tuple[tuple[Value, ...], ...]:
    sign = 1 if top else -1
    return tuple(
        row
        for row in rows
        if not any(other != row and all(sign * o >= sign * v for o, v in zip(other, row)) for other in rows)
    )


def weight(value: Any) -> tuple[float, Any]:
    """What to compare choices by: of a row the sum of squares, as the cost of a network grows with its widths."""
    return (sum(v * v for v in value) if isinstance(value, tuple) else value), value
