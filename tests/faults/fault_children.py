"""Children that are disturbed: forked from a process that has everything imported, armed, and set to work.

A child counts its ticks: before and after every row and file it writes, and before every training step. The fault
happens at one of them.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sqlite3
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NOBODY = 65534
YEAR = 365.25 * 86400
MARK = "FAULT_MARK"  # names a file that is made when the fault happens
PATIENCE = 300.0  # seconds until a child hangs


@dataclass(frozen=True)
class Fault:
    """What happens to a child, and when."""

    kind: str = "none"
    tick: int = 0  # the tick it happens at; from then on for faults that last
    stage: str = ""  # of a NaN or too little memory
    step: int = 0
    images: int = 0  # that memory holds


@dataclass(frozen=True)
class End:
    """How a child ended."""

    code: int  # as the command line's; negative for a signal
    said: str = ""
    ticks: int = 0
    steps: tuple[tuple[str, int], ...] = ()  # (stage, step) of every training step


def work(verb: str, args: list[Any], options: dict[str, Any], fault: Fault) -> End:
    """Do a verb of the API; its end as the command line would have it."""
    from tailorvit import api
    from tailorvit.errors import TailorError
    from tailorvit.train.stopping import Stopped

    armed = Armed(fault)
    code, said = 0, ""
    try:
        getattr(api, verb)(*args, **options, progress="quiet")
    except Stopped as stop:
        code, said = stop.code, f"Stopped. Go on with: {stop}"
    except KeyboardInterrupt:  # before there is a run
        code, said = 130, "Stopped."
    except TailorError as error:
        code, said = 2, str(error)
    except OSError as error:  # as the command line does
        code, said = 2, f"Cannot read or write: {error.strerror or error}."
    except BaseException:
        code, said = 1, traceback.format_exc()
    return End(code, said, armed.ticks, tuple(armed.steps))


class Armed:
    """The hooks in a child."""

    def __init__(self, fault: Fault) -> None:
        self.fault, self.ticks, self.steps = fault, 0, list[tuple[str, int]]()
        self.full = False
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
        self._watch_rows()
        self._watch_files()
        self._watch_steps()
        if fault.kind == "evaluation":
            self._bound_evaluations()
        connect = sqlite3.connect
        sqlite3.connect = lambda *a, **k: connect(*a, **{**k, "timeout": 0.2})  # type: ignore[assignment]
        self.connect = connect

    def tick(self, at: Any = None) -> None:
        """Count; where it is the fault's tick, let it happen."""
        self.ticks += 1
        if self.ticks == self.fault.tick:
            self.happen(at)

    def happen(self, database: Any) -> None:
        """The faults that come from outside."""
        from tailorvit.runs import folder, tables

        kind, me = self.fault.kind, os.getpid()
        if mark := os.environ.get(MARK):
            Path(mark).touch()
        if kind in ("SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP"):
            os.kill(me, getattr(signal, kind))
        elif kind == "twice":
            os.kill(me, signal.SIGTERM)
            os.kill(me, signal.SIGINT)
        elif kind == "full":
            self.full = True
        elif kind == "limit":  # of a file's size: a real refusal by the system
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        elif kind == "read-only":
            os.seteuid(NOBODY)
        elif kind == "clock":
            real, jump = time.time, YEAR * (-40 if self.ticks % 2 else 40)
            time.time = lambda: real() + jump
            stamp = "1986-01-01T00:00:00+00:00" if jump < 0 else "2066-01-01T00:00:00+00:00"
            tables.now = folder.now = lambda: stamp
        elif kind == "locked" and self.path is not None:
            self.other = self.connect(self.path, isolation_level=None)
            self.other.execute("BEGIN IMMEDIATE")

    path: Path | None = None  # of the database

    def _watch_rows(self) -> None:
        from tailorvit.runs.database import Database

        write = Database.write

        def watched(database: Any, statement: str, rows: Any) -> None:
            if not database.readonly:
                self.path = database.path
            self.tick()
            if self.full and database._link is not None:
                database._link.execute("PRAGMA max_page_count=1")  # the size it has: then the database is full
            write(database, statement, rows)
            self.tick()

        Database.write = watched  # type: ignore[method-assign]

    def _watch_files(self) -> None:
        sync, replace = os.fsync, Path.replace

        def synced(handle: int) -> None:
            self.tick()
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(handle)

        def replaced(path: Path, target: Any) -> Path:
            self.tick()
            return replace(path, target)

        os.fsync, Path.replace = synced, replaced  # type: ignore[method-assign,assignment]

    def _watch_steps(self) -> None:
        import torch

        from tailorvit.train import loop

        loop.CHECKPOINT_SHARE = float("inf")  # every step may write one
        step, gradients, fault = loop.Trainer.step, loop.Trainer._add_gradients, self.fault

        def watched(trainer: Any, batch: Any) -> None:
            self.tick()
            here = getattr(trainer.sink, "stage", ""), trainer.state.meta["step"]
            self.steps.append(here)
            if fault.kind == "nan" and here == (fault.stage, fault.step):
                batch.x.reshape(-1)[0] = float("nan")
            step(trainer, batch)

        def bounded(trainer: Any, batch: Any, *rest: Any) -> Any:
            there = getattr(trainer.sink, "stage", ""), trainer.state.meta["step"] >= fault.step
            if there == (fault.stage, True) and len(batch.y) > fault.images:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has none.")
            return gradients(trainer, batch, *rest)

        loop.Trainer.step = watched  # type: ignore[method-assign]
        if fault.kind == "memory":
            loop.Trainer._add_gradients = bounded  # type: ignore[method-assign]

    def _bound_evaluations(self) -> None:
        from tailorvit.train.memory import Fitting

        begin, images = Fitting.__init__, self.fault.images

        def bounded(fitting: Any, call: Callable[..., Any], most: int = 0) -> None:
            def small(x: Any) -> Any:
                if len(x) > images:
                    raise MemoryError
                return call(x)

            begin(fitting, small, most)

        Fitting.__init__ = bounded  # type: ignore[method-assign]


# -- in the parent ----------------------------------------------------------------------------------------------------


class Child:
    """A forked child at work."""

    def __init__(self, verb: str, args: list[Any], options: dict[str, Any], fault: Fault, note: Path) -> None:
        self.note, self.began = note, time.monotonic()
        note.unlink(missing_ok=True)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                end = work(verb, args, options, fault)
                if os.getuid() == 0:
                    os.seteuid(0)  # to be able to write the note
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
                handle = os.open(note, os.O_WRONLY | os.O_CREAT, 0o600)
                os.write(handle, json.dumps(asdict(end)).encode())
                os.close(handle)
                os._exit(end.code)
            finally:
                os._exit(99)

    def signal(self, number: int) -> None:
        """Send a signal; the child is still there, as nobody has waited for it."""
        os.kill(self.pid, number)

    def stopped(self) -> bool:
        """Wait until the child stops itself or ends; whether it has stopped."""
        while True:
            pid, status = os.waitpid(self.pid, os.WUNTRACED)
            if pid:
                self._status = None if os.WIFSTOPPED(status) else status
                return os.WIFSTOPPED(status)

    _status: int | None = None

    def wait(self) -> End:
        """How it ended; one that hangs is killed."""
        while self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = status
            elif time.monotonic() - self.began > PATIENCE:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return End(98, f"It hung for {PATIENCE:.0f} seconds.")
            else:
                time.sleep(0.002)
        code = os.waitstatus_to_exitcode(self._status)
        if code < 0 or not self.note.exists():
            return End(code)
        return End(**json.loads(self.note.read_text()))
