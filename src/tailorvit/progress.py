"""What a person sees while a run goes on: a live bar, plain lines for logs, or nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tailorvit.errors import unknown
from tailorvit.texts import shown

Mode = Literal["rich", "plain", "quiet"]


class Progress:
    """Quiet: says nothing. The other modes override."""

    ends_at: float | None = None  # when the whole run should end, by the monotonic clock; None where nobody knows

    def left(self) -> str:
        """How long the whole run still takes, in words; nothing where nobody knows."""
        if self.ends_at is None:
            return ""
        seconds = max(0.0, self.ends_at - time.monotonic())
        return f"  run: {seconds:.0f} s left" if seconds < 90 else f"  run: {seconds / 60:.0f} min left"

    def say(self, text: str) -> None:
        """One line of news."""

    def step(self, what: str, done: int, total: int, facts: Mapping[str, Any]) -> None:
        """A step of some piece of work has ended."""

    def close(self) -> None:
        """The work is over."""


def _figures(facts: Mapping[str, Any]) -> str:
    words = []
    if "loss" in facts:
        words.append(f"loss {facts['loss']:.3f}")
    if "accuracy" in facts:
        words.append(f"accuracy {facts['accuracy']:.1f} %")
    if "images_per_second" in facts:
        words.append(f"{facts['images_per_second']:,.0f} img/s")
    return "  ".join(words)


class PlainProgress(Progress):
    """Lines without control codes, at most one every few seconds."""

    def __init__(self, every: float = 10.0) -> None:
        self.every, self._last, self._what = every, 0.0, ""

    def say(self, text: str) -> None:
        """Print the line; where nobody reads any more, the run goes on without a word."""
        try:
            print(shown(text, lines=True), flush=True)
        except BrokenPipeError:
            sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - to the end of the process

    def step(self, what: str, done: int, total: int, facts: Mapping[str, Any]) -> None:
        """Print now and then, and at the end."""
        now = time.monotonic()
        if done == total or what != self._what or now - self._last > self.every:
            self._last, self._what = now, what
            self.say(f"{what}: {done}/{total}  {_figures(facts)}{self.left()}")


class RichProgress(Progress):
    """A live bar with the step, the figures and the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description:<14}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=False),
            transient=True,
        )
        self._task: Any = None
        self._what = ""
        self._bars.start()

    def say(self, text: str) -> None:
        """Print above the bar."""
        self._bars.console.print(shown(text, lines=True), highlight=False, markup=False)

    def step(self, what: str, done: int, total: int, facts: Mapping[str, Any]) -> None:
        """Move the bar; a new piece of work gets a new bar."""
        if what != self._what:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._what, self._task = what, self._bars.add_task(what, total=total, figures="")
        self._bars.update(self._task, completed=done, total=total, figures=_figures(facts) + self.left())

    def close(self) -> None:
        """Take the bar away."""
        self._bars.stop()


def make_progress(mode: Mode | None = None) -> Progress:
    """By mode; without one, a live bar on a terminal and plain lines elsewhere."""
    mode = mode or ("rich" if sys.stdout.isatty() else "plain")
    kinds: dict[Mode, type[Progress]] = {"rich": RichProgress, "plain": PlainProgress, "quiet": Progress}
    if mode not in kinds:
        raise unknown("progress", mode, kinds)
    return kinds[mode]()
