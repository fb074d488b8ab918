"""The loss of a step, and training without stochastic depth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy against soft targets, in float32."""
    return -(target * logits.float().log_softmax(-1)).sum(-1).mean()


@contextmanager
def without_drop_path(model: nn.Module) -> Iterator[None]:
    """No stochastic depth inside; everything else stays as in training (evaluation mode would change batch norms)."""
    blocks: list[tuple[Any, Any]] = [
        (m, m.rate) for m in model.modules() if isinstance(getattr(m, "rate", None), int | float)
    ]
    try:
        for block, _ in blocks:
            block.rate = 0.0
        yield
    finally:
        for block, rate in blocks:
            block.rate = rate
