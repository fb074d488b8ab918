"""Resizing: what depends on the image is interpolated, all else carried; the same size is the same network."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tailorvit.costs import Counter
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, family, named_arch, with_settings
from tailorvit.families.network import PlainNetwork
from tailorvit.families.resize import require_size, resized, resized_settings
from tailorvit.families.vit.plain import PlainViT, ViTSettings, filled_table
from tailorvit.families.windows.plain import PlainWindowed, WindowSettings, WindowStage, scaled_windows

KINDS = ["vit", "pit", "swin", "windowed", "shunted", "hybrid", "tailored", "tailored-swin"]
LARGER = {
    **dict.fromkeys(("vit", "pit", "tailored"), (12, 12)),
    **dict.fromkeys(("swin", "windowed", "shunted", "hybrid", "tailored-swin"), (16, 16)),
}


def network(name: str, **given) -> PlainNetwork:
    """The family's tiny network with every weight drawn, so that nothing is zero by chance of the start."""
    record = family(name)
    fixed = dict(record.shrink(next(iter(record.spaces.values()))).settings) | given
    torch.manual_seed(0)
    model = record.build(record.settings(fixed), record.arch({"family": name, **record.tiny}))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model.eval()


def vit(image=(32, 32), **given) -> PlainViT:
    torch.manual_seed(1)
    shared = ViTSettings(image_size=image, patch=4, channels=3, classes=5, head_dim=8, **{"reach": 9, **given})
    return PlainViT(shared, 16, [2, 1], [2, 3]).eval()


def windowed(image=(56, 56), windows=((7,), (7,), (7, 7), (7,)), seed=0) -> PlainWindowed:
    torch.manual_seed(seed)
    shared = WindowSettings(image_size=image, patch=1, channels=3, classes=4)
    stages = [
        WindowStage(8 * 2**s, w, (2,) * len(w), (4 * 2**s,) * len(w), (2.0,) * len(w)) for s, w in enumerate(windows)
    ]
    return PlainWindowed(shared, stages).eval()


def equal(ours: dict, theirs: dict) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


# -- every family ----------------------------------------------------------------------------------------------------


def test_every_family_but_the_ladder_is_here():
    assert set(FAMILIES) - {"ladder"} == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_the_same_size_is_the_same_network_to_the_bit(name):
    model = network(name)
    again = resized(model, tuple(model.settings["image_size"]))
    assert again is not model and again.settings == model.settings
    assert equal(again.state_dict(), model.state_dict())
    with torch.no_grad():
        again.get_classifier().weight.add_(1)
    assert not equal(again.state_dict(), model.state_dict()), "the old network must not share its weights"


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("wide", [False, True])
def test_a_larger_network_runs_and_is_counted(name, wide):
    model, size = network(name), LARGER[name]
    size = (size[0], size[1] + (size[1] - 8 if wide else 0)) if name != "vit" or not wide else (8, 12)
    new = resized(model, size)
    assert new.settings["image_size"] == list(size)
    assert new(torch.randn(2, model.settings["channels"], *size)).shape == (2, model.num_classes)
    kept = [k for k, v in model.state_dict().items() if "pos_embed" not in k and "rel" not in k]
    assert all(torch.equal(new.state_dict()[k], model.state_dict()[k]) for k in kept)


@pytest.mark.parametrize("name", KINDS)
def test_there_and_back_keeps_shapes(name):
    model = network(name)
    back = resized(resized(model, LARGER[name]), tuple(model.settings["image_size"]))
    assert {k: v.shape for k, v in back.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}


