"""Evolution search: AutoFormer's and S3's, with the gaps of the papers' listings closed.

T generations of children follow the first population and all are evaluated; nothing is evaluated twice or over the
limits; a space that has no more to offer ends the search early.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tailorvit.arch import Arch
from tailorvit.errors import TailorError, unknown
from tailorvit.search.base import Candidate, Trial, merit
from tailorvit.search.draw import Legal, draw, first_draw
from tailorvit.search.memory import Memory
from tailorvit.space import Space

FITTED = "fitted"  # a pre-filter that learns from the first population of its own search
FEWEST = 8  # accuracies a predictor is fitted on


@dataclass(frozen=True)
class EvolutionSettings:
    """Sizes and probabilities; the papers' text, with parents from all generations."""

    population: int = 50
    parents: int = 10
    generations: int = 20
    crossover: int = 25
    mutation: int = 25
    p_depth: float = 0.2
    p_global: float = 0.2
    p_block: float = 0.4
    redraw_same: bool = False  # a redraw may draw the old value again, as the released code's does
    per_gene: bool = False  # cross and redraw a block's values one by one instead of together
    elitist: bool = True  # parents from all generations; otherwise from the last one only
    prefilter: str = ""  # a proxy, or "fitted", that looks at children before they are evaluated; none where empty
    ask: int = 4  # with a pre-filter: children bred for each one that is evaluated

    def __post_init__(self) -> None:
        least = {"population": 1, "parents": 1, "generations": 0, "crossover": 0, "mutation": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise TailorError(f"The evolution's '{name}' must be at least {low}, not {getattr(self, name)}.")
        for name in ("p_depth", "p_global", "p_block"):
            if not 0 <= getattr(self, name) <= 1:
                raise TailorError(f"The evolution's '{name}' must lie in 0..1, not {getattr(self, name)}.")
        if self.prefilter:
            self._check_filter()
        if self.crossover + self.mutation > self.population:
            raise TailorError(
                f"Crossover {self.crossover} and mutation {self.mutation} make more children "
                f"than the population {self.population}."
            )

    def _check_filter(self) -> None:
        from tailorvit.proxies import PROXIES

        if self.prefilter not in (*PROXIES, FITTED):
            raise unknown("search.prefilter", self.prefilter, (*PROXIES, FITTED))
        if self.prefilter == FITTED and self.population < FEWEST:
            raise TailorError(
                f"search.prefilter '{FITTED}' learns from the first population, which needs at least {FEWEST} members, "
                f"not {self.population}."
            )
        if self.prefilter != FITTED and PROXIES[self.prefilter].together is not None:
            raise TailorError(
                f"search.prefilter '{self.prefilter}' ranks candidates within one set, so its answers of different "
                "generations cannot be compared; name a score that stands by itself, such as predictor."
            )
        if self.ask < 2:
            raise TailorError(f"search.ask must be at least 2 for a pre-filter to choose from, not {self.ask}.")


Liking = Callable[[Sequence[Arch]], list[float]]  # larger is better

PRESETS: Mapping[str, EvolutionSettings] = {
    "fixed": EvolutionSettings(),
    "paper": EvolutionSettings(elitist=False),  # the literal listing: parents are the best of the last generation
    # The released code.
    "official": EvolutionSettings(p_depth=0.4, p_global=0.4, p_block=0.2, per_gene=True, redraw_same=True),
}


class Evolution(Memory):
    """Keep the best, cross and mutate them, fill up at random."""

    def __init__(
        self,
        space: Space,
        legal: Legal,
        seed: int,
        settings: EvolutionSettings | None = None,
        liking: Liking | None = None,
    ) -> None:
        super().__init__(space, legal, seed)
        self.liking = liking  # a function of the architecture alone, or a restored searcher would go elsewhere
        self.settings = settings or EvolutionSettings()

    def parents(self) -> list[Trial]:
        """The best K so far, or of the last generation."""
        pool = self.trials if self.settings.elitist else self._told[-1]
        return sorted(pool, key=merit)[: self.settings.parents]

    def propose(self) -> list[Candidate]:
        """The first population, then children of the best."""
        s, rng = self.settings, self.rng()
        if self.generation == 0:
            return [Candidate(a) for a in first_draw(self.space, self.legal, rng, s.population)]
        if self.generation > s.generations:
            return []
        best = [t.arch for t in self.parents()]
        born: dict[Arch, Candidate] = {}
        self._breed(born, s.crossover, lambda: self._cross(best, rng))
        self._breed(born, s.mutation, lambda: self._mutate(best, rng))
        rest = draw(self.space, self.legal, rng, s.population - len(born), self._seen.keys() | born.keys())
        return [*born.values(), *(Candidate(a) for a in rest)]

    def _breed(self, born: dict[Arch, Candidate], n: int, make: Callable[[], Candidate]) -> None:
        """Add up to n children that are new and legal, from at most ten times as many tries.

        With a pre-filter several times as many are bred and the n it likes best are added, in the order of their birth.
        """
        many = n * (self.settings.ask if self.liking is not None else 1)
        bred: dict[Arch, Candidate] = {}
        for _ in range(10 * many):
            if len(bred) == many:
                break
            child = make()
            if child.arch not in born and child.arch not in bred and self.fresh(child.arch):
                bred[child.arch] = child
        if self.liking is not None and len(bred) > n:
            liked = dict(zip(bred, self.liking(list(bred)), strict=True))
            best = set(sorted(bred, key=lambda a: -liked[a])[:n])
            bred = {arch: child for arch, child in bred.items() if arch in best}
        born.update(bred)

    def _cross(self, best: list[Arch], rng: np.random.Generator) -> Candidate:
        a, b = (best[i] for i in rng.choice(len(best), 2, replace=len(best) < 2))
        return Candidate(self.space.cross(a, b, rng, self.settings.per_gene), "cross", (a, b))

    def _mutate(self, best: list[Arch], rng: np.random.Generator) -> Candidate:
        s, parent = self.settings, best[int(rng.integers(len(best)))]
        child = self.space.mutate(parent, rng, s.p_depth, s.p_global, s.p_block, s.per_gene, s.redraw_same)
        return Candidate(child, "mutate", (parent,))
