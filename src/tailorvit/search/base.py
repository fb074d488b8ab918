"""Ask, evaluate, tell: the values that pass between a searcher and an evaluator, the loop, and what searchers share."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from tailorvit.arch import Arch
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.rng import generator
from tailorvit.space import Space

Legal = Callable[[Arch], bool]
TRIES = 1000  # draws per architecture wanted


class Candidate(NamedTuple):
    """An architecture to evaluate: drawn at random, crossed or mutated, and from whom."""

    arch: Arch
    source: str = "random"  # random | cross | mutate
    parents: tuple[Arch, ...] = ()


@dataclass(frozen=True)
class Trial:
    """One evaluated architecture; accuracy in percent."""

    arch: Arch
    accuracy: float
    params: int
    macs: int
    source: str = "random"
    generation: int = 0
    parents: tuple[Arch, ...] = ()
    costs: Mapping[str, float] = field(default_factory=dict, hash=False)  # any further costs, by name

    def cost(self, name: str) -> float:
        """A cost by name: params, macs or one of the further costs."""
        known = {"params": self.params, "macs": self.macs, **self.costs}
        if name not in known:
            raise TailorError(f"The trials hold no cost '{name}'; they hold {', '.join(known)}.")
        return float(known[name])

    def to_dict(self) -> dict[str, Any]:
        """Plain data that reads back to an equal trial."""
        return {
            "arch": self.arch.to_dict(),
            "accuracy": self.accuracy,
            "params": self.params,
            "macs": self.macs,
            "source": self.source,
            "generation": self.generation,
            "parents": [p.to_dict() for p in self.parents],
            "costs": dict(self.costs),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trial:
        """Read :meth:`to_dict`'s form."""
        arch, parents = Arch.from_dict(data["arch"]), tuple(Arch.from_dict(p) for p in data["parents"])
        return cls(**{**data, "arch": arch, "parents": parents, "costs": dict(data["costs"])})


def merit(trial: Trial) -> tuple[float, int, int, str]:
    """Sort key, best first: accuracy, then fewer parameters, then fewer MACs, then the JSON text; NaN comes last."""
    lost = math.inf if math.isnan(trial.accuracy) else -trial.accuracy
    return lost, trial.params, trial.macs, trial.arch.to_json()


def best_trial(trials: Iterable[Trial]) -> Trial:
    """The most accurate trial; ties go to the smaller one."""
    return min(trials, key=merit)


# -- the loop ---------------------------------------------------------------------------------------------------------


class Searcher(Protocol):
    """Proposes architectures and learns from their trials; knows no model, no data and no disk."""

    @property
    def generation(self) -> int:
        """The generation the next ask belongs to: how often trials were reported."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials reported, in the order asked."""

    def ask(self) -> list[Candidate]:
        """The next generation to evaluate, the same until told; an empty list when the search is finished."""

    def tell(self, trials: Sequence[Trial]) -> None:
        """Report one trial per candidate asked, in any order."""

    def state(self) -> dict[str, Any]:
        """JSON-able; a new searcher built alike and restored to it goes on as this one would."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a :meth:`state`."""


@dataclass(frozen=True)
class SearchMethod:
    """The record of a search method."""

    name: str
    summary: str
    factory: Callable[..., Searcher]  # (space, legal, seed, settings) -> searcher
    settings: type[Any]  # the dataclass of its settings, which are recipe keys under [search]
    finds: Literal["best", "front"]  # one most accurate network, or a front of accuracy against a cost
    tiny: Mapping[str, int]  # settings that take seconds, for the tiny form of any recipe
    needs: tuple[str, str] | None = None  # a module it imports when it starts, and what to install with pip for it
    experimental: bool = False


Evaluate = Callable[[Sequence[Candidate], int], list[Trial]]


def run_search(searcher: Searcher, evaluate: Evaluate) -> list[Trial]:
    """Ask, evaluate, tell until the searcher is finished; all its trials, those of a restored searcher included."""
    while candidates := searcher.ask():
        searcher.tell(evaluate(candidates, searcher.generation))
    return list(searcher.trials)


