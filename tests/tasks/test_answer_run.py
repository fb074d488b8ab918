"""``tailorvit answer`` from the command line: trained, resumed, asked and exported."""

from __future__ import annotations

import json

from answer_tools import COLOURS, folder
from typer.testing import CliRunner

from tailorvit import cli


def run(*words):
    done = CliRunner().invoke(cli.app, [str(w) for w in words])
    return done.exit_code, f"{done.output}{done.exception or ''}"


def test_a_network_answers_from_the_command_line(tmp_path):
    data, out = folder(tmp_path / "data", 24), tmp_path / "run"
    data.joinpath("images", "5.png").write_bytes(b"no image")
    start = ("answer", "timm:test_resnet", "--data", data, "--out", out, "--tiny", "--plain")
    code, said = run(*start)
    assert code == 0, said
    assert "images/5.png (it cannot be read: not an image)" in said and "question only: test accuracy" in said
    result = json.loads((out / "result.json").read_text())
    assert {"accuracy", "accuracy_colour", "accuracy_yes_no", "prior_accuracy"} == set(result["test"])
    (beside,) = result["beside"]
    assert beside["name"] == "question only" and beside["test"]["prior_accuracy"] == result["test"]["prior_accuracy"]
    assert "What colour is it?" in (out / "report.html").read_text()
    code, said = run("predict", out, data / "images" / "0.png", "--question", "Is it red?", "--json")
    found = json.loads(said)
    assert code == 0 and found["question"] == "Is it red?" and found["answer"] in {"yes", "no", *COLOURS}
    code, said = run("predict", out, data / "images" / "0.png")
    assert code != 0 and "A question is needed" in said


def test_mistakes_end_before_any_training(tmp_path):
    folder(tmp_path, 12)
    for words, expected in (
        (("--set", "answer.width=48"), "multiple of 32"),
        (("--set", f"answer.text={tmp_path}"), "it has no config.json"),
        (("--set", "answer.colour=1"), "colour"),
    ):
        code, said = run("answer", "timm:test_resnet", "--data", tmp_path, "--out", tmp_path / "run", "--tiny", *words)
        assert code and expected in " ".join(said.split()), said
    assert not (tmp_path / "run").exists()
