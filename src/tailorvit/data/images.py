"""Images as tensors, and sets of images that are read alike: from an array in memory, or decoded on demand."""

from __future__ import annotations

import math
import mmap
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from tailorvit.data.resize import Span, pillow_vertical_first, pixel_range, source_spans
from tailorvit.data.splits import Files, Ints
from tailorvit.errors import TailorError
from tailorvit.memory import require_memory
from tailorvit.portable import (
    MARGIN,
    Pixels,
    Preprocessing,
    Size,
    checked_size,
    fit,
    flat,
    prepare,
    reason,
    stored_size,
    to_image,
    to_pixels,
    usable_cores,
)

if TYPE_CHECKING:
    from PIL import Image

LARGEST = 2  # an image may reach the device unresized up to this many times its resized sides: Pillow's draft aims at 2
_USUAL_SIDES = (32, 48, 64, 96, 128, 160, 224)
_SIGHTINGS = 3  # finding Pillow's resize order for a size costs as much as three images, so the size must recur first
_THREADS: dict[int, ThreadPoolExecutor] = {}
A = TypeVar("A")
B = TypeVar("B")
# Takes the steps to come with the positions read for each, has their files fetched, and is told the step reached.
Ahead = Callable[[Iterable[tuple[int, Ints]]], AbstractContextManager[Callable[[int], None]]]


class UnreachableError(TailorError):
    """Images that cannot be had now, though nothing says that they are broken: no others may take their place."""


# -- tensors ----------------------------------------------------------------------------------------------------------


def centre_crop(x: Tensor, size: Size) -> Tensor:
    """The middle of the last two dimensions."""
    top, left = (x.shape[-2] - size[0]) // 2, (x.shape[-1] - size[1]) // 2
    return x[..., top : top + size[0], left : left + size[1]]


