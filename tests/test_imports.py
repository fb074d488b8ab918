"""Imports only point downward: every module may use its own layer and those below."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tailorvit

LAYERS = (
    (
        "errors",
        "descriptors",
        "rng",
        "callbacks",
        "ranks",
        "units",
        "progress",
        "arch",
        "ties",
        "dims",
        "space",
        "portable",
        "stats",
        "registry",
        "texts",
        "tensors",
        "memory",
        "tracing",
    ),
    ("elastic",),
    ("families", "data", "runs", "trunks"),
    ("costs", "checkpoints", "proxies", "train"),
    ("search", "seek", "analysis"),
    ("export",),  # below the methods, which write the networks they end with
    ("methods", "config", "tasks"),
    ("report", "recipes", "testing", "cli", "__init__", "__main__"),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
TOP = len(LAYERS) - 1
HOUSE = Path(tailorvit.__file__).parent


def room(path: Path, house: Path) -> str:
    """The first part of a module's name below the package."""
    return path.relative_to(house).with_suffix("").parts[0]


def level(name: str, house: Path) -> int:
    """A file at the root nobody listed is a door of the house: top. A folder has to be listed."""
    if name not in LEVEL and (house / name).is_dir():
        raise AssertionError(f"the room '{name}' has no layer: list it in LAYERS")
    return LEVEL.get(name, TOP)


def type_only(tree: ast.Module) -> set[int]:
    """Lines of imports for annotations only."""
    blocks = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    return {line for block in blocks for line in range(block.lineno, (block.end_lineno or 0) + 1)}


def imported_rooms(path: Path, house: Path, types: bool = True) -> set[str]:
    """Rooms a file imports anywhere, inside functions too; with ``types`` also those for annotations only."""
    found = set()
    here = ["tailorvit", *path.relative_to(house).parent.parts]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = set() if types else type_only(tree)
    for node in ast.walk(tree):
        if getattr(node, "lineno", 0) in hidden:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == "tailorvit":
                inside = rest and ((house / rest[0]).is_dir() or (house / f"{rest[0]}.py").is_file())
                found.add(rest[0] if inside else "__init__")
    return found


def edges(house: Path, types: bool = True) -> list[tuple[Path, str, str]]:
    files = sorted(house.rglob("*.py"))
    rows = [(f, room(f, house), other) for f in files for other in imported_rooms(f, house, types)]
    return [(path, mine, other) for path, mine, other in rows if other != mine]


def upward(house: Path) -> list[str]:
    return [
        f"{path.relative_to(house)} ({mine}) imports {other}"
        for path, mine, other in edges(house)
        if level(other, house) > level(mine, house)
    ]


def cycle(house: Path) -> None:
    """Raises CycleError where rooms import each other in a circle, which layers alone would allow within one layer."""
    graph: dict[str, set[str]] = {}
    for _, mine, other in edges(house, types=False):
        if mine not in ("__init__", "__main__") and other not in ("__init__", "__main__"):
            graph.setdefault(mine, set()).add(other)
    TopologicalSorter(graph).prepare()


def test_imports_point_downward():
    assert len(edges(HOUSE)) > 20, "the parser sees the house"
    assert upward(HOUSE) == []


def test_no_circles_between_rooms():
    cycle(HOUSE)


@pytest.mark.parametrize(
    ("file", "line", "wrong"),
    [
        ("space.py", "from tailorvit.search.base import Trial", True),
        ("space.py", "import tailorvit.costs.count", True),
        ("space.py", "from tailorvit import costs", True),
        ("space.py", "from tailorvit import __version__", True),
        ("space.py", "from . import search", True),
        ("families/vit.py", "def f():\n    from tailorvit.costs import Counter", True),
        ("families/vit.py", "from ..search import base", True),
        ("families/vit.py", "from . import base", False),
        ("families/vit.py", "from tailorvit import space", False),
        ("search/base.py", "from tailorvit.costs import Counter", False),
        ("search/base.py", "import numpy", False),
        ("search/base.py", "from tailorvit.export import save", True),
        ("search/base.py", "from tailorvit.api import tailor", True),
        ("cli.py", "from tailorvit.api import tailor", False),
    ],
)
def test_the_check_can_fail(tmp_path, file, line, wrong):
    for name in ("space", "api", "cli", "export", "families/base", "search/base", "costs/count"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / file).write_text(line)
    assert bool(upward(tmp_path)) == wrong


def test_heavy_libraries_wait_until_used():
    code = (
        "import sys, tailorvit.families, tailorvit.costs, tailorvit.search\n"
        "heavy = {'timm', 'torchvision', 'sklearn', 'pymoo', 'PIL', 'matplotlib', 'pandas'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
