"""Data: one source, split once; its test split is sealed until it is opened with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from tailorvit.data.augment import Augment, augment_preset
from tailorvit.data.batches import DeviceBatches, HostBatches, SplitReader, StreamBatches, TrainBatches, placement
from tailorvit.data.disk_cache import DISK_BYTES, bounded
from tailorvit.data.images import ImageSet, centre_crop, normalise, scale_bias
from tailorvit.data.sources import read_source
from tailorvit.data.splits import (
    SPLITS,
    USUAL_SHARE,
    Ints,
    balanced_subset,
    make_splits,
    missing_classes,
    record,
    require_open,
    require_reason,
    restore,
)
from tailorvit.errors import TailorError
from tailorvit.portable import Size, checked_size

if TYPE_CHECKING:
    from tailorvit.trunks import Trunk

_STATISTICS = 2000  # training images that mean and std are computed from
_STATISTICS_VALUES = 2**27  # at once, as double precision
_FORBID = {"extra": "forbid"}  # unknown recipe keys are an error


@dataclass(frozen=True)
class DataSettings:
    """Which images, at which size, split how."""

    __pydantic_config__ = _FORBID
    source: str = "digits"
    image_size: int | tuple[int, int] | None = None
    search_share: float | None = None  # 0.1, and more of a small set (splits.py)
    test_share: float = 0.2
    limit: int | None = None  # at most this many images per split, class-balanced
    cache: int = 1 << 30  # bytes of decoded images kept in memory
    disk_cache: int = DISK_BYTES  # bytes of shards from elsewhere kept on disk

    def __post_init__(self) -> None:
        search = USUAL_SHARE if self.search_share is None else self.search_share
        if not (0 < search < 0.9 and 0 < self.test_share < 0.9 and search + self.test_share < 0.95):
            raise TailorError("data.search_share and data.test_share must be above 0 and leave images to train on.")
        if self.cache < 0:
            raise TailorError(f"data.cache, in bytes, must be at least 0, not {self.cache}.")
        if self.disk_cache < 1:
            raise TailorError(f"data.disk_cache, in bytes, must be at least 1, not {self.disk_cache}.")


class Data:
    """Images by split; made by :func:`open_data`."""

    trunk: Trunk | None = None  # the frozen network before a decoder, where there is one (data/trunk_features.py)

    def __init__(self, source: str, images: ImageSet, splits: Mapping[str, Ints]) -> None:
        self.source = source
        self.classes = images.classes
        self.channels = images.channels
        self.image_size: Size = images.size
        self.fingerprint = images.fingerprint
        self.test_opened: str | None = None
        self._images = images
        self._recorded = {s: splits[s] for s in SPLITS}
        self._splits = dict(self._recorded)
        self._resident: dict[tuple[str, str], Tensor] = {}  # whole splits on devices, by split and device
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
        """Images left out, each with the reason; those of the test split are added when it is opened."""
        return tuple(self._images.skipped)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is unusual: images that are not used, classes that a split lacks."""
        return tuple(self._images.notes)

    @property
    def failed(self) -> tuple[tuple[str, str], ...]:
        """Images that could not be read during training and were replaced by another of their class."""
        return tuple(self._images.failed.items())

    @property
    def preprocessing(self) -> dict[str, Any]:
        """What :func:`preprocess` needs to prepare a file as evaluation does; plain data."""
        return {
            "image_size": list(self.image_size),
            "channels": self.channels,
            "mean": list(self.mean),
            "std": list(self.std),
            "margin": self._images.margin,
        }

    def split_record(self) -> dict[str, Any]:
        """The splits as plain data; pass it back as ``saved``."""
        return record(self._recorded, self.fingerprint, self._images.files, self._images.ends)

    def __repr__(self) -> str:
        shape = "x".join(map(str, (self.channels, *self.image_size)))
        return f"Data({self.source!r}, {len(self.classes)} classes, {shape}, {self.counts})"

    # -- the sealed test split --------------------------------------------------------------------------------------

    def unseal_test(self, reason: str) -> None:
        """Open the test split; the first reason is recorded."""
        require_reason(reason)
        if self.test_opened is None:
            self._load("test")
            self.test_opened = reason

    def _ids(self, split: str) -> Ints:
        require_open(split, self.test_opened)
        return self._splits[split]

    def _load(self, split: str) -> None:
        """Decode a split where it fits into memory; unreadable images leave the split."""
        labels = self._images.labels
        before = self._splits[split]
        after = self._splits[split] = self._images.load(before)
        lost = np.setdiff1d(labels[before], labels[after])
        if len(lost) and split == "train":
            name = self.classes[lost[0]]
            why = dict(self._images.skipped)[self._images.name(int(before[labels[before] == lost[0]][0]))]
            raise TailorError(f"None of the training images of class '{name}' can be read, the first because: {why}.")
        if not len(after):
            raise TailorError(f"The {split} split holds no readable image.")

    def changed(self) -> str:
        """A sentence on files that changed since the data were read; empty where none did."""
        files = self._images.changed()
        if not files:
            return ""
        more = f" and {len(files) - 1} more" if files[1:] else ""
        return (
            f"Data changed during the run: '{files[0]}'{more} became another file or went away, "
            "so the result cannot be made again from these images."
        )

    # -- single images ----------------------------------------------------------------------------------------------

    def labels(self, split: str) -> Ints:
        """Class numbers of a split, in order."""
        return self._images.labels[self._ids(split)]

    def names(self, split: str) -> list[str]:
        """File paths of a split, in order; "split[i]" for images that came as arrays."""
        ids = self._ids(split)
        if self._images.names is None:
            return [f"{split}[{i}]" for i in range(len(ids))]
        return [self._images.names[i] for i in ids]

    def examples(self, split: str, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images by position in a split, uint8 (n, C, H, W) as evaluation crops them, and their class numbers."""
        ids = self._ids(split)
        if any(not 0 <= i < len(ids) for i in indices):
            raise TailorError(f"The {split} split has the positions 0 to {len(ids) - 1}, not {list(indices)}.")
        chosen = ids[np.asarray(indices, dtype=np.int64)]
        x = centre_crop(self._images.read(chosen, ids), self.image_size)
        return x, torch.from_numpy(self._images.labels[chosen])

    def normalise(self, x: Tensor) -> Tensor:
        """uint8 images as the network takes them."""
        return normalise(x, self.mean, self.std)

    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation per channel over evenly spaced training images."""
        ids = self._splits["train"]
        spaced = self._images.spaced(ids, _STATISTICS)
        total = torch.zeros(2, self.channels, dtype=torch.float64)
        step = min(100, max(1, _STATISTICS_VALUES // math.prod(self._images.stored_shape)))
        for at in range(0, len(spaced), step):
            x = centre_crop(self._images.read(spaced[at : at + step], ids), self.image_size).double() / 255
            total += torch.stack([x.mean((2, 3)).sum(0), x.square().mean((2, 3)).sum(0)])
        mean, square = total / len(spaced)
        std = (square - mean.square()).clamp_min(0).sqrt()
        # A channel without contrast carries nothing; 1 keeps the division harmless.
        return tuple(mean.tolist()), tuple(s if s > 1e-4 else 1.0 for s in std.tolist())

    # -- overridden where there is a trunk (TrunkFeatureData) --------------------------------------------------------

    def prepare(
        self, log: Callable[[str], None] | None = None, progress: Callable[[str, int, int], None] | None = None
    ) -> None:
        """Do what must be done once before training; images need nothing."""

    def with_trunk(self, model: nn.Module) -> nn.Module:
        """A trained network as one that takes images: itself, where there is no trunk."""
        return model

    # -- batches ----------------------------------------------------------------------------------------------------

    def augment(self, name: str = "auto") -> Augment:
        """The augmentation preset for this data."""
        images = len(self._splits["train"])
        return augment_preset(name, self.image_size, self.source, channels=self.channels, images=images)

    def split_bytes(self, split: str) -> int:
        """The size of a split as uint8, margins included."""
        return len(self._splits[split]) * math.prod(self._images.stored_shape)

    def placement(self, split: str, device: str, on_device: str = "auto") -> str:
        """Where batches of a split are made: "host", or on the device from "resident" or "streamed" images."""
        resident = 0
        for earlier in SPLITS[: SPLITS.index(split)]:
            size = self.split_bytes(earlier)
            resident += size if placement(on_device, device, size, resident) == "resident" else 0
        return placement(on_device, device, self.split_bytes(split), resident)

    def train_batches(
        self, batch: int, seed: int, augment: Augment, device: str = "cpu", on_device: str = "auto"
    ) -> TrainBatches:
        """Training batches by step, made by the host or on the device; ``on_device`` may force one of the two."""
        ids = self._splits["train"]
        reader = SplitReader(
            read=lambda at: self._images.read(ids[at], ids),
            labels=self._images.labels[ids],
            classes=len(self.classes),
            size=self.image_size,
            mean=self.mean,
            std=self.std,
            failed=self._images.failed,
            files=self._images.file_access(ids),
            order=self._images.order(ids),
            ahead=self._images.ahead(ids),
        )
        where = self.placement("train", device, on_device)
        if where == "resident":
            return DeviceBatches(reader, batch, seed, augment, self.resident("train", device))
        if where == "streamed":
            return StreamBatches(reader, batch, seed, augment, self._images.stored_shape, torch.device(device))
        return HostBatches(reader, batch, seed, augment)

    def resident(self, split: str, device: str) -> Tensor:
        """A whole split as uint8 on a device, read once."""
        ids, key = self._ids(split), (split, device)
        if key not in self._resident:
            images = torch.empty((len(ids), *self._images.stored_shape), dtype=torch.uint8, device=device)
            with self._images.fetched_ahead(ids, 1024) as reached:
                for at in range(0, len(ids), 1024):
                    reached(at)
                    images[at : at + 1024] = self._images.read(ids[at : at + 1024], ids).to(device)
            self._resident[key] = images
        return self._resident[key]

    def eval_batches(
        self, split: str, batch: int, device: str = "cpu", on_device: str = "auto"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """A whole split in order, centre crop, no augmentation; the last batch may be smaller.

        Resident images come from their device; class numbers stay on the host.
        """
        ids = self._ids(split)
        if batch < 1:
            raise TailorError(f"The batch size must be at least 1, not {batch}.")
        if self.placement(split, device, on_device) == "resident":
            return self._eval_on_device(split, batch, device)
        return self._eval_on_host(split, len(ids), batch)

    def _eval_on_device(self, split: str, batch: int, device: str) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.resident(split, device), torch.from_numpy(self.labels(split))
        scale, bias = (t.to(device) for t in scale_bias(self.mean, self.std))
        for at in range(0, len(images), batch):
            x = centre_crop(images[at : at + batch], self.image_size)
            yield x.to(torch.float32).mul_(scale).add_(bias).contiguous(), labels[at : at + batch]

    def _eval_on_host(self, split: str, total: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        with self._images.fetched_ahead(self._ids(split), batch) as reached:
            for at in range(0, total, batch):
                reached(at)
                x, y = self.examples(split, range(at, min(at + batch, total)))
                yield self.normalise(x), y


def open_data(
    source: str,
    *,
    seed: int = 0,
    image_size: int | tuple[int, int] | None = None,
    search_share: float | None = None,
    test_share: float = 0.2,
    saved: Mapping[str, Any] | None = None,
    cache_bytes: int = 1 << 30,
    disk_bytes: int = DISK_BYTES,
    limit: int | None = None,
    earlier: Mapping[str, Any] | None = None,
) -> Data:
    """Read and split a data source: a name, NAME:REST or a path (docs/data.md lists them).

    ``saved`` restores recorded splits exactly. ``earlier`` are splits to use only if they were made of the same data.
    ``limit`` keeps at most that many images per split, spread over the classes. Without a ``search_share`` the number
    of images decides it.
    """
    if limit is not None and limit < 2:  # of one image, whose class is the only one, 100 % are always right
        raise TailorError(f"The limit on images must be at least 2, not {limit}.")
    size = None if image_size is None else checked_size(image_size)
    with bounded(disk_bytes):
        images = read_source(source)
    if saved is None and earlier is not None and earlier.get("fingerprint") == images.fingerprint:
        saved = earlier
    if saved is None:
        splits = make_splits(
            images.labels, images.origin, images.classes, seed, search_share, test_share, images.shards
        )
    else:
        splits = restore(saved, images.fingerprint, len(images.labels), images.files, images.ends)
    if limit is not None:
        splits = {s: balanced_subset(ids, images.labels, limit, seed, s, images.shards) for s, ids in splits.items()}
    images.notes += missing_classes(splits, images.labels, images.classes)
    images.prepare(size, sum(map(len, splits.values())), cache_bytes)
    return Data(source, images, splits)
