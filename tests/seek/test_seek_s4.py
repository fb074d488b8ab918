"""S4's decisions: the worked examples, stops, repairs, limits."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from tailorvit.costs import Limits, Meter
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.families import named_space
from tailorvit.families.vit.spaces import vit_arch
from tailorvit.rng import generator
from tailorvit.seek.s4 import (
    Journal,
    S4Settings,
    away,
    broken_limit,
    decide,
    move_space,
    moves,
    rank,
    repair_move,
    scaled,
    size_of,
    unconstrained,
)
from tailorvit.seek.slopes import Slope
from tailorvit.space import Dim, Space
from tailorvit.testing.synthetic import Synthetic

PAPER = named_space("s4-vit", classes=200)
METER = Meter.for_space(PAPER, Limits.of(max_params="30M"))
FREE = Meter.for_space(PAPER)
SMALL = named_space("vit-32px")
FREE_SMALL = Meter.for_space(SMALL)
A1 = PAPER.shift({"depth": -1, "mlp": -1, "embed": -1})


def slopes(*z, space=A1, se=0.1):
    return [Slope(d.key, v, se, d.shift, ()) for d, v in zip(space.dims, z)]


def whole(options, space=A1):
    """The specification's worked examples take only moves by which no dimension loses a choice."""
    return [m for m in options if all(len(m.space[d.key].choices) == len(d.choices) for d in space.dims)]


EX1, EX2 = (0.30, 0.80, 0.12, 0.010), (0.10, 0.40, 0.05, 0.020)


# -- the specification's vectors --------------------------------------------------------------------------------------


def test_legal_neighbours_of_the_first_space():
    assert METER.cost("params", PAPER.largest()) == 36_430_664
    found = {m.gamma: round(m.size / 1e6, 2) for m in moves(PAPER, METER)}
    assert found == {
        (-1, -1, -1, 0): 29.38,
        (-1, -1, 0, -1): 29.17,
        (0, -1, -1, -1): 28.79,
        (-1, 0, -1, -1): 28.45,
        (-1, -1, -1, -1): 26.77,
    }
    assert {m.gamma: m.size for m in moves(PAPER, METER)}[-1, -1, -1, -1] == 26_765_852
    assert [m.gamma for m in whole(moves(PAPER, METER), PAPER)] == [(-1, -1, 0, -1)]


@pytest.mark.parametrize("classes", [10, 100, 200, 397])
def test_the_number_of_legal_neighbours_does_not_depend_on_the_classes(classes):
    space = named_space("s4-vit", classes=classes)
    assert len(moves(space, Meter.for_space(space, Limits.of(max_params="30M")))) == 5


def test_legal_neighbours_after_the_first_move():
    assert [d.choices for d in A1.dims] == [(11, 12, 13), (3, 3.5), (2, 4, 6, 8, 10, 12, 14), (312, 336, 360)]
    assert METER.cost("params", A1.largest()) == 29_167_004
    assert len(whole(moves(A1, METER))) == 24 and len(moves(A1, METER)) == 47
    assert len(moves(A1, FREE)) == 80


@pytest.mark.parametrize(
    ("z", "how", "first", "second"),
    [
        (EX1, "raw", ((0, 1, 0, -1), 0.647, 27.97, 0.16), ((-1, 1, 0, 0), 28.51)),
        (EX1, "step", ((0, 1, 0, -1), 0.187, 27.97, 0.16), ((-1, 1, 0, 0), 28.51)),
        (EX2, "raw", ((0, 1, 0, -1), 0.646, 27.97, -0.28), ((-1, 1, 0, 0), 28.51)),
        (EX2, "step", ((-1, 0, 0, 1), 0.499, 29.52, 0.38), None),
    ],
)
def test_worked_examples(z, how, first, second):
    options = whole(moves(A1, METER))
    order, cos, gains = rank(options, slopes(*z), how)
    top = order[0]
    gamma, cosine, size, gain = first
    assert options[top].gamma == gamma
    assert (round(cos[top], 3), round(options[top].size / 1e6, 2)) == (cosine, size)
    assert gains[top] == pytest.approx(gain)
    if second:
        assert (options[order[1]].gamma, round(options[order[1]].size / 1e6, 2)) == second


