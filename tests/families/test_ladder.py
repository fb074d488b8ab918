"""The ladder family: counts of the specification, bounds set by the trunk, shapes for a budget."""

from __future__ import annotations

import json
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from tailorvit import cli
from tailorvit.costs import Counter, Limits, Meter
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, named_arch, named_space, with_settings
from tailorvit.families.ladder.family import FAMILY as LADDER
from tailorvit.families.ladder.spaces import ladder_arch
from tailorvit.methods.s4 import _announce
from tailorvit.rng import generator
from tailorvit.seek.s3 import shifted
from tailorvit.seek.s4 import S4Settings, moves
from tailorvit.space import Dim, Space

DESIGNS = ("a", "evl", "lst")


def printed(*words):
    done = CliRunner().invoke(cli.app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def by_formula(design, a, b, c, d, classes, n=197, f=768):
    """Section 2.6 of the specification, word for word."""
    q = 64 * c
    if design == "a":
        h = int(b * d)
        params = a * (2 * f + f * d + d + 3 * (d * q + q) + q * d + d + 6 * d + 2 * d * h + h + d)
        macs = a * (n * f * d + 2 * n * d * q + 2 * d * q + 2 * n * q + 2 * d * h) + classes * d
        return params + d + 2 * d + classes * (d + 1), macs
    if design == "evl":
        h = round(b * f)
        params = a * (3 * (f * q + q) + q * f + f + 6 * f + 2 * f * h + h + f)
        macs = a * (2 * n * f * q + 2 * f * q + 2 * n * q + 2 * f * h) + classes * f
        return params + f + 2 * f + classes * (f + 1), macs
    h = int(b * d)
    params = a * (f * d + d + 1 + 4 * d + 3 * (d * q + q) + q * d + d + 2 * d * h + h + d)
    macs = a * (n * f * d + 4 * n * d * q + 2 * n * n * q + 2 * n * d * h) + n * f * d + classes * d
    return params + f * d + d + 2 * d + classes * (d + 1), macs


# -- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "design", "millions", "count"),
    [
        ("s4-clip", "a", (3.71, 11.48), 123_480),
        ("s4-clip-evl", "evl", (13.67, 30.01), 41_160),
        ("s4-clip-lst", "lst", (3.97, 11.77), 123_480),
    ],
)
def test_ranges_of_the_specification(name, design, millions, count):
    shown = printed("space", name, "--classes", "100")
    corners = ((3, 3.5, 2, 336), (4, 4, 14, 384))
    for key, corner, size in zip(("smallest", "largest"), corners, millions, strict=True):
        assert (shown[key]["params"], shown[key]["macs"]) == by_formula(design, *corner, 100)
        assert round(shown[key]["params"] / 1e6, 2) == size
    assert shown["count"] == count


def test_named_architectures():
    evl = printed("cost", "evl-4x768")
    assert evl["params"] == 28_436_836 and (evl["params"], evl["macs"]) == by_formula("evl", 4, 4, 12, 768, 100)
    rows = FAMILIES["ladder"].outline(LADDER.settings(evl["settings"]), named_arch("evl-4x768").arch)
    assert [r["params"] for r in rows] == [7_089_408] * 4
    assert printed("cost", "s4-clip-min")["params"] == 3_714_124
    assert printed("cost", "s4-clip-max")["params"] == 11_479_780


@pytest.mark.parametrize("design", DESIGNS)
def test_counts_are_those_of_the_built_network(design):
    space = with_settings(named_space("ladder-8px"), design=design, image_size=(10, 22))
    count, rng = Counter("ladder", dict(space.settings)), generator(0, "ladder")
    for arch in [space.smallest(), space.largest(), *(space.sample(rng) for _ in range(4))]:
        with torch.device("meta"):
            model = LADDER.build(count.shared, arch).eval()
            with FlopCounterMode(display=False) as flops:
                model(torch.empty(1, 4, 10, 22))
        assert sum(p.numel() for p in model.parameters()) == count.params(arch)
        assert flops.get_total_flops() / 2 == count.macs(arch)


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_depth_never_exceeds_the_taps():
    space = named_space("ladder-8px")
    assert space["depth"].maximum == 4 and Space.from_dict(space.to_dict()) == space
    assert space.shift({"depth": 1})["depth"].choices == (3, 4) and space.shift({"depth": 2})["depth"].choices == (4,)
    assert space.shift({"depth": 2}).shift({"depth": -2}) == space
    with pytest.raises(TailorError, match="over its maximum 4"):
        space.shift({"depth": 3})
    found = moves(space, Meter.for_space(space, Limits.of(max_params="1M")))
    assert found and all(m.space["depth"].high <= 4 for m in found)
    wide = with_settings(space, channels=6)
    assert max(m.space["depth"].high for m in moves(wide, Meter.for_space(wide))) == 5
    with pytest.raises(TailorError, match="depth 4, the trunk gives 3 taps"):
        with_settings(space, channels=3)
    inline = Space(
        "ladder", tuple(Dim.from_dict(d.key, {"choices": list(d.choices), "scope": d.scope}) for d in space.dims)
    )
    assert with_settings(inline, **dict(space.settings))["depth"].maximum == 4
    for count in (
        lambda a: Counter("ladder", dict(space.settings)).params(a),
        lambda a: LADDER.build(LADDER.settings(dict(space.settings)), a),
    ):
        with pytest.raises(TailorError, match="depth 5 is more than the 4 taps"):
            count(ladder_arch(24, 2, 2, 5))


