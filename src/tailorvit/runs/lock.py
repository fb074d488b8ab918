"""One process per run folder: a lock that the system releases when its process ends."""

from __future__ import annotations

import os
from pathlib import Path

from tailorvit.descriptors import lock, open_file, read_at, write_at
from tailorvit.errors import TailorError

NAME = ".lock"
_held: set[str] = set()  # a process's lock does not exclude that process; this set does


class Lock:
    """Locks a folder until it is released.

    A lock of the process, not of the descriptor: that would pass to forked data workers, which may outlive a killed
    trainer.
    """

    def __init__(self, folder: Path) -> None:
        self._key = os.path.realpath(folder)
        if self._key in _held:
            raise TailorError(f"The run in '{folder}' is already open in this process.")
        self._file = open_file(folder / NAME, os.O_RDWR | os.O_CREAT)
        try:
            if lock(self._file, wait=False, owner="process") is False:  # None, no locks here: continue
                holder = read_at(self._file, 32, 0).decode("ascii", "replace").strip()
                who = f"process {holder}" if holder else "another process"
                raise TailorError(f"The run in '{folder}' is in use by {who}; wait for it or stop it first.")
            os.ftruncate(self._file, 0)
            write_at(self._file, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(self._file)
            raise
        _held.add(self._key)

    def release(self) -> None:
        """Release the folder; closing the file drops the lock."""
        if self._key in _held:
            _held.discard(self._key)
            os.close(self._file)
