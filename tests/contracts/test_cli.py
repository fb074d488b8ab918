"""The command line: help texts, JSON for programs, and one sentence for every mistake.

``UPDATE_GOLDEN=1 pytest tests/contracts/test_cli.py`` writes the help texts anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_tools import pictures, refused
from typer.testing import CliRunner

import tailorvit
from tailorvit import cli
from tailorvit.data import open_data
from tailorvit.methods import METHODS

GOLDEN = Path(__file__).parents[1] / "golden"
VERBS = ["run", "resume", "finetune", "space", "cost", "list", "runs", "report", "compare", "watch", "export"]
VERBS += ["import", "predict", "evaluate", "doctor", "rank", "score", "detect", "segment", "answer", "latency-kit"]
VERBS += ["schema", "completion", "study", "push"]
PLAIN = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}


def program(*args, **options):
    """A process of its own, for what depends on one."""
    env = {**os.environ, **PLAIN, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tailorvit", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=120, **options)


# -- help -------------------------------------------------------------------------------------------------------------


def cleaned(text: str) -> str:
    """Without colours, boxes and the words for types, which change between versions of the library."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"[─-╿*]|<[^>]*>|\b(TEXT|INTEGER|PATH|FLOAT)\b", " ", text)
    return "\n".join(re.sub(r"(?<=\S)  +", "  ", line.rstrip()) for line in text.splitlines() if line.strip()) + "\n"


def words(text: str) -> list[str]:
    return re.sub(r"[][{}]|\.\.\.", " ", text.lower()).split()


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_is_a_golden_file(verb):
    found = CliRunner().invoke(cli.app, [verb, "--help"] if verb else ["--help"], env=PLAIN, prog_name="tailorvit")
    assert found.exit_code == 0
    text, path = cleaned(found.output), GOLDEN / f"help-{verb or 'tailorvit'}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert words(text) == words(path.read_text(encoding="utf-8"))


def test_every_verb_has_a_golden_file():
    names = {c.name or c.callback.__name__.rstrip("_") for c in cli.app.registered_commands}
    assert names == set(VERBS)
    assert {p.stem for p in GOLDEN.glob("help-*.txt")} == {f"help-{v}" for v in ["tailorvit", *VERBS]}


def test_help_is_quick():
    took = []
    for _ in range(3):
        start = time.perf_counter()
        done = program("--help")
        took.append(time.perf_counter() - start)
        assert done.returncode == 0 and done.stderr == "" and all(v in done.stdout for v in VERBS)
        if took[-1] < 1:
            break
    assert min(took) < 1


# -- a pretrained start ------------------------------------------------------------------------------------------------


def test_from_weights_and_front_reach_the_call(monkeypatch):
    from tailorvit import api

    seen = {}
    monkeypatch.setattr(api, "plan", lambda recipe, **options: seen.update(options) or {"lines": []})
    words = ["--from", "timm:vit", "--weights", "w.pth", "--front", "2M,4M", "--data", "photos", "--plan"]
    assert CliRunner().invoke(cli.app, ["run", *words]).exit_code == 0
    given = {k: seen[k] for k in ("start", "weights", "front", "method")}
    assert given == {"start": "timm:vit", "weights": "w.pth", "front": "2M,4M", "method": None}


# -- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params"), [("autoformer-t", 5_867_944), ("autoformer-s", 22_891_432), ("autoformer-b", 53_691_688)]
)
def test_cost_as_json(call, name, params):
    code, out, err = call("cost", name, "--json")
    facts = json.loads(out)
    assert code == 0 and err == "" and facts["params"] == params
    assert (
        sum(p["params"] for p in facts["parts"]) == params and sum(p["macs"] for p in facts["parts"]) == facts["macs"]
    )
    assert {"part", "params", "macs"} == set(facts["parts"][0])


