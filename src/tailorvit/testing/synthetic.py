"""A synthetic accuracy with a known optimum: search logic can be tested and shown without training anything."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tailorvit.arch import Arch
from tailorvit.costs.count import Counter
from tailorvit.rng import generator
from tailorvit.search.base import Candidate, Trial
from tailorvit.space import Space


@dataclass(frozen=True)
class Synthetic:
    """100 minus an error that is quadratic around the optimum, in steps of each dimension and in the size.

    error = floor + size_weight * (log10 params - size)^2 + sum_k coefficient_k * ((v_k - optimum_k) / shift_k)^2
    + noise, a normal draw fixed by (seed, arch). Dimensions per block enter by their mean over the blocks.
    """

    space: Space  # gives the steps and the shared settings; architectures outside it may be asked too
    optimum: Mapping[str, float]
    coefficients: Mapping[str, float] = field(default_factory=dict)  # 1 for an optimum without one
    size: float | None = None  # the best log10 of the parameters; None: size as such does not matter
    size_weight: float = 1.0
    floor: float = 10.0
    noise: float = 0.0
    seed: int = 0
    counter: Counter = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for key in (*self.optimum, *self.coefficients):
            self.space[key]  # raises for an unknown dimension
        object.__setattr__(self, "counter", Counter(self.space.family, dict(self.space.settings)))

    def clean(self, arch: Arch) -> float:
        """The accuracy without noise."""
        error = self.floor
        if self.size is not None:
            error += self.size_weight * (math.log10(self.counter.params(arch)) - self.size) ** 2
        for key, best in self.optimum.items():
            gene = arch[key]
            value = statistics.fmean(gene) if isinstance(gene, tuple) else gene
            error += self.coefficients.get(key, 1.0) * ((value - best) / self.space[key].shift) ** 2
        return 100 - error

    def accuracy(self, arch: Arch) -> float:
        """The accuracy in percent, the same for the same seed and arch."""
        if not self.noise:
            return self.clean(arch)
        return self.clean(arch) + self.noise * float(generator(self.seed, "noise", arch.to_json()).standard_normal())

    def evaluate(self, candidates: Sequence[Candidate], generation: int) -> list[Trial]:
        """Trials for a searcher's candidates."""
        return [
            Trial(c.arch, self.accuracy(c.arch), *self.counter.both(c.arch), c.source, generation, c.parents)
            for c in candidates
        ]
