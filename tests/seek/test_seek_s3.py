"""S3: E-T errors, lines and shifts against the specification's table; removal rules; the path; going back."""

from __future__ import annotations

import numpy as np
import pytest

from tailorvit.costs import Meter
from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.rng import generator
from tailorvit.seek.s3 import (
    S3Settings,
    decide,
    draw_subspaces,
    fit,
    fit_line,
    fits,
    pinned,
    quality,
    quantise,
    shift_space,
    shifted,
    slope_error,
)
from tailorvit.space import Dim, Space
from tailorvit.testing.synthetic import Synthetic

SMALL = named_space("vit-32px")
FREE = Meter.for_space(SMALL)


def always(_arch):
    return True


def at(dim, errors, **settings):
    """The fit through one E-T error per choice."""
    return fit(dim, {c: np.array([e]) for c, e in zip(dim.choices, errors)}, S3Settings(**settings))


# -- arithmetic -------------------------------------------------------------------------------------------------------


def test_quality_is_the_mean_of_all_and_of_the_best():
    errors = np.array([40.0, 10.0, 30.0, 20.0])
    assert quality(errors, 2) == (25.0, 15.0, 20.0)
    assert quality(errors, 50) == (25.0, 25.0, 25.0), "with N <= 50 Q_t equals Q_e"
    assert errors[0] == 40, "left as it was"


def test_the_line_is_least_squares():
    x, y = np.array([0.0, 1.0, 2.0, 5.0]), np.array([3.0, 1.0, 4.0, 1.5])
    assert fit_line(x, y) == pytest.approx(tuple(np.polyfit(x, y, 1)))
    assert fit_line(np.array([2.0, 2.0]), np.array([1.0, 3.0])) == (0.0, 2.0)


@pytest.mark.parametrize(
    ("quotient", "floor", "trunc"),
    [(0.0, 0, 0), (0.9, 0, 0), (-0.1, -1, 0), (-1.75, -2, -1), (1.125, 1, 1), (-1.0, -1, -1), (0.3 / 0.1, 3, 3)],
)
def test_quantise(quotient, floor, trunc):
    assert (quantise(quotient, "floor"), quantise(quotient, "trunc")) == (floor, trunc)
    assert quantise(-0.3 / 0.1, "floor") == quantise(-0.3 / 0.1, "trunc") == -3, "an edge just missed by rounding"


def test_the_error_of_a_slope_falls_with_the_members_and_with_what_they_share():
    rng = np.random.default_rng(0)
    x = np.array([0.0, 1.0, 2.0])

    def error(n, common):
        base = rng.normal(size=n)
        each = [30 + common * base + (1 - common) * rng.normal(size=n) for _ in x]
        return slope_error(each, x, 50)

    assert error(1600, 0) < 0.5 * error(100, 0)
    assert error(400, 0.95) < 0.3 * error(400, 0), "the same base under every choice"
    flat = [np.full(10, 5.0)] * 3
    assert slope_error(flat, x, 50) == 0


# -- the specification's table ----------------------------------------------------------------------------------------

DEPTH = Dim("depth", (2, 3, 4), "stage", 3)
EMBED = Dim("embed", (224, 256, 288), "stage", 1, shift=64)
MLP = Dim("mlp", (3, 3.5, 4), "block", 1)
WINDOW = Dim("window", (7, 14), "block", 3)
TABLE = [  # dimension, errors, slope an index, floor's k and choices, trunc's k and choices
    (DEPTH, (30.0, 29.2, 28.6), -0.70, -2, (4, 5, 6), -1, (3, 4, 5)),
    (DEPTH, (29.0, 29.3, 29.9), 0.45, 1, (1, 2, 3), 1, (1, 2, 3)),
    (EMBED, (28.9, 29.3, 29.8), 0.45, 1, (160, 192, 224), 1, (160, 192, 224)),
    (EMBED, (31.0, 29.4, 28.2), -1.40, -4, (480, 512, 544), -3, (416, 448, 480)),
    (MLP, (29.0, 29.3, 29.7), 0.35, 0, (3, 3.5, 4), 0, (3, 3.5, 4)),
    (WINDOW, (29.5, 28.8), -0.70, -2, (21, 28), -1, (14, 21)),
    (WINDOW, (28.8, 29.3), 0.50, 1, (7,), 1, (7,)),
]


@pytest.mark.parametrize(("dim", "errors", "w", "floor", "down", "trunc", "cut"), TABLE)
def test_worked_table(dim, errors, w, floor, down, trunc, cut):
    for how, steps, choices in (("floor", floor, down), ("trunc", trunc, cut)):
        found = at(dim, errors, quantise=how)
        assert found.w == pytest.approx(w) and (found.floor, found.trunc) == (floor, trunc)
        assert found.after == choices and found.k == -steps and found.errors == pytest.approx(errors)
    assert found.line == pytest.approx((found.w, found.b))


