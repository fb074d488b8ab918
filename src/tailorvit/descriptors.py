"""Open files by their descriptor on every system: reading and writing at a place, and locks.

Windows has neither ``os.pread`` nor ``os.pwrite`` nor ``fcntl``: there a read or write seeks first, and a lock is one
byte far behind the content, since on Windows nobody else could read a byte that is locked.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # of a file system without locks
_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
_BYTE = 1 << 30  # the one that is locked where there is no fcntl
_PAUSE = 0.02  # seconds between two tries there
_place = threading.Lock()  # seeking and reading are two calls there


def _fcntl() -> Any:
    try:
        return import_module("fcntl")
    except ImportError:
        return None


def open_file(path: Path | str, flags: int) -> int:
    """A descriptor of a file of bytes; Windows would translate the ends of lines."""
    return os.open(path, flags | getattr(os, "O_BINARY", 0), 0o644)


def read_at(file: int, size: int, at: int) -> bytes:
    """At most so many bytes from an offset."""
    if hasattr(os, "pread"):
        return os.pread(file, size, at)
    with _place:
        os.lseek(file, at, os.SEEK_SET)
        return os.read(file, size)


def write_at(file: int, data: bytes | memoryview, at: int) -> None:
    """Write all of it at an offset; a single call may write less."""
    view = memoryview(data)
    while view:
        if hasattr(os, "pwrite"):
            count = os.pwrite(file, view, at)
        else:
            with _place:
                os.lseek(file, at, os.SEEK_SET)
                count = os.write(file, view)
        view, at = view[count:], at + count


def lock(file: int, wait: bool, owner: Literal["process", "descriptor"]) -> bool | None:
    """Whether the lock was taken; None where the file system has no locks. The system frees it when its holder dies.

    A lock of a process is not inherited by forked ones and does not exclude its own; one of a descriptor is the other
    way round. Windows has the second kind, and nothing forks there.
    """
    fcntl = _fcntl()
    if fcntl is None:
        return _lock_byte(import_module("msvcrt"), file, wait)
    take = fcntl.lockf if owner == "process" else fcntl.flock
    try:
        take(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if error.errno not in NO_LOCKS:
            raise
        return None
    return True


def unlock(file: int, owner: Literal["process", "descriptor"]) -> None:
    """Free a lock; unlike closing, this frees one that a forked process has inherited."""
    fcntl = _fcntl()
    try:
        if fcntl is None:
            msvcrt = import_module("msvcrt")
            _at_byte(msvcrt, file, msvcrt.LK_UNLCK)
        else:
            (fcntl.lockf if owner == "process" else fcntl.flock)(file, fcntl.LOCK_UN)
    except OSError:
        pass


def _lock_byte(msvcrt: ModuleType, file: int, wait: bool) -> bool:
    while True:
        try:
            _at_byte(msvcrt, file, msvcrt.LK_NBLCK)  # the form that waits gives up after ten seconds
            return True
        except OSError as error:
            if error.errno not in _HELD:
                raise
        if not wait:
            return False
        time.sleep(_PAUSE)


def _at_byte(msvcrt: ModuleType, file: int, mode: int) -> None:
    with _place:
        os.lseek(file, _BYTE, os.SEEK_SET)
        msvcrt.locking(file, mode, 1)
