"""Method finetune: from a finished network to a run of its own, at another size and for other classes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import tailorvit
from tailorvit import api
from tailorvit.config import configure
from tailorvit.costs import Counter
from tailorvit.data import open_data
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.export import Card, export, load, save_network
from tailorvit.families import family
from tailorvit.methods.finetune import COPY, PROBE, SCRATCH, StartingNetwork, read_start
from tailorvit.methods.prepare import prepare
from tailorvit.methods.probe import PENALTIES, regression
from tailorvit.report import compare, write_report
from tailorvit.runs import Run
from tailorvit.train import accuracy

QUIET = {"progress": "quiet"}
SETS = ["train.lr=2e-3", "train.augment=none", "analysis.images=1", "analysis.samples=0"]


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A finished run on digits of 8 px that has learnt something."""
    folder = tmp_path_factory.mktemp("base") / "run"
    sets = ["arch={depth=2, embed=24, heads=2, mlp=2}", "baseline=false", "analysis.images=0", "analysis.mistakes=0"]
    train = [f"final.train.{k}" for k in ("epochs=10", "batch=32", "lr=4e-3", "augment=none")]
    found = api.run(
        "s4-digits", method="fixed", out=folder, tiny=True, settings=[*sets, *train, "data.limit=1200"], **QUIET
    )
    assert found["test_accuracy"] > 50
    return folder


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> Path:
    """Digits 0 to 4 only, in colour."""
    digits = load_digits()
    chosen = digits.target < 5
    images = np.rint(digits.images[chosen] * (255 / 16)).astype(np.uint8)
    path = tmp_path_factory.mktemp("few") / "few.npz"
    np.savez(path, x=np.repeat(images[..., None], 3, -1), y=digits.target[chosen])
    return path


def tuned(base, out, **options) -> api.Result:
    return tailorvit.finetune(base, out=out, tiny=True, **{"data": "digits", "settings": SETS, **QUIET, **options})


def test_the_same_classes_keep_the_head_and_are_tested_before_and_after(base, tmp_path):
    result = tuned(base, tmp_path / "run", image_size=12)
    start = result["start"]
    assert start["head"] == "kept" and start["image_size"] == [8, 8] and start["classes"] == 10
    assert result["method"] == "finetune" and result["final"] == "finetune" and result["baseline"] is None
    assert result["settings"]["image_size"] == [12, 12] and result["settings"]["patch"] == 2
    assert result["test_accuracy"] > start["test_accuracy"] > 20, "resized positions keep some of what was learnt"
    network = load(tmp_path / "run")
    assert network.card.shape == (1, 12, 12) and result["params"] == sum(p.numel() for p in network.parameters())
    before = json.loads((base / "network" / "network.json").read_text())["preprocessing"]
    assert network.card.preprocessing["mean"] == before["mean"], "images are normalised as the weights know them"
    with Run.open(tmp_path / "run", lock=False) as run:
        assert "Starting network: 8x8 to 12x12 px; its head is kept." in run.events("start")[0]["text"]
        assert all("search_accuracy" in e for e in run.epochs("final"))
        assert run.info["start"]["sha256"] == start["sha256"]


def test_on_the_same_images_the_splits_stay_whatever_the_seed(base, few, tmp_path):
    """Or most images the tuned network is tested on would be images the first one was trained on."""
    tuned(base, tmp_path / "same", seed=5)
    tuned(base / "network", tmp_path / "inside", seed=5)
    tuned(base, tmp_path / "other", data=str(few), seed=5)
    splits = {f: json.loads((f / "splits.json").read_text()) for f in (base, *sorted(tmp_path.iterdir()))}
    assert splits[tmp_path / "same"]["fingerprint"] == splits[base]["fingerprint"]
    for name in ("same", "inside"):
        assert not set(splits[tmp_path / name]["test"]) & {*splits[base]["train"], *splits[base]["search"]}
    assert splits[tmp_path / "other"]["fingerprint"] != splits[base]["fingerprint"]
    with Run.open(tmp_path / "same", lock=False) as run:
        assert "so its splits are used" in run.events("splits")[0]["text"]
    with Run.open(tmp_path / "other", lock=False) as run:
        assert not run.events("splits")


def test_an_export_knows_the_run_it_comes_from_and_unknown_origins_get_a_warning(base, tmp_path):
    whole, away = tmp_path / "whole", tmp_path / "away"
    shutil.copytree(base, whole)
    export(whole, "safetensors")
    shutil.copytree(whole / "export" / "safetensors", away)
    before = json.loads((base / "splits.json").read_text())
    for start, known in ((whole / "export" / "safetensors", True), (away, False)):
        folder = tmp_path / f"from {start.name}"
        tuned(start, folder, seed=7)
        mine = json.loads((folder / "splits.json").read_text())
        assert (set(mine["test"]) <= set(before["test"])) == known
        with Run.open(folder, lock=False) as run:
            warnings = [e["text"] for e in run.events("warning")]
        assert not warnings if known else warnings[0].startswith("The starting network has the same classes")


