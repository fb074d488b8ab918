"""Pretrained networks as tailored ones: the outputs of timm's own modules, and one sentence for what has no place."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from timm.layers import GluMlp, Mlp, SwiGLU
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tailorvit.checkpoints.pretrained import from_named
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES
from tailorvit.families.tailored.spaces import cut_space

TRUNK = Path(__file__).resolve().parents[3] / "shared" / "data" / "vits14_trunk_fp16.safetensors"
HALF = ((0.5,) * 3, (0.5,) * 3)
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 7}
PACKED = partial(GluMlp, act_layer=nn.SiLU, gate_last=False)
KINDS = {
    "plain": {},
    "layer scale": {"init_values": 0.3},
    "registers": {"reg_tokens": 4, "no_embed_class": True, "init_values": 0.5},
    "registers with positions": {"reg_tokens": 2},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "norm behind the pooling": {"global_pool": "avg"},
    "clip": {"pre_norm": True, "norm_layer": partial(nn.LayerNorm, eps=1e-5)},
    "norms of queries and keys": {"qk_norm": True},
    "no qkv bias": {"qkv_bias": False},
    "gated": {"mlp_layer": SwiGLU, "act_layer": nn.SiLU},
    "packed gates": {"mlp_layer": PACKED, "act_layer": nn.SiLU, "mlp_ratio": 5.34},
    "no positions": {"pos_embed": "none"},
}


def stirred(model):
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=rng))
    return model.eval()


def read(model, **known):
    return from_named("timm:test", model.state_dict(), HALF, heads=3, eps=model.blocks[0].norm1.eps, **known)


def tokens(model, x):
    """timm's tokens behind its last block."""
    x = model.patch_embed(x)
    x = model.norm_pre(model._pos_embed(x))
    for block in model.blocks:
        x = block(x)
    return x


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_network_of_timm_keeps_its_outputs(kind):
    theirs = stirred(VisionTransformer(**{**SMALL, **KINDS[kind]}))
    gated = kind in ("gated", "packed gates")
    start = read(theirs, act="silu" if gated else "gelu")
    ours, x = start.features(), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    wanted = tokens(theirs, x)
    found = ours.tokens(x)
    for block in ours.blocks:
        found = block(found)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    if "pooling" not in kind and "no class" not in kind:
        torch.testing.assert_close(ours.forward_features(x), theirs.forward_features(x), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.forward_head(ours.forward_features(x), True), theirs.forward_features(x)[:, 0])


@torch.no_grad()
def test_positions_are_interpolated_as_timm_does():
    theirs = stirred(VisionTransformer(**SMALL, dynamic_img_size=True))
    start, x = read(theirs), torch.randn(2, 3, 48, 64, generator=torch.Generator().manual_seed(1))
    ours = start.network((48, 64), 5, 3, seed=0)
    torch.testing.assert_close(ours.forward_features(x), theirs.forward_features(x), atol=1e-4, rtol=1e-4)
    assert ours(x).shape == (2, 5)
    again = start.network((48, 64), 5, 3, seed=0)
    assert torch.equal(again.head.weight, ours.head.weight) and ours.settings["classes"] == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch_embed.proj.weight": torch.zeros(48, 3, 8, 4)}, "patches of 8x4 px"),
        ({"blocks.1.attn.rel_pos": torch.zeros(3)}, r"'blocks.1.attn.rel_pos', a part that cannot be tailored"),
        ({"rope.freqs": torch.zeros(3)}, r"'rope.freqs', a part"),
        ({"pos_embed": torch.zeros(1, 19, 48)}, "19 positions, which are no square grid"),
        ({"blocks.0.attn.q_norm.weight": torch.ones(16), "blocks.0.attn.k_norm.weight": torch.ones(16)}, "RMS norm"),
        ({"blocks.2.norm2.weight": None}, r"lacks 'blocks.2.norm2.weight' of the shape \(48,\)"),
        ({"patch_embed.proj.weight": None}, "no vision transformer by timm's names"),
    ],
)
def test_what_has_no_place_is_named(change, message):
    state = dict(VisionTransformer(**SMALL).state_dict())
    state.update({k: v for k, v in change.items() if v is not None})
    for key in (k for k, v in change.items() if v is None):
        del state[key]
    with pytest.raises(TailorError, match=message):
        from_named("a file", state, HALF, heads=3)


def test_heads_must_divide_the_width():
    with pytest.raises(TailorError, match="5 heads do not divide the width 48"):
        from_named("a file", VisionTransformer(**SMALL, mlp_layer=Mlp).state_dict(), HALF, heads=5)


@pytest.mark.skipif(not TRUNK.is_file(), reason="the trunk of ../shared is not here")
@torch.no_grad()
def test_the_real_trunk_keeps_its_outputs_and_is_the_largest_of_its_supernet():
    import timm
    from safetensors.torch import load_file

    state = {k: v.float() for k, v in load_file(TRUNK).items()}
    theirs = timm.create_model("vit_small_patch14_dinov2", num_classes=0, dynamic_img_size=True).eval()
    theirs.load_state_dict(state)
    start = from_named(str(TRUNK), state, HALF, heads=6)
    x = torch.randn(1, 3, 98, 98, generator=torch.Generator().manual_seed(1))
    ours = start.network((98, 98), 10, 3, seed=0).eval()
    torch.testing.assert_close(ours.forward_features(x), theirs.forward_features(x), atol=1e-4, rtol=1e-4)
    shared = ours.shared
    space = cut_space((6, 12), (768, 1536), (3, 6), (192, 384), **{**shared.to_dict(), "order": tuple(range(12))})
    model = FAMILIES["tailored"].supernet(space).eval()
    for name, p in model.named_parameters():
        p.copy_(ours.state_dict()[name].view(p.shape))
    torch.testing.assert_close(model(x), ours(x), atol=1e-5, rtol=1e-5)
