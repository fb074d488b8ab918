from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import pytest

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.search import Trial, best_trial, run_search

A = Arch("vit", depth=1, embed=8, heads=(1,), mlp=(2,))
B = A.replace(embed=16)


def test_trial_round_trip_is_exact():
    trial = Trial(A, 100 / 3, 10, 20, "cross", 4, (B, A), {"latency": 0.1})
    assert Trial.from_dict(json.loads(json.dumps(trial.to_dict()))) == trial
    assert hash(trial) == hash(replace(trial))
    with pytest.raises(FrozenInstanceError):
        trial.accuracy = 1.0


def test_cost_by_name():
    trial = Trial(A, 50, 10, 20, costs={"latency": 0.5})
    assert [trial.cost(n) for n in ("params", "macs", "latency")] == [10, 20, 0.5]
    with pytest.raises(TailorError, match="'memory'; they hold params, macs, latency"):
        trial.cost("memory")


def test_best_trial_breaks_ties_by_params_then_macs_then_text():
    base = Trial(B, 50, 10, 10)
    assert best_trial([base, replace(base, accuracy=51, params=99)]).accuracy == 51
    assert best_trial([base, replace(base, params=9, macs=99)]).params == 9
    assert best_trial([base, replace(base, macs=9)]).macs == 9
    assert B.to_json() < A.to_json()  # "16" before "8"
    assert best_trial([replace(base, arch=A), base]).arch == B
    with pytest.raises(ValueError):
        best_trial([])
    lost = replace(base, accuracy=float("nan"), params=1)
    assert best_trial([lost, base]) == best_trial([base, lost]) == base


class Countdown:
    """A searcher of three generations."""

    def __init__(self):
        self.trials, self.generation = (), 0

    def ask(self):
        return [] if self.generation == 3 else [A]

    def tell(self, trials):
        self.trials, self.generation = (*self.trials, *trials), self.generation + 1


def test_loop_asks_evaluates_and_tells():
    trials = run_search(Countdown(), lambda asked, g: [(asked, g)])
    assert trials == [([A], 0), ([A], 1), ([A], 2)]
