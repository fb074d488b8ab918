"""Four stages of windowed attention in which nearly everything is elastic: the search space of S3.

Searching the Search Space of Vision Transformer (NeurIPS 2021). Per stage: blocks and width; per block: window, Q-K-V
width (heads of a fixed width, so the number of heads follows) and MLP ratio: 20 dimensions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tailorvit.arch import Arch, Value
from tailorvit.errors import TailorError
from tailorvit.families.base import Family, Layer, Named
from tailorvit.families.blockwise import depth_span, staged_arch
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
    window_settings,
    windows_for,
)
from tailorvit.families.windows.plain import STAGES, PlainWindowed, WindowSettings, WindowStage, attention
from tailorvit.space import Dim, Space

# -- spaces and architectures -----------------------------------------------------------------------------------------


STAGE_GENES, BLOCK_GENES = ("depth", "embed"), ("mlp", "qkv", "window")
NAMES = (*STAGE_GENES, *BLOCK_GENES)  # S3's order of steps
GENES = tuple(f"{name}.{s}" for s in range(1, STAGES + 1) for name in NAMES)
TINY = {"depth": 1, "embed": [8, 12, 16, 20], "window": [4, 4, 2, 1], "qkv": [8, 8, 16, 16], "mlp": 2}


def windowed_arch(genes: Mapping[str, Any]) -> Arch:
    """An architecture written by hand: window, qkv and mlp may have one value per block."""
    return staged_arch("windowed", genes, STAGES, BLOCK_GENES, fractional=("mlp",))


Row = Mapping[str, Sequence[Value]]


def _space(stages: Sequence[Row], shifts: Mapping[str, Value], minima: Mapping[str, Value], **settings: Any) -> Space:
    """One row of choices per stage."""
    dims = []
    for s, row in enumerate(stages, 1):
        for name in NAMES:
            dims.append(
                Dim(
                    name,
                    tuple(row[name]),
                    "block" if name in BLOCK_GENES else "stage",
                    s,
                    shifts.get(name, 0),
                    minima.get(name, 0),
                )
            )
    return Space("windowed", tuple(dims), tuple(settings.items()))


_PAPER: dict[str, Any] = {"image_size": (224, 224), "patch": 4, "head_dim": 32, "eps": 1e-5, "init": "paper"}
_S3: Row = {"depth": (2, 3, 4), "embed": (224, 256, 288), "mlp": (3, 3.5, 4), "qkv": (224, 256, 288), "window": (7, 14)}
_STEPS: Mapping[str, Value] = {"depth": 1, "embed": 64, "mlp": 0.5, "qkv": 64, "window": 7}
_DIGITS: dict[str, Any] = {"image_size": (8, 8), "patch": 1, "head_dim": 8, "channels": 1, "classes": 10}
_WINDOWS = ((2, 4), (2, 4), (1, 2), (1,))  # of the maps 8, 4, 2 and 1 of 8 px digits


def _digits(s: int) -> Row:
    embed, qkv = (8, 12, 16, 24)[s], (8, 8, 16, 24)[s]
    return {
        "depth": (1, 2, 3) if s == 2 else (1, 2),
        "embed": (embed, embed + 4, embed + 8),
        "mlp": (2, 2.5, 3),
        "qkv": (qkv, qkv + 8),
        "window": _WINDOWS[s],
    }


SPACES: Mapping[str, Space] = {
    "s3": _space([_S3] * STAGES, _STEPS, {"embed": 32, "qkv": 32, "mlp": 0.5}, **_PAPER),
    "windowed-8px": _space([_digits(s) for s in range(STAGES)], {}, {"embed": 4, "qkv": 8, "mlp": 0.5}, **_DIGITS),
}


def _named(third: int, windows: Sequence[int]) -> Named:
    widths = [96, 192, 384, 768]
    genes = {"depth": [2, 2, third, 2], "embed": widths, "qkv": widths, "window": list(windows), "mlp": 4}
    return Named(windowed_arch(genes), {"classes": 1000, **_PAPER}, "S3")


ARCHS: Mapping[str, Named] = {
    "s3-t": _named(6, (7, 7, 14, 7)),
    "s3-s": _named(18, (14, 14, 14, 14)),
    "s3-b": _named(30, (7, 7, 14, 7)),
}


# -- sizes ------------------------------------------------------------------------------------------------------------


def settle(size: Sides, params: float) -> dict[str, Any]:
    """Patch and head width for an image size and a budget."""
    return {"patch": patch_for(size), "head_dim": 8 if params < 3e5 else 16 if params < 3e6 else 32}


def shrink(space: Space) -> Space:
    """The same dimensions and scopes with small numbers, for 8 px digits."""
    small: dict[str, tuple[int, ...]] = {"depth": (1, 2, 3), "embed": (8, 12, 16), "qkv": (8, 16, 24)}
    dims = []
    for dim in space.dims:
        choices: tuple[Value, ...] = small.get(dim.name, dim.choices)
        if dim.name == "window":
            choices = _WINDOWS[(dim.stage or 1) - 1]
        least = 8 if dim.name == "qkv" else 0
        shift = {"mlp": dim.shift, "qkv": 8}.get(dim.name, 0)
        dims.append(replace(dim, choices=choices[: len(dim.choices)], shift=shift, minimum=least))
    return replace(space, dims=tuple(dims)).with_settings(**_DIGITS)


# -- shapes for a budget ----------------------------------------------------------------------------------------------


def _bases() -> Iterator[int]:
    """Widths of stage 1 to try; the others double from stage to stage, as in the published networks."""
    base = 2
    while base <= 256:
        yield base
        base += 1 if base < 24 else 2 if base < 64 else 4


def _depths(base: int) -> list[tuple[int, int, int, int]]:
    """Two blocks a stage (one in narrow networks), more in stage 3: sixteen channels a block, as in S3-T."""
    each, usual = (1 if base < 8 else 2), max(1, min(16, round(base / 16)))
    return [(each, each, third, each) for third in (usual, usual + 1, usual + 2)]


def auto_space(settings: Mapping[str, Any]) -> Iterator[Space]:
    """Spaces around the usual shape, from small to large; a run starts in the last that fits."""
    dim = int(settings["head_dim"])
    maps = WindowSettings(tuple(settings["image_size"]), int(settings["patch"])).maps
    for base in _bases():
        for depths in _depths(base):
            rows = []
            for s in range(STAGES):
                width = base * 2**s
                step, heads = max(1, width // 8), max(1, round(width / dim))
                low, top, blocks = depth_span(depths[s]) if s == 2 else (max(1, depths[s] - 1), depths[s], 1)
                rows.append(
                    {
                        "depth": tuple(range(low, top + 1, blocks)),
                        "embed": tuple(width - i * step for i in (2, 1, 0) if width > i * step),
                        "mlp": (3, 3.5, 4),
                        "qkv": tuple(dim * h for h in range(max(1, heads - 2), heads + 1)),
                        "window": windows_for(maps[s]),
                    }
                )
            yield _space(rows, {"qkv": dim}, {"qkv": dim, "mlp": 0.5}, **settings)


def baseline(settings: Mapping[str, Any]) -> Iterator[Arch]:
    """Hand-designed networks from small to large: Swin's shape, MLP ratio 4, heads times head width near the width."""
    dim = int(settings["head_dim"])
    maps = WindowSettings(tuple(settings["image_size"]), int(settings["patch"])).maps
    for base in filter(handy, _bases()):
        widths = [base * 2**s for s in range(STAGES)]
        genes = {
            "embed": widths,
            "qkv": [dim * max(1, round(w / dim)) for w in widths],
            "window": [windows_for(m)[0] for m in maps],
            "mlp": 4,
        }
        for depths in _depths(base):
            yield windowed_arch({**genes, "depth": list(depths)})


