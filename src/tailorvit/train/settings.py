"""Settings of one training, checked at birth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tailorvit.errors import TailorError


@dataclass(frozen=True)
class TrainSettings:
    """AdamW (or SGD) with warm-up and cosine; the defaults suit small images on a CPU."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    epochs: int = 30
    batch: int = 128
    lr: float = 1e-3  # absolute; see lr_scaling
    lr_scaling: Literal["none", "batch512"] = "none"  # batch512: lr * batch / 512, as the released code does
    min_lr: float = 1e-5
    schedule: Literal["cosine", "constant"] = "cosine"  # after warm-up
    warmup: float = 2.0  # epochs
    warmup_lr: float = 1e-6
    optimizer: Literal["adamw", "sgd"] = "adamw"
    momentum: float = 0.9  # SGD's
    weight_decay: float = 0.05
    decay_tables: bool = False  # the released code decays relative-position tables
    betas: tuple[float, float] = (0.9, 0.999)
    drop_path: float = 0.0
    clip: float = 1.0  # largest gradient norm; 0 does not clip
    ema: float = 0.0  # decay of the weights' moving average; 0 keeps none
    precision: Literal["fp32", "bf16"] = "fp32"
    rule: Literal["single_path", "sandwich"] = "single_path"
    alike: float = 0.0  # share of random members whose blocks are all alike
    distill: bool = False  # sandwich only: the largest network's answers are the others' targets (BigNAS)
    reg_largest_only: bool = False  # sandwich only: drop path in the largest network alone (BigNAS)
    freeze: Literal["none", "tensor", "slice"] = "none"
    compile: bool = False  # torch.compile: plain networks whole, supernets of the ViT family block by block
    graphs: bool = True  # record steps as CUDA graphs where that is possible; nothing to a CPU
    augment: str = "auto"
    checkpoint_seconds: float = 20.0  # at most this much work is lost to a kill (plus one epoch)
    patience: int = 5  # skipped steps in a row before rolling back
    max_rollbacks: int = 4

    def __post_init__(self) -> None:
        for name, low, strict in (
            ("epochs", 0, True),
            ("batch", 0, True),
            ("lr", 0, True),
            ("min_lr", 0, False),
            ("warmup", 0, False),
            ("weight_decay", 0, False),
            ("drop_path", 0, False),
            ("clip", 0, False),
            ("ema", 0, False),
            ("patience", 0, True),
            ("max_rollbacks", 0, False),
        ):
            value = getattr(self, name)
            if not math.isfinite(value) or value < low or (strict and value == low):
                raise TailorError(f"train.{name} must be {'above' if strict else 'at least'} {low}, not {value}.")
        if not 0 <= self.alike <= 1:
            raise TailorError(f"train.alike must lie between 0 and 1, not {self.alike}.")
        if self.drop_path >= 1 or self.ema >= 1:
            raise TailorError("train.drop_path and train.ema must lie in [0, 1).")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise TailorError(f"train.betas must lie in [0, 1), not {list(self.betas)}.")
        if not 0 <= self.momentum < 1:
            raise TailorError(f"train.momentum must lie in [0, 1), not {self.momentum}.")
        if self.optimizer == "sgd" and self.freeze == "slice":
            raise TailorError("train.freeze = 'slice' is written for AdamW: leave train.optimizer at 'adamw'.")
        for name in ("distill", "reg_largest_only"):
            if getattr(self, name) and self.rule != "sandwich":
                raise TailorError(
                    f"train.{name} needs train.rule = 'sandwich', which trains the largest network every step, "
                    f"not '{self.rule}'."
                )

    @property
    def peak_lr(self) -> float:
        """The rate after warm-up."""
        return self.lr * self.batch / 512 if self.lr_scaling == "batch512" else self.lr

    def lr_at(self, step: int, steps_per_epoch: int) -> float:
        """The rate of a step: a pure function, so a resumed run needs no scheduler state."""
        total, warm = self.epochs * steps_per_epoch, self.warmup * steps_per_epoch
        if step < warm:
            return self.warmup_lr + (self.peak_lr - self.warmup_lr) * (step + 1) / max(warm, 1)
        if self.schedule == "constant":
            return self.peak_lr
        progress = (step - warm) / max(total - warm, 1)
        return self.min_lr + 0.5 * (self.peak_lr - self.min_lr) * (1 + math.cos(math.pi * min(progress, 1)))
