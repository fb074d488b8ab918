"""A folder of drawn shapes with their masks, for tests and first tries of segmentation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tailorvit.portable import Size
from tailorvit.rng import generator

SHAPES = ("ground", "disc", "square")
_COLOURS = ((90, 110, 90), (220, 60, 40), (40, 80, 220))


def draw_mask_folder(
    folder: str | Path, images: int | Mapping[str, int] = 12, size: Size = (24, 32), seed: int = 0
) -> Path:
    """Write noisy images of a disc and a square, masks that number the SHAPES from 0, and classes.txt.

    ``images`` is a number, or the number of each split folder: ``{"train": 8, "val": 2, "test": 2}``.
    """
    from PIL import Image

    root = Path(folder)
    parts = {"": images} if isinstance(images, int) else images
    for part, count in parts.items():
        for kind in ("images", "masks"):
            (root / kind / part).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            draw = generator(seed, "shapes", part, i)
            y, x = np.mgrid[: size[0], : size[1]]
            mask = np.zeros(size, np.uint8)
            reach = max(2, min(size) // 5)
            for number in (1, 2):
                row, column = (draw.integers(reach, side - reach) for side in size)
                dy, dx = abs(y - row), abs(x - column)
                mask[dy**2 + dx**2 <= reach**2 if number == 1 else (dy < reach) & (dx < reach)] = number
            noisy = np.asarray(_COLOURS)[mask] + draw.normal(0, 12, (*size, 3))
            Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(root / "images" / part / f"{i:03d}.png")
            Image.fromarray(mask).save(root / "masks" / part / f"{i:03d}.png")
    (root / "classes.txt").write_text("\n".join(SHAPES) + "\n")
    return root
