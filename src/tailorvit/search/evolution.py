"""Evolution search: AutoFormer's and S3's, with the gaps of the papers' listings closed.

T generations of children follow the first population and all are evaluated; nothing is evaluated twice or over the
limits; a space that has no more to offer ends the search early.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.search.base import Candidate, Trial, merit
from tailorvit.search.draw import Legal, draw, first_draw
from tailorvit.search.memory import Memory
from tailorvit.space import Space


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
    per_gene: bool = False  # cross and redraw a block's values one by one instead of together
    elitist: bool = True  # parents from all generations; otherwise from the last one only

    def __post_init__(self) -> None:
        least = {"population": 1, "parents": 1, "generations": 0, "crossover": 0, "mutation": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise TailorError(f"The evolution's '{name}' must be at least {low}, not {getattr(self, name)}.")
        for name in ("p_depth", "p_global", "p_block"):
            if not 0 <= getattr(self, name) <= 1:
                raise TailorError(f"The evolution's '{name}' must lie in 0..1, not {getattr(self, name)}.")
        if self.crossover + self.mutation > self.population:
            raise TailorError(
                f"Crossover {self.crossover} and mutation {self.mutation} make more children "
                f"than the population {self.population}."
            )


PRESETS: Mapping[str, EvolutionSettings] = {
    "fixed": EvolutionSettings(),
    "paper": EvolutionSettings(elitist=False),  # the literal listing: parents are the best of the last generation
    "official": EvolutionSettings(p_depth=0.4, p_global=0.4, p_block=0.2, per_gene=True),  # the released code
}


class Evolution(Memory):
    """Keep the best, cross and mutate them, fill up at random."""

    def __init__(self, space: Space, legal: Legal, seed: int, settings: EvolutionSettings | None = None) -> None:
        super().__init__(space, legal, seed)
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
        """Add up to n children that are new and legal, from at most ten times as many tries."""
        goal = len(born) + n
        for _ in range(10 * n):
            if len(born) == goal:
                return
            child = make()
            if child.arch not in born and self.fresh(child.arch):
                born[child.arch] = child

    def _cross(self, best: list[Arch], rng: np.random.Generator) -> Candidate:
        a, b = (best[i] for i in rng.choice(len(best), 2, replace=len(best) < 2))
        return Candidate(self.space.cross(a, b, rng, self.settings.per_gene), "cross", (a, b))

    def _mutate(self, best: list[Arch], rng: np.random.Generator) -> Candidate:
        s, parent = self.settings, best[int(rng.integers(len(best)))]
        return Candidate(
            self.space.mutate(parent, rng, s.p_depth, s.p_global, s.p_block, s.per_gene), "mutate", (parent,)
        )