def test_cost_for_people_and_for_other_classes(call, tmp_path):
    code, out, _ = call("cost", "autoformer-s")
    assert code == 0 and "22,891,432 parameters" in out and "head" in out
    fewer = json.loads(call("cost", "autoformer-s", "--classes", 10, "--json")[1])
    assert fewer["params"] == 22_891_432 - 990 * 385
    path = tmp_path / "arch.json"
    path.write_text(json.dumps({"family": "vit", "depth": 12, "embed": 384, "heads": 6, "mlp": 4}))
    assert json.loads(call("cost", path, "--json")[1])["params"] == 22_142_824


def test_cost_measured_without_chatter():
    """In a process of its own, since torch's profiler writes past Python's streams."""
    done = program("cost", "deit-ti", "--image-size", 32, "--measure", "--json")
    facts = json.loads(done.stdout)
    assert done.stderr == "" and facts["latency"]["median"] > 0 and facts["memory"] > 4 * facts["params"]


def test_space_as_json(call):
    code, out, _ = call("space", "s4-vit", "--classes", 200, "--max-params", "30M", "--json")
    facts = json.loads(out)
    assert code == 0 and set(facts["dims"]) == {"depth", "mlp", "heads", "embed"}
    assert facts["smallest"]["params"] == 12_075_704 and facts["largest"]["params"] == 36_430_664
    assert {"params", "macs"} <= set(facts["smallest"]) and {"params", "macs"} <= set(facts["largest"])
    assert facts["count"] == 3 * sum(14**a for a in (12, 13, 14))
    assert 0 < facts["fits"] <= 1 and facts["dims"]["heads"]["choices"] == [2, 4, 6, 8, 10, 12, 14]
    open_ended = json.loads(call("space", "s4-vit", "--json")[1])
    assert open_ended["fits"] == 1


def test_space_for_people(call):
    code, out, _ = call("space", "s4-vit", "--classes", 200, "--max-params", "30M")
    assert code == 0 and "36,430,664" in out and "% of" in out and "fit the limits" in out


def test_space_from_a_file(call, tmp_path):
    path = tmp_path / "mine.toml"
    dims = "\n".join(
        f"[dims.{n}]\nscope = '{s}'\nchoices = {c}"
        for n, s, c in (
            ("depth", "global", [2]),
            ("embed", "global", [8, 16]),
            ("heads", "block", [1]),
            ("mlp", "block", [2]),
        )
    )
    path.write_text(f"family = 'vit'\n{dims}\n")
    assert json.loads(call("space", path, "--json")[1])["count"] == 2


LISTS = ["families", "spaces", "archs", "methods", "recipes", "presets", "searchers", "proxies", "exporters", "data"]


@pytest.mark.parametrize("what", [*LISTS, "trunks"])
def test_lists(call, what):
    rows = json.loads(call("list", what, "--json")[1])
    assert rows and all(r["name"] and r["summary"] for r in rows)
    code, out, _ = call("list", what)
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == [r["name"] for r in rows]


def test_a_list_of_all_that_plugins_may_add_to(call):
    tables = json.loads(call("list", "--json")[1])
    assert {"families", "methods", "exporters", "trunks"} <= set(tables) and "recipes" not in tables
    out = call("list")[1].splitlines()
    assert [line for line in out if line and not line.startswith(" ")] == list(tables)
    assert any(line.startswith("  vit ") for line in out)


