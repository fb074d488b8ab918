"""Callbacks: what a program is told while a run goes on.

A run tells of what it has just stored, from the few places that store it. What is stored already, as in a resumed run,
is not told again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailorvit.errors import TailorError
from tailorvit.rng import preserved_state


@dataclass(frozen=True)
class RunInfo:
    """What a callback is told of a run that begins."""

    folder: Path
    method: str  # of a task's run: the task; of a study: study
    recipe: Mapping[str, Any]  # resolved: every setting of the run
    info: Mapping[str, Any]  # what info.json holds: command, versions, seed, data
    resumed: bool


class Callback:
    """The events of a run; override those of interest. Each is called in the process that writes the run."""

    def run_begins(self, info: RunInfo) -> None:
        """Everything is checked and the folder is there; the work begins, or goes on."""

    def stage_begins(self, stage: str) -> None:
        """Work on a stage begins in this process; a stage that is worked on in pieces begins with each of them."""

    def epoch_ends(self, stage: str, epoch: int, facts: Mapping[str, Any]) -> None:
        """An epoch of a training has ended; the facts are its figures, such as ``loss``."""

    def trial(self, stage: str, facts: Mapping[str, Any]) -> None:
        """An architecture was evaluated: ``number`` (from 1, in its stage), ``arch``, ``accuracy``, ``params``, ..."""

    def decision(self, t: int, facts: Mapping[str, Any]) -> None:
        """The search of the space has decided how to move at step t."""

    def message(self, kind: str, text: str) -> None:
        """An event went to the log, such as a warning."""

    def stage_ends(self, stage: str, seconds: float) -> None:
        """The work that ``stage_begins`` told of has ended; not told where it failed."""

    def run_ends(self, result: Mapping[str, Any]) -> None:
        """The run has ended; result and report are written."""

    def failed(self, error: BaseException) -> None:
        """The run has failed, or was stopped (KeyboardInterrupt); it can be resumed."""


class Hooks:
    """The callbacks of one run. One that raises is switched off, and a warning says so; the run goes on."""

    def __init__(self, callbacks: Sequence[Callback] = (), report: Callable[[str], None] | None = None) -> None:
        self._active, self._report = list(callbacks), report

    def __bool__(self) -> bool:
        return bool(self._active)

    def tell(self, event: str, *facts: Any) -> None:
        """Call every callback; the generators and flags that the run draws on stay as they are."""
        for callback in list(self._active):
            try:
                with preserved_state():
                    getattr(callback, event)(*facts)
            except Exception as error:
                self._switch_off(callback, event, error)

    def _switch_off(self, callback: Callback, event: str, error: Exception) -> None:
        # By identity: a callback may compare as it likes. Off before the report, which is an event as well.
        self._active = [c for c in self._active if c is not callback]
        name = type(callback).__name__
        if self._report is not None:
            with contextlib.suppress(Exception):  # as on a full disk: no reason to end the run here
                self._report(f"The callback {name} failed in {event} ({type(error).__name__}: {error}); it is off now.")


def checked(callbacks: Sequence[Any]) -> tuple[Callback, ...]:
    """The callbacks, each an object of :class:`Callback`."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            hint = f"; make an object of it: {callback.__name__}()" if isinstance(callback, type) else ""
            raise TailorError(f"A callback must be an object of tailorvit.Callback, not {callback!r}{hint}.")
    return tuple(callbacks)
