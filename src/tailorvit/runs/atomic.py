"""Files that are either complete or absent: write a temporary file, flush it to disk, rename it."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SUFFIX = ".tmp"
TRIES, PAUSE = 50, 0.02  # of a rename on Windows, with seconds between them


def _plain(value: Any) -> Any:
    """The JSON form of numpy and torch scalars, Arch and Space, paths and sets."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def dumps(data: Any, indent: int | None = None) -> str:
    """JSON text: ASCII on one line, or indented for people. It may hold arrays, architectures, spaces and paths."""
    return json.dumps(data, default=_plain, indent=indent, ensure_ascii=indent is None)


def write_bytes(path: Path, data: bytes, before: Callable[[], None] | None = None) -> None:
    """Write a temporary file, call ``before``, rename it to ``path``; on any failure the old file stays unchanged."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{SUFFIX}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if before is not None:
            before()
        rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def rename(path: Path, to: Path) -> None:
    """Rename a file over another; Windows refuses that for the moment in which somebody reads the other."""
    for _ in range(TRIES if sys.platform == "win32" else 0):
        try:
            path.replace(to)
            return
        except PermissionError:
            time.sleep(PAUSE)
    path.replace(to)


def sync_folder(folder: Path) -> None:
    """Make renames survive a power cut, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:  # some network file systems refuse to sync a folder; the rename itself is done
        pass
    finally:
        os.close(handle)


def disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one it came from, is about a full disk or quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if isinstance(error, sqlite3.Error) and "disk is full" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))  # file names may hold bytes that are not UTF-8


def write_json(path: Path, data: Any) -> None:
    """Replace a JSON file in one step."""
    write_text(path, dumps(data, indent=2) + "\n")


def sweep(folder: Path) -> None:
    """Remove temporary files that a killed process left."""
    for leftover in folder.glob(f".*{SUFFIX}"):
        leftover.unlink(missing_ok=True)
