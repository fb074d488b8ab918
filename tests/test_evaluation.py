"""Evaluation on labelled images: the figures by hand, the choice of the split, classes by name, bad input."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import tailorvit
from tailorvit import cli
from tailorvit.data import open_data
from tailorvit.errors import TailorError
from tailorvit.evaluation import evaluate
from tailorvit.export import Card, export, save_network
from tailorvit.families import family

CLASSES = ("owl", "cat", "dog")  # not in alphabetical order, which is the data's
FIXED = {"image_size": (8, 8), "patch": 4, "channels": 1, "head_dim": 8, "reach": 2}
HOW = {"image_size": [8, 8], "channels": 1, "mean": [0.4], "std": [0.3], "margin": 1.0}


def make_network(folder: Path, classes: tuple[str, ...], seed: int = 0) -> Path:
    """A network with random weights large enough that its predictions differ between images."""
    vit, fixed = family("vit"), {**FIXED, "classes": len(classes)}
    arch = vit.arch({"family": "vit", "depth": 2, "embed": 16, "heads": 2, "mlp": 2})
    torch.manual_seed(seed)
    model = vit.build(vit.settings(fixed), arch)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.5)
    save_network(folder, model, Card(arch, fixed, classes, HOW, {"seed": 0}))
    return folder


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Path:
    return make_network(tmp_path_factory.mktemp("network"), CLASSES)


def fill(root: Path, counts: dict[str, int], seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            corners = rng.integers(0, 256, (2, 2, 3), np.uint8)  # smooth, so that images differ much
            Image.fromarray(corners).resize((17, 20)).save(root / name / f"{i}.png")
    return root


@pytest.fixture
def photos(tmp_path) -> Path:
    """Colour images, although the network takes grey ones."""
    return fill(tmp_path / "photos", {"cat": 9, "dog": 12, "owl": 5})


def pairs(network: Path, files: list[Path]) -> Counter:
    """How often (true class, predicted class) occurs, from the predictions."""
    rows = tailorvit.load(network).predict(files)
    return Counter((file.parent.name, next(iter(row))) for file, row in zip(files, rows))


# -- figures ----------------------------------------------------------------------------------------------------------


def test_the_figures_by_hand(network, photos):
    found = evaluate(network, photos)
    counts = pairs(network, sorted(photos.rglob("*.png")))
    assert found.images == 26 and found.split == "all" and found.skipped == found.notes == ()
    assert found.confusion == tuple(tuple(counts[a, b] for b in CLASSES) for a in CLASSES)
    assert found.accuracy == pytest.approx(100 * sum(counts[c, c] for c in CLASSES) / 26)
    assert found.metrics["macro_f1"] == found.macro["f1"], "the same figure as in the table"
    assert found.metrics["balanced_accuracy"] == found.macro["recall"] and "top5_accuracy" not in found.metrics
    assert [row.name for row in found.classes] == list(CLASSES)
    assert len({b for _, b in counts}) > 1, "a network that predicts several classes"
    for row in found.classes:
        hits, predicted = counts[row.name, row.name], sum(counts[a, row.name] for a in CLASSES)
        support = sum(counts[row.name, b] for b in CLASSES)
        precision, recall = 100 * hits / max(predicted, 1), 100 * hits / support
        assert (row.precision, row.recall, row.support) == (pytest.approx(precision), pytest.approx(recall), support)
        assert row.f1 == pytest.approx(2 * precision * recall / max(precision + recall, 1e-9))
    for key in ("precision", "recall", "f1"):
        assert found.macro[key] == pytest.approx(np.mean([getattr(row, key) for row in found.classes]))


def test_onnx_arrays_and_files_agree(network, photos, tmp_path):
    wanted = evaluate(network, photos)
    onnx = export(network, "onnx", tmp_path / "onnx", check=False).path
    for source in (onnx, onnx / "network.onnx"):
        assert evaluate(source, photos).confusion == wanted.confusion
    files = sorted(photos.rglob("*.png"))
    x, y = np.stack([np.asarray(Image.open(f)) for f in files]), [sorted(CLASSES).index(f.parent.name) for f in files]
    np.savez(tmp_path / "data.npz", x=x, y=np.asarray(y), classes=np.asarray(sorted(CLASSES)))
    assert evaluate(network, tmp_path / "data.npz").confusion == wanted.confusion


# -- splits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [("train", "val", "test"), ("train", "test"), ("train", "val")])
def test_the_split_that_the_data_brings(network, tmp_path, own):
    sizes = {"train": 3, "val": 4, "test": 5}
    for number, part in enumerate(own):
        fill(tmp_path / part, dict.fromkeys(CLASSES, sizes[part]), number)
    found = evaluate(network, tmp_path)
    assert found.split == own[-1] and found.images == 3 * sizes[own[-1]]
    assert sum(map(sum, found.confusion)) == found.images
    counts = pairs(network, sorted((tmp_path / own[-1]).rglob("*.png")))
    assert found.confusion == tuple(tuple(counts[a, b] for b in CLASSES) for a in CLASSES)
    for part in own:
        assert evaluate(network, tmp_path, split=part).images == 3 * sizes[part]
    assert evaluate(network, tmp_path, split="all").images == sum(3 * sizes[part] for part in own)
    with pytest.raises(TailorError, match=r"Unknown split 'tets'\..* Known: all, "):
        evaluate(network, tmp_path, split="tets")


def test_a_run_on_the_same_data_knows_its_splits(tmp_path):
    """All images include those of the training, which is said; --split test leaves them out."""
    data = open_data("digits", seed=3)
    run = tmp_path / "run"
    make_network(run / "network", tuple(data.classes))
    (run / "splits.json").write_text(json.dumps(data.split_record()))
    used = data.counts["train"] + data.counts["search"]
    for place in (run, run / "network", export(run, "safetensors", check=False).path):
        found = evaluate(place, "digits")
        assert found.split == "all" and found.images == 1797
        assert f"used {used} of these images" in found.notes[0] and "--split test" in found.notes[0]
        test = evaluate(place, "digits", split="test")
        assert test.images == data.counts["test"] and test.notes == ()
    data.unseal_test("a test")
    model, hits = tailorvit.load(run), 0
    with torch.inference_mode():
        for x, y in data.eval_batches("test", 64):
            hits += int((model(rescaled(x, data)).argmax(1) == y).sum())
    assert test.accuracy == pytest.approx(100 * hits / data.counts["test"])
    (run / "splits.json").write_text(json.dumps({**data.split_record(), "fingerprint": "other"}))
    assert evaluate(run, "digits").notes == ()
    with pytest.raises(TailorError, match="Unknown split 'test'"):
        evaluate(run, "digits", split="test")


def rescaled(x: torch.Tensor, data) -> torch.Tensor:
    """Images normalised by the data's mean and deviation, normalised by the network's instead."""
    return ((x * data.std[0] + data.mean[0]) - HOW["mean"][0]) / HOW["std"][0]


# -- classes ----------------------------------------------------------------------------------------------------------


def test_an_unknown_class_is_one_sentence(network, photos):
    fill(photos, {"emu": 2, "gnu": 1})
    with pytest.raises(
        TailorError, match=r"^The data has the class 'emu', 'gnu', which the network .*knows 'owl', 'cat', 'dog'\.$"
    ):
        evaluate(network, photos)


def test_a_class_without_images_is_named_and_not_averaged(network, tmp_path):
    root = fill(tmp_path / "two", {"cat": 9, "dog": 7})
    found = evaluate(network, root)
    assert found.notes == ("The data has no images of the class 'owl'; the macro averages are over the others.",)
    rows = {row.name: row for row in found.classes}
    assert rows["owl"].support == 0 and found.images == 16 and found.confusion[0] == (0, 0, 0)
    assert found.macro["recall"] == pytest.approx((rows["cat"].recall + rows["dog"].recall) / 2)


def test_a_class_of_another_split_does_not_matter(network, tmp_path):
    fill(tmp_path / "train", {"cat": 2, "dog": 2, "emu": 2})
    fill(tmp_path / "test", {"cat": 2, "dog": 2})
    assert evaluate(network, tmp_path).images == 4
    with pytest.raises(TailorError, match="'emu'"):
        evaluate(network, tmp_path, split="train")


# -- bad input --------------------------------------------------------------------------------------------------------


def test_unreadable_images_are_left_out_and_named(network, tmp_path):
    for part in ("train", "test"):
        fill(tmp_path / part, {"cat": 4, "dog": 4})
        (tmp_path / part / "cat" / "text.png").write_text("text")
    cut = tmp_path / "test" / "dog" / "3.png"
    cut.write_bytes(cut.read_bytes()[:200])
    found = evaluate(network, tmp_path)
    assert found.images == 7
    assert {Path(name).relative_to(tmp_path).as_posix() for name, _ in found.skipped} == {
        "test/cat/text.png",
        "test/dog/3.png",
    }
    assert "2 images could not be read" in found.notes[-1]
    assert len(evaluate(network, tmp_path, split="all").skipped) == 3
    for file in (tmp_path / "test").rglob("[0-9].png"):
        file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(TailorError, match=r"None of the 8 images of '.*' can be read, the first because: .*truncated"):
        evaluate(network, tmp_path)


@pytest.mark.parametrize(
    ("source", "data", "words"),
    [
        ("nowhere", "photos", "There is no folder 'nowhere'"),
        ("none.onnx", "photos", "There is no ONNX file 'none.onnx'"),
        ("photos", "photos", "'photos' holds no finished network"),
        ("network", "nothing", "There is no 'nothing'; data can be: digits"),
        ("network", "empty", "'empty' has no class folders"),
        ("network", "photos/cat/0.png", r"is a '\.png' file"),
    ],
)
def test_bad_input_is_one_sentence(network, photos, monkeypatch, source, data, words):
    monkeypatch.chdir(photos.parent)
    Path("empty").mkdir()
    with pytest.raises(TailorError, match=words):
        evaluate(network if source == "network" else source, data)


# -- the command ------------------------------------------------------------------------------------------------------


def command(*args: object) -> str:
    done = CliRunner().invoke(cli.app, ["evaluate", *map(str, args)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_prints_a_table_or_json(network, photos):
    found = tailorvit.evaluate(network, photos)
    lines = command(network, "--data", photos).splitlines()
    assert lines[0] == f"Accuracy {found.accuracy:.2f} % on 26 images of {photos} (split: all)"
    assert [line.split()[0] for line in lines[3:]] == [*CLASSES, "macro"] and lines[-1].endswith(" 26")
    facts = json.loads(command(network, "--data", photos, "--split", "all", "--json"))
    assert facts["confusion"] == [list(row) for row in found.confusion] and facts["accuracy"] == found.accuracy
    assert facts["classes"][0] == {
        "name": "owl",
        "precision": found.classes[0].precision,
        "recall": found.classes[0].recall,
        "f1": found.classes[0].f1,
        "support": 5,
    }
    assert set(facts) == {
        *("network", "data", "split", "images", "accuracy", "macro", "metrics", "classes", "confusion", "skipped"),
        "notes",
    }
    assert facts["metrics"] == found.metrics and lines[1].startswith(f"Balanced accuracy {found.macro['recall']:.2f} %")


def test_images_from_a_dataset_object(network, photos, monkeypatch):
    """Images without files are opened one by one; one that fails is left out."""
    import tailorvit.data.sources as sources

    wanted = evaluate(network, photos)
    real = sources.read_source

    def read_source(source: str):
        pool = real(source)
        pool.names, opener = None, pool.opener

        def failing(index: int) -> Image.Image:
            if index == 25:
                raise RuntimeError("no such item")
            return opener(index)

        pool.opener = failing
        return pool

    monkeypatch.setattr(sources, "read_source", read_source)
    found = evaluate(network, photos)
    assert found.images == 25 and found.skipped == (("item 25", "no such item"),)
    assert np.abs(np.subtract(found.confusion, wanted.confusion)).sum() == 1
