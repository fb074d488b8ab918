"""Small picture folders made on the spot, and whether two batches of them are equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image


def picture(path: Path, number: int = 0, size: tuple[int, int] = (40, 36), mode: str = "RGB", **options) -> Path:
    """A noisy picture, its own for each number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(path, **options)
    return path


def fill(root: Path, counts: dict[str, int], **options) -> Path:
    """A folder per name (which may hold a split, as in train/cat), with that many pictures."""
    for k, (name, count) in enumerate(counts.items()):
        for i in range(count):
            picture(root / name / f"{i:03d}.png", 1000 * k + i, **options)
    return root


def same(a, b) -> bool:
    """To the bit, in all parts."""
    return all(torch.equal(p, q) for p, q in zip(a, b, strict=True))
