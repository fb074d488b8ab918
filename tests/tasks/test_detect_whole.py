"""``tailorvit detect`` from data to report: trained, resumed, asked about an image, repeated to the bit."""

from __future__ import annotations

import json
import sys

import pytest
from detect_tools import make_coco, make_voc, thing_outside

from tailorvit import cli


def call(*words):
    """The command line in this process: its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tailorvit", *map(str, words)])
        try:
            cli.main()
        except SystemExit as left:
            return left.code or 0
    return 0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("detect")
    make_coco(place / "shapes", 8)
    options = ("--data", place / "shapes", "--tiny", "--set", "detect.head=cascade", "--set", "train.epochs=1")
    assert call("detect", "timm:resnet10t", *options, "--out", place / "run", "--quiet") == 0
    return place


def test_the_run_holds_figures_pictures_and_a_network(run):
    result = json.loads((run / "run" / "result.json").read_text())
    assert result["task"] == "detect" and result["metric"] == "map"
    assert {"map", "map50", "mask_map", "ap/disc"} <= set(result["test"])
    assert all(0 <= v <= 100 for v in result["test"].values())
    page = (run / "run" / "report.html").read_text()
    assert "objects annotated (left)" in page and (run / "run" / "network" / "task.json").is_file()


def test_a_resumed_run_changes_nothing_and_predicts(run, capsys):
    before = (run / "run" / "result.json").read_bytes()
    assert call("resume", run / "run", "--quiet") == 0
    assert (run / "run" / "result.json").read_bytes() == before
    capsys.readouterr()
    assert call("predict", run / "run", run / "shapes" / "images" / "p0.png") == 0
    said = json.loads(capsys.readouterr().out)
    said = said[0] if isinstance(said, list) else said
    assert said["size"] == {"rows": 48, "columns": 48} and isinstance(said["objects"], list)


def test_mistakes_are_named_before_the_training(tmp_path, capsys):
    root = make_voc(tmp_path / "voc", 5, lists=False)
    for file in (root / "Annotations").iterdir():
        file.write_text(thing_outside(file.stem))
    assert call("detect", "timm:resnet10t", "--data", root, "--tiny", "--out", tmp_path / "run") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "No object of" in said and "Annotations/p0.xml, object 1" in said
    assert "lies outside the image of 48x48" in said and not (tmp_path / "run").exists()
