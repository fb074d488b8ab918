"""The training loop: the same for a supernet under a rule and for one plain network."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.errors import TailorError, out_of_memory
from tailorvit.families.base import Elastic
from tailorvit.rng import seed_everything
from tailorvit.train.compiled import compiled
from tailorvit.train.graphs import GraphSteps, NotRecorded, Pending, can_record
from tailorvit.train.memory import free, halved, reason
from tailorvit.train.optim import (
    SliceAdamW,
    Slices,
    batch_statistics,
    float32_sums,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
    soft_cross_entropy,
    taught,
    without_drop_path,
)
from tailorvit.train.rules import Fixed, Rule, paths_of_rule
from tailorvit.train.settings import TrainSettings
from tailorvit.train.share import Share, paths_of
from tailorvit.train.stopping import Stopped, asked, held
from tailorvit.train.teacher import Teacher, Telling, in_evaluation_mode, told

PATIENCE = 5  # steps in a row that are not finite before a roll-back
MAX_ROLLBACKS = 4
EVALUATIONS = 10  # in a training
JUDGED_BY = "search_accuracy"  # the figure of an evaluation by which the best epoch is kept
CHECKPOINT_SHARE = 0.1  # of the time at most goes to checkpoints inside epochs
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]  # the mean loss of a batch's x, y and target

# -- what a training reads and writes ---------------------------------------------------------------------------------


class Batches(Protocol):
    """Training batches as a pure function of the step."""

    steps_per_epoch: int

    def iterate(self, start: int, stop: int) -> Any:
        """Batches with ``x``, ``y`` and ``target`` for steps start..stop-1."""


class Sink:
    """Where a training writes checkpoints, epochs and events; this one discards them, subclasses store them."""

    def save(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Store a checkpoint."""

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last checkpoint."""
        return None

    def epoch(self, epoch: int, facts: Mapping[str, Any]) -> None:
        """An epoch has ended."""

    def event(self, kind: str, text: str) -> None:
        """Something to log has happened."""

    def progress(self, step: int, total: int, facts: Mapping[str, Any]) -> None:
        """A step has ended."""


@dataclass(frozen=True)
class Trained:
    """How a training went. ``kept`` says which epoch's weights it ended with, where it kept the best."""

    steps: int
    skipped: int
    rollbacks: int
    loss: float
    kept: dict[str, Any] | None = None


@dataclass
class EpochSums:
    """Sums over the images of an epoch so far."""

    loss_sum: float = 0.0
    images: int = 0
    correct: int = 0
    started: float = field(default_factory=lambda: time.monotonic())

    def add(self, loss: float, images: int, correct: int) -> None:
        """Add one step."""
        self.loss_sum += loss * images
        self.images += images
        self.correct += correct

    @property
    def loss(self) -> float:
        """Mean over the images."""
        return self.loss_sum / max(self.images, 1)

    @property
    def accuracy(self) -> float:
        """Percent."""
        return 100 * self.correct / max(self.images, 1)

    @property
    def seconds(self) -> float:
        """Since the epoch began."""
        return time.monotonic() - self.started

    @property
    def images_per_second(self) -> float:
        """Since the epoch began."""
        return self.images / max(self.seconds, 1e-9)

    def to_list(self) -> list[float]:
        """Everything, for a checkpoint inside an epoch."""
        return [self.loss_sum, self.images, self.correct, self.seconds]

    @classmethod
    def from_list(cls, stored: Sequence[float]) -> EpochSums:
        """From :meth:`to_list`; the time goes on."""
        loss_sum, images, correct, seconds = stored
        return cls(loss_sum, int(images), int(correct), time.monotonic() - seconds)


