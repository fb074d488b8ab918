"""What the benchmarks of many runs share: one run in its own process, the options, the series, its JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}


def options(about: str | None, seeds: Iterable[int]) -> argparse.ArgumentParser:
    """The options of every series."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="passed on to every run")
    parser.add_argument("--quick", action="store_true", help="tiny forms of one seed, to try this; writes no results")
    parser.add_argument("--keep", type=Path, help="keep the run folders here; those that have ended are not run again")
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: benchmarks/results/NAME-DATE.json)")
    return parser


def one(recipe: str, seed: int, sets: list[str], folder: Path, tiny: bool) -> tuple[dict[str, Any], float] | str:
    """What a run's result.json holds and how long it took; one line where it failed. One thread, its own process."""
    command = [sys.executable, "-m", "tailorvit", "run", recipe, "--plain", "--seed", str(seed), "--out", str(folder)]
    command += [part for s in sets for part in ("--set", s)] + ["--tiny"] * tiny
    result, start = folder / "result.json", time.monotonic()
    ended = result.is_file()
    if not ended:
        done = subprocess.run(command, capture_output=True, text=True, env=ALONE)
        if done.returncode:
            print(f"{folder.name} failed: {done.stdout[-300:]}{done.stderr[-600:]}", flush=True)
            return (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]
    if not (folder / "report.html").is_file():
        return "no report"
    facts = json.loads(result.read_text())
    # Of a run that had ended before, the time is what its stages took.
    return facts, sum(facts["seconds"].values()) if ended else time.monotonic() - start


def series(
    asked: argparse.Namespace, name: str, cases: Iterable[Any], run: Callable[..., dict], table: Callable[..., str]
) -> None:
    """Run ``run(case, seed, place)`` for every case and seed, print the table, write the JSON."""
    seeds = asked.seeds[:1] if asked.quick else asked.seeds
    jobs = [(case, seed) for seed in seeds for case in cases]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(asked.jobs) as pool:
        place = asked.keep or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        rows = list(pool.map(lambda job: run(*job, place), jobs))
    facts = {
        "date": date.today().isoformat(),
        "machine": {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()},
        "jobs": asked.jobs,
        "rows": rows,
    }
    print(table(rows))
    if asked.out or not asked.quick:
        out = asked.out or HERE / "results" / f"{name}-{facts['date']}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(facts, indent=1) + "\n")
        print(f"wrote {out}")
