"""How fast DSS scores untrained networks, as `tailorvit score` does it: architectures a second, and peak memory.

    python benchmarks/speed/dss.py                             # AutoFormer-T at 224 px on a CPU, minutes
    python benchmarks/speed/dss.py --device cuda --workers 8
    python benchmarks/speed/dss.py --quick                     # a small space, to try it; writes no results
    python benchmarks/speed/dss.py table                       # the page's table, from the stored results

A rate is the number of further architectures over the further time of a second, longer command, so that the start of
the program does not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, machine, markdown, read, write

HERE = Path(__file__).parent


def scored(space: str, count: int, device: str, workers: int) -> tuple[float, float]:
    """(seconds, peak MiB) of one command that scores so many architectures."""
    command = [sys.executable, "-m", "tailorvit", "score", space, "--proxy", "dss", "--n", str(count)]
    command += ["--device", device, "--workers", str(workers), "--json"]
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command[1:])} failed with {child.returncode}.")
    return time.monotonic() - start, usage.ru_maxrss / 1024


def rate(space: str, count: int, device: str, workers: int) -> dict[str, Any]:
    """Architectures a second, and the peak memory of a short and a long command."""
    few = max(workers, count // 5)
    (short, before), (long, after) = (scored(space, n, device, workers) for n in (few, few + count))
    found = {"architectures": count, "a_second": count / (long - short)}
    return {"space": space, "workers": workers, **found, "peak_mib": {few: before, few + count: after}}


def tables() -> dict[str, str]:
    """The page's table; the results were measured by an earlier form of this script, see the page."""
    names = ("2026-11-15-cpu", "2026-11-15-h200", "memory-2026-11-16")
    cpu, h200, flat = (read(HERE / "results" / f"dss-{name}.json") for name in names)
    one = h200["one_process"]
    memory = flat["memory"]["mib_on_the_way"]
    low, high = sorted(one["a_second"])
    rows = [
        ("architectures a second, two CPU cores", f"{cpu['rate']['a_second']:.1f}"),
        ("architectures a second, H200, one process", f"{low:.0f} to {high:.0f}"),
        ("architectures a second, H200, eight processes", f"{h200['eight_processes']['a_second']:.1f}"),
        ("whole score over its one forward and backward pass", f"{cpu['whole_over_pass']:.2f}x"),
        ("norms against `torch.linalg.svdvals`, two threads", f"{cpu['norms_times_faster']:.1f}x faster"),
        ("norms against `svdvals`, one thread", f"{cpu['norms_times_faster_than_one_thread']:.1f}x faster"),
        ("largest relative error of the score", f"{cpu['largest_relative_error']:.1e}"),
        ("building a candidate against ordinary construction", f"{cpu['build_times_faster']:.1f}x faster"),
        ("memory after 2,000 and after 10,000 small networks", f"{memory[0]:.1f} and {memory[-1]:.1f} MiB"),
    ]
    return {"dss": markdown(("what", "figure"), rows)}


def main() -> None:
    """Measure, print, write."""
    if sys.argv[1:] == ["table"]:
        fill(HERE / "README.md", tables())
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--quick", action="store_true", help="a small space, to try this script; writes no results")
    parser.add_argument("--out", type=Path, help="where the JSON goes (default: results/dss-DATE-DEVICE.json)")
    options = parser.parse_args()
    cases = [("vit-8px", 100, 1)] if options.quick else [("autoformer-t", 80, options.workers), ("vit-8px", 10_000, 1)]
    if options.device != "cpu" and not options.quick:
        cases = [("autoformer-t", 400, options.workers)]
    rows = [rate(space, count, options.device, workers) for space, count, workers in cases]
    lines = [
        (r["space"], r["workers"], f"{r['a_second']:.1f}", " and ".join(f"{v:.0f}" for v in r["peak_mib"].values()))
        for r in rows
    ]
    print(markdown(("space", "processes", "architectures a second", "peak MiB, short and long"), lines))
    if options.out or not options.quick:
        facts = {**machine(), "device": options.device, "rows": rows}
        write(facts, options.out or HERE / "results" / f"dss-{facts['date']}-{options.device}.json")


if __name__ == "__main__":
    main()
