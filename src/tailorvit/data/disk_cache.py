"""Files kept on disk up to a number of bytes: fetched once for all processes of a machine, the oldest removed."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

from tailorvit import units
from tailorvit.descriptors import lock, open_file, unlock
from tailorvit.errors import TailorError

DISK_BYTES = 100 << 30
PARTIAL = ".part"  # the end of an unfinished file's name
_limit: ContextVar[int] = ContextVar("bytes of shards kept on disk", default=DISK_BYTES)


@contextlib.contextmanager
def bounded(limit: int) -> Iterator[None]:
    """Caches made inside hold at most so many bytes."""
    token = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(token)


def cache_root() -> Path:
    """The folder of all caches: TAILORVIT_CACHE, or tailorvit in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("TAILORVIT_CACHE") or f"{base}/tailorvit").expanduser()


class DiskCache:
    """Files by name. A file is there whole or not at all, and the least recently opened make room for new ones.

    Who makes a file locks its name, and others wait for that lock. A file that is removed stays readable for those who
    have it open, and its space is free once they close it; Windows keeps it until then, and a later removal takes it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.limit = folder, _limit.get()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TailorError(f"Shards cannot be kept in '{folder}': {error}.") from None

    def get(self, name: str) -> int | None:
        """A new descriptor of a file; None where it is not there."""
        try:
            file = open_file(self.folder / name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with contextlib.suppress(OSError):  # removed just now, or in use elsewhere
            os.utime(self.folder / name)  # the youngest now
        return file

    def open(self, name: str, need: int, make: Callable[[int], int]) -> int:
        """A new descriptor of a file; ``make`` writes it if it is missing, about ``need`` bytes, and counts them."""
        while (file := self.get(name)) is None:
            self._make(name, need, make)
        return file

    def drop(self, name: str) -> None:
        """Remove a file that is needed no more."""
        _remove(self.folder / name)

    def _make(self, name: str, need: int, make: Callable[[int], int]) -> None:
        """Make the file, or wait until another process has made it or given up."""
        path = self.folder / name
        partial = path.with_name(name + PARTIAL)
        with _locked(self.folder, name):
            if path.exists():
                return  # it was finished while this process waited
            try:
                file = open_file(partial, os.O_RDWR | os.O_CREAT)
                try:
                    os.ftruncate(file, 0)  # what a killed process left
                    self._make_room(need, file)
                    written = make(file)
                    os.ftruncate(file, written)
                    if written > need:
                        self._make_room(0, None)
                    os.fsync(file)  # a power cut must not leave a whole file of zeros
                finally:
                    os.close(file)  # Windows renames no open file
                with _locked(self.folder):  # or who counts what is there could miss it under both names
                    partial.replace(path)
            except BaseException as error:
                _remove(partial)
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise TailorError(
                        f"The disk of '{self.folder}' is full: set data.disk_cache below its "
                        f"{units.show(self.limit, 'memory')}, or TAILORVIT_CACHE to a folder on a larger disk."
                    ) from error
                raise

    def _make_room(self, need: int, file: int | None) -> None:
        """Remove the oldest files until there is room, and take it for the file."""
        if need > self.limit:
            sizes = (units.show(value, "memory") for value in (need, self.limit))
            raise TailorError("A shard takes {} of disk, more than data.disk_cache ({}): set it higher.".format(*sizes))
        while True:
            with _locked(self.folder):
                if self._evicted(need):
                    if file is not None:
                        os.ftruncate(file, need)
                    return
            time.sleep(0.05)  # all that is left is being made by others, who will be done

    def _evicted(self, need: int) -> bool:
        """Whether there is room now."""
        found = []
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):  # given up or dropped just now
                if entry.is_file():
                    status = entry.stat()
                    found.append((status.st_mtime_ns, status.st_size, Path(entry.path)))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total + need <= self.limit:
                break
            if path.name.endswith(PARTIAL) and not self._abandoned(path.name.removesuffix(PARTIAL)):
                continue
            _remove(path)
            total -= size
        return total + need <= self.limit

    def _abandoned(self, name: str) -> bool:
        """Whether nobody is making this unfinished file: a killed process left it."""
        file = _lock_file(self.folder, name)
        try:
            free = lock(file, wait=False, owner="descriptor") is True
            if free:
                unlock(file, "descriptor")
            return free
        finally:
            os.close(file)


def _remove(path: Path) -> None:
    """Remove a file that may be gone, or open elsewhere, which Windows does not allow."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        path.unlink()


# -- locks ------------------------------------------------------------------------------------------------------------
#
# Locks of descriptors: several threads of a process fetch, and those of a process do not exclude it. Each name has a
# file for its lock, which stays: one that is removed or renamed could be locked twice.

LOCKS = ".locks"  # the folder of those files
_WHOLE = ".folder"  # the name whose lock is that of the whole cache


def _lock_file(folder: Path, name: str) -> int:
    (folder / LOCKS).mkdir(exist_ok=True)
    return open_file(folder / LOCKS / name, os.O_RDWR | os.O_CREAT)


@contextlib.contextmanager
def _locked(folder: Path, name: str = _WHOLE) -> Iterator[None]:
    """Wait for a lock and hold it; on a file system without locks files may be made twice."""
    file = _lock_file(folder, name)
    try:
        lock(file, wait=True, owner="descriptor")
        yield
    finally:
        unlock(file, "descriptor")
        os.close(file)
