"""The training loop: the same for a supernet under a rule and for one plain network."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from tailorvit.errors import TailorError
from tailorvit.families.base import Elastic
from tailorvit.rng import seed_everything
from tailorvit.train.compiled import compiled
from tailorvit.train.graphs import GraphSteps, Pending, can_replay
from tailorvit.train.losses import soft_cross_entropy, without_drop_path
from tailorvit.train.optim import SliceAdamW, Slices, make_optimizer, optimizer_tensors, restore_optimizer
from tailorvit.train.rules import Rule
from tailorvit.train.settings import TrainSettings
from tailorvit.train.sink import Sink


class Batches(Protocol):
    """Training batches as a pure function of the step."""

    steps_per_epoch: int

    def iterate(self, start: int, stop: int) -> Any:
        """Batches with ``x``, ``y`` and ``target`` for steps start..stop-1."""


@dataclass(frozen=True)
class Trained:
    """How a training went."""

    steps: int
    skipped: int
    rollbacks: int
    loss: float


@dataclass
class Tally:
    """Figures of an epoch so far."""

    total: float = 0.0
    seen: int = 0
    hits: int = 0

    def add(self, loss: float, images: int, hits: int) -> None:
        """One step's."""
        self.total, self.seen, self.hits = self.total + loss * images, self.seen + images, self.hits + hits

    @property
    def loss(self) -> float:
        """Mean over the images."""
        return self.total / max(self.seen, 1)

    @property
    def accuracy(self) -> float:
        """Percent."""
        return 100 * self.hits / max(self.seen, 1)


class _State:
    """Everything a step changes, to be saved, restored and rolled back as one."""

    def __init__(self, model: nn.Module, settings: TrainSettings) -> None:
        self.model, self.optimizer = model, make_optimizer(model, settings)
        self.ema = {n: p.detach().clone() for n, p in model.named_parameters()} if settings.ema else None
        kept = model.state_dict()
        self.statistics = [b for n, b in model.named_buffers() if n in kept]  # of batch norms: a forward changes them
        self.meta: dict[str, Any] = {"step": 0, "scale": 1.0, "skipped": 0, "in_row": 0, "rollbacks": 0}

    def tensors(self) -> dict[str, Tensor]:
        weights = {f"model/{n}": t for n, t in self.model.state_dict().items()}  # batch statistics included
        moments = {f"optim/{n}": t for n, t in optimizer_tensors(self.model, self.optimizer).items()}
        return {**weights, **moments, **{f"ema/{n}": t for n, t in (self.ema or {}).items()}}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
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
        if self.ema is not None:
            self.ema = {k.split("/", 1)[1]: v.clone() for k, v in tensors.items() if k.startswith("ema/")}
        self.meta = dict(meta)

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {k: v.clone() for k, v in self.tensors().items()}, dict(self.meta)


