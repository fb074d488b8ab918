"""What the tests of several processes run, in one process or in each of a torchrun's: ``ranks_work.py FOLDER``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import tailorvit
from tailorvit import ranks
from tailorvit.train.loop import Trainer

DROPS = {"train.drop_path": 0.3, "final.train.drop_path": 0.3, "train.checkpoint_seconds": 0.0}
FEW = {"data.limit": 60, "train.batch": 30, "final.train.batch": 30, "analysis.images": 0, "analysis.mistakes": 0}
FULL = {"train.precision": "fp32", "final.train.precision": "fp32"}  # sums in another order must stay close
BEST = {"train.class_weights": "balanced", "train.keep": "best", "train.patience": 1}
RUNS: dict[str, dict[str, Any]] = {
    # A supernet with drop path, the errors of its space, evolution by generations, a last training.
    "supernet": {"recipe": "autoformer-digits", "settings": {**DROPS, "analysis.samples": 6, "train.batch": 63}},
    # Batch norms; the first attempt loses a process in the middle of the third epoch.
    "hybrid": {
        "recipe": "autoformer-digits",
        "method": "fixed",
        "settings": {**FEW, **DROPS, "family": "hybrid", "final.train.epochs": 3, "train.epochs": 3},
    },
    # Steps as recordings, which on a CPU are the work itself: the sum over processes goes between two of them.
    "recorded": {"recipe": "autoformer-digits", "method": "fixed", "settings": {**FEW, **DROPS, **BEST}},
    "contest": {
        "recipe": "image-folder",
        "data": "digits",
        "settings": {**FEW, **FULL, "family": "pit", "final.train.augment": "auto"},
    },
    "survey": {"recipe": "s4-digits", "settings": {**FEW, "seek.evaluator": "training"}},
    "scores": {"recipe": "tftas-digits", "settings": {**FEW, "proxy.candidates": 20}},
}


def begin(name: str, folder: Path) -> tailorvit.Result:
    """One of the runs."""
    recorded = mock.patch("tailorvit.train.loop.can_record", lambda *_: name == "recorded")
    with recorded:
        return tailorvit.run(**RUNS[name], tiny=True, out=folder / name, progress="quiet")


def lose_a_process() -> None:
    """The second process dies in the middle of an epoch, once."""
    inner = Trainer.step

    def step(self: Trainer, batch: Any) -> None:
        if "Hybrid" in type(self.model).__name__ and self.state.meta["step"] == 2 * self.batches.steps_per_epoch + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        inner(self, batch)

    if ranks.rank() == 1 and not ranks.restarted():
        Trainer.step = step  # type: ignore[method-assign]


if __name__ == "__main__":
    with ranks.joined():
        lose_a_process()
        for run in RUNS:
            begin(run, Path(sys.argv[1]))
    ranks.leave(0)
