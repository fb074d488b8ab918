"""Settings of one training, checked at birth."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from tailorvit.errors import TailorError

MOST_EPOCHS = 1_000_000  # more is a slip of the hand
WARMUP_LR = 1e-6  # where the warm-up starts


@dataclass(frozen=True)
class TrainSettings:
    """AdamW (or SGD) with warm-up and a schedule; the defaults suit small images on a CPU."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    epochs: int = 30
    batch: int = 128  # 0 chooses by the number of images
    accumulate: int = 1  # parts that the images of a step are taken in, their gradients added up, where memory is short
    lr: float = 1e-3  # after warm-up, whatever the batch
    min_lr: float = 1e-5
    schedule: Literal["cosine", "linear", "constant"] = "cosine"  # after warm-up
    warmup: float = 2.0  # epochs
    optimizer: Literal["adamw", "sgd"] = "adamw"
    weight_decay: float = 0.05
    layer_decay: float = 1.0  # share of the learning rate that is left with every block before the last; 1: all of it
    drop_path: float = 0.0
    clip: float = 1.0  # largest gradient norm; 0 does not clip
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"  # auto: see memory.py
    rule: Literal["single_path", "sandwich"] = "single_path"
    paths: int = 1  # single_path only: parts of a batch, each through an architecture of its own
    distill: bool = False  # sandwich only: the others learn from the largest network's outputs too (BigNAS)
    reg_largest_only: bool = False  # sandwich only: drop path in the largest network alone (BigNAS)
    freeze: Literal["none", "tensor", "slice"] = "none"
    compile: bool = False  # torch.compile: plain networks whole, supernets of the ViT family block by block
    graphs: bool = True  # record steps as CUDA graphs where that is possible; no effect on a CPU
    augment: str = "auto"
    class_weights: Literal["none", "balanced"] = "none"  # balanced: a label counts by the rarity of its class
    keep: Literal["last", "best"] = "last"  # the weights of the last epoch, or of the best one on the search images
    patience: int = 0  # with keep = "best": end after so many evaluations that found no better one; 0 never
    checkpoint_seconds: float = 20.0  # a kill loses this much, or a shorter epoch; 0 stores every epoch, none inside

    def __post_init__(self) -> None:
        for name, low, strict in (
            ("epochs", 0, True),
            ("batch", 0, False),
            ("lr", 0, True),
            ("min_lr", 0, False),
            ("warmup", 0, False),
            ("weight_decay", 0, False),
            ("drop_path", 0, False),
            ("clip", 0, False),
            ("checkpoint_seconds", 0, False),
        ):
            value = getattr(self, name)
            if not math.isfinite(value) or value < low or (strict and value == low):
                raise TailorError(f"train.{name} must be {'above' if strict else 'at least'} {low}, not {value}.")
        if not 0 < self.layer_decay <= 1:
            raise TailorError(f"train.layer_decay must be above 0 and at most 1, not {self.layer_decay}.")
        if self.epochs > MOST_EPOCHS:
            raise TailorError(f"train.epochs must be at most {MOST_EPOCHS}, not {self.epochs}.")
        if self.checkpoint_seconds < 0:
            raise TailorError(f"train.checkpoint_seconds must be at least 0, not {self.checkpoint_seconds}.")
        if self.drop_path >= 1:
            raise TailorError(f"train.drop_path must be below 1, not {self.drop_path}.")
        if self.accumulate < 1 or (self.accumulate > 1 and self.batch and self.batch // 2 < self.accumulate):
            most = f" and leave every part two of the {self.batch} images" if self.accumulate > 1 else ""
            raise TailorError(f"train.accumulate must be at least 1{most}, not {self.accumulate}.")
        if self.optimizer == "sgd" and self.freeze == "slice":
            raise TailorError("train.freeze = 'slice' needs AdamW: leave train.optimizer at 'adamw'.")
        if self.paths < 1 or (self.paths > 1 and self.rule != "single_path"):
            raise TailorError(
                f"train.paths must be 1, or more with train.rule = 'single_path', not {self.paths} with '{self.rule}'."
            )
        if self.paths > 1 and self.batch and self.batch // 2 < self.paths:
            raise TailorError(
                f"train.paths = {self.paths} needs train.batch of at least {2 * self.paths}, not {self.batch}."
            )
        if self.patience < 0 or (self.patience and self.keep != "best"):
            raise TailorError(
                f"train.patience must be 0, or more with train.keep = 'best', not {self.patience} with '{self.keep}'."
            )
        for name in ("distill", "reg_largest_only"):
            if getattr(self, name) and self.rule != "sandwich":
                raise TailorError(
                    f"train.{name} needs train.rule = 'sandwich', which trains the largest network every step, "
                    f"not '{self.rule}'."
                )

    def ending_last(self) -> TrainSettings:
        """The same without a choice of the epoch: for trainings that only compare networks."""
        return replace(self, keep="last", patience=0)

    def lr_at(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of a step: a pure function, so a resumed run needs no scheduler state."""
        total, warm = self.epochs * steps_per_epoch, self.warmup * steps_per_epoch
        if step < warm:
            return WARMUP_LR + (self.lr - WARMUP_LR) * (step + 1) / max(warm, 1)
        if self.schedule == "constant":
            return self.lr
        progress = (step - warm) / max(total - warm, 1)
        if self.schedule == "linear":  # the "poly" schedule of power 1
            return self.min_lr + (self.lr - self.min_lr) * (1 - min(progress, 1))
        return self.min_lr + 0.5 * (self.lr - self.min_lr) * (1 + math.cos(math.pi * min(progress, 1)))
