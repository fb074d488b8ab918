"""One image file to pixels, as torch sees it; decoding itself is numpy's and Pillow's work, in ``portable``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tailorvit.portable import (
    MARGIN,
    SUFFIXES,
    Pixels,
    Preprocessing,
    Size,
    checked_size,
    fit,
    flat,
    is_grey,
    prepare,
    reason,
    stored_size,
    to_image,
    to_pixels,
)

__all__ = [
    "MARGIN",
    "SUFFIXES",
    "Pixels",
    "Size",
    "centre_crop",
    "checked_size",
    "fit",
    "flat",
    "is_grey",
    "normalise",
    "preprocess",
    "reason",
    "scale_bias",
    "stored_size",
    "to_image",
    "to_pixels",
]


def centre_crop(x: Tensor, size: Size) -> Tensor:
    """The middle of the last two dimensions."""
    top, left = (x.shape[-2] - size[0]) // 2, (x.shape[-1] - size[1]) // 2
    return x[..., top : top + size[0], left : left + size[1]]


def scale_bias(mean: Sequence[float], std: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Per channel, what takes mean and deviation out of values in 0..255: x * scale + bias."""
    scale = 1 / (255 * torch.tensor(std, dtype=torch.float32))
    bias = -torch.tensor(mean, dtype=torch.float32) * 255 * scale
    return scale[:, None, None], bias[:, None, None]


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 (B, C, H, W) to float32 with the given mean and deviation taken out."""
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
    """One file as evaluation would see it, (1, C, H, W); ``Data.preprocessing`` holds the arguments."""
    how = Preprocessing(checked_size(image_size), channels, tuple(mean), tuple(std), margin, interpolation)
    return torch.from_numpy(prepare(path, how))[None]