def train(
    model: nn.Module,
    batches: Batches,
    rule: Rule,
    settings: TrainSettings,
    seed: int,
    sink: Sink | None = None,
    evaluate: Callable[[], Mapping[str, Any]] | None = None,
    device: str = "cpu",
) -> Trained:
    """Train in place. Resumes from the sink's state; a non-finite step is skipped, several in a row roll back."""
    sink = sink or Sink()
    # A weight's gradient sums over every token of a batch; partial sums of split products stay in 32 bits.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    state, per_epoch = _State(model.to(device), settings), batches.steps_per_epoch
    total = settings.epochs * per_epoch
    kept = sink.load()
    if kept is not None:
        state.restore(*kept)
        if 0 < state.meta["step"] < total:
            sink.event("resume", f"going on at step {state.meta['step']} of {total}")
    good, saved_at, last = state.snapshot(), time.monotonic(), float(state.meta.get("loss", math.nan))
    tally, epoch_start = Tally(), time.monotonic()
    call = compiled(model) if settings.compile else model
    graphs = None
    if can_replay(model, settings, state.optimizer, device, bool(state.statistics)):
        graphs = GraphSteps(model, call, state.optimizer, state.ema, settings, device)
    running: deque[tuple[int, int, Pending]] = deque()  # steps launched whose figures were not looked at

    def settle(step: int, images: int, loss: float | None, correct: int) -> None:
        """Count a step's figures."""
        nonlocal last
        if loss is None:
            state.meta["skipped"] += 1
            state.meta["in_row"] += 1
            sink.event("skip", f"step {step}: the loss or a gradient was not finite, so the step was skipped")
        else:
            state.meta["in_row"], state.meta["loss"], last = 0, loss, loss
            tally.add(loss, images, correct)

    def catch_up(behind: int) -> None:
        """Look at the figures of steps that were launched, but for the last ``behind``: the GPU must not wait."""
        while len(running) > behind and state.meta["in_row"] < settings.patience:
            step, images, pending = running.popleft()
            loss, correct, norm = pending.read()
            fine = math.isfinite(loss) and math.isfinite(norm)
            settle(step, images, loss if fine else None, int(correct) // len(rule.archs_at(seed, step)))

    while state.meta["step"] < total:
        rolled = False
        for batch in batches.iterate(state.meta["step"], total):
            step = state.meta["step"]
            model.train()
            lr = settings.lr_at(step, per_epoch) * state.meta["scale"]
            archs = rule.archs_at(seed, step)
            if graphs is None:
                seed_everything(seed, "step", step)
                loss, correct = _step(model, call, batch, archs, state, settings, lr, device)
                settle(step, len(batch.y), loss, correct)
            else:
                graphs.prepare((batch.x, batch.y, batch.target), archs)
                seed_everything(seed, "step", step)  # after the recording, which draws as well
                running.append((step, len(batch.y), graphs.step(archs, lr)))
                catch_up(1)
            state.meta["step"] = step + 1
            ends = (step + 1) % per_epoch == 0 or step + 1 == total
            if ends:
                catch_up(0)
            if state.meta["in_row"] >= settings.patience:
                running.clear()  # steps launched since are undone with the others
                _roll_back(state, good, settings, sink)
                if graphs is not None:  # they know the tensors of the optimiser that was
                    graphs = GraphSteps(model, call, state.optimizer, state.ema, settings, device)
                rolled = True
                break
            rate = tally.seen / max(time.monotonic() - epoch_start, 1e-9)
            facts = {"loss": last, "accuracy": tally.accuracy, "images_per_second": rate, "lr": lr}
            sink.progress(step + 1, total, facts)
            if ends:
                epoch = (step + 1) // per_epoch
                facts["loss"] = tally.loss
                due = epoch == settings.epochs or epoch % max(settings.epochs // 10, 1) == 0
                sink.epoch(epoch, {**facts, **(evaluate() if evaluate and due else {})})
                # A skipping streak is no good state: roll back to the one before it.
                good = state.snapshot() if state.meta["in_row"] == 0 else good
                waited = time.monotonic() - saved_at > settings.checkpoint_seconds
                if step + 1 == total or (waited and state.meta["in_row"] == 0):
                    sink.save(state.tensors(), state.meta)
                    saved_at = time.monotonic()
                tally, epoch_start = Tally(), time.monotonic()
        if rolled:
            tally, epoch_start = Tally(), time.monotonic()
    if state.ema is not None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(state.ema[name])
    if graphs is not None:
        graphs.close()
    model.eval()
    return Trained(state.meta["step"], state.meta["skipped"], state.meta["rollbacks"], last)


def _step(
    model: nn.Module,
    call: Callable[..., Tensor],
    batch: Any,
    archs: tuple[Any, ...],
    state: _State,
    settings: TrainSettings,
    lr: float,
    device: str,
) -> tuple[float | None, int]:
    """One optimiser step over the architectures of the rule; (None, 0) when something was not finite.

    A rule names its largest architecture first. With ``distill`` that one alone learns from the labels and the others
    from its answers; with ``reg_largest_only`` it alone drops paths. AdamW's decay is no part of the gradient: it
    acts once a step on the whole of the largest, so it is the largest's in any case.
    """
    optimizer = state.optimizer
    x, y, target = (t.to(device, non_blocking=True) for t in (batch.x, batch.y, batch.target))
    optimizer.zero_grad(set_to_none=True)
    # The sum of gradients, or their mean when clipping, so that the clip means the same for every rule.
    share = 1 / len(archs) if settings.clip else 1.0
    loss_value, correct = 0.0, 0
    statistics = [s.clone() for s in state.statistics]
    for i, arch in enumerate(archs):
        spare = settings.reg_largest_only and i > 0
        paths: AbstractContextManager[None] = without_drop_path(model) if spare else nullcontext()
        with paths, torch.autocast(torch.device(device).type, torch.bfloat16, enabled=settings.precision == "bf16"):
            logits = call(x) if arch is None else call(x, arch)
        loss = soft_cross_entropy(logits, target)
        (loss * share).backward()
        if settings.distill and i == 0:
            target = logits.detach().float().softmax(-1)
        if isinstance(optimizer, SliceAdamW):
            every: Slices = {name: () for name, _ in model.named_parameters()}
            optimizer.use(model, every if arch is None else cast(Elastic, model).slices(arch))
        loss_value += float(loss.detach()) / len(archs)
        correct += int((logits.detach().argmax(-1) == y).sum())
    if settings.freeze == "none":
        # The released behaviour: blocks that were not sampled still decay and coast on their momentum.
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip or math.inf)
    if not (math.isfinite(loss_value) and math.isfinite(float(norm))):
        if isinstance(optimizer, SliceAdamW):
            optimizer.used.clear()
        for now, before in zip(state.statistics, statistics, strict=True):
            now.copy_(before)
        return None, 0
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    if state.ema is not None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                state.ema[name].lerp_(parameter, 1 - settings.ema)
    return loss_value, correct // len(archs)


def _roll_back(
    state: _State, good: tuple[dict[str, Tensor], dict[str, Any]], settings: TrainSettings, sink: Sink
) -> None:
    """Return to the last good epoch with half the rate; give up after too many times."""
    rollbacks, skipped, scale = state.meta["rollbacks"] + 1, state.meta["skipped"], state.meta["scale"] / 2
    if rollbacks > settings.max_rollbacks:
        raise TailorError(
            f"Training gave up: it stayed non-finite after {settings.max_rollbacks} returns to the last good state; "
            f"try a lower train.lr than {settings.lr} or train.precision = 'fp32'."
        )
    state.restore(*good)
    state.meta.update(rollbacks=rollbacks, skipped=skipped, scale=scale, in_row=0)
    sink.event(
        "rollback",
        f"{settings.patience} steps in a row were not finite: back to step {state.meta['step']} with rate x{scale}",
    )


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
