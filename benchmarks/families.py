"""Every family under every method that suits it, end to end: the network found against the hand-designed one.

python benchmarks/families.py                       digits, one process a core
python benchmarks/families.py --data fashion-mnist  Fashion-MNIST, where Debian's package is installed
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
STEADY = ["s3.warm_start=true", "s3.max_shift=1", "s3.updates=2", "s3.samples=40"]
# (family, method) to (recipe, keys on top of it). The ladder's trunk on digits is a random one: a control, no result.
DIGITS: dict[tuple[str, str], tuple[str, list[str]]] = {
    ("vit", "s4"): ("s4-digits", []),
    ("pit", "s4"): ("s4-pit-digits", []),
    ("swin", "s4"): ("s4-swin-digits", []),
    ("shunted", "s4"): ("s4-shunted-digits", []),
    ("windowed", "s4"): ("s4-windowed-digits", []),
    ("ladder", "s4"): ("s4-ladder-digits", []),
    ("vit", "s3"): ("s3-vit-digits", []),
    ("pit", "s3"): ("s4-pit-digits", ["method=s3", *STEADY]),
    ("swin", "s3"): ("s4-swin-digits", ["method=s3", *STEADY]),
    ("shunted", "s3"): ("s4-shunted-digits", ["method=s3", *STEADY]),
    ("windowed", "s3"): ("s3-windowed-digits", []),
    ("vit", "autoformer"): ("autoformer-digits", []),
    ("vit", "bignas"): ("bignas-digits", []),
    ("vit", "hat"): ("hat-digits", []),
}
WINDOWED_DIMS = 's4.dims=["depth.3", "embed.1", "embed.2", "embed.3", "embed.4"]'
FASHION: dict[tuple[str, str], tuple[str, list[str]]] = {
    **{
        (name, "s4"): ("s4-fashion-mnist", [f"family={name}", *([WINDOWED_DIMS] if name == "windowed" else [])])
        for name in ("vit", "pit", "swin", "shunted", "windowed")
    },
    **{
        (name, "s3"): ("s4-fashion-mnist", [f"family={name}", "method=s3", *STEADY])
        for name in ("vit", "pit", "swin", "shunted", "windowed")
    },
}
CASES = {"digits": DIGITS, "fashion-mnist": FASHION}


def one(case: tuple[str, str], seed: int, options: argparse.Namespace, place: Path) -> dict:
    """One run in its own process with one thread."""
    recipe, sets = CASES[options.data][case]
    folder = place / "-".join((*case, str(seed)))
    command = [sys.executable, "-m", "tailorvit", "run", recipe, "--plain", "--seed", str(seed), "--out", str(folder)]
    command += [part for s in (*sets, *options.sets) for part in ("--set", s)] + ["--tiny"] * options.quick
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    seconds = time.monotonic() - start
    head = {"family": case[0], "method": case[1], "seed": seed, "recipe": recipe, "set": [*sets, *options.sets]}
    if done.returncode:
        print(f"{folder.name} failed: {done.stdout[-300:]}{done.stderr[-600:]}", flush=True)
        return {**head, "failed": (done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}
    facts = json.loads((folder / "result.json").read_text())
    if not (folder / "report.html").is_file():
        return {**head, "failed": "no report"}
    print(f"{folder.name}: {facts['test_accuracy']:.2f} % in {seconds:.0f} s", flush=True)
    rival = facts["baseline"] or {}
    row = {
        **head,
        "params": facts["params"],
        "macs": facts["macs"],
        "test": facts["test_accuracy"],
        "baseline_params": rival.get("params"),
        "baseline_test": rival.get("test_accuracy"),
        "spaces": [s["largest"]["params"] for s in facts["spaces"]],
        "trials": facts["trials"],
        "seconds": seconds,
        "stages": facts["seconds"],
        **{k: facts[k] for k in ("latency", "predictor") if k in facts},
    }
    (place / f"{folder.name}.json").write_text(json.dumps(row))  # so that a long series can be stopped
    return row


def mean(rows: list[dict], key: str, form: str) -> str:
    """The mean over the seeds, or nothing where a figure is missing."""
    values = [r[key] for r in rows if r.get(key) is not None]
    return form.format(statistics.fmean(values)) if values else "-"


def spread(rows: list[dict], key: str) -> str:
    """Mean and, from three seeds on, standard deviation."""
    values = [r[key] for r in rows if r.get(key) is not None]
    if len(values) < 3:
        return mean(rows, key, "{:.2f}")
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"


def table(rows: list[dict]) -> str:
    """Markdown, one line a family and method."""
    head = ("family", "method", "seeds", "found params", "test %", "baseline params", "test %", "spaces", "seconds")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for case in dict.fromkeys((r["family"], r["method"]) for r in rows):
        same = [r for r in rows if (r["family"], r["method"]) == case]
        good = [r for r in same if "failed" not in r]
        if not good:
            lines.append(f"| {case[0]} | {case[1]} | failed: {same[0]['failed']} |" + " |" * (len(head) - 3))
            continue
        moved = statistics.fmean(len(r["spaces"]) for r in good)
        cells = [
            *case,
            str(len(good)),
            mean(good, "params", "{:,.0f}"),
            spread(good, "test"),
            mean(good, "baseline_params", "{:,.0f}"),
            spread(good, "baseline_test"),
            f"{moved:.1f}",
            mean(good, "seconds", "{:.0f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run everything, write the JSON, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=CASES, default="digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", default=[], help="cases such as pit-s4; all unless named")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="passed on to every run")
    parser.add_argument("--quick", action="store_true", help="tiny forms, to try this script; writes no results")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: benchmarks/results/DATA-families-DATE)")
    options = parser.parse_args()
    cases = [c for c in CASES[options.data] if not options.only or "-".join(c) in options.only]
    jobs = [(case, seed) for seed in options.seeds for case in cases]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        place = options.keep or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        rows = list(pool.map(lambda job: one(*job, options, place), jobs))
    facts = {
        "date": date.today().isoformat(),
        "data": options.data,
        "machine": {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()},
        "jobs": options.jobs,
        "rows": rows,
    }
    print(table(rows))
    if options.out or not options.quick:
        out = options.out or HERE / "results" / f"{options.data}-families-{facts['date']}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(facts, indent=1) + "\n")
        print(f"wrote {out}")


if __name__ == "__main__":
    main()