@pytest.mark.parametrize(("how", "k", "choices"), [("floor", -1, (3, 4, 5)), ("trunc", 0, (2, 3, 4))])
def test_with_fractions_instead_of_percent_every_fall_grows_the_space(how, k, choices):
    found = at(DEPTH, (0.300, 0.292, 0.286), quantise=how)
    assert found.w == pytest.approx(-0.007) and found.after == choices and found.k == -k


# -- rules around a shift ---------------------------------------------------------------------------------------------


def test_choices_at_zero_go_and_nothing_vanishes():
    assert shifted(WINDOW, -1)[0].choices == (7,) and "loses 1 choice" in shifted(WINDOW, -1)[1]
    moved, note = shifted(WINDOW, -2)
    assert moved == WINDOW and "would leave no choice" in note
    assert shifted(WINDOW, 0) == (WINDOW, "")


def test_a_depth_keeps_two_choices():
    depth = Dim("depth", (1, 2, 3))
    assert shifted(depth, -1) == (Dim("depth", (1, 2)), "")
    for k in (-2, -9):
        moved, note = shifted(depth, k)
        assert moved.choices == (1, 2) and f"by -1 instead of moving by {k}" in note
    assert shifted(Dim("depth", (1, 2)), -1)[0].choices == (1, 2)
    assert "depth stays instead of moving by -1" in shifted(Dim("depth", (1, 2)), -1)[1]
    assert shifted(Dim("depth", (5,)), -2)[0].choices == (3,)
    assert shifted(depth, 2)[0].choices == (3, 4, 5)


def test_max_shift():
    falling = (31.0, 29.4, 28.2)
    assert at(EMBED, falling, max_shift=1).k == 1 and at(EMBED, falling, max_shift=2).k == 2
    assert at(EMBED, falling[::-1], max_shift=1).after == (160, 192, 224)


def test_choices_without_members_are_left_out_and_one_alone_moves_nothing():
    some = {224: np.array([30.0]), 256: np.array([]), 288: np.array([28.0])}
    found = fit(EMBED, some, S3Settings())
    assert found.errors == (30.0, None, 28.0) and found.w == pytest.approx(-1), "places stay 0 and 2"
    assert found.counts == (1, 0, 1)
    alone = fit(EMBED, {**some, 288: np.array([])}, S3Settings())
    assert (alone.k, alone.w, alone.line, alone.se) == (0, 0, None, None) and alone.after == EMBED.choices
    assert alone.to_dict()["fit"] is None


# -- members ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", SMALL.keys)
def test_pinned_members_have_the_value_and_share_the_rest(key):
    dim = SMALL[key]
    found = pinned(SMALL, dim, dim.choices, 30, generator(0, key))
    for v, archs in found.items():
        assert len(archs) == len(set(archs)) == 30
        assert all(SMALL.pin(key, v).contains(a) for a in archs)
    others = [k for k in SMALL.keys if k != key and (key != "depth" or SMALL[k].scope != "block")]
    rows = [[tuple(a[k] for k in others) for a in archs] for archs in found.values()]
    assert all(row == rows[0] for row in rows), "one base under every choice"


def test_a_subspace_smaller_than_the_sample_is_taken_whole():
    dims = (Dim("depth", (1, 2)), Dim("embed", (16, 24)), Dim("heads", (1,), "block"), Dim("mlp", (2, 3), "block"))
    space = Space("vit", dims, SMALL.settings)
    found = pinned(space, space["depth"], (1, 2), 100, generator(0))
    assert {v: len(archs) for v, archs in found.items()} == {1: 4, 2: 8}


def test_every_choice_of_a_tied_dimension_is_asked_with_all_its_partners():
    dims = (Dim("depth", (1,)), Dim("embed", (4, 8)), Dim("wide", (8, 12, 16)), Dim("mlp", (2, 3), "block"))
    space = Space("vit", dims, (), (("embed", "wide"),))
    found = pinned(space, space["embed"], (4, 8), 20, generator(0))
    partners = {v: {a.one("wide") for a in archs} for v, archs in found.items()}
    assert partners == {4: {8, 12, 16}, 8: {8, 16}}, "12 has no member of the other choice"


