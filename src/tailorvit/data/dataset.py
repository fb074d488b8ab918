"""Data: one source, split once, its test part sealed until somebody says why it is opened."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from tailorvit.data.augment import Augment, augment_preset
from tailorvit.data.batches import Batches, ByStep, Reading
from tailorvit.data.device import DeviceBatches, placed
from tailorvit.data.images import Size, centre_crop, checked_size, normalise, scale_bias
from tailorvit.data.pools import Pool
from tailorvit.data.sources import find
from tailorvit.data.splits import SPLITS, Ints, balanced, lacking, make_splits, record, restore
from tailorvit.data.stream import StreamBatches
from tailorvit.errors import TailorError, unknown

if TYPE_CHECKING:
    from tailorvit.trunks import Trunk

_STATISTICS = 2000  # training images behind mean and std


class Data:
    """Images by split; made by :func:`open_data`."""

    trunk: Trunk | None = None  # the frozen network behind which a decoder sees them (data/taps.py)

    def __init__(self, source: str, pool: Pool, splits: Mapping[str, Ints]) -> None:
        self.source = source
        self.classes = pool.classes
        self.channels = pool.channels
        self.image_size: Size = pool.size
        self.fingerprint = pool.fingerprint
        self.test_opened: str | None = None
        self._pool = pool
        self._recorded = {s: splits[s] for s in SPLITS}
        self._splits = dict(self._recorded)
        self._kept: dict[tuple[str, str], Tensor] = {}  # splits on devices, by name and device
        for split in ("train", "search"):
            self._load(split)
        self.mean, self.std = self._statistics()

    # -- facts ------------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> dict[str, int]:
        """Images per split."""
        return {s: len(ids) for s, ids in self._splits.items()}

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Images left out, each with the reason; those of the test split join when it is opened."""
        return tuple(self._pool.skipped)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what is odd about the data: images that are not used, classes that a split lacks."""
        return tuple(self._pool.notes)

    @property
    def failed(self) -> tuple[tuple[str, str], ...]:
        """Images that failed while streaming and were replaced by another of their class."""
        return tuple(self._pool.failed.items())

    @property
    def preprocessing(self) -> dict[str, Any]:
        """What :func:`preprocess` needs to treat a file as evaluation does; plain data."""
        return {
            "image_size": list(self.image_size),
            "channels": self.channels,
            "mean": list(self.mean),
            "std": list(self.std),
            "margin": self._pool.margin,
        }

    def split_record(self) -> dict[str, Any]:
        """The splits as plain data; pass it back as ``saved``."""
        return record(self._recorded, self.fingerprint)

    def __repr__(self) -> str:
        shape = "x".join(map(str, (self.channels, *self.image_size)))
        return f"Data({self.source!r}, {len(self.classes)} classes, {shape}, {self.counts})"

    # -- the seal ---------------------------------------------------------------------------------------------------

    def unseal_test(self, reason: str) -> None:
        """Open the test split; the first reason is kept."""
        if not reason.strip():
            raise TailorError("Opening the test split needs a reason, for example 'final accuracy'.")
        if self.test_opened is None:
            self._load("test")
            self.test_opened = reason

    def _ids(self, split: str) -> Ints:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        if split == "test" and self.test_opened is None:
            raise TailorError("The test split is sealed; call unseal_test(reason) before asking for it.")
        return self._splits[split]

    def _load(self, split: str) -> None:
        """Decode a split where it fits; what cannot be read leaves it."""
        labels = self._pool.labels
        before = self._splits[split]
        after = self._splits[split] = self._pool.load(before)
        lost = np.setdiff1d(labels[before], labels[after])
        if len(lost) and split == "train":
            name = self.classes[lost[0]]
            why = dict(self._pool.skipped)[self._pool.name(int(before[labels[before] == lost[0]][0]))]
            raise TailorError(f"None of the training images of class '{name}' can be read, the first because: {why}.")
        if not len(after):
            raise TailorError(f"The {split} split holds no readable image.")

    # -- looking ----------------------------------------------------------------------------------------------------

    def labels(self, split: str) -> Ints:
        """Class numbers of a split, in order."""
        return self._pool.labels[self._ids(split)]

    def names(self, split: str) -> list[str]:
        """File paths of a split, in order; "split[i]" for images that came as arrays."""
        ids = self._ids(split)
        if self._pool.names is None:
            return [f"{split}[{i}]" for i in range(len(ids))]
        return [self._pool.names[i] for i in ids]

    def examples(self, split: str, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Pictures to look at, uint8 (n, C, H, W) as evaluation crops them, and their class numbers."""
        ids = self._ids(split)
        if any(not 0 <= i < len(ids) for i in indices):
            raise TailorError(f"The {split} split has the positions 0 to {len(ids) - 1}, not {list(indices)}.")
        chosen = ids[np.asarray(indices, dtype=np.int64)]
        x = centre_crop(self._pool.read(chosen, ids), self.image_size)
        return x, torch.from_numpy(self._pool.labels[chosen])

    def normalise(self, x: Tensor) -> Tensor:
        """uint8 images as the network takes them."""
        return normalise(x, self.mean, self.std)

    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation per channel over evenly spaced training images."""
        ids = self._splits["train"]
        some = ids[np.unique(np.linspace(0, len(ids) - 1, min(len(ids), _STATISTICS)).astype(np.int64))]
        total = torch.zeros(2, self.channels, dtype=torch.float64)
        for at in range(0, len(some), 100):
            x = centre_crop(self._pool.read(some[at : at + 100], ids), self.image_size).double() / 255
            total += torch.stack([x.mean((2, 3)).sum(0), x.square().mean((2, 3)).sum(0)])
        mean, square = total / len(some)
        std = (square - mean.square()).clamp_min(0).sqrt()
        # A channel without contrast carries nothing; 1 keeps the division harmless.
        return tuple(mean.tolist()), tuple(s if s > 1e-4 else 1.0 for s in std.tolist())

    # -- a trunk, where there is one --------------------------------------------------------------------------------

    def ready(
        self, say: Callable[[str], None] | None = None, look: Callable[[str, int, int], None] | None = None
    ) -> None:
        """Do what has to be done once before training; images need nothing."""

    def attached(self, model: nn.Module) -> nn.Module:
        """A trained network as one that takes images: itself."""
        return model

    # -- batches ----------------------------------------------------------------------------------------------------

    def augment(self, name: str = "auto") -> Augment:
        """The augmentation preset as it suits this data."""
        images = len(self._splits["train"])
        return augment_preset(name, self.image_size, self.source, channels=self.channels, images=images)

    def split_bytes(self, split: str) -> int:
        """What a split takes as uint8, margins included."""
        return len(self._splits[split]) * math.prod(self._pool.stored)

    def place(self, split: str, device: str, on_device: str) -> str:
        """Where batches of a split are made: "host", "kept" on the device, or "streamed" to it."""
        kept = 0
        for earlier in SPLITS[: SPLITS.index(split)]:
            size = self.split_bytes(earlier)
            kept += size if placed(on_device, device, size, kept) == "kept" else 0
        return placed(on_device, device, self.split_bytes(split), kept)

    def train_batches(
        self, batch: int, seed: int, augment: Augment, device: str = "cpu", on_device: str = "never"
    ) -> ByStep:
        """Training batches by step, made by the host or on the device (``data.on_device``)."""
        ids = self._splits["train"]
        reading = Reading(
            read=lambda at: self._pool.read(ids[at], ids),
            labels=self._pool.labels[ids],
            classes=len(self.classes),
            size=self.image_size,
            mean=self.mean,
            std=self.std,
            failed=self._pool.failed,
            decoder=self._pool.decoder(ids),
        )
        where = self.place("train", device, on_device)
        if where == "kept":
            return DeviceBatches(reading, batch, seed, augment, self.kept("train", device))
        if where == "streamed":
            return StreamBatches(reading, batch, seed, augment, self._pool.stored, torch.device(device))
        return Batches(reading, batch, seed, augment)

    def kept(self, split: str, device: str) -> Tensor:
        """A split as uint8 on a device, read once."""
        ids, key = self._ids(split), (split, device)
        if key not in self._kept:
            whole = torch.empty((len(ids), *self._pool.stored), dtype=torch.uint8, device=device)
            for at in range(0, len(ids), 1024):
                whole[at : at + 1024] = self._pool.read(ids[at : at + 1024], ids).to(device)
            self._kept[key] = whole
        return self._kept[key]

    def eval_batches(
        self, split: str, batch: int, device: str = "cpu", on_device: str = "never"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """A whole split in order, centre crop, no augmentation; the last batch may be smaller.

        Images that are kept on a device come from there; class numbers stay with the host.
        """
        ids = self._ids(split)
        if batch < 1:
            raise TailorError(f"The batch size must be at least 1, not {batch}.")
        if self.place(split, device, on_device) == "kept":
            return self._on_device(split, batch, device)
        return self._evaluation(split, len(ids), batch)

    def _on_device(self, split: str, batch: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.kept(split, device), torch.from_numpy(self.labels(split))
        scale, bias = (t.to(device) for t in scale_bias(self.mean, self.std))
        for at in range(0, len(images), batch):
            x = centre_crop(images[at : at + batch], self.image_size)
            yield x.to(torch.float32).mul_(scale).add_(bias).contiguous(), labels[at : at + batch]

    def _evaluation(self, split: str, total: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for at in range(0, total, batch):
            x, y = self.examples(split, range(at, min(at + batch, total)))
            yield self.normalise(x), y


def open_data(
    source: str,
    *,
    seed: int = 0,
    image_size: int | tuple[int, int] | None = None,
    search_share: float = 0.1,
    test_share: float = 0.2,
    saved: Mapping[str, Any] | None = None,
    cache_bytes: int = 1 << 30,
    limit: int | None = None,
    earlier: Mapping[str, Any] | None = None,
) -> Data:
    """Open a source: 'digits', an image folder, .npz or .npy files, CIFAR binaries or 'torchvision:NAME@ROOT'.

    ``saved`` restores earlier splits exactly; ``limit`` keeps that many images per split, spread over the classes.
    ``earlier`` are splits to take where they were made of this very data.
    """
    if limit is not None and limit < 1:
        raise TailorError(f"The limit on images must be at least 1, not {limit}.")
    size = None if image_size is None else checked_size(image_size)
    pool = find(source)
    if saved is None and earlier is not None and earlier.get("fingerprint") == pool.fingerprint:
        saved = earlier
    if saved is None:
        splits = make_splits(pool.labels, pool.origin, pool.classes, seed, search_share, test_share)
    else:
        splits = restore(saved, pool.fingerprint, len(pool.labels))
    pool.notes += lacking(splits, pool.labels, pool.classes)
    if limit is not None:
        splits = {s: balanced(ids, pool.labels, limit, seed, s) for s, ids in splits.items()}
    pool.prepare(size, sum(map(len, splits.values())), cache_bytes)
    return Data(source, pool, splits)