@pytest.mark.parametrize(("how", "gamma", "cosine"), [("raw", (0, 1, 0, 0), 0.927), ("step", (1, 1, 1, 1), 0.976)])
def test_worked_example_without_limit(how, gamma, cosine):
    options = moves(A1, FREE)
    order, cos, _ = rank(options, slopes(*EX1), how)
    assert options[order[0]].gamma == gamma and round(cos[order[0]], 3) == cosine
    assert unconstrained(scaled(slopes(*EX1), how)[0]) == gamma


def test_units_of_slopes():
    z = slopes(1.0, 1.0, 1.0, 1.0)
    assert scaled(z, "raw")[0].tolist() == [1, 1, 1, 1]
    assert scaled(z, "step")[0].tolist() == [1, 0.5, 2, 24]
    assert scaled(z, "step")[1].tolist() == pytest.approx([0.1, 0.05, 0.2, 2.4])


def test_a_space_of_three_dimensions_has_26_neighbours():
    dims = (Dim("depth", (4, 5)), Dim("embed", (24, 32)), Dim("mlp", (2, 3), scope="block"))
    space = Space("vit", (*dims, Dim("heads", (2, 3), scope="block")), PAPER.settings)
    assert len(moves(space, Meter.for_space(space))) == 80
    # A dimension that cannot go down without vanishing loses its downward neighbours only.
    pinned = Space("vit", (Dim("depth", (1,)), *space.dims[1:]), PAPER.settings)
    assert len(moves(pinned, Meter.for_space(pinned))) == 2 * 27 - 1


# -- decisions --------------------------------------------------------------------------------------------------------


def choose(z, space=A1, meter=METER, visited=(), **changes):
    settings = S4Settings(**changes)
    options = whole(moves(space, meter), space)
    return decide(space, slopes(*z, space=space), options, settings, 2, {space, *visited}, meter.size_metric)


def test_a_move_says_what_and_why():
    decision, move = choose(EX1)
    assert decision.kind == "move" and decision.gamma == {"depth": 0, "mlp": 1, "heads": 0, "embed": -1}
    assert move.gamma == (0, 1, 0, -1) and move.space == A1.shift({"mlp": 1, "embed": -1})
    for part in ("Step 2", "mlp 3-3.5 -> 3.5-4", "embed 312-360 -> 288-336", "24 legal", "0.19", "+0.16", "27.97M"):
        assert part in decision.sentence
    assert len(decision.legal) == 24 and decision.legal[0]["gamma"] == [0, 1, 0, -1]
    assert set(decision.legal[0]) == {"gamma", "size", "cosine", "cos_raw", "cos_step", "gain"}
    assert decision.legal[0]["cos_raw"] == pytest.approx(0.647, abs=1e-3)
    cosines = [row["cosine"] for row in decision.legal]
    assert cosines == sorted(cosines, reverse=True)
    assert decision.to_dict()["stop"] is False and len(decision.slopes) == 4


def test_no_legal_neighbour_stops():
    tight = Meter.for_space(PAPER, Limits.of(max_params="1M"))
    decision, move = choose(EX1, meter=tight)
    assert move is None and decision.kind == "stop" and decision.reason == "no legal neighbour"
    assert decision.to_dict()["stop"] is True and decision.legal == ()


def test_zero_slopes_stop():
    decision, move = choose((0, 0, 0, 0))
    assert move is None and decision.reason == "no evidence" and "No dimension" in decision.sentence
    assert len(decision.legal) == 24, "the table is kept"


def test_negative_cosines_stop():
    decision, move = choose((5, 5, 5, 5), space=PAPER)  # its only legal neighbour is three steps down
    assert move is None and decision.reason == "no promising neighbour" and "-0." in decision.sentence


def test_a_cosine_of_exactly_zero_stops():
    dims = (Dim("depth", (1, 2)), Dim("embed", (16, 24)), Dim("heads", (1,), scope="block"))
    space = Space("vit", (*dims, Dim("mlp", (2,), scope="block")), named_space("vit-32px").settings)
    meter = Meter.for_space(space)
    options = [m for m in moves(space, meter) if m.gamma == (0, 1, 0, 0)]
    flat = slopes(1, 0, 0, 0, space=space)
    assert decide(space, flat, options, S4Settings(), 0, {space}, "params")[1] is None


