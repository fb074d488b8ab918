"""What is published: the built package alone, its metadata, the citation, the container, completion and the schema."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

import tailorvit
from tailorvit.config import recipe_names, schema

ROOT = Path(__file__).parent.parent
HOUSE = ROOT / "src" / "tailorvit"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# -- the built package ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built of a copy without network or isolation."""
    place = tmp_path_factory.mktemp("wheel")
    copy = place / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-q", "."]
    done = subprocess.run([*command, "-w", str(place)], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = place.glob("*.whl")
    return found


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as parts:
        names = set(parts.namelist())
    inside = {n for n in names if ".dist-info/" not in n}
    files = (p.relative_to(HOUSE.parent).as_posix() for p in HOUSE.rglob("*") if p.is_file())
    assert inside == {f for f in files if "__pycache__" not in f}
    wanted = {"py.typed", "catalogue.json", "portable.py", "recipes/s4-digits.toml"}
    wanted |= {"report/style.css", "report/script.js"}
    assert {f"tailorvit/{name}" for name in wanted} <= inside
    assert any(n.endswith("/licenses/LICENSE") for n in names)


def test_its_metadata_says_what_the_project_says(wheel):
    with zipfile.ZipFile(wheel) as parts:
        (where,) = (n.rpartition("/")[0] for n in parts.namelist() if n.endswith("/METADATA"))
        told = email.message_from_bytes(parts.read(f"{where}/METADATA"))
        points = parts.read(f"{where}/entry_points.txt").decode()
    assert told["Name"] == "tailorvit" and told["Version"] == tailorvit.__version__ == PROJECT["version"]
    assert set(told["Requires-Python"].split(",")) == set(PROJECT["requires-python"].split(","))
    assert told["License-Expression"] == "Apache-2.0" and told.get_payload().startswith("# TailorViT")
    needed = {r for r in told.get_all("Requires-Dist") if "extra ==" not in r}
    assert needed == set(PROJECT["dependencies"])
    assert set(told.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert "tailorvit = tailorvit.cli:main" in points
    low, high = re.findall(r"3\.(\d+)", PROJECT["requires-python"])
    versions = {c.rpartition(" ")[2] for c in told.get_all("Classifier") if "Python :: 3" in c}
    assert versions == {f"3.{minor}" for minor in range(int(low), int(high))}


# Each command as a terminal would give it; one process, since importing torch takes seconds.
COMMANDS = """
import json, sys
from pathlib import Path
import tailorvit
from tailorvit import cli
assert Path(tailorvit.__file__).is_relative_to(sys.argv[1]), tailorvit.__file__
tiny = ["run", "autoformer-digits", "--method", "fixed", "--tiny", "--quiet", "--out", "run", "--set", "baseline=false"]
for words in (["--version"], ["list", "recipes"], tiny, ["report", "run", "--out", "page.html"]):
    sys.argv = ["tailorvit", *words]
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code, words
"""


def test_the_unpacked_wheel_alone_runs_and_reports(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as parts:
        parts.extractall(tmp_path / "unpacked")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "unpacked"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", COMMANDS, str(tmp_path / "unpacked")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"tailorvit {tailorvit.__version__}\n" in done.stdout
    assert all(name in done.stdout for name in recipe_names())
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<style>" in page and "<script>" in page and len(page) > 50_000


# -- files beside the package -----------------------------------------------------------------------------------------


def test_the_citation_names_this_version_and_every_paper():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["message"] and cited["type"] == "software"
    assert cited["version"] == PROJECT["version"] and cited["license"] == PROJECT["license"]
    assert cited["authors"] == [{"name": "TailorViT contributors"}]
    methods = {re.search(r"method ([\w-]+)", r["notes"])[1] for r in cited["references"]}
    assert methods == {"autoformer", "s3", "s4", "tf-tas"} <= set(tailorvit.config.METHODS)
    assert all(r["type"] and r["title"] and r["authors"] for r in cited["references"])


def instructions(name: str) -> list[tuple[str, str]]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [tuple(line.split(" ", 1)) for line in lines if line and not line.startswith("#")]


def test_the_container_runs_the_readmes_command():
    """The file was never built where it was written: there is no container engine."""
    steps = dict(instructions("Dockerfile"))
    assert [name for name, _ in instructions("Dockerfile")] == ["FROM", "WORKDIR", "COPY", "RUN", "ENTRYPOINT", "CMD"]
    words = [*json.loads(steps["ENTRYPOINT"]), *json.loads(steps["CMD"])]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"<!-- run-command -->\n```\n(.*)\n```", readme)[1]
    assert f"{steps['RUN']} && {' '.join(words)}" == command
    low, high = re.findall(r"3\.(\d+)", PROJECT["requires-python"])
    assert int(low) <= int(re.fullmatch(r"python:3\.(\d+)-slim", steps["FROM"])[1]) < int(high)
    assert steps["COPY"] == ". ."
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    needed = ["pyproject.toml", "README.md", "LICENSE", "constraints.txt", "src", "recipes"]
    assert not [n for n in needed if any(fnmatch(n, pattern) for pattern in ignored)]
    assert {".git", ".venv", "runs"} <= set(ignored)


# -- completion -------------------------------------------------------------------------------------------------------


def typed(shell: str, words: str) -> list[str]:
    """What a shell is told when a user has typed this and presses Tab."""
    code = (
        "import sys\nfrom tailorvit import cli\nsys.argv = ['tailorvit']\ntry:\n    cli.main()\nfinally:\n"
        "    assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    told = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_TYPER_COMPLETE_ARGS": words}
    told |= {"_TAILORVIT_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **told}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return re.findall(r"[\w-]+", done.stdout)


@pytest.mark.parametrize(
    ("shell", "words", "found"),
    [
        ("bash", "tailorvit exp", "export"),
        ("bash", "tailorvit cost --image", "--image-size"),
        ("zsh", "tailorvit completion f", "fish"),
        ("fish", "tailorvit comp", "compare"),
    ],
)
def test_a_shell_completes_and_waits_for_no_library(shell, words, found):
    assert found in typed(shell, words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell):
    from typer.testing import CliRunner

    from tailorvit import cli

    done = CliRunner().invoke(cli.app, ["completion", shell])
    assert done.exit_code == 0 and f"_TAILORVIT_COMPLETE=complete_{shell}" in done.output
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.output, text=True, check=True)
    refused = CliRunner().invoke(cli.app, ["completion", "csh"])
    assert refused.exit_code == 2 and "bash" in refused.output


# -- the schema of recipes --------------------------------------------------------------------------------------------

KINDS = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}


def mistakes(value: object, rule: dict, whole: dict, where: str = "") -> list[str]:
    """What a validator would say; it knows what our schema uses and nothing else."""
    if "$ref" in rule:
        return mistakes(value, whole["$defs"][rule["$ref"].removeprefix("#/$defs/")], whole, where)
    if "anyOf" in rule:
        tried = [mistakes(value, row, whole, where) for row in rule["anyOf"]]
        return [] if [] in tried else tried[-1]
    assert not rule.keys() & {"allOf", "oneOf", "not", "if"}, "this validator lacks it"
    if "enum" in rule and value not in rule["enum"]:
        return [f"{where} is not one of {rule['enum']}"]
    kind = KINDS.get(rule.get("type"), object)
    if rule.get("type") == "null" or not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, float)):
        return [f"{where} is not of the type {rule.get('type')}"]
    found = []
    if isinstance(value, dict):
        known = rule.get("properties", {})
        for key, inner in value.items():
            more = known.get(key, rule.get("additionalProperties", True))
            if more is False:
                found.append(f"{where}.{key} is unknown")
            elif isinstance(more, dict):
                found += mistakes(inner, more, whole, f"{where}.{key}")
    elif isinstance(value, list) and "items" in rule:
        found += [m for inner in value for m in mistakes(inner, rule["items"], whole, where)]
    return found


def test_the_committed_schema_is_that_of_the_code():
    committed = json.loads((ROOT / "docs" / "recipe.schema.json").read_text(encoding="utf-8"))
    assert committed == schema(), "write it again: tailorvit schema > docs/recipe.schema.json"


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_keeps_the_schema(name):
    recipe = tomllib.loads((HOUSE / "recipes" / f"{name}.toml").read_text(encoding="utf-8"))
    assert mistakes(recipe, schema(), schema()) == []


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"sede": 1}, ".sede is unknown"),
        ({"train": {"epoch": 3}}, ".train.epoch is unknown"),
        ({"train": {"optimizer": "adam"}}, ".train.optimizer is not one of"),
        ({"seed": "one"}, ".seed is not of the type integer"),
    ],
)
def test_the_schema_finds_mistakes(recipe, words):
    (found,) = mistakes(recipe, schema(), schema())
    assert found.startswith(words)
    assert mistakes({"method": "of-a-plugin", "family": "vit"}, schema(), schema()) == []
