"""Pools: where pixels come from, an array in memory or images decoded on demand, behind one ``read``."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from tailorvit.data.images import MARGIN, Pixels, Size, fit, reason, stored_size, to_image, to_pixels
from tailorvit.data.splits import Ints
from tailorvit.data.store import Decoded, Decoder, Raw, Store, raw_of
from tailorvit.errors import TailorError
from tailorvit.portable import usable_cores

if TYPE_CHECKING:
    from PIL import Image

_SIDES = (32, 48, 64, 96, 128, 160, 224)
_THREADS: dict[int, ThreadPoolExecutor] = {}
A = TypeVar("A")
B = TypeVar("B")


def thread_map(work: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Map over threads; one pool per process, because a forked child inherits none of its parent's threads."""
    worker = get_worker_info()
    cores = usable_cores() // (1 if worker is None else worker.num_workers)  # worker processes share them
    if worker is not None and cores <= 1:
        return [work(item) for item in items]
    pool = _THREADS.get(os.getpid())
    if pool is None:
        pool = _THREADS[os.getpid()] = ThreadPoolExecutor(min(16, cores), thread_name_prefix="tailorvit-decode")
    return list(pool.map(work, items))


class Pool:
    """All images of a source, in one fixed order."""

    def __init__(
        self,
        classes: Sequence[str],
        labels: Ints,
        origin: NDArray[Any],
        fingerprint: str,
        channels: int,
        names: Sequence[str] | None = None,
        skipped: Iterable[tuple[str, str]] = (),
        notes: Iterable[str] = (),
    ) -> None:
        self.classes = tuple(classes)
        self.labels = labels
        self.origin = origin
        self.fingerprint = fingerprint
        self.channels = channels
        self.names = names
        self.skipped = list(skipped)
        self.notes = list(notes)  # what a person may want to know of the data, in sentences
        self.failed: dict[str, str] = {}
        self.size: Size = (0, 0)
        self.margin = 1.0
        if len(self.classes) < 2:
            raise TailorError(
                f"The data has one class only, '{''.join(self.classes)}'; at least two are needed (class folders lie "
                "directly in the folder given, or in its split folders)."
            )

    def name(self, index: int) -> str:
        """The file's path, or the item's number."""
        return self.names[index] if self.names is not None else f"item {index}"

    @property
    def stored(self) -> tuple[int, int, int]:
        """(C, H, W) of the images as :meth:`read` gives them."""
        raise NotImplementedError

    def prepare(self, size: Size | None, total: int, cache_bytes: int) -> None:
        """Settle the network's image size (None: from the data); ``total`` images may be asked for later."""
        raise NotImplementedError

    def load(self, ids: Ints) -> Ints:
        """Bring images into memory where they fit; returns the ids that can be read."""
        raise NotImplementedError

    def read(self, ids: Ints, among: Ints) -> Tensor:
        """uint8 (n, C, H, W) at stored size; what fails is replaced by another of its class ``among`` its split."""
        raise NotImplementedError

    def decoder(self, ids: Ints) -> Decoder | None:
        """What a stream needs to leave part of the work on files to the device; None for arrays."""
        return None


class ArrayPool(Pool):
    """Images that came as one array."""

    def __init__(self, images: Pixels, **named: Any) -> None:
        super().__init__(channels=images.shape[1], **named)
        self.images = images

    @property
    def stored(self) -> tuple[int, int, int]:
        """The array's."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def prepare(self, size: Size | None, total: int, cache_bytes: int) -> None:
        """Keep the array's own size, or resize it once."""
        own = (int(self.images.shape[2]), int(self.images.shape[3]))
        self.size = size or own
        if self.size == own:
            return
        out = np.empty((*self.images.shape[:2], *self.size), np.uint8)
        for i, pixels in enumerate(self.images):
            array = np.asarray(fit(to_image(pixels), self.size))
            out[i] = array if array.ndim == 2 else array.transpose(2, 0, 1)
        self.images = out

    def load(self, ids: Ints) -> Ints:
        """Arrays are in memory already."""
        return ids

    def read(self, ids: Ints, among: Ints) -> Tensor:
        """Rows of the array."""
        return torch.from_numpy(self.images[ids])


