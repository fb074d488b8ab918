"""A tiny space, batches that are a function of the step, a sink that remembers, and single steps."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import torch

from tailorvit.data import Batch
from tailorvit.families import family
from tailorvit.rng import seed_everything
from tailorvit.space import Dim, Space
from tailorvit.train import Fixed, Sink, TrainSettings
from tailorvit.train.loop import Trainer

FIXED = {"image_size": (4, 4), "patch": 2, "channels": 1, "classes": 3, "head_dim": 4, "reach": 1, "eps": 1e-6}
SPACE = Space(
    "vit",
    (
        Dim("depth", (1, 2)),
        Dim("mlp", (1.5, 2), scope="block"),
        Dim("heads", (1, 2), scope="block"),
        Dim("embed", (8, 12)),
    ),
    tuple(FIXED.items()),
)


def settings(**options) -> TrainSettings:
    quick = {"epochs": 3, "batch": 8, "lr": 1e-2, "warmup": 0.5, "checkpoint_seconds": 0.0}
    return TrainSettings(**{**quick, **options})


def supernet(drop_path: float = 0.0, space: Space = SPACE):
    seed_everything(7, "toy")
    return family("vit").supernet(space, drop_path)


def plain(arch=None):
    seed_everything(7, "toy")
    return family("vit").build(family("vit").settings(FIXED), arch or SPACE.largest())


class Toys:
    """Learnable batches: three classes with their own patterns; steps in ``bad`` hold a NaN."""

    def __init__(self, steps_per_epoch: int = 4, bad=(), batch: int = 8) -> None:
        self.steps_per_epoch, self.bad, self.batch = steps_per_epoch, bad, batch
        self.requested: list[int] = []

    def at(self, step: int) -> Batch:
        rng = np.random.default_rng(step)
        y = torch.from_numpy(rng.integers(0, 3, self.batch))
        x = torch.from_numpy(rng.normal(0, 0.3, (self.batch, 1, 4, 4)).astype(np.float32))
        x += y.view(-1, 1, 1, 1) - 1.0
        if step in self.bad:
            x[0, 0, 0, 0] = float("nan")
        return Batch(x, y, torch.eye(3)[y])

    def iterate(self, start: int, stop: int):
        for step in range(start, stop):
            self.requested.append(step)
            yield self.at(step)


class BadOnce(Toys):
    """Batches of the steps in ``bad`` hold a NaN the first time only, as a passing trouble would."""

    def at(self, step: int) -> Batch:
        return Toys(bad=self.bad if self.requested.count(step) == 1 else ()).at(step)


class Store(Sink):
    """Stores everything in memory; stops by raising when step ``stop_at`` is reported."""

    def __init__(self, checkpoint=None, stop_at: int | None = None) -> None:
        self.checkpoint, self.stop_at = checkpoint, stop_at
        self.saved, self.epochs, self.events, self.steps = [], [], [], []

    def save(self, tensors, meta) -> None:
        self.checkpoint = ({k: v.detach().clone() for k, v in tensors.items()}, dict(meta))
        self.saved.append(self.checkpoint)

    def load(self):
        return self.checkpoint

    def epoch(self, epoch, facts) -> None:
        self.epochs.append((epoch, dict(facts)))

    def event(self, kind, text) -> None:
        self.events.append((kind, text))

    def progress(self, step, total, facts) -> None:
        self.steps.append((step, dict(facts)))
        if step == self.stop_at:
            raise KeyboardInterrupt


def trainer(model, options: TrainSettings) -> Trainer:
    """A training whose steps a test takes one by one."""
    return Trainer(model, Toys(), Fixed(), options, 0, Sink())


def gradients(model, archs, options: TrainSettings, batch, call=None) -> dict[str, torch.Tensor]:
    """The gradients one eager step hands to the optimiser, and its loss."""
    one, found = trainer(model, options), {}
    one.state.optimizer.step = lambda: found.update(
        {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    )
    one.call = call or model
    model.train()
    loss, _ = one.eager_step(batch, archs, 1e-3)
    return {**found, "loss": torch.tensor(loss)}


def weights(model) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@contextlib.contextmanager
def no_onednn():
    """bf16 without oneDNN: some virtual machines promise AMX tiles and then refuse the instruction."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False):
            yield
