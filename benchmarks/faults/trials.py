"""Whether a run of 20,000 trials stays quick: writing, resuming, and everything that reads its folder.

python benchmarks/faults/trials.py measure     # 2,000 and 20,000 trials by every search, some minutes on one core
python benchmarks/faults/trials.py table       # fills the page
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from common import fill, machine, markdown, number, read, write  # noqa: E402 - after the threads are set

if TYPE_CHECKING:
    from tailorvit.arch import Arch
    from tailorvit.methods.untrained import UntrainedScores
    from tailorvit.proxies import Scored

RESULTS = HERE / "results" / "trials.json"
SIZES = (2_000, 20_000)
PART = 1_000  # trials at the beginning and at the end of a search that are compared
LEFT = 100  # trials before the end of the search at which the run is killed
BATCH = 50
SAMPLES = 500  # of every space, for the report
IMAGES = 360  # that the made-up accuracies count
SETS = [
    *('space="vit-32px"', 'limits.max_params="5M"', 'limits.min_params="1k"', "baseline=false"),
    *("s4.iterations=1", f"analysis.samples={SAMPLES}", 'final.how="inherit"'),
]
SEARCHES: dict[str, Callable[[int], list[str]]] = {
    "evolution": lambda n: [
        *("search.name=evolution", f"search.population={BATCH}", f"search.generations={n // BATCH - 1}"),
        *("search.parents=10", "search.crossover=25", "search.mutation=25"),
    ],
    "nsga2": lambda n: ["search.name=nsga2", f"search.population={BATCH}", f"search.generations={n // BATCH - 1}"],
    "random": lambda n: ["search.name=random", f"search.budget={n}", f"search.batch={BATCH}"],
    "scores": lambda n: ["method=tf-tas", f"proxy.candidates={n}", "proxy.band=1"],
}
COLUMNS = {  # of the tables: a phase, its figure and how it is written
    "write, first": ("search", "write_first_ms", 3),
    "write, last": ("search", "write_last_ms", 3),
    "trial, first": ("search", "trial_first_ms", 2),
    "trial, last": ("search", "trial_last_ms", 2),
    "resume until the next trial, s": ("resume", "until_next", 1),
    "run.db, MiB": ("resume", "database_mib", 1),
}
READERS = {"report": "page_mib", "figures": "files_mib", "compare": "page_mib", "doctor": "", "runs": "", "watch": ""}


def accuracy(text: str) -> float:
    """A made-up accuracy of an architecture, the same in every process: so many of the images."""
    return 100 * (IMAGES // 2 + zlib.crc32(text.encode()) % (IMAGES // 3)) / IMAGES


def cpu() -> float:
    """Seconds of CPU that this process and its children took."""
    return sum(
        u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


# -- in a process of its own ------------------------------------------------------------------------------------------


class Watched:
    """The trials of a search, with the times at which they were written."""

    def __init__(self, kill_after: int, out: Path) -> None:
        from tailorvit.methods import session, untrained
        from tailorvit.runs import Run

        self.kill_after, self.out, self.written = kill_after, out, 0
        self.writes: list[tuple[float, float, int]] = []  # (seconds of CPU in the write, CPU at its end, trials)
        self.next = 0.0  # CPU when the first trial that was not stored was asked for
        self._write = Run.record_trials
        session.percent_of = lambda evaluator, arch: self.percent(arch)
        Run.record_trials = lambda run, stage, trials: self.record(run, stage, trials)  # type: ignore[method-assign]
        untrained.UntrainedScores._rows = lambda scores, archs: self.scored(scores, archs)  # type: ignore[method-assign]

    def asked(self) -> None:
        """A trial is evaluated."""
        self.next = self.next or cpu()

    def percent(self, arch: Arch) -> float:
        """Stands in for an evaluation on images."""
        self.asked()
        return accuracy(arch.to_json())

    def scored(self, scores: UntrainedScores, archs: Sequence[Arch]) -> list[Scored]:
        """Stands in for passes through untrained networks."""
        from tailorvit.proxies import Scored

        costs = [scores.session.meter.counter.both(arch) for arch in archs]
        return [
            Scored(arch, *both, {scores.name: self.percent(arch)}, {scores.name: {"score": 1.0}}, {})
            for arch, both in zip(archs, costs, strict=True)
        ]

    def record(self, run: Any, stage: str, trials: Sequence[Mapping[str, Any]]) -> None:
        """Write, and end the process once enough is written."""
        begin = time.process_time()
        self._write(run, stage, trials)
        end = time.process_time()
        if stage not in ("search", "score"):
            return
        self.writes.append((end - begin, end, len(trials)))
        self.written += len(trials)
        if self.kill_after and self.written >= self.kill_after:
            self.out.write_text(json.dumps(self.facts()))
            os.kill(os.getpid(), signal.SIGKILL)

    def facts(self) -> dict[str, float]:
        """Milliseconds of CPU that a trial takes to write, and in all, at the beginning and at the end."""
        found = {}
        rows = PART // self.writes[0][2]
        for name, part in (("first", self.writes[:rows]), ("last", self.writes[-rows:])):
            found[f"write_{name}_ms"] = 1e3 * median(seconds / n for seconds, _, n in part)
            found[f"trial_{name}_ms"] = 1e3 * (part[-1][1] - part[0][1]) / sum(n for *_, n in part[1:])
        return found


def size(path: Path) -> float:
    """MiB of a file, or of the files in a folder."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in files) / 2**20


