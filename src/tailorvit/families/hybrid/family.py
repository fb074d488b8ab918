"""Hybrid: inverted residuals with batch norm in four stages, attention in the last ones; ours, for training from
scratch.

On photos and few epochs it is ten points ahead of transformers with layer norm (benchmarks/win). Its parts are known:
inverted residuals (MobileNetV2, CVPR 2018), convolutions before attention (CoAtNet, NeurIPS 2021), batch norm around
attention (LeViT, ICCV 2021).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tailorvit.arch import Arch
from tailorvit.families.base import Family, Layer
from tailorvit.families.hybrid.elastic import ElasticHybrid, build, extract, sizes
from tailorvit.families.hybrid.plain import HybridSettings, PlainHybrid, attention, hybrid_settings
from tailorvit.families.hybrid.spaces import (
    GENES,
    SHAPES,
    SPACES,
    STEMS,
    TINY,
    auto_space,
    baseline,
    hybrid_arch,
    settle,
    shrink,
)

# -- layer inventory --------------------------------------------------------------------------------------------------


def segments(arch: Arch) -> list[Hashable]:
    """Stem, four stages, head."""
    rows, before, found = sizes(arch), 0, list[Hashable](["stem"])
    for s, row in enumerate(rows):
        found.append((s, before, *row))
        before = row[1]
    return [*found, ("head", before)]


def layers(shared: HybridSettings, segment: Any) -> list[Layer]:
    """Exact parameters and MACs of one segment."""
    if segment == "stem":
        pixels, weights = shared.stem_grid[0] * shared.stem_grid[1], 9 * shared.stem * (shared.channels + shared.stem)
        return [Layer("patch_embed.convs", weights, pixels * weights), Layer("patch_embed.norms", 4 * shared.stem, 0)]
    if segment[0] == "head":
        d = int(segment[1])
        return [Layer("norm", 2 * d, 0), Layer("head", shared.classes * (d + 1), shared.classes * d)]
    s, before, depth, embed, hidden = segment
    pixels, enter = shared.grids[s][0] * shared.grids[s][1], 9 * (before or shared.stem) * embed
    return [
        Layer("stages.downsample", enter + 2 * embed, pixels * enter),
        *(Layer(r.part, depth * r.params, depth * r.macs) for r in block_layers(shared, s, embed, hidden)),
    ]


def block_layers(shared: HybridSettings, s: int, embed: int, hidden: int) -> list[Layer]:
    """The inventory of one block of a stage."""
    n, heads = shared.grids[s][0] * shared.grids[s][1], shared.heads(s, embed)
    q = heads * shared.head_dim
    attends = [
        Layer("blocks.attn.norm", 2 * embed, 0),
        Layer("blocks.attn.qkv", 3 * q * (embed + 1), 3 * n * q * embed),
        Layer("blocks.attn", 0, 2 * n * n * q),
        Layer("blocks.attn.proj", q * embed + embed, n * q * embed),
    ]
    return [
        *(attends if heads else []),
        Layer("blocks.mlp.fc1", hidden * embed, n * hidden * embed),
        Layer("blocks.mlp.dwconv", 9 * hidden, 9 * n * hidden),
        Layer("blocks.mlp.fc2", hidden * embed, n * hidden * embed),
        Layer("blocks.mlp.norms", 4 * hidden + 2 * embed, 0),
    ]


def outline(shared: HybridSettings, arch: Arch) -> list[dict[str, Any]]:
    """Shape and cost of every block."""
    rows = []
    for s, (depth, embed, hidden) in enumerate(sizes(arch)):
        parts, heads = block_layers(shared, s, embed, hidden), shared.heads(s, embed)
        for i in range(1, depth + 1):
            rows.append(
                {
                    "stage": s + 1,
                    "block": i,
                    "tokens": shared.grids[s][0] * shared.grids[s][1],
                    "embed": embed,
                    **({"heads": heads, "qkv": heads * shared.head_dim} if heads else {}),
                    "mlp": arch.one("mlp"),
                    "hidden": hidden,
                    "params": sum(p.params for p in parts),
                    "macs": sum(p.macs for p in parts),
                }
            )
    return rows


# -- entry record -----------------------------------------------------------------------------------------------------

FAMILY = Family(
    name="hybrid",
    summary="four stages of convolutions with batch norm, attention in the last ones; elastic depth, width, MLP ratio",
    paper="ours; its parts are those of MobileNetV2, CoAtNet and LeViT",
    genes=GENES,
    settings=hybrid_settings,
    arch=lambda data: hybrid_arch({k: v for k, v in data.items() if k != "family"}),
    segments=segments,
    layers=layers,
    supernet=ElasticHybrid,
    plain=PlainHybrid,
    build=build,
    extract=extract,
    spaces=SPACES,
    archs={},
    auto=auto_space,
    baseline=baseline,
    settle=settle,
    shapes=SHAPES,
    stems=STEMS,
    shrink=shrink,
    tiny=TINY,
    outline=outline,
    attention=attention,
)
