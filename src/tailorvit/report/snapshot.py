"""A snapshot: a private copy of what a report reads, taken without opening the run's database in its place."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tailorvit.errors import TailorError
from tailorvit.report.facts import Facts, collect

DATABASE, WAL, JOURNAL = "run.db", "run.db-wal", "run.db-journal"
_HEAD = 32  # bytes of a WAL file's header: its salts change whenever the file is begun anew
_TRIES = 20
Mark = tuple[tuple[str, int, int], ...]


def mark(folder: Path) -> Mark | None:
    """What tells one state of a folder from the next, by file times and sizes only; None when there is no folder."""
    try:
        names = sorted(p for p in folder.iterdir() if p.name in (DATABASE, WAL) or _small(p))
    except OSError:
        return None
    found = []
    for path in names:
        with contextlib.suppress(OSError):  # gone between the two looks
            facts = path.stat()
            found.append((path.name, facts.st_size, facts.st_mtime_ns))
    return tuple(found)


def _small(path: Path) -> bool:
    return path.suffix in (".json", ".toml") and not path.name.startswith(".")


@contextmanager
def snapshot(folder: Path) -> Iterator[Path]:
    """A copy of the run to read from, of the same name, gone afterwards.

    SQLite itself leaves traces: a reader that is connected while the run ends keeps the writer from folding its WAL
    away, and run.db-wal and run.db-shm then stay for good. Copying bytes leaves none and holds no lock.
    """
    with tempfile.TemporaryDirectory(prefix="tailorvit-") as place:
        copy = Path(place) / (folder.resolve().name or "run")
        copy.mkdir()
        for path in folder.iterdir():
            if _small(path) and path.is_file():  # each of these is replaced in one step, so never half-written
                with contextlib.suppress(OSError):
                    shutil.copyfile(path, copy / path.name)
        if (folder / DATABASE).is_file():
            copy_database(folder, copy)
        yield copy


def read(folder: Path) -> Facts:
    """The facts of a run, from a snapshot; sentences name the folder itself."""
    if not folder.is_dir():
        raise TailorError(f"'{folder}' is not a run folder: there is no such folder.")
    with snapshot(folder) as copy:
        try:
            facts = collect(copy)
        except TailorError as error:
            raise TailorError(str(error).replace(str(copy), str(folder))) from error
        told = tuple(s.replace(str(copy), str(folder)) for s in facts.missing)
        return replace(facts, folder=folder.resolve().name, missing=told)


def copy_database(folder: Path, to: Path) -> bool:
    """Copy run.db with its WAL so that both fit together; False when no quiet moment was found.

    They fit when the WAL was not begun anew in between: whatever a checkpoint moved into run.db meanwhile is still
    in the WAL, which SQLite reads first, and a half-written last frame fails its checksum and is left out.
    """
    for _ in range(_TRIES):
        before, state = _head(folder / WAL), _state(folder / DATABASE)
        try:
            (to / WAL).unlink(missing_ok=True)
            shutil.copyfile(folder / DATABASE, to / DATABASE)
            if before:
                shutil.copyfile(folder / WAL, to / WAL)
        except OSError:
            state = None
        same = (before is not None and len(before) == _HEAD) or state == _state(folder / DATABASE)
        if state is not None and same and _head(folder / WAL) == before and not (folder / JOURNAL).exists():
            return True
        time.sleep(0.02)
    return False


def _head(path: Path) -> bytes | None:
    """The first bytes of a file; None when there is none."""
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except OSError:
        return None


def _state(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns
