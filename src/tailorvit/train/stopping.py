"""Ctrl-C and SIGTERM: a training ends its step and stores it first; all other work ends at once, as at a second signal.

A signal belongs to the process, and so does what this file remembers of it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# What Python does by default, and only that is replaced: a handler of somebody else's stays.
_DEFAULTS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
_came: list[int] = []  # signals since stoppable() began
_holding = False


class Stopped(KeyboardInterrupt):
    """The user (Ctrl-C) or the system (SIGTERM) ended the work; the text is the command that goes on with it."""

    def __init__(self, number: int = signal.SIGINT, command: str = "") -> None:
        super().__init__(command)
        self.number = int(number)

    @property
    def code(self) -> int:
        """The exit code: 130 or 143, as shells have it."""
        return 128 + self.number

    @property
    def who(self) -> str:
        """Who ended it, for the log."""
        return "by the system (SIGTERM)" if self.number == signal.SIGTERM else "by the user"


def _handle(number: int, frame: FrameType | None) -> None:
    _came.append(number)
    if not _holding or len(_came) > 1:
        raise Stopped(number)


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside, both signals raise :class:`Stopped`, in a training after its step; threads cannot take signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mine = [number for number, default in _DEFAULTS.items() if signal.getsignal(number) is default]
    for number in mine:
        signal.signal(number, _handle)
    hook = sys.unraisablehook
    sys.unraisablehook = lambda told: None if _came and "DataLoader worker" in str(told.exc_value) else hook(told)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number in mine:
            signal.signal(number, _DEFAULTS[number])
        _came.clear()


@contextmanager
def held() -> Iterator[None]:
    """Inside, the first signal only makes :func:`asked` true; one that nobody asked about is raised at the end."""
    global _holding
    before, _holding = _holding, True
    try:
        yield
    except RuntimeError as error:
        if _came:  # a signal to all processes has ended those that read the images
            raise Stopped(_came[0]) from error
        raise
    finally:
        _holding = before
    if _came and not before:
        raise Stopped(_came[0])


def asked() -> int:
    """The signal that has come, or 0."""
    return _came[0] if _came else 0
