"""The example plug-in, installed as a user would: nothing in the package names it, and everything serves it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tailorvit

ROOT = Path(__file__).parent.parent
PLUGIN = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The environment of a process in which the plug-in is installed; this one stays without it."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    subprocess.run(["cp", "-r", f"{PLUGIN}/.", str(source)], check=True)  # a build leaves files beside the source
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(source)], check=True, capture_output=True)
    paths = [str(target), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def call(environment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "tailorvit", *map(str, arguments)],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_nothing_in_the_package_names_it():
    package = Path(tailorvit.__file__).parent
    named = [p for p in package.rglob("*") if p.suffix in (".py", ".toml", ".json")]
    found = [p for p in named if any(w in p.read_text(encoding="utf-8").lower() for w in ("mixer", "synflow"))]
    assert len(named) > 100 and found == []


def test_it_is_listed_with_its_origin(call):
    for what, name in (("families", "mixer"), ("proxies", "synflow")):
        rows = {row["name"]: row for row in json.loads(call("list", what, "--json"))}
        assert rows[name]["origin"] == "tailorvit-mixer 0.1.0" and rows[name]["summary"]
        assert sum(row["origin"] == "tailorvit" for row in rows.values()) == len(rows) - 1
    assert "[tailorvit-mixer 0.1.0]" in call("list", "families")


def test_its_own_tests_pass(environment):
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", str(PLUGIN / "tests")]
    done = subprocess.run(command, env=environment, cwd=PLUGIN, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 20


def test_s4_moves_its_space_and_what_is_found_leaves_the_house(call, tmp_path):
    run = tmp_path / "run"
    call("run", "--tiny", "--quiet", "--set", "family=mixer", "--set", "s4.iterations=1", "--out", run)
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert result["arch"]["family"] == "mixer" and result["method"] == "s4" and result["baseline"]["params"] > 0
    assert {"token", "params", "macs"} <= set(result["blocks"][0]) and "heads" not in result["blocks"][0]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "could not be" not in page and "mixer" in page.lower()
    for form in ("onnx", "timm"):
        assert json.loads(call("export", run, "--to", form, "--json"))["facts"]["max_difference"] < 1e-4
    call("finetune", run, "--data", "digits", "--image-size", "12", "--tiny", "--quiet", "--out", tmp_path / "tuned")
    tuned = json.loads((tmp_path / "tuned" / "result.json").read_text(encoding="utf-8"))
    assert tuned["settings"]["image_size"] == [12, 12] and tuned["start"]["head"] == "kept"


def test_without_it_a_run_folder_says_what_is_missing(call, tmp_path):
    run = tmp_path / "run"
    call("run", "--tiny", "--quiet", "--set", "family=mixer", "--set", "s4.iterations=0", "--out", run)
    with pytest.raises(tailorvit.TailorError, match="Unknown family 'mixer'"):
        tailorvit.load(run)
