"""Named spaces and architectures of the swin family, its settings for a size, and shapes tried for a budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tailorvit.arch import Arch, Value, number
from tailorvit.errors import TailorError
from tailorvit.families.base import Named
from tailorvit.families.windows_counts import patch_for, windows_for
from tailorvit.plain.window_cut import Sides
from tailorvit.plain.windowed import WindowFrame
from tailorvit.space import Dim, Space

GENES = ("depth.3", "mlp", "embed")
TINY = {"depth.3": 1, "embed": 6, "mlp": 2}


def swin_arch(genes: Mapping[str, Any]) -> Arch:
    """An architecture written by hand: blocks of stage 3, width of stage 1, MLP ratio."""
    for key in genes:
        if key not in GENES:
            raise TailorError(f"A swin architecture has no gene '{key}'; it has depth.3, embed and mlp.")
    for key in GENES:
        if isinstance(genes.get(key), list | tuple | None):
            raise TailorError(f"A swin architecture needs one number for '{key}'; it has depth.3, embed and mlp.")
    arch = Arch("swin", **genes)
    if any(not isinstance(arch[k], int) or arch.one(k) < 1 for k in ("depth.3", "embed")) or arch.one("mlp") <= 0:
        raise TailorError("A swin needs whole positive depth.3 and embed, and a positive MLP ratio.")
    return arch


def _space(depth: Sequence[Value], mlp: Sequence[Value], embed: Sequence[Value], least: int, **fixed: Any) -> Space:
    """Dimensions in S4's order: blocks of stage 3, ratio, width; each sequence is (low, high, step)."""
    dims = (
        Dim.span("depth", *depth, scope="stage", stage=3, minimum=1),
        Dim.span("mlp", *mlp, minimum=0.5),
        Dim.span("embed", *embed, minimum=least),
    )
    return Space("swin", dims, tuple(fixed.items()))


_PAPER: dict[str, Any] = {"image_size": (224, 224), "patch": 4, "depths": (2, 2, 2), "window": 7, "eps": 1e-5}
_S4: dict[str, Any] = {**_PAPER, "heads": (3, 6, 12, 12)}
_SMALL: dict[str, Any] = {"image_size": (8, 8), "patch": 1, "window": 4, "depths": (1, 1, 1), "heads": (1, 2, 4, 4)}
_DIGITS: dict[str, Any] = {**_SMALL, "channels": 1, "classes": 10}

SPACES: Mapping[str, Space] = {
    "s4-swin": _space((4, 8, 2), (3, 4, 0.5), (72, 96, 12), 12, **_S4),
    "s4-swin-table": _space((4, 8, 2), (3.5, 4, 0.5), (72, 96, 12), 12, **_S4),
    "swin-8px": _space((1, 3, 1), (2, 3, 0.5), (6, 10, 2), 2, **_DIGITS),
}


def _named(embed: int, third: int, heads: Sequence[int], source: str) -> Named:
    arch = swin_arch({"depth.3": third, "embed": embed, "mlp": 4})
    return Named(arch, {"classes": 1000, **_PAPER, "heads": tuple(heads)}, source)


ARCHS: Mapping[str, Named] = {
    "swin-t": _named(96, 6, (3, 6, 12, 24), "Swin (hand-designed)"),
    "swin-s": _named(96, 18, (3, 6, 12, 24), "Swin (hand-designed)"),
    "swin-b": _named(128, 18, (4, 8, 16, 32), "Swin (hand-designed)"),
}


# -- sizes ------------------------------------------------------------------------------------------------------------


def settle(size: Sides, params: float) -> dict[str, Any]:
    """Patch and window for an image size; fewer heads and blocks for budgets that the papers' do not fit."""
    patch = patch_for(size)
    window = windows_for(WindowFrame(size, patch).maps[0])[0]
    heads, each = ((1, 2, 4, 4), 1) if params < 1e6 else ((2, 4, 8, 8), 2) if params < 1e7 else ((3, 6, 12, 12), 2)
    return {"patch": patch, "window": window, "heads": heads, "depths": (each,) * 3}


def shrink(space: Space) -> Space:
    """The same dimensions and scopes with small numbers, for 8 px digits."""
    small: dict[str, tuple[int, ...]] = {"depth": (1, 2, 3), "embed": (4, 5, 6)}
    dims = []
    for dim in space.dims:
        if dim.name in small:
            dims.append(replace(dim, choices=small[dim.name][: len(dim.choices)], shift=1, minimum=0))
        else:
            dims.append(replace(dim, minimum=0))
    return replace(space, dims=tuple(dims)).with_fixed(**_DIGITS)


# -- shapes for a budget ----------------------------------------------------------------------------------------------


def _unit(heads: Sequence[int]) -> int:
    """The smallest width of stage 1 that every stage's heads can share; all others are multiples of it."""
    return next(d for d in range(1, 4096) if all(d * 2**s % h == 0 for s, h in enumerate(heads)))


def _widths(unit: int) -> Iterator[int]:
    """Widths to try, coarser where a channel matters less."""
    width = 2 * unit
    while width <= 384:
        yield width
        width += unit * max(1, width // 48 // unit)


def _thirds(embed: int) -> list[int]:
    """Blocks of stage 3 that suit a width: Swin-T's sixteen channels a block, up to Swin-S's 18."""
    usual = max(1, min(16, round(embed / 16)))
    return [usual, usual + 1, usual + 2]


def auto_space(fixed: Mapping[str, Any]) -> Iterator[Space]:
    """Spaces around the usual shape of a Swin, from small to large; a run starts in the last that fits."""
    unit = _unit(fixed["heads"])
    for embed in _widths(unit):
        step = unit * max(1, round(embed / 8 / unit))
        low = max(embed % step or step, embed - 2 * step)
        for third in _thirds(embed):
            yield _space((max(1, third - 2), third, 1), (3, 4, 0.5), (low, embed, step), unit, **fixed)


def baseline(fixed: Mapping[str, Any]) -> Iterator[Arch]:
    """Hand-designed Swins from small to large: MLP ratio 4."""
    for embed in _widths(_unit(fixed["heads"])):
        for third in _thirds(embed):
            yield swin_arch({"depth.3": third, "embed": number(embed), "mlp": 4})