class ItemPool(Pool):
    """Images opened one by one, from files or from a dataset object."""

    def __init__(
        self, opener: Callable[[int], Image.Image], short_sides: NDArray[Any], threads: bool, **named: Any
    ) -> None:
        super().__init__(**named)
        self.opener = opener
        self.short = float(np.median(short_sides))
        self.threads = threads
        self.caching = False  # whether all images fit the cache and are decoded at once
        self.shape = (self.channels, 0, 0)
        self.store = Store(len(self.labels), self.shape, 0)
        self.seen: Counter[Size] = Counter()  # sizes met while streaming

    @property
    def stored(self) -> tuple[int, int, int]:
        """With the margin that crops play in."""
        return self.shape

    def prepare(self, size: Size | None, total: int, cache_bytes: int) -> None:
        """Pick the largest usual side under the median short side; small images get no margin, which would blur."""
        if size is None:
            side = max([s for s in _SIDES if s <= self.short], default=_SIDES[0])
            size = (side, side)
        self.size = size
        self.margin = MARGIN if self.short >= min(stored_size(size, MARGIN)) else 1.0
        height, width = stored_size(size, self.margin)
        self.shape = (self.channels, height, width)
        room = cache_bytes // math.prod(self.shape)
        self.caching = total <= room
        self.store = Store(len(self.labels), self.shape, min(total, room))

    def _decode(self, index: int) -> Pixels | str:
        """Pixels, or the reason why there are none."""
        try:
            with self.opener(index) as image:
                return to_pixels(image, self.channels, stored_size(self.size, self.margin))
        except Exception as error:  # decoders raise whatever they like on broken files
            return reason(error)

    def _map(self, work: Callable[[int], B], ids: Ints) -> list[B]:
        items = ids.tolist()
        return thread_map(work, items) if self.threads else [work(i) for i in items]

    def load(self, ids: Ints) -> Ints:
        """Give the images their places in the store; fill them now where everything fits, else as they are read."""
        self.store.claim(ids)
        if not self.caching:
            return ids
        good: list[int] = []
        for at in range(0, len(ids), 256):
            for index, pixels in zip(ids[at : at + 256].tolist(), self._map(self._decode, ids[at : at + 256])):
                if isinstance(pixels, str):
                    self.skipped.append((self.name(index), pixels))
                    continue
                self.store.put(np.asarray([index]), pixels[None])
                good.append(index)
        return np.asarray(good, dtype=np.int64)

    def read(self, ids: Ints, among: Ints) -> Tensor:
        """From the store, or by a fresh decode that fills it."""
        held = self.store.holds(ids)
        if held.all():
            return torch.from_numpy(self.store.get(ids))
        out = np.empty((len(ids), *self.shape), np.uint8)
        out[held] = self.store.get(ids[held])
        missing = np.flatnonzero(~held)
        for k, pixels in zip(missing.tolist(), self._map(self._decode, ids[missing])):
            out[k] = self._kept(int(ids[k]), pixels, among)
        return torch.from_numpy(out)

    def _kept(self, index: int, pixels: Pixels | str, among: Ints) -> Pixels:
        """Pixels on their way through the store, or those of another image, which are not kept for this one."""
        if isinstance(pixels, str):
            return self._instead(index, pixels, among)
        self.store.put(np.asarray([index]), pixels[None])
        return pixels

    def decoder(self, ids: Ints) -> Decoder:
        """For streams: files half done, and the store by positions."""
        store = self.store
        return Decoder(
            lambda at: self._decoded(ids[at], ids),
            lambda at, out: store.take(ids[at], out),
            lambda at: store.wants(ids[at]),
            lambda at, pixels: store.put(ids[at], pixels),
        )

    def _half(self, index: int) -> Raw | Pixels | str:
        try:
            with self.opener(index) as image:
                return raw_of(image, self.channels, stored_size(self.size, self.margin), self.seen)
        except Exception as error:  # as above
            return reason(error)

    def _decoded(self, ids: Ints, among: Ints) -> Decoded:
        held = self.store.holds(ids)
        missing = np.flatnonzero(~held)
        out = Decoded(np.flatnonzero(held), [], [])
        for k, found in zip(missing.tolist(), self._map(self._half, ids[missing])):
            if isinstance(found, Raw):
                out.raw.append((k, found))
            else:
                out.fitted.append((k, self._kept(int(ids[k]), found, among)))
        return out

    def _instead(self, index: int, why: str, among: Ints) -> Pixels:
        """The next image of the same class in the same split: a rule, not a draw, so batches stay reproducible."""
        self.failed[self.name(index)] = why
        same = among[self.labels[among] == self.labels[index]]
        later = np.searchsorted(same, index, side="right")
        for other in np.roll(same, -int(later)).tolist():
            if self.name(other) not in self.failed:
                pixels = self._decode(other)
                if not isinstance(pixels, str):
                    return pixels
                self.failed[self.name(other)] = pixels
        raise TailorError(f"No image of class '{self.classes[self.labels[index]]}' can be read any more: {why}.")
