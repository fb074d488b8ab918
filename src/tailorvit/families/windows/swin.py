"""Swin with an elastic third stage, width and MLP ratio: the Swin search space of S4.

Swin Transformer: Hierarchical Vision Transformer using Shifted Windows (ICCV 2021); S4: size-aware space exploration.
Heads are fixed, so the width of a head changes with the width of the network: every head is sliced by itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tailorvit.arch import Arch, Value, number
from tailorvit.errors import TailorError
from tailorvit.families.base import Family, Layer, Named
from tailorvit.families.blockwise import depth_span
from tailorvit.families.network import Sides, handy
from tailorvit.families.windows.elastic import (
    ElasticWindows,
    Stages,
    block_rows,
    extract,
    head_rows,
    merge_rows,
    outline_of,
    patch_for,
    stem_rows,
    whole_numbers,
    window_settings,
    windows_for,
)
from tailorvit.families.windows.plain import STAGES, PlainWindowed, WindowSettings, WindowStage, attention
from tailorvit.space import Dim, Space

# -- spaces and architectures -----------------------------------------------------------------------------------------


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


def _space(depth: Sequence[Value], mlp: Sequence[Value], embed: Sequence[Value], least: int, **settings: Any) -> Space:
    """Dimensions in S4's order: blocks of stage 3, ratio, width; each sequence is (low, high, step)."""
    dims = (
        Dim.span("depth", *depth, scope="stage", stage=3, minimum=1),
        Dim.span("mlp", *mlp, minimum=0.5),
        Dim.span("embed", *embed, minimum=least),
    )
    return Space("swin", dims, tuple(settings.items()))


_PAPER: dict[str, Any] = {
    "image_size": (224, 224),
    "patch": 4,
    "depths": (2, 2, 2),
    "window": 7,
    "eps": 1e-5,
    "init": "paper",
}
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
    window = windows_for(WindowSettings(size, patch).maps[0])[0]
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
    return replace(space, dims=tuple(dims)).with_settings(**_DIGITS)


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


def auto_space(settings: Mapping[str, Any]) -> Iterator[Space]:
    """Spaces around the usual shape of a Swin, from small to large; a run starts in the last that fits."""
    unit = _unit(settings["heads"])
    for embed in _widths(unit):
        step = unit * max(1, round(embed / 8 / unit))
        low = max(embed % step or step, embed - 2 * step)
        for third in _thirds(embed):
            yield _space(depth_span(third), (3, 4, 0.5), (low, embed, step), unit, **settings)


def baseline(settings: Mapping[str, Any]) -> Iterator[Arch]:
    """Hand-designed Swins from small to large: MLP ratio 4."""
    for embed in filter(handy, _widths(_unit(settings["heads"]))):
        for third in _thirds(embed):
            yield swin_arch({"depth.3": third, "embed": number(embed), "mlp": 4})


# -- settings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SwinSettings(WindowSettings):
    """What every network of a Swin space shares."""

    heads: tuple[int, ...] = (3, 6, 12, 12)  # S4's; Swin itself has 24 in the last stage
    depths: tuple[int, ...] = (2, 2, 2)  # blocks of stages 1, 2 and 4
    window: int = 7


# -- model ------------------------------------------------------------------------------------------------------------


def _depth(shared: SwinSettings, stage: int, third: int) -> int:
    return (shared.depths[0], shared.depths[1], third, shared.depths[2])[stage]


def _head_dim(shared: SwinSettings, stage: int, width: int) -> int:
    heads = shared.heads[stage]
    if width % heads:
        raise TailorError(f"Stage {stage + 1} of a swin is {width} wide, which {heads} heads cannot share equally.")
    return width // heads


