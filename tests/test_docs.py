"""The documentation holds: its commands, keys, defaults, links and Python blocks."""

from __future__ import annotations

import os
import re
import subprocess
import time
import tomllib
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

import tailorvit
from tailorvit import cli
from tailorvit.config import Config, configure, read_recipe, recipe_names
from tailorvit.costs.limits import METRICS
from tailorvit.costs.runtime import LatencySettings
from tailorvit.families.vit.plain import ViTSettings
from tailorvit.search import SEARCHERS
from tailorvit.tiny import tiny

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
TEST = (
    "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[dev]' && .venv/bin/python -m pytest -n 2"
)
RUN = "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e . && .venv/bin/tailorvit run"


def blocks(page: Path, language: str = "") -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


def after(marker: str) -> list[str]:
    """The lines of the README's block after a marker."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^<!-- {marker} -->\n```\n(.*?)^```$", text, re.M | re.S)
    return found[1].splitlines() if found else []


# -- commands ----------------------------------------------------------------------------------------------------------


def test_the_two_commands_are_one_line_each():
    assert after("run-command") == [RUN]
    assert after("test-command") == [TEST]


def test_ci_runs_the_readmes_test_command(tmp_path):
    """The script itself is run, with bash and ./check replaced by echoes of their arguments."""
    (tmp_path / ".ci").mkdir()
    for name in ("README.md", ".ci/run"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "bin").mkdir()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    for path in (tmp_path / "bin" / "bash", tmp_path / "bin" / "chromium", tmp_path / "check", python):
        path.write_text('#!/bin/sh\necho "called: $*; threads $OMP_NUM_THREADS"\n')
        path.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["/bin/bash", str(tmp_path / ".ci" / "run")], capture_output=True, text=True, env=env, check=True
    )
    assert f"called: -euo pipefail -c {TEST}; threads 1" in done.stdout
    assert "TAILORVIT_BROWSER" in (ROOT / ".ci" / "run").read_text(), "a skipped browser test must not pass CI"
    assert "called: --fast; threads 1" in done.stdout
    assert "called: -m mkdocs build --strict; threads 1" in done.stdout


@pytest.mark.parametrize("name", ["check", ".ci/run"])
def test_scripts_are_executable_and_parse(name):
    assert os.access(ROOT / name, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / name)], check=True)


def test_check_refuses_an_unknown_option():
    done = subprocess.run([str(ROOT / "check"), "--slow"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--slow" in done.stderr


def known_options(verb: str) -> set[str]:
    import typer

    command = typer.main.get_command(cli.app).commands[verb]
    return {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}


def test_commands_shown_exist():
    shown = []
    for page in PAGES:
        for block in blocks(page):
            shown += re.findall(r"^(?:tailorvit|.*/tailorvit) ([\w-]+)(.*?)(?:#.*)?$", block, re.M)
    shown += [
        tuple(m)
        for recipe in recipe_names()
        for m in re.findall(r"# command: tailorvit (\w+)(.*)", recipe_text(recipe))
    ]
    assert len(shown) > 20
    for verb, rest in shown:
        assert set(re.findall(r"(?<!\S)--?[a-z][\w-]*", rest)) <= known_options(verb), (verb, rest)


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_design_page_names_every_room():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    house = Path(tailorvit.__file__).parent
    rooms = [p.name for p in house.iterdir() if p.is_dir() and not p.name.startswith("__")]
    assert len(rooms) > 10
    for room in rooms:
        assert f"{room}/" in text, room


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_compile(page):
    for number, block in enumerate(blocks(page, "python")):
        compile(block, f"{page.name}, block {number}", "exec")


def test_the_searcher_to_add_works():
    from tailorvit.errors import InfeasibleError
    from tailorvit.search import run_search
    from tailorvit.testing.synthetic import Synthetic

    names: dict[str, object] = {}
    exec(next(b for b in blocks(ROOT / "docs" / "adding.md", "python") if "class LocalSearch" in b), names)
    space, settings = tailorvit.named_space("vit-8px"), names["LocalSettings"](budget=10, batch=4)
    local = names["LocalSearch"](space, lambda arch: True, 0, settings)
    trials = run_search(local, Synthetic(space, {"depth": 4, "mlp": 3}).evaluate)
    assert len({t.arch for t in trials}) == 10 and all(space.contains(t.arch) for t in trials)
    assert [t.generation for t in trials] == [0] * 4 + [1] * 4 + [2] * 2
    assert {t.source for t in trials if t.generation} == {"mutate"}
    with pytest.raises(InfeasibleError, match="keeps the limits"):
        names["LocalSearch"](space, lambda arch: False, 0, settings).ask()
    with pytest.raises(tailorvit.TailorError, match="'batch' must be at least 1, not 0"):
        names["LocalSettings"](batch=0)
    record = names["LOCAL"]
    assert record.settings(**record.tiny) == names["LocalSettings"](8, 4)


def test_every_field_of_a_family_is_explained():
    from tailorvit.families import Family

    sections = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8").split("\n## ")
    section = next(s for s in sections if s.startswith("A family\n"))
    explained = re.findall(r"`(\w+)[(`]", " ".join(re.findall(r"^\| (`.*?`) \| ", section, re.M)))
    assert sorted(explained) == sorted(f.name for f in fields(Family))


def test_doctor_knows_every_extra():
    from tailorvit.lookup import EXTRAS

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    wanted = {name: sorted(re.split(r"[<>=]", p)[0] for p in packages) for name, packages in extras.items()}
    del wanted["dev"], wanted["docs"]  # for those who develop
    assert {name: sorted(packages) for name, packages in EXTRAS.items()} == wanted


# -- keys --------------------------------------------------------------------------------------------------------------


def toml(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def keys(kind: type, prefix: str = "") -> dict[str, str]:
    """Every key with its default, table by table; final.train repeats train, and limits have a test of their own."""
    found = {}
    for f in fields(kind):
        default = f.default if f.default is not MISSING else f.default_factory()
        path = f"{prefix}{f.name}"
        if path == "final.train" or isinstance(default, dict):
            continue
        found.update(keys(type(default), f"{path}.") if is_dataclass(default) else {path: toml(default)})
    return found


def rows(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^\| `([\w.]+)` \| `(.+?)` \| \S.* \|$", text, re.M)


def test_every_recipe_key_is_explained_with_its_default():
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    explained = rows(text)
    expected = list(keys(Config).items())
    for entry in SEARCHERS.values():
        section = re.search(rf'^`name = "{entry.name}"`.*?(?=^`name|^## )', text, re.M | re.S)
        assert section is not None, entry.name
        assert dict(rows(section[0])) == keys(entry.settings, "search."), entry.name
        expected += keys(entry.settings, "search.").items()
    expected += keys(ViTSettings, "settings.").items()
    expected += keys(LatencySettings, "limits.").items()
    assert len(expected) > 70
    assert sorted(explained) == sorted(expected)


def test_every_limit_and_table_is_named():
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    for metric in METRICS:
        assert f"`max_{metric}`" in text and f"`min_{metric}`" in text
    for f in fields(Config):
        assert f"`{f.name}`" in text or f"## `[{f.name}]`" in text, f.name


def test_toml_examples_are_valid_recipes():
    examples = blocks(ROOT / "docs" / "recipes.md", "toml")
    assert len(examples) >= 3
    for example in examples:
        configure(tomllib.loads(example))


# -- recipes -----------------------------------------------------------------------------------------------------------


def recipe_text(name: str) -> str:
    return (Path(tailorvit.__file__).parent / "recipes" / f"{name}.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_state_what_they_are(name):
    first, *rest = recipe_text(name).splitlines()
    assert first.startswith("# ") and first.endswith("."), "the first line is the sentence `list recipes` prints"
    head = " ".join(line for line in rest if line.startswith("# "))
    for word in ("command:", "hardware:", "time:", "expected:"):
        assert f"# {word} " in head, word
    assert name in head or name == "image-folder"


@pytest.mark.parametrize("name", recipe_names())
@pytest.mark.parametrize("own", [False, True], ids=["digits", "own data"])
def test_recipes_are_valid_also_when_tiny(name, own):
    config = configure(read_recipe(name))
    small = configure(tiny(read_recipe(name), own_data=own))
    assert small.method == config.method and small.train.epochs <= 2 and small.final.train.epochs <= 2


# -- the tutorial ------------------------------------------------------------------------------------------------------


def make_photos(folder: Path, per_class: int = 24) -> None:
    """Three shapes at random places, in colour, 48 px."""
    rng = np.random.default_rng(0)
    for shape in ("circle", "cross", "square"):
        (folder / shape).mkdir(parents=True)
        for i in range(per_class):
            image = Image.new("RGB", (48, 48), tuple(rng.integers(0, 80, 3).tolist()))
            draw, colour = ImageDraw.Draw(image), tuple(rng.integers(150, 255, 3).tolist())
            x, y = rng.integers(4, 20, 2).tolist()
            if shape == "circle":
                draw.ellipse((x, y, x + 22, y + 22), fill=colour)
            elif shape == "square":
                draw.rectangle((x, y, x + 22, y + 22), fill=colour)
            else:
                draw.line((x, y, x + 22, y + 22), fill=colour, width=5)
                draw.line((x, y + 22, x + 22, y), fill=colour, width=5)
            image.save(folder / shape / f"{i}.png")


def test_the_tutorial_runs(tmp_path, monkeypatch):
    make_photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "tutorial.md"
    code = blocks(page, "python")
    assert len(code) >= 6
    start, names = time.monotonic(), {}
    for number, block in enumerate(code):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    assert (tmp_path / "runs" / "photos" / "report.html").is_file()
    assert not (tmp_path / "runs" / "never").exists()
    assert time.monotonic() - start < 30
