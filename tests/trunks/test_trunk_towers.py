"""Our tower gives what timm's, transformers' and open_clip's give, block by block, from files with their names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch.utils.flop_counter import FlopCounterMode

from tailorvit.trunks import TrunkRequest, open_trunk
from tailorvit.trunks.network import PlainTrunk
from tailorvit.trunks.sources import from_hf, from_open_clip


def shaken(model: torch.nn.Module) -> torch.nn.Module:
    """Every parameter away from its start, so that no norm, token or scale can be left out unseen."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p) * (p.abs().mean() + 0.1))
    return model.eval()


def saved(model: torch.nn.Module, path: Path, prefix: str = "") -> str:
    save_file({prefix + k: v.contiguous() for k, v in model.state_dict().items()}, path)
    return str(path)


@torch.no_grad()
def same(trunk, x: torch.Tensor, expected: torch.Tensor) -> None:
    assert float((trunk.network(x) - expected).abs().max()) < 1e-4 * max(1.0, float(expected.abs().max()))


def timm_features(model, x: torch.Tensor) -> torch.Tensor:
    prefixed = model.num_prefix_tokens > 0
    _, blocks = model.forward_intermediates(x, output_fmt="NLC", return_prefix_tokens=prefixed)
    if not prefixed:
        return torch.stack(blocks, 1)
    return torch.stack([torch.cat([prefix, patches], 1) for patches, prefix in blocks], 1)


TIMM = {
    "deit": {"model": "vit_tiny_patch16_224", "size": 224, "depth": 3},
    "deit small, larger": {"model": "vit_small_patch16_224", "size": (96, 128), "depth": 2},
    "dinov2": {"model": "vit_small_patch14_dinov2", "size": 70, "depth": 2, "init_values": 0.5},
    "registers": {"model": "vit_small_patch14_reg4_dinov2", "size": 56, "depth": 2, "init_values": 0.5},
    "clip": {"model": "vit_xsmall_patch16_clip_224", "size": 64, "depth": 2},
    "no class": {"model": "vit_tiny_patch16_224", "size": 64, "depth": 2, "class_token": False, "global_pool": "avg"},
}


@pytest.mark.parametrize("kind", TIMM)
def test_a_timm_file_gives_timms_features(kind, tmp_path):
    options = dict(TIMM[kind])
    name, size = options.pop("model"), options.pop("size")
    size = (size, size) if isinstance(size, int) else size
    model = shaken(timm.create_model(name, num_classes=3, **options))
    path = saved(model, tmp_path / "tower.safetensors")
    other = timm.create_model(name, num_classes=3, img_size=size, **options).eval()
    state = timm.models.vision_transformer.checkpoint_filter_fn(model.state_dict(), other)  # timm's own resizing
    other.load_state_dict(state)
    x = torch.randn(2, 3, *size)
    trunk = open_trunk(path, size)
    with torch.no_grad():
        same(trunk, x, timm_features(other, x))
    assert trunk.facts["tokens"] == trunk.network(x).shape[2]
    assert trunk.mean[0] == (0.48145466 if kind == "clip" else 0.485)


def test_layers_cut_the_tower_and_its_last_outputs_are_the_features(tmp_path):
    model = shaken(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=5))
    path, x = saved(model, tmp_path / "tower.safetensors"), torch.randn(2, 3, 32, 32)
    trunk = open_trunk(path, (32, 32), layers=4, feature_layers=2)
    with torch.no_grad():
        same(trunk, x, timm_features(model, x)[:, 2:4])
    assert len(trunk.network.blocks) == 4 and (trunk.facts["layers"], trunk.facts["depth"]) == (4, 5)
    assert not any(p.requires_grad for p in trunk.network.parameters())


@pytest.mark.parametrize("prefix", ["", "vision_model.", "model.vision_model."])
def test_transformers_clip(prefix, tmp_path):
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=128, intermediate_size=160, num_hidden_layers=3, num_attention_heads=2, image_size=32, patch_size=8
    )
    model = shaken(CLIPVisionModel(config))
    state = {prefix + k.removeprefix("vision_model."): v for k, v in model.state_dict().items()}
    if prefix.startswith("model."):
        state["model.text_model.embeddings.token_embedding.weight"] = torch.zeros(3, 4)
    save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / "clip.safetensors")
    x = torch.randn(2, 3, 32, 32)
    trunk = open_trunk(str(tmp_path / "clip.safetensors"), (32, 32))
    with torch.no_grad():
        expected = torch.stack(model(pixel_values=x, output_hidden_states=True).hidden_states[1:], 1)
    same(trunk, x, expected)
    assert trunk.network.design.act == "quick_gelu" and trunk.mean[0] == 0.48145466
    by_name = from_hf(TrunkRequest("hf:none", "none", {}), model).trunk((32, 32))
    assert by_name.checksum == trunk.checksum