# -- what searchers share ---------------------------------------------------------------------------------------------


def draw(space: Space, legal: Legal, rng: np.random.Generator, n: int, *seen: Collection[Arch]) -> list[Arch]:
    """Up to ``n`` different legal architectures that were not ``seen``; fewer where a thousand draws each find no more.

    Several collections of seen ones share none: joining them for every generation would cost as much as all before.
    """
    found: dict[Arch, None] = {}
    refused: set[Arch] = set()
    left = space.count() - sum(map(len, seen))
    for _ in range(TRIES * n):
        # In a small space every architecture is soon found, seen or refused: stop there.
        if len(found) == n or len(found) + len(refused) >= left:
            break
        arch = space.sample(rng)
        if arch in found or arch in refused or any(arch in known for known in seen):
            continue
        if legal(arch):
            found[arch] = None
        else:
            refused.add(arch)
    return list(found)


def first_draw(space: Space, legal: Legal, rng: np.random.Generator, n: int) -> list[Arch]:
    """As :func:`draw`, for the first generation: an error when no legal architecture is found at all."""
    # A tight limit may leave only the ends of the space, which sampling never meets.
    found = draw(space, legal, rng, n) or [a for a in (*space.ends(False), *space.ends()) if legal(a)][:n]
    if not found:
        tries = min(TRIES * n, space.count())
        raise InfeasibleError(f"None of {tries} architectures drawn from the space keeps the limits.")
    return found


class GenerationSearcher:
    """A searcher by generations: a function of its seed and of the trials reported, so its state is those trials.

    Every draw comes from (seed, name of the class, generation); no generator is carried over. Asking twice gives the
    same answer, and restoring is reporting the old generations again. A subclass writes :meth:`propose`.
    """

    def __init__(self, space: Space, legal: Legal, seed: int) -> None:
        self.space, self.legal, self.seed = space, legal, seed
        self._generations: list[tuple[Trial, ...]] = []
        self._seen: dict[Arch, None] = {}
        self._pending: list[Candidate] | None = None

    def propose(self) -> list[Candidate]:
        """The candidates of the next generation, from the seed and the generations before alone."""
        raise NotImplementedError

    def learn(self, trials: tuple[Trial, ...]) -> None:
        """Called with each generation reported; for searchers that keep more than the trials."""

    def rng(self, *path: int | str) -> np.random.Generator:
        """The generator of this generation."""
        return generator(self.seed, type(self).__name__, self.generation, *path)

    def fresh(self, arch: Arch) -> bool:
        """Whether the arch may be asked: not asked before, and within the limits."""
        return arch not in self._seen and self.legal(arch)

    @property
    def generation(self) -> int:
        """The generation the next ask belongs to."""
        return len(self._generations)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials reported, in the order asked."""
        return tuple(t for trials in self._generations for t in trials)

    def ask(self) -> list[Candidate]:
        """The next generation; an empty list when finished."""
        if self._pending is None:
            self._pending = self.propose()
        return list(self._pending)

    def tell(self, trials: Sequence[Trial]) -> None:
        """Report one trial per candidate asked, in any order."""
        place = {c.arch: i for i, c in enumerate(self.ask())}
        if not trials or len(trials) != len(place) or {t.arch for t in trials} != place.keys():
            raise ValueError(f"tell() takes one trial for each of the {len(place)} candidates asked")
        self._accept(tuple(sorted(trials, key=lambda t: place[t.arch])))

    def _accept(self, trials: tuple[Trial, ...]) -> None:
        self.learn(trials)
        self._generations.append(trials)
        self._seen.update(dict.fromkeys(t.arch for t in trials))
        self._pending = None

    def state(self) -> dict[str, Any]:
        """The generations as plain data."""
        return {"generations": [[t.to_dict() for t in trials] for trials in self._generations]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Report to a new searcher what another one heard."""
        if self._generations:
            raise ValueError("only a new searcher can be restored")
        for generation in state["generations"]:
            trials = tuple(Trial.from_dict(t) for t in generation)
            for trial in trials:
                self.space.check(trial.arch)
            self._accept(trials)
