"""How large is the house: lines and files by room, recipe keys, what a tiny run enters, the longest functions.

python benchmarks/house/house.py                      # this checkout, as tables
python benchmarks/house/house.py --root ../old        # another one
python benchmarks/house/house.py --json FILE          # the same figures as JSON
python benchmarks/house/house.py table                # the page's tables, from the stored results
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, markdown, number, read

HERE = Path(__file__).resolve().parent
LONGEST = 8

# Runs in a process of its own, so that another checkout's package can be measured: counts functions entered by file,
# and which of them were entered while the function s4 of methods/s4.py was running.
TRACER = """
import json, os, sys
package, out, *arguments = sys.argv[1:]
entered, inside, depth = set(), set(), 0
start = os.path.join(package, "methods", "s4.py")
def note(frame, event, _):
    global depth
    code = frame.f_code
    # A class body is entered too, when its module is imported, but is no function.
    if event not in ("call", "return") or not code.co_flags & 1 or not code.co_filename.startswith(package):
        return
    if code.co_filename == start and code.co_name == "s4":
        depth += 1 if event == "call" else -1
    if event == "call":
        (entered).add((code.co_filename, code.co_qualname))
        if depth:
            inside.add(code.co_filename)
sys.argv = ["tailorvit", *arguments]
sys.setprofile(note)
try:
    from tailorvit.cli import main
    main()
except SystemExit as end:
    code = end.code
else:
    code = 0
finally:
    sys.setprofile(None)
short = lambda file: os.path.relpath(file, package)
names = sorted((short(file), name) for file, name in entered)
with open(out, "w") as file:
    json.dump({"code": code, "entered": names, "s4": sorted(map(short, inside))}, file)
"""

# Every key a recipe may set: the leaves of the settings, every searcher's, the limits, and what families share.
KEYS = """
import dataclasses, json, typing
from tailorvit.config import Config
from tailorvit.families import FAMILIES
from tailorvit.search import SEARCHERS
def leaves(kind, path):
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        here = f"{path}.{field.name}" if path else field.name
        if dataclasses.is_dataclass(hints[field.name]):
            yield from leaves(hints[field.name], here)
        elif here not in ("search", "limits", "plugin"):
            yield here
limits = [f"limits.{side}_{m}" for side in ("min", "max") for m in ("params", "macs", "latency", "memory")]
keys = [*leaves(Config, ""), *limits]
for entry in SEARCHERS.values():
    keys += [f"search.{entry.name}.{field.name}" for field in dataclasses.fields(entry.settings)]
names = set()
for family in FAMILIES.values():
    typed = (family.settings if hasattr(family, "settings") else family.frame)({})
    names |= {field.name for field in dataclasses.fields(type(typed))}
print(json.dumps([*keys, *(f"space.settings.{name}" for name in sorted(names))]))
"""


def code_lines(path: Path) -> int:
    """Lines that hold code: no blanks, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    prose = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    skip = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    with path.open("rb") as file:
        tokens = [t for t in tokenize.tokenize(file.readline) if t.type not in skip and t.type != tokenize.ENCODING]
    return len({line for t in tokens for line in range(t.start[0], t.end[0] + 1)} - prose)


