"""What is imported is declared in pyproject.toml, and what is declared is imported."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from pathlib import Path

import pytest

import tailorvit

HOUSE = Path(tailorvit.__file__).parent
ROOT = Path(__file__).parent.parent
# Modules that are called otherwise than the package that brings them.
PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "tomli_w": "tomli-w", "resvg_py": "resvg-py"} | {
    "open_clip": "open_clip_torch"
}
# Used only where a declared package has brought them: who asks for it, and that they cannot be absent there.
BROUGHT = {
    "huggingface_hub": "timm",
    "fsspec": "torch",
    "braceexpand": "webdataset",
    "triton": "torch",  # on Linux; imported where it is found
    "tokenizers": "transformers",
    "pytest": "dev",  # tailorvit.testing: contract tests that plug-ins run with pytest
}
# Read where a user has installed it: data, not code.
DATA = {"easy_vqa"}
# Asked of a package by a name in a text, by :func:`library` and its like.
BY_NAME = {
    "coremltools": "export/devices.py",
    "executorch": "export/devices.py",
    "openvino": "export/devices.py",
    "timmx": "export/devices.py",
    "onnxscript": "export/onnx_format.py",
    "open_clip": "trunks/libraries.py",
    "tensorboard": "loggers.py",  # of torch.utils
}


def outside(tree: ast.Module) -> set[str]:
    """The first names of imported modules that are neither Python's nor ours, by text too."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called in ("library", "import_module", "find_spec"):
                names.add(str(node.args[0].value))
    return {n.split(".")[0] for n in names} - set(sys.stdlib_module_names) - {"tailorvit", "msvcrt"} - DATA


@functools.cache
def imported() -> dict[str, str]:
    """Package by package a file that imports it."""
    return {
        PACKAGES.get(name, name): path.relative_to(HOUSE).as_posix()
        for path in HOUSE.rglob("*.py")
        for name in outside(ast.parse(path.read_text(encoding="utf-8")))
    }


def declared() -> tuple[set[str], set[str]]:
    """The packages of pyproject.toml: those needed, and those of its extras but dev and docs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [
        row for name, rows in project["optional-dependencies"].items() if name not in ("dev", "docs") for row in rows
    ]
    return tuple({re.match(r"[\w.-]+", row)[0] for row in rows} for rows in (project["dependencies"], extras))


def test_every_import_is_declared():
    needed, extras = declared()
    found = imported()
    unknown = {p: f for p, f in found.items() if p not in needed | extras | BROUGHT.keys()}
    assert unknown == {}
    assert set(found) >= BROUGHT.keys(), "what nobody imports needs no exception"
    assert {b for b in BROUGHT.values() if b != "dev"} <= needed | extras


def test_every_declared_package_is_used():
    needed, extras = declared()
    by_name = {
        PACKAGES.get(n, n)
        for n, file in BY_NAME.items()
        if re.search(rf'["." ]{n}\b', (HOUSE / file).read_text("utf-8"))
    }
    assert needed | extras == (set(imported()) | by_name) - BROUGHT.keys()


def test_everything_declared_is_pinned():
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    needed, extras = declared()
    assert {p.lower().replace("_", "-") for p in needed | extras} <= set(pins)


@pytest.mark.parametrize(
    "line", ["import numba", "from numba.core import a", "def f():\n    import numba", "library('numba', 'x')"]
)
def test_the_check_can_fail(line):
    assert outside(ast.parse(line)) == {"numba"}
    assert outside(ast.parse("import os, tailorvit.cli\nfrom . import a")) == set()
