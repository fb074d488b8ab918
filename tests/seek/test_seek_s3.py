"""S3: E-T errors, lines and shifts against the specification's table; removal rules; the path; going back."""

from __future__ import annotations

import numpy as np
import pytest

from tailorvit.arch import Arch
from tailorvit.costs import Limits, Meter
from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.rng import generator
from tailorvit.search.synthetic import Synthetic
from tailorvit.seek.quality import line, quality, quantise, slope_error
from tailorvit.seek.s3 import S3Settings, decide, fit, fits, seek, shifted
from tailorvit.seek.subspaces import as_they_are, buckets, majority, pinned, pins
from tailorvit.space import Dim, Space

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
    assert line(x, y) == pytest.approx(tuple(np.polyfit(x, y, 1)))
    assert line(np.array([2.0, 2.0]), np.array([1.0, 3.0])) == (0.0, 2.0)


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
    assert found.by_index == pytest.approx((found.w, found.b))


@pytest.mark.parametrize(
    ("dim", "errors", "units", "how", "w", "k", "choices"),
    [
        (EMBED, (28.9, 29.3, 29.8), "gamma", "trunc", 0.9, 2, (96, 128, 160)),
        (EMBED, (28.9, 29.3, 29.8), "raw", "trunc", 0.0140625, 0, (224, 256, 288)),
        (EMBED, (31.0, 29.4, 28.2), "gamma", "floor", -2.8, -7, (672, 704, 736)),
        (EMBED, (31.0, 29.4, 28.2), "gamma", "trunc", -2.8, -7, (672, 704, 736)),  # exactly -7: no rounding down to -8
        (EMBED, (31.0, 29.4, 28.2), "raw", "floor", -0.04375, -1, (288, 320, 352)),
        (MLP, (29.0, 29.3, 29.7), "raw", "trunc", 0.70, 1, (2.5, 3, 3.5)),
        (WINDOW, (29.5, 28.8), "raw", "floor", -0.1, -1, (14, 21)),
        (
            DEPTH,
            (0.300, 0.292, 0.286),
            "index",
            "floor",
            -0.007,
            -1,
            (3, 4, 5),
        ),  # fractions: every fall grows the space
        (DEPTH, (0.300, 0.292, 0.286), "index", "trunc", -0.007, 0, (2, 3, 4)),
    ],
)
def test_worked_table_in_other_units(dim, errors, units, how, w, k, choices):
    found = at(dim, errors, slope_units=units, quantise=how)
    assert found.w == pytest.approx(w) and found.after == choices
    assert {"floor": found.floor, "trunc": found.trunc}[how] == k and found.k == -k
    assert found.by_index[0] == pytest.approx(np.polyfit(range(len(errors)), errors, 1)[0]), "drawn over the places"


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


def test_max_shift_and_significance():
    falling = (31.0, 29.4, 28.2)
    assert at(EMBED, falling, max_shift=1).k == 1 and at(EMBED, falling, max_shift=2).k == 2
    assert at(EMBED, falling[::-1], max_shift=1).after == (160, 192, 224)
    rng = np.random.default_rng(0)
    noisy = {c: e + 20 * rng.normal(size=30) for c, e in zip(EMBED.choices, falling)}
    loose, strict = (fit(EMBED, noisy, S3Settings(significance=s)) for s in (0, 3))
    assert loose.k != 0 and abs(loose.w) < 3 * loose.se
    assert strict.k == 0 and strict.after == EMBED.choices and "3 standard errors" in strict.note


def test_choices_without_members_are_left_out_and_one_alone_moves_nothing():
    some = {224: np.array([30.0]), 256: np.array([]), 288: np.array([28.0])}
    found = fit(EMBED, some, S3Settings())
    assert found.errors == (30.0, None, 28.0) and found.w == pytest.approx(-1), "places stay 0 and 2"
    assert found.counts == (1, 0, 1)
    alone = fit(EMBED, {**some, 288: np.array([])}, S3Settings())
    assert (alone.k, alone.w, alone.by_index, alone.se) == (0, 0, None, None) and alone.after == EMBED.choices
    assert alone.to_dict()["fit"] is None


# -- members ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", SMALL.keys)
def test_pinned_members_have_the_value_and_share_the_rest(key):
    dim = SMALL[key]
    found = pinned(SMALL, dim, dim.choices, 30, generator(0, key), always)
    for v, archs in found.items():
        assert len(archs) == len(set(archs)) == 30
        assert all(SMALL.pin(key, v).contains(a) for a in archs)
    others = [k for k in SMALL.keys if k != key and (key != "depth" or SMALL[k].scope != "block")]
    rows = [[tuple(a[k] for k in others) for a in archs] for archs in found.values()]
    assert all(row == rows[0] for row in rows), "one base under every choice"


