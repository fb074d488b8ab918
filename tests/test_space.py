"""Spaces: drawing, looking, moving and saving never leave what was asked for."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space_tools import STAGED, VIT, both, chances, made_spaces, members, rng, round_trips, seeds
from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, named_space, with_settings
from tailorvit.space import Dim, Space

# -- closure -----------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(made_spaces(), seeds, chances, chances, chances, st.booleans())
def test_sample_mutate_and_cross_never_leave_the_space(space, seed, p_depth, p_global, p_block, per_gene):
    draw = rng(seed)
    a, b = space.check(space.sample(draw)), space.check(space.sample(draw))
    mutant = space.check(space.mutate(a, draw, p_depth, p_global, p_block, per_gene))
    space.check(space.cross(a, b, draw, per_gene))
    space.check(space.cross(mutant, b, draw, per_gene))
    space.check(space.smallest())
    space.check(space.largest())
    if p_depth == p_global == p_block == 0:
        assert mutant == a


@both
@settings(deadline=None)
@given(seed=seeds, per_gene=st.booleans())
def test_child_takes_every_value_from_a_parent(space, seed, per_gene):
    draw = rng(seed)
    a, b = space.sample(draw), space.sample(draw)
    child = space.cross(a, b, draw, per_gene)
    for dim in space.dims:
        if dim.scope != "block":
            assert child.one(dim.key) in (a.one(dim.key), b.one(dim.key))
    for stage in {d.stage for d in space.dims if d.scope == "block"}:
        keys = [d.key for d in space.dims if d.scope == "block" and d.stage == stage]
        rows = {k: [p.many(k) for p in (a, b)] for k in keys}
        for i in range(len(child.many(keys[0]))):
            options = [p for p in range(2) if i < len(rows[keys[0]][p])]
            assert options, "a child is never deeper than both parents"
            here = [child.many(k)[i] for k in keys]
            if per_gene:
                assert all(v in [rows[k][p][i] for p in options] for k, v in zip(keys, here, strict=True))
            else:
                assert here in [[rows[k][p][i] for k in keys] for p in options]


def test_parents_of_different_depth_give_children_of_both():
    shallow = Arch("vit", depth=1, embed=16, heads=(2,), mlp=(2,))
    deep = Arch("vit", depth=4, embed=40, heads=(6,) * 4, mlp=(3,) * 4)
    draw = rng(0)
    children = [VIT.check(VIT.cross(shallow, deep, draw)) for _ in range(200)]
    assert {c["depth"] for c in children} == {1, 4} and {c["embed"] for c in children} == {16, 40}
    assert all(c.many("heads")[1:] == (6, 6, 6) for c in children if c["depth"] == 4)
    pairs = Counter((c.many("heads")[0], c.many("mlp")[0]) for c in children)
    assert set(pairs) == {(2, 2), (6, 3)}  # a block's values come together
    loose = Counter(
        (c.many("heads")[0], c.many("mlp")[0])
        for c in (VIT.cross(shallow, deep, draw, per_gene=True) for _ in range(200))
    )
    assert len(loose) == 4


@both
def test_certain_mutation_changes_everything(space):
    draw = rng(1)
    for _ in range(50):
        arch = space.sample(draw)
        for per_gene in (False, True):
            mutant = space.mutate(arch, draw, 1, 1, 1, per_gene)
            for dim in space.dims:
                if dim.scope != "block":
                    assert mutant.one(dim.key) != arch.one(dim.key)
        still = space.mutate(arch, draw, 0, 0, 1, per_gene=True)
        for dim in space.dims:
            if dim.scope == "block":
                assert all(v != w for v, w in zip(still.many(dim.key), arch.many(dim.key), strict=True))
            else:
                assert still.one(dim.key) == arch.one(dim.key)


def test_a_redraw_of_the_released_code_may_return_the_old_value():
    draw, arch, dim = rng(4), VIT.largest(), VIT["heads"]
    mutants = [VIT.mutate(arch, draw, 0, 0, 1, True, True) for _ in range(300)]
    kept = np.mean([v == w for m in mutants for v, w in zip(m.many("heads"), arch.many("heads"), strict=True)])
    assert kept == pytest.approx(1 / len(dim.choices), abs=0.04)
    again = [VIT.mutate(arch, draw, 1, 0, 0, False, True).one("depth") == arch.one("depth") for _ in range(600)]
    assert np.mean(again) == pytest.approx(1 / len(VIT["depth"].choices), abs=0.08)


def test_mutation_rates_and_prefix():
    draw, arch = rng(2), VIT.largest()
    mutants = [VIT.mutate(arch, draw, 0.2, 0.3, 0.0) for _ in range(2000)]
    assert np.mean([m["depth"] != 4 for m in mutants]) == pytest.approx(0.2, abs=0.03)
    assert np.mean([m["embed"] != 40 for m in mutants]) == pytest.approx(0.3, abs=0.03)
    assert all(m.many("heads") == (6,) * int(m.one("depth")) for m in mutants)  # surplus blocks go, the rest stay
    blocks = [VIT.mutate(arch, draw, 0, 0, 0.4) for _ in range(1000)]
    rows = [r for m in blocks for r in zip(m.many("heads"), m.many("mlp"), strict=True)]
    assert np.mean([r != (6, 3) for r in rows]) == pytest.approx(0.4, abs=0.03)
    separate = [VIT.mutate(arch, draw, 0, 0, 0.4, per_gene=True) for _ in range(1000)]
    assert np.mean([h != 6 for m in separate for h in m.many("heads")]) == pytest.approx(0.4, abs=0.03)


def test_sampling_is_uniform_per_value():
    draw = rng(3)
    archs = [VIT.sample(draw) for _ in range(3000)]
    for key, n in (("depth", 4), ("embed", 3)):
        counts = Counter(a[key] for a in archs)
        assert len(counts) == n and all(abs(c / 3000 - 1 / n) < 0.03 for c in counts.values())
    heads = Counter(h for a in archs for h in a.many("heads"))
    assert all(abs(c / heads.total() - 1 / 3) < 0.03 for c in heads.values())
    assert [VIT.sample(rng(5)) for _ in range(2)] == [VIT.sample(rng(5)) for _ in range(2)]


@both
@settings(deadline=None)
@given(seed=seeds)
def test_with_value_sets_one_dimension(space, seed):
    draw = rng(seed)
    arch = space.sample(draw)
    for dim in space.dims:
        value = dim.choices[int(draw.integers(len(dim.choices)))]
        changed = space.check(space.with_value(arch, dim.key, value, draw))
        genes = changed[dim.key]
        assert set(genes if isinstance(genes, tuple) else (genes,)) == {value}
        for other in space.dims:
            if other.scope == "block" and dim.name == "depth" and other.stage == dim.stage:
                n = min(int(value), len(arch.many(other.key)))
                assert changed.many(other.key)[:n] == arch.many(other.key)[:n]
            elif other.key != dim.key:
                assert changed[other.key] == arch[other.key]


# -- looking -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(made_spaces())
def test_count_is_the_number_of_members(space):
    if space.count() <= 3000:
        every = list(members(space))
        assert len(set(every)) == len(every) == space.count()
        assert all(space.contains(a) for a in every)


def test_count_of_stages():
    assert STAGED.count() == 2 * (4 + 16 + 64) * (3**2 + 3**4) * 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"embed": 20}, "dimension 'embed' has 20; the choices are 16, 24, 40"),
        ({"heads": (2, 3)}, "dimension 'heads' has 3; the choices are 2, 4, 6"),
        ({"heads": (2,)}, "dimension 'heads' has 1 values for 2 blocks"),
        ({"heads": 2}, "dimension 'heads' needs one value per block"),
        ({"embed": (16, 16)}, "dimension 'embed' needs one value"),
        ({"window": 7}, "dimension 'window' is not in the space"),
        ({"depth": 5, "heads": (2,) * 5, "mlp": (2,) * 5}, "dimension 'depth' has 5; the choices are 1, 2, 3, 4"),
    ],
)
def test_a_foreign_arch_is_refused_by_dimension(change, words):
    arch = Arch("vit", depth=2, embed=16, heads=(2, 4), mlp=(2, 2.5))
    assert VIT.check(arch) is arch
    other = arch.replace(**change)
    assert not VIT.contains(other)
    with pytest.raises(TailorError) as error:
        VIT.check(other)
    assert words in str(error.value)


def test_missing_dimension_family_and_unknown_key():
    with pytest.raises(TailorError, match="dimension 'mlp' is missing"):
        VIT.check(Arch("vit", depth=1, embed=16, heads=(2,)))
    with pytest.raises(TailorError, match="family 'pit', the space of 'vit'"):
        VIT.check(Arch("pit", depth=1, embed=16, heads=(2,), mlp=(2,)))
    with pytest.raises(TailorError, match="no dimension 'width'; it has depth, mlp, heads, embed"):
        VIT["width"]


def test_staged_genes_carry_the_stage():
    assert STAGED.keys == ("depth.0", "embed.0", "heads.0", "window.0", "depth.1", "heads.1", "mlp")
    arch = STAGED.largest()
    assert arch.many("heads.0") == (2, 2, 2) and arch.many("heads.1") == (8, 8, 8, 8) and arch.one("mlp") == 4
    with pytest.raises(TailorError, match=r"dimension 'heads.1' has 5; the choices are 4, 6, 8"):
        STAGED.check(arch.replace(**{"heads.1": (8, 5, 8, 8)}))


# -- moving ------------------------------------------------------------------------------------------------------------


def test_bounds_cut_choices_and_not_the_interval():
    """Eq. 2 of S4 shifts a set of choices; what falls out of the bounds comes back with the set."""
    heads = Dim.span("heads", 2, 14, 2, scope="block", minimum=1)
    down = heads.moved(-3)
    assert down.choices == (2, 4, 6, 8) and down.nominal == (-4, -2, 0, 2, 4, 6, 8)
    assert down.moved(3) == heads == down.moved(1).moved(2) and heads.nominal == ()
    assert down.moved(1).choices == (2, 4, 6, 8, 10) and down.moved(4).choices == (4, 6, 8, 10, 12, 14, 16)
    depth = Dim.span("depth", 2, 4, 1, maximum=5)
    assert depth.moved(2).choices == (4, 5) and depth.moved(2).moved(-2) == depth
    with pytest.raises(TailorError, match=r"'depth' cannot move by 4: \[6, 7, 8\] falls over its maximum 5"):
        depth.moved(4)
    with pytest.raises(TailorError, match=r"'heads' cannot move by -7: .* falls under its minimum 1"):
        heads.moved(-7)
    assert down.only(4, 6).moved(1).choices == (6, 8), "a pinned dimension has nothing behind it"


@given(space=made_spaces(), steps=st.lists(st.integers(-3, 3), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_walk_that_returns_ends_in_the_same_space(space, steps):
    here, at = space, 0
    for step in steps:
        try:
            here = here.shift(dict.fromkeys(space.keys, step))
        except TailorError:
            continue  # nothing would be left
        at += step
        round_trips(here)
    assert here.shift(dict.fromkeys(space.keys, -at)) == space, "the way back is always open"


def test_a_space_remembers_its_interval_when_it_is_stored():
    moved = VIT.shift({"heads": -2, "depth": -1})
    back = Space.from_dict(moved.to_dict())
    assert moved.to_dict()["dims"]["heads"]["nominal"] == [-2, 0, 2] and "nominal" not in VIT.to_dict()["dims"]["heads"]
    assert back == moved and back.shift({"heads": 2, "depth": 1}) == VIT
    old = moved.to_dict()
    for dim in old["dims"].values():
        dim.pop("nominal", None)
    assert Space.from_dict(old)["heads"].choices == (2,), "a folder of an older version opens"
    assert Space.from_dict(old).shift({"heads": 2})["heads"].choices == (6,)


@pytest.mark.parametrize(
    ("nominal", "words"),
    [((4, 2), "ascending"), ((2, 3), r"hold its choices \[2, 4\]"), ((2, 2, 4), "different")],
)
def test_nominal_choices_are_checked(nominal, words):
    with pytest.raises(TailorError, match=words):
        Dim("heads", (2, 4), nominal=nominal)
    with pytest.raises(TailorError, match="The nominal of dimension 'heads' must be a list"):
        Dim.from_dict("heads", {"choices": [2, 4], "nominal": 3})


def test_shift_moves_whole_intervals():
    moved = VIT.shift({"depth": 1, "mlp": 1, "embed": -1, "heads": 0})
    assert moved["depth"].choices == (2, 3, 4, 5)
    assert moved["mlp"].choices == (2.5, 3, 3.5)
    assert moved["embed"].choices == (8, 16, 32)  # by the smallest gap, 8
    assert moved["heads"] is VIT["heads"]
    assert VIT.difference(moved) == "depth 1-4 -> 2-5, mlp 2-3 -> 2.5-3.5, embed 16-40 -> 8-32"
    assert VIT.difference(VIT) == "nothing"
    assert VIT["depth"].choices == (1, 2, 3, 4)


@settings(deadline=None)
@given(made_spaces(), st.integers(0, 5))
def test_shift_up_keeps_the_number_of_choices_and_comes_back(space, steps):
    moved = space.shift(dict.fromkeys(space.keys, steps))
    assert all(len(moved[k].choices) == len(space[k].choices) for k in space.keys)
    assert moved.shift(dict.fromkeys(space.keys, -steps)) == space


def test_choices_that_reach_zero():
    assert VIT.shift({"heads": -1})["heads"].choices == (2, 4)
    with pytest.raises(TailorError, match=r"'heads' cannot move by -1: \[0, 2, 4\] falls under its minimum 1"):
        VIT.shift({"heads": -1}, "strict")
    with pytest.raises(TailorError, match="'depth' cannot move by -9"):
        VIT.shift({"depth": -9})
    with pytest.raises(TailorError, match="no dimension 'width'"):
        VIT.shift({"width": 1})


def test_pin():
    pinned = VIT.pin("heads", 4.0)
    draw = rng(0)
    for _ in range(20):
        arch = pinned.sample(draw)
        assert set(arch.many("heads")) == {4} and VIT.contains(arch)
    assert pinned.pin("depth", 2).count() == 3 * 3**2
    with pytest.raises(TailorError, match="Cannot pin 'heads' to 5; the choices are 2, 4, 6"):
        VIT.pin("heads", 5)
    assert pinned["heads"].shift == 2  # what one move means does not change with the choices


# -- saving ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(made_spaces(), st.integers(0, 3))
def test_round_trip(space, steps):
    round_trips(space)
    round_trips(space.shift(dict.fromkeys(space.keys, steps)))


@pytest.mark.parametrize("name", sorted(n for f in FAMILIES.values() for n in f.spaces))
def test_named_spaces_round_trip(name):
    round_trips(named_space(name))
    first = named_space(name).dims[0]
    round_trips(named_space(name).pin(first.key, first.low))


def test_spans_and_settings_from_a_recipe():
    text = """
    family = "vit"
    fixed = {image_size = [32, 32], classes = 10}
    [dims]
    depth = {low = 2, high = 4, step = 1}
    mlp = {scope = "block", low = 3.1, high = 3.4, step = 0.1}
    heads = {scope = "block", choices = [1, 2]}
    embed = {choices = [32, 64], shift = 16, minimum = 16}
    """
    space = Space.from_dict(tomllib.loads(text))
    assert space["mlp"].choices == (3.1, 3.2, 3.3, 3.4)
    assert space["depth"].shift == 1 and space["embed"].shift == 16
    assert dict(space.settings)["image_size"] == (32, 32)
    assert space.shift({"mlp": 3})["mlp"].choices == (3.4, 3.5, 3.6, 3.7)  # no binary drift
    round_trips(space)


def test_fixed_settings_are_replaced_not_changed():
    other = VIT.with_settings(classes=7, patch=2)
    assert dict(other.settings) == {"classes": 7, "patch": 2} and dict(VIT.settings) == {"classes": 10}
    assert other != VIT and other.dims == VIT.dims


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dim("embed", ()), "choices of dimension 'embed' must be positive, ascending and different, not []"),
        (lambda: Dim("embed", (2, 1)), "ascending and different, not [2, 1]"),
        (lambda: Dim("embed", (1, 1)), "ascending and different, not [1, 1]"),
        (lambda: Dim("embed", (0, 1)), "must be positive"),
        (lambda: Dim("embed", (1,), scope="layer"), "scope of dimension 'embed' is 'layer'; it must be one of global"),
        (lambda: Dim("embed", (8,), minimum=16), "smallest choice 8 of dimension 'embed' lies under its minimum 16"),
        (lambda: Dim("heads", (8,), stage=2, shift=-1), "shift of dimension 'heads.2' must be positive, not -1"),
        (lambda: Dim.span("mlp", 3, 4, 0.3), "Dimension 'mlp': 4 is not 3 plus whole steps of 0.3"),
        (lambda: Dim.span("mlp", 4, 3, 0.5), "Dimension 'mlp' needs low <= high and step > 0"),
        (lambda: Dim.from_dict("mlp", {"choice": [1]}), "unknown key 'choice'; known: choices, high"),
        (lambda: Dim.from_dict("mlp", {"low": 1}), "needs 'choices', or 'low', 'high' and 'step'"),
        (lambda: Space("vit", (Dim("heads", (1,), scope="block"),)), "'heads' needs the dimension 'depth'"),
        (lambda: Space("vit", (Dim("embed", (1,)), Dim("embed", (2,)))), "name each dimension once"),
        (lambda: Space.from_dict({"family": "vit", "dim": {}}), "no key 'dim'; it has family, settings and dims"),
        (lambda: Space.from_dict({"family": "vit", "dims": {}}), "at least one dimension"),
        (lambda: Space("vit", VIT.dims, (), (("depth", "embed"),)), "'depth' cannot be tied"),
        (lambda: Space("vit", VIT.dims, (), (("embed", "heads"),)), "'heads' cannot be tied"),
        (lambda: Space("vit", VIT.dims, (), (("embed", "width"),)), "no dimension 'width'"),
        (lambda: Space.from_dict({**VIT.to_dict(), "multiples": ["embed"]}), "a list of pairs of dimensions, not ['em"),
        (lambda: Space.from_dict({**VIT.to_dict(), "multiples": "ab"}), "a list of pairs of dimensions, not 'ab'"),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(TailorError) as error:
        make()
    assert words in str(error.value)
    assert str(error.value).count("\n") == 0


def test_counts_are_whole():
    with pytest.raises(TailorError, match="choices of dimension 'depth' must be whole numbers"):
        Dim("depth", (2, 2.5, 3))
    assert Dim("mlp", (2, 2.5, 3)).choices == (2, 2.5, 3)
    for name in ("heads", "embed"):  # other genes are whole unless their family says otherwise
        dims = tuple(replace(d, choices=(2, 2.5, 3), minimum=0) if d.key == name else d for d in VIT.dims)
        with pytest.raises(TailorError, match=f"choices of dimension '{name}' must be whole numbers"):
            with_settings(replace(VIT, dims=dims))
