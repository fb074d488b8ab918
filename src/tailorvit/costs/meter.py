"""Meter: every cost of an architecture by name, remembered; and whether architectures and spaces keep the limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tailorvit import units
from tailorvit.arch import Arch
from tailorvit.costs.clock import Clock
from tailorvit.costs.count import Counter
from tailorvit.costs.limits import Limits, Metric
from tailorvit.costs.measure import measure_latency, measure_memory
from tailorvit.errors import InfeasibleError
from tailorvit.rng import generator
from tailorvit.space import Space

T = TypeVar("T")
SLOW = 0.5  # seconds of timing one network after which few passes are enough: S4 times every neighbour of a space
EXTRA = 3  # candidates with a little more work that are tried too: at equal work a deep one is slower than a wide one
Recall = Callable[[str, Arch], float | None]
Record = Callable[[str, Arch, float], None]


class Meter:
    """Costs of architectures of one family under one set of shared settings, on one device.

    Measured costs go through ``recall`` and ``record``, so that a resumed run uses the measurements it first made.
    Latencies predicted from a table need not: the table is kept with the run.
    """

    def __init__(
        self,
        family: str,
        settings: Mapping[str, Any],
        limits: Limits | None = None,
        device: str = "cpu",
        batch: int = 1,
        recall: Recall | None = None,
        record: Record | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.counter = Counter(family, settings)
        self.limits = limits or Limits()
        self.clock = clock or Clock()
        if self.clock.table is not None:
            self.clock.table.require(self.counter)
        self.device, self.batch = device, batch
        self._recall, self._record = recall, record
        self._measured: dict[tuple[str, Arch], float] = {}

    @classmethod
    def for_space(cls, space: Space, limits: Limits | None = None, **rest: Any) -> Meter:
        """A meter for the architectures of a space."""
        return cls(space.family, dict(space.settings), limits, **rest)

    def cost(self, metric: Metric, arch: Arch) -> float:
        """One cost: counted for params and MACs, measured once for latency (seconds) and memory (bytes)."""
        if metric == "params":
            return self.counter.params(arch)
        if metric == "macs":
            return self.counter.macs(arch)
        key = (metric, arch)
        if key not in self._measured and metric == "latency" and self.clock.table is not None:
            self._measured[key] = self.clock.table.predict(self.counter, arch)
        if key not in self._measured:
            value = self._recall(metric, arch) if self._recall else None
            if value is None:
                value = self._measure(metric, arch)
                if self._record:
                    self._record(metric, arch, value)
            self._measured[key] = value
        return self._measured[key]

    def _measure(self, metric: str, arch: Arch) -> float:
        family, shared = self.counter.family, self.counter.shared
        model = family.build(shared, arch)
        shape = (shared.channels, *shared.image_size)
        if metric == "latency":
            runtime = self.clock.runtime
            return measure_latency(model, shape, self.batch, self.device, seconds=SLOW, runtime=runtime).median
        return float(measure_memory(model, shape, self.batch, self.device))

    def costs(self, arch: Arch) -> dict[str, float]:
        """Parameters, MACs, and every other cost that has a limit."""
        params, macs = self.counter.both(arch)
        rest: dict[str, float] = {m: self.cost(m, arch) for m in self.limits.metrics if m not in ("params", "macs")}
        return {"params": params, "macs": macs, **rest}

    @property
    def size_metric(self) -> Metric:
        """The cost that networks and spaces are sized by: the first with an upper limit, else parameters."""
        return next((metric for metric, _, high in self.limits if high is not None), "params")

    def size(self, arch: Arch) -> float:
        """An architecture's cost in that metric."""
        return self.cost(self.size_metric, arch)

    def problem(self, arch: Arch) -> str | None:
        """The first limit this architecture breaks, in words; counted costs are checked first."""
        for metric, low, high in self.limits:
            broken = Limits(((metric, low, high),)).breaks({metric: self.cost(metric, arch)})
            if broken:
                return broken
        return None

    def fits(self, arch: Arch) -> bool:
        """Whether the architecture keeps every limit."""
        return self.problem(arch) is None

    def under(self, arch: Arch) -> bool:
        """Whether it keeps every upper limit."""
        return all(high is None or self.cost(metric, arch) <= high for metric, _, high in self.limits)

    def below(self, arch: Arch) -> bool:
        """Whether it lies strictly below every upper limit."""
        return all(high is None or self.cost(metric, arch) < high for metric, _, high in self.limits)

    def end(self, metric: Metric, space: Space, top: bool = True) -> Arch:
        """The architecture of a space with the highest (or lowest) cost; measured costs are compared by counting."""
        ends, best = space.ends(top), max if top else min
        count = self.counter.params if metric in ("params", "memory") else self.counter.macs
        arch = best(ends, key=count) if len(ends) > 1 else ends[0]
        rng = generator(0, "end")  # not used: only a greater depth samples blocks
        for dim in (d for d in space.dims if d.name in self.counter.family.uneven):
            # At an end all blocks of a stage have the same value and their costs add up, so one value is best for all.
            arch = best((arch, *(space.with_value(arch, dim.key, v, rng) for v in dim.choices)), key=count)
        return arch

    def corners(self, space: Space) -> list[Arch]:
        """The architectures with the lowest and highest cost by every limited metric: the first to try when few fit."""
        ends = [self.end(metric, space, top) for top in (False, True) for metric in self.limits.metrics]
        return list(dict.fromkeys((*space.ends(False), *space.ends(), *ends)))

    def facts(self, arch: Arch) -> dict[str, Any]:
        """Parameters, MACs and what else is limited, as a row of result.json has them."""
        return {k: v if k in ("latency", "memory") else int(v) for k, v in self.costs(arch).items()}

    def most(self, metric: Metric, space: Space) -> float:
        """The highest cost in the space."""
        return self.cost(metric, self.end(metric, space))

    def least(self, metric: Metric, space: Space) -> float:
        """The lowest cost in the space."""
        return self.cost(metric, self.end(metric, space, False))

    def largest(self, space: Space) -> dict[str, int]:
        """The most parameters and the most MACs in the space; with tied dimensions they may be of two architectures."""
        counter = self.counter
        return {"params": counter.params(self.end("params", space)), "macs": counter.macs(self.end("macs", space))}

    def holds(self, space: Space) -> bool:
        """Whether every architecture is strictly below every upper limit: S4's condition on a space."""
        return all(high is None or self.most(metric, space) < high for metric, _, high in self.limits)

    def require_feasible(self, space: Space, tries: int = 20_000) -> None:
        """Raise, before any training, when no architecture can keep the limits; the message names the nearest cost."""
        for metric, low, high in self.limits:
            least, most = self.least(metric, space), self.most(metric, space)
            if high is not None and least > high:
                raise InfeasibleError(
                    f"No architecture of the space has {metric} <= {units.show(high, metric)}: "
                    f"the smallest has {units.show(least, metric)}."
                )
            if low is not None and most < low:
                raise InfeasibleError(
                    f"No architecture of the space has {metric} >= {units.show(low, metric)}: "
                    f"the largest has {units.show(most, metric)}."
                )
        smallest, largest = space.smallest(), space.largest()
        if not self.limits or any(map(self.fits, self.corners(space))):
            return
        rng = generator(0, "feasible")
        tries = tries if set(self.limits.metrics) <= {"params", "macs"} else 50  # measuring is slow
        for _ in range(tries):
            if self.fits(space.sample(rng)):
                return
        raise InfeasibleError(
            f"None of {tries} sampled architectures keeps {self.limits.describe()}; "
            f"the smallest breaks it with {self.problem(smallest)}, the largest with {self.problem(largest)}."
        )


