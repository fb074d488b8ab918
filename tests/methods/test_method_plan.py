"""What is chosen before a run: the first space, the baseline, the tiny form of a recipe."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailorvit.config import configure
from tailorvit.costs import Limits, Meter
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.families import FAMILIES, named_space
from tailorvit.families.blockwise import width_span
from tailorvit.families.vit.spaces import patch_for
from tailorvit.methods import METHODS
from tailorvit.methods.finish import baseline_arch
from tailorvit.methods.first_space import (
    auto_space,
    data_settings,
    default_limit,
    fixed_arch,
    image_size_for,
    initial_space,
)
from tailorvit.tiny import tiny

LIMITS = ["20k", "35k", "60k", "100k", "250k", "350k", "1M", "2.5M", "5M", "10M", "22M", "30M"]


def data(size=8, classes=10, channels=1):
    high, wide = (size, size) if isinstance(size, int) else size
    return SimpleNamespace(classes=tuple(map(str, range(classes))), channels=channels, image_size=(high, wide))


# -- patches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "patch"),
    [
        (8, 2),
        (16, 2),
        (24, 3),
        (28, 4),
        (32, 4),
        (48, 6),
        (64, 8),
        (96, 12),
        (128, 16),
        (160, 10),
        (224, 16),
        (256, 16),
    ],
)
def test_the_usual_sides(side, patch):
    assert patch_for((side, side)) == patch


def test_every_side_gets_a_patch_that_fits_or_a_sentence():
    refused = []
    for side in range(1, 513):
        try:
            patch = patch_for((side, side))
        except TailorError as error:
            refused.append(side)
            near = int(str(error).split("--image-size ")[1].rstrip("."))
            assert f"{side} px" in str(error) and near > 0 and patch_for((near, near)), "the advice works"
            continue
        assert side % patch == 0 and (4 if side >= 8 else 2) <= side // patch <= 16
        assert patch >= 2 or side < 16
    primes = [n for n in range(17, 513) if all(n % d for d in range(2, n))]
    assert set(primes) <= set(refused), "a prime side cannot be cut into equal patches"
    assert not {n for n in refused if n % 8 == 0}


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "classes"), [(8, 10), (28, 2), (32, 100), (64, 200), (224, 20)])
def test_the_largest_network_lies_just_under_the_limit(size, classes):
    for limit in LIMITS:
        limits = Limits.of(max_params=limit)
        shared = data_settings(None, data(size, classes, 3), limits)
        space = auto_space("vit", shared, limits)
        top, high = Meter.for_space(space).cost("params", space.largest()), limits.high("params")
        assert 0.88 * high <= top < high, (limit, top)
        assert len(space["mlp"].choices) == 3 and len(space["embed"].choices) == 3
        assert len(space["depth"].choices) >= 2


@pytest.mark.parametrize("limit", ["2M", "50M", "1G"])
def test_a_limit_on_macs_works_alike(limit):
    limits = Limits.of(max_macs=limit)
    space = auto_space("vit", data_settings(None, data(32), limits), limits)
    assert 0.7 * limits.high("macs") < Meter.for_space(space).cost("macs", space.largest()) < limits.high("macs")


def test_several_limits_hold_together():
    limits = Limits.of(max_params="1M", max_macs="20M")
    shared = data_settings(None, data(32), limits)
    space = auto_space("vit", shared, limits)
    params, macs = Meter.for_space(space).counter.both(space.largest())
    assert params < 1e6 and macs < 20e6
    assert params < Meter("vit", shared).cost("params", auto_space("vit", shared, Limits.of(max_params="1M")).largest())


@pytest.mark.parametrize(
    ("size", "classes", "limit"),
    [(8, 10, {"max_params": "500"}), (224, 1000, {"max_params": "5k"}), (32, 10, {"max_macs": "1k"})],
)
def test_impossible_limits_name_the_smallest_cost(size, classes, limit):
    limits = Limits.of(**limit)
    with pytest.raises(InfeasibleError) as caught:
        auto_space("vit", data_settings(None, data(size, classes, 3), limits), limits)
    text = str(caught.value)
    assert f"{classes} classes at {size}x{size} px" in text and limits.describe() in text
    assert any(c.isdigit() for c in text.split("the smallest tried has ")[1])


def test_default_limits_grow_with_the_data():
    sizes = [default_limit(n) for n in (500, 5_000, 50_000, 500_000)]
    assert sizes == ["60k", "1M", "5M", "22M"]


# -- the first space holds the baseline -------------------------------------------------------------------------------

TRUNK = {"image_size": (50, 384), "channels": 6, "classes": 10}


def settled(name, size, classes, limits):
    """Settings as a run makes them; a ladder's are its trunk's."""
    if name != "ladder":
        return data_settings(None, data(size, classes, 3), limits, name)
    return {**TRUNK, "classes": classes, **FAMILIES[name].settle((8, 8), limits.high("params") or 1e6)}


@pytest.mark.parametrize("name", sorted(FAMILIES))
@given(
    size=st.sampled_from([8, 16, 28, 32, 64, 96, 224, (48, 64)]),
    classes=st.integers(2, 200),
    limit=st.floats(4.4, 7.5),
    metric=st.sampled_from(["max_params", "max_macs"]),
)
@settings(max_examples=25, deadline=None)
def test_the_first_space_holds_the_baseline(name, size, classes, limit, metric):
    limits = Limits.of(**{metric: 10**limit * (30 if metric == "max_macs" else 1)})
    try:
        space = auto_space(name, settled(name, size, classes, limits), limits)
    except InfeasibleError:
        return  # not even the smallest network keeps it
    meter = Meter.for_space(space, limits)
    baseline = baseline_arch(space, meter)
    assert meter.holds(space) and baseline is not None
    assert space.problem(baseline) is None
    assert all(d.choices == d.interval for d in space.dims)


def test_a_baseline_at_the_limit_itself_is_no_member():
    """Spaces lie strictly under the limit; the next smaller hand-designed network is inside."""
    limits = Limits.of(max_params="60k")
    shared = data_settings(None, data(8), limits)
    space = auto_space("vit", shared, limits)
    size = Meter.for_space(space).cost("params", baseline_arch(space, Meter.for_space(space, limits)))
    at = Limits.of(max_params=size)
    below = auto_space("vit", shared, at)
    meter = Meter.for_space(below, at)
    assert meter.holds(below) and below.contains(baseline_arch(below, meter, strict=True))
    assert meter.size(baseline_arch(below, meter)) == size


def test_where_there_is_no_baseline_the_space_is_the_largest():
    limits = Limits.of(max_params="60k", min_params="59900")
    shared = data_settings(None, data(8), limits)
    space = auto_space("vit", shared, limits)
    assert baseline_arch(space, Meter.for_space(space, limits)) is None and Meter.for_space(space, limits).holds(space)


def test_steps_are_large_enough_to_get_somewhere():
    """An eighth of the width, two blocks where there are many."""
    for limit, low, high, step in (("60k", 4, 8, 1), ("1.5M", 16, 24, 1), ("22M", 32, 64, 2)):
        limits = Limits.of(max_params=limit)
        space = auto_space("vit", data_settings(None, data(32, 10, 3), limits), limits)
        assert low <= space["embed"].shift <= high and space["depth"].shift == step, (limit, space)
        assert 1 / 12 < space["embed"].shift / space["embed"].high < 1 / 5
    for top in range(8, 2049):
        for head in (8, 16, 32, 64):
            least, most, step = width_span(top, head)
            assert least >= step > 0 and most == top and least + 2 * step == top


# -- the baseline -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", LIMITS)
def test_the_baseline_fits_and_uses_the_limit(limit):
    limits = Limits.of(max_params=limit)
    shared = data_settings(None, data(32, 10, 3), limits)
    space = auto_space("vit", shared, limits)
    meter = Meter.for_space(space, limits)
    baseline = baseline_arch(space, meter)
    share = meter.cost("params", baseline) / limits.high("params")
    assert meter.fits(baseline) and share > (0.88 if limits.high("params") >= 50_000 else 0.75)
    assert len(set(baseline.many("heads"))) == 1 and set(baseline.many("mlp")) == {4}


def test_no_baseline_under_an_impossible_limit():
    space = named_space("vit-8px")
    assert baseline_arch(space, Meter.for_space(space, Limits.of(max_params="100"))) is None


def test_without_an_upper_limit_the_baseline_is_no_larger_than_the_space():
    space = named_space("vit-8px")
    for limits in (Limits(), Limits.of(min_params="30k")):
        meter = Meter.for_space(space, limits)
        baseline = baseline_arch(space, meter)
        assert baseline is not None and meter.fits(baseline)
        assert meter.cost("params", baseline) <= meter.cost("params", space.largest())


def test_a_lower_limit_far_above_the_smallest_networks():
    space = named_space("vit-8px")
    limits = Limits.of(min_params="900k", max_params="1M")
    baseline = baseline_arch(space, Meter.for_space(space, limits))
    assert 900e3 <= Meter.for_space(space).cost("params", baseline) <= 1e6


# -- spaces and archs a recipe names ----------------------------------------------------------------------------------


def test_named_and_written_spaces():
    task, limits = data(64, 5, 3), Limits.of(max_params="30M")
    named = initial_space(configure({"space": "vit-64px"}), task, limits)
    assert dict(named.settings)["classes"] == 5 and named.dims == named_space("vit-64px").dims
    short = initial_space(configure({"space": {"name": "vit-64px", "settings": {"relative": False}}}), task, limits)
    assert dict(short.settings)["relative"] is False
    old = initial_space(configure({"space": {"name": "vit-64px", "fixed": {"relative": False}}}), task, limits)
    assert old == short, "the key was 'fixed' until version 0.1"
    inline = initial_space(configure({"space": named_space("vit-64px").to_dict()}), task, limits)
    assert inline == named
    auto = initial_space(configure({}), task, limits)
    assert Meter.for_space(auto, limits).below(auto.largest())


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ("vit-63px", "Unknown space 'vit-63px'. Did you mean 'vit-64px'?"),
        ({"name": "vit-64px", "dims": {}}, "takes only 'settings' besides, not 'dims'"),
        ({"family": "swan", "dims": {"depth": {"choices": [1]}}}, "Unknown family 'swan'"),
        ({"family": "vit", "dims": {"depth": {"choices": [2, 1]}}}, "ascending"),
        ({"family": "vit"}, "at least one dimension"),
        ({"family": "vit", "dims": {"depth": {"choices": [1]}}, "colour": 1}, "no key 'colour'"),
    ],
    ids=str,
)
def test_wrong_spaces_are_named(space, words):
    with pytest.raises(TailorError) as caught:
        initial_space(configure({"space": space}), data(64), Limits())
    assert words in str(caught.value)


def test_fixed_architectures():
    arch, shared = fixed_arch(configure({"method": "fixed", "arch": "deit-ti"}))
    assert arch.one("embed") == 192 and shared["patch"] == 16
    arch, shared = fixed_arch(
        configure({"method": "fixed", "arch": {"family": "vit", "depth": 2, "embed": 8, "heads": 1, "mlp": 2}})
    )
    assert arch.many("heads") == (1, 1) and shared == {}
    table = {"method": "fixed", "arch": {"family": "vit", "depth": 2, "embed": 8, "heads": 1, "mlp": 2}}
    beside = named_space("vit-64px")
    for space in ("vit-64px", beside.to_dict()):  # a table says nothing of patch and head width: its space does
        assert fixed_arch(configure({**table, "space": space}))[1] == dict(beside.settings)
    assert fixed_arch(configure({**table, "arch": "deit-ti", "space": "vit-64px"}))[1]["patch"] == 16
    with pytest.raises(TailorError, match="of family 'vit', but the space is of 'swin'"):
        fixed_arch(configure({**table, "space": "s4-swin"}))
    with pytest.raises(TailorError, match="needs 'arch'"):
        fixed_arch(configure({"method": "fixed"}))
    with pytest.raises(TailorError, match="Unknown architecture 'deit-t'"):
        fixed_arch(configure({"method": "fixed", "arch": "deit-t"}))


def test_image_sizes():
    assert image_size_for(configure({})) is None
    assert image_size_for(configure({"data": {"image_size": 40}})) == 40
    assert image_size_for(configure({"space": "vit-64px"})) == (64, 64)
    assert image_size_for(configure({"method": "fixed", "arch": "deit-ti"})) == (224, 224)
    assert image_size_for(configure({"space": {"name": "vit-64px", "settings": {"image_size": [32, 32]}}})) == (32, 32)


def test_oblong_images():
    limits = Limits.of(max_params="1M")
    shared = data_settings(None, data((32, 64), 3), limits)
    assert shared["patch"] == 4 and shared["image_size"] == (32, 64)
    assert auto_space("vit", shared, limits).count() > 1


@pytest.mark.parametrize("size", [(48, 64), (64, 48), (96, 128), (60, 80), (120, 160), (28, 42), (224, 336)])
def test_a_patch_cuts_both_sides(size):
    patch = patch_for(size)
    assert size[0] % patch == size[1] % patch == 0 and 4 <= min(size) // patch <= 16
    limits = Limits.of(max_params="1M")
    space = auto_space("vit", data_settings(None, data(size, 3, 3), limits), limits)
    assert Meter.for_space(space).cost("macs", space.largest()) > 0


def test_oblong_images_that_no_patch_cuts_get_advice_that_works():
    with pytest.raises(TailorError, match=r"97x101 px .*try --set data.image_size=\[96,104\]\.$"):
        patch_for((97, 101))
    assert patch_for((96, 104)) == 8


# -- tiny forms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(n for f in FAMILIES.values() for n in f.spaces))
def test_shrunk_spaces_keep_their_shape_and_are_small(name):
    full = named_space(name)
    small = FAMILIES[full.family].shrink(full)
    assert small.keys == full.keys and [d.scope for d in small.dims] == [d.scope for d in full.dims]
    most = 30_000 if full.family == "vit" else 200_000  # four stages double their width three times
    assert Meter.for_space(small).cost("params", small.largest()) < most
    assert all(len(d.choices) <= len(f.choices) for d, f in zip(small.dims, full.dims))


def test_scaled_limits_keep_their_place():
    recipe = {"space": {"name": "s4-vit", "settings": {"classes": 200}}, "limits": {"max_params": "30M"}}
    config = configure(tiny(recipe, own_data=False))
    space = initial_space(config, data(8), config.budget())
    meter = Meter.for_space(space, config.budget())
    assert not meter.below(space.largest()) and meter.fits(space.smallest()), "over the limit, as the paper's is"
    assert configure(tiny({"limits": {"max_latency": "5ms"}, "space": "vit-64px"}, False)).limits == {}


# -- the table --------------------------------------------------------------------------------------------------------


def test_methods_table():
    assert set(METHODS) >= {"s4", "s3", "autoformer", "bignas", "hat", "tf-tas", "fixed"}
    for name, record in METHODS.items():
        assert record.name == name and record.summary
    known = r"Known: autoformer, bignas, contest, finetune, fixed, hat, s3, s4, tailor, tf-tas\."
    with pytest.raises(TailorError, match=known):
        METHODS["s5"]
