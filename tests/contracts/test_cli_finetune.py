"""The command line of finetune: photos of other classes in, a run folder out; one sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_tools import pictures, refused

import tailorvit

QUICK = ["arch={depth=1, embed=16, heads=1, mlp=2}", "baseline=false", "analysis.images=0", "analysis.mistakes=0"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    tailorvit.run("s4-digits", method="fixed", out=folder, tiny=True, settings=QUICK, progress="quiet")
    return folder


def test_from_digits_to_photos_and_on_to_a_prediction(call, finished, tmp_path):
    photos = pictures(tmp_path / "zoo", {"cat": 12, "owl": 12})
    out = tmp_path / "tuned"
    asked = ("finetune", finished, "--data", photos, "--image-size", "12", "--preset", "autoformer-384", "--tiny")
    code, said, wrong = call(*asked, "--out", out, "--seed", "4", "--set", "train.lr=1e-4", "-q")
    assert code == 0, wrong
    assert said.startswith("Tuned depth 1") and "before fine-tuning" not in said, "a new head has no figure to compare"
    facts = json.loads((out / "result.json").read_text())
    assert facts["seed"] == 4 and facts["fixed"]["image_size"] == [12, 12] and facts["data"]["classes"] == 2
    recipe = (out / "recipe.toml").read_text()
    assert "clip = 0.0" in recipe and "lr = 0.0001" in recipe and "min_lr = 1e-07" in recipe, "the preset, then --set"
    code, said, _ = call("predict", out, photos / "cat" / "00.png", "--json")
    assert code == 0 and "cat" in said and "owl" in said and json.loads(said)[0]["error"] is None


def test_the_same_classes_tell_before_and_after(call, finished, tmp_path):
    code, said, wrong = call("finetune", finished, "--data", "digits", "--tiny", "--out", tmp_path / "run", "-q")
    assert code == 0, wrong
    assert "before fine-tuning, at this size: " in said
    again = call("resume", tmp_path / "run", "-q")
    assert again[0] == 0 and again[1] == said


def test_presets_are_listed(call):
    code, said, _ = call("list", "presets")
    assert code == 0
    assert {line.split()[0] for line in said.splitlines()} == {
        *("default", "autoformer-384", "s3-384", "cifar", "cars", "flowers", "pets")
    }
    code, said, _ = call("list", "presets", "--json")
    assert {row["source"] for row in json.loads(said)} == {"ours", "AutoFormer (ICCV 2021)", "S3 (NeurIPS 2021)"}


def test_mistakes(call, finished, tmp_path):
    def tell(*args, source=finished):
        return call("finetune", source, "--data", "digits", "--out", tmp_path / "never", *args)

    refused(tell("--image-size", "11"), "Images of 11 px", "patches of 2 px", "10 and 12")
    refused(tell("--preset", "paper"), "Unknown preset 'paper'", "autoformer-384", "default")
    refused(tell("--windows", "wide"), "start.windows", "wide")
    refused(tell("--set", "start.widnows=keep"), "start.widnows")
    refused(tell("--set", "train.optimizer=lamb"), "train.optimizer", "lamb")
    refused(tell(source=tmp_path / "nowhere"), "There is no folder", "nowhere")
    (tmp_path / "half").mkdir()
    refused(tell(source=tmp_path / "half"), "no finished network", "is the run finished")
    assert not (tmp_path / "never").exists()
    code, _, wrong = call("finetune", finished)
    assert code == 2 and "--data" in wrong


def test_a_study_of_a_run_without_a_supernet_is_refused(call, finished):
    refused(call("study", finished, "-q"), "method 'fixed'", "s4, s3, autoformer")
    refused(call("study", finished, "--what", "nothing"), "method 'fixed'")
    assert not (finished / "study").exists()