def stages_of(shared: SwinSettings, arch: Arch) -> Stages:
    """The four stages of an architecture: widths d, 2d, 4d, 8d."""
    embed, ratio, third, found = int(arch.one("embed")), arch.one("mlp"), int(arch.one("depth.3")), []
    for s in range(STAGES):
        width, n = embed * 2**s, _depth(shared, s, third)
        dim = _head_dim(shared, s, width)
        found.append(WindowStage(width, (shared.window,) * n, (shared.heads[s],) * n, (dim,) * n, (ratio,) * n))
    return tuple(found)


def supernet(space: Space, drop_path: float = 0.0, execution: str = "auto") -> ElasticWindows:
    """The supernet of a space; it has one execution, whatever ``execution`` says."""
    return ElasticWindows(space, swin_settings(dict(space.settings)), stages_of, drop_path)


def build(shared: SwinSettings, arch: Arch, drop_path: Any = 0.0, execution: str = "auto") -> PlainWindowed:
    """The plain network of an architecture, freshly initialised."""
    return PlainWindowed(shared, stages_of(shared, arch), drop_path)


# -- layer inventory --------------------------------------------------------------------------------------------------


def segments(arch: Arch) -> list[Hashable]:
    """Stem, the stages whose depth is a setting as a whole, one entry per block of stage 3, merges, head."""
    d, m = arch.one("embed"), arch.one("mlp")
    third: list[Hashable] = [("block", d, m)] * int(arch.one("depth.3"))
    stages: list[list[Hashable]] = [[("stage", 0, d, m)], [("stage", 1, d, m)], third, [("stage", 3, d, m)]]
    found: list[Hashable] = [("stem", d)]
    for s, parts in enumerate(stages):
        found += [("merge", s, d)] if s else []
        found += parts
    return [*found, ("head", d)]


def layers(shared: SwinSettings, segment: Any) -> list[Layer]:
    """Exact parameters and MACs of one segment."""
    kind, *rest = segment
    if kind == "stem":
        return stem_rows(shared, int(rest[0]))
    if kind == "head":
        return head_rows(shared, int(rest[0]) * 2 ** (STAGES - 1))
    if kind == "merge":
        s, d = rest
        return merge_rows(shared, s, int(d) * 2 ** (s - 1), int(d) * 2**s)
    s, d, ratio = rest if kind == "stage" else (2, *rest)
    width = int(d) * 2**s
    rows = block_rows(shared, s, width, shared.window, shared.heads[s], _head_dim(shared, s, width), ratio)
    times = _depth(shared, s, 1)
    return [Layer(row.part, times * row.params, times * row.macs) for row in rows]


# -- entry record -----------------------------------------------------------------------------------------------------


def swin_settings(settings: Mapping[str, Any]) -> SwinSettings:
    """Type and check the shared settings."""
    shared = window_settings("swin", SwinSettings, settings)
    whole_numbers("swin", "heads", shared.heads, STAGES)
    whole_numbers("swin", "depths", shared.depths, STAGES - 1)
    return shared


def resettle(arch: Arch, shared: dict[str, Any], settings: Mapping[str, Any]) -> tuple[Arch, dict[str, Any]]:
    """After a resize: the window is a shared setting."""
    return arch, {**shared, "window": settings["stages"][0]["window"][0]}


FAMILY = Family(
    name="swin",
    summary="Swin with elastic depth of stage 3, width and MLP ratio; attention in shifted windows, heads fixed",
    paper="Swin (ICCV 2021), S4",
    genes=("depth.3", "mlp", "embed"),
    settings=swin_settings,
    arch=lambda data: swin_arch({k: v for k, v in data.items() if k != "family"}),
    segments=segments,
    layers=layers,
    supernet=supernet,
    plain=PlainWindowed,
    build=build,
    extract=extract,
    spaces=SPACES,
    archs=ARCHS,
    auto=auto_space,
    baseline=baseline,
    settle=settle,
    shrink=shrink,
    tiny=TINY,
    outline=lambda shared, arch: outline_of(shared, stages_of(shared, arch)),
    attention=attention,
    resettle=resettle,
)