def growing(candidates: Iterable[T], fits: Callable[[T], bool], patience: int = 24) -> Iterator[T]:
    """Those of roughly growing candidates that fit; stops once ``patience`` in a row do not."""
    misses = 0
    for candidate in candidates:
        misses = 0 if fits(candidate) else misses + 1
        if misses >= patience:
            return
        if not misses:
            yield candidate


def largest_fitting(candidates: Iterable[T], fits: Callable[[T], bool], size: Callable[[T], float]) -> T | None:
    """The largest of them; the first of equals."""
    return max(growing(candidates, fits), key=size, default=None)


def largest_measured(candidates: Sequence[T], fits: Callable[[T], bool], work: Callable[[T], float]) -> T | None:
    """The same where ``fits`` is slow: growing steps from the least work, then bisection, then ``EXTRA`` more.

    More work mostly takes longer, so a few dozen calls are enough for hundreds of candidates.
    """
    ordered = sorted(candidates, key=work)
    known: dict[int, bool] = {}

    def good(i: int) -> bool:
        if i not in known:
            known[i] = fits(ordered[i])
        return known[i]

    low, step = -1, 1
    while low + step < len(ordered) and good(low + step):
        low, step = low + step, 2 * step
    high = min(low + step, len(ordered))
    while high - low > 1:
        half = (low + high) // 2
        low, high = (half, high) if good(half) else (low, half)
    found = [i for i in range(high, min(high + EXTRA, len(ordered))) if good(i)]
    best = max([low, *found])
    return ordered[best] if best >= 0 else None
