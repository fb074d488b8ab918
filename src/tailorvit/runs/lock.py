"""One process per run folder: a lock that the system releases when its process ends."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from tailorvit.errors import TailorError

NAME = ".lock"
_held: set[str] = set()  # record locks do not exclude their own process; this set does


class Lock:
    """Locks a folder until it is released.

    A record lock, not flock: flock would pass to forked data workers, which may outlive a killed trainer.
    """

    def __init__(self, folder: Path) -> None:
        self._key = os.path.realpath(folder)
        if self._key in _held:
            raise TailorError(f"The run in '{folder}' is already open in this process.")
        path = folder / NAME
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _take(self._file):
                holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip()
                who = f"process {holder}" if holder else "another process"
                raise TailorError(f"The run in '{folder}' is in use by {who}; wait for it or stop it first.")
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(self._file)
            raise
        _held.add(self._key)

    def release(self) -> None:
        """Release the folder; closing the file drops the lock."""
        if self._key in _held:
            _held.discard(self._key)
            os.close(self._file)


def _take(file: int) -> bool:
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):  # a file system without locks: continue
            raise
    return True
