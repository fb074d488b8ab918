"""Ask, evaluate, tell: the values that pass between a searcher and whoever evaluates, and the loop itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tailorvit.arch import Arch
from tailorvit.errors import TailorError


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


class Searcher(Protocol):
    """Proposes architectures and learns from their trials; knows no model, no data and no disk."""

    @property
    def generation(self) -> int:
        """The generation the next ask belongs to: how often the searcher was told."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All it was told, in the order asked."""

    def ask(self) -> list[Candidate]:
        """The next generation to evaluate, the same until told; an empty list when the search is finished."""

    def tell(self, trials: Sequence[Trial]) -> None:
        """One trial per candidate asked, in any order."""

    def state(self) -> dict[str, Any]:
        """JSON-able; a new searcher built alike and restored to it goes on as this one would."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a :meth:`state`."""


Evaluate = Callable[[Sequence[Candidate], int], list[Trial]]
OnGeneration = Callable[[int, list[Trial]], None]


def run_search(searcher: Searcher, evaluate: Evaluate, on_generation: OnGeneration | None = None) -> list[Trial]:
    """Ask, evaluate, tell until the searcher is finished; all its trials, those of a restored searcher included."""
    while candidates := searcher.ask():
        generation = searcher.generation
        trials = evaluate(candidates, generation)
        searcher.tell(trials)
        if on_generation is not None:
            on_generation(generation, trials)
    return list(searcher.trials)


def merit(trial: Trial) -> tuple[float, int, int, str]:
    """Sort key, best first: accuracy, then fewer parameters, then fewer MACs, then the JSON text; NaN comes last."""
    lost = math.inf if math.isnan(trial.accuracy) else -trial.accuracy
    return lost, trial.params, trial.macs, trial.arch.to_json()


def best_trial(trials: Iterable[Trial]) -> Trial:
    """The most accurate trial; ties go to the smaller one."""
    return min(trials, key=merit)
