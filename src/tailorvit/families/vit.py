"""ViT with per-block heads and MLP ratios: the AutoFormer, S4 and TF-TAS (AutoFormer part) search spaces.

AutoFormer: Searching Transformers for Visual Recognition (ICCV 2021); S4: size-aware space exploration; TF-TAS:
Training-free Transformer Architecture Search (CVPR 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.elastic.compiled import BlockCall
from tailorvit.elastic.layers import Attention, LayerNorm, Linear, Mlp, PatchEmbed, drop_path
from tailorvit.elastic.slicing import Width, prefix, transformer_slices
from tailorvit.errors import TailorError
from tailorvit.families.assemble import assemble
from tailorvit.families.base import Family, Layer, require_room
from tailorvit.families.by_block import GENES
from tailorvit.families.vit_named import ARCHS, SPACES, auto_space, baseline, vit_arch
from tailorvit.families.vit_readings import READINGS
from tailorvit.families.vit_sizes import TINY, settle, shrink
from tailorvit.families.vit_views import attention
from tailorvit.plain.network import hidden_width
from tailorvit.plain.relative import Execution, Places, Tables, fused_width, table_rows
from tailorvit.plain.vit import Frame, PlainViT, initialise
from tailorvit.space import Space

# -- modules ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockPlan:
    """The widths of one block for one call."""

    heads: Width
    inner: Width
    hidden: Width


class Block(nn.Module):
    """Pre-norm block whose widths come with the call."""

    def __init__(
        self, frame: Frame, places: Places, embed: int, heads: int, hidden: int, rate: float, execution: Execution
    ) -> None:
        super().__init__()
        reach = frame.reach if frame.relative else None
        self.rate, self.eps = rate, frame.eps
        self.compiled: BlockCall | None = None  # runs instead of forward in training (elastic/compiled.py)
        self.compiled_evaluation = False  # and in evaluation
        self.norm1 = LayerNorm(embed, frame.eps)
        official = frame.qkv == "official"
        self.attn = Attention(embed, heads, frame.head_dim, frame.qkv_bias, reach, places, execution, official)
        self.norm2 = LayerNorm(embed, frame.eps)
        self.mlp = Mlp(embed, hidden)

    def forward(self, x: Tensor, embed: Width, plan: BlockPlan) -> Tensor:
        """(B, N, embed) to (B, N, embed)."""
        if self.compiled is not None and (self.training or self.compiled_evaluation):
            return self.compiled(self, x, self.slices(embed, plan), plan.inner.reads, plan.hidden.reads)
        x = x + drop_path(self.attn(self.norm1(x, embed), embed, plan.heads, plan.inner), self.rate, self.training)
        return x + drop_path(self.mlp(self.norm2(x, embed), embed, plan.hidden), self.rate, self.training)

    def slices(self, d: Width, plan: BlockPlan) -> dict[str, tuple[Width | None, ...]]:
        """Per parameter, the prefix these widths use."""
        used = transformer_slices(d, plan.heads, plan.inner, plan.hidden)
        used.update({f"attn.rel_{name}": () for name in Tables._fields})
        if self.attn.qkv_bias is not None and self.attn.qkv_bias.dim() == 1:  # the released layout
            used["attn.qkv_bias"] = (Width(3 * plan.inner.size),)
        return used


# -- model ------------------------------------------------------------------------------------------------------------


class ElasticViT(nn.Module):
    """The supernet and every sub-network: ``model(x, arch)``; no arch means the largest."""

    def __init__(self, space: Space, drop_path: float = 0.0, execution: Execution = "auto") -> None:
        super().__init__()
        self.space, self.frame = space, frame_of(dict(space.fixed))
        largest = space.hull()
        self.embed, depth = int(largest.one("embed")), int(largest.one("depth"))
        self.heads = int(max(largest.many("heads")))
        self.hidden = hidden_width(self.embed, max(largest.many("mlp")))
        places = Places(self.frame.grid, self.frame.reach, self.frame.head_dim)
        # Rates belong to the absolute block index, so a block keeps its rate in every sub-network.
        rates = [drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.patch_embed = PatchEmbed(self.frame.channels, self.frame.patch, self.embed)
        self.cls_token = nn.Parameter(torch.empty(1, 1, self.embed))
        self.pos_embed = nn.Parameter(torch.empty(1, self.frame.tokens, self.embed)) if self.frame.absolute else None
        self.blocks = nn.ModuleList(
            Block(self.frame, places, self.embed, self.heads, self.hidden, rate, execution) for rate in rates
        )
        self.norm = LayerNorm(self.embed, self.frame.eps)
        self.head = Linear(self.embed, self.frame.classes)
        initialise(self, self.embed)
        conv = nn.Conv2d(
            self.frame.channels, self.embed, self.frame.patch
        )  # for torch's initialisation of patch weights
        self.patch_embed.weight.data.copy_(conv.weight.data)
        assert conv.bias is not None
        self.patch_embed.bias.data.copy_(conv.bias.data)

    def plan(self, arch: Arch) -> tuple[Width, list[BlockPlan]]:
        """The widths of an architecture: of the embedding, and of every block."""
        embed, dim = int(arch.one("embed")), self.frame.head_dim
        require_room(
            [
                ("depth", len(arch.many("heads")), len(self.blocks)),
                ("embed", embed, self.embed),
                ("heads", int(max(arch.many("heads"))), self.heads),
                ("mlp", hidden_width(embed, max(arch.many("mlp"))), self.hidden),
            ]
        )
        return Width(embed), [
            BlockPlan(Width(int(h)), Width(int(h) * dim), Width(hidden_width(embed, m)))
            for h, m in zip(arch.many("heads"), arch.many("mlp"), strict=True)
        ]

    def forward(self, x: Tensor, arch: Arch | None = None) -> Tensor:
        """Logits (B, classes) of one architecture."""
        return self._run(x, *self.plan(self.space.largest() if arch is None else arch))

    def _run(self, x: Tensor, embed: Width, blocks: Sequence[BlockPlan]) -> Tensor:
        """Logits (B, classes) of the network with these widths."""
        x = self.patch_embed(x, embed)
        token = prefix(self.cls_token, None, None, embed).expand(x.shape[0], 1, -1)
        x = torch.cat([token.to(x.dtype), x], -2)
        if self.pos_embed is not None:
            x = x + prefix(self.pos_embed, None, None, embed)
        for block, plan in zip(self.blocks, blocks, strict=False):  # a shallower arch uses the first blocks
            x = block(x, embed, plan)
        x = self.norm(x, embed)
        x = x[:, 1:].mean(1) if self.frame.pool == "gap" else x[:, 0]
        logits: Tensor = self.head(x, embed, None)
        return logits

    def group(self, arch: Arch) -> Hashable:
        """Architectures of one group have the same shapes in :meth:`grouped`: equal width and depth."""
        return int(arch.one("embed")), len(arch.many("heads"))

    def switches(self, arch: Arch) -> Tensor:
        """What tells architectures of a group apart: (blocks, 2) attention and hidden entries in use, on the host."""
        dim, embed, counts = self.frame.head_dim, int(arch.one("embed")), [[0, 0]] * len(self.blocks)
        for i, (h, m) in enumerate(zip(arch.many("heads"), arch.many("mlp"), strict=True)):
            counts[i] = [int(h) * dim, hidden_width(embed, m)]
        return torch.tensor(counts)

    def grouped(self, x: Tensor, group: Any, switches: Tensor) -> Tensor:
        """Logits (B, classes) of one architecture of a group: heads and hidden widths are switched off, not cut."""
        embed, depth = group
        inner, hidden = self.heads * self.frame.head_dim, hidden_width(embed, max(self.space.largest().many("mlp")))
        place = torch.arange(max(inner, hidden), device=x.device)
        on = (place < switches[:depth, :, None]).to(self.cls_token.dtype)
        blocks = [
            BlockPlan(Width(self.heads), Width(inner, reads=row[0, :inner]), Width(hidden, reads=row[1, :hidden]))
            for row in on.unbind(0)
        ]
        return self._run(x, Width(embed), blocks)

    def slices(self, arch: Arch) -> dict[str, tuple[Width | None, ...]]:
        """Per parameter, the prefix this arch uses."""
        d, blocks = self.plan(arch)
        used: dict[str, tuple[Width | None, ...]] = {
            "patch_embed.weight": (d,),
            "patch_embed.bias": (d,),
            "cls_token": (None, None, d),
            "pos_embed": (None, None, d),
            "norm.weight": (d,),
            "norm.bias": (d,),
            "head.weight": (None, d),
            "head.bias": (),
        }
        for i, plan in enumerate(blocks):
            block = self.blocks[i]
            assert isinstance(block, Block)
            used.update({f"blocks.{i}.{k}": v for k, v in block.slices(d, plan).items()})
        names = dict(self.named_parameters())
        return {k: v for k, v in used.items() if k in names}


def build(frame: Frame, arch: Arch, drop_path: Any = 0.0, execution: Execution = "auto") -> PlainViT:
    """The plain network of an architecture, freshly initialised."""
    heads = [int(h) for h in arch.many("heads")]
    frame = replace(frame, qkv="aligned")  # a network of one size is never cut
    return PlainViT(frame, int(arch.one("embed")), heads, arch.many("mlp"), drop_path, execution)


def extract(model: nn.Module, arch: Arch, share: bool = False) -> PlainViT:
    """The plain network that holds this architecture's slice of the supernet's weights: copies, or views to share."""
    assert isinstance(model, ElasticViT)
    first = next(iter(model.blocks), None)
    execution = first.attn.execution if isinstance(first, Block) else "auto"
    rates = [b.rate for b in model.blocks if isinstance(b, Block)][: len(arch.many("heads"))]
    weights = dict(model.named_parameters())
    state = {}
    for name, widths in model.slices(arch).items():
        weight = prefix(weights[name].detach(), *widths)
        if name.endswith(("qkv_weight", "qkv_bias")) and weight.dim() > 1:
            weight = weight.flatten(0, 2)
        for ours, theirs in (("patch_embed.", "patch_embed.proj."), ("qkv_", "qkv.")):
            name = name.replace(ours, theirs)
        state[name] = weight
    return assemble(lambda: build(model.frame, arch, rates, execution), state, share)


# -- layer inventory --------------------------------------------------------------------------------------------------


def segments(arch: Arch) -> list[Hashable]:
    """Stem, one entry per block, head; equal entries cost the same, so totals are sums of remembered parts."""
    embed = arch.one("embed")
    return [("stem", embed), *((embed, h, m) for h, m in zip(arch.many("heads"), arch.many("mlp"))), ("head", embed)]


def layers(frame: Frame, segment: Any, relative: str = "factored") -> list[Layer]:
    """Exact parameters and MACs of one segment; ``relative`` picks whose execution of relative position is counted."""
    n, tokens = frame.tokens - 1, frame.tokens
    if segment[0] == "stem":
        d = int(segment[1])
        pixels = frame.channels * frame.patch**2
        return [
            Layer("patch_embed", (pixels + 1) * d, pixels * n * d),
            Layer("cls_token", d, 0),
            Layer("pos_embed", tokens * d if frame.absolute else 0, 0),
        ]
    if segment[0] == "head":
        d = int(segment[1])
        return [Layer("norm", 2 * d, 0), Layer("head", frame.classes * (d + 1), frame.classes * d)]
    d, heads, hidden = int(segment[0]), int(segment[1]), hidden_width(int(segment[0]), segment[2])
    q, rows = heads * frame.head_dim, table_rows(frame.reach)
    high, wide = frame.grid
    attention = 2 * tokens**2 * q
    position = {
        "none": 0,
        "factored": 4 * tokens * q * rows,
        "dense": 2 * tokens**2 * q,
        # the widened attention instead of the narrow one, plus the products with row, column and class tables
        "fused": 2 * tokens**2 * heads * fused_width(frame.head_dim, frame.grid)
        - attention
        + q * n * (2 * high + 2 * wide + 1),
    }[relative if frame.relative else "none"]
    return [
        Layer("blocks.norm", 4 * d, 0),
        Layer("blocks.attn.qkv", 3 * q * d + (3 * q if frame.qkv_bias else 0), 3 * tokens * d * q),
        Layer("blocks.attn", 0, attention),
        Layer("blocks.attn.relative", 4 * rows * frame.head_dim if frame.relative else 0, position),
        Layer("blocks.attn.proj", q * d + d, tokens * d * q),
        Layer("blocks.mlp.fc1", hidden * d + hidden, tokens * d * hidden),
        Layer("blocks.mlp.fc2", hidden * d + d, tokens * d * hidden),
    ]


def outline(frame: Frame, arch: Arch) -> list[dict[str, Any]]:
    """Shape and cost of every block."""
    rows, embed = [], int(arch.one("embed"))
    for i, (heads, ratio) in enumerate(zip(arch.many("heads"), arch.many("mlp"), strict=True), 1):
        parts = layers(frame, (embed, heads, ratio))
        rows.append(
            {
                "stage": None,
                "block": i,
                "tokens": frame.tokens,
                "embed": embed,
                "heads": int(heads),
                "qkv": int(heads) * frame.head_dim,
                "mlp": ratio,
                "hidden": hidden_width(embed, ratio),
                "window": None,
                "params": sum(p.params for p in parts),
                "macs": sum(p.macs for p in parts),
            }
        )
    return rows


# -- entry record -----------------------------------------------------------------------------------------------------


def frame_of(fixed: Mapping[str, Any]) -> Frame:
    """Type and check the shared settings."""
    known = {f.name for f in fields(Frame)}
    for key in sorted(set(fixed) - known):
        raise TailorError(f"The vit family has no setting '{key}'; known: {', '.join(sorted(known))}.")
    size = fixed.get("image_size", Frame.image_size)
    size = tuple(size) if isinstance(size, list | tuple) else (size, size)
    frame = Frame(**{**fixed, "image_size": size})
    for name in ("patch", "channels", "classes", "head_dim", "reach"):
        value = getattr(frame, name)
        if type(value) is not int or value < 1:
            raise TailorError(f"The vit setting '{name}' must be a positive whole number, not {value}.")
    if len(size) != 2 or any(type(s) is not int or s < frame.patch or s % frame.patch for s in size):
        raise TailorError(f"A vit needs image sides that are multiples of the patch {frame.patch}, not {list(size)}.")
    if frame.pool not in ("gap", "cls"):
        raise TailorError(f"The vit setting 'pool' must be gap or cls, not '{frame.pool}'.")
    if frame.qkv not in ("aligned", "official"):
        raise TailorError(f"The vit setting 'qkv' must be aligned or official, not '{frame.qkv}'.")
    for name in ("relative", "absolute", "qkv_bias"):
        if not isinstance(getattr(frame, name), bool):
            raise TailorError(f"The vit setting '{name}' must be true or false, not {getattr(frame, name)}.")
    if not isinstance(frame.eps, float) or frame.eps <= 0:
        raise TailorError(f"The vit setting 'eps' must be a small positive number, not {frame.eps}.")
    return frame


def _counted(relative: str) -> Callable[[Frame, Arch], int]:
    return lambda frame, arch: sum(row.macs for s in segments(arch) for row in layers(frame, s, relative))


VIT = Family(
    name="vit",
    summary="ViT with elastic depth, width, heads and MLP ratio; 2-D relative position on keys and values",
    paper="AutoFormer (ICCV 2021), S4, TF-TAS (CVPR 2022)",
    genes=GENES,
    frame=frame_of,
    arch=lambda data: vit_arch(**{k: v for k, v in data.items() if k != "family"}),
    segments=segments,
    layers=layers,
    supernet=ElasticViT,
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
    readings={**{f"macs_{r}": _counted(r) for r in ("none", "factored", "dense", "fused")}, **READINGS},
)