@pytest.mark.parametrize("z", [(0.1, 0.2, 0.3), (0.1, 0.7, 0.8), (0.3, 0.6, 0.9)])
def test_rounding_does_not_decide_whether_a_cosine_is_zero(z):
    """Their sums are some 1e-16 above or below nothing."""
    dims = (Dim("depth", (2, 3)), Dim("embed", (16, 24)), Dim("heads", (2, 3), scope="block"))
    space = Space("vit", (*dims, Dim("mlp", (2,), scope="block")), named_space("vit-32px").settings)
    options = [m for m in moves(space, Meter.for_space(space)) if m.gamma in ((1, 1, -1, 0), (-1, -1, 1, 0))]
    found = [Slope(d, v / float(space[d].shift), 0.1, space[d].shift, ()) for d, v in zip(space.keys, (*z, 0.0))]
    assert len(options) == 2
    assert decide(space, found, options, S4Settings(), 0, {space}, "params")[1] is None


def test_a_neighbour_without_whole_heads_is_no_neighbour():
    space = named_space("s4-swin")
    embed = replace(space["embed"], shift=4)
    space = replace(space, dims=tuple(embed if d.key == "embed" else d for d in space.dims))
    found = moves(space, Meter.for_space(space))
    assert found and all(m.gamma[space.keys.index("embed")] == 0 for m in found)


def test_a_repair_names_the_limit_that_is_broken():
    """Parameters are within theirs, MACs are not."""
    params, macs = METER.counter.both(PAPER.largest())
    meter = Meter.for_space(PAPER, Limits.of(max_params=2 * params, max_macs=0.9 * macs))
    space, _, decisions = move_space(PAPER, meter, flat, S4Settings(pairs=2), 0)
    assert "has macs" in decisions[0].sentence and meter.holds(space)
    far = Meter.for_space(PAPER, Limits.of(max_params=2 * params, max_macs=0.3 * macs))
    space, _, decisions = move_space(PAPER, far, flat, S4Settings(pairs=2), 0)
    assert far.holds(space) and sum(d.kind == "repair" for d in decisions) > 1


def test_revisits():
    first = choose(EX1)[1]
    decision, move = choose(EX1, visited=[first.space])
    assert move.gamma == (-1, 1, 0, 0), "the next best"
    promising = [m.space for m in moves(A1, METER)]
    decision, move = choose(EX1, visited=promising)
    assert move is None and decision.kind == "stop"


# -- repairs ----------------------------------------------------------------------------------------------------------


# The first space of s4-vit-cifar10: its widths times the root of 1.5 / 30.
CIFAR = Space(
    "vit",
    (
        Dim.span("depth", 12, 14, 1),
        Dim.span("mlp", 3.5, 4, 0.5, scope="block", minimum=0.5),
        Dim.span("heads", 2, 4, 1, scope="block"),
        Dim.span("embed", 72, 88, 8, minimum=8),
    ),
    (("classes", 10), ("head_dim", 32), ("image_size", (32, 32)), ("patch", 4), ("reach", 7)),
)
TIGHT = Meter.for_space(CIFAR, Limits.of(max_params="1.5M"))


def repaired(meter=TIGHT, space=CIFAR, keep=None, **changes):
    return repair_move(space, meter, S4Settings(**changes), None, keep=keep).gamma


def test_a_repair_takes_the_fewest_steps_and_keeps_the_width():
    assert repaired(repair="size") == (1, -1, 1, -1), "the largest neighbour gives width for depth and heads"
    assert repaired() == (0, -1, 0, 0)
    wide = Synthetic(
        CIFAR, {"depth": 9, "mlp": 4, "heads": 4, "embed": 120}, {"embed": 2, "depth": 1, "heads": 1, "mlp": 1}
    )
    ends = {}
    for how in ("size", "steps"):
        settings = S4Settings(repair=how, iterations=0)
        space, _, _ = move_space(CIFAR, TIGHT, flat, settings, 0)
        assert TIGHT.holds(space)
        ends[how] = np.mean([wide.clean(space.sample(generator(i, "repair"))) for i in range(50)])
    assert ends["steps"] > ends["size"] + 1


