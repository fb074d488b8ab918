"""The default run on digits over several seeds: the network found against the hand-designed one of the same budget."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent


def one(seed: int, recipe: str | None, sets: list[str], folder: Path, quick: bool) -> dict:
    """One run in its own process, so that its time and peak memory are its own."""
    command = [sys.executable, "-m", "tailorvit", "run", *([recipe] if recipe else []), "--plain"]
    command += ["--seed", str(seed), "--out", str(folder), *(["--tiny"] if quick else [])]
    command += [part for s in sets for part in ("--set", s)]
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        start = time.monotonic()
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)  # this child's own figures; RUSAGE_CHILDREN would be the largest yet
        seconds = time.monotonic() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"seed {seed} failed:\n{Path(log.name).read_text()[-2000:]}")
    facts = json.loads((folder / "result.json").read_text())
    return {"seed": seed, "seconds": seconds, "peak_rss": rss_bytes(usage), "result": facts}


def rss_bytes(usage: resource.struct_rusage) -> int:
    """Peak resident bytes; Linux counts in KiB."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def path_words(spaces: list[dict]) -> str:
    """The spaces a run went through, each by the parameters of its largest member: ``55.2k > 58.9k``; r = repair."""
    return " > ".join(f"{s['largest']['params'] / 1e3:.1f}k{'r' if s['repair'] else ''}" for s in spaces)


def row(run: dict) -> dict:
    """The figures of one line of the table."""
    facts = run["result"]
    rival = facts["baseline"] or {"params": 0, "test_accuracy": float("nan")}
    return {
        "seed": run["seed"],
        "params": facts["params"],
        "test": facts["test_accuracy"],
        "baseline_params": rival["params"],
        "baseline_test": rival["test_accuracy"],
        "seconds": run["seconds"],
        "mib": run["peak_rss"] / 2**20,
        "path": path_words(facts["spaces"]),
    }


def table(rows: list[dict]) -> str:
    """Markdown, with mean and standard deviation underneath."""
    head = (
        "seed",
        "found params",
        "test %",
        "baseline params",
        "test %",
        "seconds",
        "peak MiB",
        "largest of each space",
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for r in rows:
        lines.append(
            f"| {r['seed']} | {r['params']:,} | {r['test']:.2f} | {r['baseline_params']:,} | {r['baseline_test']:.2f} "
            f"| {r['seconds']:.0f} | {r['mib']:.0f} | {r['path']} |"
        )
    for name, work in (("mean", statistics.fmean), ("s.d.", statistics.stdev if len(rows) > 1 else lambda _: 0.0)):
        figure = {k: work([r[k] for r in rows]) for k in rows[0] if k not in ("seed", "path")}
        lines.append(
            f"| {name} | {figure['params']:,.0f} | {figure['test']:.2f} | {figure['baseline_params']:,.0f} "
            f"| {figure['baseline_test']:.2f} | {figure['seconds']:.0f} | {figure['mib']:.0f} | |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the seeds one after the other, write the JSON, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", help="another recipe than the default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--set", dest="sets", action="append", default=[], help="passed on to tailorvit run")
    parser.add_argument("--quick", action="store_true", help="the tiny form, to try this script; writes no results")
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: benchmarks/results/digits-DATE.json)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        runs = []
        for seed in options.seeds:
            folder = Path(place) / f"seed-{seed}"
            runs.append(one(seed, options.recipe, options.sets, folder, options.quick))
            print(f"seed {seed}: {runs[-1]['seconds']:.0f} s, {runs[-1]['result']['test_accuracy']:.2f} %", flush=True)
    rows = [row(r) for r in runs]
    print(table(rows))
    facts = {
        "date": date.today().isoformat(),
        "recipe": options.recipe or "default",
        "set": options.sets,
        "machine": {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()},
        "threads": os.environ.get("OMP_NUM_THREADS", "torch's default"),
        "rows": rows,
        "runs": runs,
    }
    if options.out or not options.quick:
        out = options.out or HERE / "results" / f"digits-{facts['date']}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(facts, indent=1) + "\n")
        print(f"wrote {out}")


if __name__ == "__main__":
    main()
