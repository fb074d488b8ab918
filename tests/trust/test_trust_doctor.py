"""``tailorvit doctor RUN``: what is damaged is found, with what to do; a whole folder is left as it is."""

from __future__ import annotations

import json
import sqlite3

import pytest
from trust_tools import refused


def flipped(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 255
    path.write_bytes(raw)


def overwritten(path):
    raw = path.read_bytes()
    path.write_bytes(raw[:4096] + b"\xff" * 4096 + raw[8192:])


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def broken_row(path):
    with sqlite3.connect(path) as link:
        link.execute("UPDATE epochs SET facts = '{'")
    link.close()


def test_a_whole_run_is_sound_and_unchanged(call, damaged):
    before = {p: p.read_bytes() for p in damaged.rglob("*") if p.is_file()}
    code, out, err = call("doctor", damaged)
    assert code == 0, out + err
    assert "problem" not in out and "its checksum fits" in out
    assert {p: p.read_bytes() for p in damaged.rglob("*") if p.is_file()} == before
    rows = json.loads(call("doctor", damaged, "--json")[1])
    assert {"recipe.toml", "info.json", "run.db", "splits.json", "network", "result.json"} <= {r["what"] for r in rows}


@pytest.mark.parametrize(
    ("file", "harm", "words"),
    [
        ("recipe.toml", cut, "begin the run anew"),
        ("info.json", cut, "begin the run anew"),
        ("run.db", overwritten, "run.db"),
        ("run.db", cut, "is damaged"),
        ("run.db", broken_row, "damaged in the table epochs"),
        ("run.db", lambda p: p.unlink(), "is missing"),
        ("splits.json", cut, "remove it, and resume makes it again"),
        ("result.json", cut, "tailorvit resume"),
        ("network/network.safetensors", flipped, "remove result.json"),
        ("network/network.json", cut, "remove result.json"),
        ("checkpoints/final.safetensors", flipped, "is damaged"),
        ("elsewhere", lambda p: p.symlink_to("/etc/hostname"), "leads out of the run folder"),
    ],
)
def test_damage_is_found(call, damaged, file, harm, words):
    path = damaged / file
    if file.startswith("checkpoints"):
        path = next((damaged / "checkpoints").glob("*.safetensors"))
    harm(path)
    code, out, _ = call("doctor", damaged)
    assert code == 2 and "problem" in out and words in out, out


def test_an_unfinished_run_is_sound(call, damaged):
    (damaged / "result.json").unlink()
    code, out, _ = call("doctor", damaged)
    assert code == 0 and f"tailorvit resume {damaged}" in out


def test_what_is_no_run(call, tmp_path):
    refused(call("doctor", tmp_path / "none"), "no such folder")
    refused(call("doctor", tmp_path), "is not a run folder")