@pytest.mark.parametrize("limit", ["1.1M", "1.2M", "1.3M", "1.4M", "1.5M", "1.6M"])
def test_a_repair_before_training_raises_no_dimension(limit):
    """One that raises a dimension and is legal has a legal neighbour with fewer steps."""
    meter = Meter.for_space(CIFAR, Limits.of(max_params=limit))
    gamma = repaired(meter)
    assert max(gamma) <= 0
    legal = moves(CIFAR, meter)
    assert not legal or sum(map(abs, gamma)) == min(sum(map(abs, m.gamma)) for m in legal)


def test_of_equal_repairs_the_one_nearest_to_the_baseline_wins():
    inside, rng = CIFAR.middle(), generator(0, "test")
    baseline, lean = vit_arch(132, 4, 4, 7), CIFAR.with_value(inside, "heads", 1, rng)
    few = {m.gamma for m in moves(CIFAR, TIGHT) if sum(map(abs, m.gamma)) == 1}
    assert few >= {(-1, 0, 0, 0), (0, -1, 0, 0), (0, 0, -1, 0)}
    assert repaired(keep=inside) == (0, -1, 0, 0), "the largest of those that hold it"
    assert repaired(keep=baseline) == (-1, 0, 0, 0), "shallower, as it is"
    assert repaired(keep=lean) == (0, 0, -1, 0)
    assert away(CIFAR, inside) == 0 and away(CIFAR, lean) == 1
    assert away(CIFAR, baseline) == (12 - 7) + (132 - 88) / 8


def test_a_repair_by_slopes_undoes_least_of_their_gain():
    """Fewest steps first; of these the one that loses least by the slopes, also where another is larger."""
    few = [m for m in moves(CIFAR, TIGHT) if sum(map(abs, m.gamma)) == 1]
    assert len(few) > 1
    for m in few:
        worthless = [0.5 if not step else 0.01 for step in m.gamma]
        z = slopes(*(v / float(d.shift) for v, d in zip(worthless, CIFAR.dims)), space=CIFAR)
        assert repair_move(CIFAR, TIGHT, S4Settings(repair="slope"), z).gamma == m.gamma


def test_the_paper_space_is_repaired_as_before():
    assert repair_move(PAPER, METER, S4Settings(), None).gamma == (-1, -1, -1, 0)  # 29.38 M


def test_repair_by_slope_keeps_what_pays():
    settings = S4Settings(repair="slope")
    good_heads = slopes(0.1, 0.1, 1.0, 0.001, space=PAPER)
    assert repair_move(PAPER, METER, settings, good_heads).gamma == (-1, -1, 0, -1), "heads stay"
    good_depth = slopes(1.0, 0.1, 0.01, 0.001, space=PAPER)
    assert repair_move(PAPER, METER, settings, good_depth).gamma == (0, -1, -1, -1), "depth stays"


def test_repair_by_slopes_that_say_nothing_is_repair_without_them():
    settings, nothing = S4Settings(repair="slope"), slopes(0, 0, 0, 0, space=PAPER)
    assert repair_move(PAPER, METER, settings, nothing).gamma == (-1, -1, -1, 0)
    far = Meter.for_space(PAPER, Limits.of(max_params="15M"))
    assert repair_move(PAPER, far, settings, nothing).gamma == (-1, -1, -1, -1)


def test_repair_goes_towards_a_far_limit_first():
    far = Meter.for_space(PAPER, Limits.of(max_params="15M"))
    assert moves(PAPER, far) == []
    assert repair_move(PAPER, far, S4Settings(), None).gamma == (-1, -1, -1, -1), "the largest reduction"


def flat(space, t):
    return lambda archs: [50.0] * len(archs)


class Notes(Journal):
    def __init__(self):
        self.spaces, self.decisions = [], []

    def space_reached(self, t, space, repaired):
        self.spaces.append((t, space, repaired))

    def decided(self, decision):
        self.decisions.append(decision)


def test_several_repairs_are_counted_apart():
    limits = Meter.for_space(PAPER, Limits.of(max_params="15M"))
    notes, asked = Notes(), []

    def evaluator(space, t):
        asked.append(t)
        return flat(space, t)

    space, t, decisions = move_space(PAPER, limits, evaluator, S4Settings(pairs=2), 0, notes)
    repairs = [d for d in decisions if d.kind == "repair"]
    assert len(repairs) > 2 and limits.below(space.largest())
    assert [d.t for d in repairs] == [-i - 1 for i in range(len(repairs))], "apart from the steps"
    assert asked == [0] and t == 0 and decisions[-1].reason == "no evidence"
    assert all("Repair" in d.sentence and d.gamma for d in repairs)
    assert [r for _, _, r in notes.spaces] == [False] + [True] * len(repairs) and notes.decisions == decisions
    assert notes.spaces[-1][1] == space