def phase(name: str, folder: Path, trials: int, search: str, out: Path) -> None:
    """One piece of work on a run folder; its figures go to ``out``."""
    import tailorvit
    from tailorvit import health, lookup, report
    from tailorvit.report.watch import Viewer

    facts: dict[str, float] = {}
    runs = folder.parent
    watched = Watched(trials - LEFT if name == "search" else 0, out) if name in ("search", "resume") else None
    began, clock = cpu(), time.monotonic()
    if name == "search":
        sets = [*SETS, *SEARCHES[search](trials)]
        tailorvit.run("s4-digits", out=folder, tiny=True, settings=sets, progress="quiet")
        raise SystemExit(f"{search} ended before {trials} trials")
    if name == "resume" and watched is not None:
        tailorvit.resume(folder, progress="quiet")
        facts = {"until_next": watched.next - began, "database_mib": size(folder / "run.db")}
    elif name == "report":
        facts["page_mib"] = size(report.write_report(folder))
    elif name == "figures":
        report.write_report_figures(folder, runs / "figures")
        facts["files_mib"] = size(runs / "figures")
    elif name == "compare":
        facts["page_mib"] = size(report.write_comparison([folder, runs / "copy"], runs / "compare.html"))
    elif name == "doctor":
        assert health.sound(health.check_run(folder))
    elif name == "runs":
        assert len(lookup.list_runs(runs)) == 2
    else:
        facts["page_mib"] = len(Viewer(folder).view().page) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    took = {"seconds": cpu() - began, "wall": time.monotonic() - clock, "peak_mib": peak}
    out.write_text(json.dumps({**took, **facts}))


# -- all of them ------------------------------------------------------------------------------------------------------


def child(name: str, folder: Path, trials: int, search: str) -> dict[str, float]:
    """A phase in a process of its own."""
    out = folder.parent / "figures.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, __file__, "phase", name, str(folder), "--trials", str(trials), "--search", search]
    done = subprocess.run([*command, "--out", str(out)], check=False)
    if done.returncode not in (0, -signal.SIGKILL) or not out.exists():
        raise SystemExit(f"{name} of {search} with {trials} trials ended with code {done.returncode}")
    facts: dict[str, float] = read(out)
    print(f"{search} {trials} {name}: {facts}", flush=True)
    return facts


def measure(sizes: Sequence[int], searches: Sequence[str], place: Path) -> dict[str, Any]:
    """Every phase of every search at every size."""
    rows = []
    for search in searches:
        for trials in sizes:
            folder = place / f"{search}-{trials}" / "run"
            folder.parent.mkdir(parents=True)
            phases = {name: child(name, folder, trials, search) for name in ("search", "resume")}
            subprocess.run(["cp", "-r", str(folder), str(folder.parent / "copy")], check=True)
            phases |= {name: child(name, folder, trials, search) for name in READERS}
            rows.append({"search": search, "trials": trials, "phases": phases})
    return {**machine(), "rows": rows}


def search_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Writing and resuming."""
    head = ("search", "trials", *COLUMNS)
    body = [
        (r["search"], number(r["trials"]), *(number(r["phases"][p][k], digits) for p, k, digits in COLUMNS.values()))
        for r in rows
    ]
    return markdown(head, body)


def reader_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Reading: seconds of CPU, and in brackets the size of what was written, in MiB."""

    def cell(row: Mapping[str, Any], name: str, key: str) -> str:
        found = row["phases"][name]
        return number(found["seconds"], 1) + (f" ({number(found[key], 1)})" if key else "")

    head = ("search", "trials", *READERS, "most memory, MiB")
    body = [
        (
            *(r["search"], number(r["trials"]), *(cell(r, name, key) for name, key in READERS.items())),
            number(max(r["phases"][name]["peak_mib"] for name in READERS)),
        )
        for r in rows
    ]
    return markdown(head, body)


def tables() -> dict[str, str]:
    """The page's tables."""
    rows = read(RESULTS)["rows"]
    return {"trials": search_table(rows), "readers": reader_table(rows)}


def main() -> None:
    """Measure, or fill the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    every = verbs.add_parser("measure")
    every.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    every.add_argument("--search", action="append", choices=SEARCHES, help="only this one; may be repeated")
    every.add_argument("--out", type=Path, default=RESULTS)
    every.add_argument("--keep", type=Path, help="where the run folders stay")
    one = verbs.add_parser("phase", help="used by measure")
    one.add_argument("name")
    one.add_argument("folder", type=Path)
    one.add_argument("--trials", type=int, required=True)
    one.add_argument("--search", required=True)
    one.add_argument("--out", type=Path, required=True)
    verbs.add_parser("table")
    options = parser.parse_args()
    if options.verb == "phase":
        phase(options.name, options.folder, options.trials, options.search, options.out)
    elif options.verb == "measure":
        with TemporaryDirectory() as place:
            searches = options.search or list(SEARCHES)
            write(measure(options.sizes, searches, options.keep or Path(place)), options.out)
    else:
        fill(HERE / "README.md", tables())


if __name__ == "__main__":
    main()
