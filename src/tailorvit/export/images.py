"""Images to check an export on: the run's own test split where its data can be opened, seeded noise otherwise."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tailorvit.errors import TailorError

if TYPE_CHECKING:
    from tailorvit.data import Data
    from tailorvit.export.network import Card

BATCH = 256


@dataclass(frozen=True)
class Images:
    """Where images come from; ``data`` is None where only noise is to be had, and ``origin`` says why."""

    card: Card
    data: Data | None
    origin: str

    def some(self, count: int, split: str = "test") -> Tensor:
        """At most ``count`` normalised images, evenly spaced over the split."""
        if self.data is None:
            noise = torch.Generator().manual_seed(0)
            return torch.randn(count, *self.card.shape, generator=noise)
        total = self.data.counts[split]
        chosen = np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64)).tolist()
        return self._normalised(self.data.examples(split, chosen)[0])

    def batches(self, split: str) -> Iterator[tuple[Tensor, Tensor]]:
        """All images of a split with their class numbers."""
        assert self.data is not None
        total = self.data.counts[split]
        for at in range(0, total, BATCH):
            x, y = self.data.examples(split, range(at, min(at + BATCH, total)))
            yield self._normalised(x), y

    def _normalised(self, x: Tensor) -> Tensor:
        from tailorvit.data.images import normalise

        return normalise(x, self.card.preprocessing["mean"], self.card.preprocessing["std"])


def images_of(folder: Path, card: Card, source: str | None = None) -> Images:
    """The images of a run folder (its test split is opened), or noise with the reason.

    ``source`` says where the run's data lies now; given by hand, it must be the same data.
    """
    if not (folder / "recipe.toml").is_file():
        return Images(card, None, "random images: the folder holds a network but no run")
    try:
        data = _reopened(folder, source)
        if (data.channels, *data.image_size) != card.shape:
            raise TailorError(f"its images are {(data.channels, *data.image_size)}, the network's {card.shape}")
        data.unseal_test("to check an export")
    except (TailorError, OSError, LookupError, TypeError, ValueError) as error:
        if source is not None:
            raise TailorError(f"The run's data cannot be opened at '{source}': {error}") from error
        why = str(error).rstrip(".")
        return Images(card, None, f"random images: the run's data cannot be opened ({why})")
    return Images(card, data, "test images of the run")


def _reopened(folder: Path, source: str | None) -> Data:
    """The run's data with its recorded splits; never a new split, whose test part the run may have trained on."""
    from tailorvit.data import open_data
    from tailorvit.data.sources import source_of_run

    recipe = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
    saved = json.loads((folder / "splits.json").read_text(encoding="utf-8"))
    asked: dict[str, Any] = recipe["data"]
    size = asked.get("image_size")
    info = json.loads((folder / "info.json").read_text(encoding="utf-8"))
    return open_data(
        source or source_of_run(asked["source"], info),
        seed=recipe.get("seed", 0),
        image_size=tuple(size) if isinstance(size, list) else size,
        saved=saved,
        cache_bytes=asked.get("cache", 1 << 30),
        limit=asked.get("limit"),
    )
