"""How images are prepared for an imported checkpoint, and the sentence that says why."""

from __future__ import annotations

import json
import math
import re

import pytest
import timm
from safetensors.torch import save_file
from typer.testing import CliRunner

import tailorvit
from tailorvit import cli
from tailorvit.checkpoints import IMAGENET, LOADERS
from tailorvit.checkpoints.prepared import preparation
from tailorvit.errors import TailorError
from tailorvit.families import family
from tailorvit.portable import stored_size

HALF = ((0.5, 0.5, 0.5),) * 2
VIT, SWIN = LOADERS["vit"], LOADERS["timm-swin"]


@pytest.mark.parametrize(
    ("file", "loader", "norm", "words"),
    [
        ("vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors", VIT, HALF, "timm's of vit_tiny_patch16_224.augreg_"),
        ("vit_small_patch16_224.dino.safetensors", VIT, IMAGENET[:2], "timm's of vit_small_patch16_224.dino$"),
        ("vit_small_patch16_224.pth", VIT, HALF, r"augreg_in21k_ft_in1k \(other weights .* use others: dino\)"),
        ("deit_tiny_patch16_224-a1311bcf.pth", VIT, IMAGENET[:2], "timm's of deit_tiny_patch16_224.fb_in1k"),
        ("models--timm--vit_tiny_patch16_224.augreg_in21k/snapshots/1f/model.safetensors", VIT, HALF, "augreg_in21k"),
        ("my_own_weights.pth", VIT, IMAGENET[:2], "is not known, so .* may be wrong .*--origin timm:NAME"),
        ("vit_tiny_patch16_224.nonsense.pth", VIT, IMAGENET[:2], "is not known"),
        ("S3-T.pth", SWIN, IMAGENET[:2], "as all networks of this kind were"),
    ],
)
def test_by_the_files_name(tmp_path, file, loader, norm, words):
    how, why = preparation(tmp_path / file, loader)
    assert (how.mean, how.std) == norm
    assert re.search(words, why)


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224.augreg_in21k_ft_in1k", "vit_base_patch16_384.augreg_in1k", "deit3_small_patch16_224"]
)
def test_the_crop_is_timms(tmp_path, name):
    how, _ = preparation(tmp_path / "x.pth", VIT, f"timm:{name}")
    known = timm.get_pretrained_cfg(name)
    side = known.input_size[-1]
    assert stored_size((side, side), how.margin)[0] == math.floor(side / known.crop_pct)
    assert (how.mean, how.std) == (tuple(known.mean), tuple(known.std))


def test_a_config_beside_the_file_comes_before_its_name(tmp_path):
    file, config = tmp_path / "vit_tiny_patch16_224.pth", tmp_path / "config.json"
    inner = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "crop_pct": 0.875, "input_size": [3, 224, 224]}
    config.write_text(json.dumps({"pretrained_cfg": {**inner, "interpolation": "bilinear"}}))
    how, why = preparation(file, VIT)
    assert how == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 256 / 224)
    assert "'config.json' beside the file; its interpolation 'bilinear' becomes 'bicubic'" in why
    assert preparation(file, VIT, "timm:deit_tiny_patch16_224")[0].mean == IMAGENET.mean, "what was said counts first"
    config.write_text(json.dumps({"hidden_size": 192}))  # of a library that says nothing of images here
    assert preparation(file, VIT)[0].mean == HALF[0]
    for wrong in ({"std": [0, 1, 1]}, {"mean": [1, 2]}, {"mean": ["a", 1, 2]}, {"crop_pct": 2}, {"std": 3}):
        config.write_text(json.dumps({"pretrained_cfg": {**inner, **wrong}}))
        with pytest.raises(TailorError, match="it needs mean, std and crop_pct"):
            preparation(file, VIT)


@pytest.mark.parametrize("origin", ["timm", "timm:", "hf:a/b", "timm:nonsense", "timm:vit_tiny_patch16_224.none"])
def test_an_origin_nobody_knows_is_refused(tmp_path, origin):
    with pytest.raises(TailorError, match=r"written timm:NAME, not|timm knows no pretrained network"):
        preparation(tmp_path / "x.pth", VIT, origin)


def test_the_command_writes_it_and_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arch = {"family": "vit", "depth": 1, "embed": 16, "heads": [1], "mlp": [1]}
    settings = {"image_size": [16, 16], "patch": 8, "head_dim": 16}
    (tmp_path / "a.json").write_text(json.dumps({"arch": arch, "fixed": settings}))
    vit = family("vit")
    save_file(vit.build(vit.settings({**settings, "classes": 3}), vit.arch(arch)).state_dict(), "w.safetensors")

    def command(*args):
        return CliRunner().invoke(cli.app, ["import", "w.safetensors", "--as", "a.json", *args])

    assert "may be wrong" in command("--out", "unknown").output
    done = command("--out", "known", "--origin", "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    assert "mean 0.5 and deviation 0.5, timm's of vit_tiny" in done.output
    card = tailorvit.load("known").card
    assert card.preprocessing["mean"] == [0.5] * 3 and card.preprocessing["margin"] == 248 / 224
    assert "timm's of vit_tiny_patch16_224" in card.facts["preprocessing"]
