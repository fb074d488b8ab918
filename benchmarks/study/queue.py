"""The queue of the CIFAR-10 study: N processes at a time, a time limit, a row as soon as a job has ended."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from study.jobs import Job, Table, ready

HERE = Path(__file__).resolve().parents[1]  # benchmarks, or whatever a copy of it is called
TRIES = 2  # a job that failed is tried once more, behind all others


def read_rows(place: Path) -> list[Table]:
    """The rows of a study's folder, or of a file; a line cut off by a kill is left out."""
    path, rows = place / "rows.jsonl" if place.is_dir() else place, []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def finished(rows: Sequence[Table]) -> dict[str, Table]:
    """The good row of every job that has one."""
    return {r["name"]: r for r in rows if r.get("ok")}


def usable(rows: Sequence[Table], jobs: Sequence[Job]) -> list[Table]:
    """The good rows of an earlier session that serve jobs of this one: same name, same epochs, batch and rate."""
    wanted = {j.name: j.settings for j in jobs}
    return [r for r in rows if r.get("ok") and r["name"] in wanted and r.get("settings") == wanted[r["name"]]]


def add_rows(path: Path, rows: Sequence[Table]) -> int:
    """Put good rows that are not there yet to a file of rows; returns how many."""
    known = {(r["name"], str(r.get("settings"))) for r in read_rows(path) if r.get("ok")}
    new = {(r["name"], str(r.get("settings"))): r for r in rows if r.get("ok") and "skipped" not in r}
    fresh = [r for key, r in new.items() if key not in known]
    append(path, fresh)
    return len(fresh)


def append(path: Path, rows: Sequence[Table]) -> None:
    """Put rows to a file, on the disk before it goes on; a line that a kill cut off must not swallow the first."""
    with path.open("a+", encoding="utf-8") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(file.tell() - 1)
            if file.read(1) != "\n":
                file.write("\n")
        file.writelines(json.dumps(r) + "\n" for r in rows)
        file.flush()
        os.fsync(file.fileno())


class Queue:
    """Starts jobs in their order and collects their rows; a second queue in the same folder goes on."""

    def __init__(self, jobs: Sequence[Job], place: Path, processes: int, minutes: float, **rest: Any) -> None:
        self.jobs, self.place, self.processes = list(jobs), place.resolve(), processes
        self.whole, self.deadline = 60 * minutes, time.monotonic() + 60 * minutes
        self.grace, self.tiny, self.keep = float(rest["grace"]), bool(rest["tiny"]), bool(rest["keep"])
        self.running: dict[str, tuple[Job, subprocess.Popen[bytes], float]] = {}
        for name in ("runs", "rows", "logs", "jobs"):
            (self.place / name).mkdir(parents=True, exist_ok=True)
        self.rows = [*rest.get("have", ()), *read_rows(self.place)]  # the first are known from an earlier session
        self.asked = {s["name"]: s["members"] for s in rest.get("asked", ())}  # what surveys have heard before
        self.forgotten = len(self.rows) if rest.get("retry") else 0  # failures before this row do not count
        for path in sorted((self.place / "rows").glob("*.json")):  # ended while no queue was there
            self._collect(path)

    # -- rows -------------------------------------------------------------------------------------------------------

    def _append(self, row: Table) -> None:
        self.rows.append(row)
        append(self.place / "rows.jsonl", [row])

    def _collect(self, path: Path) -> bool:
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        self._append(row)
        path.unlink()
        return True

    def _fails(self, name: str) -> int:
        return sum(1 for r in self.rows[self.forgotten :] if r["name"] == name and not r.get("ok"))

    # -- choosing ---------------------------------------------------------------------------------------------------

    def pace(self) -> float:
        """Seconds an epoch of this study takes in one of the processes, learnt from the jobs that ended."""
        known = [r["seconds"] / r["epochs"] for r in self.rows if r.get("ok") and r.get("seconds") and r["epochs"]]
        return statistics.median(known) if known else 0.0

    def next(self) -> tuple[Job, Table] | None:
        """The first job that is not done, can start, and would end in time."""
        good, pace, left = finished(self.rows), self.pace(), self.deadline - time.monotonic()
        for attempt in range(TRIES):
            for job in self.jobs:
                fails = self._fails(job.name)
                if job.name in good or job.name in self.running or fails != attempt:
                    continue
                recipe = ready(job, good)
                if isinstance(recipe, str):
                    self._append({"name": job.name, "case": job.case, "ok": True, "skipped": recipe, "epochs": 0})
                    return self.next()
                takes = pace * job.epochs
                # What is too long for any session starts in the first half of one and goes on in the next.
                if recipe is not None and left > (takes if takes < 0.9 * self.whole else self.whole / 2):
                    return job, recipe
        return None

    def start(self, job: Job, recipe: Table) -> None:
        """Start a worker."""
        row, told = self.place / "rows" / f"{job.name}.json", self.place / "jobs" / f"{job.name}.json"
        row.unlink(missing_ok=True)
        facts = {**asdict(job), "recipe": recipe, "parent": os.getpid(), "tiny": self.tiny, "keep": self.keep}
        facts |= {"asked": self.asked.get(job.name, []), "runs": str(self.place / "runs"), "row": str(row)}
        told.write_text(json.dumps(facts), encoding="utf-8")
        places = (str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", ""))
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        env["PYTHONPATH"] = os.pathsep.join(p for p in places if p)
        with (self.place / "logs" / f"{job.name}.txt").open("ab") as log:
            # -P: the working folder is not searched, as it may hold another study or a queue.py.
            command = [sys.executable, "-P", "-m", "study.worker", str(told)]
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        self.running[job.name] = (job, process, time.monotonic())
        print(f"{self._clock()} start {job.name} ({job.epochs:.0f} epochs)", flush=True)

    def _clock(self) -> str:
        return f"[{(self.deadline - time.monotonic()) / 60:5.1f} min left]"

    # -- the loop ---------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Collect what has ended; a worker that died without a row gets one."""
        for name, (job, process, begun) in list(self.running.items()):
            if process.poll() is None:
                continue
            del self.running[name]
            if not self._collect(self.place / "rows" / f"{name}.json"):
                said = (self.place / "logs" / f"{name}.txt").read_text(encoding="utf-8", errors="replace")
                text = f"ended with {process.returncode} and no row: {said[-600:]}"
                self._append({"name": name, "case": job.case, "seed": job.seed, "ok": False, "error": text})
            row = self.rows[-1]
            told = f"{row['test']:.2f} %, {row['params']:,} parameters" if row.get("ok") else row["error"][:200]
            print(f"{self._clock()} {name}: {told}, {time.monotonic() - begun:.0f} s", flush=True)

    def stop(self) -> None:
        """End the workers; their runs stay and go on with the next queue."""
        for _, process, _ in self.running.values():
            if process.poll() is None:
                process.terminate()
        for _, process, _ in self.running.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        self.running.clear()

    def work(self) -> None:
        """Until everything is done or the time is over."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            while True:
                self.reap()
                while len(self.running) < self.processes and (found := self.next()) is not None:
                    self.start(*found)
                late = time.monotonic() - self.deadline
                if not self.running or late > 60 * self.grace:
                    break
                time.sleep(0.2)
        finally:
            self.stop()
        done = finished(self.rows)
        waiting = [j.name for j in self.jobs if j.name not in done]
        print(f"{len(done)} jobs done, {len(waiting)} not: {', '.join(waiting[:12])}", flush=True)