def test_doctor(call):
    code, out, _ = call("doctor")
    assert code == 0 and "torch" in out
    rows = json.loads(call("doctor", "--json")[1])
    assert {"what", "state", "text"} == set(rows[0]) and {r["state"] for r in rows} <= {"ok", "note", "problem"}


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["run", "--set", "train.epoch=3"], ["'train.epoch'", "Did you mean 'train.epochs'?"]),
        (["run", "--set", "train.epochs=many"], ["train.epochs cannot be 'many'"]),
        (["run", "--set", "epochs"], ["--set 'epochs'", "train.epochs=50"]),
        (["run", "s4-digit"], ["Unknown recipe 's4-digit'", "Did you mean 's4-digits'?"]),
        (["run", "nowhere.toml"], ["no recipe file 'nowhere.toml'"]),
        (["run", "--method", "s5"], ["Unknown method 's5'", ", ".join(sorted(METHODS))]),
        (["run", "--set", "family=swan"], ["Unknown family 'swan'"]),
        (["run", "--set", "space=s4-vitt"], ["Unknown space 's4-vitt'", "Did you mean 's4-vit'?"]),
        (["run", "--method", "fixed", "--set", "arch=deit-x"], ["Unknown architecture 'deit-x'"]),
        (["run", "--method", "fixed"], ["needs 'arch'"]),
        (["run", "--set", "search.name=evo"], ["Unknown searcher 'evo'"]),
        (["run", "--set", "train.augment=wild"], ["'wild'", "Did you mean 'mild'?"]),
        (["run", "--set", "device=banana"], ["Device 'banana'"]),
        (["run", "--max-params", "3Q"], ["'3Q'", "30M or 500k"]),
        (["run", "--max-params", "0"], ["above zero"]),
        (["run", "--min-params", "5M", "--max-params", "1M"], ["min_params 5M lies above max_params 1M"]),
        (["run", "--max-params", "100"], ["params <= 100", "the smallest tried has params"]),
        (["run", "--max-macs", "10"], ["MACs <= 10", "the smallest tried has macs"]),
        (["run", "--set", "space=vit-8px", "--max-params", "1k"], ["cannot shrink any further", "params <= 1k"]),
        (
            ["run", "--method", "autoformer", "--set", "space=vit-8px", "--max-params", "1k"],
            ["the smallest has 38.75k"],
        ),
        (["run", "--set", "space=vit-8px", "--min-params", "10M"], ["params >= 10M", "the largest has"]),
        (
            ["run", "--method", "fixed", "--set", "arch=deit-ti", "--max-params", "1M", "--image-size", "16"],
            ["breaks the limits"],
        ),
        (["run", "--seed", "-1"], ["seed must be"]),
        (["run", "--image-size", "17"], ["17 px", "--image-size 16"]),
        (["run", "--image-size", "0"], ["image size"]),
        (["run", "--data", "nowhere"], ["There is no 'nowhere'"]),
        (["run", "--set", "data.limit=0"], ["at least 2, not 0"]),
        (["space", "s4-vitt"], ["Unknown space 's4-vitt'"]),
        (["space", "nowhere.toml"], ["nowhere.toml"]),
        (["space", "s4-vit", "--classes", "0"], ["'classes' must be a positive whole number, not 0"]),
        (["space", "s4-vit", "--image-size", "30"], ["multiples of the patch 16"]),
        (["space", "s4-vit", "--max-params", "x"], ["Cannot read 'x'"]),
        (["cost", "autoformer-x"], ["Unknown architecture 'autoformer-x'", "Did you mean"]),
        (["cost", "nowhere.json"], ["no architecture file 'nowhere.json'"]),
        (["cost", "deit-ti", "--measure", "--batch", "0"], ["at least 1, not 0"]),
        (["list", "recipe"], ["Unknown list 'recipe'", "Did you mean 'recipes'?"]),
        (["runs"], ["There is no folder 'runs'"]),
        (["runs", "nowhere"], ["There is no folder 'nowhere'"]),
        (["resume", "nowhere"], ["'nowhere' is not a run folder"]),
        (["resume", "."], ["'.' is not a run folder"]),
        (["report", "nowhere"], ["'nowhere' is not a run folder"]),
        (["report", "nowhere", "--figures", "figs", "--format", "jpg"], ["'nowhere' is not a run folder"]),
        (["compare", "nowhere"], ["'nowhere' is not a run folder"]),
        (["watch", ".", "--port", "70000"], ["from 0 (any free one) to 65535, not 70000"]),
        (["export", "nowhere", "--to", "onnx"], ["There is no folder 'nowhere'"]),
        (["export", ".", "--to", "onx"], ["Unknown export format 'onx'", "Did you mean 'onnx'?"]),
        (["export", ".", "--to", "timm", "--int8"], ["int8 and opset belong to the format onnx"]),
        (["predict", "nowhere", "x.png"], ["There is no folder 'nowhere'"]),
        (["predict", ".", "x.png", "--format", "xml"], ["Unknown output format 'xml'", "csv, json, text"]),
        (["predict", ".", "x.png", "--top", "-1"], ["must be 0 (all) or more, not -1"]),
        (["evaluate", "nowhere", "--data", "digits"], ["There is no folder 'nowhere'"]),
        (["evaluate", "none.onnx", "--data", "digits"], ["There is no ONNX file 'none.onnx'"]),
    ],
    ids=lambda v: " ".join(v)[:60] if isinstance(v, list) else None,
)
def test_mistakes_are_one_sentence_and_leave_nothing_behind(call, tmp_path, monkeypatch, args, parts):
    monkeypatch.chdir(tmp_path)
    refused(call(*args), *parts)
    assert list(tmp_path.iterdir()) == [], "no run folder"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[1]", ["must hold one architecture"]),
        ("{", ["is not readable JSON"]),
        ('{"family": "swan"}', ["Unknown family 'swan'"]),
        ('{"family": "vit", "depth": 2}', ["needs 'embed'"]),
        ('{"family": "vit", "depth": 2, "embed": 8, "heads": [1], "mlp": 2}', ["depth 2 needs 2 values of 'heads'"]),
        ('{"family": "vit", "depth": 2, "embed": 8, "heads": 1, "mlp": 2, "fixed": 5}', ["'settings'", "not 5"]),
        ('{"family": "vit", "depth": 2, "embed": 8, "heads": 1, "mlp": 2, "fixed": {"colour": 5}}', ["'colour'"]),
        ('{"family": "vit", "depth": 2, "embed": 8, "heads": 1, "mlp": 2, "settings": {"colour": 5}}', ["'colour'"]),
    ],
)
def test_wrong_architecture_files(call, tmp_path, text, parts):
    (tmp_path / "a.json").write_text(text)
    refused(call("cost", tmp_path / "a.json"), *parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("family = 'swan'\n[dims.depth]\nchoices = [1]", ["Unknown family 'swan'"]),
        ("family = 'vit'\n[dims.depth]\nchoices = [2, 1]", ["dimension 'depth'", "ascending"]),
        ("family = 'vit'\n[dims.depth]\nchoice = [1]", ["unknown key 'choice'"]),
        ("family = ", ["mine.toml"]),
    ],
)
def test_wrong_space_files(call, tmp_path, text, parts):
    (tmp_path / "mine.toml").write_text(text)
    refused(call("space", tmp_path / "mine.toml"), *parts)


