"""S4 on a function with a known optimum: it climbs towards it, stays legal, and beats a search of the first space."""

from __future__ import annotations

import numpy as np
import pytest

from tailorvit.costs import Limits, Meter
from tailorvit.families import named_space
from tailorvit.search import SEARCHERS, best_trial, run_search
from tailorvit.search.evolution import EvolutionSettings
from tailorvit.search.random_search import RandomSettings
from tailorvit.seek.s4 import Journal, S4Settings, move_space
from tailorvit.testing.synthetic import Synthetic

SMALL = named_space("vit-32px")
OPTIMUM = {"depth": 9, "mlp": 2.5, "heads": 5, "embed": 80}


class Trail(Journal):
    """The spaces passed through."""

    def __init__(self):
        self.spaces = []

    def space_reached(self, t, space, repaired):
        self.spaces.append(space)


def problem(noise=0.0, seed=0, optimum=OPTIMUM):
    return Synthetic(SMALL, optimum, {"mlp": 2, "heads": 2, "depth": 1, "embed": 1}, noise=noise, seed=seed)


def evaluate(task):
    return lambda space, t: lambda archs: [task.accuracy(a) for a in archs]


def middle(space, key):
    return float(np.mean(space[key].choices))


def distance(space, optimum=OPTIMUM):
    return sum(abs(middle(space, k) - v) / float(space[k].shift) for k, v in optimum.items())


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("limit", ["1M", "2M"])
def test_seek_climbs_towards_the_optimum_and_stays_legal(noise, limit):
    meter = Meter.for_space(SMALL, Limits.of(max_params=limit))
    book, settings = Trail(), S4Settings(iterations=6, pairs=20)
    space, t, decisions = move_space(SMALL, meter, evaluate(problem(noise)), settings, 0, book)
    trail = book.spaces
    started = next(i for i, s in enumerate(trail) if meter.below(s.largest()))
    assert all(meter.below(s.largest()) for s in trail[started:])
    away = [distance(s) for s in trail[started:]]
    assert away[-1] < away[0] and space == trail[-1] and t == len(trail) - 1 - started
    if not noise:
        clean = [problem().clean(s.sample(np.random.default_rng(0))) for s in (trail[started], space)]
        assert clean[1] > clean[0]
    assert len(set(trail)) == len(trail), "no space twice"
    for d in decisions:
        assert d.sentence.endswith(".") and (d.kind == "repair" or (len(d.slopes) == 4 and d.legal))
        if d.kind == "move":
            assert d.legal[0]["cosine"] > 0


def test_without_limit_the_optimum_is_reached():
    space, _, decisions = move_space(
        SMALL, Meter.for_space(SMALL), evaluate(problem()), S4Settings(iterations=10, pairs=30), 0
    )
    assert decisions[-1].kind == "stop" or len(decisions) == 10
    assert distance(space) <= 2.5 < distance(SMALL)


def test_iterations_bound_the_moves():
    for n in (0, 1, 2):
        _, t, decisions = move_space(
            SMALL, Meter.for_space(SMALL), evaluate(problem()), S4Settings(iterations=n, pairs=5), 0
        )
        assert t == n == len(decisions)


def test_same_seed_same_path():
    meter = Meter.for_space(SMALL, Limits.of(max_params="1M"))
    paths = [
        [d.to_dict() for d in move_space(SMALL, meter, evaluate(problem(1.0)), S4Settings(pairs=4), seed)[2]]
        for seed in (0, 0, 1)
    ]
    assert paths[0] == paths[1] != paths[2]


def test_adaptive_stops_early_where_the_choice_is_clear():
    meter = Meter.for_space(SMALL, Limits.of(max_params="1M"))

    def run(noise, adaptive):
        task = problem(noise)

        def evaluator(space, t):
            return lambda archs: [
                3 * a.one("depth") - a.one("embed") / 8 + task.accuracy(a) - task.clean(a) for a in archs
            ]

        settings = S4Settings(iterations=1, pairs=40, adaptive=adaptive)
        return move_space(SMALL, meter, evaluator, settings, 0)[2][-1]

    full, quick, hard = run(0.1, False), run(0.1, True), run(50.0, True)
    assert [len(s.pairs) for s in full.slopes] == [40] * 4
    assert [len(s.pairs) for s in quick.slopes] == [10] * 4
    assert quick.gamma == full.gamma
    assert all(q.pairs == f.pairs[:10] for q, f in zip(quick.slopes, full.slopes)), "a prefix of the same pairs"
    assert [len(s.pairs) for s in hard.slopes] == [40] * 4, "noise needs all of them"


def test_s4_and_evolution_beat_random_search_at_equal_evaluations():
    """The optimum lies outside the first space; slopes cost evaluations too."""
    meter = Meter.for_space(SMALL, Limits.of(max_params="1.2M"))
    small = EvolutionSettings(population=10, parents=4, generations=5, crossover=4, mutation=4)
    ours, theirs = [], []
    for seed in range(4):
        task, count = problem(0.3, seed), 0

        def evaluator(space, t, task=task):
            def ask(archs):
                nonlocal count
                count += len(archs)
                return [task.accuracy(a) for a in archs]

            return ask

        space, _, _ = move_space(SMALL, meter, evaluator, S4Settings(iterations=3, pairs=5), seed)
        found = run_search(SEARCHERS["evolution"].factory(space, meter.fits, seed, small), task.evaluate)
        count += len(found)
        drawn = run_search(
            SEARCHERS["random"].factory(SMALL, meter.fits, seed, RandomSettings(budget=count, batch=count)),
            task.evaluate,
        )
        assert len(drawn) == count < 250
        assert all(meter.fits(t.arch) for t in [*found, *drawn])
        ours.append(task.clean(best_trial(found).arch))
        theirs.append(task.clean(best_trial(drawn).arch))
    assert np.mean(ours) > np.mean(theirs) + 1
    assert sum(a > b for a, b in zip(ours, theirs)) >= 3
