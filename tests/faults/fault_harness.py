"""Disturbs runs and says what became of them: the same result, one sentence, or a failure.

A failure is a traceback, a hang, a sentence that is none, or a result that differs without a word.
"""

from __future__ import annotations

import gc
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fault_cases import ARCH, Case, cases, events, outcome
from fault_children import Child, End, Fault

from tailorvit.costs import Latency, meter
from tailorvit.rng import derive, generator

SAME, TOLD, FAILED = "same", "told", "failed"
NOTHING = Fault()
RANKS = Path(__file__).with_name("fault_ranks.py")
PATIENCE = 600.0  # seconds for two processes that are started twice


class Failure(Exception):
    """What must not happen; the text says what did."""


class House:
    """Every case, the end of its undisturbed run, and a place for disturbed ones."""

    def __init__(self, place: Path, names: tuple[str, ...] = ()) -> None:
        self.place, self.note = place, place / "note.json"
        place.chmod(0o755)
        self.cases = {c.name: c for c in cases(place)}
        if names:
            self.cases = {n: self.cases[n] for n in names}
        self._whole: dict[str, tuple[dict[str, Any], End, float]] = {}
        self.shared: dict[str, tuple[dict[str, Any], dict[int, End]]] = {}  # by two processes of a torchrun
        meter.measure_latency = latency_of_size
        self._base()
        gc.freeze()  # or every child's collector would copy what the parent holds

    def _base(self) -> None:
        """The network that a fine-tuning begins with, made here so that everything is imported before the forks."""
        from tailorvit import api

        verb, args, options = BASE.job(self.place / "fixed")
        getattr(api, verb)(*args, **options, progress="quiet")

    def begin(self, case: Case, folder: Path, fault: Fault = NOTHING) -> Child:
        """A child that begins a run."""
        return Child(*case.job(folder), fault, self.note)

    def resume(self, folder: Path, fault: Fault = NOTHING) -> Child:
        """A child that goes on with a run."""
        return Child("resume", [str(folder)], {}, fault, self.note)

    def whole(self, case: Case) -> tuple[dict[str, Any], End, float]:
        """The undisturbed run: its outcome, how it ended, its seconds. The first run imports what is imported late."""
        if case.name not in self._whole:
            verb, args, options = case.job(self.place / "warm")
            from tailorvit import api

            getattr(api, verb)(*args, **options, progress="quiet")
            shutil.rmtree(self.place / "warm")
            folder = self.place / "whole"
            began = time.monotonic()
            end = self.begin(case, folder).wait()
            if end.code:
                raise Failure(f"The undisturbed run of '{case.name}' fails: {end.said}")
            self._whole[case.name] = outcome(folder), end, time.monotonic() - began
            shutil.rmtree(folder)
        return self._whole[case.name]


def latency_of_size(model: Any, *_: Any, **__: Any) -> Latency:
    """A device whose latency is a tenth of a microsecond a parameter: a real one is never the same twice."""
    value = 1e-7 * sum(p.numel() for p in model.parameters())
    return Latency(value, value, value, batch=1, device="cpu", threads=1, runs=1)


BASE = Case("base", "fixed", sets=(ARCH, "baseline=false"))


# -- what follows a fault ---------------------------------------------------------------------------------------------


def require_sentence(end: End) -> None:
    """Exit code 2 comes with one sentence."""
    text = end.said.strip()
    if end.code != 2:
        raise Failure(f"exit code {end.code}: {text[-1500:]}")
    if not text or "Traceback" in text or "\n" in text:
        raise Failure(f"exit code 2 without one sentence: {text[-1500:]}")


def go_on(house: House, case: Case, folder: Path, fault: Fault = NOTHING) -> End:
    """Resume, or begin anew where there is no run folder yet."""
    child = house.resume(folder, fault) if (folder / "info.json").exists() else house.begin(case, folder, fault)
    return child.wait()


