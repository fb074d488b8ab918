"""Everything the page still lacks, on one machine, in the order of its worth, until the time is up.

python benchmarks/pretrained/lease.py --data flowers=FOLDER@98 --data pets=FOLDER@98 --weights FILE --out FOLDER

Rows are written as they come, so a machine that is taken away costs only what was under way. Runs share the card and
do not add to its speed: three at a time keep it busy. Torch-Pruning must be importable for its rows.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SEEDS, EPOCHS = (1, 2, 3), 30
RIVALS = ("first", "slimmed", "torch_pruned")


def commands(options: argparse.Namespace) -> list[list[str]]:
    """The calls, the most important first."""
    shared = ["--weights", str(options.weights)]
    first, *others = options.data

    def study(which: str, data: str, seed: int, *more: str) -> list[str]:
        out = ["--out", str(options.out / f"{which}-{data.partition('=')[0]}-{seed}.jsonl"), "--processes", "1"]
        own = [str(HERE / "study.py"), which, "--data", f"{data}#{EPOCHS}", "--seeds", str(seed)]
        return [*own, *shared, *out, *(["--test"] if seed in SEEDS else []), *more]  # other seeds are for choosing

    def rivals(data: str, seed: int) -> list[str]:
        out = ["--out", str(options.out / f"rivals-{data.partition('=')[0]}-{seed}.jsonl"), "--processes", "1"]
        own = [str(HERE / "trainings.py"), "rivals", "--data", f"{data}#{EPOCHS}", "--seeds", str(seed)]
        return [*own, *shared, *out, "--test", "--only", "whole", *RIVALS, "--whole-epochs", "25"]

    searched = [
        "--options",
        '{"settings": {"tailor.search": "supernet", "final.train.epochs": 15, "train.epochs": 15}}',
    ]
    return [
        *(study("runs", first, seed) for seed in SEEDS),
        rivals(first, SEEDS[0]),
        *(study("runs", data, SEEDS[0]) for data in others),
        study("runs", first, 11, *searched),
        *(rivals(first, seed) for seed in SEEDS[1:]),
        *(rivals(data, SEEDS[0]) for data in others),
        study("kept", first, 11),
        study("tau", first, 11, *searched),
    ]


def main() -> None:
    """As many at a time as asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", required=True, help="NAME=FOLDER@PIXELS")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--list", action="store_true", help="print the calls and do nothing")
    options = parser.parse_args()
    waiting, running, begin = commands(options), list[tuple[list[str], subprocess.Popen[bytes]]](), time.monotonic()
    if options.list:
        return print("\n".join(" ".join(call) for call in waiting))
    options.out.mkdir(parents=True, exist_ok=True)
    while (waiting or running) and time.monotonic() - begin < options.seconds:
        for call, process in [pair for pair in running if pair[1].poll() is not None]:
            print(f"{time.monotonic() - begin:6.0f} s  {process.returncode}  {' '.join(call[1:6])}", flush=True)
            running.remove((call, process))
        while waiting and len(running) < options.processes:
            call = waiting.pop(0)
            log = Path(call[call.index("--out") + 1]).with_suffix(".log").open("wb")
            running.append((call, subprocess.Popen([sys.executable, *call], stdout=log, stderr=log)))
        time.sleep(0.5)
    for _, process in running:
        process.terminate()
    print("all done" if not waiting and not running else f"time is up, {len(waiting)} calls not begun", flush=True)


if __name__ == "__main__":
    main()