def test_a_subspace_smaller_than_the_sample_is_taken_whole():
    dims = (Dim("depth", (1, 2)), Dim("embed", (16, 24)), Dim("heads", (1,), "block"), Dim("mlp", (2, 3), "block"))
    space = Space("vit", dims, SMALL.fixed)
    found = pinned(space, space["depth"], (1, 2), 100, generator(0), always)
    assert {v: len(archs) for v, archs in found.items()} == {1: 4, 2: 8}
    assert sum(map(len, buckets(space, 100, 0, 0, always, as_they_are)["embed"].values())) == space.count() == 12


def test_every_choice_of_a_tied_dimension_is_asked_with_all_its_partners():
    dims = (Dim("depth", (1,)), Dim("embed", (4, 8)), Dim("wide", (8, 12, 16)), Dim("mlp", (2, 3), "block"))
    space = Space("vit", dims, (), (("embed", "wide"),))
    found = pinned(space, space["embed"], (4, 8), 20, generator(0), always)
    partners = {v: {a.one("wide") for a in archs} for v, archs in found.items()}
    assert partners == {4: {8, 12, 16}, 8: {8, 16}}, "12 has no member of the other choice"


def test_only_members_within_the_limits():
    meter = Meter.for_space(SMALL, Limits.of(max_params=FREE.cost("params", SMALL.smallest()) * 1.6))
    for groups in (f(SMALL, 10, 0, 0, meter.fits, as_they_are) for f in (pins, buckets)):
        archs = [a for g in groups.values() for each in g.values() for a in each]
        assert archs and all(map(meter.fits, archs))
    none = fits(SMALL, lambda archs: [50.0] * len(archs), S3Settings(samples=5), 0, 0, lambda _: False)
    assert all(f.by_index is None and f.k == 0 for f in none)


def test_buckets_use_the_same_members_for_every_dimension():
    groups = buckets(SMALL, 40, 0, 0, always, as_they_are)
    sets = [{a for archs in g.values() for a in archs} for g in groups.values()]
    assert all(s == sets[0] for s in sets) and len(sets[0]) == 40
    asked = []
    fits(
        SMALL,
        lambda archs: asked.extend(archs) or [50.0] * len(archs),
        S3Settings(samples=40, estimator="bucket"),
        0,
        0,
    )
    assert len(asked) == 40, "N evaluations, against 56 N of the paper's space"


@pytest.mark.parametrize(
    ("values", "counts_for"), [((3, 3, 4), 3), ((2, 2, 4, 4, 3), 2), ((4, 4, 2, 2, 5), 4), ((2, 3, 4), 3)]
)
def test_a_block_dimension_counts_by_majority(values, counts_for):
    arch = Arch("vit", depth=len(values), mlp=values, heads=(1,) * len(values), embed=16)
    assert majority(Dim("mlp", (2, 3, 4, 5), "block"), arch) == counts_for
    assert majority(Dim("embed", (16, 24)), arch) == 16


def test_choices_that_are_the_same_network_count_once():
    dims = (Dim("depth", (2, 3)), Dim("embed", (16, 24)), Dim("heads", (1, 2, 3), "block"), Dim("mlp", (2, 3), "block"))
    space = Space("vit", dims, SMALL.fixed)

    def clip(_space, dim):
        return [min(v, 2) if dim.key == "heads" else 2 if dim.key == "mlp" else v for v in dim.choices]

    for estimator in ("pin", "bucket"):
        settings = S3Settings(samples=60, estimator=estimator)
        found = {f.dim: f for f in fits(space, task_of(space), settings, 0, 0, same=clip)}
        assert found["heads"].choices == (1, 2) and len(found["heads"].errors) == 2
        assert found["mlp"].choices == (2,) and found["mlp"].by_index is None and found["mlp"].after == (2, 3)
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


def test_a_bound_on_the_number_of_architectures():
    size = np.log10(SMALL.count())
    decision, after = decided({"depth": -0.5}, max_log10=size + 0.01)
    assert after == SMALL and decision.reason == "too many architectures" and "10^" in decision.sentence
    assert set(decision.gamma.values()) == {0}
    assert decided({"depth": -0.5}, max_log10=size + 10)[1] != SMALL


def test_dimensions_that_cannot_be_compared_stop():
    dims = (Dim("depth", (2,)), Dim("embed", (16,)), Dim("heads", (1,), "block"), Dim("mlp", (2,), "block"))
    space = Space("vit", dims, SMALL.fixed)
    found = seek(space, Meter.for_space(space), lambda s, t: lambda archs: [0.0 for _ in archs], S3Settings(), 0)
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
    archs = [a for each in pins(space, 5, 0, 0, always, as_they_are)["embed"].values() for a in each]
    assert archs and all(space.contains(a) for a in archs)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("updates", -1),
        ("samples", 1),
        ("top", 0),
        ("tau", 0),
        ("max_shift", 0),
        ("significance", -1),
        ("warm_share", 2),
    ],
)
def test_wrong_settings_are_named(key, value):
    with pytest.raises(TailorError, match=rf"s3\.{key} must lie between"):
        S3Settings(**{key: value})
