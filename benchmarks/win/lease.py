"""All of the study's cases on one machine, several at a time, in the order of their worth.

python benchmarks/win/lease.py --data flowers=FOLDER@96#30 --data cifar10=FOLDER#12 ... --out rows.jsonl --processes 6

A case begins once its images are there (the file FOLDER.ready says so) and the rows it builds on are written, so images
may arrive while it runs. It ends when all is done or the file named by --stop appears; what is written already is not
done again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from runs import rows

HERE = Path(__file__).resolve().parent
SCREENS = 3  # processes that share a screening
SEEDS = {"flowers": (1, 2, 3), "cifar10": (1, 2, 3)}


@dataclass(frozen=True)
class Job:
    """One call of runs.py."""

    worth: float
    name: str
    case: str
    seed: int
    command: tuple[str, ...]
    source: Path
    part: str = ""

    def ready(self, have: set[tuple[str, str, int]], ended: set[Job], every: list[Job]) -> bool:
        """Whether its images and what it builds on are there."""
        if not self.source.with_suffix(".ready").exists():
            return False
        if self.case == "peers" and any(j.case == "screen" and j.name == self.name and j not in ended for j in every):
            return False
        return self.case in ("default", "screen", "shapes") or ("default", self.name, self.seed) in have


def jobs(options: argparse.Namespace) -> list[Job]:
    """All calls, the most important first."""
    found = []
    for number, text in enumerate(options.data):
        name, _, rest = text.partition("=")
        rest, _, epochs = rest.partition("#")
        folder, _, pixels = rest.partition("@")
        first, *others = SEEDS.get(name, (1,))
        rows: list[tuple[float, str, int, list[str]]] = [
            (1, "default", first, []),
            *((2, "screen", first, ["--part", f"{part}/{SCREENS}"]) for part in range(SCREENS)),
            (3, "peers", first, []),
            *((start + seed / 10, case, seed, []) for seed in others for start, case in ((1, "default"), (4, "peers"))),
            (5, "old", first, ["--old-source", options.old_source]),
            (6, "families", first, []),
            (7, "parts", first, []),
            (8, "s4", first, []),
            *([(7.5, "shapes", first, ["--epochs", "40"])] if name == "cifar10" else []),
        ]
        for worth, case, seed, more in rows:
            command = [case, "--data", f"{name}={folder}", "--epochs", epochs, "--seed", str(seed), *more]
            command += ["--out", str(options.out), *(("--image-size", pixels) if pixels else ())]
            part = more[1].split("/")[0] if case == "screen" else ""
            found.append(Job(worth + number / 100, name, case, seed, tuple(command), Path(folder), part))
    return sorted(found, key=lambda job: job.worth)


def main() -> None:
    """Keep as many processes busy as asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", default=[], help="NAME=FOLDER[@PIXELS]#EPOCHS")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--old-source", default="")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--stop", type=Path, default=None)
    options = parser.parse_args()
    every = jobs(options)
    waiting, ended = list(every), set[Job]()
    running: dict[Job, tuple[subprocess.Popen[bytes], float]] = {}
    begin = time.monotonic()
    while (waiting or running) and not (options.stop and options.stop.exists()):
        have = {(row["case"], row["data"], row["seed"]) for row in rows(options.out) if "failed" not in row}
        for job, (process, since) in list(running.items()):
            if process.poll() is not None:
                now = time.monotonic()
                print(
                    f"{now - begin:6.0f} s  {job.name} {job.case} {job.seed} {job.part}: {now - since:.0f} s",
                    flush=True,
                )
                del running[job]
                ended.add(job)
        for job in list(waiting):
            if len(running) < options.processes and job.ready(have, ended, every):
                log = options.out.with_name(f"{job.name}-{job.case}-{job.seed}{job.part}.log").open("wb")
                command = [sys.executable, str(HERE / "runs.py"), *job.command]
                running[job] = subprocess.Popen(command, stdout=log, stderr=log), time.monotonic()
                waiting.remove(job)
        time.sleep(0.5)
    for process, _ in running.values():
        process.terminate()
    print("stopped" if waiting or running else "all done", flush=True)


if __name__ == "__main__":
    main()
