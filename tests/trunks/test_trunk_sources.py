"""Trunk sources: every built-in kind, one sentence for everything that cannot be used, and sources from outside."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES
from tailorvit.trunks import SOURCES, TrunkRequest, TrunkSettings, TrunkSource, open_trunk, read_tower
from tailorvit.trunks.sources import _read_random, _read_timm


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2)
    return {k: v.clone() for k, v in model.state_dict().items()}


def saved(state: dict[str, torch.Tensor], folder: Path) -> str:
    save_file(state, folder / "tower.safetensors")
    return str(folder / "tower.safetensors")


def test_random_towers_follow_their_seed_and_leave_torch_alone():
    torch.manual_seed(5)
    before = torch.default_generator.get_state()
    one, again, other = (open_trunk(f"random:tiny#seed={s}", (8, 8), channels=1) for s in (0, 0, 1))
    assert torch.equal(torch.default_generator.get_state(), before)
    assert one.checksum == again.checksum != other.checksum
    x = torch.randn(16, 1, 8, 8)
    assert one.network(x).shape == (16, 4, 17, 32)
    assert float(one.network(x).std(0).mean()) > 0.3, "images must stay apart through all blocks"


@pytest.mark.parametrize(("size", "patch"), [((8, 8), 2), ((32, 32), 8), ((224, 224), 16), ((98, 98), 2), ((7, 9), 1)])
def test_random_towers_choose_a_patch_that_divides(size, patch):
    assert open_trunk("random:tiny", size).network.design.patch == patch


def test_the_default_size_is_the_towers_own_but_at_most_224(state, tmp_path):
    assert read_tower(saved(state, tmp_path)).default_size == (32, 32)
    big = timm.create_model("vit_tiny_patch16_224", img_size=384, depth=1).state_dict()
    assert read_tower(saved(big, tmp_path)).default_size == (224, 224)


def test_options_say_what_shapes_cannot(state, tmp_path):
    path = saved(state, tmp_path)
    assert read_tower(path).design.heads == 3
    tower = read_tower(f"{path}#heads=6,act=quick_gelu,norm=half")
    assert (tower.design.heads, tower.design.act, tower.mean) == (6, "quick_gelu", (0.5, 0.5, 0.5))


def test_the_checksum_follows_weights_size_and_cut(state, tmp_path):
    path = saved(state, tmp_path)
    first = open_trunk(path, (32, 32)).checksum
    assert open_trunk(path, (32, 32)).checksum == first
    assert open_trunk(path, (48, 48)).checksum != first
    assert open_trunk(path, (32, 32), layers=1).checksum != first
    assert open_trunk(path, (32, 32), feature_layers=1).checksum != first
    state = {**state, "blocks.1.mlp.fc2.bias": state["blocks.1.mlp.fc2.bias"] + 1e-3}
    assert open_trunk(saved(state, tmp_path), (32, 32)).checksum != first


def test_a_timm_name_brings_heads_activation_and_normalisation():
    tower = _read_timm(TrunkRequest("timm:x", "vit_xsmall_patch16_clip_224", {}), pretrained=False)
    assert (tower.design.heads, tower.design.eps, tower.design.pre_norm) == (4, 1e-5, True)
    assert tower.mean == (0.48145466, 0.4578275, 0.40821073)
    with pytest.raises(TailorError, match="not a plain VisionTransformer"):
        _read_timm(TrunkRequest("timm:x", "pit_ti_224", {}), pretrained=False)


DAMAGES = {
    "lacks 'blocks.1.attn.qkv.weight'": lambda s: s.pop("blocks.1.attn.qkv.weight"),
    "lacks 'pos_embed'": lambda s: s.pop("pos_embed"),
    "has 'blocks.0.attn.q_norm.weight'": lambda s: s.update({"blocks.0.attn.q_norm.weight": torch.ones(64)}),
    "has 'dist_token'": lambda s: s.update({"dist_token": torch.ones(1, 1, 192)}),
    "gated MLPs": lambda s: s.update({"blocks.0.mlp.fc2.weight": torch.ones(192, 384)}),
    "not a square grid": lambda s: s.update({"pos_embed": torch.ones(1, 8, 192)}),
    "has the shape": lambda s: s.update({"blocks.1.norm1.weight": torch.ones(7)}),
    "not an image tower": lambda s: (s.clear(), s.update({"fc.weight": torch.ones(2)})),
}


@pytest.mark.parametrize("sentence", DAMAGES)
def test_what_is_not_supported_is_named(sentence, state, tmp_path):
    broken = dict(state)
    DAMAGES[sentence](broken)
    with pytest.raises(TailorError, match=sentence):
        read_tower(saved(broken, tmp_path))


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("dinov2", "no trunk 'dinov2'"),
        ("hub:x", "no trunk 'hub:x'"),
        ("nowhere.safetensors", "no trunk file"),
        ("random:huge", "Unknown random trunk"),
        ("random:tiny#colour=3", "Unknown option"),
        ("random:tiny#act=relu", "Unknown 'act'"),
        ("random:tiny#seed=x", "whole number"),
        ("random:tiny#patch=3", "must divide"),
        ("open_clip:ViT-B-16", "names no weights"),
        ("timm:no_such_model", "cannot be loaded"),
    ],
)
def test_wrong_sources_are_one_sentence(source, sentence):
    if source.startswith("open_clip"):
        pytest.importorskip("open_clip")
    with pytest.raises(TailorError, match=sentence) as caught:
        open_trunk(source, (8, 8))
    assert "\n" not in str(caught.value)


def test_pickles_are_refused(tmp_path):
    torch.save({"model": TrunkSettings("random:tiny")}, tmp_path / "tower.pt")
    with pytest.raises(TailorError, match="cannot be read as plain tensors"):
        read_tower(str(tmp_path / "tower.pt"))


def test_an_absent_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(TailorError, match=r"pip install 'tailorvit\[clip\]'"):
        read_tower("open_clip:ViT-B-16@openai")


def test_bad_sizes_and_cuts_are_named(state, tmp_path):
    path = saved(state, tmp_path)
    with pytest.raises(TailorError, match="nearest are 32 and 48"):
        open_trunk(path, (40, 32))
    with pytest.raises(TailorError, match=r"trunk\.layers must lie between 1 and 2"):
        open_trunk(path, (32, 32), layers=3)
    with pytest.raises(TailorError, match=r"trunk\.taps must lie between 1 and 1"):
        open_trunk(path, (32, 32), layers=1, feature_layers=2)
    with pytest.raises(TailorError, match=r"trunk\.taps must be at least 1, not 0"):
        TrunkSettings("random:tiny", taps=0)
    with pytest.raises(TailorError, match="needs 'source'"):
        TrunkSettings(mirror=True)


def test_a_source_from_outside(monkeypatch):
    def read(request: TrunkRequest):
        return _read_random(TrunkRequest(request.text, "tiny", {"seed": request.options.get("year", "0")}))

    monkeypatch.setitem(SOURCES.added, "zoo", TrunkSource("zoo", "towers of a zoo", read, options=("year",)))
    assert open_trunk("zoo:lion#year=3", (8, 8)).checksum == open_trunk("random:tiny#seed=3", (8, 8)).checksum
    with pytest.raises(TailorError, match=r"Unknown option of the trunk 'zoo:lion#heads=2' 'heads=2'.*year=VALUE"):
        read_tower("zoo:lion#heads=2")
    with pytest.raises(TailorError, match=r"no trunk 'zo:lion'; a trunk can be: .*, zoo:REST"):
        read_tower("zo:lion")
    monkeypatch.setitem(SOURCES.added, "broken", TrunkSource("broken", "returns None", lambda request: None))
    with pytest.raises(TailorError, match="'broken' returned a NoneType, not a Tower"):
        read_tower("broken:x")


def test_plain_networks_say_whether_they_decode_a_trunk():
    assert [f.name for f in FAMILIES.working() if f.plain.takes_features] == ["ladder"]
    assert all(name == source.name and source.summary for name, source in SOURCES.items())