# -- settings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowedSettings(WindowSettings):
    """What every network of a windowed space shares."""

    head_dim: int = 32


# -- model ------------------------------------------------------------------------------------------------------------


def _heads(shared: WindowedSettings, qkv: Value) -> int:
    if qkv % shared.head_dim:
        raise TailorError(f"A Q-K-V width of {qkv} is not a whole number of heads {shared.head_dim} wide.")
    return int(qkv) // shared.head_dim


def stages_of(shared: WindowedSettings, arch: Arch) -> Stages:
    """The four stages of an architecture."""
    found = []
    for s in range(1, STAGES + 1):
        heads = tuple(_heads(shared, q) for q in arch.many(f"qkv.{s}"))
        windows = tuple(int(w) for w in arch.many(f"window.{s}"))
        dims = (shared.head_dim,) * len(heads)
        found.append(WindowStage(int(arch.one(f"embed.{s}")), windows, heads, dims, arch.many(f"mlp.{s}")))
    return tuple(found)


def supernet(space: Space, drop_path: float = 0.0, execution: str = "auto") -> ElasticWindows:
    """The supernet of a space; it has one execution, whatever ``execution`` says."""
    return ElasticWindows(space, windowed_settings(dict(space.settings)), stages_of, drop_path)


def build(shared: WindowedSettings, arch: Arch, drop_path: Any = 0.0, execution: str = "auto") -> PlainWindowed:
    """The plain network of an architecture, freshly initialised."""
    return PlainWindowed(shared, stages_of(shared, arch), drop_path)


