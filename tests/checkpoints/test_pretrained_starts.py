"""Where pretrained networks come from: outputs of the libraries' own modules, and one sentence for all that fails."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.layers import GluMlp, RmsNorm, SwiGLU
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from torch import nn

from tailorvit.checkpoints.pretrained import CARD, TENSORS, Pretrained, from_named
from tailorvit.checkpoints.starts import STARTS, _pretrained, choose_start, first_at_hand, open_pretrained
from tailorvit.errors import TailorError
from tailorvit.trunks import libraries

TRUNK = Path(__file__).resolve().parents[3] / "shared" / "data" / "vits14_trunk_fp16.safetensors"
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 0}
TIMM = {
    "plain": {},
    "no class token": {"class_token": False, "global_pool": "avg", "fc_norm": False},
    "registers": {"reg_tokens": 4, "no_embed_class": True},
    "layer scale": {"init_values": 0.3},
    "norms of queries and keys": {"qk_norm": True},
    "swiglu": {"mlp_layer": SwiGLU, "act_layer": nn.SiLU},
    "packed swiglu": {"mlp_layer": partial(GluMlp, gate_last=False), "act_layer": nn.SiLU},
    "clip": {"pre_norm": True, "norm_layer": partial(nn.LayerNorm, eps=1e-5), "act_layer": nn.GELU},
}
HF = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8}


def stirred(model):
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=rng))
    return model.eval()


def images(side=32):
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def close(found, wanted):
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No hub, and nothing in its cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(libraries, "hub_reachable", lambda: False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


# -- timm -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TIMM)
@torch.no_grad()
def test_timms_own_modules_keep_their_outputs(kind):
    theirs = stirred(VisionTransformer(**{**SMALL, **TIMM[kind]}))
    start = _pretrained("timm:test", libraries.from_timm("timm:test", theirs))
    ours, x = start.features(), images()
    close(ours.forward_features(x), theirs.forward_features(x))
    close(ours(x), theirs(x))
    assert start.settings.head_dim == 16 and start.settings.gated == ("swiglu" in kind)


@torch.no_grad()
def test_a_weight_file_for_a_name_of_timm_needs_no_network(offline, tmp_path):
    theirs = stirred(timm.create_model("vit_tiny_patch16_224.augreg_in21k", img_size=64, num_classes=5))
    state = {f"model.trunk.{k}": v for k, v in theirs.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "w.pth")
    start = open_pretrained("timm:vit_tiny_patch16_224.augreg_in21k", str(tmp_path / "w.pth"))
    assert start.settings.image_size == (64, 64), "the grid is the file's"
    assert start.mean == (0.5,) * 3 and start.arch.many("heads") == (3,) * 12
    close(start.features().forward_features(images(64)), theirs.forward_features(images(64)))


def test_weights_of_another_model_are_refused(tmp_path):
    save_file(VisionTransformer(**SMALL).state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(TailorError, match="not those of 'timm:vit_tiny_patch16_224'"):
        open_pretrained("timm:vit_tiny_patch16_224", str(tmp_path / "w.safetensors"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("swinv2_tiny_window8_256", "is a SwinTransformerV2, not a plain"),
        ("vit_relpos_small_patch16_224", "relative positions"),
        ("vit_small_patch16_dinov3", "rotary positions"),
        ("deit_tiny_distilled_patch16_224", "distillation token"),
        ("vit_tiny_r_s16_p8_224", "has a HybridEmbed"),
        ("resnet18", "is a ResNet"),
        ("vit_base_patch16_gap_224", "no pretrained weights for it"),
        ("vit_tinny_patch16_224", "did you mean 'vit_tiny_patch16_224'"),
        ("vit_tiny_patch16_224.nope", "cannot be loaded"),
    ],
)
def test_what_cannot_be_tailored_is_named_before_anything_is_fetched(name, message, monkeypatch):
    monkeypatch.setattr(libraries, "hub_reachable", lambda: pytest.fail("asked the hub"))
    with pytest.raises(TailorError, match=message) as caught:
        open_pretrained(f"timm:{name}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qk_norm": True, "norm_layer": RmsNorm}, "norms of the kind RmsNorm"),
        ({"block_fn": ResPostBlock}, "has a ResPostBlock where"),
        ({"mlp_layer": partial(GluMlp, gate_last=True)}, "second half is the gate"),
        ({"act_layer": nn.ReLU}, "the activation ReLU; known: GELU"),
    ],
)
def test_parts_without_a_weight_of_their_own_are_named_too(change, message):
    with pytest.raises(TailorError, match=message):
        libraries.from_timm("timm:test", VisionTransformer(**{**SMALL, **change}))


@pytest.mark.parametrize("text", ["timm:vit_tiny_patch16_224.augreg_in21k", "hf:a/b", "open_clip:ViT-B-32/openai"])
def test_without_a_network_one_sentence_comes_at_once(text, offline):
    if text.startswith("open_clip"):
        pytest.importorskip("open_clip")
    began = time.monotonic()
    with pytest.raises(TailorError, match="hub is out of reach") as caught:
        open_pretrained(text)
    assert ("hf:FOLDER" if text.startswith("hf") else "--weights FILE") + " takes a local copy" in str(caught.value)
    assert "\n" not in str(caught.value) and time.monotonic() - began < 10


@pytest.mark.skipif(not TRUNK.is_file(), reason="the trunk of ../shared is not here")
@torch.no_grad()
def test_the_real_trunk_by_name_and_by_file_alone():
    start = open_pretrained("timm:vit_small_patch14_dinov2", str(TRUNK))
    assert start.settings.image_size == (518, 518) and start.settings.pool == "cls"
    assert start.mean == (0.485, 0.456, 0.406) and start.arch.many("heads") == (6,) * 12
    alone = open_pretrained(str(TRUNK))
    assert alone.arch == start.arch and alone.settings == start.settings and alone.mean == start.mean
    theirs = timm.create_model("vit_small_patch14_dinov2", num_classes=0, dynamic_img_size=True).eval()
    theirs.load_state_dict({k: v.float() for k, v in load_file(TRUNK).items()})
    close(
        start.network((98, 98), 3, 3, seed=0).eval().forward_features(images(98)), theirs.forward_features(images(98))
    )


# -- transformers -----------------------------------------------------------------------------------------------------


def hf_models():
    import transformers as hf

    mlp = {"intermediate_size": 96}
    return {
        "vit": lambda: hf.ViTModel(hf.ViTConfig(**HF, **mlp)),
        "vit without qkv bias": lambda: hf.ViTModel(hf.ViTConfig(**HF, **mlp, qkv_bias=False)),
        "dinov2": lambda: hf.Dinov2Model(hf.Dinov2Config(**HF)),
        "dinov2 swiglu": lambda: hf.Dinov2Model(hf.Dinov2Config(**HF, use_swiglu_ffn=True)),
        "dinov2 registers": lambda: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**HF)),
        "clip": lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**HF, **mlp)),
    }


@pytest.mark.parametrize("kind", ["vit", "vit without qkv bias", "dinov2", "dinov2 swiglu", "dinov2 registers", "clip"])
@torch.no_grad()
def test_a_folder_of_transformers_keeps_its_outputs(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(libraries, "hub_reachable", lambda: pytest.fail("asked the hub"))
    theirs = stirred(hf_models()[kind]())
    theirs.save_pretrained(tmp_path)
    start, x = open_pretrained(f"hf:{tmp_path}"), images()
    ours, wanted = start.features(), theirs(x)
    found = ours.forward_features(x)
    if kind == "clip":  # its last norm sees the class token only
        close(found[:, 0], wanted.pooler_output)
    else:
        close(found, wanted.last_hidden_state)
    assert start.mean[0] == {"vit": 0.5, "dino": 0.485, "clip": 0.48145466}[kind[:4].strip()]


def test_the_preprocessor_beside_the_weights_says_the_normalisation(tmp_path):
    hf_models()["vit"]().save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.1] * 3, "image_std": [0.2] * 3}))
    start = open_pretrained(f"hf:{tmp_path}")
    assert (start.mean, start.std) == ((0.1,) * 3, (0.2,) * 3)


def test_weights_that_transformers_would_make_up_are_refused(tmp_path):
    hf_models()["dinov2"]().save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    save_file({k: v for k, v in state.items() if "norm2" not in k}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(TailorError, match=r"lack '.*norm2"):
        open_pretrained(f"hf:{tmp_path}")


def test_the_names_of_transformers_4():
    from transformers import ViTConfig, ViTModel

    new = stirred(ViTModel(ViTConfig(**HF, intermediate_size=96), add_pooling_layer=False)).state_dict()
    words = {"q_proj": "attention.query", "k_proj": "attention.key", "v_proj": "attention.value"}
    words |= {"o_proj": "output.dense", "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}
    old = {}
    for name, value in new.items():
        for word, before in words.items():
            name = name.replace(word, before)
        old["vit." + name.replace("encoder.layer.", "layers.").replace("layers.", "encoder.layer.")] = value
    one, other = (libraries.recognise_layout(state, "'x'")[1] for state in (new, old))
    assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_other_types_of_transformers_are_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "swin"}))
    with pytest.raises(TailorError, match="is of the type 'swin'; known: vit, dinov2"):
        open_pretrained(f"hf:{tmp_path}")
    with pytest.raises(TailorError, match="hf:FOLDER takes a local copy"):
        open_pretrained(f"hf:{tmp_path}", "w.pth")


# -- open_clip --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("openai", [False, True])
@torch.no_grad()
def test_open_clips_image_tower_keeps_its_outputs(openai):
    pytest.importorskip("open_clip")
    from open_clip.transformer import QuickGELU, VisionTransformer

    act = QuickGELU if openai else nn.GELU
    theirs = stirred(VisionTransformer(32, 8, 48, 2, 3, 2.0, output_dim=16, act_layer=act))
    start, x = _pretrained("open_clip:test", libraries.from_open_clip("open_clip:test", theirs)), images()
    close(start.features()(x) @ theirs.proj, theirs(x))
    assert start.settings.act == ("quick_gelu" if openai else "gelu") and start.mean[0] == 0.48145466


@torch.no_grad()
def test_open_clip_by_name_with_a_file_of_ones_own(monkeypatch, tmp_path):
    library = pytest.importorskip("open_clip")
    from open_clip.transformer import VisionTransformer

    asked = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.visual = stirred(VisionTransformer(32, 8, 48, 2, 3, 2.0, output_dim=16))

    def create(name, **options):
        asked.append((name, options["pretrained"]))
        return Model()

    monkeypatch.setattr(library, "create_model", create)
    monkeypatch.setattr(library, "list_models", lambda: ["ViT-X"])
    monkeypatch.setattr(libraries, "hub_reachable", lambda: True)
    model = Model()
    state = {k: v + 0.01 for k, v in model.state_dict().items()}
    save_file(state, tmp_path / "clip.safetensors")
    start = open_pretrained("open_clip:ViT-X", str(tmp_path / "clip.safetensors"))
    model.load_state_dict(state)
    close(start.features()(images()) @ model.visual.proj, model.visual(images()))
    for text in ("open_clip:ViT-X/some", "open_clip:ViT-X@some"):
        open_pretrained(text)
    assert asked == [("ViT-X", None), ("ViT-X", "some"), ("ViT-X", "some")]
    with pytest.raises(TailorError, match="names no weights"):
        open_pretrained("open_clip:ViT-X")
    with pytest.raises(TailorError, match="did you mean 'ViT-X'"):
        open_pretrained("open_clip:ViT-XY/some")


# -- files, folders, forms --------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_file_alone_guesses_heads_and_takes_options(tmp_path):
    path = tmp_path / "vit.safetensors"
    theirs = stirred(VisionTransformer(**{**SMALL, "embed_dim": 128, "num_heads": 2}))
    save_file(theirs.state_dict(), path)
    start = open_pretrained(str(path))
    close(start.features()(images()), theirs(images()))
    assert start.mean[0] == 0.485
    other = open_pretrained(f"{path}#heads=4,act=gelu_tanh,norm=half")
    assert (other.settings.head_dim, other.settings.act, other.mean[0]) == (32, "gelu_tanh", 0.5)
    for option, message in (("heads=x", "whole number"), ("act=relu", "Unknown 'act'"), ("eps=1", "Unknown option")):
        with pytest.raises(TailorError, match=message):
            open_pretrained(f"{path}#{option}")
    save_file(VisionTransformer(**SMALL).state_dict(), path)
    with pytest.raises(TailorError, match="does not say its number of heads"):
        open_pretrained(str(path))
    with pytest.raises(TailorError, match="goes with timm:NAME"):
        open_pretrained(str(path), str(path))


@pytest.mark.parametrize("text", ["dinov2", "hub:x", "timm:", "auto", "runs/nowhere"])
def test_anything_else_lists_the_forms(text):
    with pytest.raises(TailorError, match=r"it can be: timm:NAME, hf:NAME or hf:FOLDER, open_clip:MODEL/PRETRAINED"):
        open_pretrained(text)


def test_absent_files_and_foreign_ones_are_named(tmp_path):
    with pytest.raises(TailorError, match="no checkpoint file"):
        open_pretrained(str(tmp_path / "nowhere.pth"))
    with pytest.raises(TailorError, match="no checkpoint file"):
        open_pretrained("timm:vit_tiny_patch16_224", str(tmp_path / "nowhere.pth"))
    save_file({"fc.weight": torch.ones(2)}, tmp_path / "w.safetensors")
    with pytest.raises(TailorError, match="not an image tower"):
        open_pretrained(str(tmp_path / "w.safetensors"))
    with pytest.raises(TailorError, match="holds no network"):
        open_pretrained(str(tmp_path))


@torch.no_grad()
def test_the_released_names_of_dinov2(tmp_path):
    kind = {"reg_tokens": 4, "no_embed_class": True, "init_values": 0.3, **TIMM["packed swiglu"]}
    theirs, mark = stirred(VisionTransformer(**SMALL, **kind)), torch.randn(1, 1, 48)
    state = {
        k.replace("mlp.fc1.", "mlp.w12.").replace("mlp.fc2.", "mlp.w3."): v for k, v in theirs.state_dict().items()
    }
    state["register_tokens"] = state.pop("reg_token")
    state |= {"cls_token": state["cls_token"] - mark, "pos_embed": torch.cat([mark, state["pos_embed"]], 1)}
    torch.save({**state, "mask_token": torch.zeros(1, 48)}, tmp_path / "dinov2.pth")
    close(open_pretrained(f"{tmp_path / 'dinov2.pth'}#heads=3").features()(images()), theirs(images()))


@pytest.mark.parametrize("kind", ["registers", "packed swiglu"])
def test_saving_and_loading_changes_nothing(kind, tmp_path):
    theirs = stirred(VisionTransformer(**{**SMALL, **TIMM[kind], "init_values": 0.1}))
    start = _pretrained("timm:test", libraries.from_timm("timm:test", theirs))
    start.save(tmp_path / "start")
    for again in (Pretrained.load(tmp_path / "start"), open_pretrained(str(tmp_path / "start"))):
        assert (again.source, again.arch, again.settings) == (start.source, start.arch, start.settings)
        assert (again.mean, again.std) == (start.mean, start.std)
        assert again.state.keys() == start.state.keys()
        assert all(torch.equal(again.state[k], start.state[k]) for k in start.state)
    (tmp_path / "start" / TENSORS).write_bytes(b"no tensors")
    with pytest.raises(TailorError, match="cannot be read"):
        Pretrained.load(tmp_path / "start")
    (tmp_path / "start" / CARD).unlink()
    with pytest.raises(TailorError, match="cannot be read"):
        Pretrained.load(tmp_path / "start")


@torch.no_grad()
def test_a_finished_tailored_network_is_a_start_and_others_are_for_finetune(tmp_path):
    from tailorvit.export.network import Card, save_network
    from tailorvit.families import family

    how = {"image_size": [32, 32], "channels": 3, "mean": [0.4] * 3, "std": [0.2] * 3}
    start = from_named("x", stirred(VisionTransformer(**SMALL)).state_dict(), ((0.5,) * 3, (0.5,) * 3), heads=3)
    model = start.network((32, 32), 4, 3, seed=0).eval()
    settings = {**start.settings.to_dict(), "classes": 4}
    place = tmp_path / "run" / "network"
    place.mkdir(parents=True)
    save_network(place, model, Card(start.arch, settings, tuple("abcd"), how, {}))
    again = open_pretrained(str(tmp_path / "run"))
    assert again.arch == start.arch and again.settings == start.settings and again.mean == (0.4,) * 3
    close(again.features().forward_features(images()), model.forward_features(images()))
    record = family("vit")
    genes = {"family": "vit", "depth": 2, "embed": 32, "heads": [2, 2], "mlp": [2, 2]}
    shared = {"image_size": [32, 32], "patch": 8, "classes": 4, "head_dim": 16}
    arch = type(start.arch).from_dict(genes)
    save_network(place, record.build(record.settings(shared), arch), Card(arch, shared, tuple("abcd"), how, {}))
    with pytest.raises(TailorError, match=r"family vit, .*`tailorvit finetune"):
        open_pretrained(str(tmp_path / "run"))


# -- auto -------------------------------------------------------------------------------------------------------------


def test_the_list_says_what_timm_says():
    for start in STARTS:
        name = start.source.removeprefix("timm:")
        with torch.device("meta"):
            model = timm.create_model(name, num_classes=0)
        assert sum(p.numel() for p in model.parameters()) == start.params
        assert (model.embed_dim, model.patch_embed.patch_size[0]) == (start.width, start.patch)
        assert model.pretrained_cfg["license"] in start.licence.lower()


def test_the_order_of_fit():
    def names(size, budget):
        return [s.source.removeprefix("timm:").partition(".")[0] for s in choose_start((size, size), budget)]

    assert names(224, 2e6)[0] == "vit_tiny_patch16_224"
    assert names(224, 6e6)[0] == "vit_small_patch14_dinov2"
    assert names(96, 6e6)[0] == "vit_small_patch16_224" and names(96, 6e6)[-1] == "vit_small_patch14_dinov2"
    assert names(96, 30e6)[0] == "vit_base_patch16_clip_quickgelu_224"
    assert names(224, 200e6)[0] == "vit_base_patch16_clip_quickgelu_224"
    assert len(names(224, None)) == len(STARTS)


def test_nothing_at_hand_is_one_sentence(offline):
    began = time.monotonic()
    found, why = first_at_hand((96, 96), 2e6)
    assert found is None and why.startswith("No pretrained network could be loaded") and "--weights FILE" in why
    assert "\n" not in why and time.monotonic() - began < 10


def test_the_first_that_loads_is_taken(monkeypatch):
    def read(text, name, otherwise, weights=None):
        if "tiny" in name:
            raise TailorError("not today.")
        return libraries.from_timm(text, VisionTransformer(**SMALL))

    monkeypatch.setattr(libraries, "hub_reachable", lambda: True)
    monkeypatch.setattr(libraries, "read_timm", read)
    found, why = first_at_hand((96, 96), 2e6)
    assert found is not None and found.source == "timm:vit_small_patch16_224.augreg_in21k" and "Apache-2.0" in why
