"""The resize of :func:`tailorvit.portable.fit` for whole batches on any device, equal to Pillow's to the bit.

For JPEG files of 256 px it is two thirds of what they cost a core. Pillow's weights are whole numbers of 22 bits, its
sums fit 32: float64 holds both exactly, so the order of adding changes nothing.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tailorvit.data.images import Pixels, Size, fit, to_image
from tailorvit.rng import generator

REACH = 2.0  # of the cubic filter to either side, in pixels of the coarser grid
BITS = 22  # of Pillow's weights
_ASKED = 16  # rows and columns compared, to learn which way Pillow goes
Taps = tuple[Tensor, Tensor]
Span = tuple[float, float, int, int]  # low and high end in the image, its side, the first pixel that was sent


@lru_cache(maxsize=1 << 16)
def spans_of(have: Size, want: Size) -> tuple[Span, Span]:
    """What of an image's rows and columns its fitted form is made of."""
    scale = max(want[0] / have[0], want[1] / have[1])
    out = []
    for side, goal in zip(have, want):
        cut = (side - goal / scale) / 2
        # Pillow takes the box as float32.
        low, high = np.float32(max(cut, 0.0)), np.float32(min(side - cut, side))
        reach = REACH * max(float(high - low) / goal, 1.0)
        out.append((float(low), float(high), side, max(0, math.floor(low - reach) - 1)))
    return out[0], out[1]


def ends(span: Span, goal: int) -> tuple[int, int]:
    """First and last pixel (exclusive) that the filter can touch, with one to spare."""
    low, high, side, first = span
    return first, min(side, math.ceil(high + REACH * max((high - low) / goal, 1.0)) + 1)


def taps_needed(spans: NDArray[np.float32], want: Size) -> tuple[int, int]:
    """Pixels that one pixel is made of at most, down and across; ``spans`` is (n, 2, 4)."""
    shrink = ((spans[:, :, 1] - spans[:, :, 0]).max(0) / np.asarray(want)).clip(1)
    down, across = (2 * math.ceil(REACH * s) + 1 for s in shrink.tolist())
    return down, across


def taps(span: Tensor, goal: int, count: int) -> Taps:
    """(n, goal, count) places among the pixels sent, and Pillow's weights for them as float64."""
    low, high, side, first = (t[:, None] for t in span.unbind(1))
    # Divisors are tensors: a number is divided by as its reciprocal, which may change the last digit.
    step = (high - low).double() / torch.full_like(low, goal, dtype=torch.float64)
    wide = step.clamp_min(1)
    centre = low.double() + (torch.arange(goal, device=span.device, dtype=torch.float64) + 0.5) * step
    start = (centre - REACH * wide + 0.5).trunc().clamp_min(0)
    stop = torch.minimum((centre + REACH * wide + 0.5).trunc(), side.double())
    place = start[..., None] + torch.arange(count, device=span.device, dtype=torch.float64)
    d = ((place - centre[..., None] + 0.5) * (torch.ones_like(wide) / wide)[..., None]).abs()
    near = (1.5 * d - 2.5) * d * d + 1
    far = (((d - 5) * d + 8) * d - 4) * -0.5
    weight = torch.where(d < 1, near, torch.where(d < 2, far, 0.0))
    inside = place < stop[..., None]
    weight = torch.where(inside, weight, 0.0)
    weight = weight / weight.sum(2, keepdim=True) * 2.0**BITS
    weight = (weight + torch.where(weight < 0, -0.5, 0.5)).trunc()
    return torch.where(inside, place - first.double()[..., None], 0.0).long(), weight


def _pass(lines: Tensor, at: Tensor, weight: Tensor) -> Tensor:
    """uint8 (n, lines, values) to (n, new lines, values): each new line is a weighted sum of lines."""
    n, have, values = lines.shape
    base = torch.arange(0, n * have, have, device=lines.device)[:, None, None]
    new = F.embedding_bag(
        (at + base).flatten(0, 1),
        lines.view(n * have, values).double(),
        mode="sum",
        per_sample_weights=weight.flatten(0, 1),
    )
    return new.add_(2.0 ** (BITS - 1)).mul_(2.0**-BITS).floor_().clamp_(0, 255).to(torch.uint8).view(n, -1, values)


def fitted(images: Tensor, down: Taps, across: Taps, down_first: bool) -> Tensor:
    """uint8 (n, h, w, C), padded to one size, as (n, C, H, W), each new line by its taps."""
    n, high, wide, channels = images.shape
    if down_first:
        images = _pass(images.reshape(n, high, wide * channels), *down).view(n, -1, wide, channels)
    turned = images.transpose(1, 2)
    images = _pass(turned.reshape(n, wide, -1), *across).view(n, -1, turned.shape[2], channels).transpose(1, 2)
    if not down_first:
        lines = images.reshape(n, high, -1)
        images = _pass(lines, *down).view(n, -1, lines.shape[2] // channels, channels)
    return images.permute(0, 3, 1, 2).contiguous()


@lru_cache(maxsize=1 << 16)
def order(have: Size, want: Size, channels: int) -> bool | None:
    """Whether Pillow resizes such images down before across; None where neither way gives what it gives.

    Version 13.0 goes either way, as the sizes decide, and what is rounded in between differs. So it is asked, with a
    picture of noise; a Pillow with other arithmetic (there are quicker forks) merely leaves the resize to the host.
    """
    noise = np.resize(_noise(), (*have, channels))
    answer = np.asarray(fit(to_image(noise.transpose(2, 0, 1)), want)).reshape(*want, channels)
    spans = spans_of(have, want)
    (top, bottom), (left, right) = (ends(s, g) for s, g in zip(spans, want))
    table = np.asarray([spans], np.float32)
    rows, cols = (np.unique(np.linspace(0, g - 1, _ASKED).astype(np.int64)) for g in want)
    down, across = (
        tuple(t[:, torch.from_numpy(some)] for t in taps(torch.from_numpy(table[:, k]), want[k], count))
        for k, some, count in zip((0, 1), (rows, cols), taps_needed(table, want))
    )
    sent = torch.from_numpy(noise[None, top:bottom, left:right])
    for down_first in (False, True):
        found = fitted(sent, (down[0], down[1]), (across[0], across[1]), down_first)
        if np.array_equal(found[0].permute(1, 2, 0).numpy(), answer[np.ix_(rows, cols)]):
            return down_first
    return None


@lru_cache(maxsize=1)
def _noise() -> Pixels:
    return generator(0, "order").integers(0, 256, 999_983, dtype=np.uint8)  # a prime: rows do not repeat
