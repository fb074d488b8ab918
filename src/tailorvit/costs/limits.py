"""Limits: upper and lower bounds on parameters, MACs, latency and memory, several at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tailorvit import units
from tailorvit.errors import TailorError

Metric = Literal["params", "macs", "latency", "memory"]
METRICS: tuple[Metric, ...] = ("params", "macs", "latency", "memory")
COUNTED: tuple[Metric, ...] = ("params", "macs")  # computed exactly; the others are measured


@dataclass(frozen=True)
class Limits:
    """Bounds as (metric, low, high) rows; None means no bound. A value equal to a bound is within it."""

    bounds: tuple[tuple[Metric, float | None, float | None], ...] = ()

    @classmethod
    def of(cls, **limits: str | float | None) -> Limits:
        """``Limits.of(max_params="30M", min_params="20M", max_latency="12ms")``."""
        rows = []
        for key in limits:
            if key.split("_", 1)[-1] not in METRICS or not key.startswith(("max_", "min_")):
                raise TailorError(f"Unknown limit '{key}'; write max_ or min_ before {', '.join(METRICS)}.")
        for metric in METRICS:
            low, high = limits.get(f"min_{metric}"), limits.get(f"max_{metric}")
            floor = None if low is None else units.parse(low, metric)
            top = None if high is None else units.parse(high, metric)
            if floor is not None and top is not None and floor > top:
                raise TailorError(f"min_{metric} {low} lies above max_{metric} {high}.")
            if floor is not None or top is not None:
                rows.append((metric, floor, top))
        return cls(tuple(rows))

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def __iter__(self) -> Iterator[tuple[Metric, float | None, float | None]]:
        return iter(self.bounds)

    def high(self, metric: Metric) -> float | None:
        """The upper bound on one metric."""
        return next((h for m, _, h in self.bounds if m == metric), None)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that are bounded."""
        return tuple(m for m, _, _ in self.bounds)

    def counted(self) -> Limits:
        """The limits on counted costs only."""
        return Limits(tuple(row for row in self.bounds if row[0] in COUNTED))

    @property
    def measured(self) -> tuple[Metric, ...]:
        """The bounded metrics that must be measured."""
        return tuple(m for m in self.metrics if m not in COUNTED)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: ``{"params": {"min": null, "max": 30000000.0}}``."""
        return {m: {"min": low, "max": high} for m, low, high in self.bounds}

    def describe(self) -> str:
        """In words: ``params <= 30M, latency <= 12 ms``."""
        words = []
        for metric, low, high in self.bounds:
            name = "MACs" if metric == "macs" else metric
            words += [f"{name} >= {units.show(low, metric)}"] if low is not None else []
            words += [f"{name} <= {units.show(high, metric)}"] if high is not None else []
        return ", ".join(words) or "no limit"

    def breaks(self, costs: Mapping[str, float]) -> str | None:
        """The first bound these costs break, in words; None when all are kept."""
        for metric, low, high in self.bounds:
            value = costs[metric]
            if high is not None and value > high:
                return f"{metric} {units.show(value, metric)} > {units.show(high, metric)}"
            if low is not None and value < low:
                return f"{metric} {units.show(value, metric)} < {units.show(low, metric)}"
        return None
