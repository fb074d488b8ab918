"""Memory: what all searchers share. A searcher is a function of its seed and of what it was told, so its state is that.

Every draw comes from (seed, searcher, generation); no generator is carried from one generation to the next. Asking
again gives the same answer, and restoring is telling the old generations again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tailorvit.arch import Arch
from tailorvit.rng import generator
from tailorvit.search.base import Candidate, Trial
from tailorvit.search.draw import Legal
from tailorvit.space import Space


class Memory:
    """The told generations, and the searcher's methods in terms of :meth:`propose` and :meth:`learn`."""

    def __init__(self, space: Space, legal: Legal, seed: int) -> None:
        self.space, self.legal, self.seed = space, legal, seed
        self._told: list[tuple[Trial, ...]] = []
        self._seen: dict[Arch, None] = {}
        self._asked: list[Candidate] | None = None

    def propose(self) -> list[Candidate]:
        """The candidates of the next generation, from the seed and the told generations alone."""
        raise NotImplementedError

    def learn(self, trials: tuple[Trial, ...]) -> None:
        """Called with each generation told; for searchers that keep more than the trials."""

    def rng(self, *path: int | str) -> np.random.Generator:
        """The generator of this generation."""
        return generator(self.seed, type(self).__name__, self.generation, *path)

    def fresh(self, arch: Arch) -> bool:
        """Whether the arch may be asked: not asked before, and within the limits."""
        return arch not in self._seen and self.legal(arch)

    @property
    def generation(self) -> int:
        """The generation the next ask belongs to."""
        return len(self._told)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials told, in the order asked."""
        return tuple(t for told in self._told for t in told)

    def ask(self) -> list[Candidate]:
        """The next generation; an empty list when finished."""
        if self._asked is None:
            self._asked = self.propose()
        return list(self._asked)

    def tell(self, trials: Sequence[Trial]) -> None:
        """One trial per candidate asked, in any order."""
        place = {c.arch: i for i, c in enumerate(self.ask())}
        if not trials or len(trials) != len(place) or {t.arch for t in trials} != place.keys():
            raise ValueError(f"tell() takes one trial for each of the {len(place)} candidates asked")
        self._accept(tuple(sorted(trials, key=lambda t: place[t.arch])))

    def _accept(self, trials: tuple[Trial, ...]) -> None:
        self.learn(trials)
        self._told.append(trials)
        self._seen.update(dict.fromkeys(t.arch for t in trials))
        self._asked = None

    def state(self) -> dict[str, Any]:
        """The told generations as plain data."""
        return {"told": [[t.to_dict() for t in told] for told in self._told]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Tell a new searcher what another one was told."""
        if self._told:
            raise ValueError("only a new searcher can be restored")
        for told in state["told"]:
            trials = tuple(Trial.from_dict(t) for t in told)
            for trial in trials:
                self.space.check(trial.arch)
            self._accept(trials)
