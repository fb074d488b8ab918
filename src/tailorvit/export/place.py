"""Where an export goes: a whole folder or none, and never over files that are not ours."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailorvit.errors import TailorError

MARK = "tailorvit-export.json"  # lists what we wrote, so that nothing else is ever deleted


def require_free(out: Path) -> None:
    """Refuse a file, and a folder that holds anything but an earlier export."""
    try:
        if out.is_symlink() or (out.exists() and not out.is_dir()):
            raise TailorError(f"'{out}' is not a folder; an export needs a folder of its own.")
        if not out.exists():
            return
        inside = sorted(p.name for p in out.iterdir())
    except OSError as error:  # a name too long, a folder that may not be listed
        raise TailorError(f"Cannot write to '{out}': {error.strerror}.") from None
    try:
        ours = {*json.loads((out / MARK).read_text(encoding="utf-8"))["files"], MARK}
    except (OSError, LookupError, TypeError, ValueError):
        ours = set()
    # Python writes __pycache__ beside a network that was imported.
    foreign = [name for name in inside if name not in ours and name != "__pycache__"]
    if foreign:
        raise TailorError(f"'{out}' holds files that no export wrote (such as '{foreign[0]}'); choose another folder.")


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder to write into; it takes the place of ``out`` when all went well and vanishes otherwise."""
    require_free(out)
    out = out.absolute()
    beside, old = (out.with_name(f".{out.name}.{os.getpid()}.{end}") for end in ("tmp", "old"))
    try:
        try:
            beside.mkdir(parents=True)
        except OSError as error:
            raise TailorError(f"Cannot write to '{out}': {error.strerror}.") from None
        yield beside
        try:
            if out.exists():
                out.rename(old)
            beside.rename(out)
        except OSError as error:
            if old.exists() and not out.exists():
                old.rename(out)
            raise TailorError(f"Cannot write to '{out}': {error.strerror}.") from None
    finally:
        for left in (beside, old):
            shutil.rmtree(left, ignore_errors=True)
