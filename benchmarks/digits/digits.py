"""Whole runs on small data: the network found against the baseline of the same limit, over seeds.

    python benchmarks/digits/digits.py default          # `tailorvit run` for seeds 0 to 9
    python benchmarks/digits/digits.py families         # every family under every method that suits it, on digits
    python benchmarks/digits/digits.py fashion-mnist    # the same on Fashion-MNIST
    python benchmarks/digits/digits.py training-free    # searching with and without training, on digits
    python benchmarks/digits/digits.py table            # the tables of the page, from the stored results

Every run is a process of its own with one thread, so that its time and peak memory are its own. `--quick` runs the tiny
forms of one seed and writes no results.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, machine, markdown, number, read, spread, write

HERE = Path(__file__).parent
RESULTS = HERE / "results"
Row = dict[str, Any]
Case = tuple[str, list[str]]  # a recipe and the keys set on top of it

S3 = ["method=s3", "s3.warm_start=true", "s3.max_shift=1", "s3.updates=2", "s3.samples=40"]
# The ladder's trunk on digits is a random one: a check of the code, not a result.
FAMILIES: dict[str, Case] = {
    "vit-s4": ("s4-digits", []),
    "pit-s4": ("s4-pit-digits", []),
    "swin-s4": ("s4-swin-digits", []),
    "shunted-s4": ("s4-shunted-digits", []),
    "windowed-s4": ("s4-windowed-digits", []),
    "ladder-s4": ("s4-ladder-digits", []),
    "vit-s3": ("s3-vit-digits", []),
    "pit-s3": ("s4-pit-digits", S3),
    "swin-s3": ("s4-swin-digits", S3),
    "shunted-s3": ("s4-shunted-digits", S3),
    "windowed-s3": ("s3-windowed-digits", []),
    "vit-autoformer": ("autoformer-digits", []),
    "vit-bignas": ("bignas-digits", []),
    "vit-hat": ("hat-digits", []),
}
WINDOWED_DIMS = 's4.dims=["depth.3", "embed.1", "embed.2", "embed.3", "embed.4"]'
FASHION: dict[str, Case] = {}
for _name in ("vit", "pit", "swin", "shunted", "windowed"):
    _dims = [WINDOWED_DIMS] if _name == "windowed" else []
    FASHION[f"{_name}-s4"] = ("s4-fashion-mnist", [f"family={_name}", *_dims])
    FASHION[f"{_name}-s3"] = ("s4-fashion-mnist", [f"family={_name}", *S3])
SUPERNET = [
    *("seek.evaluator=supernet", "train.epochs=40", "final.train.epochs=80", "final.how=retrain"),
    *("s4.adaptive=true", "s4.warm_start=true", "search.population=16", "search.parents=6"),
    *("search.generations=6", "search.crossover=6", "search.mutation=6"),
]


# All have the same limits, and every network found is trained from scratch by the same recipe, so that only the choice
# of the architecture differs. "size" is the control: the largest network within the limits.
TRAINING_FREE: dict[str, Case] = {
    "tf-tas, dss": ("tftas-digits", ["baseline=true"]),
    "tf-tas, size": ("tftas-digits", ["baseline=false", "proxy.name=params"]),
    "s4, dss": ("s4-dss-digits", ["baseline=false"]),
    "s4, supernet": ("s4-dss-digits", ["baseline=false", *SUPERNET]),
}
NOT_SEARCH = ("final", "baseline", "analysis")  # stages after the search


# -- one run ----------------------------------------------------------------------------------------------------------


def run(name: str, case: Case, seed: int, place: Path, options: argparse.Namespace) -> Row:
    """The figures of one run, or why it failed."""
    recipe, sets = case[0], [*case[1], *options.sets]
    folder = place / f"{name.replace(', ', '-')}-{seed}"
    row: Row = {"case": name, "seed": seed, "recipe": recipe, "set": sets}
    command = [sys.executable, "-m", "tailorvit", "run", recipe, "--plain", "--seed", str(seed), "--out", str(folder)]
    command += [part for s in sets for part in ("--set", s)] + ["--tiny"] * options.quick
    with (place / f"{folder.name}.log").open("w") as log:
        start = time.monotonic()
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
        _, status, usage = os.wait4(child.pid, 0)  # this child's own figures
        seconds = time.monotonic() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode or not (folder / "report.html").is_file():
        said = Path(log.name).read_text().strip()
        print(f"{folder.name} failed: {said[-800:]}", flush=True)
        return row | {"failed": said.splitlines()[-1] if said else f"exit status {child.returncode}"}
    print(f"{folder.name}: {seconds:.0f} s", flush=True)
    mib = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return row | figures(read(folder / "result.json")) | {"seconds": seconds, "mib": mib}


def figures(result: Row) -> Row:
    """What is kept of a result.json."""
    baseline, spaces = result["baseline"] or {}, result["spaces"]
    search = sum(s for stage, s in result["seconds"].items() if stage.partition("-")[0] not in NOT_SEARCH)
    path = " > ".join(f"{s['largest']['params'] / 1e3:.1f}k{'r' if s['repair'] else ''}" for s in spaces)
    found = next((c for c in result.get("candidates", []) if c["name"].startswith("found")), result)
    return {
        "chosen": result.get("chosen", "found"),
        "found_params": found["params"],
        "found_test": found["test_accuracy"],
        "params": result["params"],
        "macs": result["macs"],
        "test": result["test_accuracy"],
        "baseline_params": baseline.get("params"),
        "baseline_test": baseline.get("test_accuracy"),
        "spaces": [s["largest"]["params"] for s in spaces],
        "path": path,
        "trials": result["trials"],
        "search_seconds": search,
        "stages": result["seconds"],
        **{k: result[k] for k in ("latency", "predictor") if k in result},
    }


# -- tables -----------------------------------------------------------------------------------------------------------


def by_case(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of the same case; those of older files name family and method."""
    found: dict[str, list[Row]] = {}
    for r in rows:
        found.setdefault(r.get("case") or f"{r['family']}-{r['method']}", []).append(r)
    return found


