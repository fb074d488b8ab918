"""ViT spaces and architectures: named ones, those made for a budget, small ones for tests."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tailorvit.arch import Arch, Value
from tailorvit.errors import TailorError
from tailorvit.families.base import Named
from tailorvit.families.blockwise import block_arch, block_dims, depth_span, width_span
from tailorvit.space import Dim, Space


def vit_arch(embed: Any = None, heads: Any = None, mlp: Any = None, depth: Any = None, **unknown: Any) -> Arch:
    """A ViT written by hand: one number for all blocks, or one per block."""
    return block_arch("vit", embed, heads, mlp, depth, **unknown)


def _space(
    depth: Sequence[Value], mlp: Sequence[Value], heads: Sequence[Value], embed: Sequence[Value], **settings: Any
) -> Space:
    return Space("vit", block_dims(depth, mlp, heads, embed), tuple(settings.items()))


_PAPER: dict[str, Any] = {
    "image_size": (224, 224),
    "patch": 16,
    "head_dim": 64,
    "reach": 14,
    "eps": 1e-5,
    "init": "paper",
}
_DEIT: dict[str, Any] = {
    "image_size": (224, 224),
    "patch": 16,
    "relative": False,
    "pool": "cls",
    "eps": 1e-6,
    "init": "paper",
}


def _small(size: int, patch: int, head_dim: int) -> dict[str, Any]:
    return {"image_size": (size, size), "patch": patch, "head_dim": head_dim, "reach": size // patch - 1, "eps": 1e-6}


SPACES: Mapping[str, Space] = {
    "autoformer-t": _space((12, 14, 1), (3.5, 4, 0.5), (3, 4, 1), (192, 240, 24), **_PAPER),
    "autoformer-s": _space((12, 14, 1), (3, 4, 0.5), (5, 7, 1), (320, 448, 64), **_PAPER),
    "autoformer-b": _space((14, 16, 1), (3, 4, 0.5), (9, 10, 1), (528, 624, 48), **_PAPER),
    "autoformer-t-wide": _space((12, 14, 1), (3, 4, 0.5), (3, 4, 1), (192, 240, 24), **_PAPER),
    "autoformer-b-wide": _space((14, 16, 1), (3, 4, 0.5), (8, 10, 1), (528, 624, 48), **_PAPER),
    "s4-vit": _space((12, 14, 1), (3.5, 4, 0.5), (2, 14, 2), (336, 384, 24), **_PAPER),
    "vit-8px": _space((3, 5, 1), (2, 3, 0.5), (2, 4, 1), (40, 56, 8), classes=10, channels=1, **_small(8, 2, 16)),
    "vit-32px": _space((6, 8, 1), (3, 4, 0.5), (2, 4, 1), (96, 128, 16), classes=10, **_small(32, 4, 32)),
    "vit-64px": _space((8, 10, 1), (3, 4, 0.5), (3, 5, 1), (144, 192, 24), classes=200, **_small(64, 8, 32)),
}


def _named(source: str, settings: Mapping[str, Any], embed: int, mlp: str, heads: str) -> Named:
    ratios = [float(v) for v in mlp.split()]
    counts = [int(v) for v in heads.split()]
    return Named(vit_arch(embed, counts, ratios), {"classes": 1000, **settings}, source)


def _deit(embed: int, heads: int) -> Named:
    return Named(vit_arch(embed, heads, 4, 12), {"classes": 1000, **_DEIT}, "DeiT (hand-designed)")


ARCHS: Mapping[str, Named] = {
    "autoformer-t": _named(
        "AutoFormer", _PAPER, 192, "3.5 3.5 3 3.5 3 3 4 4 3.5 4 3.5 4 3.5", "3 3 3 3 3 3 3 3 3 3 4 3 3"
    ),
    "autoformer-s": _named("AutoFormer", _PAPER, 384, "3 3.5 3 3.5 4 4 4 4 4 4 4 3.5 4", "6 6 5 7 5 5 5 6 6 7 7 6 7"),
    "autoformer-b": _named(
        "AutoFormer", _PAPER, 576, "3.5 3.5 4 3.5 4 3.5 3.5 3 4 4 3 4 3 3.5", "9 9 9 9 9 10 9 9 10 9 10 9 9 10"
    ),
    "tftas-ti": _named(
        "TF-TAS Table B", _PAPER, 192, "3.5 4 3.5 3.5 4 3.5 3.5 4 4 4 4 4 3.5", "4 3 3 3 3 4 4 3 3 3 4 3 3"
    ),
    "tftas-s": _named(
        "TF-TAS Table B", _PAPER, 384, "4 4 4 3 4 3 3 3.5 4 3.5 3.5 4 3 3.5", "6 6 6 6 7 6 5 7 5 5 5 7 6 7"
    ),
    "tftas-b": _named(
        "TF-TAS Table B",
        _PAPER,
        576,
        "4 4 4 3.5 3 3 3 4 3 3 3.5 4 3.5 4 3",
        "9 10 10 10 10 9 10 9 9 10 9 9 9 10 9",
    ),
    "tftas-ti-yaml": _named(
        "TF-TAS released file", _PAPER, 192, "3.5 4 3.5 3.5 4 3.5 3.5 3.5 4 4 4 4 3.5", "4 3 3 3 3 4 4 3 3 3 4 3 3"
    ),
    "deit-ti": _deit(192, 3),
    "deit-s": _deit(384, 6),
    "deit-b": _deit(768, 12),
}


def _depths(embed: int, most: int, stretch: float = 1.0) -> list[int]:
    """Depths that suit a width: DeiT-Ti's sixteen channels a block, one more or less, between two and ``most``."""
    usual = round(stretch * embed / 16)
    return sorted({max(2, min(most, d)) for d in (usual - 1, usual, usual + 1)})


