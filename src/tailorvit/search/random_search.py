"""Random search: different legal architectures from the space's own distribution, in batches."""

from __future__ import annotations

from dataclasses import dataclass

from tailorvit.errors import TailorError
from tailorvit.search.base import Candidate, GenerationSearcher, Legal, SearchMethod, draw, first_draw
from tailorvit.space import Space


@dataclass(frozen=True)
class RandomSettings:
    """How many architectures in all, and how many at a time. The default is what evolution evaluates."""

    budget: int = 1050
    batch: int = 50

    def __post_init__(self) -> None:
        for name in ("budget", "batch"):
            if getattr(self, name) < 1:
                raise TailorError(f"The random search's '{name}' must be at least 1, not {getattr(self, name)}.")


class RandomSearch(GenerationSearcher):
    """What every other searcher has to beat."""

    def __init__(self, space: Space, legal: Legal, seed: int, settings: RandomSettings | None = None) -> None:
        super().__init__(space, legal, seed)
        self.settings = settings or RandomSettings()

    def propose(self) -> list[Candidate]:
        """The next batch of what is left of the budget."""
        n = min(self.settings.batch, self.settings.budget - len(self._seen))
        if self.generation == 0:
            return [Candidate(a) for a in first_draw(self.space, self.legal, self.rng(), n)]
        return [Candidate(a) for a in draw(self.space, self.legal, self.rng(), n, self._seen)]


RANDOM = SearchMethod(
    "random",
    "different random networks, the control for other searchers",
    RandomSearch,
    RandomSettings,
    "best",
    {"budget": 8, "batch": 4},
)
