"""S4's ways to go further and to doubt its slopes: stride, what sizes a space, significance, slopes beyond size."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tailorvit.costs import Limits, Meter
from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.search.synthetic import Synthetic
from tailorvit.seek.moves import middle, moves, next_stride, over, size_of
from tailorvit.seek.s4 import Book, S4Settings, blended, decide, judged, seek
from tailorvit.seek.slopes import Slope, estimate

SMALL = named_space("vit-32px")
FREE = Meter.for_space(SMALL)
FAR = {"depth": 18, "mlp": 3.5, "heads": 3, "embed": 112}


def slopes(*z, se=0.1):
    return [Slope(d.key, v, se, d.shift, ()) for d, v in zip(SMALL.dims, z, strict=True)]


class Trail(Book):
    """The spaces passed through."""

    def __init__(self):
        self.spaces = []

    def space(self, t, space, repaired):
        self.spaces.append(space)


# -- stride -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stride", "before", "now", "after"),
    [
        (1, (1, 0), (1, 0), 2),
        (2, (2, 0), (2, 0), 4),
        (8, (8, 0), (8, 0), 8),
        (4, (4, 0), (0, 4), 2),
        (4, (4, 0), (-4, 0), 2),
        (1, (1, 0), (0, 1), 1),
        (2, (1, 1), (1, 0), 4),  # 45 degrees is along
        (2, (1, 1, 1, 0), (0, 0, 1, 0), 4),  # 54.7 degrees still is
        (2, (1, 1, 1, 1), (1, 1, -1, 0), 1),  # 73 degrees is a turn
        (2, (1, 1, 1, 1), (0, 0, 1, -1), 1),
    ],
)
def test_a_stride_doubles_along_the_way_and_halves_at_a_turn(stride, before, now, after):
    assert next_stride(stride, before, now, 8) == after


def test_neighbours_lie_a_stride_away():
    near, far = (moves(SMALL, FREE, stride=s) for s in (1, 3))
    assert {m.gamma for m in far} <= {tuple(3 * g for g in m.gamma) for m in near}
    chosen = next(m for m in far if m.gamma == (3, 0, 0, -3))
    assert chosen.space["depth"].choices == (9, 10, 11)
    assert chosen.space == SMALL.shift({"depth": 3, "mlp": 0, "heads": 0, "embed": -3})


def test_adaptive_strides_reach_a_far_optimum_in_fewer_moves():
    task = Synthetic(SMALL, FAR, {"depth": 1, "mlp": 1, "heads": 1, "embed": 1})

    def ask(space, t):
        return lambda archs: [task.accuracy(a) for a in archs]

    ends = {}
    for stride in ("single", "adaptive"):
        book = Trail()
        seek(SMALL, FREE, ask, S4Settings(iterations=6, pairs=10, stride=stride, dims=("depth",)), 0, book)
        ends[stride] = [s["depth"].choices[1] for s in book.spaces]
    assert ends["single"] == [7, 8, 9, 10, 11, 12, 13]
    assert ends["adaptive"][:4] == [7, 8, 9, 11], "two single moves in a row, then two steps"
    assert abs(ends["adaptive"][-1] - FAR["depth"]) < abs(ends["single"][-1] - FAR["depth"])


def test_no_stride_is_longer_than_eight_steps():
    book, settings = Trail(), S4Settings(iterations=7, pairs=2, stride="adaptive", dims=("depth",))
    seek(SMALL, FREE, lambda *_: lambda archs: [a.one("depth") for a in archs], settings, 0, book)
    assert np.diff([s["depth"].low for s in book.spaces]).tolist() == [1, 1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize(
    ("first", "path"),
    [
        (6, [6, 5, 4, 2, 1]),  # one, one, two, then four and two would fall under the minimum: one
        (7, [7, 6, 5, 3, 1]),  # four would, two would not
    ],
)
def test_where_nothing_lies_so_far_the_same_slopes_are_asked_nearer(first, path):
    asked = []

    def ask(space, t):
        asked.append(t)
        return lambda archs: [-10.0 * a.one("depth") for a in archs]

    book = Trail()
    settings = S4Settings(iterations=5, pairs=4, stride="adaptive", dims=("depth",), nonpositive="strict")
    _, t, decisions = seek(SMALL.shift({"depth": first - 6}), FREE, ask, settings, 0, book)
    assert [s["depth"].low for s in book.spaces] == path
    assert asked == [0, 1, 2, 3, 4] and t == 4
    assert decisions[-1].reason == "no promising neighbour"


# -- what sizes a space -----------------------------------------------------------------------------------------------


def test_the_middle_member_has_middle_values():
    arch = middle(SMALL)
    assert (arch["depth"], arch["embed"]) == (7, 112)
    assert arch["mlp"] == (3.5,) * 7 and arch["heads"] == (3,) * 7 and SMALL.contains(arch)
    meter = Meter.for_space(SMALL)
    assert size_of(SMALL, meter, "params") == meter.cost("params", SMALL.largest())
    assert size_of(SMALL, meter, "params", "middle") == meter.cost("params", arch)


def test_a_space_at_the_limit_is_over_it():
    top = size_of(SMALL, FREE, "params")
    assert over(SMALL, Meter.for_space(SMALL, Limits.of(max_params=top))) == "params"
    assert over(SMALL, Meter.for_space(SMALL, Limits.of(max_params=top + 1))) is None


def test_under_a_lower_limit_only_larger_neighbours_will_do():
    class ByDepth(Meter):
        def cost(self, metric, arch):
            return arch.one("depth")

    legal = moves(SMALL, ByDepth.for_space(SMALL, Limits.of(min_params=1000)))
    assert {m.gamma[0] for m in legal} == {1} and len(legal) == 27, "one of the same size is none"


def test_sized_by_the_middle_members_lie_on_both_sides_of_the_limit():
    task = Synthetic(SMALL, {"depth": 30, "mlp": 9, "heads": 12, "embed": 400}, dict.fromkeys(SMALL.keys, 1))

    def ask(space, t):
        return lambda archs: [task.accuracy(a) for a in archs]

    meter, shares = Meter.for_space(SMALL, Limits.of(max_params="1.5M")), {}
    for by in ("largest", "middle"):
        space, _, _ = seek(SMALL, meter, ask, S4Settings(iterations=8, pairs=6, sized_by=by), 0)
        assert over(space, meter, by) is None
        shares[by] = meter.share(space, 400)
    assert shares["largest"] == 1.0, "the paper's rule: every member keeps the limit"
    assert 0.2 < shares["middle"] < 0.9


def test_repairs_look_at_the_member_that_sizes_the_space():
    meter = Meter.for_space(SMALL, Limits.of(max_params="1M"))
    assert not meter.below(SMALL.largest()) and meter.below(middle(SMALL))
    for by, repairs in (("largest", 1), ("middle", 0)):
        _, _, decisions = seek(SMALL, meter, lambda *_: None, S4Settings(iterations=0, sized_by=by), 0)
        assert len(decisions) == repairs
        assert all("the largest member" in d.sentence for d in decisions)


# -- doubt ------------------------------------------------------------------------------------------------------------


def test_slopes_that_may_be_noise_count_as_none():
    given = slopes(1.0, 0.15, -0.1, 0.0)
    assert [s.z for s in judged(given, 2)] == [1.0, 0.0, 0.0, 0.0]
    assert judged(given, 0) == given


def test_noise_moves_nothing_and_the_record_keeps_the_slopes():
    given = slopes(0.15, 0.1, -0.1, 0.0)
    decision, chosen = decide(SMALL, given, moves(SMALL, FREE), S4Settings(significance=2), 0, {SMALL}, "params")
    assert chosen is None and decision.reason == "no evidence" and list(decision.slopes) == given
    decision, chosen = decide(SMALL, given, moves(SMALL, FREE), S4Settings(), 0, {SMALL}, "params")
    assert chosen is not None
    one = slopes(1.0, 0.15, 0.0, 0.0)
    _, doubted = decide(SMALL, one, moves(SMALL, FREE), S4Settings(significance=2), 0, {SMALL}, "params")
    assert doubted.gamma == (1, 0, 0, 0), "the doubtful ratio stays where it is"


# -- beyond size ------------------------------------------------------------------------------------------------------


def size(arch):
    return FREE.cost("params", arch)


def test_accuracy_that_is_size_alone_has_no_slope_beyond_size():
    def grows(archs):
        return [50 + 7 * math.log(size(a)) for a in archs]

    plain = estimate(SMALL, grows, 8, 0, 0)
    beyond = estimate(SMALL, grows, 8, 0, 0, size=size)
    assert all(s.z > 0 and s.per_log_size == 0 for s in plain)
    assert all(abs(s.z_step) < 1e-9 and s.per_log_size == pytest.approx(7) for s in beyond)
    assert [s.pairs for s in beyond] == [s.pairs for s in plain], "the pairs keep what was measured"


def test_what_a_dimension_gives_beyond_size_is_found():
    """Depth costs size and gives half of what size gives: it should go down, though its own slope is upward."""

    def answer(archs):
        return [10 * math.log(size(a)) - 0.8 * a.one("depth") for a in archs]

    plain, beyond = (estimate(SMALL, answer, 40, 0, 0, size=s) for s in (None, size))
    at = SMALL.keys.index("depth")
    assert plain[at].z > 0 > beyond[at].z
    gamma = np.sign([s.z for s in beyond])
    assert gamma[at] == -1 and gamma[SMALL.keys.index("embed")] == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"significance": -1}, "s4.significance must lie between 0 and 100, not -1"),
        ({"anchors": -1}, "s4.anchors must lie between 0 and 1000, not -1"),
        ({"anchor_share": 11}, "s4.anchor_share must lie between 0 and 10, not 11"),
    ],
)
def test_settings_are_checked_at_birth(given, words):
    with pytest.raises(TailorError, match=words):
        S4Settings(**given)


# -- momentum ---------------------------------------------------------------------------------------------------------


def test_momentum_keeps_a_share_of_the_slopes_before():
    before, now = slopes(1.0, 2.0, 0.0, 4.0, se=0.3), slopes(3.0, 2.0, 1.0, 0.0, se=0.4)
    found = blended(now, before, 0.25)
    assert [s.z for s in found] == [2.5, 2.0, 0.75, 1.0]
    assert [s.carried for s in found] == [-0.5, 0.0, -0.25, 1.0]
    assert all(s.se == pytest.approx(math.hypot(0.3, 0.075)) for s in found)
    assert blended(now, None, 0.25) == now == blended(now, before, 0.0)


def test_with_momentum_one_misleading_supernet_does_not_turn_the_space():
    """Slopes point up but for one step, whose supernet says the opposite at half the size."""
    true = {"depth": 1.0, "mlp": 1.0, "heads": 1.0, "embed": 0.05}

    def judge(space, t):
        sign = -0.5 if t == 1 else 1.0
        return lambda archs: [50 + sign * sum(z * float(np.mean(a[k])) for k, z in true.items()) for a in archs]

    ways = []
    for share in (0.0, 0.5):
        settings = S4Settings(iterations=2, pairs=4, momentum=share)
        ways.append([d.gamma for d in seek(SMALL, FREE, judge, settings, 0)[2]])
    assert ways[0][0] == ways[1][0] and all(g == 1 for g in ways[0][0].values())
    # Straight back it was before; the next best leaves one dimension where it is.
    assert sum(ways[0][1].values()) == -3 and all(g == 1 for g in ways[1][1].values())


def test_a_momentum_of_one_would_never_learn():
    with pytest.raises(TailorError, match=r"s4\.momentum must lie between 0 and 0\.95, not 1"):
        S4Settings(momentum=1)


def test_a_repair_by_slopes_heeds_significance_and_the_steps_before():
    """Heads seem to gain three points a step, give or take ten: with doubt heeded they are no reason to move."""
    space = named_space("vit-8px")
    params = Meter.for_space(space).most("params", space)
    meter = Meter.for_space(space, Limits.of(max_params=0.98 * params))

    def noisy(there, t):
        rng = np.random.default_rng(t)
        return lambda archs: [50 + 3 * float(np.mean(a.many("heads"))) + rng.normal(0, 40) for a in archs]

    moved = {}
    for significance in (0.0, 100.0):
        settings = S4Settings(repair="slope", pairs=6, iterations=1, significance=significance)
        moved[significance] = seek(space, meter, noisy, settings, 0)[2][0]
    assert moved[0.0].kind == moved[100.0].kind == "repair"
    by_size = seek(space, meter, noisy, S4Settings(pairs=6, iterations=1), 0)[2][0]
    assert moved[100.0].gamma == by_size.gamma != moved[0.0].gamma, "all within their errors: as without slopes"
    assert [s.z for s in moved[100.0].slopes] == [s.z for s in moved[0.0].slopes], "what was measured is kept"