def _widths() -> Iterator[int]:
    """Widths to try, finely spaced where a channel matters and kernel-friendly where it does not."""
    embed = 8
    while embed <= 2048:
        yield embed
        embed += 2 if embed < 96 else 4 if embed < 192 else 8


def auto_space(settings: Mapping[str, Any]) -> Iterator[Space]:
    """Spaces around the usual shape of a ViT, from small to large; a run starts in the last that fits."""
    head_dim = int(settings["head_dim"])
    for embed in _widths():
        usual = max(1, round(embed / head_dim))
        depths = sorted({*_depths(embed, 12), *_depths(embed, 13)})  # the baseline's, and one more
        for depth, heads in itertools.product(depths, (usual, usual + 1, usual + 2)):
            yield _space(
                depth_span(depth),
                (3, 4, 0.5),
                (max(1, heads - 2), heads, 1),
                width_span(embed, head_dim),
                **settings,
            )


def baseline(settings: Mapping[str, Any], stretch: float = 1.0) -> Iterator[Arch]:
    """Hand-designed ViTs from small to large: uniform blocks, MLP ratio 4, heads times head width near the width.

    ``stretch`` multiplies the depth that belongs to a width.
    """
    head_dim = int(settings["head_dim"])
    for embed in _widths():
        for depth in _depths(embed, round(12 * max(stretch, 1)), stretch):
            yield vit_arch(embed, max(1, round(embed / head_dim)), 4, depth)


SHAPES = {"shallow": partial(baseline, stretch=0.5), "deep": partial(baseline, stretch=1.6)}

# -- settings and small forms -----------------------------------------------------------------------------------------


TINY = {"depth": 2, "embed": 24, "heads": 2, "mlp": 2}


def patch_for(size: tuple[int, int], finer: int = 1) -> int:
    """The patch that cuts the short side into about 8 pieces (14 for large images), four at least (two under 8 px)."""
    side, common = min(size), math.gcd(*size)
    goal = finer * (8 if side <= 128 else 14)
    fewest = 4 if side >= 8 else 2
    options = [p for p in range(1, side // fewest + 1) if common % p == 0 and side // p <= 16 * finer]
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


def settle(size: tuple[int, int], params: float, finer: int = 1) -> dict[str, Any]:
    """Patch, head width and reach of relative position for an image size and a budget; ``finer`` cuts more patches."""
    patch = patch_for(size, finer)
    return {"patch": patch, "head_dim": head_dim_for(params), "reach": max(1, min(14, max(size) // patch - 1))}


STEMS = {"fine": partial(settle, finer=2)}


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
    return replace(space, dims=tuple(dims)).with_settings(
        image_size=(8, 8), patch=2, head_dim=8, reach=3, channels=1, classes=10
    )
