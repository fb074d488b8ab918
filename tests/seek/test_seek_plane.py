"""Slopes of all dimensions at once: opposites, the plane through them, and what that is worth against pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tailorvit.costs import Limits, Meter
from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.rng import generator
from tailorvit.seek.plane import draw_opposites, estimate_plane, value_of
from tailorvit.seek.s4 import S4Settings, seek
from tailorvit.seek.slopes import estimate

SPACE = named_space("vit-32px")
TRUE = {"depth": 0.7, "mlp": -1.5, "heads": 0.4, "embed": 0.03}


def height(arch):
    """A plane over the members; blocks count with their mean."""
    return 50 + sum(z * float(np.mean(arch[k])) for k, z in TRUE.items())


def test_opposites_have_alike_blocks_and_mirrored_choices():
    for j in range(40):
        both = draw_opposites(SPACE, SPACE.dims, generator(3, j))
        for dim in SPACE.dims:
            places = [dim.choices.index(value_of(arch, dim)) for arch in both]
            assert sum(places) == len(dim.choices) - 1 and places[0] != places[1]
            if dim.scope == "block":
                assert all(len(set(arch.many(dim.key))) == 1 for arch in both)
        assert all(SPACE.problem(arch) is None for arch in both)


def test_a_plane_is_found_exactly_and_nothing_is_left():
    for slope in estimate_plane(SPACE, lambda archs: [height(a) for a in archs], 2, 0, 0):
        assert slope.z == pytest.approx(TRUE[slope.dim]) and slope.se < 1e-9
        assert len(slope.pairs) == 2 * len(SPACE.dims)


def test_at_equal_cost_errors_are_half_those_of_pairs_and_are_what_they_say():
    def judge(seed):
        rng = np.random.default_rng(seed)
        return lambda archs: [height(a) + rng.normal(0, 1.0) for a in archs]

    off = {"pairs": [], "plane": []}
    said = []
    for seed in range(60):
        asked = {"pairs": [], "plane": []}
        for name, how in (("pairs", estimate), ("plane", estimate_plane)):

            def count(archs, name=name, seed=seed, asked=asked):
                asked[name].append(len(archs))
                return judge(seed)(archs)

            found = how(SPACE, count, 3, seed, 0)
            off[name].append([(s.z - TRUE[s.dim]) * float(s.shift) for s in found])
            if name == "plane":
                said.append([s.se * float(s.shift) for s in found])
        assert asked["pairs"] == asked["plane"] == [2 * 3 * len(SPACE.dims)]
    errors = {k: np.sqrt(np.mean(np.square(v), axis=0)) for k, v in off.items()}
    assert np.all(errors["plane"] < 0.6 * errors["pairs"])
    assert np.sqrt(np.mean(np.square(said), axis=0)) == pytest.approx(errors["plane"], rel=0.3)


def test_members_come_from_seed_step_and_place_so_fewer_are_a_prefix():
    lists = []
    for pairs in (2, 4):
        estimate_plane(SPACE, lambda archs: lists.append(list(archs)) or [0.0] * len(archs), pairs, 7, 1)
    assert lists[1][: len(lists[0])] == lists[0]
    rounds = []
    estimate_plane(SPACE, lambda archs: rounds.append(len(archs)) or [0.0] * len(archs), 25, 7, 1, lambda s: False)
    assert rounds == [80, 160, 200]  # ten pairs a dimension a round, all asked for again


def test_dimensions_that_do_not_move_have_no_slope_and_too_few_members_no_error():
    found = {s.dim: s for s in estimate_plane(SPACE, lambda a: [height(x) for x in a], 1, 0, 0, keys=("mlp", "depth"))}
    assert found["heads"].z == found["embed"].z == 0 and found["heads"].pairs == ()
    assert math.isinf(found["mlp"].se)
    assert [s.z for s in estimate_plane(SPACE, lambda archs: [], 5, 0, 0, keys=())] == [0.0] * len(SPACE.dims)


def test_beyond_size_a_plane_of_size_alone_has_no_slopes():
    meter = Meter.for_space(SPACE)
    size = lambda arch: meter.cost("params", arch)  # noqa: E731
    grows = lambda archs: [5 * math.log(size(a)) for a in archs]  # noqa: E731
    for slope in estimate_plane(SPACE, grows, 6, 0, 0, size=size):
        assert abs(slope.z_step) < 1e-6 and slope.per_log_size == pytest.approx(5)


def test_s4_moves_by_a_plane():
    meter = Meter.for_space(SPACE, Limits.of(max_params=10**9))
    settings = S4Settings(iterations=2, pairs=2, design="plane")
    last, steps, decisions = seek(SPACE, meter, lambda *_: lambda archs: [height(a) for a in archs], settings, 0)
    assert steps == 2 and all(d.gamma["mlp"] == -1 and d.gamma["depth"] == 1 for d in decisions)
    assert last["mlp"].choices[0] < SPACE["mlp"].choices[0]


def test_one_block_at_a_time_is_no_plane():
    with pytest.raises(TailorError, match="blocks must be 'all'"):
        S4Settings(design="plane", blocks="one")