def column(rows: Sequence[Row], key: str) -> list[Any]:
    """One figure of every row."""
    return [r.get(key) for r in rows]


def default_table(rows: Sequence[Row]) -> str:
    """One line a seed, then mean and standard deviation."""
    keys = {"params": 0, "test": 2, "found_params": 0, "found_test": 2, "baseline_test": 2, "seconds": 0, "mib": 0}
    lines = [(r["seed"], r["chosen"], *(number(r[k], digits) for k, digits in keys.items()), r["path"]) for r in rows]
    for name, work in (("mean", statistics.fmean), ("s.d.", statistics.stdev)):
        if len(rows) > 1:
            lines.append((name, "", *(number(work(column(rows, k)), digits) for k, digits in keys.items()), ""))
    head = ("seed", "delivered", "params", "test %", "found params", "test %", "baseline test %", "seconds", "peak MiB")
    return markdown((*head, "largest of each space"), lines)


def families_table(rows: Sequence[Row]) -> str:
    """One line for each family and method."""
    lines = []
    for case, same in by_case(rows).items():
        good = [r for r in same if "failed" not in r]
        if not good:
            lines.append((case, "0", f"failed: {same[0]['failed']}", *[""] * 5))
            continue
        cells = [case, len(good)]
        for key, digits in (("params", 0), ("test", 2), ("baseline_params", 0), ("baseline_test", 2)):
            cells.append(spread(column(good, key), digits, least=3))
        cells += [f"{statistics.fmean(len(r['spaces']) for r in good):.1f}", spread(column(good, "seconds"), 0, 3)]
        lines.append(cells)
    head = ("family and method", "seeds", "found params", "test %", "baseline params", "test %", "spaces", "seconds")
    return markdown(head, lines)


def training_free_table(rows: Sequence[Row]) -> str:
    """One line a case, and one for the baseline."""
    lines = []
    for case, same in by_case(rows).items():
        good = [r for r in same if "failed" not in r]
        if not good:
            lines.append((case, "0", f"failed: {same[0]['failed']}", *[""] * 4))
            continue
        digits = {"params": 0, "test": 2, "search_seconds": 1, "seconds": 1, "trials": 0}
        lines.append((case, len(good), *(spread(column(good, k), d, 3) for k, d in digits.items())))
    known = [r for r in rows if r.get("baseline_test") is not None]
    if known:
        cells = (spread(column(known, "baseline_params"), 0, 3), spread(column(known, "baseline_test"), 2, 3))
        lines.append(("baseline", len(known), *cells, "0", "-", "-"))
    head = ("case", "seeds", "parameters", "test %", "search, s", "whole run, s", "architectures scored")
    return markdown(head, lines)


# -- the command ------------------------------------------------------------------------------------------------------


class Study(NamedTuple):
    """Cases to run, their seeds, how many at a time, the stored results and how they are shown."""

    cases: dict[str, Case]
    seeds: Sequence[int]
    jobs: int
    stored: str
    table: Callable[[Sequence[Row]], str]


CORES = os.cpu_count() or 1
STUDIES = {
    "default": Study({"default": ("s4-digits", [])}, range(10), CORES, "default-2026-11-18", default_table),
    "families": Study(FAMILIES, [0], CORES, "digits-families-2026-11-15", families_table),
    "fashion-mnist": Study(FASHION, [0], CORES, "fashion-mnist-families-2026-11-15", families_table),
    "training-free": Study(TRAINING_FREE, range(5), CORES, "trainingfree-2026-11-15", training_free_table),
}


def tables() -> dict[str, str]:
    """The page's tables by name."""
    return {name: study.table(read(RESULTS / f"{study.stored}.json")["rows"]) for name, study in STUDIES.items()}


def main() -> None:
    """Run every case with every seed, print the table, write the JSON."""
    if sys.argv[1:] == ["table"]:
        fill(HERE / "README.md", tables())
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--only", nargs="+", default=[], help="cases by name; all unless named")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--jobs", type=int, help="runs at a time")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="passed on to every run")
    parser.add_argument("--quick", action="store_true", help="tiny forms of one seed, to try this; writes no results")
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: results/STUDY-DATE.json)")
    options = parser.parse_args()
    study = STUDIES[options.study]
    cases = {name: case for name, case in study.cases.items() if not options.only or name in options.only}
    seeds = list(options.seeds or study.seeds)[: 1 if options.quick else None]
    jobs = [(name, case, seed) for seed in seeds for name, case in cases.items()]
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(options.jobs or study.jobs) as pool:
        rows = list(pool.map(lambda job: run(*job, Path(place), options), jobs))
    print(study.table(rows))
    if options.out or not options.quick:
        facts = {**machine(), "jobs": options.jobs or study.jobs, "rows": rows}
        write(facts, options.out or RESULTS / f"{options.study}-{facts['date']}.json")


if __name__ == "__main__":
    main()
