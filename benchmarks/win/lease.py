"""All of the study's cases on one machine, several at a time, in the order of their worth.

python benchmarks/win/lease.py --data flowers=FOLDER@96#30 --data cifar10=FOLDER#12 ... --out rows.jsonl --processes 6

A case begins once its images are there (the file FOLDER.ready says so) and the rows it builds on are written, so images
may arrive while it runs. What is written already is not done again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.extend(str(place) for place in Path(__file__).resolve().parents[:2])
from common import Call, side_by_side

from runs import rows

HERE = Path(__file__).resolve().parent
SHARED = {"screen": 3, "families": 2, "parts": 2}  # processes that share a case
SEEDS = {"flowers": (1, 2, 3), "cifar10": (1, 2, 3)}
ALONE = ("default", "screen", "shapes")  # cases that build on no other
ONE_ROW = ("default", "old", "s4")  # cases of one row; the others look row by row


def calls(options: argparse.Namespace) -> list[Call]:
    """What is still to be done, the most important first."""
    there = {(row["case"], row["data"], row["seed"]) for row in rows(options.out) if "failed" not in row}
    found: list[tuple[float, Call]] = []
    for number, text in enumerate(options.data):
        name, _, rest = text.partition("=")
        rest, _, epochs = rest.partition("#")
        folder, _, pixels = rest.partition("@")
        first, *others = SEEDS.get(name, (1,))
        cases: list[tuple[float, str, int, list[str]]] = [
            (1, "default", first, []),
            (2, "screen", first, []),
            (3, "peers", first, ["--best", "2"]),
            *((start + seed / 10, case, seed, []) for seed in others for start, case in ((1, "default"), (3, "peers"))),
            (2.5, "old", first, ["--old-source", options.old_source]),
            (4, "families", first, []),
            *([(2.6, "parts", first, [])] if others else []),
            (6, "s4", first, []),
            *([(2.7, "shapes", first, ["--epochs", "40"])] if name == "cifar10" else []),
            *([(2.8, "larger", first, ["--image-size", "32"])] if name == "cifar10" else []),
        ]
        screened = {("screen", name, first)} <= there
        for worth, case, seed, more in cases:
            if (case in ONE_ROW and (case, name, seed) in there) or (case == "screen" and screened):
                continue
            command = [str(HERE / "runs.py"), case, "--data", f"{name}={folder}", "--epochs", epochs]
            command += ["--seed", str(seed), *more, "--out", str(options.out)]
            command += ["--image-size", pixels] if pixels else []

            def ready(
                ended: set[str], source=Path(folder), case=case, needed=(name, seed), name=name, screened=screened
            ) -> bool:
                if not source.with_suffix(".ready").exists():
                    return False
                screens = sum(e.startswith(f"{name} screen") for e in ended)
                if case == "peers" and not screened and screens < SHARED["screen"]:
                    return False
                return case in ALONE or any(
                    r["case"] == "default" and (r["data"], r["seed"]) == needed for r in rows(options.out)
                )

            parts = SHARED.get(case, 1)
            for part in range(parts):
                own = [*command, "--part", f"{part}/{parts}"]
                log = options.out.with_name(f"{name}-{case}-{seed}-{part}.log")
                found.append((worth + number / 100, Call(f"{name} {case} {seed} {part}", own, log, ready)))
    return [call for _, call in sorted(found, key=lambda pair: pair[0])]


def main() -> None:
    """Keep as many processes busy as asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", default=[], help="NAME=FOLDER[@PIXELS]#EPOCHS")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--old-source", default="")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--list", action="store_true", help="print the calls and do nothing")
    options = parser.parse_args()
    if options.list:
        return print("\n".join(f"{call.name}: {' '.join(call.command)}" for call in calls(options)))
    side_by_side(calls(options), options.processes, options.seconds)


if __name__ == "__main__":
    main()
