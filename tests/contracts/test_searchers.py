"""Every searcher in the table keeps the same promises."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tailorvit.arch import Arch
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.families import named_space
from tailorvit.search import (
    SEARCHERS,
    EvolutionSettings,
    Nsga2Settings,
    RandomSettings,
    best_trial,
    run_search,
    searcher,
)
from tailorvit.search.pareto import hypervolume
from tailorvit.search.synthetic import Synthetic
from tailorvit.space import Dim, Space

SMALL = {
    "evolution": EvolutionSettings(population=16, parents=4, generations=5, crossover=8, mutation=8),
    "nsga2": Nsga2Settings(population=16, generations=5),
    "random": RandomSettings(budget=96, batch=16),
}
TINY = {  # for the tests that use up every try
    "evolution": EvolutionSettings(population=4, parents=2, generations=3, crossover=2, mutation=2),
    "nsga2": Nsga2Settings(population=4, generations=3),
    "random": RandomSettings(budget=16, batch=4),
}
LARGER = {  # 250 evaluations each
    "evolution": EvolutionSettings(population=25, parents=6, generations=9, crossover=12, mutation=13),
    "nsga2": Nsga2Settings(population=25, generations=9),
    "random": RandomSettings(budget=250, batch=25),
}
SPACE = named_space("vit-32px")
LIMIT = 900_000
PROBLEM = Synthetic(SPACE, {"depth": 6, "mlp": 4, "heads": 4, "embed": 128}, {"mlp": 6, "heads": 3}, noise=0.05)

names = pytest.mark.parametrize("name", sorted(SEARCHERS))


def legal(arch: Arch) -> bool:
    return PROBLEM.counter.params(arch) <= LIMIT


def build(name, seed=0, space=SPACE, allowed=legal, settings=None):
    return SEARCHERS[name].factory(space, allowed, seed, settings or SMALL[name])


def tiny_space() -> Space:
    dims = (Dim("depth", (1, 2)), Dim("heads", (1, 2), scope="block"), Dim("mlp", (2,), scope="block"))
    return Space("vit", (*dims, Dim("embed", (16,))), tuple(SPACE.fixed))


def test_every_searcher_is_tested():
    assert set(SMALL) == set(TINY) == set(LARGER) == set(SEARCHERS)
    for name, entry in SEARCHERS.items():
        assert entry.name == name
        assert entry.summary
        assert isinstance(SMALL[name], entry.settings)
        assert entry.settings(**entry.tiny) != entry.settings(), "the tiny form of a recipe is smaller"


def test_unknown_name_lists_the_known():
    with pytest.raises(TailorError, match=r"'evolutoin'.*Did you mean 'evolution'.*nsga2.*random"):
        searcher("evolutoin")


@names
def test_same_seed_same_trials(name):
    first = run_search(build(name, 3), PROBLEM.evaluate)
    np.random.seed(1)  # noqa: NPY002 - the global generator must not matter
    assert run_search(build(name, 3), PROBLEM.evaluate) == first
    assert run_search(build(name, 4), PROBLEM.evaluate) != first


@names
def test_leaves_global_randomness_alone(name):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    run_search(build(name), PROBLEM.evaluate)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


@names
def test_restored_after_any_tell_continues_identically(name):
    whole = build(name)
    states = [json.dumps(whole.state())]
    trials = run_search(whole, PROBLEM.evaluate, lambda _g, _t: states.append(json.dumps(whole.state())))
    assert len(states) == 7  # before the first and after each of six generations
    for generation, state in enumerate(states):
        resumed = build(name)
        resumed.restore(json.loads(state))
        assert resumed.generation == generation
        assert run_search(resumed, PROBLEM.evaluate) == trials
        assert resumed.state() == whole.state()


@names
def test_asking_again_and_telling_in_another_order_change_nothing(name):
    trials = run_search(build(name), PROBLEM.evaluate)
    other = build(name)
    while candidates := other.ask():
        assert other.ask() == candidates
        other.tell(PROBLEM.evaluate(candidates, other.generation)[::-1])
    assert list(other.trials) == trials


@names
def test_nothing_asked_twice_or_outside_space_and_limits(name):
    approved = set()

    def watched(arch: Arch) -> bool:
        ok = legal(arch)
        approved.update([arch] if ok else [])
        return ok

    def evaluate(candidates, generation):
        for c in candidates:
            assert SPACE.contains(c.arch)
            assert c.arch in approved, "evaluated before the limits were asked"
            assert c.source in ("random", "cross", "mutate")
            assert (c.source == "random") == (c.parents == ())
        return PROBLEM.evaluate(candidates, generation)

    trials = run_search(build(name, allowed=watched), evaluate)
    assert len(trials) == 96
    assert len({t.arch for t in trials}) == len(trials)
    told = {t.arch for t in trials}
    assert all(p in told for t in trials for p in t.parents)
    assert [t.generation for t in trials] == sorted(t.generation for t in trials)


@names
def test_infeasible_limits_are_a_clear_error(name):
    asked = 0

    def never(arch: Arch) -> bool:
        nonlocal asked
        asked += 1
        return False

    with pytest.raises(InfeasibleError, match="keeps the limits"):
        build(name, allowed=never, settings=TINY[name]).ask()
    assert 4 < asked <= 1000 * 4 + 2


@names
def test_a_single_legal_member_is_found_and_ends_the_search(name):
    only = SPACE.smallest()
    trials = run_search(build(name, allowed=lambda a: a == only, settings=TINY[name]), PROBLEM.evaluate)
    assert [t.arch for t in trials] == [only]


@names
def test_small_space_is_exhausted_and_ends(name):
    space = tiny_space()
    problem = Synthetic(space, {"depth": 2})
    trials = run_search(build(name, space=space, allowed=lambda a: True), problem.evaluate)
    assert len(trials) == space.count() == 6


@names
def test_tell_refuses_other_trials(name):
    one = build(name)
    trials = PROBLEM.evaluate(one.ask(), 0)
    for wrong in (trials[1:], [*trials[1:], trials[1]], [*trials, trials[0]], []):
        with pytest.raises(ValueError, match="one trial for each of the 16"):
            one.tell(wrong)
    one.tell(trials)
    assert one.generation == 1


@names
def test_state_of_another_space_is_refused(name):
    one = build(name)
    one.tell(PROBLEM.evaluate(one.ask(), 0))
    other = build(name, space=SPACE.shift({"embed": 4}), allowed=lambda a: True)
    with pytest.raises(TailorError, match="dimension 'embed'"):
        other.restore(one.state())


@pytest.mark.parametrize("name", sorted(set(SEARCHERS) - {"random"}))
def test_beats_random_search_at_equal_budget(name):
    def score(method: str, seed: int) -> float:
        trials = run_search(build(method, seed, settings=LARGER[method]), PROBLEM.evaluate)
        assert len(trials) == 250
        if SEARCHERS[name].finds == "front":
            return hypervolume([(100 - t.accuracy, t.params / LIMIT) for t in trials], (60, 1))
        return best_trial(trials).accuracy

    ours, random = ([score(method, seed) for seed in range(6)] for method in (name, "random"))
    assert np.mean(ours) > np.mean(random)
    assert sum(a > b for a, b in zip(ours, random)) >= 4
