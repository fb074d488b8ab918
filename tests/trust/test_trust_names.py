"""Names that are no text: bytes that are not UTF-8, codes of terminals."""

from __future__ import annotations

import sys

import pytest
from trust_tools import QUICK, picture_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")


def test_any_bytes_in_file_and_class_names(call, tmp_path):
    data = picture_folder(tmp_path / "d\udcff", ("bad\udcff\udce9", "red\x1b[31m"), name="i\udcff{}.png")
    run = tmp_path / "run"
    commands = [
        ("run", "--data", data, "--out", run, *QUICK),
        ("resume", run),
        ("predict", run, data),
        ("evaluate", run, "--data", data),
        ("report", run),
        ("doctor", run),
        ("finetune", run, "--data", data, "--tiny", "--quiet", "--set", "train.epochs=1", "--out", tmp_path / "tuned"),
        ("export", run, "--to", "timm"),
        ("export", run, "--to", "onnx"),
        ("predict", run / "export" / "onnx" / "network.onnx", data),
    ]
    for command in commands:
        code, out, err = call(*command)
        assert code == 0, (command, err)
        assert "\x1b" not in out + err, command
    assert "\x1b" not in (run / "report.html").read_text("utf-8", "replace")
    page = (run / "report.html").read_text("utf-8", "surrogateescape")
    assert "bad" in page


def test_a_message_never_holds_control_codes(call, tmp_path):
    code, _, err = call("run", "--data", "no\x1b[2Jwhere\n\r")
    assert code == 2 and "\x1b" not in err and err.count("\n") == 1 and "\\x1b" in err


def test_the_program_prints_class_names_with_codes_escaped(call, base, tmp_path):
    import json
    import shutil

    folder = shutil.copytree(base / "network", tmp_path / "net")
    card = json.loads((folder / "network.json").read_text())
    card["classes"] = ["<b>\x1b[31m", "b"]
    (folder / "network.json").write_text(json.dumps(card))
    picture_folder(tmp_path / "d")
    code, out, _ = call("predict", folder, tmp_path / "d")
    assert code == 0 and "\x1b" not in out and "\\x1b" in out
