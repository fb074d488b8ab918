"""Pretrained Swins: the outputs of timm's own modules, at the size they were trained for and at others."""

from __future__ import annotations

import re

import pytest
import timm
import torch
from timm.layers import RmsNorm
from timm.models.swin_transformer import SwinTransformer
from torch import nn

from tailorvit.checkpoints.pretrained import Pretrained
from tailorvit.checkpoints.pretrained_swin import TINY, from_swin, from_timm_swin
from tailorvit.checkpoints.starts import open_pretrained
from tailorvit.errors import TailorError
from tailorvit.trunks import libraries
from tailorvit.trunks.layouts import NORMS

NAME = "swin_tiny_patch4_window7_224.ms_in22k_ft_in1k"
SMALL = {**TINY, "img_size": 32, "patch_size": 2, "depths": (1, 2, 3, 2), "num_classes": 7}
KINDS = {
    "plain": {},
    "no qkv bias": {"qkv_bias": False},
    "other norms": {"norm_layer": lambda width, **kw: nn.LayerNorm(width, eps=1e-3, **kw)},
    "not square": {"img_size": (64, 128)},
    "a window of one position": {"img_size": 16, "window_size": 2},
    "one window per map": {"window_size": (2, 2, 4, 2)},
    "windows that do not cover the last map": {"window_size": 1, "img_size": 64},
}


def stirred(model):
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=rng))
    return model.eval()


def made(**kind):
    torch.manual_seed(0)
    return stirred(SwinTransformer(**{**SMALL, **kind}))


def images(sides):
    high, wide = (sides, sides) if isinstance(sides, int) else sides
    return torch.randn(2, 3, high, wide, generator=torch.Generator().manual_seed(1))


def close(found, wanted):
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_timms_own_modules_keep_their_outputs(kind):
    theirs = made(**KINDS[kind])
    start = from_timm_swin("timm:test", theirs)
    ours, x = start.features(), images(theirs.patch_embed.img_size)
    mine, other = (m.forward_intermediates(x, intermediates_only=True) for m in (ours, theirs))
    for found, wanted in zip(mine, other, strict=True):
        close(found, wanted)
    close(ours.forward_features(x), theirs.forward_features(x))
    close(ours.forward_head(ours.forward_features(x), True), theirs.forward_head(theirs.forward_features(x), True))
    assert start.settings.head_dim == 8 and start.arch.one("depth.3") == 3
    assert start.family.settings({**start.settings.to_dict(), "classes": 5}).image_size == start.settings.image_size


@pytest.mark.parametrize("size", [(64, 64), (48, 48), (16, 16), (64, 32)])
@torch.no_grad()
def test_at_other_sizes_windows_grow_with_the_image_and_tables_are_interpolated(size):
    """timm's module with the windows and the tables that our resizing gives computes the same."""
    start = from_timm_swin("timm:test", made())
    ours, x = start.network(size, 5, 3, seed=0).eval(), images(size)
    windows = [shape.window[0] for shape in ours.shapes]
    theirs = SwinTransformer(**{**SMALL, "img_size": size, "window_size": windows, "num_classes": 5}).eval()
    state = dict(ours.state_dict())
    for name, table in theirs.state_dict().items():  # a window of one position has a table that changes nothing
        if name not in state and len(table) == 1:
            state[name] = table
    theirs.load_state_dict(state)
    close(ours.forward_features(x), theirs.forward_features(x))
    close(ours(x), theirs(x))
    assert windows == {64: [8, 8, 8, 4], 48: [6, 6, 6, 3], 16: [2, 2, 2, 1]}.get(size[0], windows) or size[0] != size[1]
    kept = {k: v for k, v in start.state.items() if "bias_table" not in k}
    assert all(torch.equal(ours.state_dict()[k], v) for k, v in kept.items())


