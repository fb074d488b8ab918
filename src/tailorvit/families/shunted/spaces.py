"""Named spaces and architectures of the Shunted family, the settings that suit a size, and shapes for a budget."""

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
from tailorvit.families.network import handy
from tailorvit.families.shunted.plain import ShuntedSettings
from tailorvit.space import Dim, Space

TINY = {"depth": 1, "embed": 8, "mlp": 2}


def shunted_arch(embed: Any = None, depth: Any = None, mlp: Any = None, **unknown: Any) -> Arch:
    """An architecture written by hand: three numbers."""
    for key in unknown:
        raise TailorError(f"A shunted architecture has no gene '{key}'; it has depth, embed and mlp.")
    given = {"depth": depth, "embed": embed, "mlp": mlp}
    for name, value in given.items():
        if value is None or isinstance(value, list | tuple):
            raise TailorError(f"A shunted architecture needs one number for '{name}'; it has depth, embed and mlp.")
    arch = Arch("shunted", **given)
    if any(not isinstance(arch[k], int) or arch.one(k) < 1 for k in ("depth", "embed")) or arch.one("mlp") <= 0:
        raise TailorError("A shunted architecture needs whole positive depth and embed, and a positive MLP ratio.")
    return arch


def _space(depth: Sequence[Value], mlp: Sequence[Value], embed: Sequence[Value], **settings: Any) -> Space:
    """Dimensions in S4's order: depth, ratio, embed; each sequence is (low, high, step)."""
    dims = (
        Dim.span("depth", *depth, minimum=1),
        Dim.span("mlp", *mlp, minimum=1),
        Dim.span("embed", *embed, minimum=embed[2]),
    )
    return Space("shunted", dims, tuple(settings.items()))


_PAPER: dict[str, Any] = {"image_size": (224, 224), "init": "paper"}  # S4's are the defaults
_NARROW: dict[str, Any] = {"heads": (2, 2, 4, 4), "depth_base": (1, 1, 0, 0), "depth_growth": (0, 0, 1, 1)}
_8PX: dict[str, Any] = {
    "image_size": (8, 8),
    "channels": 1,
    "classes": 10,
    "stem": 16,
    "stem_kernel": 3,
    "stem_convs": 0,
    "stem_strides": (1, 1),
    "strides": (2, 2, 1),
    "reduce": (4, 2, 1, 1),
    **_NARROW,
}

SPACES: Mapping[str, Space] = {
    "s4-shunted": _space((3, 4, 1), (6, 8, 1), (36, 60, 12), **_PAPER),
    "s4-shunted-four": _space((3, 4, 1), (6, 8, 1), (36, 60, 12), ratios="four", **_PAPER),
    "s4-shunted-same": _space((3, 4, 1), (6, 8, 1), (36, 60, 12), ratios="same", **_PAPER),
    "shunted-8px": _space((1, 2, 1), (2, 4, 1), (4, 8, 2), **_8PX),
}


def _published(base: Sequence[int], growth: Sequence[int], depth: int, convs: int) -> Named:
    settings = {
        "depth_base": tuple(base),
        "depth_growth": tuple(growth),
        "stem_convs": convs,
        "classes": 1000,
        **_PAPER,
    }
    return Named(shunted_arch(64, depth, 8), settings, "Shunted Transformer (hand-designed)")


ARCHS: Mapping[str, Named] = {
    "shunted-t": _published((1, 0, 0, 1), (0, 1, 2, 0), 2, 0),  # blocks 1, 2, 4, 1
    "shunted-s": _published((2, 0, 0, 1), (0, 1, 3, 0), 4, 1),  # blocks 2, 4, 12, 1
    "shunted-b": _published((3, 0, 0, 2), (0, 1, 6, 0), 4, 2),  # blocks 3, 4, 24, 2
}

# -- settings ---------------------------------------------------------------------------------------------------------


def settle(size: tuple[int, int], params: float, finer: float = 1) -> dict[str, Any]:
    """Stem, strides, reductions, heads and stages for an image size and a budget; ``finer`` maps are larger."""
    side = min(size)
    first, last = (2, 2) if side >= 128 * finer else (2, 1) if side >= 24 * finer else (1, 1)
    if any(-(-s // first) % last for s in size):
        last = 1
    maps, strides = [-(-side // first) // last], []
    for _ in range(3):
        strides.append(2 if maps[-1] >= 4 else 1)  # 2x2 is the smallest map in which attention means anything
        maps.append(-(-maps[-1] // strides[-1]))
    small, middle = params < 300_000, params < 3_000_000
    return {
        "stem": 16 if small else 32 if middle else 64,
        "stem_kernel": 7 if side >= 128 else 3,
        "stem_convs": 0 if small else 1,
        "stem_strides": (first, last),
        "strides": tuple(strides),
        # The largest reductions, up to the paper's, that leave two keys a side.
        "reduce": tuple(max(1, min(k, 2 ** int(math.log2(m / 2)))) for k, m in zip((8, 4, 2, 1), maps, strict=True)),
        **(_NARROW if middle else {}),
    }


STEMS = {"fine": partial(settle, finer=2.1), "coarse": partial(settle, finer=0.5)}


def shrink(space: Space) -> Space:
    """The same dimensions with small numbers, for 8 px digits."""
    small = {"depth": (1, 2, 3), "mlp": (2, 3, 4), "embed": (4, 6, 8)}
    dims = tuple(
        replace(d, choices=small[d.name][: len(d.choices)], shift=step, minimum=step)
        for d, step in ((d, 2 if d.name == "embed" else 1) for d in space.dims)
    )
    return replace(space, dims=dims).with_settings(**_8PX)


# -- shapes for a budget ----------------------------------------------------------------------------------------------


def _widths(settings: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Widths of the first stage to try, all divisible by the heads of every stage, each with its step of choices."""
    heads = settings.get("heads", ShuntedSettings.heads)
    unit = math.lcm(*(h // math.gcd(h, 2**s) for s, h in enumerate(heads)))
    embed = unit
    while embed <= max(256, 16 * unit):
        yield embed, unit * max(1, round(embed / 5 / unit))
        embed += unit if embed < 64 else max(unit, 4 // unit * unit)


def _depths(embed: int, stretch: float = 1.0) -> tuple[int, int]:
    """Depths that suit a width: Shunted-S has four at 64 channels."""
    usual = max(1, min(round(4 * max(stretch, 1)), round(stretch * embed / 16)))
    return usual, usual + 1


def auto_space(settings: Mapping[str, Any]) -> Iterator[Space]:
    """Spaces around the usual shape, from small to large; a run starts in the last that fits."""
    for embed, step in _widths(settings):
        low = embed - min(2, (embed - 1) // step) * step
        for depth, mlp in itertools.product(_depths(embed), (4, 6, 8)):
            yield _space((max(1, depth - 1), depth, 1), (mlp - 2, mlp, 1), (low, embed, step), **settings)


def baseline(settings: Mapping[str, Any], stretch: float = 1.0) -> Iterator[Arch]:
    """Hand-designed networks from small to large: the published shape, with half its MLP ratio to all of it.

    ``stretch`` multiplies the depth that belongs to a width.
    """
    for embed in (width for width, _ in _widths(settings) if handy(width)):
        for depth, mlp in itertools.product(_depths(embed, stretch), (4, 5, 6, 7, 8)):
            yield shunted_arch(embed, depth, mlp)


SHAPES = {"shallow": partial(baseline, stretch=0.4), "deep": partial(baseline, stretch=2.5)}
