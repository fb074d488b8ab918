"""Settings and small forms of the ViT family: what suits an image size and a budget, and what suits a test."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tailorvit.errors import TailorError
from tailorvit.space import Dim, Space

TINY = {"depth": 2, "embed": 24, "heads": 2, "mlp": 2}


def patch_for(size: tuple[int, int]) -> int:
    """The patch that cuts the short side into about 8 pieces (14 for large images), four at least (two under 8 px)."""
    side, common = min(size), math.gcd(*size)
    goal = 8 if side <= 128 else 14
    fewest = 4 if side >= 8 else 2
    options = [p for p in range(1, side // fewest + 1) if common % p == 0 and side // p <= 16]
    if not options:
        high, wide = (max(8, round(s / 8) * 8) for s in size)
        want = f"--image-size {high}" if high == wide else f"--set data.image_size=[{high},{wide}]"
        raise TailorError(
            f"Images of {size[0]}x{size[1]} px cannot be cut into equal square patches, 4 to 16 on the short side; "
            f"try {want}."
        )
    # 8 px digits would give 1 px patches: at least 2 px a patch where the side allows.
    return min(options, key=lambda p: (abs(side // p - goal) + (100 if p < 2 <= side // 2 else 0), p))


def head_dim_for(params: float) -> int:
    """Heads of 64 as in the papers; narrower for budgets under which a 64-wide head is the whole network."""
    return 16 if params < 300_000 else 32 if params < 3_000_000 else 64


def settle(size: tuple[int, int], params: float) -> dict[str, Any]:
    """Patch, head width and reach of relative position for an image size and a budget."""
    patch = patch_for(size)
    return {"patch": patch, "head_dim": head_dim_for(params), "reach": max(1, min(14, max(size) // patch - 1))}


def shrink(space: Space) -> Space:
    """The same dimensions and scopes with small numbers, for 8 px digits."""
    small = {"depth": (1, 2, 3), "heads": (1, 2), "embed": (16, 20, 24)}
    dims: list[Dim] = []
    for dim in space.dims:
        if dim.name in small:
            choices = small[dim.name][: len(dim.choices)]
            dims.append(replace(dim, choices=choices, shift=4 if dim.name == "embed" else 1, minimum=0))
        else:
            dims.append(replace(dim, minimum=0))
    return replace(space, dims=tuple(dims)).with_fixed(
        image_size=(8, 8), patch=2, head_dim=8, reach=3, channels=1, classes=10
    )