@torch.no_grad()
def test_a_weight_file_for_a_name_of_timm_needs_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(libraries, "hub_reachable", lambda: pytest.fail("asked the hub"))
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", torch.nn.init.normal_)
    theirs = stirred(timm.create_model(NAME, weight_init="skip"))
    torch.save({"model": theirs.state_dict()}, tmp_path / "w.pth")
    start = open_pretrained(f"timm:{NAME}", str(tmp_path / "w.pth"))
    alone = open_pretrained(str(tmp_path / "w.pth"))
    assert (alone.arch, alone.settings, alone.mean) == (start.arch, start.settings, start.mean)
    assert start.settings.window == (7,) * 4 and start.settings.image_size == (224, 224)
    assert start.arch.many("heads.3") == (12,) * 6 and start.arch.many("hidden.4") == (3072,) * 2
    x = images(224)
    close(start.features().forward_features(x), theirs.forward_features(x))
    with pytest.raises(TailorError, match=r"are not those of 'timm:swin_small.*': 'depth.3' is 6, not 18"):
        open_pretrained("timm:swin_small_patch4_window7_224", str(tmp_path / "w.pth"))
    with pytest.raises(TailorError, match=r"lacks 'patch_embed\.proj\.weight': it is no Swin"):
        torch.save({"x": torch.zeros(3)}, tmp_path / "none.pth")
        open_pretrained(f"timm:{NAME}", str(tmp_path / "none.pth"))


@torch.no_grad()
def test_weights_by_the_released_names(tmp_path):
    """Merging at the end of a stage, buffers, and a head of one layer."""
    theirs = made()
    state = {
        re.sub(r"^layers\.(\d+)\.downsample\.", lambda m: f"layers.{int(m[1]) - 1}.downsample.", k): v
        for k, v in theirs.state_dict().items()
    }
    state = {k.replace("head.fc.", "head."): v for k, v in state.items()}
    state["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(16, 16, dtype=torch.long)
    torch.save({"model": state}, tmp_path / "released.pth")
    start = open_pretrained(f"{tmp_path / 'released.pth'}#norm=half")
    assert start.mean == (0.5,) * 3 and start.settings.image_size == (32, 32)
    close(start.features().forward_features(images(32)), theirs.forward_features(images(32)))
    with pytest.raises(TailorError, match="whose weights say its 'heads'"):
        open_pretrained(f"{tmp_path / 'released.pth'}#heads=3")


def test_saving_and_loading_changes_nothing(tmp_path):
    start = from_timm_swin("timm:test", made())
    start.save(tmp_path / "start")
    for again in (Pretrained.load(tmp_path / "start"), open_pretrained(str(tmp_path / "start"))):
        assert (again.source, again.arch, again.settings) == (start.source, start.arch, start.settings)
        assert (again.mean, again.std) == (start.mean, start.std)
        assert again.state.keys() == start.state.keys()
        assert all(torch.equal(again.state[k], start.state[k]) for k in start.state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm_layer": RmsNorm}, "norms of the kind RmsNorm"),
        ({"head_dim": (8, 8, 8, 16)}, "heads 8 and 16 channels wide"),
        ({"always_partition": True, "window_size": 8}, "windows larger than its maps"),
    ],
)
def test_what_is_no_plain_swin_is_named(change, message):
    with pytest.raises(TailorError, match=message):
        from_timm_swin("timm:test", SwinTransformer(**{**SMALL, **change}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch_embed.proj.weight": None}, "it is no Swin by timm's names"),
        ({"layers.2.blocks.1.mlp.fc2.weight": None}, "lacks 'layers.2.blocks.1.mlp.fc2.weight'"),
        ({"layers.2.blocks.1.norm2.weight": None}, r"lacks 'layers.2.blocks.1.norm2.weight' of the shape \(32,\)"),
        ({"layers.1.rope": torch.zeros(3)}, "'layers.1.rope', a part that cannot be tailored"),
        ({"layers.4.blocks.0.norm1.weight": torch.zeros(3)}, "more than 4 stages"),
        ({"patch_embed.proj.weight": torch.zeros(8, 3, 2, 4)}, "windows or patches of several sizes"),
    ],
)
def test_what_has_no_place_is_named(change, message):
    state = {**made().state_dict(), **{k: v for k, v in change.items() if v is not None}}
    state = {k: v for k, v in state.items() if change.get(k, v) is not None}
    with pytest.raises(TailorError, match=message):
        from_swin("a file", state, NORMS["half"])


def test_the_tiny_one_is_always_the_same_and_touches_no_generator():
    torch.manual_seed(1)
    one, after = open_pretrained("random:tiny-swin"), torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
    again = open_pretrained("random:tiny-swin")
    assert all(torch.equal(one.state[k], again.state[k]) for k in one.state)
    assert one.arch.family == "tailored-swin" and one.settings.window == (4, 4, 4, 2)
