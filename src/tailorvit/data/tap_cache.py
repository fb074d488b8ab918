"""A trunk's outputs on disk: float16 rows by image, each with a checksum of its picture and of itself.

A row counts only where both checksums hold, so a killed, damaged or outdated cache mends itself row by row. Rows are
written, not mapped: a full disk is then an error to tell, where a mapped file would end the process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailorvit import units
from tailorvit.data.splits import Ints
from tailorvit.errors import TailorError
from tailorvit.runs.atomic import write_json

FORMAT = 1
FACTS = "cache.json"
_MARK = 3  # numbers per row: 1 once it is there, checksum of the picture, checksum of the row


def cache_root(given: str = "") -> Path:
    """The folder of all caches: the one given, TAILORVIT_CACHE, or the user's cache folder."""
    if given:
        return Path(given).expanduser()
    told = os.environ.get("TAILORVIT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(told or f"{base}/tailorvit").expanduser()


class TapCache:
    """Rows of one trunk on one source at one size; ``facts`` say which, ``shape`` what a row is."""

    def __init__(self, root: Path, facts: Mapping[str, Any], rows: int, shape: tuple[int, int, int]) -> None:
        self.facts = {"format": FORMAT, **facts, "rows": rows, "shape": list(shape)}
        key = hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()
        self.folder, self.rows, self.shape = root / f"taps-{key[:20]}", rows, shape
        self.row_bytes = 2 * int(np.prod(shape))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder):
                self.word = self._check()  # what there is to tell of the cache found
        except OSError as error:
            raise TailorError(f"The cache of trunk outputs cannot be kept in '{root}': {error}.") from None

    def _check(self) -> str:
        """Start anew where the folder is not what its name promises."""
        path = self.folder / FACTS
        try:
            same = json.loads(path.read_text(encoding="utf-8")) == self.facts
        except FileNotFoundError:
            same = not any(self.folder.glob("*.f16"))
        except ValueError:
            same = False
        for view in self.folder.glob("*.f16"):
            marks = view.with_suffix(".marks")
            whole = marks.is_file() and marks.stat().st_size == 4 * _MARK * self.rows
            same = same and whole and view.stat().st_size == self.row_bytes * self.rows
        if not same:
            for old in [*self.folder.glob("*.f16"), *self.folder.glob("*.marks")]:
                old.unlink()
        if not same or not path.is_file():
            write_json(path, self.facts)
        return "" if same else f"the cache in '{self.folder}' was damaged or another's and is computed anew"

    def _path(self, view: str, suffix: str) -> Path:
        """A file of a view, made full of holes when first needed; the marks come last, as rows hold only with them."""
        path = self.folder / f"{view}.{suffix}"
        if not path.is_file():
            for end, size in (("f16", self.row_bytes), ("marks", 4 * _MARK)):
                with (self.folder / f"{view}.{end}").open("ab") as file:
                    file.truncate(size * self.rows)
        return path

    def _marks(self, view: str) -> NDArray[np.uint32]:
        return np.memmap(self._path(view, "marks"), np.uint32, "r", shape=(self.rows, _MARK))

    def _taps(self, view: str) -> NDArray[np.float16]:
        return np.memmap(self._path(view, "f16"), np.float16, "r", shape=(self.rows, *self.shape))

    def there(self, view: str, ids: Ints) -> int:
        """How many of these rows are marked as written."""
        return int((self._marks(view)[ids, 0] == 1).sum())

    def read(self, view: str, ids: Ints) -> Tensor:
        """Rows as float16 (n, L, N, F); :meth:`fill` has to have seen them."""
        return torch.from_numpy(np.array(self._taps(view)[ids]))

    def fill(
        self,
        view: str,
        ids: Ints,
        pictures: Callable[[int, int], Tensor],
        compute: Callable[[Tensor], Tensor],
        batch: int,
        look: Callable[[int, int], None],
    ) -> dict[str, int]:
        """Make all rows of ``ids`` hold; ``pictures(from, to)`` are those of positions in ``ids``.

        Another process may fill at the same time: each batch is looked at and computed under a lock.
        """
        told = {"computed": 0, "found": 0, "mended": 0}
        for at in range(0, len(ids), batch):
            some = ids[at : at + batch]
            x = pictures(at, at + len(some))
            prints = np.array([zlib.crc32(p.numpy()) for p in x.contiguous()], np.uint32)
            with _locked(self.folder):
                bad, mended = self._unsound(view, some, prints)
                if len(bad):
                    rows = compute(x[torch.from_numpy(bad)]).numpy()
                    self._write(view, some[bad], rows, prints[bad])
            told["computed"] += len(bad)
            told["found"] += len(some) - len(bad)
            told["mended"] += mended
            look(at + len(some), len(ids))
        return told

    def _unsound(self, view: str, ids: Ints, prints: NDArray[np.uint32]) -> tuple[Ints, int]:
        """Positions whose rows do not hold, and how many of them claimed to."""
        marks, taps = self._marks(view)[ids], self._taps(view)
        there = marks[:, 0] == 1
        sound = there & (marks[:, 1] == prints)
        for k in np.flatnonzero(sound):
            sound[k] = zlib.crc32(taps[ids[k]]) == marks[k, 2]
        return np.flatnonzero(~sound).astype(np.int64), int((there & ~sound).sum())

    def _write(self, view: str, ids: Ints, rows: NDArray[np.float16], prints: NDArray[np.uint32]) -> None:
        try:
            with self._path(view, "f16").open("r+b", 0) as taps, self._path(view, "marks").open("r+b", 0) as marks:
                for i, row, seen in zip(ids.tolist(), rows, prints.tolist(), strict=True):
                    data = np.ascontiguousarray(row).tobytes()
                    mark = np.array([1, seen, zlib.crc32(data)], np.uint32).tobytes()
                    _put(taps.fileno(), data, i * self.row_bytes)
                    _put(marks.fileno(), mark, 4 * _MARK * i)
        except OSError as error:
            raise TailorError(f"The cache of trunk outputs in '{self.folder}' cannot be written: {error}.") from None

    def require_room(self, rows: int) -> None:
        """Refuse what the disk cannot hold, before anything is computed."""
        need, free = rows * self.row_bytes, shutil.disk_usage(self.folder).free
        if need > free:
            layers, tokens, width = self.shape
            raise TailorError(
                f"The trunk's outputs need {units.show(need, 'memory')} ({rows} images of {layers} layers, {tokens} "
                f"tokens, {width} channels) but '{self.folder.parent}' has {units.show(free, 'memory')} free; "
                "lower trunk.taps or data.image_size, or set trunk.cache to a folder with more room."
            )


def _put(file: int, data: bytes, place: int) -> None:
    """Write all of it at a place; a single call may write less."""
    done = 0
    while done < len(data):
        if sys.platform == "win32":
            os.lseek(file, place + done, os.SEEK_SET)
            done += os.write(file, data[done:])
        else:
            done += os.pwrite(file, data[done:], place + done)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait for the folder's lock and hold it; the system drops it when its holder dies."""
    file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.lockf(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in (
                    errno.ENOLCK,
                    errno.ENOTSUP,
                    errno.ENOSYS,
                ):  # no locks here: rows mend themselves
                    raise
        yield
    finally:
        os.close(file)
