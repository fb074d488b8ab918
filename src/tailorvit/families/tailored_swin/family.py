"""Swin as timm has it, cut to size: in every stage blocks, channels, and heads and hidden units per block.

The supernet of a pretrained network: its largest member is that network. Blocks keep the places they had, and with them
their shift. Networks are the windowed ones (families/windows); here are only their spaces and their order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from tailorvit.arch import Arch
from tailorvit.families.base import Family, Layer
from tailorvit.families.tailored_swin.order import best_side, logits, parts, refit, reordered, whole_arch
from tailorvit.families.tailored_swin.spaces import (
    ARCHS,
    GENES,
    NAME,
    SPACES,
    TINY,
    TailoredSwinSettings,
    auto_space,
    baseline,
    settle,
    shrink,
    stages_of,
    tailored_swin_arch,
    tailored_swin_settings,
    whole_space,
)
from tailorvit.families.tailoring import Tailoring
from tailorvit.families.windows.elastic import (
    ElasticWindows,
    block_rows,
    extract,
    fill,
    head_rows,
    merge_rows,
    outline_of,
    stem_rows,
)
from tailorvit.families.windows.plain import STAGES, PlainWindowed, attention
from tailorvit.space import Space

# -- model ------------------------------------------------------------------------------------------------------------


def supernet(space: Space, drop_path: float = 0.0, execution: str = "auto") -> ElasticWindows:
    """The supernet of a space; it has one execution, whatever ``execution`` says."""
    return ElasticWindows(space, tailored_swin_settings(dict(space.settings)), stages_of, drop_path)


def build(shared: TailoredSwinSettings, arch: Arch, drop_path: Any = 0.0, execution: str = "auto") -> PlainWindowed:
    """The plain network of an architecture, freshly initialised; its blocks know the places they had."""
    return PlainWindowed(shared, stages_of(shared, arch), drop_path)


def resettle(arch: Arch, shared: dict[str, Any], settings: Mapping[str, Any]) -> tuple[Arch, dict[str, Any]]:
    """After a resize: the windows are a shared setting."""
    return arch, {**shared, "window": tuple(stage["window"][0] for stage in settings["stages"])}


# -- layer inventory --------------------------------------------------------------------------------------------------


def segments(arch: Arch) -> list[Hashable]:
    """Stem, one entry per block, merges, head."""
    before = arch.one("embed.1")
    found: list[Hashable] = [("stem", before)]
    for s in range(1, STAGES + 1):
        embed = arch.one(f"embed.{s}")
        found += [("merge", s, before, embed)] if s > 1 else []
        rows = zip(arch.many(f"heads.{s}"), arch.many(f"hidden.{s}"), strict=True)
        found += [("block", s, embed, *row) for row in rows]
        before = embed
    return [*found, ("head", before)]


def layers(shared: TailoredSwinSettings, segment: Any) -> list[Layer]:
    """Exact parameters and MACs of one segment."""
    kind, *rest = segment
    if kind == "stem":
        return stem_rows(shared, int(rest[0]))
    if kind == "head":
        return head_rows(shared, int(rest[0]))
    if kind == "merge":
        s, before, embed = rest
        return merge_rows(shared, s - 1, int(before), int(embed))
    s, embed, heads, hidden = (int(v) for v in rest)
    return block_rows(shared, s - 1, embed, shared.window[s - 1], heads, shared.head_dim, hidden / embed)


def outline(shared: TailoredSwinSettings, arch: Arch) -> list[dict[str, Any]]:
    """Shape and cost of every block."""
    rows = outline_of(shared, stages_of(shared, arch))
    return [{k: v for k, v in row.items() if k != "mlp"} for row in rows]  # hidden units are counted, not a ratio


# -- entry record -----------------------------------------------------------------------------------------------------

FAMILY = Family(
    name=NAME,
    summary="Swin as timm has it, cut from a pretrained one: heads and hidden units per block, channels, blocks",
    paper="ours, on Swin (ICCV 2021)",
    genes=GENES,
    settings=tailored_swin_settings,
    arch=lambda data: tailored_swin_arch({k: v for k, v in data.items() if k != "family"}),
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
    outline=outline,
    attention=attention,
    fractional=(),
    resettle=resettle,
    tailoring=Tailoring(
        settings=TailoredSwinSettings,
        space=whole_space,
        whole=whole_arch,
        side=best_side,
        parts=parts,
        logits=logits,
        reordered=reordered,
        fill=fill,
        refit=refit,
    ),
    from_scratch=False,
    experimental=True,
)
