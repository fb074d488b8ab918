"""Stages: the named pieces of work of a run, whose weights, epochs and messages lie in its folder.

What the methods and the tasks share. A finished stage answers from the folder, a training goes on from its checkpoint.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit.errors import TailorError
from tailorvit.progress import Progress
from tailorvit.runs import Run
from tailorvit.train import Sink
from tailorvit.train.loop import Trained


class Stages:
    """A run's folder and screen, and what is done stage by stage."""

    def __init__(self, run: Run, progress: Progress, seed: int, device: str) -> None:
        self.run, self.progress, self.seed, self.device = run, progress, seed, device

    def failed(self) -> int:
        """How many images could not be read so far; :meth:`note_skipped` tells them."""
        return 0

    def note_skipped(self) -> None:
        """Tell which images were left out."""

    # -- messages -----------------------------------------------------------------------------------------------------

    def log(self, kind: str, text: str, **data: Any) -> None:
        """Store an event and show it."""
        self.run.event(kind, text, **data)
        self.progress.say(text)

    def log_once(self, kind: str, text: str, **data: Any) -> None:
        """As :meth:`log`, but not a second time when a resumed run comes to the same point."""
        if text not in {e["text"] for e in self.run.events(kind)}:
            self.log(kind, text, **data)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of a piece of work to its stage, also when it is interrupted."""
        self.run.hooks.tell("stage_begins", stage)
        begin = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - begin
            self.run.spend(stage, seconds)
        self.run.hooks.tell("stage_ends", stage, seconds)

    # -- stages -------------------------------------------------------------------------------------------------------

    def trained(self, model: nn.Module, stage: str, work: Callable[[Sink], Trained]) -> nn.Module:
        """The network after the training of a stage, which is done once: a finished stage gives its weights back."""
        if self.load_stage(model, stage):
            return model.to(self.device).eval()
        if self.run.result(stage) is not None:
            self.log("warning", f"{stage}: its weights are gone, so it is trained again.")
        with self.timed(stage):
            sink = StageSink(self, stage)
            trained = work(sink)
            # The checkpoint of a finished stage holds its weights, without the optimiser.
            facts: dict[str, Any] = {
                "loss": trained.loss,
                "skipped": trained.skipped,
                "rollbacks": trained.rollbacks,
                **({} if trained.kept is None else {"kept": trained.kept}),
            }
            self.save_stage(model, stage, facts, sink.epochs)
        self.run.finish(stage, facts)
        return model

    def kept(self, stage: str) -> dict[str, Any]:
        """Which epoch's weights a finished training has, for result.json; empty where it kept the last."""
        kept = (self.run.result(stage) or {}).get("kept")
        return {} if kept is None else {"kept": dict(kept)}

    def load_stage(self, model: nn.Module, stage: str) -> bool:
        """Load a finished stage's weights; False where there are none."""
        checkpoint = self.run.load_checkpoint(stage)
        if checkpoint is None or not checkpoint[1].get("done"):
            return False
        load_weights(model, checkpoint[0])
        self.run.finish(stage, checkpoint[1]["done"])
        self.require_epochs(stage, checkpoint[1])
        return True

    def require_epochs(self, stage: str, meta: Mapping[str, Any]) -> None:
        """Say where the database has lost epochs that a checkpoint comes after: a cut file drops its last rows."""
        wanted = int(meta.get("epochs", 0))
        lost = wanted - len({row["epoch"] for row in self.run.epochs(stage)} & set(range(1, wanted + 1)))
        if lost:
            self.log_once(
                "warning",
                f"{stage}: the database has lost {lost} of {wanted} epochs, as where its file was cut; "
                "weights and accuracies are not affected, the curves of the report are.",
            )

    def read_weights(self, model: nn.Module, stage: str) -> None:
        """Put the weights a stage ended with into a network."""
        load_weights(model, self.stored_weights(stage))

    def stored_weights(self, stage: str) -> dict[str, Tensor]:
        """The weights a stage ended with."""
        checkpoint = self.run.load_checkpoint(stage)
        if checkpoint is None:
            raise TailorError(f"The weights of stage '{stage}' are gone from the run folder; begin the run anew.")
        return checkpoint[0]

    def save_stage(self, model: nn.Module, stage: str, facts: Mapping[str, Any], epochs: int = 0) -> None:
        """Store a finished stage's weights, with the facts it ends with and the epochs that the database has of it."""
        weights = {f"model/{n}": t for n, t in model.state_dict().items()}
        self.run.save_checkpoint(stage, weights, {"done": dict(facts), "epochs": epochs})

    def require_weights(self, stage: str) -> None:
        """Refuse to count a stage as done whose weights are read back later, where they could not be stored."""
        checkpoint = self.run.load_checkpoint(stage)
        if checkpoint is None or not checkpoint[1].get("done"):
            place = self.run.folder
            raise TailorError(
                f"The weights of stage '{stage}' could not be written to '{place}', as where a disk is full. "
                f"Go on with: {shlex.join(['tailorvit', 'resume', str(place)])}"
            )


class StageSink(Sink):
    """A training's checkpoints, epochs and events, in the run folder and on the screen."""

    def __init__(self, stages: Stages, stage: str) -> None:
        self.stages, self.stage = stages, stage
        self.epochs = 0  # that the database has
        self.failed = stages.failed()  # images that were told

    def save(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Write a checkpoint, after images that were replaced in its steps are told: they may be as before later."""
        if self.stages.failed() > self.failed:
            self.stages.note_skipped()
            self.failed = self.stages.failed()
        self.stages.run.save_checkpoint(self.stage, tensors, {**meta, "epochs": self.epochs})

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last checkpoint."""
        found = self.stages.run.load_checkpoint(self.stage)
        if found is not None:
            self.stages.require_epochs(self.stage, found[1])
            self.epochs = int(found[1].pop("epochs", 0))
        return found

    def epoch(self, epoch: int, facts: Mapping[str, Any]) -> None:
        """Into the database."""
        self.stages.run.record_epoch(self.stage, epoch, **facts)
        self.epochs = epoch

    def event(self, kind: str, text: str) -> None:
        """Into the log."""
        self.stages.log(kind, f"{self.stage}: {text}")

    def progress(self, step: int, total: int, facts: Mapping[str, Any]) -> None:
        """On the screen."""
        self.stages.progress.step(self.stage, step, total, facts)


@torch.no_grad()
def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put a checkpoint's weights and batch statistics into a network."""
    named = model.state_dict()  # batch statistics included
    state = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
    if {k: tuple(v.shape) for k, v in state.items()} != {k: tuple(v.shape) for k, v in named.items()}:
        raise TailorError("A checkpoint of this run belongs to another space or network: names or shapes differ.")
    for name, tensor in named.items():
        tensor.copy_(state[name])
