"""Ladder: a searched decoder beside a frozen trunk (CLIP's image tower); the third kind of space S4 searches.

S4: size-aware space exploration (its CLIP decoder); EVL: Frozen CLIP Models are Efficient Video Learners (ECCV 2022);
LST: Ladder Side-Tuning (NeurIPS 2022). Only the decoder trains and counts; its input is the stack of the trunk's taps.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tailorvit.arch import Arch
from tailorvit.families.base import Family, Layer
from tailorvit.families.blockwise import GENES
from tailorvit.families.ladder.elastic import ElasticLadder, build, extract
from tailorvit.families.ladder.plain import LadderSettings, PlainLadder, attention, check_size, ladder_settings
from tailorvit.families.ladder.spaces import ARCHS, SPACES, TINY, auto_space, baseline, fit, ladder_arch, settle, shrink

# -- layer inventory --------------------------------------------------------------------------------------------------


def segments(arch: Arch) -> list[Hashable]:
    """Stem, one entry per block, head; equal entries cost the same."""
    embed, heads = int(arch.one("embed")), arch.many("heads")
    blocks = [("block", embed, int(h), m) for h, m in zip(heads, arch.many("mlp"), strict=True)]
    return [("stem", embed, len(heads)), *blocks, ("head", embed)]


def layers(shared: LadderSettings, segment: Any) -> list[Layer]:
    """Exact parameters and MACs of one segment; the trunk is frozen and not counted."""
    kind, embed, *facts = segment
    n, f, d = shared.tokens, shared.features, shared.width(embed)
    if kind == "stem":
        check_size(shared, embed, facts[0])
        return [Layer("query", d, 0)] if shared.one_query else [Layer("entry", f * d + d, n * f * d)]
    if kind == "head":
        return [Layer("norm", 2 * d, 0), Layer("head", shared.classes * (d + 1), shared.classes * d)]
    heads, ratio = facts
    q, hidden = heads * shared.head_dim, shared.hidden(embed, ratio)
    queries = 1 if shared.one_query else n
    extra = 2 * f if shared.one_query else 1  # a norm, or a gate
    tap = [] if shared.design == "evl" else [Layer("blocks.tap", extra + f * d + d, n * f * d)]
    return [
        *tap,
        Layer("blocks.norm", (6 if shared.one_query else 4) * d, 0),
        Layer("blocks.attn.qkv", 3 * (d * q + q), (queries + 2 * n) * d * q),
        Layer("blocks.attn", 0, 2 * queries * n * q),
        Layer("blocks.attn.proj", q * d + d, queries * d * q),
        Layer("blocks.mlp.fc1", hidden * d + hidden, queries * d * hidden),
        Layer("blocks.mlp.fc2", hidden * d + d, queries * d * hidden),
    ]


def outline(shared: LadderSettings, arch: Arch) -> list[dict[str, Any]]:
    """Shape and cost of every block; ``tokens`` are those the decoder carries, one where a query looks at the taps."""
    rows, embed = [], int(arch.one("embed"))
    for i, (heads, ratio) in enumerate(zip(arch.many("heads"), arch.many("mlp"), strict=True), 1):
        parts = layers(shared, ("block", embed, int(heads), ratio))
        tokens = 1 if shared.one_query else shared.tokens
        shape = {"stage": None, "block": i, "tokens": tokens, "embed": shared.width(embed), "heads": int(heads)}
        inner = {
            "qkv": int(heads) * shared.head_dim,
            "mlp": ratio,
            "hidden": shared.hidden(embed, ratio),
            "window": None,
        }
        cost = {"params": sum(p.params for p in parts), "macs": sum(p.macs for p in parts)}
        rows.append({**shape, **inner, **cost})
    return rows


# -- entry record -----------------------------------------------------------------------------------------------------


FAMILY = Family(
    name="ladder",
    summary="Decoder beside a frozen trunk: a query, or a side network, on its last layers; elastic depth to MLP ratio",
    paper="S4, EVL (ECCV 2022), LST (NeurIPS 2022)",
    genes=GENES,
    settings=ladder_settings,
    arch=lambda data: ladder_arch(**{k: v for k, v in data.items() if k != "family"}),
    segments=segments,
    layers=layers,
    supernet=ElasticLadder,
    plain=PlainLadder,
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
    fit=fit,
)