def test_s3_moves_depth_as_far_as_the_taps_allow():
    depth = Dim("depth", (2, 3), minimum=1, maximum=4)
    assert shifted(depth, 1) == (depth.moved(1), "")
    moved, note = shifted(depth, 3)
    assert moved.choices == (3, 4) and note == "depth moves by +1 instead of moving by +3, as its maximum is 4"
    assert shifted(depth, -5)[1].endswith("to keep two choices")


def test_evl_is_as_wide_as_its_trunk():
    space = with_settings(named_space("s4-clip-evl"), image_size=(50, 512))
    assert space["embed"].choices == (512,)
    assert all(m.space["embed"].choices == (512,) for m in moves(space, Meter.for_space(space)))
    with pytest.raises(TailorError, match="embed must be 24, not 16"):
        LADDER.build(LADDER.settings({"image_size": (5, 24), "design": "evl"}), ladder_arch(16, 2, 2, 2))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"image_size": 224}, r"\[tokens, width\].*not 224\."),
        ({"image_size": (0, 5)}, r"not \[0, 5\]"),
        ({"design": "b"}, "must be a or evl or lst, not 'b'"),
        ({"act": "relu"}, "'act' must be gelu or quick_gelu"),
        ({"channels": 0}, "'channels' must be a positive whole number"),
        ({"mlp_dropout": 1.0}, "under 1, not 1.0"),
        ({"eps": 0}, "'eps' must be a small positive number"),
    ],
)
def test_settings_are_checked(settings, words):
    with pytest.raises(TailorError, match=words):
        LADDER.settings(settings)


@pytest.mark.parametrize(
    ("genes", "words"),
    [
        ({"embed": 8, "heads": 1, "mlp": 2}, "needs 'depth'"),
        ({"embed": 8, "heads": [1, 2], "mlp": [2]}, "needs 2 values of 'mlp', not 1"),
        ({"embed": 8, "heads": 1, "depth": 2}, "needs 'mlp'"),
        ({"embed": 8.5, "heads": 1, "mlp": 2, "depth": 2}, "whole positive embed"),
        ({"base": 3}, "no gene 'base'"),
    ],
)
def test_architectures_by_hand_are_checked(genes, words):
    with pytest.raises(TailorError, match=words):
        LADDER.arch(genes)


def test_a_limit_that_restricts_nothing_gets_a_warning():
    def messages(limit):
        found, limits = [], Limits.of(max_params=limit)
        space = named_space("s4-clip", classes=100)
        meter, config = Meter.for_space(space, limits), SimpleNamespace(s4=S4Settings())
        _announce(
            SimpleNamespace(
                space=space, meter=meter, limits=limits, config=config, log_once=lambda *row: found.append(row)
            )
        )
        return found

    assert messages("12M") == [] and messages(None) == []
    ((kind, text),) = messages("30M")
    assert kind == "warning" and "30M params restricts nothing" in text and "11.48M" in text


# -- shapes for a budget ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("taps", [1, 4, 12])
def test_automatic_shapes_fit_the_trunk(design, taps):
    settings = {"image_size": (17, 32), "channels": taps, "classes": 10, "design": design, "head_dim": 16}
    count = Counter("ladder", settings)
    spaces = list(islice(LADDER.auto(settings), 200))
    assert len(spaces) >= 8 and count.params(spaces[0].largest()) < 12_000
    assert all(s["depth"].high <= taps == s["depth"].maximum for s in spaces)
    archs = list(islice(LADDER.baseline(settings), 200))
    assert count.params(archs[0]) < 12_000 < count.params(archs[-1])


@pytest.mark.parametrize("name", sorted(LADDER.spaces))
def test_shrunk_spaces_suit_the_tiny_trunk(name):
    small = LADDER.shrink(named_space(name))
    assert dict(small.settings)["image_size"] == (17, 32) and small["depth"].maximum == 4
    assert small.keys == named_space(name).keys
    assert Counter("ladder", dict(small.settings)).params(small.largest()) < 60_000
