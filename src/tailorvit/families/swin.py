"""Swin with an elastic third stage, width and MLP ratio: the Swin search space of S4.

Swin Transformer: Hierarchical Vision Transformer using Shifted Windows (ICCV 2021); S4: size-aware space exploration.
Heads are fixed, so the width of a head changes with the width of the network: every head is sliced by itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.families.base import Family, Layer
from tailorvit.families.swin_named import ARCHS, SPACES, TINY, auto_space, baseline, settle, shrink, swin_arch
from tailorvit.families.windows import ElasticWindows, Stages, extract
from tailorvit.families.windows_counts import (
    block_rows,
    checked,
    head_rows,
    merge_rows,
    outline_of,
    stem_rows,
    whole_numbers,
)
from tailorvit.families.windows_views import attention
from tailorvit.plain.windowed import STAGES, PlainWindowed, WindowFrame, WindowStage
from tailorvit.space import Space


@dataclass(frozen=True)
class SwinFrame(WindowFrame):
    """What every member of a Swin space shares."""

    heads: tuple[int, ...] = (3, 6, 12, 12)  # S4's; Swin itself has 24 in the last stage
    depths: tuple[int, ...] = (2, 2, 2)  # blocks of stages 1, 2 and 4
    window: int = 7


# -- model ------------------------------------------------------------------------------------------------------------


def _depth(frame: SwinFrame, stage: int, third: int) -> int:
    return (frame.depths[0], frame.depths[1], third, frame.depths[2])[stage]


def _head_dim(frame: SwinFrame, stage: int, width: int) -> int:
    heads = frame.heads[stage]
    if width % heads:
        raise TailorError(f"Stage {stage + 1} of a swin is {width} wide, which {heads} heads cannot share equally.")
    return width // heads


def stages_of(frame: SwinFrame, arch: Arch) -> Stages:
    """The four stages of an architecture: widths d, 2d, 4d, 8d."""
    embed, ratio, third, found = int(arch.one("embed")), arch.one("mlp"), int(arch.one("depth.3")), []
    for s in range(STAGES):
        width, n = embed * 2**s, _depth(frame, s, third)
        dim = _head_dim(frame, s, width)
        found.append(WindowStage(width, (frame.window,) * n, (frame.heads[s],) * n, (dim,) * n, (ratio,) * n))
    return tuple(found)


def supernet(space: Space, drop_path: float = 0.0, execution: str = "auto") -> ElasticWindows:
    """The supernet of a space; it has one execution, whatever ``execution`` says."""
    return ElasticWindows(space, frame_of(dict(space.fixed)), stages_of, drop_path)


def build(frame: SwinFrame, arch: Arch, drop_path: Any = 0.0, execution: str = "auto") -> PlainWindowed:
    """The plain network of an architecture, freshly initialised."""
    return PlainWindowed(frame, stages_of(frame, arch), drop_path)


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


def layers(frame: SwinFrame, segment: Any) -> list[Layer]:
    """Exact parameters and MACs of one segment."""
    kind, *rest = segment
    if kind == "stem":
        return stem_rows(frame, int(rest[0]))
    if kind == "head":
        return head_rows(frame, int(rest[0]) * 2 ** (STAGES - 1))
    if kind == "merge":
        s, d = rest
        return merge_rows(frame, s, int(d) * 2 ** (s - 1), int(d) * 2**s)
    s, d, ratio = rest if kind == "stage" else (2, *rest)
    width = int(d) * 2**s
    rows = block_rows(frame, s, width, frame.window, frame.heads[s], _head_dim(frame, s, width), ratio)
    times = _depth(frame, s, 1)
    return [Layer(row.part, times * row.params, times * row.macs) for row in rows]


# -- entry record -----------------------------------------------------------------------------------------------------


def frame_of(fixed: Mapping[str, Any]) -> SwinFrame:
    """Type and check the shared settings."""
    frame = checked("swin", SwinFrame, fixed)
    whole_numbers("swin", "heads", frame.heads, STAGES)
    whole_numbers("swin", "depths", frame.depths, STAGES - 1)
    return frame


SWIN = Family(
    name="swin",
    summary="Swin with elastic depth of stage 3, width and MLP ratio; attention in shifted windows, heads fixed",
    paper="Swin (ICCV 2021), S4",
    genes=("depth.3", "mlp", "embed"),
    frame=frame_of,
    arch=lambda data: swin_arch({k: v for k, v in data.items() if k != "family"}),
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
)
