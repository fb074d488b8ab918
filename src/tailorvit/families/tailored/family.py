"""ViT as timm has them, cut to size: heads and hidden units per block, channels, blocks anywhere.

The supernet of a pretrained network: its largest member is that network. The order of heads, hidden units, channels and
blocks is the order in which they are given up, so prefixes keep what matters.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tailorvit.arch import Arch
from tailorvit.families.base import Family, Layer
from tailorvit.families.tailored.elastic import ElasticTailored, build, extract
from tailorvit.families.tailored.order import (
    fill,
    first_arch,
    logits,
    parts,
    refit,
    reordered,
    turned,
    turned_settings,
    whole_arch,
)
from tailorvit.families.tailored.plain import PlainTailored, TailoredSettings, attention, tailored_settings
from tailorvit.families.tailored.spaces import (
    ARCHS,
    GENES,
    SPACES,
    TINY,
    auto_space,
    baseline,
    settle,
    shrink,
    tailored_arch,
    whole_space,
)
from tailorvit.families.tailoring import Tailoring

# -- layer inventory --------------------------------------------------------------------------------------------------


def segments(arch: Arch) -> list[Hashable]:
    """Stem, one entry per block, head."""
    embed = arch.one("embed")
    rows = zip(arch.many("heads"), arch.many("hidden"), strict=True)
    return [("stem", embed), *((embed, heads, hidden) for heads, hidden in rows), ("head", embed)]


def layers(shared: TailoredSettings, segment: Any) -> list[Layer]:
    """Exact parameters and MACs of one segment."""
    n, tokens, norm = shared.grid[0] * shared.grid[1], shared.tokens, 2 if shared.norm == "layer" else 1
    if segment[0] == "stem":
        d, pixels = int(segment[1]), shared.channels * shared.patch**2
        return [
            Layer("patch_embed", (pixels + 1) * d, pixels * n * d),
            Layer("tokens", shared.lead * d, 0),
            Layer("pos_embed", (tokens - shared.registers) * d if shared.positions else 0, 0),
            Layer("norm_pre", norm * d if shared.pre_norm else 0, 0),
        ]
    if segment[0] == "head":
        d = int(segment[1])
        return [Layer("norm", norm * d, 0), Layer("head", shared.classes * (d + 1), shared.classes * d)]
    d, heads, hidden = (int(v) for v in segment)
    q, into = heads * shared.head_dim, 2 if shared.gated else 1
    return [
        Layer("blocks.norm", 2 * norm * d, 0),
        Layer("blocks.attn.qkv", 3 * q * d + (3 * q if shared.qkv_bias else 0), 3 * tokens * d * q),
        Layer("blocks.attn.qk_norm", 4 * shared.head_dim if shared.qk_norm else 0, 0),
        Layer("blocks.attn", 0, 2 * tokens**2 * q),
        Layer("blocks.attn.proj", q * d + d, tokens * d * q),
        Layer("blocks.mlp.fc1", into * hidden * (d + 1), into * tokens * d * hidden),
        Layer("blocks.mlp.fc2", hidden * d + d, tokens * d * hidden),
    ]


def outline(shared: TailoredSettings, arch: Arch) -> list[dict[str, Any]]:
    """Shape and cost of every block."""
    rows, embed = [], int(arch.one("embed"))
    for i, (heads, hidden) in enumerate(zip(arch.many("heads"), arch.many("hidden"), strict=True), 1):
        parts = layers(shared, (embed, heads, hidden))
        rows.append(
            {
                "stage": None,
                "block": i,
                "tokens": shared.tokens,
                "embed": embed,
                "heads": int(heads),
                "qkv": int(heads) * shared.head_dim,
                "hidden": int(hidden),
                "params": sum(p.params for p in parts),
                "macs": sum(p.macs for p in parts),
            }
        )
    return rows


# -- cut from pretrained networks -------------------------------------------------------------------------------------


def best_side(shared: TailoredSettings, side: int, trained: int) -> int:
    """The nearest side of whole patches, and no larger than the positions were trained for."""
    patches = max(1, round(side / shared.patch))
    return shared.patch * (min(patches, trained // shared.patch) if shared.positions else patches)


TAILORING = Tailoring(
    settings=TailoredSettings,
    space=whole_space,
    whole=whole_arch,
    side=best_side,
    parts=parts,
    logits=logits,
    reordered=reordered,
    fill=fill,
    turned=turned,
    turned_settings=turned_settings,
    refit=refit,
    first=first_arch,
)

# -- entry record -----------------------------------------------------------------------------------------------------

FAMILY = Family(
    name="tailored",
    summary="ViT as timm has them, cut from a pretrained one: heads and hidden units per block, channels, blocks",
    paper="ours; DynaBERT and InstaTune show the idea",
    genes=GENES,
    settings=tailored_settings,
    arch=lambda data: tailored_arch({k: v for k, v in data.items() if k != "family"}),
    segments=segments,
    layers=layers,
    supernet=ElasticTailored,
    plain=PlainTailored,
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
    tailoring=TAILORING,
    from_scratch=False,
    experimental=True,
)
