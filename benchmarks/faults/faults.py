"""What becomes of disturbed runs, and whether long ones stay as they began.

python benchmarks/faults/faults.py run --faults 1000    # some 2 s each on one core; rows are added as they come
python benchmarks/faults/faults.py long                 # 10,000 steps, two minutes
python benchmarks/faults/faults.py table                # fills the page
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "tests" / "faults")]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: children are forked
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from common import fill, machine, markdown, number, read, write  # noqa: E402 - after the threads are set

ROWS = HERE / "results" / "rows.jsonl"
LONG = HERE / "results" / "long.json"
STEPS = 10_000
FIRST = 500  # steps that are left out: what is allocated and imported once
MEMORY_DISK = Path("/dev/shm")


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Stored rows; one that was tried again counts once, as it ended last."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return list({(row["seed"], row["number"]): row for row in rows}.values())


# -- faults -----------------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """Disturb runs one after another; returns how many failed."""
    from fault_harness import FAILED, House, disturb

    failed, began = 0, time.monotonic()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None) as place:
        house = House(Path(place), tuple(options.case))
        for k in range(options.first, options.first + options.faults):
            if time.monotonic() - began > options.seconds:
                break
            row = {**disturb(house, k, options.seed, options.fault), "date": date.today().isoformat()}
            for root in (
                HERE.parents[1],
                Path(place),
                Path(sys.prefix),
                Path(sys.base_prefix),
            ):  # named in tracebacks
                row["said"] = row["said"].replace(f"{root}/", "")
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            if row["end"] == FAILED:
                failed += 1
                print(f"{k} {row['fault']} in {row['case']}: {row['said']}", flush=True)
    print(f"{failed} failed")
    return failed


def count(rows: Sequence[Mapping[str, Any]], **what: str) -> int:
    """How many rows have these values."""
    return sum(all(row[k] == v for k, v in what.items()) for row in rows)


def table_of(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    """Tried, survived, told and failed, by fault or by case."""
    names = list(dict.fromkeys(str(r[key]) for r in sorted(rows, key=lambda r: str(r[key]).lower())))
    head = (key, "tried", "same result", "stopped with a sentence", "lost")
    body = [
        (name, len([r for r in rows if r[key] == name]), *(count(rows, **{key: name, "end": e}) for e in ENDS))
        for name in names
    ]
    total = ("all", len(rows), *(count(rows, end=e) for e in ENDS))
    return markdown(head, [[number(c) if isinstance(c, int) else c for c in row] for row in (*body, total)])


ENDS = ("same", "told", "failed")


# -- long runs --------------------------------------------------------------------------------------------------------


def memory() -> float:
    """MiB that the process holds now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def long(steps: int) -> dict[str, Any]:
    """A tiny network trained with its run folder: memory, open files and CPU time, every hundredth of the steps."""
    import tailorvit
    from tailorvit.methods.stages import StageSink

    seen, times, last = [], [], [time.process_time()]
    inner = StageSink.progress

    def progress(sink: StageSink, step: int, total: int, facts: Mapping[str, Any]) -> None:
        now = time.process_time()
        times.append(now - last[0])
        last[0] = now
        if step % (steps // 100) == 0:
            files = len(list(Path("/proc/self/fd").iterdir()))
            seen.append((step, memory(), files, 1e3 * statistics.median(times)))
            times.clear()
        inner(sink, step, total, facts)

    StageSink.progress = progress  # type: ignore[method-assign]
    epochs = steps // 20
    arch = "arch={depth=1, embed=16, heads=1, mlp=1}"
    sets = [arch, "baseline=false", "data.limit=160", "train.batch=8", f"final.train.epochs={epochs}"]
    sets += ["final.train.batch=8", "final.train.augment=mild", "final.train.checkpoint_seconds=1"]
    with TemporaryDirectory() as place:
        out = Path(place) / "run"
        tailorvit.run("s4-digits", method="fixed", out=out, tiny=True, settings=sets, progress="quiet")
    names = ("step", "memory", "files", "ms")
    return {**machine(), "steps": steps, "rows": [dict(zip(names, row, strict=True)) for row in seen]}


def long_table(facts: Mapping[str, Any]) -> str:
    """Tenths of the training side by side."""
    rows, tenth = [r for r in facts["rows"] if r["step"] > FIRST], max(len(facts["rows"]) // 10, 1)
    body = []
    for name, part in (
        ("first tenth", rows[:tenth]),
        ("middle", rows[len(rows) // 2 :][:tenth]),
        ("last", rows[-tenth:]),
    ):
        mean = {k: statistics.median(r[k] for r in part) for k in ("memory", "files", "ms")}
        span = f"{part[0]['step']:,} to {part[-1]['step']:,}"
        body.append((name, span, number(mean["memory"], 1), number(mean["files"]), number(mean["ms"], 2)))
    return markdown(("part", "steps", "memory, MiB", "open files", "CPU time of a step, ms"), body)


def tables() -> dict[str, str]:
    """The page's tables."""
    rows = rows_of(ROWS)
    return {
        "faults": table_of(rows, "fault"),
        "cases": table_of(rows, "case"),
        "long": long_table(read(LONG)),
    }


def main() -> None:
    """Run, measure, or fill the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    many = verbs.add_parser("run")
    many.add_argument("--faults", type=int, default=1000)
    many.add_argument("--first", type=int, default=0, help="the number of the first fault")
    many.add_argument("--seed", type=int, default=0)
    many.add_argument("--seconds", type=float, default=float("inf"), help="begin no fault after this time")
    many.add_argument("--fault", default="", help="only this one")
    many.add_argument("--case", action="append", default=[], help="only this one; may be repeated")
    many.add_argument("--out", type=Path, default=ROWS)
    verbs.add_parser("long").add_argument("--steps", type=int, default=STEPS)
    verbs.add_parser("table")
    options = parser.parse_args()
    if options.verb == "run":
        sys.exit(1 if run(options) else 0)
    if options.verb == "long":
        write(long(options.steps), LONG)
    else:
        fill(HERE / "README.md", tables())


if __name__ == "__main__":
    main()
