"""Slopes from pairs that differ in one dimension."""

from __future__ import annotations

import numpy as np
import pytest

from tailorvit.families import named_space
from tailorvit.rng import generator
from tailorvit.seek.slopes import draw_pair, estimate
from tailorvit.space import Dim

SPACE = named_space("vit-32px")
DIMS = pytest.mark.parametrize("key", SPACE.keys)


def mean(arch, key) -> float:
    gene = arch[key]
    return float(np.mean(gene))


def shared(pair, key) -> None:
    """Both sides agree everywhere but in the dimension itself; common layers are the same."""
    a, b = pair.first, pair.second
    common = min(len(a.many("heads")), len(b.many("heads")))
    for dim in SPACE.dims:
        if dim.key == key:
            continue
        if dim.scope == "block":
            assert a.many(dim.key)[:common] == b.many(dim.key)[:common]
        else:
            assert a.one(dim.key) == b.one(dim.key)


@DIMS
def test_pairs_differ_in_one_dimension_only(key):
    dim, seen = SPACE[key], set()
    for j in range(60):
        pair = draw_pair(SPACE, dim, generator(1, j))
        assert SPACE.contains(pair.first) and SPACE.contains(pair.second)
        assert pair.u != pair.v and {pair.u, pair.v} <= set(dim.choices)
        seen.add((pair.u, pair.v))
        shared(pair, key)
        if dim.scope == "block":
            depth = pair.first.one("depth")
            assert pair.first.many(key) == (pair.u,) * depth and pair.second.many(key) == (pair.v,) * depth
        else:
            assert (pair.first.one(key), pair.second.one(key)) == (pair.u, pair.v)
    assert seen == {(u, v) for u in dim.choices for v in dim.choices if u != v}, "every ordered pair occurs"


def test_extra_layers_of_the_deeper_side_vary():
    dim = SPACE["depth"]
    extras = set()
    for j in range(40):
        pair = draw_pair(SPACE, dim, generator(2, j))
        deep = max(pair.first, pair.second, key=lambda a: a.one("depth"))
        extras.add(deep.many("heads")[-1])
    assert len(extras) == len(SPACE["heads"].choices)


RATES = {"depth": 0.3, "mlp": -1.25, "heads": 0.5, "embed": 0.02}


def linear(archs):
    return [40 + sum(r * mean(a, k) for k, r in RATES.items() if k != "depth") for a in archs]


def test_slopes_of_a_linear_function_are_exact():
    """Per-block values enter by their mean."""
    for slope in estimate(SPACE, linear, 12, 0, 0):
        if slope.dim == "depth":
            continue  # extra layers change the means: not linear in depth
        assert slope.z == pytest.approx(RATES[slope.dim], rel=1e-9) and slope.se == pytest.approx(0, abs=1e-9)
        assert slope.z_step == pytest.approx(RATES[slope.dim] * float(SPACE[slope.dim].shift))
        assert len(slope.pairs) == 12
    depth_only = estimate(SPACE, lambda archs: [2.5 * a.one("depth") for a in archs], 12, 0, 0)
    assert [s.z for s in depth_only] == pytest.approx([2.5, 0, 0, 0]) and max(s.se for s in depth_only) < 1e-9


def test_mean_and_error_by_hand():
    noise = {}

    def noisy(archs):
        return [noise.setdefault(a, 50 + float(generator(0, a.to_json()).normal())) for a in archs]

    slopes = estimate(SPACE, noisy, 9, 3, 1)
    for slope in slopes:
        each = [(b - a) / (v - u) for u, v, a, b in slope.pairs]
        assert slope.z == pytest.approx(np.mean(each))
        assert slope.se == pytest.approx(np.std(each, ddof=1) / 3) and slope.se > 0
    data = slopes[0].to_dict()
    assert data["n"] == 9 and {"dim", "z", "se", "z_step", "se_step", "pairs", "shift"} <= set(data)


def test_one_evaluation_call_and_2nN_architectures():
    asked = []
    estimate(SPACE, lambda archs: asked.append(list(archs)) or [0.0] * len(archs), 40, 0, 0)
    assert len(asked) == 1 and len(asked[0]) == 2 * 4 * 40


def test_a_dimension_with_one_choice_has_no_slope():
    space = SPACE.pin("embed", 96)
    asked = []
    slopes = estimate(space, lambda archs: asked.extend(archs) or [1.0] * len(archs), 5, 0, 0)
    assert [s.dim for s in slopes] == list(space.keys)
    assert (slopes[3].z, slopes[3].se, slopes[3].pairs) == (0, 0, ()) and len(asked) == 30
    single = space.pin("depth", 6).pin("heads", 2).pin("mlp", 3)
    assert [s.z for s in estimate(single, lambda archs: [], 5, 0, 0)] == [0, 0, 0, 0]


def test_pairs_belong_to_seed_step_and_number():
    def pairs(*place, n=6):
        asked = []
        estimate(SPACE, lambda archs: asked.extend(archs) or [0.0] * len(archs), n, *place)
        return asked

    assert pairs(0, 0) == pairs(0, 0)
    assert pairs(0, 0) != pairs(1, 0) and pairs(0, 0) != pairs(0, 1)
    few, many = pairs(0, 0, n=6), pairs(0, 0, n=9)
    for k in range(4):
        assert many[18 * k : 18 * k + 12] == few[12 * k : 12 * k + 12], "fewer pairs are a prefix of more"


def test_rounds_stop_early_with_a_prefix_of_the_same_pairs():
    calls = []

    def enough(slopes):
        calls.append([len(s.pairs) for s in slopes])
        return len(calls) == 2

    full = estimate(SPACE, linear, 40, 0, 0)
    early = estimate(SPACE, linear, 40, 0, 0, enough=enough)
    assert calls == [[10] * 4, [20] * 4]
    for a, b in zip(early, full):
        assert a.pairs == b.pairs[:20]
    never = estimate(SPACE, linear, 35, 0, 0, enough=lambda s: False)
    assert [len(s.pairs) for s in never] == [35] * 4


def test_range_of_one_pair_is_not_called_exact():
    assert estimate(SPACE, linear, 1, 0, 0)[1].se == float("inf")


def test_dim_is_what_the_space_says():
    assert draw_pair(SPACE, Dim("embed", (96, 128)), generator(0)).u in (96, 128)