@pytest.mark.parametrize("name", KINDS)
def test_a_new_head_is_seeded_and_the_trunk_stays(name):
    model, heads = network(name), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        new = resized(model, classes=7)
        assert new.num_classes == 7 and new.get_classifier().weight.shape[0] == 7
        assert not new.get_classifier().bias.any()
        heads.append(new.get_classifier().weight)
        mine, theirs = new.state_dict(), model.state_dict()
        assert all(torch.equal(mine[k], theirs[k]) for k in theirs if not k.startswith("head."))
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
    torch.manual_seed(0)
    same = resized(model, classes=model.num_classes)
    assert not torch.equal(same.get_classifier().weight, model.get_classifier().weight), "asked for, so new"
    bare = resized(model, LARGER[name], classes=0)
    maps = bare.forward_intermediates(torch.randn(1, 1, *LARGER[name]), intermediates_only=True)
    assert [m.shape[1] for m in maps] == [row["num_chs"] for row in bare.feature_info]


@pytest.mark.parametrize("name", KINDS)
def test_grey_and_colour(name):
    grey = network(name)
    assert grey.settings["channels"] == 1
    colour = resized(grey, channels=3)
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(colour(x.expand(-1, 3, -1, -1)), grey(x), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(resized(colour, channels=1)(x), grey(x), atol=1e-4, rtol=1e-4)
    with pytest.raises(TailorError, match=r"1 channels cannot take 4: only grey .1. and colour .3. are"):
        resized(grey, channels=4)


@pytest.mark.parametrize("name", KINDS)
def test_timm_takes_another_image_size(name):
    import timm

    import tailorvit.for_timm  # noqa: F401 - registers

    model, size = network(name), LARGER[name]
    mine = resized(model, size, windows="keep")
    overlay = {"state_dict": model.state_dict(), "num_classes": model.num_classes, "input_size": (1, 8, 8)}
    overlay |= {"first_conv": model.first_weight.removesuffix(".weight"), "classifier": "head"}
    asked = {"family": name, "settings": model.settings, "img_size": size, "pretrained_cfg_overlay": overlay}
    maps = timm.create_model("tailorvit", pretrained=True, features_only=True, **asked).eval()
    x = torch.randn(2, 1, *size)
    with torch.no_grad():
        got = maps(x)
        wanted = mine.forward_intermediates(x, len(got), intermediates_only=True)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


# -- ViT -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(48, 48), (24, 24), (48, 32)])
def test_positions_are_resized_as_timm_does(size):
    from timm.layers import resample_abs_pos_embed

    model = vit()
    grid = [s // 4 for s in size]
    expected = resample_abs_pos_embed(model.pos_embed, grid, [8, 8], num_prefix_tokens=1)
    found = resized(model, size).pos_embed
    torch.testing.assert_close(found, expected)
    assert torch.equal(found[:, 0], model.pos_embed[:, 0])


def test_deit_at_another_size_equals_timms():
    import timm

    theirs = timm.create_model("deit_tiny_patch16_224", pretrained=False, num_classes=3).eval()
    named = named_arch("deit-ti")
    shared = family("vit").settings({**named.settings, "classes": 3})
    ours = family("vit").build(shared, named.arch).eval()
    ours.load_state_dict(theirs.state_dict())
    theirs.set_input_size(img_size=(256, 192))
    x = torch.randn(1, 3, 256, 192)
    with torch.no_grad():
        torch.testing.assert_close(resized(ours, (256, 192))(x), theirs(x), atol=1e-4, rtol=1e-4)


def test_untrained_rows_take_the_outermost_trained_one():
    table = torch.arange(30.0)[:, None]  # reach 14: row 0 is the class token's, row 15 offset 0
    filled = filled_table(table, 14, before=14, after=24)[:, 0].tolist()
    assert filled == [0, 2, *range(2, 29), 28]  # -14 takes -13's row, +14 takes +13's
    assert filled_table(table, 14, 14, 14) is table and filled_table(table, 14, 24, 14) is table
    assert filled_table(table, 14, 20, 24) is table, "20 patches had all offsets"
    assert filled_table(table, 14, 3, 5)[:, 0].tolist() == [0, *[13] * 12, *range(13, 18), *[17] * 12]
    assert table[1] == 1, "the old table is left alone"


def test_relative_tables_are_filled_by_axis():
    model = vit(image=(16, 32))  # 4 rows, 8 columns, reach 9
    new = resized(model, (16, 48))
    for name, table in model.state_dict().items():
        if ".rel_" not in name:
            continue
        found = new.state_dict()[name]
        if name.endswith("_v"):
            assert torch.equal(found, table), "as many rows as before"
        else:
            assert torch.equal(found[1:3], table[3].expand(2, -1)) and torch.equal(found[3:18], table[3:18])
            assert torch.equal(found[18:], table[17].expand(2, -1)) and torch.equal(found[0], table[0])


def test_filled_rows_matter_only_beyond_the_old_grid():
    """With positions that are all alike, a larger grid looks at far patches through the copied rows alone."""
    model = vit()
    with torch.no_grad():
        model.pos_embed[:, 1:] = model.pos_embed[:, 1:2]
        for name, table in model.named_parameters():
            if ".rel_" in name:
                table[1:2] = table[-1:] = 1e6  # what was never trained; reach 9, 8 patches: -9, -8, 8, 9
                table[2:3] = table[-2:-1] = 1e6
    new = resized(model, (48, 48))
    assert torch.isfinite(new(torch.randn(1, 3, 48, 48))).all()
    assert all(t.abs().max() < 10 for n, t in new.named_parameters() if ".rel_" in n)


# -- PiT, windows, Shunted -------------------------------------------------------------------------------------------


def test_pit_positions_follow_the_overlapping_grid():
    model = network("pit")
    new = resized(model, (12, 12))
    expected = F.interpolate(model.pos_embed, size=new.shared.grids[0], mode="bicubic", antialias=True)
    assert torch.equal(new.pos_embed, expected) and new.pos_embed.shape[2:] != model.pos_embed.shape[2:]


@pytest.mark.parametrize(("name", "before", "after"), [("swin-t", {7}, {12}), ("s3-t", {7, 14}, {12, 24})])
def test_the_papers_windows_at_384(name, before, after):
    named = named_arch(name)
    record = family(named.arch.family)
    with torch.device("meta"):
        model = record.build(record.settings(named.settings), named.arch)
        settings = resized_settings(model, (384, 384))
    assert {w for s in model.settings["stages"] for w in s["window"]} == before
    assert {w for s in settings["stages"] for w in s["window"]} == after


def test_a_window_that_covers_its_map_goes_on_covering_it():
    model = windowed(windows=((7,), (7,), (14, 7), (7,)))  # maps 56, 28, 14, 7
    assert scaled_windows(model, (56, 56)) == {7: 7, 14: 14}
    assert scaled_windows(model, (96, 96)) == {7: 12, 14: 24}
    assert scaled_windows(model, (100, 100)) == {7: 13, 14: 25}  # 12.5 and 25; maps 100, 50, 25, 13
    assert scaled_windows(model, (58, 58)) == {7: 8, 14: 15}  # 7.25 would not cover the last map of 8
    assert scaled_windows(model, (28, 28)) == {7: 4, 14: 7}
    assert scaled_windows(model, (56, 112)) == {7: 14, 14: 28}  # the root of the area says 10: the last map is 7x14
    new = resized(model, (58, 58))
    assert new.layers[3].blocks[0].attn.cut.window == (8, 8) and new.layers[2].blocks[0].attn.cut.window == (15, 15)


def test_bias_tables_are_bicubic_and_as_timm_has_them():
    from timm.layers import resize_rel_pos_bias_table_simple

    model = windowed()
    new = resized(model, (96, 96))
    tables = [n for n in model.state_dict() if n.endswith("bias_table")]
    assert len(tables) == 5
    for name in tables:
        before, found = model.state_dict()[name], new.state_dict()[name]
        assert found.shape == (23 * 23, 2)
        torch.testing.assert_close(found, resize_rel_pos_bias_table_simple(before, (12, 12), found.shape))
        middle = found.view(23, 23, 2)[11, 11]
        torch.testing.assert_close(middle, before.view(13, 13, 2)[6, 6], atol=2e-3, rtol=0)


def test_constant_tables_stay_constant():
    model, vit_model = windowed(), vit()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias_table"):
                p.copy_(torch.tensor([0.5, -2.0]).expand_as(p))
        vit_model.pos_embed.fill_(0.25)
    for name, p in resized(model, (80, 96)).named_parameters():
        if name.endswith("bias_table"):
            torch.testing.assert_close(p, torch.tensor([0.5, -2.0]).expand_as(p))
    torch.testing.assert_close(resized(vit_model, (24, 48)).pos_embed, torch.full((1, 73, 16), 0.25))


def test_windows_can_be_kept():
    model = windowed()
    kept = resized(model, (112, 112), windows="keep")
    assert kept.settings["stages"] == model.settings["stages"]
    assert equal(kept.state_dict(), model.state_dict()), "no window was clipped, so no table changes"
    assert kept.layers[3].blocks[0].attn.cut.sides == (14, 14)
    assert kept(torch.randn(1, 3, 112, 112)).shape == (1, 4)


def test_a_window_of_one_position_begins_without_bias():
    model = windowed(image=(8, 8), windows=((2,), (2,), (2,), (2,)))  # the last map is one position
    assert "layers.3.blocks.0.attn.relative_position_bias_table" not in model.state_dict()
    new = resized(model, (16, 16))
    table = new.layers[3].blocks[0].attn.relative_position_bias_table
    assert table.shape == (9, 2) and not table.any()
    assert equal(resized(new, (8, 8), windows="keep").head.state_dict(), model.head.state_dict())


def test_shunted_keeps_the_reductions_its_kernels_have():
    model = network("shunted", reduce=(16, 8, 4, 2))
    small = model.shared.reductions
    assert small == (8, 4, 2, 2), "8 px digits have smaller maps than the keys asked for"
    new = resized(model, (32, 32))
    assert new.shared.reductions == small == tuple(new.settings["reduce"])
    assert equal(new.state_dict(), model.state_dict())


# -- counts and mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vit", "pit"])
def test_the_family_counts_the_resized_network(name):
    model, size = network(name), LARGER[name]
    record = family(name)
    space = with_settings(record.shrink(next(iter(record.spaces.values()))), image_size=size)
    arch = record.arch({"family": name, **record.tiny})
    params = Counter(name, dict(space.settings)).params(arch)
    assert params == sum(p.numel() for p in resized(model, size).parameters())


@pytest.mark.parametrize(
    ("model", "side", "near"),
    [
        (vit, 35, "32 and 36"),
        (vit, 3, "4"),
        (windowed, 4, "5"),
        (lambda: network("pit"), 0, "2"),
        (lambda: network("shunted"), 1, "4"),
        (lambda: network("hybrid"), 0, "1"),
    ],
)
def test_a_size_that_cannot_be_cut_names_the_nearest(model, side, near):
    model = model()
    with pytest.raises(
        TailorError, match=rf"^Images of {side} px do not suit this .* the nearest that do: .*\.$"
    ) as told:
        require_size(model, (side, side))
    for number in near.split(" and "):
        require_size(model, (int(number), int(number)))
        assert number in str(told.value).split(":")[-1]


def test_a_network_on_a_trunk_is_refused():
    with pytest.raises(TailorError, match=r"^This ladder network .* tied to the trunk's image size; run it again\.$"):
        resized(network("ladder"), (8, 8))


def test_a_network_that_does_not_say_how_is_refused():
    class PlainMixer(PlainNetwork):
        """A network of another family."""

        kind = "mixer"

    told = r"^This mixer network cannot be resized or fine-tuned: its family does not say how\.$"
    for ask in (require_size, resized, resized_settings):
        with pytest.raises(TailorError, match=told):
            ask(PlainMixer(), (8, 8))
