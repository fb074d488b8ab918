"""Four stages of windowed attention in which nearly everything is elastic: the search space of S3.

Searching the Search Space of Vision Transformer (NeurIPS 2021). Per stage: blocks and width; per block: window, Q-K-V
width (heads of a fixed width, so the number of heads follows) and MLP ratio: 20 dimensions.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from tailorvit.arch import Arch, Value
from tailorvit.errors import TailorError
from tailorvit.families.base import Family, Layer
from tailorvit.families.windowed_named import (
    ARCHS,
    GENES,
    SPACES,
    TINY,
    auto_space,
    baseline,
    settle,
    shrink,
    windowed_arch,
)
from tailorvit.families.windows import ElasticWindows, Stages, extract
from tailorvit.families.windows_counts import block_rows, checked, head_rows, merge_rows, outline_of, stem_rows
from tailorvit.families.windows_views import attention
from tailorvit.plain.windowed import STAGES, PlainWindowed, WindowFrame, WindowStage
from tailorvit.space import Space


@dataclass(frozen=True)
class WindowedFrame(WindowFrame):
    """What every member of a windowed space shares."""

    head_dim: int = 32


# -- model ------------------------------------------------------------------------------------------------------------


def _heads(frame: WindowedFrame, qkv: Value) -> int:
    if qkv % frame.head_dim:
        raise TailorError(f"A Q-K-V width of {qkv} is not a whole number of heads {frame.head_dim} wide.")
    return int(qkv) // frame.head_dim


def stages_of(frame: WindowedFrame, arch: Arch) -> Stages:
    """The four stages of an architecture."""
    found = []
    for s in range(1, STAGES + 1):
        heads = tuple(_heads(frame, q) for q in arch.many(f"qkv.{s}"))
        windows = tuple(int(w) for w in arch.many(f"window.{s}"))
        dims = (frame.head_dim,) * len(heads)
        found.append(WindowStage(int(arch.one(f"embed.{s}")), windows, heads, dims, arch.many(f"mlp.{s}")))
    return tuple(found)


def supernet(space: Space, drop_path: float = 0.0, execution: str = "auto") -> ElasticWindows:
    """The supernet of a space; it has one execution, whatever ``execution`` says."""
    return ElasticWindows(space, frame_of(dict(space.fixed)), stages_of, drop_path)


def build(frame: WindowedFrame, arch: Arch, drop_path: Any = 0.0, execution: str = "auto") -> PlainWindowed:
    """The plain network of an architecture, freshly initialised."""
    return PlainWindowed(frame, stages_of(frame, arch), drop_path)


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


def layers(frame: WindowedFrame, segment: Any) -> list[Layer]:
    """Exact parameters and MACs of one segment."""
    kind, *rest = segment
    if kind == "stem":
        return stem_rows(frame, int(rest[0]))
    if kind == "head":
        return head_rows(frame, int(rest[0]))
    if kind == "merge":
        s, before, embed = rest
        return merge_rows(frame, s - 1, int(before), int(embed))
    s, embed, window, qkv, ratio = rest
    return block_rows(frame, s - 1, int(embed), int(window), _heads(frame, qkv), frame.head_dim, ratio)


# -- entry record -----------------------------------------------------------------------------------------------------


def frame_of(fixed: Mapping[str, Any]) -> WindowedFrame:
    """Type and check the shared settings."""
    return checked("windowed", WindowedFrame, fixed)


WINDOWED = Family(
    name="windowed",
    summary="four stages with elastic depth and width, and elastic window, Q-K-V and MLP ratio per block",
    paper="S3 (NeurIPS 2021)",
    genes=GENES,
    frame=frame_of,
    arch=lambda data: windowed_arch({k: v for k, v in data.items() if k != "family"}),
    segments=segments,
    layers=layers,
    supernet=supernet,
    build=build,
    extract=extract,
    spaces=SPACES,
    archs=ARCHS,
    auto=auto_space,
    baseline=baseline,
    settle=settle,
    shrink=shrink,
    tiny=TINY,
    outline=lambda frame, arch: outline_of(frame, stages_of(frame, arch)),
    attention=attention,
    uneven=("window",),
)