def test_repair_by_slope_trains_for_each_repair():
    asked = []

    def evaluator(space, t):
        asked.append((t, space))
        return flat(space, t)

    _, t, decisions = move_space(PAPER, METER, evaluator, S4Settings(pairs=2, repair="slope"), 0)
    assert [d.kind for d in decisions] == ["repair", "stop"] and [d.t for d in decisions] == [0, 1]
    assert [step for step, _ in asked] == [0, 1] and t == 1
    assert len(decisions[0].slopes) == 4


class Told(Journal):
    """Knows the way an earlier version went."""

    def __init__(self, way):
        self.way = way

    def followed(self, t):
        return self.way.get(t)


def test_a_run_goes_on_the_way_it_went():
    """Moves and repairs that a run has made are not decided again, whatever would be decided now."""
    asked = []

    def evaluator(space, t):
        asked.append((t, space))
        return by_size(space, t)

    settings = S4Settings(pairs=2, iterations=2)
    first, second = PAPER.shift({"depth": -1, "mlp": -1, "embed": -1}), A1.shift({"heads": -1})
    assert repair_move(PAPER, METER, settings, None).space != first
    space, t, decisions = move_space(PAPER, METER, evaluator, settings, 0, Told({-1: first, 0: second, 1: second}))
    assert (space, t, decisions) == (second, 1, []) and asked == [(0, first), (1, second)]
    space, t, decisions = move_space(PAPER, METER, evaluator, settings, 0, Told({-1: first, 0: second}))
    assert len(decisions) == 1 and decisions[0].t == 1, "what is open is decided"


def test_a_space_that_cannot_shrink_is_an_error():
    with pytest.raises(InfeasibleError, match=r"cannot shrink any further.*params <= 1k"):
        move_space(PAPER, Meter.for_space(PAPER, Limits.of(max_params="1k")), flat, S4Settings(), 0)


# -- limits -----------------------------------------------------------------------------------------------------------


def test_a_lower_limit_keeps_the_largest_member_above_it():
    both = Meter.for_space(PAPER, Limits.of(max_params="30M", min_params="29M"))
    found = moves(A1, both)
    assert 0 < len(found) < 47 and all(29e6 <= m.size < 30e6 for m in found)


def by_size(space, t):
    """An evaluator to whom size is all."""
    return lambda archs: [10 * math.log(FREE.cost("params", a)) for a in archs]


def test_a_space_under_its_lower_limit_may_grow_towards_it():
    """Where one step cannot reach the limit, every larger neighbour is legal."""
    here = METER.cost("params", A1.largest())
    both = Meter.for_space(PAPER, Limits.of(max_params=3 * here, min_params=2 * here))
    found = moves(A1, both)
    assert found and all(here < m.size < 2 * here for m in found)
    larger = [m for m in moves(A1, both, legal=False) if m.size > here]
    assert {m.gamma for m in found} == {m.gamma for m in larger}
    settings = S4Settings(pairs=4, iterations=20)
    end, _, decisions = move_space(A1, both, by_size, settings, 0)
    assert 2 * here <= both.cost("params", end.largest()) < 3 * here
    sizes = [here, *(d.legal[0]["size"] for d in decisions if d.kind == "move")]
    growing = [b for a, b in itertools.pairwise(sizes) if a < 2 * here]
    assert len(growing) > 1 and all(b > a for a, b in itertools.pairwise([here, *growing]))


def test_any_cost_may_be_the_limit():
    top = METER.cost("macs", A1.largest())
    meter = Meter.for_space(PAPER, Limits.of(max_macs=top))
    assert meter.size_metric == "macs" and FREE.size_metric == "params"
    found = moves(A1, meter)
    assert found and all(m.size == meter.cost("macs", m.space.largest()) < top for m in found)
    decision, _ = decide(A1, slopes(*EX1), found, S4Settings(), 0, {A1}, "macs")
    assert "macs" in decision.sentence
    both = Meter.for_space(PAPER, Limits.of(max_macs=top, max_params="28M"))
    assert {m.gamma for m in moves(A1, both)} <= {m.gamma for m in found}