def test_a_run_of_its_own_is_reported_compared_exported_and_predicts(base, few, tmp_path):
    folder = tmp_path / "run"
    result = tuned(base, folder, data=str(few), image_size=16)
    assert result["start"]["head"] == "new" and "test_accuracy" not in result["start"]
    assert result["data"]["classes"] == 5 and result["settings"]["channels"] == 3
    page = write_report(folder).read_text()
    assert "fine-tune a finished network" in page and "8x8 px and got a new head" in page
    assert "cannot be shown" not in page and "no space was searched" in page
    assert [r["method"] for r in compare([folder, base]).to_dict()["runs"]] == ["finetune", "fixed"]
    exported = export(folder, "onnx", tmp_path / "onnx")
    assert exported.facts["checked_on"] == "test images of the run" and exported.facts["agreement"] == 1
    Image.fromarray(np.full((16, 16), 128, np.uint8)).save(tmp_path / "grey.png")
    answer = load(folder).predict([tmp_path / "grey.png"])[0]
    assert set(answer) == {"0", "1", "2", "3", "4"} and sum(answer.values()) == pytest.approx(1, abs=1e-4)


def test_the_run_stands_alone(base, tmp_path):
    """The source may go; a finished one answers, and a tuned network can be tuned again."""
    moved = tmp_path / "source"
    shutil.copytree(base, moved)
    first = tuned(moved, tmp_path / "one", seed=5)
    shutil.rmtree(moved)
    (tmp_path / "one" / "result.json").unlink()
    (tmp_path / "one" / "network" / "network.json").unlink()
    again = api.resume(tmp_path / "one", progress="quiet")
    assert again["test_accuracy"] == first["test_accuracy"] and again["start"] == first["start"]
    second = tuned(tmp_path / "one" / "network", tmp_path / "two", image_size=10)
    assert second["start"]["image_size"] == [8, 8] and second["settings"]["image_size"] == [10, 10]


