"""Searching with and without training on digits: seconds of search and test accuracy of the network found.

python benchmarks/trainingfree.py          five seeds of every case, one process a core
python benchmarks/trainingfree.py --quick  tiny forms, to try this script; writes no results

Every case has the same limits (45k to 60k parameters), and every network found is trained from scratch by the same
recipe, so that only the choice of the architecture differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
AFTER = ("final", "baseline", "analysis")  # stages that are no search
SUPERNET = [
    *("seek.evaluator=supernet", "train.epochs=40", "final.train.epochs=80", "final.how=retrain"),
    *("s4.adaptive=true", "s4.warm_start=true", "search.population=16", "search.parents=6"),
    *("search.generations=6", "search.crossover=6", "search.mutation=6"),
]
# Case to (recipe, keys on top). The two "size" cases are the controls: the largest of the band, nothing else.
CASES: dict[str, tuple[str, list[str]]] = {
    "tf-tas, dss": ("tftas-digits", ["baseline=true"]),
    "tf-tas, naswot": ("tftas-digits", ['proxy.names=["naswot"]']),
    "tf-tas, predictor": ("tftas-digits", ['proxy.names=["predictor"]']),
    "tf-tas, size": ("tftas-digits", ['proxy.names=["params"]']),
    "s4, dss": ("s4-dss-digits", []),
    "s4, predictor": ("s4-dss-digits", ["seek.evaluator=predictor"]),
    "s4, size": ("s4-dss-digits", ["seek.evaluator=params", "seek.per_size=false"]),
    "s4, supernet": ("s4-dss-digits", SUPERNET),
}


def one(case: str, seed: int, options: argparse.Namespace, place: Path) -> dict:
    """One run in its own process with one thread."""
    recipe, sets = CASES[case]
    sets = ["baseline=false", *sets, *options.sets]
    if options.quick:
        sets += ["train.epochs=1", "final.train.epochs=1"]
    folder = place / f"{case.replace(', ', '-')}-{seed}"
    command = [sys.executable, "-m", "tailorvit", "run", recipe, "--plain", "--seed", str(seed), "--out", str(folder)]
    command += [part for s in sets for part in ("--set", s)] + ["--tiny"] * options.quick
    head = {"case": case, "seed": seed, "recipe": recipe, "set": sets}
    start = time.monotonic()
    ended = (folder / "result.json").is_file()  # of an earlier series with the same --keep
    done = None if ended else subprocess.run(command, capture_output=True, text=True, env=ALONE)
    seconds = time.monotonic() - start
    if done is not None and done.returncode:
        print(f"{folder.name} failed: {done.stdout[-300:]}{done.stderr[-600:]}", flush=True)
        return {**head, "failed": (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}
    facts = json.loads((folder / "result.json").read_text())
    stages = facts["seconds"]
    seconds = sum(stages.values()) if ended else seconds
    search = sum(s for stage, s in stages.items() if stage.partition("-")[0] not in AFTER)
    rival, proxy = facts["baseline"] or {}, facts.get("proxy") or {}
    print(f"{folder.name}: {facts['test_accuracy']:.2f} %, search {search:.1f} s, in all {seconds:.0f} s", flush=True)
    return {
        **head,
        "arch": facts["arch"],
        "params": facts["params"],
        "macs": facts["macs"],
        "test": facts["test_accuracy"],
        "search_split": facts["final_search_accuracy"],
        "baseline_params": rival.get("params"),
        "baseline_test": rival.get("test_accuracy"),
        "search_seconds": search,
        "seconds": seconds,
        "stages": stages,
        "trials": facts["trials"],
        "spaces": [s["largest"]["params"] for s in facts["spaces"]],
        "proxy": {k: proxy.get(k) for k in ("names", "scored", "per_second", "tau_params")} if proxy else None,
    }


def spread(rows: list[dict], key: str, form: str = "{:.2f}") -> str:
    """Mean and, from three seeds on, standard deviation."""
    values = [r[key] for r in rows if r.get(key) is not None]
    if not values:
        return "-"
    mean = form.format(statistics.fmean(values))
    return mean if len(values) < 3 else f"{mean} ± {form.format(statistics.stdev(values))}"


def table(rows: list[dict]) -> str:
    """Markdown, one line a case, and one for the hand-designed network."""
    head = ("case", "seeds", "parameters", "test %", "search, s", "whole run, s", "architectures judged")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for case in dict.fromkeys(r["case"] for r in rows):
        same = [r for r in rows if r["case"] == case]
        good = [r for r in same if "failed" not in r]
        if not good:
            lines.append(f"| {case} | failed: {same[0]['failed']} |" + " |" * (len(head) - 2))
            continue
        cells = [case, str(len(good)), spread(good, "params", "{:,.0f}"), spread(good, "test")]
        cells += [spread(good, k, "{:.1f}") for k in ("search_seconds", "seconds")] + [
            spread(good, "trials", "{:,.0f}")
        ]
        lines.append(f"| {' | '.join(cells)} |")
    hand = [r for r in rows if r.get("baseline_test") is not None]
    if hand:
        cells = ["hand-designed", str(len(hand)), spread(hand, "baseline_params", "{:,.0f}")]
        lines.append(f"| {' | '.join([*cells, spread(hand, 'baseline_test'), '0', '-', '-'])} |")
    return "\n".join(lines)


def main() -> None:
    """Run everything, write the JSON, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", nargs="+", default=[], choices=CASES, help="cases by name; all unless named")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="passed on to every run")
    parser.add_argument("--quick", action="store_true", help="tiny forms of one seed; writes no results")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: benchmarks/results/trainingfree-DATE)")
    options = parser.parse_args()
    seeds = options.seeds[:1] if options.quick else options.seeds
    jobs = [(case, seed) for seed in seeds for case in options.only or CASES]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        place = options.keep or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        rows = list(pool.map(lambda job: one(*job, options, place), jobs))
    facts = {
        "date": date.today().isoformat(),
        "machine": {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()},
        "jobs": options.jobs,
        "rows": rows,
    }
    print(table(rows))
    if options.out or not options.quick:
        out = options.out or HERE / "results" / f"trainingfree-{facts['date']}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(facts, indent=1) + "\n")
        print(f"wrote {out}")


if __name__ == "__main__":
    main()
