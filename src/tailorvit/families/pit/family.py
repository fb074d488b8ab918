"""PiT, pooling-based vision transformer: three stages whose width is heads times a common base; TF-TAS' second space.

Rethinking Spatial Dimensions of Vision Transformers (ICCV 2021); searched by TF-TAS: Training-free Transformer
Architecture Search (CVPR 2022, Tables C and D).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tailorvit.arch import Arch
from tailorvit.families.base import Family, Layer
from tailorvit.families.network import hidden_width
from tailorvit.families.pit.elastic import ElasticPiT, build, extract
from tailorvit.families.pit.plain import PitSettings, PlainPiT, attention, check_pool, pit_settings
from tailorvit.families.pit.spaces import (
    ARCHS,
    GENES,
    SHAPES,
    SPACES,
    STAGES,
    STEMS,
    TINY,
    auto_space,
    baseline,
    pit_arch,
    settle,
    shrink,
)

# -- layer inventory --------------------------------------------------------------------------------------------------


def segments(arch: Arch) -> list[Hashable]:
    """Stem, per stage its pooling and blocks, head; equal entries cost the same."""
    base, ratio = int(arch.one("base")), arch.one("mlp")
    heads = [int(arch.one(f"heads.{s}")) for s in STAGES]
    found: list[Hashable] = [("stem", base * heads[0])]
    for i, s in enumerate(STAGES):
        if i:
            found.append(("pool", i, base * heads[i - 1], base * heads[i]))
        found += [("block", i, base * heads[i], ratio)] * int(arch.one(f"depth.{s}"))
    return [*found, ("head", base * heads[-1])]


def layers(shared: PitSettings, segment: Any) -> list[Layer]:
    """Exact parameters and MACs of one segment."""
    kind, *facts = segment
    if kind == "stem":
        (d,), pixels, n = facts, shared.channels * shared.patch**2, shared.grids[0][0] * shared.grids[0][1]
        return [
            Layer("patch_embed", (pixels + 1) * d, pixels * n * d),
            Layer("cls_token", d, 0),
            Layer("pos_embed", n * d, 0),
        ]
    if kind == "head":
        (d,) = facts
        return [Layer("norm", 2 * d, 0), Layer("head", shared.classes * (d + 1), shared.classes * d)]
    high, wide = shared.grids[facts[0]]
    if kind == "pool":
        _, before, d = facts
        check_pool(before, d)
        return [Layer("pool.conv", 10 * d, 9 * d * high * wide), Layer("pool.fc", before * d + d, before * d)]
    _, d, ratio = facts
    tokens, hidden = high * wide + 1, hidden_width(d, ratio)
    return [
        Layer("blocks.norm", 4 * d, 0),
        Layer("blocks.attn.qkv", 3 * d * d + 3 * d, 3 * tokens * d * d),
        Layer("blocks.attn", 0, 2 * tokens**2 * d),
        Layer("blocks.attn.proj", d * d + d, tokens * d * d),
        Layer("blocks.mlp.fc1", hidden * d + hidden, tokens * d * hidden),
        Layer("blocks.mlp.fc2", hidden * d + d, tokens * d * hidden),
    ]


def outline(shared: PitSettings, arch: Arch) -> list[dict[str, Any]]:
    """Shape and cost of every block."""
    rows, base, ratio = [], int(arch.one("base")), arch.one("mlp")
    for i, s in enumerate(STAGES):
        heads, (high, wide) = int(arch.one(f"heads.{s}")), shared.grids[i]
        embed = base * heads
        parts = layers(shared, ("block", i, embed, ratio))
        for block in range(1, int(arch.one(f"depth.{s}")) + 1):
            shape = {"stage": s, "block": block, "tokens": high * wide + 1, "embed": embed, "heads": heads}
            inner = {"qkv": embed, "mlp": ratio, "hidden": hidden_width(embed, ratio), "window": None}
            cost = {"params": sum(p.params for p in parts), "macs": sum(p.macs for p in parts)}
            rows.append({**shape, **inner, **cost})
    return rows


# -- entry record -----------------------------------------------------------------------------------------------------


FAMILY = Family(
    name="pit",
    summary="PiT: three stages with pooling; elastic base width, depth and heads per stage, MLP ratio",
    paper="PiT (ICCV 2021), TF-TAS (CVPR 2022)",
    genes=GENES,
    settings=pit_settings,
    arch=lambda data: pit_arch(**{k: v for k, v in data.items() if k != "family"}),
    segments=segments,
    layers=layers,
    supernet=ElasticPiT,
    plain=PlainPiT,
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
)
