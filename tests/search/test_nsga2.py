from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.search import run_search
from tailorvit.search.nsga2 import Nsga2, Nsga2Settings
from tailorvit.search.pareto import non_dominated
from tailorvit.testing.synthetic import Synthetic

SPACE = named_space("vit-8px")
PROBLEM = Synthetic(SPACE, {"embed": 56, "heads": 4, "depth": 5, "mlp": 3}, {"embed": 3})
SETTINGS = Nsga2Settings(population=20, generations=8)


def anything(arch):
    return True


def front(trials, cost):
    points = [(-t.accuracy, t.cost(cost)) for t in trials]
    return [p for p, kept in zip(points, non_dominated(points), strict=True) if kept]


@pytest.mark.parametrize("cost", ["params", "macs"])
def test_front_spreads_from_small_to_accurate(cost):
    trials = run_search(Nsga2(SPACE, anything, 0, replace(SETTINGS, cost=cost)), PROBLEM.evaluate)
    assert len(trials) == 20 * 9
    ends = front(trials, cost)
    first = front([t for t in trials if t.generation == 0], cost)
    assert len(ends) > len(first)
    assert min(p[1] for p in ends) < min(p[1] for p in first)
    assert min(p[0] for p in ends) < min(p[0] for p in first)
    assert {t.source for t in trials} >= {"random", "cross", "mutate"}


def test_further_costs_come_from_the_trials():
    def timed(candidates, generation):
        return [replace(t, costs={"latency": 1e-6 * t.macs**0.5}) for t in PROBLEM.evaluate(candidates, generation)]

    search = Nsga2(SPACE, anything, 0, replace(SETTINGS, cost="latency"))
    by_macs = run_search(Nsga2(SPACE, anything, 0, replace(SETTINGS, cost="macs")), PROBLEM.evaluate)
    assert [t.arch for t in run_search(search, timed)][:20] == [t.arch for t in by_macs][:20]
    assert len(search.trials) == 180
    unknown = Nsga2(SPACE, anything, 0, replace(SETTINGS, cost="watts"))
    with pytest.raises(TailorError, match="no cost 'watts'; they hold params, macs"):
        run_search(unknown, PROBLEM.evaluate)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"population": 1}, "'population' must be at least 2"), ({"generations": -1}, "'generations' must be at least 0")],
)
def test_bad_settings_are_named(change, words):
    with pytest.raises(TailorError, match=words):
        Nsga2Settings(**change)


def test_missing_pymoo_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymoo.algorithms.moo.nsga2", None)
    with pytest.raises(TailorError, match=r"pip install tailorvit\[front\]"):
        Nsga2(SPACE, anything, 0)