@pytest.mark.parametrize("kind", ["ViT", "Dinov2", "Dinov2WithRegisters"])
def test_transformers_vit_and_dinov2(kind, tmp_path):
    import transformers

    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    model = shaken(getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**shape)))
    path, x = saved(model, tmp_path / "tower.safetensors", "backbone."), torch.randn(2, 3, 32, 32)
    by_name = from_hf(TrunkRequest("hf:none", "none", {}), model).trunk((32, 32))
    with torch.no_grad():
        same(by_name, x, torch.stack(model(x, output_hidden_states=True).hidden_states[1:], 1))
    assert by_name.mean[0] == (0.5 if kind == "ViT" else 0.485)
    by_file = open_trunk(path, (32, 32))  # which does not say the eps of its norms; a ViT's is 1e-12
    assert by_file.network.design == replace(by_name.network.design, eps=1e-6)
    assert all(torch.equal(v, by_name.network.state_dict()[k]) for k, v in by_file.network.state_dict().items())


@pytest.mark.parametrize("openai", [False, True])
def test_open_clip(openai, tmp_path):
    pytest.importorskip("open_clip")
    from open_clip.transformer import QuickGELU, VisionTransformer

    act = QuickGELU if openai else torch.nn.GELU
    model = shaken(VisionTransformer(32, 8, 128, 3, 4, 2.0, output_dim=16, act_layer=act))
    state = {f"visual.{k}": v.contiguous() for k, v in model.state_dict().items()}
    state["transformer.resblocks.0.ln_1.weight"] = torch.zeros(4)  # the text tower
    if openai:
        state["input_resolution"] = torch.tensor(32)
    torch.save({"state_dict": state}, tmp_path / "clip.pt")
    x = torch.randn(2, 3, 32, 32)
    trunk = open_trunk(f"{tmp_path / 'clip.pt'}#heads=4", (32, 32))
    with torch.no_grad():
        found = model.forward_intermediates(x, output_fmt="NLC", output_extra_tokens=True)
        pairs = zip(found["image_intermediates_prefix"], found["image_intermediates"], strict=True)
        same(trunk, x, torch.stack([torch.cat(pair, 1) for pair in pairs], 1))
    by_name = from_open_clip(TrunkRequest("open_clip:none", "none", {}), model).trunk((32, 32))
    assert by_name.checksum == trunk.checksum


def test_grey_images_get_what_their_rgb_form_would(tmp_path):
    model = shaken(timm.create_model("vit_xsmall_patch16_clip_224", img_size=32, depth=2))
    path = saved(model, tmp_path / "clip.safetensors")
    colour, grey = open_trunk(path, (32, 32)), open_trunk(path, (32, 32), channels=1)
    pixels = torch.rand(3, 1, 32, 32)

    def normal(x, trunk):
        return (x - torch.tensor(trunk.mean)[:, None, None]) / torch.tensor(trunk.std)[:, None, None]

    same(grey, normal(pixels, grey), colour.network(normal(pixels.expand(-1, 3, -1, -1), colour)))
    assert grey.network.design.patch_bias and not colour.network.design.patch_bias


def test_macs_are_torchs_count_and_settings_rebuild_the_tower():
    trunk = open_trunk("random:tiny", (16, 24))
    again = PlainTrunk.from_settings(trunk.network.settings)
    again.load_state_dict(trunk.network.state_dict())
    x = torch.randn(1, 3, 16, 24)
    assert torch.equal(again(x), trunk.network(x))
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        PlainTrunk(trunk.network.design)(torch.empty(1, 3, 16, 24))
    assert counter.get_total_flops() == 2 * trunk.facts["macs"]
    assert trunk.facts["params"] == sum(t.numel() for t in again.state_dict().values())
