"""Damaged and foreign JSON, TOML and databases: one sentence each, in seconds."""

from __future__ import annotations

import json
import sqlite3

import pytest
from trust_tools import refused

from tailorvit.errors import TailorError
from tailorvit.runs import Run
from tailorvit.texts import DEEPEST, parse_json, parse_toml, read_table, require_plain, shown

DEEP, LONG = "[" * 5000, "1" * 6000


@pytest.mark.parametrize("text", [DEEP, LONG, "1" * 60, "[" * (DEEPEST + 2) + "]" * (DEEPEST + 2), "", "{", '{"a":}'])
def test_json_is_read_or_refused_with_a_value_error(text):
    with pytest.raises(ValueError):
        parse_json(text)


@pytest.mark.parametrize("text", [f"a = {DEEP}", f"a = {LONG}", f"a = {'9' * 60}", "a", ".".join("a" * 900) + " = 1"])
def test_toml_is_read_or_refused_with_a_value_error(text):
    with pytest.raises(ValueError):
        parse_toml(text)


def test_what_is_plain_passes(tmp_path):
    assert parse_json('{"a": [1, -2.5, "x", null]}') == {"a": [1, -2.5, "x", None]}
    require_plain({"a": [(1, {"b": 2**128})]})
    (tmp_path / "x.json").write_bytes(b'{"name": "\xff"}')
    assert read_table(tmp_path / "x.json") == {"name": "\udcff"}
    assert shown("a\x1b\n\udcff") == "a\\x1b\\n\\udcff" and shown("a\nb", lines=True) == "a\nb"


@pytest.mark.parametrize("text", [DEEP, f'{{"depth": {LONG}}}', '{"family": "vit", "depth": 100000000, "embed": 8, '])
def test_cost_of_a_broken_file(call, tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    refused(call("cost", tmp_path / "a.json"), "is not readable JSON")


@pytest.mark.parametrize("text", [f"a = {DEEP}", f"seed = {LONG}"])
def test_a_broken_recipe(call, tmp_path, text):
    (tmp_path / "r.toml").write_text(text)
    refused(call("run", tmp_path / "r.toml"), "r.toml")
    refused(call("space", tmp_path / "r.toml"), "r.toml")


def test_broken_settings(call):
    refused(call("run", "--set", f"train.epochs={DEEP}"), "nested too deeply")
    refused(call("run", "--set", f"train.epochs={'9' * 60}"), "60 digits")
    refused(call("run", "--set", ".".join("a" * 900) + "=1"), "900 parts")


@pytest.mark.parametrize("name", ["result.json", "info.json"])
@pytest.mark.parametrize("text", ["{}", "[]", "3", DEEP, '{"arch": 1}', '{"data": [], "versions": [], "start": 3}'])
def test_a_run_with_a_foreign_table(call, damaged, name, text):
    (damaged / name).write_text(text)
    for command in (("resume", damaged), ("export", damaged, "--to", "safetensors"), ("report", damaged)):
        found = call(*command)
        if found[0] != 0:
            refused(found)
    if name == "info.json":
        (damaged / "result.json").unlink()
        found = call("resume", damaged)
        assert found[0] == 0 or refused(found)


def test_an_empty_result_means_unfinished(call, damaged):
    (damaged / "result.json").write_text("{}")
    assert call("resume", damaged)[0] == 0
    assert json.loads((damaged / "result.json").read_text())["test_accuracy"] >= 0


def test_another_method_in_the_recipe_is_refused(call, damaged):
    (damaged / "result.json").unlink()
    (damaged / "recipe.toml").write_text("method = 's4'\n")
    refused(call("resume", damaged), "began with method 'autoformer'")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW endless AS WITH RECURSIVE r(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM r) SELECT id FROM r",
        "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM trials; END",
    ],
)
def test_a_database_with_code_in_it_is_refused(call, damaged, statement):
    (damaged / "result.json").unlink()
    link = sqlite3.connect(damaged / "run.db")
    link.execute(statement)
    link.commit()
    link.close()
    refused(call("resume", damaged), "which no run writes")
    with Run.open(damaged, lock=False) as run, pytest.raises(TailorError, match="no run writes"):
        run.events()
    assert call("report", damaged)[0] == 0
