"""Pillow's resize for whole batches on any device: the same bytes as :func:`tailorvit.portable.fit` gives.

For JPEG files of 256 px the resize takes two thirds of a core's time, so it is worth moving to the device. Pillow's
weights are whole numbers of 22 bits and its sums fit 32 bits. float64 holds both exactly, so the order of adding
changes nothing.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tailorvit.portable import Pixels, Size, fit, to_image
from tailorvit.rng import generator

REACH = 2.0  # of the cubic filter to either side, in pixels of the coarser grid
BITS = 22  # of Pillow's weights
_COMPARED = 16  # rows and columns compared to find out which pass Pillow makes first
Filter = tuple[Tensor, Tensor]  # (n, goal, count) source positions and their weights
Span = tuple[float, float, int, int]  # start and end of the source range, the image's side, the first pixel sent


@lru_cache(maxsize=1 << 16)
def source_spans(have: Size, want: Size) -> tuple[Span, Span]:
    """The range of rows and the range of columns that the resized image is made from."""
    scale = max(want[0] / have[0], want[1] / have[1])
    spans = []
    for side, goal in zip(have, want):
        cut = (side - goal / scale) / 2
        # Pillow takes the box as float32.
        low, high = np.float32(max(cut, 0.0)), np.float32(min(side - cut, side))
        reach = REACH * max(float(high - low) / goal, 1.0)
        spans.append((float(low), float(high), side, max(0, math.floor(low - reach) - 1)))
    return spans[0], spans[1]


def pixel_range(span: Span, goal: int) -> tuple[int, int]:
    """First and last (exclusive) pixel that the filter can reach, with one to spare."""
    low, high, side, first = span
    return first, min(side, math.ceil(high + REACH * max((high - low) / goal, 1.0)) + 1)


def filter_lengths(spans: NDArray[np.float32], want: Size) -> tuple[int, int]:
    """The most source pixels that make one new pixel, vertically and horizontally; spans are (n, 2, 4)."""
    shrink = ((spans[:, :, 1] - spans[:, :, 0]).max(0) / np.asarray(want)).clip(1)
    vertical, horizontal = (2 * math.ceil(REACH * s) + 1 for s in shrink.tolist())
    return vertical, horizontal


def make_filter(span: Tensor, goal: int, length: int) -> Filter:
    """(n, goal, length) positions among the pixels sent, and Pillow's weights for them as float64."""
    low, high, side, first = (t[:, None] for t in span.unbind(1))
    # Divisors are tensors: torch divides by a number as a product with its reciprocal, which may change the last digit.
    step = (high - low).double() / torch.full_like(low, goal, dtype=torch.float64)
    scale = step.clamp_min(1)
    centre = low.double() + (torch.arange(goal, device=span.device, dtype=torch.float64) + 0.5) * step
    start = (centre - REACH * scale + 0.5).trunc().clamp_min(0)
    stop = torch.minimum((centre + REACH * scale + 0.5).trunc(), side.double())
    position = start[..., None] + torch.arange(length, device=span.device, dtype=torch.float64)
    d = ((position - centre[..., None] + 0.5) * (torch.ones_like(scale) / scale)[..., None]).abs()
    inner = (1.5 * d - 2.5) * d * d + 1
    outer = (((d - 5) * d + 8) * d - 4) * -0.5
    weight = torch.where(d < 1, inner, torch.where(d < 2, outer, 0.0))
    inside = position < stop[..., None]
    weight = torch.where(inside, weight, 0.0)
    weight = weight / weight.sum(2, keepdim=True) * 2.0**BITS
    weight = (weight + torch.where(weight < 0, -0.5, 0.5)).trunc()
    return torch.where(inside, position - first.double()[..., None], 0.0).long(), weight


def _resize_lines(lines: Tensor, position: Tensor, weight: Tensor) -> Tensor:
    """uint8 (n, lines, values) to (n, new lines, values): each new line is a weighted sum of old ones."""
    n, have, values = lines.shape
    base = torch.arange(0, n * have, have, device=lines.device)[:, None, None]
    new = F.embedding_bag(
        (position + base).flatten(0, 1),
        lines.view(n * have, values).double(),
        mode="sum",
        per_sample_weights=weight.flatten(0, 1),
    )
    return new.add_(2.0 ** (BITS - 1)).mul_(2.0**-BITS).floor_().clamp_(0, 255).to(torch.uint8).view(n, -1, values)


def resize_batch(images: Tensor, vertical: Filter, horizontal: Filter, vertical_first: bool) -> Tensor:
    """uint8 (n, h, w, C), padded to one size, to (n, C, H, W)."""
    n, height, width, channels = images.shape
    if vertical_first:
        images = _resize_lines(images.reshape(n, height, width * channels), *vertical).view(n, -1, width, channels)
    columns = images.transpose(1, 2)
    images = _resize_lines(columns.reshape(n, width, -1), *horizontal)
    images = images.view(n, -1, columns.shape[2], channels).transpose(1, 2)
    if not vertical_first:
        lines = images.reshape(n, height, -1)
        images = _resize_lines(lines, *vertical).view(n, -1, lines.shape[2] // channels, channels)
    return images.permute(0, 3, 1, 2).contiguous()


@lru_cache(maxsize=1 << 16)
def pillow_vertical_first(have: Size, want: Size, channels: int) -> bool | None:
    """Whether Pillow resizes such images vertically first; None where neither order gives Pillow's bytes.

    Pillow 13.0 chooses the order by the sizes, and the rounding between the two passes differs. So Pillow resizes an
    image of noise here and the result decides. With a Pillow of other arithmetic (there are faster forks) the answer
    is None and the host does the resize.
    """
    noise = np.resize(_noise(), (*have, channels))
    expected = np.asarray(fit(to_image(noise.transpose(2, 0, 1)), want)).reshape(*want, channels)
    spans = source_spans(have, want)
    (top, bottom), (left, right) = (pixel_range(s, g) for s, g in zip(spans, want))
    table = np.asarray([spans], np.float32)
    rows, cols = (np.unique(np.linspace(0, g - 1, _COMPARED).astype(np.int64)) for g in want)
    vertical, horizontal = (
        tuple(t[:, torch.from_numpy(chosen)] for t in make_filter(torch.from_numpy(table[:, k]), want[k], length))
        for k, chosen, length in zip((0, 1), (rows, cols), filter_lengths(table, want))
    )
    sent = torch.from_numpy(noise[None, top:bottom, left:right])
    for first in (False, True):
        found = resize_batch(sent, (vertical[0], vertical[1]), (horizontal[0], horizontal[1]), first)
        if np.array_equal(found[0].permute(1, 2, 0).numpy(), expected[np.ix_(rows, cols)]):
            return first
    return None


@lru_cache(maxsize=1)
def _noise() -> Pixels:
    return generator(0, "order").integers(0, 256, 999_983, dtype=np.uint8)  # a prime length: rows do not repeat
