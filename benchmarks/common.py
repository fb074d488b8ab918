"""What the benchmark scripts share: tables, the marked places of pages, facts of the machine, calls side by side."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any


def markdown(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table."""
    lines = [list(head), ["---"] * len(head), *([str(c) for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 0) -> str:
    """A number for a cell, or a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"


def spread(values: Iterable[float | None], digits: int = 2, least: int = 2) -> str:
    """The mean and, from ``least`` values on, the standard deviation."""
    known = [v for v in values if v is not None]
    if not known:
        return "-"
    mean = number(statistics.fmean(known), digits)
    return mean if len(known) < least else f"{mean} ± {number(statistics.stdev(known), digits)}"


def read(path: Path) -> Any:
    """A stored JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write(facts: Any, path: Path) -> None:
    """Store results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")


def machine() -> dict[str, Any]:
    """When and where something was measured."""
    facts = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()}
    return {"date": date.today().isoformat(), "machine": facts}


# -- pages ------------------------------------------------------------------------------------------------------------

_PLACE = re.compile(r"<!-- table ([\w-]+) -->\n(.*?)<!-- /table -->", re.S)


def shown(page: Path) -> dict[str, str]:
    """The tables between the marks of a page, by name."""
    found = _PLACE.findall(page.read_text(encoding="utf-8"))
    return {name: text.removesuffix("\n") for name, text in found}


def fill(page: Path, tables: Mapping[str, str]) -> None:
    """Put tables between their marks, so that no figure is typed by hand."""
    text = page.read_text(encoding="utf-8")
    missing = tables.keys() - shown(page).keys()
    if missing:
        raise SystemExit(f"{page} has no place for the table {', '.join(sorted(missing))}.")

    def filled(place: re.Match[str]) -> str:
        name = place[1]
        return f"<!-- table {name} -->\n{tables[name]}\n<!-- /table -->" if name in tables else place[0]

    page.write_text(_PLACE.sub(filled, text), encoding="utf-8")
    print(f"filled {page}")


# -- calls side by side -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Call:
    """A script with its options, the file its output goes to, and whether it may begin, given the calls that ended."""

    name: str
    command: Sequence[str]
    log: Path
    ready: Callable[[set[str]], bool] = lambda ended: True


def side_by_side(calls: Iterable[Call], processes: int, seconds: float = float("inf")) -> None:
    """Keep so many processes busy, the first calls first, until all have ended or the time is up."""
    waiting, ended, begin = list(calls), set[str](), time.monotonic()
    running: dict[Call, tuple[subprocess.Popen[bytes], float]] = {}
    while (waiting or running) and time.monotonic() - begin < seconds:
        for call, (process, since) in [pair for pair in running.items() if pair[1][0].poll() is not None]:
            now = time.monotonic()
            print(f"{now - begin:6.0f} s  {call.name}: {now - since:.0f} s, code {process.returncode}", flush=True)
            del running[call]
            ended.add(call.name)
        for call in list(waiting):
            if len(running) < processes and call.ready(ended):
                with call.log.open("wb") as log:
                    process = subprocess.Popen([sys.executable, *call.command], stdout=log, stderr=log)
                running[call] = process, time.monotonic()
                waiting.remove(call)
        time.sleep(0.5)
    for process, _ in running.values():
        process.terminate()
    print("all done" if not waiting and not running else f"time is up, {len(waiting)} calls not begun", flush=True)
