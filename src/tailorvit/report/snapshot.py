"""Copies of a run folder that is still being written, and whether it changed."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DATABASE, WAL, JOURNAL = "run.db", "run.db-wal", "run.db-journal"
_HEAD = 32  # bytes of a WAL file's header: its salts change whenever the file starts from the beginning
_TRIES = 20
State = tuple[tuple[str, int, int], ...]


def folder_state(folder: Path) -> State | None:
    """Names, sizes and times of the files that a report reads; a change of it means a new report. None: no folder."""
    try:
        names = sorted(p for p in folder.iterdir() if p.name in (DATABASE, WAL) or _small(p))
    except OSError:
        return None
    return tuple((path.name, *state) for path in names if (state := _file_state(path)) is not None)


def _small(path: Path) -> bool:
    return path.suffix in (".json", ".toml") and not path.name.startswith(".")


@contextmanager
def snapshot(folder: Path) -> Iterator[Path]:
    """A private copy of what a report reads, under the same name, removed afterwards.

    SQLite itself leaves traces: a reader that is connected while the run ends keeps the writer from removing its WAL,
    and run.db-wal and run.db-shm then stay for good. Copying bytes leaves no trace and holds no lock.
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


def copy_database(folder: Path, to: Path) -> bool:
    """Copy run.db with its WAL so that both fit together; False when no quiet moment was found.

    They fit when the WAL did not start from the beginning in between: what a checkpoint moved into run.db meanwhile is
    still in the WAL, which SQLite reads first, and a half-written last frame fails its checksum and is ignored.
    """
    for _ in range(_TRIES):
        before, state = _head(folder / WAL), _file_state(folder / DATABASE)
        try:
            (to / WAL).unlink(missing_ok=True)
            shutil.copyfile(folder / DATABASE, to / DATABASE)
            if before:
                shutil.copyfile(folder / WAL, to / WAL)
        except OSError:
            state = None
        same = (before is not None and len(before) == _HEAD) or state == _file_state(folder / DATABASE)
        if state is not None and same and _head(folder / WAL) == before and not (folder / JOURNAL).exists():
            return True
        time.sleep(0.02)
    return False


def _head(path: Path) -> bytes | None:
    """The first bytes of a file, or None where there is no file."""
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except OSError:
        return None


def _file_state(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