def test_choices_that_are_the_same_network_count_once():
    dims = (Dim("depth", (2, 3)), Dim("embed", (16, 24)), Dim("heads", (1, 2, 3), "block"), Dim("mlp", (2, 3), "block"))
    space = Space("vit", dims, SMALL.settings)

    def clip(_space, dim):
        return [min(v, 2) if dim.key == "heads" else 2 if dim.key == "mlp" else v for v in dim.choices]

    found = {f.dim: f for f in fits(space, task_of(space), S3Settings(samples=60), 0, 0, distinct=clip)}
    assert found["heads"].choices == (1, 2) and len(found["heads"].errors) == 2
    assert found["mlp"].choices == (2,) and found["mlp"].line is None and found["mlp"].after == (2, 3)
    assert found["heads"].after in ((1, 2, 3), (2, 3, 4), (1, 2))


def task_of(space):
    task = Synthetic(space, {"embed": 24.0})
    return lambda archs: [task.accuracy(a) for a in archs]


# -- decisions --------------------------------------------------------------------------------------------------------


def decided(slopes, space=SMALL, **given):
    settings = S3Settings(**given)
    lines = {d.key: [30 + slopes.get(d.key, 0) * i for i in range(len(d.choices))] for d in space.dims}
    found = [fit(d, {c: np.array([e]) for c, e in zip(d.choices, lines[d.key])}, settings) for d in space.dims]
    return decide(space, found, settings, 1)


def test_all_dimensions_move_at_once_and_the_sentence_says_why():
    decision, after = decided({"depth": -0.9, "embed": 0.5, "mlp": -0.1})
    assert after == SMALL.shift({"depth": 2, "embed": -1})
    assert decision.kind == "move" and decision.gamma == {"depth": 2, "mlp": 0, "heads": 0, "embed": -1}
    for part in ("Step 1: moved depth", "depth -0.90", "embed +0.50", "tau 0.4", "a choice"):
        assert part in decision.sentence
    (warning,) = decision.warnings
    assert "mlp (-0.10: floor +1, trunc +0)" in warning and "depth (-0.90: floor +3, trunc +2)" in warning
    facts = decision.to_dict()
    assert facts["stop"] is False and facts["legal"] == [] and "slopes" not in facts
    row = decision.slopes[0].to_dict()
    assert row["kind"] == "et" and row["k"] == 2 and row["fit"] == pytest.approx([-0.9, 30])
    assert row["errors"] == pytest.approx([30 - 0.9 * i for i in range(len(row["choices"]))])


def test_floor_grows_what_trunc_leaves():
    slopes = dict.fromkeys(SMALL.keys, -0.05)
    still, same = decided(slopes)
    assert still.reason == "settled" and same == SMALL and still.kind == "stop" and "-0.05" in still.sentence
    grown, after = decided(slopes, quantise="floor")
    assert grown.gamma == dict.fromkeys(SMALL.keys, 1) and after == SMALL.shift(grown.gamma)
    assert decided(dict.fromkeys(SMALL.keys, 0.05), quantise="floor")[1] == SMALL, "positive ones do nothing"


def test_dimensions_that_cannot_be_compared_stop():
    dims = (Dim("depth", (2,)), Dim("embed", (16,)), Dim("heads", (1,), "block"), Dim("mlp", (2,), "block"))
    space = Space("vit", dims, SMALL.settings)
    found = shift_space(space, Meter.for_space(space), lambda s, t: lambda archs: [0.0 for _ in archs], S3Settings(), 0)
    assert found.decisions[0].reason == "no evidence" and found.space == space and found.t == 0


def test_tied_dimensions_that_would_lose_their_partners_stay():
    dims = (Dim("depth", (1, 2)), Dim("embed", (4, 5)), Dim("wide", (8, 10)), Dim("mlp", (2, 3), "block"))
    space = Space("vit", dims, (), (("embed", "wide"),))
    settings = S3Settings()
    slopes = {"depth": -0.5, "embed": -2.0, "wide": 0.5}  # embed to 9, 10 while wide goes to 6, 8
    found = [
        fit(d, {c: np.array([30 + slopes.get(d.key, 0) * i]) for i, c in enumerate(d.choices)}, settings)
        for d in space.dims
    ]
    decision, after = decide(space, found, settings, 0)
    assert after["embed"].choices == (4, 5) and after["wide"].choices == (8, 10) and after["depth"].choices == (2, 3)
    assert decision.gamma == {"depth": 1, "embed": 0, "wide": 0, "mlp": 0} and "no multiples" in decision.sentence
    archs = [a for each in draw_subspaces(space, 5, 0, 0)["embed"].values() for a in each]
    assert archs and all(space.contains(a) for a in archs)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("updates", -1),
        ("samples", 1),
        ("top", 0),
        ("tau", 0),
        ("max_shift", 0),
    ],
)
def test_wrong_settings_are_named(key, value):
    with pytest.raises(TailorError, match=rf"s3\.{key} must lie between"):
        S3Settings(**{key: value})
