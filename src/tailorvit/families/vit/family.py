"""ViT with per-block heads and MLP ratios: the AutoFormer, S4 and TF-TAS (AutoFormer part) search spaces.

AutoFormer: Searching Transformers for Visual Recognition (ICCV 2021); S4: size-aware space exploration; TF-TAS:
Training-free Transformer Architecture Search (CVPR 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from tailorvit.arch import Arch
from tailorvit.families.base import Family, Layer
from tailorvit.families.blockwise import GENES
from tailorvit.families.network import hidden_width
from tailorvit.families.vit.elastic import ElasticViT, build, extract
from tailorvit.families.vit.plain import PlainViT, ViTSettings, attention, vit_settings
from tailorvit.families.vit.relative import fused_width, table_rows
from tailorvit.families.vit.spaces import (
    ARCHS,
    SHAPES,
    SPACES,
    STEMS,
    TINY,
    auto_space,
    baseline,
    settle,
    shrink,
    vit_arch,
)

# -- layer inventory --------------------------------------------------------------------------------------------------


def segments(arch: Arch) -> list[Hashable]:
    """Stem, one entry per block, head; equal entries cost the same, so totals are sums of remembered parts."""
    embed = arch.one("embed")
    return [("stem", embed), *((embed, h, m) for h, m in zip(arch.many("heads"), arch.many("mlp"))), ("head", embed)]


def layers(shared: ViTSettings, segment: Any, relative: str = "factored") -> list[Layer]:
    """Exact parameters and MACs of one segment; ``relative`` picks whose execution of relative position is counted."""
    n, tokens = shared.tokens - 1, shared.tokens
    if segment[0] == "stem":
        d = int(segment[1])
        pixels = shared.channels * shared.patch**2
        return [
            Layer("patch_embed", (pixels + 1) * d, pixels * n * d),
            Layer("cls_token", d, 0),
            Layer("pos_embed", tokens * d if shared.absolute else 0, 0),
        ]
    if segment[0] == "head":
        d = int(segment[1])
        return [Layer("norm", 2 * d, 0), Layer("head", shared.classes * (d + 1), shared.classes * d)]
    d, heads, hidden = int(segment[0]), int(segment[1]), hidden_width(int(segment[0]), segment[2])
    q, rows = heads * shared.head_dim, table_rows(shared.reach)
    high, wide = shared.grid
    attention = 2 * tokens**2 * q
    position = {
        "none": 0,
        "factored": 4 * tokens * q * rows,
        "dense": 2 * tokens**2 * q,
        # the widened attention instead of the narrow one, plus the products with row, column and class tables
        "fused": 2 * tokens**2 * heads * fused_width(shared.head_dim, shared.grid)
        - attention
        + q * n * (2 * high + 2 * wide + 1),
    }[relative if shared.relative else "none"]
    return [
        Layer("blocks.norm", 4 * d, 0),
        Layer("blocks.attn.qkv", 3 * q * d + (3 * q if shared.qkv_bias else 0), 3 * tokens * d * q),
        Layer("blocks.attn", 0, attention),
        Layer("blocks.attn.relative", 4 * rows * shared.head_dim if shared.relative else 0, position),
        Layer("blocks.attn.proj", q * d + d, tokens * d * q),
        Layer("blocks.mlp.fc1", hidden * d + hidden, tokens * d * hidden),
        Layer("blocks.mlp.fc2", hidden * d + d, tokens * d * hidden),
    ]


def outline(shared: ViTSettings, arch: Arch) -> list[dict[str, Any]]:
    """Shape and cost of every block."""
    rows, embed = [], int(arch.one("embed"))
    for i, (heads, ratio) in enumerate(zip(arch.many("heads"), arch.many("mlp"), strict=True), 1):
        parts = layers(shared, (embed, heads, ratio))
        rows.append(
            {
                "stage": None,
                "block": i,
                "tokens": shared.tokens,
                "embed": embed,
                "heads": int(heads),
                "qkv": int(heads) * shared.head_dim,
                "mlp": ratio,
                "hidden": hidden_width(embed, ratio),
                "window": None,
                "params": sum(p.params for p in parts),
                "macs": sum(p.macs for p in parts),
            }
        )
    return rows


# -- other people's counts --------------------------------------------------------------------------------------------


def eq3_params(shared: ViTSettings, arch: Arch) -> int:
    """S4's Eq. 3, summed per block. It says 1539d where the network has 967d, and 5d a block where it has d.

    The general form keeps what 1539 = 2 * 769 + 1 seems to be: the patch embedding twice, plus the class token.
    """
    d = int(arch.one("embed"))
    pixels = shared.channels * shared.patch**2
    total = (2 * (pixels + 1) + 1) * d + 2 * d + shared.classes * (d + 1)
    tables = 4 * table_rows(shared.reach) * shared.head_dim if shared.relative else 0
    for heads, ratio in zip(arch.many("heads"), arch.many("mlp"), strict=True):
        q, hidden = int(heads) * shared.head_dim, hidden_width(d, ratio)
        total += 4 * d + 4 * q * d + 3 * q + 5 * d + tables + 2 * hidden * d + hidden + d
    return total


def official_complexity(shared: ViTSettings, arch: Arch) -> int:
    """What AutoFormer's released code prints as FLOPs: a token too many in the blocks, the head on every token."""
    d, n = int(arch.one("embed")), shared.tokens - 1
    tokens = n + 2  # the released counter adds the class token twice
    pixels = shared.channels * shared.patch**2
    total = d + n * pixels * d + (n + 1) * d / 2
    for heads, ratio in zip(arch.many("heads"), arch.many("mlp"), strict=True):
        q, hidden = int(heads) * shared.head_dim, hidden_width(d, ratio)
        relative = 2 * shared.reach * tokens**2 + tokens**2 / 2 + tokens * q / 2 if shared.relative else 0
        total += 2 * tokens * d + 4 * tokens * q * d + 2 * tokens**2 * q + relative + 2 * tokens * d * hidden
    return int(total + (n + 1) * shared.classes * d)


READINGS: Mapping[str, Callable[[ViTSettings, Arch], int]] = {
    "params_eq3": eq3_params,
    "official_complexity": official_complexity,
}


# -- entry record -----------------------------------------------------------------------------------------------------


def _counted(relative: str) -> Callable[[ViTSettings, Arch], int]:
    return lambda shared, arch: sum(row.macs for s in segments(arch) for row in layers(shared, s, relative))


FAMILY = Family(
    name="vit",
    summary="ViT with elastic depth, width, heads and MLP ratio; 2-D relative position on keys and values",
    paper="AutoFormer (ICCV 2021), S4, TF-TAS (CVPR 2022)",
    genes=GENES,
    settings=vit_settings,
    arch=lambda data: vit_arch(**{k: v for k, v in data.items() if k != "family"}),
    segments=segments,
    layers=layers,
    supernet=ElasticViT,
    plain=PlainViT,
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
    readings={**{f"macs_{r}": _counted(r) for r in ("none", "factored", "dense", "fused")}, **READINGS},
)