def scale_bias(mean: Sequence[float], std: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Per channel, the scale and bias that normalise values in 0..255: x * scale + bias."""
    scale = 1 / (255 * torch.tensor(std, dtype=torch.float32))
    bias = -torch.tensor(mean, dtype=torch.float32) * 255 * scale
    return scale[:, None, None], bias[:, None, None]


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 (B, C, H, W) to float32, minus the mean and divided by the standard deviation."""
    scale, bias = scale_bias(mean, std)
    return x.to(torch.float32).mul_(scale).add_(bias)


def preprocess(
    path: str | Path,
    *,
    image_size: int | Sequence[int],
    channels: int,
    mean: Sequence[float],
    std: Sequence[float],
    margin: float = MARGIN,
    interpolation: str = "bicubic",
) -> Tensor:
    """One file as evaluation prepares it, (1, C, H, W); ``Data.preprocessing`` holds the arguments."""
    how = Preprocessing(checked_size(image_size), channels, tuple(mean), tuple(std), margin, interpolation)
    return torch.from_numpy(prepare(path, how))[None]


def thread_map(work: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Map over threads; one thread pool per process, because a forked child inherits none of its parent's threads."""
    worker = get_worker_info()
    cores = usable_cores() // (1 if worker is None else worker.num_workers)  # worker processes share them
    if worker is not None and cores <= 1:
        return [work(item) for item in items]
    threads = _THREADS.get(os.getpid())
    if threads is None:
        threads = _THREADS[os.getpid()] = ThreadPoolExecutor(min(16, cores), thread_name_prefix="tailorvit-decode")
    return list(threads.map(work, items))


# -- decoded images ---------------------------------------------------------------------------------------------------


def shared_bytes(shape: tuple[int, ...]) -> Pixels:
    """Zeros that forked processes share; memory is taken only when it is written."""
    return np.frombuffer(mmap.mmap(-1, max(1, math.prod(shape))), np.uint8, math.prod(shape)).reshape(shape)


class ImageCache:
    """Decoded images by number, up to a number of rows, in memory that parent and workers share.

    Every process forked later sees what any of them wrote. An image's flag is set after its pixels, so a process that
    dies while it writes leaves a missing image, never a half-written one.
    """

    def __init__(self, images: int, shape: tuple[int, ...], rows: int) -> None:
        self.rows = shared_bytes((rows, *shape))
        self.filled = shared_bytes((rows,))
        self._row: Ints = np.full(images, -1, np.int64)
        self._next = 0

    def reserve(self, ids: Ints) -> None:
        """Give images a row, in the order they come, while rows are left."""
        new = ids[self._row[ids] < 0][: len(self.rows) - self._next]
        self._row[new] = np.arange(self._next, self._next + len(new))
        self._next += len(new)

    def has(self, ids: Ints) -> NDArray[np.bool_]:
        """Which images are here."""
        return self._state(ids, 1)

    def lacks(self, ids: Ints) -> NDArray[np.bool_]:
        """Which images have a row that is still empty."""
        return self._state(ids, 0)

    def _state(self, ids: Ints, filled: int) -> NDArray[np.bool_]:
        row = self._row[ids]
        out = row >= 0
        out[out] = self.filled[row[out]] == filled
        return out

    def put(self, ids: Ints, pixels: Pixels) -> None:
        """Store images; those without a row are dropped. Storing twice is harmless: both write the same."""
        row = self._row[ids]
        self.rows[row[row >= 0]] = pixels[row >= 0]
        self.filled[row[row >= 0]] = 1

    def get(self, ids: Ints) -> Pixels:
        """Images that are here."""
        return self.rows[self._row[ids]]

    def copy_to(self, ids: Ints, out: Pixels) -> None:
        """Images that are here, copied into the caller's memory."""
        np.take(self.rows, self._row[ids], axis=0, out=out, mode="clip")  # any other mode copies twice


class UnresizedImage(NamedTuple):
    """An upright image before its resize, cut to what the resize needs: (h, w, C)."""

    pixels: Pixels
    spans: tuple[Span, Span]
    vertical_first: bool


@dataclass(frozen=True)
class DecodedImages:
    """Images by their places in a list: in the cache already, resized, or not yet resized."""

    cached: Ints
    resized: list[tuple[int, Pixels]]
    unresized: list[tuple[int, UnresizedImage]]


@dataclass(frozen=True)
class FileAccess:
    """How streamed batches reach files and the cache; every function takes positions within the split."""

    decode: Callable[[Ints], DecodedImages]
    copy_cached: Callable[[Ints, Pixels], None]
    lacks: Callable[[Ints], NDArray[np.bool_]]
    put: Callable[[Ints, Pixels], None]


def decode_unresized(
    image: Image.Image, channels: int, size: Size, sightings: Counter[Size]
) -> UnresizedImage | Pixels:
    """An opened image without its resize, where the device can make the same one; else as ``to_pixels`` gives it."""
    from PIL import ImageOps

    image.draft(None, (2 * max(size), 2 * max(size)))  # as to_pixels does
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode != ("L" if channels == 1 else "RGB") or "transparency" in image.info:
        image = flat(image, channels)
    have = image.height, image.width
    spans = source_spans(have, size)
    (top, bottom), (left, right) = (pixel_range(s, g) for s, g in zip(spans, size))
    small = bottom - top <= LARGEST * size[0] and right - left <= LARGEST * size[1]
    sightings[have] += 1
    first = pillow_vertical_first(have, size, channels) if small and sightings[have] >= _SIGHTINGS else None
    if first is None:
        return to_pixels(image, channels, size)
    array: Pixels = np.asarray(image).reshape(*have, channels)
    return UnresizedImage(array[top:bottom, left:right], spans, first)


# -- sets of images ---------------------------------------------------------------------------------------------------

GONE, ALTERED = "it went away", "it became another file"


ENDS = 4096  # bytes at either end of a file that its checksum is made of


class Seal(NamedTuple):
    """What a file was when the data was listed."""

    bytes: int
    changed: int  # when, in nanoseconds
    ends: int  # checksum of its first and last bytes, as whole files take long to read


def seal(path: Path) -> Seal:
    """The seal of a file as it is now."""
    with path.open("rb") as file:
        facts = os.fstat(file.fileno())
        ends = zlib.crc32(file.read(ENDS))
        if facts.st_size > ENDS:
            file.seek(max(ENDS, facts.st_size - ENDS))
            ends = zlib.crc32(file.read(ENDS), ends)
    return Seal(facts.st_size, facts.st_mtime_ns, ends)


def state_of(path: Path, then: Seal) -> str:
    """What became of a file since: GONE, ALTERED, or nothing. Its ends are read only if it was written to."""
    try:
        facts = path.stat()
        if facts.st_size != then.bytes:
            return ALTERED
        return "" if facts.st_mtime_ns == then.changed or seal(path).ends == then.ends else ALTERED
    except OSError:
        return GONE


class ImageSet:
    """All images of a data source, in one fixed order; what :attr:`DataSource.read` returns.

    ``labels`` are class numbers into ``classes``. ``origin`` says for each image which part of the data it came from:
    "all", or "train", "val" and "test". The fingerprint changes when the data does. ``skipped`` are (name, reason) of
    images left out, ``notes`` are sentences about the data for the user. ``files`` are the images' names below the
    data's folder with their bytes, where they are files, and ``seals`` tell whether they are still the same; ``files``
    is a mapping where each file holds many images. ``shards`` is then the number of each image's file.
    """

    shards: Ints | None = None

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
        files: Files | Mapping[str, int] | None = None,
        seals: Sequence[Seal] = (),
    ) -> None:
        self.classes = tuple(classes)
        self.labels = labels
        self.origin = origin
        self.fingerprint = fingerprint
        self.channels = channels
        self.names = names
        self.files = files
        self.seals = seals
        self.skipped = list(skipped)
        self.notes = list(notes)
        self.failed: dict[str, str] = {}
        self.size: Size = (0, 0)
        self.margin = 1.0
        if len(self.classes) < 2:
            raise TailorError(
                f"The data has one class only, '{''.join(self.classes)}'; at least two are needed (class folders lie "
                "directly in the folder given, or in its split folders)."
            )

    def name(self, index: int) -> str:
        """The file's path, or the image's number."""
        return self.names[index] if self.names is not None else f"item {index}"

    @property
    def stored_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images as :meth:`read` gives them."""
        raise NotImplementedError

    def prepare(self, size: Size | None, total: int, cache_bytes: int) -> None:
        """Set the network's image size (None: from the data); ``total`` images may be read later."""
        raise NotImplementedError

    def load(self, ids: Ints) -> Ints:
        """Load images into memory where they fit; returns the ids of those that can be read."""
        raise NotImplementedError

    def read(self, ids: Ints, among: Ints) -> Tensor:
        """uint8 (n, C, H, W) at stored size; an unreadable image is replaced by one of its class from ``among``."""
        raise NotImplementedError

    def file_access(self, ids: Ints) -> FileAccess | None:
        """What streamed batches need to leave the resize of files to the device; None for arrays."""
        return None

    def spaced(self, ids: Ints, count: int) -> Ints:
        """So many of the ids, evenly spaced: those that the set's mean and deviation come from."""
        return ids[np.unique(np.linspace(0, len(ids) - 1, min(len(ids), count)).astype(np.int64))]

    def order(self, ids: Ints) -> Callable[[int, int, int], Ints] | None:
        """Positions of an epoch by (seed, epoch, batch), where the order matters to the reader; None: any order."""
        return None

    def ahead(self, ids: Ints) -> Ahead | None:
        """How files are fetched before they are needed; None where all are at hand."""
        return None

    def fetched_ahead(self, ids: Ints, many: int) -> AbstractContextManager[Callable[[int], None]]:
        """Inside, files are fetched for images that are read in this order, so many at a time; it is told how far."""
        ahead = self.ahead(ids)
        if ahead is None:
            return nullcontext(lambda at: None)
        every = np.arange(len(ids))
        return ahead((at, every[at : at + many]) for at in range(0, len(ids), many))

    def changed(self) -> list[str]:
        """The files that are gone or others since the set was read, or were so when they were opened."""
        then, files = dict([*self.skipped, *self.failed.items()]), self.files
        named = () if files is None or isinstance(files, Mapping) else [name for name, _ in files]
        return [
            name
            for path, name, sealed in zip(self.names or (), named, self.seals)
            if then.get(path) in (GONE, ALTERED) or state_of(Path(path), sealed)
        ]

    @property
    def ends(self) -> dict[str, int]:
        """The checksums of the files' ends, by name."""
        files = () if self.files is None or isinstance(self.files, Mapping) else self.files
        return {name: sealed.ends for (name, _), sealed in zip(files, self.seals)}


class ArrayImageSet(ImageSet):
    """Images that came as one array."""

    def __init__(self, images: Pixels, **named: Any) -> None:
        super().__init__(channels=images.shape[1], **named)
        self.images = images

    @property
    def stored_shape(self) -> tuple[int, int, int]:
        """The array's."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def prepare(self, size: Size | None, total: int, cache_bytes: int) -> None:
        """Keep the array's own size, or resize it once."""
        own = (int(self.images.shape[2]), int(self.images.shape[3]))
        self.size = size or own
        if self.size == own:
            return
        shape = (*self.images.shape[:2], *self.size)
        what = f"Resizing {shape[0]:,} images to {self.size[0]}x{self.size[1]} px"
        require_memory(math.prod(shape), what, "set data.image_size lower")
        out = np.empty(shape, np.uint8)
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


class LazyImageSet(ImageSet):
    """Images opened one by one, from files or from a dataset object, and cached once decoded.

    ``opener`` returns a PIL image by number; ``short_sides`` are those of some images and decide the image size;
    ``threads`` says whether several threads may call the opener.
    """

    def __init__(
        self, opener: Callable[[int], Image.Image], short_sides: NDArray[Any], threads: bool, **named: Any
    ) -> None:
        super().__init__(**named)
        self.opener = opener
        self.short_side = float(np.median(short_sides))
        self.threads = threads
        self.load_all = False  # whether all images fit the cache and are decoded at once
        self.shape = (self.channels, 0, 0)
        self.cache = ImageCache(len(self.labels), self.shape, 0)
        self.sightings: Counter[Size] = Counter()  # image sizes met while streaming

    @property
    def stored_shape(self) -> tuple[int, int, int]:
        """With the margin for random crops."""
        return self.shape

    def prepare(self, size: Size | None, total: int, cache_bytes: int) -> None:
        """Choose the largest usual side below the median short side; small images get no margin, it would blur."""
        if size is None:
            side = max([s for s in _USUAL_SIDES if s <= self.short_side], default=_USUAL_SIDES[0])
            size = (side, side)
        self.size = size
        self.margin = MARGIN if self.short_side >= min(stored_size(size, MARGIN)) else 1.0
        height, width = stored_size(size, self.margin)
        self.shape = (self.channels, height, width)
        require_memory(math.prod(self.shape), f"One image of {height}x{width} px", "set data.image_size lower")
        rows = cache_bytes // math.prod(self.shape)
        self.load_all = total <= rows
        self.cache = ImageCache(len(self.labels), self.shape, min(total, rows))

    def _decode(self, index: int) -> Pixels | str:
        """Pixels, or the reason why there are none."""
        try:
            with self.opener(index) as image:
                return to_pixels(image, self.channels, stored_size(self.size, self.margin))
        except UnreachableError:
            raise
        except Exception as error:  # decoders raise anything on broken files
            return reason(error)

    def _map(self, work: Callable[[int], B], ids: Ints) -> list[B]:
        items = ids.tolist()
        return thread_map(work, items) if self.threads else [work(i) for i in items]

    def load(self, ids: Ints) -> Ints:
        """Reserve rows of the cache; fill them now where everything fits, else when the images are read."""
        self.cache.reserve(ids)
        if not self.load_all:
            return ids
        good: list[int] = []
        with self.fetched_ahead(ids, 256) as reached:
            for at in range(0, len(ids), 256):
                reached(at)
                for index, pixels in zip(ids[at : at + 256].tolist(), self._map(self._decode, ids[at : at + 256])):
                    if isinstance(pixels, str):
                        self.skipped.append((self.name(index), pixels))
                        continue
                    self.cache.put(np.asarray([index]), pixels[None])
                    good.append(index)
        return np.asarray(good, dtype=np.int64)

    def read(self, ids: Ints, among: Ints) -> Tensor:
        """From the cache, or decoded now and cached."""
        cached = self.cache.has(ids)
        if cached.all():
            return torch.from_numpy(self.cache.get(ids))
        out = np.empty((len(ids), *self.shape), np.uint8)
        out[cached] = self.cache.get(ids[cached])
        missing = np.flatnonzero(~cached)
        for k, pixels in zip(missing.tolist(), self._map(self._decode, ids[missing])):
            out[k] = self._cached_or_replaced(int(ids[k]), pixels, among)
        return torch.from_numpy(out)

    def _cached_or_replaced(self, index: int, pixels: Pixels | str, among: Ints) -> Pixels:
        """Put pixels into the cache; an unreadable image is replaced, and the replacement is not cached for it."""
        if isinstance(pixels, str):
            return self._replacement(index, pixels, among)
        self.cache.put(np.asarray([index]), pixels[None])
        return pixels

    def file_access(self, ids: Ints) -> FileAccess:
        """Files decoded but not resized, and the cache, by positions."""
        cache = self.cache
        return FileAccess(
            lambda at: self._decode_for_device(ids[at], ids),
            lambda at, out: cache.copy_to(ids[at], out),
            lambda at: cache.lacks(ids[at]),
            lambda at, pixels: cache.put(ids[at], pixels),
        )

    def _decode_unresized(self, index: int) -> UnresizedImage | Pixels | str:
        try:
            with self.opener(index) as image:
                return decode_unresized(image, self.channels, stored_size(self.size, self.margin), self.sightings)
        except UnreachableError:
            raise
        except Exception as error:  # as above
            return reason(error)

    def _decode_for_device(self, ids: Ints, among: Ints) -> DecodedImages:
        cached = self.cache.has(ids)
        missing = np.flatnonzero(~cached)
        out = DecodedImages(np.flatnonzero(cached), [], [])
        for k, found in zip(missing.tolist(), self._map(self._decode_unresized, ids[missing])):
            if isinstance(found, UnresizedImage):
                out.unresized.append((k, found))
            else:
                out.resized.append((k, self._cached_or_replaced(int(ids[k]), found, among)))
        return out

    def _replacement(self, index: int, why: str, among: Ints) -> Pixels:
        """The next readable image of the same class and split: a rule, not a random choice, so batches repeat."""
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
