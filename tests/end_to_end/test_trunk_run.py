"""A whole run with a trunk: the same from the cache and after kills, and a network that needs nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tomllib
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import tailorvit
from tailorvit.api import recipe_for
from tailorvit.errors import TailorError
from tailorvit.export import export
from tailorvit.for_timm import build_network
from tailorvit.methods.prepare import prepare

RECIPE = """
method = "s4"
family = "ladder"
[trunk]
source = "random:tiny"
mirror = true
[limits]
max_params = "20k"
[train]
checkpoint_seconds = 0
"""
SETS = ["s4.iterations=1", "s4.pairs=3", "data.limit=120", "train.epochs=1", "final.train.epochs=2"]


def options(folder: Path) -> dict:
    recipe = folder.parent / "ladder.toml"
    recipe.write_text(RECIPE)
    return {"recipe": str(recipe), "out": str(folder), "tiny": True, "settings": [*SETS], "seed": 2}


def empty_cache() -> None:
    """Delete the trunk features of earlier runs; all runs of a test session share one cache."""
    shutil.rmtree(os.environ["TAILORVIT_CACHE"], ignore_errors=True)


def outcome(folder: Path) -> tuple[dict, bytes]:
    result = json.loads((folder / "result.json").read_text())
    result.pop("seconds")
    return result, (folder / "network" / "network.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(forks, tmp_path_factory):
    """One uninterrupted run that fills the cache, and the writes it made."""
    empty_cache()
    folder = tmp_path_factory.mktemp("trunk")
    code, writes = forks.do("run", **options(folder / "run"))
    assert code == 0, forks.said()
    return folder / "run", writes


def test_the_result_counts_decoder_and_trunk_separately(whole):
    folder, _ = whole
    result, _ = outcome(folder)
    trunk = result["trunk"]
    state = load_file(folder / "network" / "network.safetensors")
    inside = sum(t.numel() for n, t in state.items() if n.startswith("trunk."))
    assert inside == trunk["params"] and sum(t.numel() for t in state.values()) == inside + result["params"]
    assert (trunk["source"], trunk["tokens"], trunk["width"], trunk["layers"]) == ("random:tiny", 17, 32, 4)
    assert result["settings"]["image_size"] == [17, 32]
    assert tomllib.loads((folder / "recipe.toml").read_text())["data"]["image_size"] == [8, 8]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "frozen trunk random:tiny (51.55k parameters" in page and "Parameters of the frozen trunk" in page
    assert json.loads((folder / "analysis.json").read_text())["test"]["count"] == result["data"]["counts"]["test"]


def test_a_run_from_the_cache_and_a_killed_one_are_the_same(forks, whole, tmp_path):
    folder, writes = whole
    assert forks.do("run", **options(tmp_path / "again"))[0] == 0, forks.said()
    assert outcome(tmp_path / "again") == outcome(folder)
    log = (tmp_path / "again" / "log.txt").read_text()
    assert "0 computed, 120 from the cache" in log and "test split, images: 0 computed" in log
    at = [i for i, w in enumerate(writes) if "epochs final" in w]
    empty_cache()
    job = ("run",), options(tmp_path / "killed")
    for moment in (30, at[-1] + 1 - 30):
        code, _ = forks.do(*job[0], moment=moment, **job[1])
        assert code == -signal.SIGKILL
        job = ("resume", str(tmp_path / "killed")), {}
    assert forks.do(*job[0])[0] == 0, forks.said()
    assert outcome(tmp_path / "killed") == outcome(folder)


def test_the_network_taken_away_is_self_contained(whole, tmp_path):
    folder, _ = whole
    network = tailorvit.load(folder)
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    with torch.no_grad():
        scores = network(torch.from_numpy((pixels / 255 - 0.5) / 0.5).float()[None, None]).softmax(-1)[0]
    prediction = network.predict([tmp_path / "photo.png"])[0]
    assert all(abs(prediction[name] - float(scores[i])) < 1e-5 for i, name in enumerate(network.card.classes))
    facts = export(folder, "onnx", out=tmp_path / "onnx").facts
    assert facts["checked_on"] == "test images of the run" and facts["max_difference"] < 1e-4
    again = build_network("ladder", network.model.settings, in_chans=1, img_size=(8, 8)).eval()
    again.load_state_dict(network.model.state_dict())
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(again(x), network(x))
    assert build_network("ladder", network.model.settings, in_chans=3).trunk.design.channels == 3
    with pytest.raises(ValueError, match=r"takes images of \[8, 8\]"):
        build_network("ladder", network.model.settings, img_size=(17, 32))


def test_another_trunk_under_the_same_name_is_refused(tmp_path, forks):
    def tower(seed: int) -> None:
        torch.manual_seed(seed)
        model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=64, depth=3, num_heads=1)
        save_file(model.state_dict(), tmp_path / "tower.safetensors")

    tower(0)
    job = options(tmp_path / "run")
    job["settings"] += [f"trunk.source={tmp_path / 'tower.safetensors'}"]
    assert forks.do("run", moment=40, **job)[0] == -signal.SIGKILL, forks.said()
    assert tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())["data"]["image_size"] == [16, 16]
    tower(1)
    with pytest.raises(TailorError, match="not the one this run began with"):
        tailorvit.resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (["family=ladder"], "The ladder family decodes a frozen trunk: set trunk.source"),
        (["space=s4-clip"], "The ladder family decodes a frozen trunk: set trunk.source"),
        (["trunk.source=random:tiny"], "needs a family that decodes a trunk"),
        (["family=ladder", "trunk.source=random:tiny", "trunk.layers=9"], r"trunk\.layers must lie between 1 and 4"),
        (["family=ladder", "trunk.source=nowhere.pt"], "no trunk file"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(sets, sentence):
    with pytest.raises(TailorError, match=sentence):
        prepare(recipe_for("s4-digits", settings=sets))