class State:
    """Everything a step changes: saved, restored and rolled back as one."""

    def __init__(self, model: nn.Module, settings: TrainSettings, backbone_lr: float = 1.0) -> None:
        self.model, self.optimizer = model, make_optimizer(model, settings, backbone_lr)
        self.statistics = batch_statistics(model)
        # "scale" multiplies the learning rate after roll-backs, "in_row" counts the last steps if they were skipped,
        # "parts" is more than 1 where the images of a step do not fit into memory at once. Where the best epoch is
        # kept, "best" says which it was, its figure and how many evaluations since were no better.
        self.meta: dict[str, Any] = {"step": 0, "scale": 1.0, "skipped": 0, "in_row": 0, "rollbacks": 0, "parts": 1}

    def tensors(self) -> dict[str, Tensor]:
        """Weights, batch statistics and the optimiser's moments, by name."""
        weights = {f"model/{n}": t for n, t in self.model.state_dict().items()}
        return {**weights, **{f"optim/{n}": t for n, t in optimizer_tensors(self.model, self.optimizer).items()}}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Put a checkpoint or a snapshot back."""
        named = self.model.state_dict()
        wanted = {k.split("/", 1)[1]: v for k, v in tensors.items() if k.startswith("model/")}
        if {k: tuple(v.shape) for k, v in wanted.items()} != {k: tuple(v.shape) for k, v in named.items()}:
            raise TailorError(
                "The checkpoint belongs to another space or network: its tensors have other names or shapes."
            )
        for name, tensor in named.items():
            tensor.copy_(wanted[name])
        moments = [(k.split("/", 1)[1], v) for k, v in tensors.items() if k.startswith("optim/")]
        restore_optimizer(self.model, self.optimizer, moments)
        self.meta = {"parts": 1, **meta}

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A copy of everything, for :meth:`restore`."""
        return {k: v.clone() for k, v in self.tensors().items()}, dict(self.meta)


# -- the loop ---------------------------------------------------------------------------------------------------------


def train(
    model: nn.Module,
    batches: Batches,
    rule: Rule,
    settings: TrainSettings,
    seed: int,
    sink: Sink | None = None,
    evaluate: Callable[[], Mapping[str, Any]] | None = None,
    device: str = "cpu",
    teacher: Teacher | None = None,
    share: Share | None = None,
    objective: Objective | None = None,
    backbone_lr: float = 1.0,
) -> Trained:
    """Train in place, from the sink's last checkpoint if it has one; with a teacher, by its outputs too.

    With a share, several processes train the same network together. An objective replaces the loss of telling classes
    apart: that of a detector, for one, whose backbone may get a share of the learning rate. A step that is not finite
    is skipped; several in a row roll back to the last good epoch with half the learning rate.
    """
    sink = sink or Sink()
    with float32_sums():
        parts = (evaluate, device, teacher, share, objective, backbone_lr)
        return Trainer(model, batches, rule, settings, seed, sink, *parts).run()


class Launched(NamedTuple):
    """A recorded step whose figures were not read yet."""

    step: int
    images: int
    archs: int
    figures: Pending


class Part(NamedTuple):
    """Some images of a batch."""

    x: Tensor
    y: Tensor
    target: Tensor