def by_room(package: Path) -> dict[str, dict[str, int]]:
    """Python files and lines of every room, the top level first."""
    rooms: dict[str, dict[str, int]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        room = rooms.setdefault(parts[0] if len(parts) > 1 else "(top)", {"files": 0, "lines": 0, "code": 0})
        room["files"] += 1
        room["code"] += code_lines(path)
        room["lines"] += len(path.read_text(encoding="utf-8").splitlines())
    return rooms


def longest_functions(package: Path) -> list[dict[str, Any]]:
    """The longest functions and methods, by lines from signature to end."""
    found = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                found.append({"file": str(path.relative_to(package)), "function": node.name, "lines": length})
    return sorted(found, key=lambda row: -row["lines"])[:LONGEST]


def run_python(root: Path, script: str, *arguments: str) -> str:
    """Run a script against the package of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


def traced(root: Path, *command: str) -> dict[str, Any]:
    """What a command enters: (file, function) of everything, and the files S4 enters."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "entered.json"
        package = str(root / "src" / "tailorvit")
        run_python(root, TRACER, package, str(out), *command, "--out", str(Path(folder) / "run"))
        found = json.loads(out.read_text())
    if found["code"]:
        raise SystemExit(f"house: the traced run ended with code {found['code']}")
    found["entered"] = [(file, name) for file, name in found["entered"] if name != "<module>"]
    return found  # type: ignore[no-any-return]


def recipe_keys(root: Path) -> dict[str, int]:
    """Keys a recipe may set: all; with the last training's (the same as the others') once; those of families alone."""
    keys = json.loads(run_python(root, KEYS))
    once = [key for key in keys if not key.startswith("final.train.")]
    families = [key for key in keys if key.startswith("space.settings.")]
    return {"all": len(keys), "once": len(once), "of families": len(families)}


def measure(root: Path) -> dict[str, Any]:
    """All figures of one checkout."""
    package = root / "src" / "tailorvit"
    rooms = by_room(package)
    trace = traced(root, "run", "--tiny", "--quiet")
    run = trace["entered"]
    s4 = [file for file in trace["s4"] if file.startswith(("methods/", "seek/"))]
    lines = {file: len((package / file).read_text(encoding="utf-8").splitlines()) for file in s4}
    return {
        "rooms": rooms,
        "files": sum(room["files"] for room in rooms.values()),
        "lines": sum(room["lines"] for room in rooms.values()),
        "code": sum(room["code"] for room in rooms.values()),
        "settings": recipe_keys(root),
        "tiny run": {"files": len({file for file, _ in run}), "functions": len(run)},
        "S4": {"files": len(s4), "lines": sum(lines.values()), "names": lines},
        "longest functions": longest_functions(package),
    }


def show(figures: dict[str, Any]) -> str:
    """The figures as Markdown."""
    rows = ["| room | files | lines | of them code |", "|---|---|---|---|"]
    counts = {**figures["rooms"], "all": figures}
    rows += [f"| {n} | {room['files']} | {room['lines']:,} | {room['code']:,} |" for n, room in counts.items()]
    rows.append("")
    settings, run, s4 = figures["settings"], figures["tiny run"], figures["S4"]
    rows.append(
        f"Keys a recipe may set: {settings['all']}, or {settings['once']} where [final.train] counts once; "
        f"{settings['of families']} of them are settings of families."
    )
    rows.append(f"`tailorvit run --tiny` enters {run['files']} files and {run['functions']} functions.")
    rows.append(
        f"S4 enters {s4['files']} files of methods/ and seek/, {s4['lines']:,} lines: {', '.join(s4['names'])}."
    )
    longest = ", ".join(f"{row['function']} ({row['lines']}, {row['file']})" for row in figures["longest functions"])
    rows.append(f"Longest functions: {longest}.")
    return "\n".join(rows)


def before_and_after(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """Two checkouts side by side."""
    longest = lambda f: ", ".join(f"{row['function']} {row['lines']}" for row in f["longest functions"])  # noqa: E731
    reads: dict[str, Callable[[dict[str, Any]], Any]] = {
        "files of `src`": lambda f: f["files"],
        "lines": lambda f: f["lines"],
        "of them code": lambda f: f["code"],
        "keys a recipe may set": lambda f: f["settings"]["all"],
        "the same, `[final.train]` counted once": lambda f: f["settings"]["once"],
        "of these settings of families": lambda f: f["settings"]["of families"],
        "files that `tailorvit run --tiny` enters": lambda f: f["tiny run"]["files"],
        "functions it enters": lambda f: f["tiny run"]["functions"],
        "files of methods/ and seek/ that S4 enters": lambda f: f["S4"]["files"],
        "their lines": lambda f: f["S4"]["lines"],
        "longest functions, in lines": longest,
    }
    cell = lambda value: number(value) if isinstance(value, int) else str(value)  # noqa: E731
    figures = [(name, cell(take(before)), cell(take(after))) for name, take in reads.items()]

    def room(figures: dict[str, Any], name: str) -> str:
        found = figures["rooms"].get(name)
        return f"{number(found['lines'])} in {found['files']}" if found else "-"

    rooms = [(n, room(before, n), room(after, n)) for n in sorted({*before["rooms"], *after["rooms"]})]
    return {
        "house": markdown(("what", "before", "after"), figures),
        "rooms": markdown(("room", "lines in files before", "after"), rooms),
    }


def speed(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    """Rows of gpu.py, measured on one machine one after the other."""
    found = {(r["section"], r["what"], r["variant"]): r["img_s"] for r in before}
    rows = []
    for r in after:
        old = found[r["section"], r["what"], r["variant"]]
        change = f"{100 * (r['img_s'] / old - 1):+.1f} %"
        rows.append((r["section"], r["what"], r["variant"], number(old), number(r["img_s"]), change))
    return markdown(("section", "what", "variant", "img/s before", "after", "change"), rows)


def tables() -> dict[str, str]:
    """The page's tables."""
    stored = {name: read(HERE / "results" / f"{name}.json") for name in ("before", "after", "gpu")}
    return {
        **before_and_after(stored["before"], stored["after"]),
        "speed": speed(stored["gpu"]["before"], stored["gpu"]["after"]),
    }


def main() -> None:
    """Print the figures; write them where asked; or fill the page."""
    if sys.argv[1:] == ["table"]:
        fill(HERE / "README.md", tables())
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HERE.parents[1])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = measure(options.root.resolve())
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(show(figures))


if __name__ == "__main__":
    main()
