"""The scale of the loss in fp16: small gradients would be zero in 16 bits, so the loss is multiplied before them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

FIRST, MOST = 2.0**16, 2.0**24  # powers of two: multiplying and dividing by them loses nothing
GROW_AFTER = 2000  # steps in a row, after which a scale twice as large is tried


class LossScale:
    """Lives in a training's ``meta``, so checkpoints and roll-backs hold it; without fp16 it is 1 and stays it.

    A step whose gradients overflow is done again with half the scale, so none is lost to a scale that is too large.
    Where no scale helps, the scale of before is kept: the step itself is at fault.
    """

    def __init__(self, on: bool) -> None:
        self.on = on

    def start(self) -> dict[str, Any]:
        """What it adds to the meta of a new training."""
        return {"loss_scale": FIRST, "scale_held": 0} if self.on else {}

    def of(self, meta: dict[str, Any]) -> float:
        """The factor of the loss."""
        return float(meta["loss_scale"]) if self.on else 1.0

    def halve(self, meta: dict[str, Any]) -> bool:
        """After an overflow: whether a smaller scale can be tried."""
        if not self.on or meta["loss_scale"] <= 1:
            return False
        meta.update(loss_scale=meta["loss_scale"] / 2, scale_held=0)
        return True

    def keep(self, meta: dict[str, Any], before: float) -> None:
        """No scale helped: the one of before."""
        if self.on:
            meta["loss_scale"] = before

    def good(self, meta: dict[str, Any]) -> None:
        """Count a step, and grow after many."""
        if self.on:
            meta["scale_held"] += 1
            if meta["scale_held"] >= GROW_AFTER:
                meta.update(loss_scale=min(2 * meta["loss_scale"], MOST), scale_held=0)

    @torch.no_grad()
    def divide(self, parameters: Iterable[nn.Parameter], meta: dict[str, Any]) -> None:
        """Make gradients of the scaled loss those of the loss."""
        found = [p.grad for p in parameters if p.grad is not None]
        if self.on and found:
            torch._foreach_mul_(found, 1 / self.of(meta))
