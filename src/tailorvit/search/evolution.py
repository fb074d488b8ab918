"""Evolution search: AutoFormer's and S3's, with the gaps of the papers' listings closed.

T generations of children follow the first population and all are evaluated; nothing is evaluated twice or over the
limits; a space that has no more to offer ends the search early.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.search.base import Candidate, GenerationSearcher, Legal, SearchMethod, Trial, draw, first_draw, merit
from tailorvit.space import Space


@dataclass(frozen=True)
class Rules:
    """Probabilities of a mutation, and how children come about."""

    p_depth: float = 0.2
    p_global: float = 0.2
    p_block: float = 0.4
    redraw_same: bool = False  # a redraw may return the old value
    per_gene: bool = False  # cross and redraw a block's values one by one instead of together
    elitist: bool = True  # parents from all generations; otherwise from the last one only


PRESETS: Mapping[str, Rules] = {
    "fixed": Rules(),  # the papers' text, with parents from all generations
    "paper": Rules(elitist=False),  # the literal listing: parents are the best of the last generation
    "official": Rules(p_depth=0.4, p_global=0.4, p_block=0.2, per_gene=True, redraw_same=True),  # the released code
}


@dataclass(frozen=True)
class EvolutionSettings:
    """Sizes of a generation, and whose rules children are made by."""

    population: int = 50
    parents: int = 10
    generations: int = 20
    crossover: int = 25
    mutation: int = 25
    preset: Literal["fixed", "paper", "official"] = "fixed"

    def __post_init__(self) -> None:
        least = {"population": 1, "parents": 1, "generations": 0, "crossover": 0, "mutation": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise TailorError(f"The evolution's '{name}' must be at least {low}, not {getattr(self, name)}.")
        if self.crossover + self.mutation > self.population:
            raise TailorError(
                f"Crossover {self.crossover} and mutation {self.mutation} make more children "
                f"than the population {self.population}."
            )


class Evolution(GenerationSearcher):
    """Keep the best, cross and mutate them, fill up at random."""

    def __init__(self, space: Space, legal: Legal, seed: int, settings: EvolutionSettings | None = None) -> None:
        super().__init__(space, legal, seed)
        self.settings = settings or EvolutionSettings()
        self.rules = PRESETS[self.settings.preset]
        self._best: list[Trial] = []

    def learn(self, trials: tuple[Trial, ...]) -> None:
        """Keep the best K so far, or of this generation."""
        before = self._best if self.rules.elitist else []
        self._best = sorted([*before, *trials], key=merit)[: self.settings.parents]

    def propose(self) -> list[Candidate]:
        """The first population, then children of the best."""
        s, rng = self.settings, self.rng()
        if self.generation == 0:
            return [Candidate(a) for a in first_draw(self.space, self.legal, rng, s.population)]
        if self.generation > s.generations:
            return []
        best = [t.arch for t in self._best]
        children: dict[Arch, Candidate] = {}
        self._breed(children, s.crossover, lambda: self._cross(best, rng))
        self._breed(children, s.mutation, lambda: self._mutate(best, rng))
        rest = draw(self.space, self.legal, rng, s.population - len(children), self._seen, children)
        return [*children.values(), *(Candidate(a) for a in rest)]

    def _breed(self, children: dict[Arch, Candidate], n: int, make: Callable[[], Candidate]) -> None:
        """Add up to n children that are new and legal, from at most ten times as many tries."""
        wanted = len(children) + n
        for _ in range(10 * n):
            if len(children) == wanted:
                break
            child = make()
            if child.arch not in children and self.fresh(child.arch):
                children[child.arch] = child

    def _cross(self, best: list[Arch], rng: np.random.Generator) -> Candidate:
        a, b = (best[i] for i in rng.choice(len(best), 2, replace=len(best) < 2))
        return Candidate(self.space.cross(a, b, rng, self.rules.per_gene), "cross", (a, b))

    def _mutate(self, best: list[Arch], rng: np.random.Generator) -> Candidate:
        r, parent = self.rules, best[int(rng.integers(len(best)))]
        child = self.space.mutate(parent, rng, r.p_depth, r.p_global, r.p_block, r.per_gene, r.redraw_same)
        return Candidate(child, "mutate", (parent,))


EVOLUTION = SearchMethod(
    "evolution",
    "cross and mutate the best (AutoFormer, S3, S4)",
    Evolution,
    EvolutionSettings,
    "best",
    {"population": 6, "parents": 3, "generations": 2, "crossover": 2, "mutation": 2},
)