def test_a_changed_copy_is_refused(base, tmp_path):
    tuned(base, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    card = tmp_path / "run" / COPY / "network.json"
    card.write_text(card.read_text().replace("bicubic", "bilinear"))
    with pytest.raises(TailorError, match="starting network of this run has changed since the run began"):
        api.resume(tmp_path / "run", progress="quiet")


def test_lost_weights_are_trained_again_from_the_starting_network(base, tmp_path, monkeypatch):
    """A full disk refuses the checkpoint: finish trains once more, from the same weights."""
    monkeypatch.setattr(Run, "save_checkpoint", lambda *_, **__: False)
    lost = tuned(base, tmp_path / "lost", seed=1)
    monkeypatch.undo()
    whole = tuned(base, tmp_path / "whole", seed=1)
    assert lost["test_accuracy"] == whole["test_accuracy"]
    weights = [(tmp_path / n / "network" / "network.safetensors").read_bytes() for n in ("lost", "whole")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("name", ["vit", "pit", "swin", "windowed", "shunted", "hybrid", "tailored"])
@pytest.mark.parametrize("windows", ["scale", "keep"])
def test_the_resized_network_of_every_family_is_what_its_settings_say(name, windows, tmp_path):
    record = family(name)
    shared = dict(record.shrink(next(iter(record.spaces.values()))).settings)
    if name == "shunted":
        shared["reduce"] = (16, 8, 4, 2)
    arch = record.arch({"family": name, **record.tiny})
    torch.manual_seed(0)
    model = record.build(record.settings(shared), arch)
    small = open_data("digits", limit=20)
    save_network(tmp_path, model, Card(arch, shared, small.classes, small.preprocessing, {}))
    data = open_data("digits", limit=20, image_size=16)
    config = {"method": "finetune", "start": {"network": str(tmp_path), "windows": windows}}
    start = read_start(configure(config))
    assert isinstance(start, StartingNetwork) and start.size == (8, 8)
    target, space = start.space(data)
    new = start.resized(data, seed=0)
    assert space.contains(target) and dict(space.settings)["image_size"] == (16, 16)
    assert Counter(name, dict(space.settings)).params(target) == sum(p.numel() for p in new.parameters())
    built = record.build(record.settings(dict(space.settings)), target)
    built.load_state_dict(new.state_dict())
    assert built.settings == new.settings
    start.normalise(data)
    batches = list(data.eval_batches("search", 20))
    assert accuracy(built, batches) == accuracy(new, batches)


def test_limits_are_kept_by_the_network_as_it_will_be(base, tmp_path):
    with pytest.raises(InfeasibleError, match="given architecture breaks the limits"):
        tuned(base, tmp_path / "run", settings=[*SETS, "limits.max_params=1000"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 13}, r"Images of 13 px do not suit this vit network .patches of 2 px.; .* 12 and 14\."),
        ({"preset": "cifr"}, r"Unknown preset 'cifr'. Did you mean 'cifar'\? Known: .*default"),
        ({"windows": "stretch"}, r"start.windows cannot be 'stretch'"),
        ({"data": "nowhere"}, r"There is no 'nowhere'"),
        ({"network": "nowhere"}, r"There is no folder 'nowhere'"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_written(base, tmp_path, options, message):
    source = options.pop("network", base)
    with pytest.raises(TailorError, match=message):
        tuned(source, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_an_unfinished_run_and_a_recipe_without_start_are_refused(tmp_path):
    (tmp_path / "half").mkdir()
    with pytest.raises(TailorError, match=r"holds no finished network .*is the run finished\?"):
        tuned(tmp_path / "half", tmp_path / "run")
    with pytest.raises(TailorError, match=r"Method 'finetune' needs start.network"):
        api.run("s4-digits", method="finetune", out=tmp_path / "run", **QUIET)


def test_a_card_that_does_not_fit_its_network_is_refused(base, tmp_path):
    shutil.copytree(base / "network", tmp_path / "net")
    card = json.loads((tmp_path / "net" / "network.json").read_text())
    card["arch"]["embed"] = 32
    (tmp_path / "net" / "network.json").write_text(json.dumps(card))
    with pytest.raises(TailorError, match="is not the vit its card describes: 'embed' is 24"):
        tuned(tmp_path / "net", tmp_path / "run")


# -- beside -----------------------------------------------------------------------------------------------------------


def test_a_probe_and_a_training_from_scratch_stand_beside(base, tmp_path):
    result = tuned(base, tmp_path / "run", data="digits", beside=True, settings=[*SETS, "data.limit=300"])
    probe, scratch = result["peers"]
    assert (probe["name"], probe["epochs"]) == (PROBE, 0) and (scratch["name"], scratch["epochs"]) == (SCRATCH, 2)
    assert probe["test_accuracy"] > 60, "a regression on features of a network that knows digits"
    assert scratch["test_accuracy"] < probe["test_accuracy"]
    assert probe["gap"]["difference"] == pytest.approx(probe["test_accuracy"] - result["test_accuracy"])
    lines = result.summary()
    assert any(line.startswith(f"  {PROBE}: ") for line in lines) and any(SCRATCH in line for line in lines)
    with Run.open(tmp_path / "run", lock=False) as run:
        weights = run.load_checkpoint(f"peer-{PROBE}")[0]
        assert run.result(f"peer-{PROBE}")["C"] in PENALTIES
        assert len(run.epochs(f"peer-{SCRATCH}")) == len(run.epochs("final")) == 2
    before = load(base).model.state_dict()
    changed = {k for k, v in before.items() if not torch.equal(v, weights[f"model/{k}"])}
    assert changed == {"head.weight", "head.bias"}, "the network itself is frozen"
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<b>Beside:</b> linear probe (" in page and "of timm" not in page
    (tmp_path / "run" / "result.json").unlink()
    again = api.resume(tmp_path / "run", **QUIET)
    assert again["peers"] == result["peers"]


@pytest.mark.parametrize("classes", [2, 4])
def test_the_regression_of_a_probe_is_that_of_the_library(classes):
    """Also with two classes, with one that has no training image, and with features of any scale."""
    rng = np.random.default_rng(classes)
    y, truth = rng.integers(0, classes, 120), rng.integers(0, classes, 60)
    centres = rng.normal(size=(classes, 6)) * 30

    def features(labels):
        return centres[labels] + rng.normal(size=(len(labels), 6)) * 12 + 500

    x, seen = features(y), features(truth)
    weight, bias, penalty = regression(x, y, seen, truth, classes + 1)
    mean, std = x.mean(0), x.std(0)
    right = {
        c: (LogisticRegression(C=c, max_iter=1000).fit((x - mean) / std, y).predict((seen - mean) / std) == truth).sum()
        for c in PENALTIES
    }
    assert right[penalty] == max(right.values()) == ((seen @ weight.T + bias).argmax(1) == truth).sum()
    library = LogisticRegression(C=penalty, max_iter=1000).fit((x - mean) / std, y).predict_proba((seen - mean) / std)
    logits = seen @ weight.T + bias
    shares = np.exp(logits - logits.max(1, keepdims=True))
    assert np.allclose((shares / shares.sum(1, keepdims=True))[:, :classes], library, atol=1e-6)


def test_beside_is_for_methods_that_begin_with_a_network():
    with pytest.raises(TailorError, match=r"start\.beside goes with methods tailor and finetune, not with 's4'"):
        prepare(configure({"start": {"beside": True}}))