class Trainer:
    """One training and its parts: a step, eager or recorded; the end of an epoch; a roll-back."""

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        rule: Rule,
        settings: TrainSettings,
        seed: int,
        sink: Sink,
        evaluate: Callable[[], Mapping[str, Any]] | None = None,
        device: str = "cpu",
        teacher: Teacher | None = None,
        share: Share | None = None,
        objective: Objective | None = None,
        backbone_lr: float = 1.0,
    ) -> None:
        if teacher is not None:
            teacher.check(model, settings)
            teacher.network.to(device)
        self.model, self.batches, self.rule, self.settings = model.to(device), batches, rule, settings
        self.seed, self.sink, self.evaluate, self.device = seed, sink, evaluate, device
        self.teacher, self.share, self.paths = teacher, share, paths_of_rule(rule)
        self.objective = objective
        if objective is not None and settings.class_weights != "none":
            raise TailorError("train.class_weights weighs the labels of whole images, which this training has none of.")
        self.total = settings.epochs * batches.steps_per_epoch
        self.state = State(self.model, settings, backbone_lr)
        self.epoch = EpochSums()
        self.best: dict[str, Tensor] = {}  # the weights of the best epoch, where they are kept
        self.good = self._resume()  # where a roll-back returns to
        self.saved_at, self.saving = time.monotonic(), 0.0  # when the last checkpoint was written, seconds it took
        self.due = self.owed = False  # a checkpoint inside the epoch: after this step, whatever the time
        self.loss = float(self.state.meta.get("loss", math.nan))  # of the last step that was not skipped
        self.lr = settings.lr
        telling = Telling(self.model) if teacher is not None and teacher.features else None
        compile_it = settings.compile and (share is None or share.compiled)
        self.call = compiled(self.model, called=telling) if compile_it else telling or self.model
        self.recordable = True  # until it turns out that it is not
        self.graphs = self._recorder()
        self.launched: deque[Launched] = deque()

    def run(self) -> Trained:
        """All steps that are left; after a roll-back some are done again. A signal ends it after a checkpoint."""
        if (
            self.settings.keep == "best"
            and self.share is None
            and (self.evaluate is None or not isinstance(self.rule, Fixed))
        ):
            raise TailorError(
                "train.keep = 'best' needs one network whose accuracy on the search images is measured in its training."
            )
        self.model.train()
        with held(), nullcontext() if self.teacher is None else in_evaluation_mode(self.teacher.network):
            while self.state.meta["step"] < self.total and not self._stopped():
                for batch in self.batches.iterate(self.state.meta["step"], self.total):
                    self.step(batch)
                    if self.state.meta["in_row"] >= PATIENCE:
                        self.roll_back()
                        break
                    self.report()
                    if self.due:
                        self.save()
                        if number := asked():
                            raise Stopped(number)
                    if self._stopped():
                        break
        if self.graphs is not None:
            self.graphs.close()
        self.model.eval()
        meta = self.state.meta
        return Trained(meta["step"], meta["skipped"], meta["rollbacks"], self.loss, self._take_best())

    def step(self, batch: Any) -> None:
        """One step; its randomness belongs to (seed, step). The figures of a recorded one are read a step later."""
        step, images = self.state.meta["step"], len(batch.y) if self.share is None else self.share.batch
        if not self.model.training:  # after an evaluation; to say it in every step took a millisecond for 400 modules
            self.model.train()
        self.lr = self.settings.lr_at(step, self.batches.steps_per_epoch) * self.state.meta["scale"]
        archs = self.rule.archs_at(self.seed, step)
        graphs = self._prepared(batch, archs)
        seed_everything(self.seed, "step", step)  # after a recording, which draws as well
        if graphs is None:
            self._count(step, images, *self.eager_step(batch, archs, self.lr))
        else:
            self.launched.append(Launched(step, images, len(archs), graphs.step(archs, self.lr)))
            self._read(leave=1)
        self.state.meta["step"] = step + 1
        self.due = self._due()
        if self.due or self._epoch_ended():
            self._read(leave=0)

    def report(self) -> None:
        """Report a step, and end the epoch where it was the last one."""
        facts = {
            "loss": self.loss,
            **({} if self.objective is not None else {"accuracy": self.epoch.accuracy}),
            "images_per_second": self.epoch.images_per_second,
            "lr": self.lr,
        }
        self.sink.progress(self.state.meta["step"], self.total, facts)
        if self._epoch_ended():
            self.end_epoch({**facts, "loss": self.epoch.loss})

    def end_epoch(self, facts: Mapping[str, Any]) -> None:
        """Evaluate ten times in a training, remember the state, save it where enough time has passed."""
        meta, epochs = self.state.meta, self.settings.epochs
        epoch = meta["step"] // self.batches.steps_per_epoch
        due = epoch == epochs or epoch % max(epochs // EVALUATIONS, 1) == 0
        found = self.evaluate() if self.evaluate and due else {}
        self.sink.epoch(epoch, {**facts, **found})
        good = meta["in_row"] == 0  # amid skipped steps a state may be spoilt already
        if good and due and self.settings.keep == "best":
            self._judge(epoch, found)
        if good:
            self.good = self.state.snapshot()
        waited = time.monotonic() - self.saved_at > self.settings.checkpoint_seconds
        self.epoch = EpochSums()
        if meta["step"] == self.total or self._stopped() or (waited and good):
            self.save()

    def save(self) -> None:
        """Write a checkpoint. Inside an epoch it holds the epoch's sums and the state that a roll-back returns to."""
        begin, meta, tensors = time.monotonic(), dict(self.state.meta), self.state.tensors()
        if not self._epoch_ended():
            meta["epoch"] = self.epoch.to_list()
        if self.good[1]["step"] != meta["step"]:
            tensors.update({f"good/{name}": tensor for name, tensor in self.good[0].items()})
            meta["good"] = self.good[1]
        tensors.update({f"best/{name}": tensor for name, tensor in self.best.items()})
        self.sink.save(tensors, meta)
        self.saved_at, self.owed = time.monotonic(), False
        self.saving = self.saved_at - begin

    def roll_back(self) -> None:
        """Return to the last good epoch with half the learning rate; give up after too many times."""
        meta = self.state.meta
        rollbacks, skipped, scale, parts = meta["rollbacks"] + 1, meta["skipped"], meta["scale"] / 2, meta["parts"]
        if rollbacks > MAX_ROLLBACKS:
            raise TailorError(
                f"Training gave up: it stayed non-finite after {MAX_ROLLBACKS} returns to the last good epoch; "
                f"try a lower train.lr than {self.settings.lr} or train.precision = 'fp32'."
            )
        self.launched.clear()  # steps launched since then are undone as well
        self.state.restore(*self.good)
        self.state.meta.update(rollbacks=rollbacks, skipped=skipped, scale=scale, parts=parts, in_row=0)
        self.sink.event(
            "rollback",
            f"{PATIENCE} steps in a row were not finite: back to step {self.state.meta['step']} "
            f"with the learning rate times {scale}",
        )
        self.graphs = self._recorder()  # the old recordings hold the tensors of the old optimiser state
        self.epoch = EpochSums()

    def _judge(self, epoch: int, found: Mapping[str, Any]) -> None:
        """Remember this epoch's weights where no earlier one was better, and end where none has been better for long.

        Of equal epochs the later counts, which had the smaller learning rate, but it is no improvement. The first
        process alone evaluates, and tells the others when to end; its weights are those that count.
        """
        before, best = self.state.meta.get("best"), None
        if self.evaluate is not None:
            if JUDGED_BY not in found:
                raise TailorError(f"train.keep = 'best' needs an evaluation that gives '{JUDGED_BY}'.")
            value, since = found[JUDGED_BY], 0
            if before is not None and value <= before[JUDGED_BY]:
                since = before["since"] + 1
            if before is not None and value < before[JUDGED_BY]:
                best = {**before, "since": since}
            else:
                best = {"epoch": epoch, JUDGED_BY: value, "since": since}
                self.best = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            best["stop"] = 0 < self.settings.patience <= since
        self.state.meta["best"] = best if self.share is None else self.share.agreed(best)

    def _stopped(self) -> bool:
        """Whether the training has ended before its last step."""
        return bool(self.state.meta.get("best", {}).get("stop"))

    @torch.no_grad()
    def _take_best(self) -> dict[str, Any] | None:
        """Put the weights of the best epoch into the network; says which it was."""
        best = self.state.meta.get("best")
        if best is None:
            return None
        named = self.model.state_dict()
        for name, tensor in self.best.items():
            named[name].copy_(tensor)
        trained = self.state.meta["step"] // self.batches.steps_per_epoch
        return {"epoch": best["epoch"], "of": trained, "planned": self.settings.epochs, JUDGED_BY: best[JUDGED_BY]}

    def eager_step(self, batch: Any, archs: Sequence[Arch | None], lr: float) -> tuple[float | None, int]:
        """One optimiser step: (loss, correct answers), or (None, 0) where the loss or a gradient was not finite."""
        optimizer, statistics = self.state.optimizer, [s.clone() for s in self.state.statistics]
        while True:
            try:
                loss, correct, norm = self._gradients(batch, archs)
                break
            except Exception as error:
                if not out_of_memory(error) or self.share is not None:  # a part must not be cut again
                    raise
                why = reason(error)
            self._undo(statistics)  # here, since an error keeps all tensors of its calls alive
            self._take_fewer(len(batch.y) // self.paths, why)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._undo(statistics)
            return None, 0
        for group in optimizer.param_groups:
            group["lr"] = lr * group["share"]
        optimizer.step()
        return loss, correct if self.paths > 1 else correct // len(archs)

    def _gradients(self, batch: Any, archs: Sequence[Arch | None]) -> tuple[float, int, float]:
        """The clipped gradients of a batch, taken in parts where memory asks for it: (loss, correct answers, norm)."""
        self.state.optimizer.zero_grad(set_to_none=True)
        parts, loss, correct = 1 if self.share is not None else self.state.meta["parts"], 0.0, 0
        for images, through in self._routes(batch, archs):
            for part in zip(*(t.tensor_split(min(parts, len(t))) for t in images), strict=True):
                of_part = self._add_gradients(Part(*part), through, len(part[1]) / len(batch.y))
                loss, correct = loss + of_part[0], correct + of_part[1]
        self._complete_gradients(archs)
        if self.share is not None:
            loss, correct = self.share.step(self.model.parameters(), loss, correct)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip or math.inf)
        return loss, correct, float(norm)

    def _routes(self, batch: Any, archs: Sequence[Arch | None]) -> Iterator[tuple[Part, Sequence[Arch | None]]]:
        """Which images go through which architectures: all through all, or each path's through its own."""
        images = Part(batch.x, batch.y, batch.target)
        if self.paths == 1:
            yield images, archs
            return
        whole, places = (
            (len(batch.y), range(len(batch.y))) if self.share is None else (self.share.batch, self.share.places)
        )
        for path, rows in paths_of(places, self.paths, whole).items():
            # A path's draws are its own, so it does not matter how many processes there are.
            seed_everything(self.seed, "step", self.state.meta["step"], "path", path)
            yield Part(*(t[rows] for t in images)), archs[path : path + 1]

    def _complete_gradients(self, archs: Sequence[Arch | None]) -> None:
        """Zeros where a weight that is to be stepped has no gradient."""
        names: Container[str] = ()
        if self.settings.freeze == "none":
            # As in the released code: blocks that were not sampled still decay and move by their momentum.
            names = {name for name, _ in self.model.named_parameters()}
        elif self.paths > 1:  # another process may have the path that uses it
            slices = [cast(Elastic, self.model).slices(arch) for arch in archs if arch is not None]
            names = {name for of in slices for name in of}
            if isinstance(self.state.optimizer, SliceAdamW):
                for of in slices:
                    self.state.optimizer.use(self.model, of)
        for name, p in self.model.named_parameters():
            if p.grad is None and name in names:
                p.grad = torch.zeros_like(p)

    def _undo(self, statistics: Sequence[Tensor]) -> None:
        """Forget a step whose gradients cannot be used."""
        if isinstance(self.state.optimizer, SliceAdamW):
            self.state.optimizer.used.clear()
        for now, before in zip(self.state.statistics, statistics, strict=True):
            now.copy_(before)

    def _take_fewer(self, images: int, why: str) -> None:
        """Take fewer images at a time from now on, and store that soon: other parts draw other numbers."""
        self.state.optimizer.zero_grad(set_to_none=True)
        free()
        self.state.meta["parts"], text = halved(self.state.meta["parts"], images, bool(self.state.statistics), why)
        self.owed = True
        self.sink.event("memory", text)
        seed_everything(self.seed, "step", self.state.meta["step"])

    def _add_gradients(self, batch: Any, archs: Sequence[Arch | None], weight: float = 1.0) -> tuple[float, int]:
        """Gradients of the architectures, the mean loss and the correct answers of all; a part of a batch has a weight.

        A rule names its largest architecture first. With ``distill`` it learns from the labels, and the others from the
        labels and its outputs; with ``reg_largest_only`` it alone has drop path. A teacher is asked once for all.
        AdamW's decay is no part of the gradient: it acts once a step on all weights in any case.
        """
        settings, optimizer, teacher = self.settings, self.state.optimizer, self.teacher
        x, y, target = (t.to(self.device, non_blocking=True) for t in (batch.x, batch.y, batch.target))
        # The sum of gradients, or their mean when clipping, so that the clip means the same for every rule.
        share = (weight / len(archs) if settings.clip else weight) * (1.0 if self.share is None else self.share.weight)
        mean_loss, correct = 0.0, 0
        if self.objective is not None:
            with self._autocast():
                loss = self.objective(x, y, target)
            (loss * share).backward()
            return weight * float(loss.detach()), 0
        lesson = None
        if teacher is not None:
            with self._autocast():
                lesson = teacher.lesson(x, target)
        for i, arch in enumerate(archs):
            no_drop = settings.reg_largest_only and i > 0
            whole = nullcontext() if self.share is None or self.paths > 1 else self.share.forward()
            with without_drop_path(self.model) if no_drop else nullcontext(), self._autocast(), whole:
                logits, tokens = told(self.call(x) if arch is None else self.call(x, arch))
            if teacher is None or lesson is None:
                loss = soft_cross_entropy(logits, target)
            else:
                loss = teacher.loss(logits, tokens, lesson)
            (loss * share).backward()
            if settings.distill and i == 0:
                target = taught(target, logits)
            if isinstance(optimizer, SliceAdamW) and self.paths == 1:
                every: Slices = {name: () for name, _ in self.model.named_parameters()}
                optimizer.use(self.model, every if arch is None else cast(Elastic, self.model).slices(arch))
            mean_loss += weight * float(loss.detach()) / len(archs)
            correct += int((logits.detach().argmax(-1) == y).sum())
        return mean_loss, correct

    def _autocast(self) -> AbstractContextManager[Any]:
        on = self.settings.precision == "bf16"
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=on)

    def _read(self, leave: int) -> None:
        """Count recorded steps but for the last ``leave``: reading at once would make the GPU wait for the host."""
        while len(self.launched) > leave and self.state.meta["in_row"] < PATIENCE:
            step, images, archs, figures = self.launched.popleft()
            loss, correct, norm = figures.read()
            finite = math.isfinite(loss) and math.isfinite(norm)
            self._count(step, images, loss if finite else None, int(correct) // archs)

    def _count(self, step: int, images: int, loss: float | None, correct: int) -> None:
        """Count the figures of a step; one without a loss was skipped."""
        meta = self.state.meta
        if loss is None:
            meta["skipped"] += 1
            meta["in_row"] += 1
            self.sink.event("skip", f"step {step}: the loss or a gradient was not finite, so the step was skipped")
        else:
            meta["in_row"], meta["loss"], self.loss = 0, loss, loss
            self.epoch.add(loss, images, correct)

    def _resume(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Go on from the last checkpoint, if there is one; returns the state to roll back to."""
        checkpoint = self.sink.load()
        if self.share is not None:
            checkpoint = self.share.agreed(checkpoint)
        if checkpoint is None:
            return self.state.snapshot()
        tensors, stored = checkpoint
        meta = {k: v for k, v in stored.items() if k not in ("epoch", "good")}
        self.state.restore(tensors, meta)
        if 0 < meta["step"] < self.total:
            self.sink.event("resume", f"resumed at step {meta['step']} of {self.total}")
        self.best = {k.removeprefix("best/"): t for k, t in tensors.items() if k.startswith("best/")}
        if "epoch" in stored:
            self.epoch = EpochSums.from_list(stored["epoch"])
        if "good" not in stored:
            return self.state.snapshot()
        return {k.removeprefix("good/"): t for k, t in tensors.items() if k.startswith("good/")}, stored["good"]

    def _due(self) -> bool:
        """Whether a checkpoint inside the epoch is due: after a signal, or by time where epochs take longer."""
        if self.owed or asked():
            return True
        interval, done = self.settings.checkpoint_seconds, self.state.meta["step"] % self.batches.steps_per_epoch
        if not interval or not done:
            return False
        waited = time.monotonic() - self.saved_at
        long = self.epoch.seconds * self.batches.steps_per_epoch > interval * done
        return long and waited > max(interval, self.saving / CHECKPOINT_SHARE)

    def _recorder(self) -> GraphSteps | None:
        """Recorded steps where they may be possible, else None."""
        optimizer = self.state.optimizer
        if not self.recordable or not can_record(self.model, self.settings, optimizer, self.device):
            return None
        if self.objective is not None:
            return None  # losses of detectors and their like depend on what is in the images
        if self.state.meta["parts"] > 1:
            return None  # a recorded step takes all images at once
        if self.paths > 1:
            self.sink.event("graphs", "steps run eagerly: a recorded step has one architecture for all images")
            return None
        if self.share is not None and self.share.norms:
            self.sink.event("graphs", "steps run eagerly: a recorded batch norm cannot wait for other processes")
            return None
        if self.teacher is not None and self.teacher.features and hasattr(self.model, "slices"):
            return None  # groups give logits only
        return GraphSteps(self.model, self.call, optimizer, self.settings, self.device, self.teacher, self.share)

    def _prepared(self, batch: Any, archs: Sequence[Arch | None]) -> GraphSteps | None:
        """The recorded step for a batch; None where steps run eagerly, from now on if this one cannot be recorded."""
        if self.graphs is None:
            return None
        try:
            self.graphs.prepare((batch.x, batch.y, batch.target), archs)
        except NotRecorded as reason:
            self._read(leave=0)
            self.graphs.close()
            self.graphs, self.recordable = None, False
            self.sink.event("graphs", f"steps cannot be recorded as CUDA graphs and run eagerly: {reason}")
        return self.graphs

    def _epoch_ended(self) -> bool:
        return bool(self.state.meta["step"] % self.batches.steps_per_epoch == 0)


# -- before a training ------------------------------------------------------------------------------------------------


def shortened(settings: TrainSettings, share: float) -> TrainSettings:
    """The same training with a share of the epochs, at least one."""
    return replace(settings, epochs=max(1, round(settings.epochs * share)), warmup=settings.warmup * share)


@torch.no_grad()
def inherit(target: nn.Module, source: nn.Module) -> int:
    """Copy the overlapping prefix of every tensor both networks have; returns how many tensors overlapped."""
    theirs, count = source.state_dict(), 0
    for name, mine in target.state_dict().items():
        if name in theirs and theirs[name].dim() == mine.dim():
            box = tuple(slice(min(a, b)) for a, b in zip(mine.shape, theirs[name].shape, strict=True))
            mine[box] = theirs[name][box].to(mine.device)
            count += 1
    return count
