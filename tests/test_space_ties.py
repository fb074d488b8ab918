"""Tied dimensions: one value a multiple of another, whatever is drawn, moved or saved."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from space_tools import STAGED, VIT, chances, members, rng, round_trips, seeds
from tailorvit.arch import Arch
from tailorvit.costs import Limits, Meter
from tailorvit.errors import TailorError
from tailorvit.families import family, named_space
from tailorvit.seek.s4 import broken_limit
from tailorvit.space import Dim, Space

TIED = Space(
    "pit",
    (
        Dim("heads", (2, 4, 8), scope="stage", stage=1),
        Dim("depth", (1, 2), scope="stage", stage=1),
        Dim("mlp", (2, 3), scope="block", stage=1),
        Dim("heads", (2, 4, 8), scope="stage", stage=2),
        Dim("base", (8, 12)),
        Dim("heads", (2, 4, 8), scope="stage", stage=3),
    ),
    (("classes", 10),),
    (("heads.1", "heads.2"), ("heads.2", "heads.3")),
)
HEADS = ("heads.1", "heads.2", "heads.3")


@st.composite
def tied_spaces(draw):
    """Spaces in which some of four dimensions are tied, in one group or in two."""
    values = st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True).map(sorted)
    dims = [Dim("width", tuple(draw(values)), scope="stage", stage=s) for s in range(4)]
    dims += [Dim("depth", (1, 2)), Dim("heads", (1, 2, 3), scope="block")]
    pairs = draw(st.lists(st.sampled_from([(0, 1), (1, 2), (2, 3), (0, 3)]), min_size=1, unique=True))
    try:
        ties = tuple((f"width.{a}", f"width.{b}") for a, b in pairs)
        return Space("any", tuple(draw(st.permutations(dims))), (), ties)
    except TailorError as error:
        assert "are multiples of one another" in str(error)
        return Space("any", tuple(dims))


def legal(space, arch):
    return all(arch.one(b) % arch.one(a) == 0 for a, b in space.multiples)


@settings(max_examples=80, deadline=None)
@given(tied_spaces(), seeds, chances, chances, st.booleans())
def test_ties_hold_whatever_is_done(space, seed, p_global, p_block, per_gene):
    draw = rng(seed)
    a, b = space.check(space.sample(draw)), space.check(space.sample(draw))
    mutant = space.check(space.mutate(a, draw, 0.5, p_global, p_block, per_gene))
    for arch in (a, b, mutant, space.cross(a, mutant, draw, per_gene), space.smallest(), space.largest()):
        assert legal(space, space.check(arch))
    for dim in space.dims:
        for value in dim.choices:  # every choice left is in some architecture
            changed = space.check(space.with_value(a, dim.key, value, draw))
            assert legal(space, changed)
            assert set(changed.many(dim.key) if dim.scope == "block" else [changed[dim.key]]) == {value}
            pinned = space.pin(dim.key, value)
            assert space.check(pinned.sample(draw)) and pinned[dim.key].choices == (value,)
    round_trips(space)


@settings(max_examples=40, deadline=None)
@given(tied_spaces())
def test_count_of_tied_members(space):
    every = [a for a in members(space) if legal(space, a)]
    assert len(set(every)) == space.count() and all(space.contains(a) for a in every)
    assert space.count(tied=False) == sum(1 for _ in members(space))


def test_tied_values_are_drawn_uniformly_from_the_legal_ones():
    draw = rng(4)
    rows = Counter(tuple(a.one(h) for h in HEADS) for a in (TIED.sample(draw) for _ in range(5000)))
    assert set(rows) == {r for r in product((2, 4, 8), repeat=3) if r[1] % r[0] == 0 and r[2] % r[1] == 0}
    assert len(rows) == 10 and all(abs(n / 5000 - 0.1) < 0.02 for n in rows.values())
    assert TIED.count() == 10 * 2 * (2 + 4) and TIED.count(tied=False) == 27 * 2 * (2 + 4)


@pytest.mark.parametrize(
    ("before", "key", "value", "after"),
    [
        ((2, 4, 8), "heads.2", 8, (2, 8, 8)),  # nothing else has to move
        ((8, 8, 8), "heads.2", 4, (4, 4, 8)),  # the least that divides
        ((2, 2, 2), "heads.1", 8, (8, 8, 8)),
        ((4, 8, 8), "heads.3", 2, (2, 2, 2)),
        ((4, 4, 4), "heads.1", 4, (4, 4, 4)),
    ],
)
def test_partners_move_to_the_nearest_legal_values(before, key, value, after):
    arch = TIED.smallest().replace(**dict(zip(HEADS, before, strict=True)))
    changed = TIED.with_value(TIED.check(arch), key, value, rng(0))
    assert tuple(changed.one(h) for h in HEADS) == after
    assert changed.replace(**{h: arch[h] for h in HEADS}) == arch
    with pytest.raises(TailorError, match=r"'heads.1' cannot be 3; the choices are 2, 4, 8"):
        TIED.with_value(arch, "heads.1", 3, rng(0))


def test_of_two_as_near_partners_the_one_on_the_way():
    space = Space("pit", (Dim("a", (2, 4, 6)), Dim("b", (4, 6))), (), (("a", "b"),))
    assert space.with_value(Arch("pit", a=4, b=4), "b", 6, rng(0)) == Arch("pit", a=6, b=6)
    assert space.with_value(Arch("pit", a=6, b=6), "b", 4, rng(0)) == Arch("pit", a=4, b=4)


def test_children_of_tied_parents_take_whole_rows_where_parts_do_not_fit():
    low, high = TIED.smallest(), TIED.largest()
    a = low.replace(**dict(zip(HEADS, (2, 2, 2), strict=True)))
    b = high.replace(**dict(zip(HEADS, (8, 8, 8), strict=True)))
    draw = rng(5)
    rows = Counter(tuple(c.one(h) for h in HEADS) for c in (TIED.check(TIED.cross(a, b, draw)) for _ in range(400)))
    assert set(rows) == {(2, 2, 2), (2, 2, 8), (2, 8, 8), (8, 8, 8)}


def test_ties_are_named_when_broken():
    arch = TIED.largest().replace(**{"heads.3": 4})
    with pytest.raises(TailorError, match=r"dimension 'heads.3' has 4, which is no multiple of the 8 of 'heads.2'"):
        TIED.check(arch)


def test_smallest_and_largest_of_ties_without_a_common_corner():
    space = Space("pit", (Dim("a", (2, 3)), Dim("b", (3, 4))), (), (("a", "b"),))
    assert space.count() == 2
    assert (space.smallest(), space.largest()) == (Arch("pit", a=3, b=3), Arch("pit", a=2, b=4))
    both = {space.smallest(), space.largest()}
    assert set(space.ends()) == set(space.ends(False)) == both, "either may cost most, or least"
    assert space.hull() == Arch("pit", a=3, b=4) and not space.contains(space.hull())


def test_without_ties_the_ends_are_the_largest_and_the_smallest():
    for space in (VIT, STAGED):
        assert space.ends() == [space.largest()] == [space.hull()] and space.ends(False) == [space.smallest()]


@pytest.mark.parametrize("metric", ["params", "macs"])
def test_no_architecture_of_a_tied_space_costs_more_or_less_than_its_ends(metric):
    """The row with the most squares is not always the dearest: MACs count the early stages more."""
    found = 0
    for steps in product((-1, 0, 1, 2), repeat=3):
        try:
            space = named_space("pit-s").shift(dict(zip(HEADS, steps)))
        except TailorError:
            continue
        meter, rows = Meter.for_space(space), [*product(*(space[k].choices for k in HEADS))]
        legal_rows = [dict(zip(HEADS, r)) for r in rows if r[1] % r[0] == r[2] % r[1] == 0]
        top, bottom = space.largest(), space.smallest()
        costs = [[meter.cost(metric, end.replace(**row)) for row in legal_rows] for end in (top, bottom)]
        assert meter.most(metric, space) == max(costs[0]) and meter.least(metric, space) == min(costs[1])
        found += meter.cost(metric, top) < max(costs[0])
    assert found, "the case this is about"


def test_a_limit_between_tied_rows_is_feasible_and_holds_back():
    space = named_space("pit-s").shift({"heads.2": 1, "heads.3": 2})
    low, high = space.smallest(), space.smallest().replace(**{"heads.1": 3, "heads.2": 6, "heads.3": 12})
    meter = Meter.for_space(space)
    assert space.contains(high) and meter.cost("macs", high) < meter.cost("macs", low)
    between = (meter.cost("macs", high) + meter.cost("macs", low)) / 2
    Meter.for_space(space, Limits.of(max_macs=between)).require_feasible(space)
    space = named_space("pit-s").shift({"heads.3": 1})
    meter = Meter.for_space(space)
    between = (meter.cost("macs", space.largest()) + meter.most("macs", space)) / 2
    meter = Meter.for_space(space, Limits.of(max_macs=between))
    assert meter.below(space.largest()) and not meter.holds(space) and broken_limit(space, meter) == "macs"


def test_a_supernet_of_tied_widths_holds_every_architecture():
    small = named_space("windowed-8px")
    wide = {"embed.1": (8, 20), "embed.2": (20, 24)}
    dims = [replace(d, choices=wide[d.key], shift=1, minimum=1) if d.key in wide else d for d in small.dims]
    space = Space("windowed", tuple(dims), small.settings, (("embed.1", "embed.2"),))
    model, draw = family("windowed").supernet(space).eval(), rng(0)
    seen = {space.sample(draw) for _ in range(8)}
    assert len({a["embed.1"] for a in seen}) == 2
    for arch in seen:
        assert model(torch.zeros(1, 1, 8, 8), arch).isfinite().all()


def test_moves_drop_choices_that_have_no_partner_left():
    space = Space("pit", (Dim("a", (1, 2)), Dim("b", (2, 4))), (), (("a", "b"),))
    moved = space.shift({"a": 1})
    assert moved["a"].choices == (2,) and moved["b"].choices == (2, 4) and moved.multiples == space.multiples
    assert moved.shift({"a": -1}) == space, "and they come back with their partners"
    lost = space.shift({"a": 2})
    assert lost["a"].choices == (4,) == lost["b"].choices and lost.shift({"a": -2}) == space
    assert space.shift({"a": 1, "b": 1})["a"].choices == (2, 3)
    with pytest.raises(TailorError, match="'a' would lose choices"):
        space.shift({"a": 1}, "strict")
    with pytest.raises(TailorError, match="No values of a 5, 6; b 2, 4 are multiples of one another"):
        space.shift({"a": 4})
    assert space.pin("a", 2)["b"].choices == (2, 4) and TIED.pin("heads.1", 8)["heads.3"].choices == (8,)


def test_ties_make_a_space_different():
    free = Space(TIED.family, TIED.dims, TIED.settings)
    assert free != TIED and "multiples" not in free.to_dict()
    assert TIED.to_dict()["multiples"] == [["heads.1", "heads.2"], ["heads.2", "heads.3"]]
    assert TIED.shift({"base": 1}).with_settings(classes=3).multiples == TIED.multiples


@pytest.mark.parametrize(
    ("space", "draws"),
    [
        (VIT, "553f3a71a9b84c94"),
        (STAGED, "90868e124335fec8"),
    ],
    ids=["one stage", "two stages"],
)
def test_draws_without_ties_are_the_same_for_ever(space, draws):
    draw, text = rng(11), ""
    for _ in range(20):
        a, b = space.sample(draw), space.sample(draw)
        text += a.to_json() + space.mutate(a, draw).to_json() + space.cross(a, b, draw).to_json()
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == draws
