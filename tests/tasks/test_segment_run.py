"""The command from a network and a folder of masks to figures, pictures, predictions and an export."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tailorvit.cli import app
from tailorvit.errors import TailorError
from tailorvit.export import Card, save_network
from tailorvit.families import family
from tailorvit.tasks.saved import load_task
from tailorvit.tasks.segment import TASK, mask_of
from tailorvit.testing.masks import SHAPES, draw_mask_folder


def command(*words: object) -> str:
    done = CliRunner().invoke(app, [str(w) for w in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path]:
    """The folder of a finished run, and its data, of which one mask has another size."""
    root = tmp_path_factory.mktemp("segment")
    record = family("windowed")
    fixed = dict(record.shrink(next(iter(record.spaces.values()))).settings)
    arch = record.arch({"family": "windowed", **record.tiny})
    torch.manual_seed(0)
    model = record.build(record.settings(fixed), arch)
    how = {"image_size": [8, 8], "channels": 1, "mean": [0.4], "std": [0.2], "margin": 1.0}
    save_network(root / "network", model, Card(arch, fixed, tuple(map(str, range(model.num_classes))), how, {}))
    data = draw_mask_folder(root / "data", {"train": 5, "val": 2, "test": 2}, (12, 16))
    Image.new("L", (9, 9)).save(data / "masks" / "train" / "004.png")
    out = root / "run"
    small = ("segment.image_size=16", "segment.scales=[1.0, 1.5]")
    command("segment", root / "network", "--data", data, "--out", out, "--tiny", "--plain", *sets(*small))
    return out, data


def sets(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def test_a_run_has_figures_pictures_and_the_files_left_out(made):
    out, _ = made
    result = json.loads((out / "result.json").read_text())
    assert result["metric"] == "miou" and result["data"]["counts"] == {"train": 4, "search": 2, "test": 2}
    assert set(result["test"]) - {f"iou/{name}" for name in SHAPES} == {
        *("miou", "mean_accuracy", "pixel_accuracy", "miou_ms_flip")
    }
    assert "miou_ms_flip" not in result["search"] and all(0 <= v <= 100 for v in result["test"].values())
    (left_out,) = json.loads((out / "skipped.json").read_text())
    assert left_out["path"] == "images/train/004.png" and "9x9 px" in left_out["reason"]
    assert len(list((out / "pictures").glob("*.png"))) == 2
    assert "mean IoU" in (out / "report.html").read_text()


def test_the_saved_network_predicts_what_was_evaluated(made, tmp_path):
    out, data = made
    settings = TASK.settings(image_size=16, scales=())
    trained = load_task(out)
    known = TASK.read(str(data), settings, 0)
    known.mean, known.std = trained.facts["mean"], trained.facts["std"]
    known.unseal_test("a test")
    found = TASK.evaluate(trained.network, known, "test", "cpu")
    tested = json.loads((out / "result.json").read_text())["test"]
    assert found == pytest.approx({k: v for k, v in tested.items() if k != "miou_ms_flip"})
    right = total = 0
    for place, item in enumerate(known.items("test")):
        mask = mask_of(trained.predict(item.image, masks=tmp_path))
        assert (np.asarray(Image.open(tmp_path / f"{item.image.stem}.png")) == mask).all()
        right, total = right + int((mask == known.truth("test", place)).sum()), total + mask.size
    assert 100 * right / total == pytest.approx(found["pixel_accuracy"])


def test_the_command_predicts_a_file(made):
    out, data = made
    row = json.loads(command("predict", out, data / "images" / "test" / "000.png"))
    assert row["size"] == [12, 16] and sum(n for _, n in row["rle"]) == 12 * 16


def test_mistakes_are_one_sentence(made, tmp_path):
    out, _ = made
    for words, said in (
        ((out.parent / "network", "--data", tmp_path), "no image with a mask"),
        ((out.parent / "network", "--data", tmp_path / "none"), "none"),
        ((out.parent / "network", "--data", out.parent / "data", *sets("segment.decoder=1")), "segment.decoder"),
    ):
        done = CliRunner().invoke(app, ["segment", *map(str, words), "--out", str(tmp_path / "run")])
        assert isinstance(done.exception, TailorError) and said in str(done.exception), done.output
