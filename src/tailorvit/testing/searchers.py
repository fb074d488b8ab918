"""The contract of search methods: what every searcher promises, as tests to inherit from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from tailorvit.arch import Arch
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.families import named_space
from tailorvit.search import SEARCHERS, Candidate, Searcher, SearchMethod, Trial, best_trial, run_search
from tailorvit.search.pareto import hypervolume
from tailorvit.search.random_search import RandomSettings
from tailorvit.space import Dim, Space
from tailorvit.testing.synthetic import Synthetic

SPACE = named_space("vit-32px")
LIMIT = 900_000  # parameters
PROBLEM = Synthetic(SPACE, {"depth": 6, "mlp": 4, "heads": 4, "embed": 128}, {"mlp": 6, "heads": 3}, noise=0.05)
BUDGET = 250  # evaluations in which a searcher must beat random search


def within_limit(arch: Arch) -> bool:
    """The limit the searchers must keep."""
    return PROBLEM.counter.params(arch) <= LIMIT


class SearcherContract:
    """Inherit, name the method, and give settings in three sizes; pytest collects the tests.

    ``small`` makes some dozens of trials in several generations, ``tiny`` at most 16, and ``larger`` 250, in which the
    searcher must beat random search (None for random search itself).
    """

    name: ClassVar[str]
    small: ClassVar[Any]
    tiny: ClassVar[Any]
    larger: ClassVar[Any]

    @property
    def method(self) -> SearchMethod:
        """The record under test."""
        return SEARCHERS[self.name]

    def build(self, seed: int = 0, space: Space = SPACE, legal: Any = within_limit, settings: Any = None) -> Searcher:
        """A searcher of the method."""
        return self.method.factory(space, legal, seed, settings or self.small)

    def test_record(self) -> None:
        """The record describes itself, and its tiny form is smaller than the default."""
        method = self.method
        assert method.name == self.name and method.summary and method.finds in ("best", "front")
        assert isinstance(self.small, method.settings)
        assert method.settings(**method.tiny) != method.settings()

    def test_same_seed_same_trials(self) -> None:
        """Trials depend on the seed and on nothing else."""
        first = run_search(self.build(3), PROBLEM.evaluate)
        np.random.seed(1)  # noqa: NPY002 - the global generator must not matter
        assert run_search(self.build(3), PROBLEM.evaluate) == first
        assert run_search(self.build(4), PROBLEM.evaluate) != first

    def test_global_randomness_is_left_alone(self) -> None:
        """Draws come from generators of their own."""
        before = np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
        run_search(self.build(), PROBLEM.evaluate)
        assert (np.random.get_state()[1] == before).all()  # type: ignore[index]  # noqa: NPY002

    def test_restored_after_any_generation_it_goes_on_alike(self) -> None:
        """A state is JSON; a searcher restored from it asks for the same."""
        whole = self.build()
        states = [json.dumps(whole.state())]

        def evaluate(candidates: Sequence[Candidate], generation: int) -> list[Trial]:
            if generation:
                states.append(json.dumps(whole.state()))
            return PROBLEM.evaluate(candidates, generation)

        trials = run_search(whole, evaluate)
        states.append(json.dumps(whole.state()))
        assert len(states) > 2
        for generation, state in enumerate(states):
            resumed = self.build()
            resumed.restore(json.loads(state))
            assert resumed.generation == generation
            assert run_search(resumed, PROBLEM.evaluate) == trials
            assert resumed.state() == whole.state()

    def test_asking_twice_and_telling_in_another_order_change_nothing(self) -> None:
        """Asking is free, and trials may come in any order."""
        trials = run_search(self.build(), PROBLEM.evaluate)
        other = self.build()
        while candidates := other.ask():
            assert other.ask() == candidates
            other.tell(PROBLEM.evaluate(candidates, other.generation)[::-1])
        assert list(other.trials) == trials

    def test_nothing_is_asked_twice_or_outside_space_and_limits(self) -> None:
        """Every candidate is new and legal, and its parents were evaluated."""
        approved: set[Arch] = set()

        def watched(arch: Arch) -> bool:
            legal = within_limit(arch)
            approved.update([arch] if legal else [])
            return legal

        def evaluate(candidates: Sequence[Candidate], generation: int) -> list[Trial]:
            for c in candidates:
                assert SPACE.contains(c.arch)
                assert c.arch in approved, "evaluated before the limits were asked"
                assert c.source in ("random", "cross", "mutate")
                assert (c.source == "random") == (c.parents == ())
            return PROBLEM.evaluate(candidates, generation)

        trials = run_search(self.build(legal=watched), evaluate)
        found = {t.arch for t in trials}
        assert len(found) == len(trials) > 8
        assert all(p in found for t in trials for p in t.parents)
        assert [t.generation for t in trials] == sorted(t.generation for t in trials)

    def test_infeasible_limits_are_a_clear_error(self) -> None:
        """Never an endless loop."""
        tries = 0

        def never(arch: Arch) -> bool:
            nonlocal tries
            tries += 1
            return False

        with pytest.raises(InfeasibleError, match="keeps the limits"):
            self.build(legal=never, settings=self.tiny).ask()
        assert 4 < tries <= 1000 * 16 + 2

    def test_a_single_legal_architecture_is_found_and_ends_the_search(self) -> None:
        """The ends of a space are tried where sampling finds nothing."""
        only = SPACE.smallest()
        trials = run_search(self.build(legal=lambda a: a == only, settings=self.tiny), PROBLEM.evaluate)
        assert [t.arch for t in trials] == [only]

    def test_a_small_space_is_exhausted_and_ends(self) -> None:
        """A space of six architectures has six trials."""
        dims = (Dim("depth", (1, 2)), Dim("heads", (1, 2), scope="block"), Dim("mlp", (2,), scope="block"))
        space = Space("vit", (*dims, Dim("embed", (16,))), tuple(SPACE.settings))
        problem = Synthetic(space, {"depth": 2})
        trials = run_search(self.build(space=space, legal=lambda a: True), problem.evaluate)
        assert len(trials) == space.count() == 6

    def test_tell_refuses_other_trials(self) -> None:
        """One trial for each candidate, no more and no less."""
        searcher = self.build()
        trials = PROBLEM.evaluate(searcher.ask(), 0)
        for wrong in (trials[1:], [*trials[1:], trials[1]], [*trials, trials[0]], []):
            with pytest.raises(ValueError, match="one trial for each of the"):
                searcher.tell(wrong)
        searcher.tell(trials)
        assert searcher.generation == 1

    def test_a_state_of_another_space_is_refused(self) -> None:
        """The error names the dimension."""
        searcher = self.build()
        searcher.tell(PROBLEM.evaluate(searcher.ask(), 0))
        other = self.build(space=SPACE.shift({"embed": 4}), legal=lambda a: True)
        with pytest.raises(TailorError, match="dimension 'embed'"):
            other.restore(searcher.state())

    def test_it_beats_random_search_at_equal_budget(self) -> None:
        """By its best network, or by the volume under its front, on average over six seeds."""
        if self.larger is None:
            pytest.skip("random search is what others are compared with")

        def score(trials: list[Trial]) -> float:
            assert len(trials) == BUDGET
            if self.method.finds == "front":
                return hypervolume([(100 - t.accuracy, t.params / LIMIT) for t in trials], (60, 1))
            return best_trial(trials).accuracy

        control = RandomSettings(budget=BUDGET, batch=25)
        ours = [score(run_search(self.build(s, settings=self.larger), PROBLEM.evaluate)) for s in range(6)]
        drawn = [SEARCHERS["random"].factory(SPACE, within_limit, s, control) for s in range(6)]
        random = [score(run_search(searcher, PROBLEM.evaluate)) for searcher in drawn]
        assert np.mean(ours) > np.mean(random)
        assert sum(a > b for a, b in zip(ours, random, strict=True)) >= 4
