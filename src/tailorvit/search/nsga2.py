"""NSGA-II for accuracy against a cost: pymoo selects, our own operators draw, cross and mutate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.rng import derive
from tailorvit.search.base import Candidate, GenerationSearcher, Legal, SearchMethod, Trial, draw, first_draw
from tailorvit.space import Space

P_CROSS = 0.9
P_DEPTH, P_GLOBAL, P_BLOCK = 0.2, 0.2, 0.1  # of a mutation: gentler than evolution's, because it follows a cross


@dataclass(frozen=True)
class Nsga2Settings:
    """Sizes, and the cost to minimise."""

    population: int = 50
    generations: int = 20
    cost: str = "params"  # params, macs, or the name of a further cost the trials carry

    def __post_init__(self) -> None:
        for name, low in (("population", 2), ("generations", 0)):
            if getattr(self, name) < low:
                raise TailorError(f"NSGA-II's '{name}' must be at least {low}, not {getattr(self, name)}.")


class Nsga2(GenerationSearcher):
    """Finds a whole front of networks, from small to accurate."""

    def __init__(self, space: Space, legal: Legal, seed: int, settings: Nsga2Settings | None = None) -> None:
        super().__init__(space, legal, seed)
        self.settings = settings or Nsga2Settings()
        self._children: dict[Arch, Candidate] = {}  # where the children of this generation come from
        self._algorithm = _algorithm(self)

    def propose(self) -> list[Candidate]:
        """The first population, then children; random architectures where mating finds too few new ones."""
        if self.generation > self.settings.generations:
            return []
        self._children = {}
        self._algorithm.random_state = self.rng("ask")
        infills = self._algorithm.ask()
        archs = [] if infills is None else [row[0] for row in infills.get("X")]
        asked = [self._children.get(a, Candidate(a)) for a in archs]
        if self.generation > 0:
            missing = self.settings.population - len(asked)
            rest = draw(self.space, self.legal, self.rng("fill"), missing, self._seen, set(archs))
            asked += [Candidate(a) for a in rest]
        return asked

    def learn(self, trials: tuple[Trial, ...]) -> None:
        """Hand pymoo the generation with its objectives: error and cost."""
        from pymoo.core.evaluator import Evaluator
        from pymoo.core.population import Population
        from pymoo.problems.static import StaticProblem

        population = Population.new("X", _column([t.arch for t in trials]))
        objectives = np.array([[-t.accuracy, t.cost(self.settings.cost)] for t in trials])
        Evaluator().eval(StaticProblem(self._algorithm.problem, F=objectives), population)
        self._algorithm.random_state = self.rng("tell")
        self._algorithm.tell(infills=population)

    # -- what pymoo's operators call ----------------------------------------------------------------------------------

    def sample(self, n: int, rng: np.random.Generator) -> list[Arch]:
        """The first population."""
        return first_draw(self.space, self.legal, rng, n)

    def cross(self, a: Arch, b: Arch, rng: np.random.Generator) -> Arch:
        """One child of two parents, remembered as such."""
        child = self.space.cross(a, b, rng)
        self._children[child] = Candidate(child, "cross", (a, b))
        return child

    def mutate(self, arch: Arch, rng: np.random.Generator) -> Arch:
        """A mutant, with the parents of what it was mutated from."""
        mutant = self.space.mutate(arch, rng, P_DEPTH, P_GLOBAL, P_BLOCK)
        if mutant != arch:
            parents = self._children[arch].parents if arch in self._children else (arch,)
            self._children[mutant] = Candidate(mutant, "mutate", parents)
        return mutant


def _column(archs: Sequence[Arch]) -> np.ndarray[Any, np.dtype[np.object_]]:
    """(n, 1) object array, filled one by one: numpy would take an Arch, being a mapping, for a nested list."""
    column = np.empty((len(archs), 1), dtype=object)
    for i, arch in enumerate(archs):
        column[i, 0] = arch
    return column


def _algorithm(searcher: Nsga2) -> Any:
    """pymoo's NSGA-II over one object variable, with the searcher's operators."""
    try:
        from pymoo.algorithms.moo.nsga2 import NSGA2 as PymooNsga2
        from pymoo.core.crossover import Crossover
        from pymoo.core.duplicate import DuplicateElimination
        from pymoo.core.mutation import Mutation
        from pymoo.core.problem import Problem
        from pymoo.core.sampling import Sampling
        from pymoo.core.termination import NoTermination
    except ImportError as error:
        raise TailorError("The nsga2 search needs pymoo; install it with: pip install tailorvit[front]") from error

    class Draw(Sampling):  # type: ignore[misc]
        def _do(self, problem: Any, n_samples: int, *_: Any, random_state: Any = None, **__: Any) -> Any:
            return _column(searcher.sample(n_samples, random_state))

    class Cross(Crossover):  # type: ignore[misc]
        def _do(self, problem: Any, X: Any, *_: Any, random_state: Any = None, **__: Any) -> Any:
            children = [searcher.cross(a, b, random_state) for a, b in zip(X[0, :, 0], X[1, :, 0], strict=True)]
            return _column(children)[None]

    class Mutate(Mutation):  # type: ignore[misc]
        def _do(self, problem: Any, X: Any, *_: Any, random_state: Any = None, **__: Any) -> Any:
            return _column([searcher.mutate(arch, random_state) for arch in X[:, 0]])

    class Fresh(DuplicateElimination):  # type: ignore[misc]
        """Drops what may not be asked: repeated, asked before, or over the limits."""

        def _do(self, pop: Any, other: Any, is_duplicate: Any) -> Any:
            taken = set() if other is None else {row[0] for row in other.get("X")}
            for i, (arch,) in enumerate(pop.get("X")):
                is_duplicate[i] = arch in taken or (other is None and not searcher.fresh(arch))
                taken.add(arch)
            return is_duplicate

    algorithm = PymooNsga2(
        pop_size=searcher.settings.population,
        sampling=Draw(),
        crossover=Cross(2, 1, prob=P_CROSS),
        mutation=Mutate(),
        eliminate_duplicates=Fresh(),
        output=None,
    )
    # Termination is ours: so many generations, or nothing left to ask.
    algorithm.setup(Problem(n_var=1, n_obj=2), termination=NoTermination(), seed=derive(searcher.seed, "pymoo") % 2**32)
    return algorithm


NSGA2 = SearchMethod(
    "nsga2",
    "a front of accuracy against a cost (NSGA-II)",
    Nsga2,
    Nsga2Settings,
    "front",
    {"population": 6, "generations": 2},
    needs=("pymoo", "tailorvit[front]"),
)
