"""Decoded images that parent and workers share, and what a worker leaves of a file for the device to finish.

A store is one mapping without a file: every process forked later sees what any of them wrote. An image's flag is set
after its pixels, so a process that dies while it writes leaves an image that counts as missing, never a torn one.
"""

from __future__ import annotations

import math
import mmap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailorvit.data.fitting import Span, ends, order, spans_of
from tailorvit.data.images import Pixels, Size, flat, to_pixels
from tailorvit.data.splits import Ints

if TYPE_CHECKING:
    from PIL import Image

LARGEST = 2  # sides of an image that travels unfitted, against its fitted sides: Pillow's draft aims at twice
_SIGHTS = 3  # asking how Pillow resizes a size costs what three images do, so it has to come back first


def shared(shape: tuple[int, ...]) -> Pixels:
    """Zeros that forked processes share; memory is taken as it is written."""
    return np.frombuffer(mmap.mmap(-1, max(1, math.prod(shape))), np.uint8, math.prod(shape)).reshape(shape)


class Store:
    """Fitted images by number, as many as the room allows; numbers get their places in the order they come."""

    def __init__(self, images: int, shape: tuple[int, ...], rows: int) -> None:
        self.rows = shared((rows, *shape))
        self.full = shared((rows,))
        self._row: Ints = np.full(images, -1, np.int64)
        self._next = 0

    def claim(self, ids: Ints) -> None:
        """Give images places while there are any."""
        new = ids[self._row[ids] < 0][: len(self.rows) - self._next]
        self._row[new] = np.arange(self._next, self._next + len(new))
        self._next += len(new)

    def holds(self, ids: Ints) -> NDArray[np.bool_]:
        """Which images are here."""
        return self._state(ids, 1)

    def wants(self, ids: Ints) -> NDArray[np.bool_]:
        """Which images have a place that is empty."""
        return self._state(ids, 0)

    def _state(self, ids: Ints, full: int) -> NDArray[np.bool_]:
        row = self._row[ids]
        out = row >= 0
        out[out] = self.full[row[out]] == full
        return out

    def put(self, ids: Ints, pixels: Pixels) -> None:
        """Keep images; those without a place are let go. Twice is harmless, as both write the same."""
        row = self._row[ids]
        self.rows[row[row >= 0]] = pixels[row >= 0]
        self.full[row[row >= 0]] = 1

    def get(self, ids: Ints) -> Pixels:
        """Images that are here."""
        return self.rows[self._row[ids]]

    def take(self, ids: Ints, out: Pixels) -> None:
        """The same, into memory of the caller's."""
        np.take(self.rows, self._row[ids], axis=0, out=out, mode="clip")  # any other mode copies twice


class Raw(NamedTuple):
    """An upright image before its resize, cut to what that needs: (h, w, C)."""

    pixels: Pixels
    spans: tuple[Span, Span]
    down_first: bool


@dataclass(frozen=True)
class Decoded:
    """Some images by their places in a list: in the store already, fitted, or raw."""

    held: Ints
    fitted: list[tuple[int, Pixels]]
    raw: list[tuple[int, Raw]]


@dataclass(frozen=True)
class Decoder:
    """How a stream reaches files, each by positions within the split."""

    decode: Callable[[Ints], Decoded]
    take: Callable[[Ints, Pixels], None]
    wants: Callable[[Ints], NDArray[np.bool_]]
    put: Callable[[Ints, Pixels], None]


def raw_of(image: Image.Image, channels: int, want: Size, seen: Counter[Size]) -> Raw | Pixels:
    """An opened image without its resize where a device makes the same one; else as ``to_pixels`` gives it."""
    from PIL import ImageOps

    image.draft(None, (2 * max(want), 2 * max(want)))  # as to_pixels does
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode != ("L" if channels == 1 else "RGB") or "transparency" in image.info:
        image = flat(image, channels)
    have = image.height, image.width
    spans = spans_of(have, want)
    (top, bottom), (left, right) = (ends(s, g) for s, g in zip(spans, want))
    small = bottom - top <= LARGEST * want[0] and right - left <= LARGEST * want[1]
    seen[have] += 1
    first = order(have, want, channels) if small and seen[have] >= _SIGHTS else None
    if first is None:
        return to_pixels(image, channels, want)
    array: Pixels = np.asarray(image).reshape(*have, channels)
    return Raw(array[top:bottom, left:right], spans, first)
