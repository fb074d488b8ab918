"""Named spaces of the hybrid family, the settings that suit a size, and shapes for a budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tailorvit.arch import Arch, Value
from tailorvit.errors import TailorError
from tailorvit.families.hybrid.plain import STAGES
from tailorvit.space import Dim, Space

NAMES = ("depth", "embed")  # genes of a stage
GENES = (*(f"{name}.{s}" for s in range(1, STAGES + 1) for name in NAMES), "mlp")
TINY = {"depth": 1, "embed": [8, 8, 12, 16], "mlp": 2}
# Early stages as wide as this and few blocks learn fastest from scratch (benchmarks/win).
RATIOS, BLOCKS = (1.0, 1.5, 2.5, 4.0), (2, 2, 3, 1)
USUAL = 48  # channels of the first stage to which BLOCKS belong


def hybrid_arch(genes: Mapping[str, Any]) -> Arch:
    """An architecture written by hand: depth and embed (``name.s`` of one stage, or four of them, or one for all)."""
    for key in genes:
        if key not in (*GENES, *NAMES):
            raise TailorError(
                f"A hybrid architecture has no gene '{key}'; it has depth and embed of stages 1-4, and mlp."
            )
    found: dict[str, Any] = {}
    for s, name in itertools.product(range(1, STAGES + 1), NAMES):
        value = genes.get(f"{name}.{s}", genes.get(name))
        if isinstance(value, list | tuple) and len(value) == STAGES:
            value = value[s - 1]
        if type(value) is not int or value < 1:
            raise TailorError(f"A hybrid architecture needs a positive whole '{name}.{s}' (or '{name}'), not {value}.")
        found[f"{name}.{s}"] = value
    mlp = genes.get("mlp")
    if (
        not isinstance(mlp, int | float)
        or isinstance(mlp, bool)
        or mlp <= 0
        or mlp * min(found[f"embed.{s}"] for s in range(1, STAGES + 1)) < 1
    ):
        raise TailorError(f"A hybrid architecture needs a positive MLP ratio that leaves a hidden channel, not {mlp}.")
    return Arch("hybrid", **found, mlp=mlp)


def _space(
    depths: Sequence[Sequence[int]], embeds: Sequence[Sequence[int]], mlp: Sequence[Value], **settings: Any
) -> Space:
    """Choices of every stage, and of the MLP ratio."""
    dims = []
    for s in range(STAGES):
        step = embeds[s][-1] - embeds[s][-2] if len(embeds[s]) > 1 else 4
        dims.append(Dim("depth", tuple(depths[s]), "stage", s + 1, 1, 1))
        dims.append(Dim("embed", tuple(embeds[s]), "stage", s + 1, step, 4))
    return Space("hybrid", (*dims, Dim("mlp", tuple(mlp), "global", None, 0.5, 1)), tuple(settings.items()))


_8PX: dict[str, Any] = {
    "image_size": (8, 8),
    "channels": 1,
    "classes": 10,
    "stem": 8,
    "stem_stride": 1,
    "strides": (1, 2, 2, 1),
    "head_dim": 8,
}
SPACES: Mapping[str, Space] = {
    "hybrid-8px": _space(
        [(1, 2), (1, 2), (1, 2, 3), (1, 2)], [(8, 12), (12, 16), (16, 20, 24), (24, 32)], (2, 3), **_8PX
    ),
}

# -- settings ---------------------------------------------------------------------------------------------------------


def settle(size: tuple[int, int], params: float, finer: int = 0, attention: int = 2) -> dict[str, Any]:
    """Stem, strides and stages that attend, for an image size and a budget; ``finer`` doubles the maps so often."""
    small = min(size) < 48
    halved = max(0, min(2, (1 if small else 2) - finer))  # times, before the first stage
    first = 2 if halved == 2 or (halved and not small) else 1
    strides = [2 if halved == 2 or (halved and small) else 1]
    side = -(-min(size) // (first * strides[0]))
    for _ in range(STAGES - 1):
        strides.append(2 if side >= 4 else 1)  # 2x2 is the smallest map in which attention means anything
        side = -(-side // strides[-1])
    stems = ((1e5, 8), (3e5, 16), (3e6, 24), (1e7, 32))
    return {
        "stem": next((width for most, width in stems if params < most), 48),
        "stem_stride": first,
        "strides": tuple(strides),
        "attention": attention,
        "head_dim": 8 if params < 3e5 else 16 if params < 1e7 else 32,
    }


STEMS = {
    "late": partial(settle, attention=1),
    "fine": partial(settle, finer=1),
    "coarse": partial(settle, finer=-1),
}


def shrink(space: Space) -> Space:
    """The same dimensions with small numbers, for 8 px digits."""
    small: dict[str, tuple[Value, ...]] = {"depth": (1, 2, 3), "embed": (8, 12, 16), "mlp": (2, 3, 4)}
    dims = [
        replace(d, choices=small[d.name][: len(d.choices)], shift=4 if d.name == "embed" else 1) for d in space.dims
    ]
    return replace(space, dims=tuple(replace(d, minimum=1) for d in dims)).with_settings(**_8PX)


# -- shapes for a budget ----------------------------------------------------------------------------------------------


def _rounded(width: float) -> int:
    """A multiple of four, from 64 channels on of eight."""
    unit = 8 if width >= 64 else 4
    return max(4, unit * round(width / unit))


def _shapes(stretch: float) -> Iterator[tuple[list[int], list[int], float]]:
    """Blocks and channels of the stages and MLP ratio, from small to large; ``stretch`` multiplies a width's blocks."""
    base = 4
    while base <= 512:
        embeds = [_rounded(base * ratio) for ratio in RATIOS]
        # Blocks and ratio vary a little, so that the steps between sizes are not all steps of width.
        for more, mlp in itertools.product((0.8, 1.0), (3.5, 4, 4.5, 5)):
            factor = more * stretch * min(4.0, max(0.5, base / USUAL))
            yield [max(1, round(factor * blocks)) for blocks in BLOCKS], embeds, mlp
        base += 1 if base < 24 else 2 if base < 48 else 4 if base < 96 else 8 if base < 192 else 16


def auto_space(settings: Mapping[str, Any]) -> Iterator[Space]:
    """Spaces around the usual shape, from small to large; a run starts in the last that fits."""
    for depths, embeds, mlp in _shapes(1.0):
        steps = [_rounded(width / 8) for width in embeds]
        widths = [[w - i * step for i in (2, 1, 0) if w - i * step >= 4] for w, step in zip(embeds, steps, strict=True)]
        yield _space([(d - 1, d) if d > 1 else (d,) for d in depths], widths, (mlp - 1, mlp - 0.5, mlp), **settings)


def baseline(settings: Mapping[str, Any], stretch: float = 1.0) -> Iterator[Arch]:
    """Hand-designed networks from small to large."""
    for depths, embeds, mlp in _shapes(stretch):
        yield hybrid_arch({"depth": depths, "embed": embeds, "mlp": mlp})


SHAPES = {"shallow": partial(baseline, stretch=0.6), "deep": partial(baseline, stretch=2.0)}
