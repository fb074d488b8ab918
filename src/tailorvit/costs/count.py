"""Exact parameters and MACs, summed from the family's layer inventory.

An architecture is a list of segments that repeat (a block of one width, head count and ratio). Each different segment
is counted once and remembered, so totals are sums of a few dictionary look-ups.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from tailorvit.arch import Arch
from tailorvit.families import FAMILIES, Layer


class Counter:
    """Counts architectures of one family with one set of shared settings."""

    def __init__(self, family: str, settings: Mapping[str, Any]) -> None:
        self.family = FAMILIES[family]
        self.shared = self.family.settings(settings)
        self._known: dict[Hashable, tuple[int, int]] = {}

    def both(self, arch: Arch) -> tuple[int, int]:
        """(parameters, MACs) for one image."""
        known, params, macs = self._known, 0, 0
        for segment in self.family.segments(arch):
            cost = known.get(segment)
            if cost is None:
                rows = self.family.layers(self.shared, segment)
                cost = known[segment] = (sum(r.params for r in rows), sum(r.macs for r in rows))
            params += cost[0]
            macs += cost[1]
        return params, macs

    def params(self, arch: Arch) -> int:
        """Parameters of the plain network."""
        return self.both(arch)[0]

    def macs(self, arch: Arch) -> int:
        """Multiply-accumulates of all matrix products and convolutions for one image."""
        return self.both(arch)[1]

    def parts(self, arch: Arch) -> list[Layer]:
        """Totals per kind of layer, in the order of a forward pass."""
        totals: dict[str, tuple[int, int]] = {}
        for segment in self.family.segments(arch):
            for row in self.family.layers(self.shared, segment):
                params, macs = totals.get(row.part, (0, 0))
                totals[row.part] = (params + row.params, macs + row.macs)
        return [Layer(part, *cost) for part, cost in totals.items()]

    def readings(self, arch: Arch) -> dict[str, int]:
        """Counts by other rules, by name: executions of relative position, formulas of papers, released counters."""
        return {name: int(read(self.shared, arch)) for name, read in self.family.readings.items()}