def test_the_limit_itself_is_not_legal():
    size = 28_792_376
    assert (0, -1, -1, -1) not in {m.gamma for m in moves(PAPER, Meter.for_space(PAPER, Limits.of(max_params=size)))}
    above = Meter.for_space(PAPER, Limits.of(max_params=size + 1))
    assert (0, -1, -1, -1) in {m.gamma for m in moves(PAPER, above)}


@pytest.mark.parametrize(
    ("key", "value"),
    [("iterations", -1), ("pairs", 1), ("survey", -1), ("reach", 0)],
)
def test_wrong_settings_are_named(key, value):
    with pytest.raises(TailorError, match=rf"s4\.{key} must lie between"):
        S4Settings(**{key: value})


def test_too_many_dimensions_are_refused_before_all_neighbours_are_made():
    wide = Space("vit", tuple(Dim(f"d{i}", (1, 2)) for i in range(20)))
    with pytest.raises(TailorError, match=r"n = 20 dimensions\. The most is 10"):
        moves(wide, FREE)


def test_only_the_dimensions_named_move():
    meter = Meter.for_space(PAPER, Limits.of(max_params="30M"))
    some = moves(PAPER, meter, dims=("embed", "depth"))
    every = {m.gamma for m in moves(PAPER, meter)}
    where = [PAPER.keys.index(k) for k in ("embed", "depth")]
    still = [i for i in range(len(PAPER.dims)) if i not in where]
    assert {m.gamma for m in some} == {g for g in every if not any(g[i] for i in still)} != every

    asked = []

    def accuracies(archs):
        asked.extend(archs)
        return [FREE.cost("params", a) / 1e6 for a in archs]

    end, t, decisions = move_space(PAPER, FREE, lambda _space, _t: accuracies, S4Settings(pairs=3, dims=("embed",)), 0)
    assert t == 3 and all(set(d.gamma) == set(PAPER.keys) for d in decisions)
    assert [d.key for d in end.dims if d not in PAPER.dims] == ["embed"]
    assert {s.dim for s in decisions[0].slopes if s.pairs} == {"embed"} and len(asked) == 3 * 3 * 2
    with pytest.raises(TailorError, match=r"Unknown dimension in s4\.dims 'embet'.*embed"):
        moves(PAPER, FREE, dims=("embet",))


# -- what sizes a space -----------------------------------------------------------------------------------------------


def test_the_middle_member_has_middle_values():
    arch = SMALL.middle()
    assert (arch["depth"], arch["embed"]) == (7, 112)
    assert arch["mlp"] == (3.5,) * 7 and arch["heads"] == (3,) * 7 and SMALL.contains(arch)
    meter = Meter.for_space(SMALL)
    assert size_of(SMALL, meter, "params") == meter.cost("params", SMALL.largest())
    assert size_of(SMALL, meter, "params", "middle") == meter.cost("params", arch)


def test_a_space_at_the_limit_is_over_it():
    top = size_of(SMALL, FREE_SMALL, "params")
    assert broken_limit(SMALL, Meter.for_space(SMALL, Limits.of(max_params=top))) == "params"
    assert broken_limit(SMALL, Meter.for_space(SMALL, Limits.of(max_params=top + 1))) is None


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
        space, _, _ = move_space(SMALL, meter, ask, S4Settings(iterations=8, pairs=6, sized_by=by), 0)
        assert broken_limit(space, meter, by) is None
        shares[by] = sum(meter.fits(space.sample(generator(i, "share"))) for i in range(400)) / 400
    assert shares["largest"] == 1.0, "the paper's rule: every member keeps the limit"
    assert 0.2 < shares["middle"] < 0.9


def test_repairs_look_at_the_member_that_sizes_the_space():
    meter = Meter.for_space(SMALL, Limits.of(max_params="1M"))
    assert not meter.below(SMALL.largest()) and meter.below(SMALL.middle())
    for by, repairs in (("largest", 1), ("middle", 0)):
        _, _, decisions = move_space(SMALL, meter, lambda *_: None, S4Settings(iterations=0, sized_by=by), 0)
        assert len(decisions) == repairs
        assert all("the largest network" in d.sentence for d in decisions)
