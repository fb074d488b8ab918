"""Everything the page needs, on one machine, in the order of its worth, until the time is up.

python benchmarks/pretrained/lease.py --data flowers=FOLDER@98 --data pets=FOLDER@98 --weights FILE --out FOLDER

First the recipe of the whole network, then learning rate and weight of the teacher's tokens are chosen on the search
images of another seed; the runs that are shown take what was best. Images may arrive while it runs (the file
FOLDER.ready says that they are there). Rows are written as they come. Torch-Pruning must be importable for its rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from common import Call, side_by_side
from study import EVEN

HERE = Path(__file__).resolve().parent
SEEDS, CHOOSING, EPOCHS = (1, 2, 3), 11, 30
RIVALS = ("whole", "first", "slimmed", "torch_pruned")
FRONT, LATENCY = "6M,3M", ("9M", "2.5M")  # sizes at half and at a quarter of the whole network's latency (latency.py)


def calls(options: argparse.Namespace) -> list[Call]:
    """The calls, the most important first."""
    (first, *others), folder = options.data, options.out
    wholes = [folder / f"wholes-{data.partition('=')[0]}-{CHOOSING}.jsonl" for data in options.data]
    whole = ["--best-whole", *map(str, wholes)]

    def call(
        script: str, which: str, data: str, seed: int, *more: str, out: str = "", after: Sequence[str] = ()
    ) -> Call:
        name, _, place = data.partition("=")
        path = folder / f"{out or f'{which}-{name}-{seed}'}.jsonl"
        command = [str(HERE / script), which, "--data", f"{data}#{EPOCHS}", "--seeds", str(seed), "--out", str(path)]
        command += ["--weights", str(options.weights), "--store", str(folder / "whole")]
        command += [*more, *(("--test",) if seed in SEEDS else ())]  # other seeds are for choosing
        ready = Path(place.partition("@")[0]).with_suffix(".ready")

        def may(ended: set[str]) -> bool:
            return ready.exists() and options.weights.exists() and ended.issuperset(after)

        return Call(path.stem, command, path.with_suffix(".log"), may)

    def study(which: str, data: str, seed: int, *more: str, out: str = "", after: Sequence[str] = ()) -> Call:
        return call("study.py", which, data, seed, *more, "--processes", "1", out=out, after=after)

    def rivals(data: str, seed: int, *more: str, out: str = "") -> Call:
        only = ("--only", *RIVALS, "--processes", "2")
        return call("trainings.py", "rivals", data, seed, *more, *whole, *only, out=out, after=[p.stem for p in wholes])

    chosen = [study("wholes", data, CHOOSING) for data in options.data]
    cuts = [(first, shape) for shape in EVEN] + [(data, EVEN[1]) for data in others]
    tried = [
        study(
            "rates", data, CHOOSING, "--shapes", shape, *whole,
            out=f"rates-{data.partition('=')[0]}-{shape.split()[0]}", after=[c.name for c in chosen],
        )
        for data, shape in cuts
    ]  # fmt: skip
    known, rates = [t.name for t in tried], [str(t.log.with_suffix(".jsonl")) for t in tried]
    best = [*whole, "--best-of", *rates]
    supernet = {"tailor.search": "supernet", "final.train.epochs": 12, "train.epochs": 15}
    searched = ("--options", json.dumps({"settings": supernet}), *best)
    return [
        *chosen,
        *tried,
        rivals(first, SEEDS[0], "--taught", "yes"),
        study("runs", first, SEEDS[0], "--front", ",".join([FRONT, *LATENCY]), *best, after=known),
        *(study("runs", data, SEEDS[0], "--front", FRONT, *best, after=known) for data in others),
        *(study("runs", first, seed, "--front", FRONT, *best, after=known) for seed in SEEDS[1:]),
        *(rivals(data, SEEDS[0], "--taught", "yes", "--main") for data in others),
        *(rivals(first, seed, "--taught", "yes", "--main") for seed in SEEDS[1:]),
        study("tau", first, CHOOSING, *searched, after=known),
        rivals(first, SEEDS[0], "--taught", "no", "--main", out="rivals-untaught"),
        rivals(first, SEEDS[0], "--taught", "yes", "--main", "--limits", "9e6", "4e6", "2.5e6", out="rivals-latency"),
    ]


def main() -> None:
    """As many at a time as asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", required=True, help="NAME=FOLDER@PIXELS")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--list", action="store_true", help="print the calls and do nothing")
    options = parser.parse_args()
    if options.list:
        return print("\n".join(f"{call.name}: {' '.join(call.command)}" for call in calls(options)))
    options.out.mkdir(parents=True, exist_ok=True)
    side_by_side(calls(options), options.processes, options.seconds)


if __name__ == "__main__":
    main()
