"""Slopes from a survey: where its members lie, what its surface says, and when it asks again."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tailorvit.config import configure
from tailorvit.costs import Limits, Meter
from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.methods.feasibility import require_feasible
from tailorvit.rng import generator
from tailorvit.seek.s4 import S4Settings, move_space
from tailorvit.seek.slopes import estimate
from tailorvit.seek.survey import (
    Survey,
    doublings,
    draw_candidates,
    most_informative,
    surface_slopes,
    value_of,
    widened,
)
from tailorvit.space import Dim, Space

SPACE = named_space("vit-32px")
TOP = Meter.for_space(SPACE).cost("params", SPACE.largest())
METER = Meter.for_space(SPACE, Limits.of(max_params=TOP))
REGION = widened(SPACE, 3, SPACE.keys)
GAINS = {"depth": 0.8, "mlp": 1.8, "heads": -0.2, "embed": 3.9}  # points a doubling


def height(arch):
    """Straight in the logarithms; blocks count with their mean."""
    return 40 + sum(g * math.log2(float(np.mean(arch[k]))) for k, g in GAINS.items())


def exact(archs):
    return [height(a) for a in archs]


def test_a_wider_space_goes_as_far_as_asked_and_its_bounds_allow():
    dims = (Dim.span("depth", 3, 5, 1), Dim.span("embed", 16, 32, 8, minimum=16), Dim.span("more", 4, 6, 1, maximum=7))
    space = Space("vit", dims)
    found = widened(space, 4, ("depth", "embed", "more"))
    assert found["depth"].choices == (1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert found["embed"].choices == (16, 24, 32, 40, 48, 56, 64)
    assert found["more"].choices == (1, 2, 3, 4, 5, 6, 7)
    assert widened(space, 4, ("depth",))["embed"].choices == space["embed"].choices


def test_members_lie_beyond_the_space_near_the_limit_with_alike_blocks():
    drawn = draw_candidates(SPACE, SPACE.dims, REGION, METER, "params", 400, generator(0, "x"))
    assert len(set(drawn)) == len(drawn) > 40
    assert all(TOP / 1.3 <= METER.cost("params", a) <= TOP * 1.3 for a in drawn)
    assert sum(not SPACE.contains(a) for a in drawn) > len(drawn) / 2
    for dim in SPACE.dims:
        values = {value_of(a, dim) for a in drawn}
        assert (min(values) < dim.low or max(values) > dim.high) and max(values) / min(values) > 1.5
        assert dim.scope != "block" or all(len(set(a.many(dim.key))) == 1 for a in drawn)


def test_blocks_are_alike_in_dimensions_that_are_not_asked_about_too():
    asked = [d for d in SPACE.dims if d.scope != "block"]
    held = [d for d in SPACE.dims if d.scope == "block"]
    drawn = draw_candidates(
        SPACE, asked, widened(SPACE, 3, [d.key for d in asked]), METER, "params", 200, generator(4, "x")
    )
    assert len({a.one("depth") for a in drawn}) > 3 and len(held) > 1
    middle = SPACE.middle()
    for dim in held:
        assert {v for a in drawn for v in a.many(dim.key)} == {middle.many(dim.key)[0]}


def test_what_would_have_to_be_measured_is_not_asked_for_its_size(monkeypatch):
    slow = Meter.for_space(SPACE, Limits.of(max_latency="5ms"))
    monkeypatch.setattr(Meter, "cost", lambda *_: pytest.fail("measured"))
    assert len(draw_candidates(SPACE, SPACE.dims, REGION, slow, "latency", 50, generator(0, "x"))) > 20


def test_members_chosen_tell_more_than_as_many_at_random():
    drawn = draw_candidates(SPACE, SPACE.dims, REGION, METER, "params", 2000, generator(1, "x"))

    def unsure(some):
        rows = np.array([doublings(a, SPACE.dims) for a in some])
        return np.trace(np.linalg.inv(rows.T @ rows))

    chosen = most_informative(drawn, SPACE.dims, 16)
    assert len(set(chosen)) == 16 and chosen == most_informative(drawn, SPACE.dims, 16)
    rng = np.random.default_rng(0)
    assert unsure(chosen) < 0.7 * np.median(
        [unsure([drawn[i] for i in rng.choice(len(drawn), 16, replace=False)]) for _ in range(50)]
    )


def test_the_surface_is_found_exactly_and_read_where_the_space_is():
    drawn = most_informative(
        draw_candidates(SPACE, SPACE.dims, REGION, METER, "params", 500, generator(2, "x")), SPACE.dims, 12
    )
    known = [(a, height(a)) for a in drawn]
    for space in (SPACE, SPACE.shift({"embed": 1, "depth": 1})):
        for slope in surface_slopes(space, space.dims, known):
            middle = (space[slope.dim].low + space[slope.dim].high) / 2
            assert slope.z == pytest.approx(GAINS[slope.dim] / (math.log(2) * middle)) and slope.se < 1e-6
    only = surface_slopes(SPACE, [SPACE["embed"]], [(a, 3.9 * math.log2(a.one("embed"))) for a in drawn])
    assert [s.z != 0 for s in only] == [d.key == "embed" for d in SPACE.dims]


def test_errors_are_what_they_say_and_smaller_than_those_of_pairs_within_the_space():
    drawn = most_informative(
        draw_candidates(SPACE, SPACE.dims, REGION, METER, "params", 800, generator(3, "x")), SPACE.dims, 24
    )
    true = surface_slopes(SPACE, SPACE.dims, [(a, height(a)) for a in drawn])
    off, said, pairs = [], [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        noisy = lambda archs, rng=rng: [height(a) + rng.normal(0, 0.8) for a in archs]  # noqa: E731
        found = surface_slopes(SPACE, SPACE.dims, list(zip(drawn, noisy(drawn))))
        off.append([(s.z - t.z) * float(s.shift) for s, t in zip(found, true)])
        said.append([s.se * float(s.shift) for s in found])
        pairs.append([s.se * float(s.shift) for s in estimate(SPACE, noisy, 3, seed, 0)])  # 24 members too
    real = np.std(off, axis=0)
    assert real == pytest.approx(np.mean(said, axis=0), rel=0.3)
    assert (np.mean(pairs, axis=0) > 1.5 * real).all()


def test_members_are_asked_once_and_again_where_the_space_has_left_them():
    asked = []

    def judge(_space, t):
        return lambda archs: (asked.append((t, len(archs))), exact(archs))[1]

    settings = S4Settings(survey=12, reach=2, iterations=3)
    move_space(SPACE, METER, judge, settings, 0)
    assert asked == [(0, 12)]
    survey = Survey(METER, "params", 12, 2, 0)
    survey.slopes(SPACE, 0, lambda archs: judge(SPACE, 0)(archs), SPACE.keys)
    far = SPACE.shift({"embed": 6})
    survey.slopes(far, 5, judge(far, 5), SPACE.keys)
    assert asked[-1] == (5, 12) and len(survey.surveyed) == 24
    survey.slopes(far, 6, judge(far, 6), SPACE.keys)
    assert asked[-1] == (5, 12)


def test_by_a_survey_s4_climbs_under_noise_where_a_bias_leads_pairs_astray():
    """A supernet that overrates heads against own trainings of 0.8 points of noise, as measured on CIFAR-10."""
    settings = {"iterations": 6, "pairs": 6, "sized_by": "middle"}

    def biased(archs):
        return [height(a) + 2.5 * math.log2(float(np.mean(a["heads"]))) for a in archs]

    ends = {"bias": [], "survey": []}
    for seed in range(5):
        rng = np.random.default_rng(seed)
        noisy = lambda archs, rng=rng: [height(a) + rng.normal(0, 0.8) for a in archs]  # noqa: E731
        space, _, _ = move_space(SPACE, METER, lambda _s, _t: biased, S4Settings(**settings), seed)
        ends["bias"].append(space["heads"].high)
        how = S4Settings(survey=24, **settings)
        space, _, _ = move_space(SPACE, METER, lambda _s, _t, noisy=noisy: noisy, how, seed)
        ends["survey"].append(space["heads"].high)
    start = SPACE["heads"].high
    assert np.mean(ends["survey"]) < start < np.mean(ends["bias"])


def test_what_cannot_be_surveyed_is_said_before_anything_is_trained():
    with pytest.raises(TailorError, match=r"s4\.reach must lie between 1 and 100, not 0"):
        S4Settings(reach=0)
    config = configure({"method": "s4", "s4": {"survey": 24}})
    with pytest.raises(TailorError, match=r"seek\.evaluator must be 'training', not 'supernet'"):
        require_feasible(config, SPACE, METER)
    enough, few = (configure({"method": "s4", "s4": {"survey": n}, "seek": {"evaluator": "training"}}) for n in (6, 5))
    require_feasible(enough, SPACE, METER)
    with pytest.raises(TailorError, match=r"s4\.survey = 5 architectures are too few .* 4 dimensions; 6 is the least"):
        require_feasible(few, SPACE, METER)
    narrow = [replace(d, choices=(d.low,), minimum=d.low, maximum=d.low) for d in SPACE.dims]
    narrow[0] = replace(narrow[0], maximum=narrow[0].low + 1)
    space = replace(SPACE, dims=tuple(narrow))
    with pytest.raises(TailorError, match=r"4 dimensions needs 6 different architectures, .* s4\.reach = 2 .* are 2"):
        Survey(Meter.for_space(space), "params", 12, 2, 0).slopes(space, 0, exact, space.keys)