# -- layer inventory --------------------------------------------------------------------------------------------------


def segments(arch: Arch) -> list[Hashable]:
    """Stem, one entry per block, merges, head."""
    before = arch.one("embed.1")
    found: list[Hashable] = [("stem", before)]
    for s in range(1, STAGES + 1):
        embed = arch.one(f"embed.{s}")
        found += [("merge", s, before, embed)] if s > 1 else []
        genes = (arch.many(f"{name}.{s}") for name in ("window", "qkv", "mlp"))
        found += [("block", s, embed, *row) for row in zip(*genes, strict=True)]
        before = embed
    return [*found, ("head", before)]


def layers(shared: WindowedSettings, segment: Any) -> list[Layer]:
    """Exact parameters and MACs of one segment."""
    kind, *rest = segment
    if kind == "stem":
        return stem_rows(shared, int(rest[0]))
    if kind == "head":
        return head_rows(shared, int(rest[0]))
    if kind == "merge":
        s, before, embed = rest
        return merge_rows(shared, s - 1, int(before), int(embed))
    s, embed, window, qkv, ratio = rest
    return block_rows(shared, s - 1, int(embed), int(window), _heads(shared, qkv), shared.head_dim, ratio)


# -- entry record -----------------------------------------------------------------------------------------------------


def windowed_settings(settings: Mapping[str, Any]) -> WindowedSettings:
    """Type and check the shared settings."""
    return window_settings("windowed", WindowedSettings, settings)


def resettle(arch: Arch, shared: dict[str, Any], settings: Mapping[str, Any]) -> tuple[Arch, dict[str, Any]]:
    """After a resize: windows are genes."""
    stages = settings["stages"]
    return arch.replace(**{f"window.{i}": tuple(stage["window"]) for i, stage in enumerate(stages, 1)}), shared


FAMILY = Family(
    name="windowed",
    summary="four stages with elastic depth and width, and elastic window, Q-K-V and MLP ratio per block",
    paper="S3 (NeurIPS 2021)",
    genes=GENES,
    settings=windowed_settings,
    arch=lambda data: windowed_arch({k: v for k, v in data.items() if k != "family"}),
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
    uneven=("window",),
    resettle=resettle,
)
