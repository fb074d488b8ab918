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

    Who makes a file locks it while it is unfinished; others wait for that lock. A file that is removed stays readable
    for those who have it open, and its space is free once they close it.
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
            file = os.open(self.folder / name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        os.utime(file)  # the youngest now
        return file

    def open(self, name: str, need: int, make: Callable[[int], int]) -> int:
        """A new descriptor of a file; ``make`` writes it if it is missing, about ``need`` bytes, and counts them."""
        while (file := self.get(name)) is None:
            self._make(name, need, make)
        return file

    def drop(self, name: str) -> None:
        """Remove a file that is needed no more."""
        (self.folder / name).unlink(missing_ok=True)

    def _make(self, name: str, need: int, make: Callable[[int], int]) -> None:
        """Make the file, or wait until another process has made it or given up."""
        path = self.folder / name
        partial = path.with_name(name + PARTIAL)
        file = os.open(partial, os.O_RDWR | os.O_CREAT, 0o644)
        locked = False
        try:
            locked = _lock(file, wait=True)
            if not _is_at(file, partial):
                return  # it was finished or given up while this process waited
            if path.exists():
                partial.unlink(missing_ok=True)
                return
            os.ftruncate(file, 0)  # what a killed process left
            self._make_room(need, file)
            written = make(file)
            os.ftruncate(file, written)
            if written > need:
                self._make_room(0, None)
            os.fsync(file)  # a power cut must not leave a whole file of zeros
            with _folder_lock(self.folder):  # or who counts what is there could miss it under both names
                partial.replace(path)
        except BaseException as error:
            if locked:
                partial.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise TailorError(
                    f"The disk of '{self.folder}' is full: set data.disk_cache below its "
                    f"{units.show(self.limit, 'memory')}, or TAILORVIT_CACHE to a folder on a larger disk."
                ) from error
            raise
        finally:
            if locked:
                _unlock(file)
            os.close(file)

    def _make_room(self, need: int, file: int | None) -> None:
        """Remove the oldest files until there is room, and take it for the file."""
        if need > self.limit:
            sizes = (units.show(value, "memory") for value in (need, self.limit))
            raise TailorError("A shard takes {} of disk, more than data.disk_cache ({}): set it higher.".format(*sizes))
        while True:
            with _folder_lock(self.folder):
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
                if entry.is_file() and entry.name != LOCK:
                    status = entry.stat()
                    found.append((status.st_mtime_ns, status.st_size, Path(entry.path)))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total + need <= self.limit:
                break
            if path.name.endswith(PARTIAL) and not _abandoned(path):
                continue
            path.unlink(missing_ok=True)
            total -= size
        return total + need <= self.limit


# -- locks ------------------------------------------------------------------------------------------------------------
#
# flock, not record locks: several threads of a process fetch, and record locks do not exclude their own process. A
# forked worker inherits a lock that its parent holds at that moment; unlocking, unlike closing, frees it for all.

LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # a file system without locks: files may be made twice


def _lock(file: int, wait: bool) -> bool:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if error.errno not in _NO_LOCKS:
            raise
        return wait
    return True


def _unlock(file: int) -> None:
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(file, wait=True)
        yield
    finally:
        _unlock(file)
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _abandoned(path: Path) -> bool:
    """Whether nobody is making this unfinished file: a killed process left it."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        free = _lock(file, wait=False)
        if free:
            _unlock(file)
        return free
    finally:
        os.close(file)