def compared(folder: Path, reference: dict[str, Any]) -> str:
    """The same result, or a difference that the run tells: changed images, lost epochs; else a failure."""
    found = outcome(folder)
    doubts = found["result"].get("doubts") or ()
    if any(text.startswith("Data changed during the run") for text in doubts):
        return TOLD
    skipped = [of["result"].get("data", {}).get("skipped", 0) for of in (found, reference)]
    if skipped[0] > skipped[1]:  # an image that was broken when the run listed its data: in result, log and terminal
        return TOLD
    different = [place for key in reference for place in differences(found[key], reference[key], key)]
    if different and all(p.startswith("epochs") for p in different) and lost_epochs(folder):
        return TOLD
    if different:
        raise Failure(f"a silent difference in {', '.join(different[:8])}")
    return SAME


def lost_epochs(folder: Path) -> list[str]:
    """What the log says of them."""
    return [text for text in events(folder, "warning") if "the database has lost" in text]


def differences(found: Any, wanted: Any, place: str) -> list[str]:
    """Where two values differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted(found.keys() | wanted.keys())
        return [row for k in keys for row in differences(found.get(k), wanted.get(k), f"{place}.{k}")]
    return [] if found == wanted else [f"{place} ({str(found)[:60]}, not {str(wanted)[:60]})"]


def finished(house: House, case: Case, folder: Path, reference: dict[str, Any]) -> tuple[str, str]:
    """Resume what is undisturbed now and judge the end: (same or told, what was said)."""
    end = go_on(house, case, folder)
    if end.code == 0:
        return compared(folder, reference), " ".join(lost_epochs(folder))
    require_sentence(end)
    return TOLD, end.said


def a_tick(house: House, case: Case, rng: np.random.Generator) -> int:
    return int(rng.integers(1, house.whole(case)[1].ticks + 1))


# -- the faults -------------------------------------------------------------------------------------------------------
# Each takes the house, a case, an empty folder and a generator, and returns (end, what was said).

Ending = tuple[str, str]


def killed(house: House, case: Case, folder: Path, rng: np.random.Generator) -> End:
    """Kill a run at a random tick."""
    end = house.begin(case, folder, Fault("SIGKILL", a_tick(house, case, rng))).wait()
    if end.code != -signal.SIGKILL:
        raise Failure(f"SIGKILL ended with {end.code}: {end.said}")
    return end


def sigkill(house: House, case: Case, folder: Path, rng: np.random.Generator) -> Ending:
    """At a tick, or at any moment; sometimes again when it is resumed."""
    reference, _, seconds = house.whole(case)
    child = house.begin(
        case, folder, NOTHING if (timed := rng.random() < 0.5) else Fault("SIGKILL", a_tick(house, case, rng))
    )
    if timed:
        time.sleep(seconds * rng.random())
        child.signal(signal.SIGKILL)
    child.wait()
    if rng.random() < 0.5 and (folder / "info.json").exists():
        end = go_on(house, case, folder, Fault("SIGKILL", int(rng.integers(1, 30))))
        if end.code not in (0, -signal.SIGKILL):
            require_sentence(end)
    return finished(house, case, folder, reference)


def asked_to_stop(number: signal.Signals) -> Callable[..., Ending]:
    def stop(house: House, case: Case, folder: Path, rng: np.random.Generator) -> Ending:
        """At a tick, or at any moment; sometimes twice at once."""
        reference, _, seconds = house.whole(case)
        how = rng.integers(3)
        if how == 0:
            child = house.begin(case, folder)
            time.sleep(seconds * rng.random())
            child.signal(number)
        else:
            kind = "twice" if how == 1 and rng.random() < 0.3 else number.name
            child = house.begin(case, folder, Fault(kind, a_tick(house, case, rng)))
        end = child.wait()
        begun = (folder / "info.json").exists()
        early = end.code == -number and not begun  # before anything was there to stop
        if end.code not in (0, 130, 143) and not early:
            raise Failure(f"{number.name} ended with {end.code}: {end.said[-1500:]}")
        if end.code in (130, 143) and begun and str(folder) not in end.said:
            raise Failure(f"{number.name} does not say how to go on: {end.said}")
        return finished(house, case, folder, reference)

    return stop


def disk_full(house: House, case: Case, folder: Path, rng: np.random.Generator) -> Ending:
    """From a tick to the end of the process."""
    reference, _, _ = house.whole(case)
    fault = Fault("full" if rng.random() < 0.6 else "limit", a_tick(house, case, rng))
    return lasting(house, case, folder, rng, fault, reference)


def lasting(
    house: House, case: Case, folder: Path, rng: np.random.Generator, fault: Fault, reference: dict[str, Any]
) -> Ending:
    """A fault that lasts until the process ends: one sentence or no harm at all; then it is gone."""
    end = house.begin(case, folder, fault).wait()
    if end.code:
        require_sentence(end)
    state, said = finished(house, case, folder, reference)
    return state, said or end.said


def damaged_checkpoint(house: House, case: Case, folder: Path, rng: np.random.Generator) -> Ending:
    """One or two of the files of a killed run are cut, emptied, removed, or have a bit flipped."""
    reference, _, _ = house.whole(case)
    killed(house, case, folder, rng)
    files = sorted((folder / "checkpoints").glob("*.safetensors")) if (folder / "checkpoints").exists() else []
    if files:
        newest = sorted(files, key=lambda p: p.stat().st_mtime)[-2:]
        some = newest if rng.random() < 0.5 else files
        for number in rng.choice(len(some), size=min(len(some), int(rng.integers(1, 3))), replace=False):
            damage(some[number], rng)
    return finished(house, case, folder, reference)


def damage(path: Path, rng: np.random.Generator) -> None:
    """Cut, empty, remove or flip a bit."""
    data, how = bytearray(path.read_bytes()), rng.integers(5)
    if how == 0:
        path.unlink()
    elif how == 1:
        path.write_bytes(b"")
    elif how == 2:
        path.write_bytes(bytes(data[: int(rng.integers(len(data)))]))
    else:
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(data))


def damaged_database(house: House, case: Case, folder: Path, rng: np.random.Generator) -> Ending:
    """The database of a killed run is cut in its last page, or the page is zeros."""
    reference, _, _ = house.whole(case)
    killed(house, case, folder, rng)
    files = [p for p in folder.glob("run.db*") if p.suffix != ".db-shm" and p.stat().st_size]
    if files:
        path = files[int(rng.integers(len(files)))]
        data = path.read_bytes()
        lost = int(rng.integers(1, min(4097, len(data))))
        path.write_bytes(data[:-lost] + bytes(lost) * int(rng.integers(2)))
    return finished(house, case, folder, reference)


def locked_database(house: House, case: Case, folder: Path, rng: np.random.Generator) -> Ending:
    """Another program holds the database from a tick on, or when a killed run is resumed."""
    reference, _, _ = house.whole(case)
    if rng.random() < 0.5:
        return lasting(house, case, folder, rng, Fault("locked", a_tick(house, case, rng)), reference)
    killed(house, case, folder, rng)
    if not (folder / "info.json").exists():
        return finished(house, case, folder, reference)
    other = sqlite3.connect(folder / "run.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    end = house.resume(folder).wait()
    other.execute("ROLLBACK")
    other.close()
    if end.code:
        require_sentence(end)
    return finished(house, case, folder, reference)


def changed_data(house: House, case: Case, folder: Path, rng: np.random.Generator) -> Ending:
    """A picture is deleted, changed or added while a run runs, or before it is resumed."""
    reference, _, _ = house.whole(case)
    pictures = sorted((house.place / "pictures").rglob("*.png"))
    path, other = (pictures[int(i)] for i in rng.choice(len(pictures), 2, replace=False))
    before, how = path.read_bytes(), rng.integers(4)
    child = house.begin(case, folder, Fault("SIGSTOP", a_tick(house, case, rng)))
    added = path.with_name("new.png")
    try:
        stopped = child.stopped()
        if how == 0:
            path.unlink()
        elif how == 1:
            path.write_bytes(other.read_bytes())
        elif how == 2:
            path.write_bytes(before[: len(before) // 2])
        else:
            added.write_bytes(before)
        if stopped:
            child.signal(signal.SIGKILL if rng.random() < 0.6 else signal.SIGCONT)
        end = child.wait()
        if end.code in (0, 2):
            require_sentence(end) if end.code else None
        elif end.code != -signal.SIGKILL:
            raise Failure(f"exit code {end.code}: {end.said[-1500:]}")
        if not (folder / "info.json").exists():
            return TOLD, "nothing was begun"
        end = go_on(house, case, folder)
        if end.code == 0:
            return compared(folder, reference), ""
        require_sentence(end)
        said = end.said
    finally:
        added.unlink(missing_ok=True)
        path.write_bytes(before)
    # The data as they were: the run goes on.
    state, _ = finished(house, case, folder, reference)
    return TOLD if state == SAME else state, said


def a_step(house: House, case: Case, rng: np.random.Generator) -> tuple[str, int]:
    steps = house.whole(case)[1].steps
    stage, step = steps[int(rng.integers(len(steps)))]
    return stage, int(step)


def within_step(kind: str, event: str) -> Callable[..., Ending]:
    def disturbed(house: House, case: Case, folder: Path, rng: np.random.Generator) -> Ending:
        """It is told, and a run that is killed as well ends as one that is not."""
        if not house.whole(case)[1].steps:
            return sigkill(house, case, folder, rng)
        stage, step = a_step(house, case, rng)
        fault = Fault(kind, 0, stage, step, int(rng.integers(1 if kind == "memory" else 0, 12)))
        whole = house.place / "other"
        shutil.rmtree(whole, ignore_errors=True)
        end = house.begin(case, whole, fault).wait()
        if end.code:
            require_sentence(end)
            return TOLD, end.said
        told = [text for text in events(whole, event) if stage in text]
        if not told:
            raise Failure(f"{kind} in step {step} of {stage} was not told")
        reference = outcome(whole)
        shutil.rmtree(whole)
        child = house.begin(case, folder, fault)
        time.sleep(house.whole(case)[2] * rng.random())
        child.signal(signal.SIGKILL)
        child.wait()
        end = go_on(house, case, folder, fault)
        if end.code:
            require_sentence(end)
            return TOLD, end.said
        return compared(folder, reference), told[0]

    return disturbed


def small_memory(house: House, case: Case, folder: Path, rng: np.random.Generator) -> Ending:
    """Evaluations of so many images do not fit: the same result, and it is told."""
    reference, _, _ = house.whole(case)
    images = int(rng.integers(1, 12))  # fewer than the smallest case has search images
    end = house.begin(case, folder, Fault("evaluation", 0, images=images)).wait()
    if end.code:
        require_sentence(end)
        raise Failure(f"an evaluation of {images} images at a time ended the run: {end.said}")
    if not events(folder, "memory"):
        raise Failure("too little memory for an evaluation was not told")
    return compared(folder, reference), events(folder, "memory")[0]


def clock_jump(house: House, case: Case, folder: Path, rng: np.random.Generator) -> Ending:
    """Forty years on or back."""
    reference, _, _ = house.whole(case)
    end = house.begin(case, folder, Fault("clock", a_tick(house, case, rng))).wait()
    if end.code:
        raise Failure(f"exit code {end.code}: {end.said[-1500:]}")
    return compared(folder, reference), ""


def read_only(house: House, case: Case, folder: Path, rng: np.random.Generator) -> Ending:
    """From a tick on the process may not write to the folder."""
    reference, _, _ = house.whole(case)
    return lasting(house, case, folder, rng, Fault("read-only", a_tick(house, case, rng)), reference)


def torchrun(house: House, verb: str, args: list[Any], options: dict[str, Any], rank: int, tick: int) -> dict[int, End]:
    """Two processes of a torchrun at work, one of which is killed at a tick (0: none); how they ended, by rank."""
    place = house.place / "torchrun"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    job = place / "job.json"
    job.write_text(json.dumps({"verb": verb, "args": args, "options": options, "rank": rank, "tick": tick}))
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    done = subprocess.run([*start, str(RANKS), str(job)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    if tick and not (place / "killed").exists():
        raise Failure(f"process {rank + 1} was not killed at tick {tick}: {done.stderr[-1500:]}")
    ends = {int(p.stem[-1]): End(**json.loads(p.read_text())) for p in place.glob("end-*.json")}
    if done.returncode and all(end.code == 0 for end in ends.values()):
        raise Failure(f"torchrun ended with {done.returncode}: {done.stderr[-1500:]}")
    return ends


def lost_worker(house: House, case: Case, folder: Path, rng: np.random.Generator) -> Ending:
    """One of two processes is killed, the writer or the other; torchrun starts both again."""
    if case.name not in house.shared:
        ends = torchrun(house, *case.job(folder), 0, 0)
        if ends.keys() != {0, 1} or any(end.code for end in ends.values()):
            raise Failure(f"the undisturbed run of two processes fails: {[e.said[-700:] for e in ends.values()]}")
        house.shared[case.name] = outcome(folder), ends
        shutil.rmtree(folder)
    reference, whole = house.shared[case.name]
    rank = int(rng.integers(2))
    rank = rank if whole[rank].ticks else 1 - rank  # where the writer works alone there is nothing to kill in the other
    ends = torchrun(house, *case.job(folder), rank, int(rng.integers(1, whole[rank].ticks + 1)))
    for end in ends.values():
        if end.code:
            require_sentence(end)
    if not (folder / "result.json").exists():
        ends = torchrun(house, "resume", [str(folder)], {}, 0, 0)
    return compared(folder, reference), " ".join(end.said for end in ends.values()).strip()


def two_processes(house: House, case: Case, folder: Path, rng: np.random.Generator) -> Ending:
    """A second process on the folder of a run is refused, and the run does not notice."""
    reference, _, _ = house.whole(case)
    first = house.begin(case, folder, Fault("SIGSTOP", a_tick(house, case, rng)))
    if first.stopped():
        house.note = house.place / "second.json"
        second = go_on(house, case, folder)
        house.note = house.place / "note.json"
        first.signal(signal.SIGCONT)
        if second.code == 0:
            if not (folder / "result.json").exists():
                raise Failure("a second process was let in")
        else:
            require_sentence(second)
    end = first.wait()
    if end.code:
        raise Failure(f"the first process ended with {end.code}: {end.said[-1500:]}")
    return compared(folder, reference), ""


FAULTS: dict[str, Callable[..., Ending]] = {
    "SIGKILL": sigkill,
    "SIGTERM": asked_to_stop(signal.SIGTERM),
    "Ctrl-C": asked_to_stop(signal.SIGINT),
    "disk full": disk_full,
    "checkpoint damaged": damaged_checkpoint,
    "database cut": damaged_database,
    "database locked": locked_database,
    "data changed": changed_data,
    "NaN in a batch": within_step("nan", "skip"),
    "out of memory in a step": within_step("memory", "memory"),
    "out of memory in an evaluation": small_memory,
    "clock jump": clock_jump,
    "read-only folder": read_only,
    "two processes": two_processes,
    "lost worker": lost_worker,
}
ONLY = {  # cases that a fault can happen to, or that take seconds where others take minutes
    "data changed": ("fixed, pictures",),
    "lost worker": ("fixed", "fixed, augmented", "fixed, batch norms", "finetune", "autoformer", "tf-tas"),
}
SLOW = {
    "contest": 0.1,
    "hat": 0.3,
    "s3": 0.3,
    "s4": 0.5,
    "s4, warm": 0.5,
    "tailor": 0.5,
}  # drawn less often than the others


def disturb(house: House, number: int, seed: int = 0, only: str = "") -> dict[str, Any]:
    """The fault of a number: which, in which case and when follow from (seed, number). Returns its row."""
    rng = generator(derive(seed, "fault", number), "fault")
    names = [only] if only else list(FAULTS)
    fault = names[number % len(names)]
    some = [n for n in house.cases if n in ONLY.get(fault, house.cases)] or list(house.cases)
    share = np.array([SLOW.get(n, 1.0) for n in some])
    name = some[int(rng.choice(len(some), p=share / share.sum()))]
    folder = house.place / f"run-{number}"
    began = time.monotonic()
    try:
        end, said = FAULTS[fault](house, house.cases[name], folder, rng)
    except Failure as failure:
        end, said = FAILED, str(failure)
    said = said.replace(str(house.place), "PLACE")
    row = {"number": number, "seed": seed, "fault": fault, "case": name, "end": end, "said": said}
    if end != FAILED:
        shutil.rmtree(folder, ignore_errors=True)
    return {**row, "seconds": round(time.monotonic() - began, 2)}
