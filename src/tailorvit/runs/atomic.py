"""Files that are either whole or not there: write beside, flush to disk, rename."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

SUFFIX = ".tmp"


def _plain(value: Any) -> Any:
    """What json does not know: numpy and torch scalars, Arch and Space, paths, sets."""
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
    """JSON text, plain ASCII on one line or indented for people; arrays, architectures, spaces, paths may be inside."""
    return json.dumps(data, default=_plain, indent=indent, ensure_ascii=indent is None)


def write_bytes(path: Path, data: bytes, before: Callable[[], None] | None = None) -> None:
    """Write a file beside ``path``, call ``before``, take its place; on any failure the old file stays as it was."""
    beside = path.with_name(f".{path.name}.{os.getpid()}{SUFFIX}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if before is not None:
            before()
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames last through a power cut, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:  # some network file systems refuse to sync a folder; the rename itself has happened
        pass
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))  # file names may hold bytes that are no UTF-8


def write_json(path: Path, data: Any) -> None:
    """Replace a JSON file in one step."""
    write_text(path, dumps(data, indent=2) + "\n")


def sweep(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for leftover in folder.glob(f".*{SUFFIX}"):
        leftover.unlink(missing_ok=True)