def test_a_class_folder_without_images(call, tmp_path):
    root = pictures(tmp_path / "zoo", {"cat": 4, "dog": 4})
    (root / "owl").mkdir()
    refused(call("run", "--data", root, "--out", tmp_path / "run"), "owl", "no images")
    assert not (tmp_path / "run").exists()


def test_a_folder_without_classes(call, tmp_path):
    refused(call("run", "--data", tmp_path), "no class folders")


def test_a_misspelt_split_is_named(call, tmp_path):
    for part in ("train", "tests"):
        pictures(tmp_path / "zoo" / part, {"cat": 4, "dog": 4})
    (tmp_path / "zoo" / "notes").mkdir()
    refused(call("run", "--data", tmp_path / "zoo", "--out", tmp_path / "run"), "'tests'", "did you mean 'test'")
    (tmp_path / "zoo" / "tests").rename(tmp_path / "zoo" / "test")
    assert open_data(str(tmp_path / "zoo"), image_size=16).counts["test"] == 8


def test_the_version(call):
    assert call("--version")[:2] == (0, f"tailorvit {tailorvit.__version__}\n")


def test_an_output_folder_that_cannot_be_written(call, tmp_path):
    (tmp_path / "file").write_text("")
    refused(call("run", "--tiny", "--out", tmp_path / "file" / "sub"), "Cannot write to", "file/sub")


def test_a_process_of_its_own_says_the_same(tmp_path):
    done = program("cost", "autoformer-x", cwd=tmp_path)
    refused((done.returncode, done.stdout, done.stderr), "Unknown architecture 'autoformer-x'")
    assert "Traceback" not in done.stderr and done.stdout == ""
