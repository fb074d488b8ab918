"""The CIFAR-10 study: does S4 find better networks at a size limit? Many runs, as many as the minutes allow.

python benchmarks/cifar10.py plan                       the jobs in their order, with their epochs
python benchmarks/cifar10.py run --out DIR --data DIR   N processes, M minutes; started again it goes on
python benchmarks/cifar10.py table [DIR]                rows (and DIR's new ones) to results/cifar10.json and cifar10.md
python benchmarks/cifar10.py surveys DIR                its surveys' answers, put to results/cifar10-surveys.json
python benchmarks/cifar10.py surface                    S4 on a surface through all: results/cifar10-surface.json
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from study.jobs import Job, jobs
from study.queue import Queue, add_rows, finished, read_rows, usable
from study.sizes import FULL

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
ROWS, SURFACE, SURVEYS = (RESULTS / f"cifar10-{name}" for name in ("rows.jsonl", "surface.json", "surveys.json"))


def options() -> argparse.ArgumentParser:
    """The five commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("plan", "run"):
        sub = commands.add_parser(name)
        sub.add_argument("--only", default="", help="a regular expression; only jobs whose name matches")
        sub.add_argument("--long-first", action="store_true", help="not in the order of the plan: for a last session")
        sub.add_argument("--epochs-supernet", type=int, default=8, help="epochs of a supernet")
        sub.add_argument("--epochs-final", type=int, default=16, help="epochs of every last training")
        sub.add_argument("--epochs-member", type=int, default=4, help="epochs of a member judged by its own training")
        sub.add_argument("--batch", type=int, default=512)
        sub.add_argument("--lr", type=float, default=1.5e-3)
        sub.add_argument("--precision", default="bf16", choices=("bf16", "fp32"))
        sub.add_argument("--compile", action="store_true", help="compiled blocks")
        sub.add_argument("--device", default="cuda")
        sub.add_argument("--data", type=Path, default=Path("data/cifar10"))
        sub.add_argument("--eval-batch", type=int, default=2500, help="images a batch when scoring")
        sub.add_argument("--moves", type=int, default=3, help="moves of a space at most")
        sub.add_argument("--travel", type=int, default=8, help="moves of the travelling runs")
        sub.add_argument("--pairs", type=int, default=20, help="pairs a dimension")
        sub.add_argument("--member-pairs", type=int, default=2, help="pairs a dimension where members are trained")
        sub.add_argument("--samples", type=int, default=20, help="S3's members a choice")
        sub.add_argument("--edf", type=int, default=40, help="members of every space for its error distribution")
        sub.add_argument("--population", type=int, default=20)
        sub.add_argument("--generations", type=int, default=6)
        sub.add_argument("--candidates", type=int, default=200, help="networks scored without training at the end")
        sub.add_argument("--scored", type=int, default=60, help="networks that set the scale of such scores")
        sub.add_argument("--rank", type=int, default=6, help="networks of the first and of the last space to retrain")
        sub.add_argument("--slopes", type=int, default=3, help="networks of each space that two readings choose")
        sub.add_argument("--set", dest="sets", action="append", default=[], help="passed on to every recipe")
        sub.add_argument("--tiny", action="store_true", help="small spaces, to try this on a CPU")
        sub.add_argument(
            "--have", type=Path, default=ROWS, help="rows of earlier sessions; their jobs are not run again"
        )
        if name == "run":
            sub.add_argument("--out", type=Path, required=True)
            sub.add_argument("--processes", type=int, default=6)
            sub.add_argument("--minutes", type=float, default=10.0, help="no job starts that would end later")
            sub.add_argument("--grace", type=float, default=0.5, help="minutes that running jobs may go on after that")
            sub.add_argument("--asked", type=Path, help="answers of surveys that did not end, as `surveys` stored them")
            sub.add_argument("--retry", action="store_true", help="try jobs again that failed twice before")
            sub.add_argument("--keep", action="store_true", help="keep the run folders of finished jobs")
    surveys = commands.add_parser("surveys")
    surveys.add_argument("out", type=Path, help="a folder of `run` whose surveys have asked at least once")
    surveys.add_argument("--to", type=Path, default=SURVEYS)
    surface = commands.add_parser("surface")
    surface.add_argument("--rows", type=Path, default=ROWS, help="the rows of all sessions")
    surface.add_argument("--out", type=Path, default=SURFACE)
    surface.add_argument("--seeds", type=int, default=10, help="of supernets and trainings that err")
    table = commands.add_parser("table")
    table.add_argument("out", type=Path, nargs="?", help="a folder whose rows are put to the others first")
    table.add_argument("--rows", type=Path, default=ROWS, help="the rows of all sessions")
    table.add_argument("--json", type=Path, default=RESULTS / "cifar10.json")
    table.add_argument("--markdown", type=Path, default=HERE / "cifar10.md")
    table.add_argument("--tiny", action="store_true")
    return parser


def chosen(asked: argparse.Namespace) -> list[Job]:
    """The jobs asked for, in the order in which they start."""
    todo = [j for j in jobs(asked) if re.search(asked.only, j.name)]
    return sorted(todo, key=lambda j: -j.epochs) if asked.long_first else todo


def plan(todo: list[Job], done: set[str]) -> None:
    """Print the jobs and the running sum of their epochs."""
    total = 0.0
    for job in todo:
        total += 0 if job.name in done else job.epochs
        print(f"{'done ' if job.name in done else ''}{job.name:34s} {job.epochs:7.1f} {total:9.1f}")


def stored(path: Path, otherwise: Any) -> Any:
    """What a file of results holds."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else otherwise


def main() -> None:
    """Parse and call."""
    asked = options().parse_args()
    if asked.command == "table":
        from study.tables import write

        if asked.out is not None:
            print(f"{add_rows(asked.rows, read_rows(asked.out))} rows added to {asked.rows}")
        more = {} if asked.tiny else {"surface": stored(SURFACE, {}), "surveys": stored(SURVEYS, [])}
        write(asked.rows, asked.json, asked.markdown, asked.tiny, **more)
        return
    if asked.command == "surveys":
        from study.surveys import collect

        known = {s["name"]: s for s in stored(asked.to, [])} | {s["name"]: s for s in collect(asked.out / "runs")}
        asked.to.write_text(json.dumps([known[name] for name in sorted(known)]) + "\n", encoding="utf-8")
        return
    if asked.command == "surface":
        from study.surface import what_if

        rows = [r for r in finished(read_rows(asked.rows)).values() if r.get("size") == "1.5M"]
        found = what_if(rows, stored(SURVEYS, []), FULL["1.5M"], asked.seeds)
        asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return
    if asked.command == "run":
        asked.data = asked.data.resolve()
    todo = chosen(asked)
    have = usable(read_rows(asked.have), todo)
    if asked.command == "plan":
        plan(todo, set(finished(have)))
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    rest = {k: getattr(asked, k) for k in ("grace", "tiny", "keep", "retry")}
    rest["asked"] = json.loads(asked.asked.read_text(encoding="utf-8")) if asked.asked else []
    queue = Queue(todo, asked.out, asked.processes, asked.minutes, have=have, **rest)
    plan(todo, set(finished(queue.rows)))
    queue.work()


if __name__ == "__main__":
    main()
