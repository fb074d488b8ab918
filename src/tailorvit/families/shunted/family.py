"""Shunted Transformer with elastic depth, width and MLP ratio: S4's third family.

Shunted Self-Attention via Multi-Scale Token Aggregation (CVPR 2022); S4: size-aware space exploration. The number of
heads is fixed and their width follows the embedding, so weights are kept per head and every head keeps its rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from tailorvit.arch import Arch, number
from tailorvit.families.base import Family, Layer
from tailorvit.families.shunted.elastic import ElasticShunted, build, extract
from tailorvit.families.shunted.plain import (
    STAGES,
    PlainShunted,
    ShuntedSettings,
    attention,
    cells,
    shapes,
    shunted_settings,
)
from tailorvit.families.shunted.spaces import (
    ARCHS,
    SHAPES,
    SPACES,
    STEMS,
    TINY,
    auto_space,
    baseline,
    settle,
    shrink,
    shunted_arch,
)

# -- layer inventory --------------------------------------------------------------------------------------------------


def segments(arch: Arch) -> list[Hashable]:
    """Stem, four stages, head."""
    depth, embed, mlp = arch.one("depth"), arch.one("embed"), arch.one("mlp")
    return [("stem", embed), *((s, depth, embed, mlp) for s in range(STAGES)), ("head", embed)]


def layers(shared: ShuntedSettings, segment: Any) -> list[Layer]:
    """Exact parameters and MACs of one segment."""
    if segment[0] == "stem":
        s, d = shared.stem, int(segment[1])
        pixels, patch = shared.stem_grid[0] * shared.stem_grid[1], shared.stem_strides[1] ** 2
        first, rest = shared.stem_kernel**2 * shared.channels * s, 9 * shared.stem_convs * s * s
        tokens = shared.grids[0][0] * shared.grids[0][1]
        return [
            Layer("patch_embed.convs", first + rest, pixels * (first + rest)),
            Layer("patch_embed.norms", 2 * s * (1 + shared.stem_convs) + 2 * d, 0),
            Layer("patch_embed.proj", patch * s * d + d, tokens * patch * s * d),
        ]
    if segment[0] == "head":
        d = int(segment[1]) * 2 ** (STAGES - 1)
        return [Layer("head", shared.classes * (d + 1), shared.classes * d)]
    s, depth, d = int(segment[0]), shared.depths(int(segment[1]))[segment[0]], int(segment[2]) * 2 ** segment[0]
    tokens, merge = shared.grids[s][0] * shared.grids[s][1], 9 * d * (d // 2)
    return [
        *([Layer("stages.downsample", merge + 3 * d, tokens * merge)] if s else []),
        *(
            Layer(r.part, depth * r.params, depth * r.macs)
            for r in block_layers(shared, s, int(segment[2]), segment[3])
        ),
        Layer("stages.norm", 2 * d, 0),
    ]


def block_layers(shared: ShuntedSettings, s: int, embed: int, mlp: float) -> list[Layer]:
    """The inventory of one block of a stage."""
    (d, _, hidden), grid, k = shapes(shared, embed, mlp)[s], shared.grids[s], shared.reductions[s]
    n, every = grid[0] * grid[1], k == 1
    counts = [(cell, cells(grid, cell)[0] * cells(grid, cell)[1]) for cell in ((1,) if every else (k, k // 2))]
    keys, width = sum(c for _, c in counts), d if every else d // 2  # of one set
    rows = [] if every else [(cell**2 * d * d, c) for cell, c in counts]
    return [
        Layer("blocks.norm", 4 * d, 0),
        Layer("blocks.attn.q", d * d + d, n * d * d),
        Layer("blocks.attn.sr", sum(w + 3 * d for w, _ in rows), sum(w * c for w, c in rows)),
        Layer("blocks.attn.kv", len(counts) * 2 * width * (d + 1), keys * 2 * width * d),
        Layer("blocks.attn.local", len(counts) * 10 * width, keys * 9 * width),
        Layer("blocks.attn", 0, 2 * n * keys * width),
        Layer("blocks.attn.proj", d * d + d, n * d * d),
        Layer("blocks.mlp.fc1", hidden * d + hidden, n * d * hidden),
        Layer("blocks.mlp.dwconv", 10 * hidden, 9 * n * hidden),
        Layer("blocks.mlp.fc2", hidden * d + d, n * d * hidden),
    ]


def outline(shared: ShuntedSettings, arch: Arch) -> list[dict[str, Any]]:
    """Shape and cost of every block."""
    rows, embed, mlp = [], int(arch.one("embed")), arch.one("mlp")
    for s, depth in enumerate(shared.depths(int(arch.one("depth")))):
        width, _, hidden = shapes(shared, embed, mlp)[s]
        parts = block_layers(shared, s, embed, mlp)
        for i in range(1, depth + 1):
            rows.append(
                {
                    "stage": s + 1,
                    "block": i,
                    "tokens": shared.grids[s][0] * shared.grids[s][1],
                    "embed": width,
                    "heads": shared.heads[s],
                    "qkv": width,
                    "mlp": number(shared.mlps(mlp)[s]),
                    "hidden": hidden,
                    "window": None,
                    "params": sum(p.params for p in parts),
                    "macs": sum(p.macs for p in parts),
                }
            )
    return rows


# -- entry record -----------------------------------------------------------------------------------------------------


def resettle(arch: Arch, shared: dict[str, Any], settings: Mapping[str, Any]) -> tuple[Arch, dict[str, Any]]:
    """After a resize: the reduction of the keys is a shared setting."""
    return arch, {**shared, "reduce": tuple(settings["reduce"])}


FAMILY = Family(
    name="shunted",
    summary="Shunted Transformer with elastic depth, width and MLP ratio; heads look at keys of two scales",
    paper="Shunted Transformer (CVPR 2022), S4",
    genes=("depth", "embed", "mlp"),
    settings=shunted_settings,
    arch=lambda data: shunted_arch(**{k: v for k, v in data.items() if k != "family"}),
    segments=segments,
    layers=layers,
    supernet=ElasticShunted,
    plain=PlainShunted,
    build=build,
    extract=extract,
    spaces=SPACES,
    archs=ARCHS,
    auto=auto_space,
    baseline=baseline,
    settle=settle,
    shapes=SHAPES,
    stems=STEMS,
    shrink=shrink,
    tiny=TINY,
    outline=outline,
    attention=attention,
    resettle=resettle,
)
