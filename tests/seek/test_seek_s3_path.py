"""S3's path on functions with a known optimum: trunc settles, floor drifts, limits send it back."""

from __future__ import annotations

import numpy as np
import pytest

from tailorvit.costs import Limits, Meter
from tailorvit.errors import InfeasibleError
from tailorvit.families import named_space
from tailorvit.seek.s3 import Journal, S3Settings, count_within, last_feasible, shift_space
from tailorvit.space import Dim, Space
from tailorvit.testing.synthetic import Synthetic

SMALL = named_space("vit-32px")
FREE = Meter.for_space(SMALL)

OPTIMUM = {"depth": 9, "mlp": 2.5, "heads": 5, "embed": 80}


def problem(noise=0.0, seed=0, optimum=OPTIMUM, strength=0.2):
    # With tau 0.4 the shift is 2 x strength / 0.4 of the distance: 0.2 leads straight there, more would overshoot.
    return Synthetic(SMALL, optimum, dict.fromkeys(optimum, strength), noise=noise, seed=seed)


def evaluate(task):
    return lambda space, t: lambda archs: [task.accuracy(a) for a in archs]


def middle(space, key):
    return float(np.mean(space[key].choices))


class Trail(Journal):
    def __init__(self):
        self.spaces, self.decisions = [], []

    def space_reached(self, t, space):
        self.spaces.append((t, space))

    def decided(self, decision):
        self.decisions.append(decision)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_trunc_settles_at_the_optimum(noise):
    settings = S3Settings(updates=12, samples=60, top=20)
    trail = Trail()
    found = shift_space(SMALL, FREE, evaluate(problem(noise)), settings, 0, trail)
    assert found.decisions[-1].reason == "settled", "and stays"
    for key, best in OPTIMUM.items():
        assert abs(middle(found.space, key) - best) <= 0.5 * float(SMALL[key].shift), key
    assert [s for _, s in trail.spaces] == list(found.spaces) and trail.decisions == list(found.decisions)
    assert [t for t, _ in trail.spaces] == list(range(len(found.spaces))) and found.backtracks == 0


def test_floor_drifts_upward_where_nothing_matters():
    flat = Synthetic(SMALL, {}, noise=1.0)
    sizes = {}
    for how in ("trunc", "floor"):
        found = shift_space(SMALL, FREE, evaluate(flat), S3Settings(updates=4, samples=60, quantise=how), 0)
        ups = [k for d in found.decisions for k in d.gamma.values()]
        sizes[how] = sum(ups)
        assert min(ups) >= 0, how
    assert sizes["trunc"] == 0 and sizes["floor"] >= 4, "half a step per dimension and update, all of them up"


def test_updates_bound_the_moves_and_zero_leaves_the_space():
    asked = []

    def evaluator(space, t):
        asked.append(t)
        return evaluate(problem(optimum={"depth": 90}))(space, t)

    for n in (0, 1, 2):
        found = shift_space(SMALL, FREE, evaluator, S3Settings(updates=n, samples=4, max_shift=1), 0)
        assert found.t == n == len(found.decisions) and len(found.spaces) == n + 1
    assert asked == [0, 0, 1]


def test_same_seed_same_path():
    paths = [
        [d.to_dict() | {"rows": [f.to_dict() for f in d.slopes]} for d in shift_space(*args).decisions]
        for args in [(SMALL, FREE, evaluate(problem(1.0)), S3Settings(samples=8, top=4), s) for s in (0, 0, 1)]
    ]
    assert paths[0] == paths[1] != paths[2]


def test_few_samples_are_warned_of_once():
    def warnings(**changes):
        found = shift_space(SMALL, FREE, evaluate(problem()), S3Settings(updates=2, max_shift=1, **changes), 0)
        return [w for d in found.decisions for w in d.warnings if "Q_t equals Q_e" in w]

    assert warnings(samples=50) == ["s3.samples 50 is not above s3.top 50, so Q_t equals Q_e."]
    assert not warnings(samples=51)


def test_a_dimension_with_few_architectures_is_warned_of():
    dims = (Dim("depth", (1, 2)), Dim("embed", (16, 24)), Dim("heads", (1,), "block"), Dim("mlp", (2, 3), "block"))
    space = Space("vit", dims, SMALL.settings)
    settings = S3Settings(updates=1, samples=9, top=8)
    (decision,) = shift_space(space, Meter.for_space(space), evaluate(problem(optimum={})), settings, 0).decisions
    assert "Step 0: no choice of depth, embed, mlp has over 8 architectures, so its Q_t equals Q_e." in str(
        decision.warnings
    )


# -- going back -------------------------------------------------------------------------------------------------------

UP = S3Settings(updates=3, samples=4, max_shift=1)
GROW = {"depth": 90, "mlp": 90, "heads": 90, "embed": 9000}
STEPS = [SMALL.shift(dict.fromkeys(SMALL.keys, k)) for k in range(4)]
LEAST = [FREE.cost("params", s.smallest()) for s in STEPS]


def grow(limit, **given):
    trail, meter = Trail(), Meter.for_space(SMALL, Limits.of(max_params=limit))
    settings = S3Settings(**{**vars(UP), **given})
    return shift_space(SMALL, meter, evaluate(problem(optimum=GROW)), settings, 0, trail), trail


@pytest.mark.parametrize("back", [0, 1, 2, 3])
def test_backtracks_are_counted(back):
    found, trail = grow(LEAST[3 - back])
    assert list(found.spaces) == STEPS and found.backtracks == back and found.space == STEPS[3 - back]
    if back:
        last = found.decisions[-1]
        assert last.kind == "backtrack" and last.backtracks == back and last.t == 3 and last.to_dict()["stop"] is False
        assert f"went back {back} update" in last.sentence and f"the space of step {3 - back}" in last.sentence
        assert trail.spaces[-1] == (3 - back, STEPS[3 - back]) and len(trail.spaces) == 5
    else:
        assert [d.kind for d in found.decisions] == ["move"] * 3 and len(trail.spaces) == 4


def test_a_limit_no_space_keeps():
    with pytest.raises(InfeasibleError, match="None of the 4 spaces S3 passed holds"):
        grow(LEAST[0] - 1)


def test_enough_members_are_needed_where_some_space_has_them():
    meter = Meter.for_space(SMALL, Limits.of(max_params=LEAST[1]))
    assert [count_within(s, meter, 10) for s in STEPS] == [10, 1, 0, 0]
    assert last_feasible(STEPS, meter, 1) == 1 and last_feasible(STEPS, meter, 10) == 0
    assert last_feasible(STEPS[1:], meter, 10) == 0, "if none has, the one with most"
    low = Meter.for_space(SMALL, Limits.of(min_params=FREE.cost("params", STEPS[0].largest()) + 1))
    assert count_within(STEPS[0], low, 5) == 0 and count_within(STEPS[1], low, 5) >= 1
    assert count_within(STEPS[0], FREE, 5) == 5


@pytest.mark.parametrize(("slow", "members"), [(0.0, 10), (9.0, 1)])
def test_measured_limits_are_looked_for_with_few_questions(slow, members):
    asked = []

    class Clock(Meter):
        def cost(self, metric, arch):
            asked.append(arch)
            return 0.5 if arch == SMALL.smallest() else slow

    assert count_within(SMALL, Clock.for_space(SMALL, Limits.of(max_latency="1s")), 10) == members
    assert len(asked) <= 2 * 10 + 4, "the corners, and two for every member wanted"
