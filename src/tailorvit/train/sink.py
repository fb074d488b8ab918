"""Where a training writes: checkpoints, epochs, events. The run folder is one; this plain one keeps nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


class Sink:
    """A sink that forgets; subclasses store."""

    def save(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Keep the state of a training."""

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The state kept last."""
        return None

    def epoch(self, epoch: int, facts: Mapping[str, Any]) -> None:
        """An epoch has ended."""

    def event(self, kind: str, text: str) -> None:
        """Something worth telling has happened."""

    def progress(self, step: int, total: int, facts: Mapping[str, Any]) -> None:
        """A step has ended."""
