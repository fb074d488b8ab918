"""The elastic vit supernet: layers whose widths come with the call, and the plain network of an architecture."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.elastic.layers import LayerNorm, Linear, Mlp, PatchEmbed, drop_path
from tailorvit.elastic.slicing import Width, prefix, thirds, transformer_slices
from tailorvit.families.assemble import assemble
from tailorvit.families.base import require_room
from tailorvit.families.network import hidden_width
from tailorvit.families.vit.compiled import BlockCall
from tailorvit.families.vit.plain import PlainViT, ViTSettings, initialise, vit_settings
from tailorvit.families.vit.relative import TRITON, Execution, Places, Tables, attend_packed, table_rows
from tailorvit.space import Space

if TRITON:
    import tailorvit.families.vit.relative_kernel  # noqa: F401  # registers itself with relative.py

# -- modules ----------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Multi-head attention with AutoFormer's relative position; heads are a prefix, their width never changes.

    The weight has the shape (3, heads, head_dim, width), so head j uses the same rows in every sub-network. So does the
    bias, unless ``official``: then it is flat and cut as in the released AutoFormer.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        bias: bool,
        reach: int | None,
        places: Places,
        execution: Execution,
        official: bool = False,
    ) -> None:
        super().__init__()
        self.head_dim, self.places, self.execution = head_dim, places, execution
        self.qkv_weight = nn.Parameter(torch.empty(3, heads, head_dim, width))
        shape = (3 * heads * head_dim,) if official else (3, heads, head_dim)
        self.qkv_bias = nn.Parameter(torch.empty(shape)) if bias else None
        self.proj = Linear(heads * head_dim, width)
        self.reach = reach
        if reach is not None:
            for name in Tables._fields:
                self.register_parameter(f"rel_{name}", nn.Parameter(torch.empty(table_rows(reach), head_dim)))

    def tables(self) -> Tables | None:
        """The four relative-position tables, which every sub-network uses whole."""
        return None if self.reach is None else Tables(*(getattr(self, f"rel_{n}") for n in Tables._fields))

    def forward(self, x: Tensor, width: Width, heads: Width, inner: Width) -> Tensor:
        """(B, N, width) to (B, N, width); ``inner`` is heads * head_dim."""
        weight = prefix(self.qkv_weight, None, heads, None, width).flatten(0, 2)
        bias: Tensor | None = self.qkv_bias
        if bias is not None:
            bias = thirds(bias, inner) if bias.dim() == 1 else prefix(bias, None, heads).flatten()
        qkv = F.linear(x, weight, bias).unflatten(-1, (3, -1, self.head_dim))
        scale = self.head_dim**-0.5
        out = attend_packed(qkv, self.tables(), self.places, scale, self.execution, inner.reads)
        projected: Tensor = self.proj(out, inner, width)
        return projected


@dataclass(frozen=True)
class BlockPlan:
    """The widths of one block for one call."""

    heads: Width
    inner: Width
    hidden: Width


class Block(nn.Module):
    """Pre-norm block whose widths come with the call."""

    def __init__(
        self,
        shared: ViTSettings,
        places: Places,
        embed: int,
        heads: int,
        hidden: int,
        rate: float,
        execution: Execution,
    ) -> None:
        super().__init__()
        reach = shared.reach if shared.relative else None
        self.rate, self.eps = rate, shared.eps
        self.compiled: BlockCall | None = None  # runs instead of forward in training (elastic/compiled.py)
        self.compiled_evaluation = False  # and in evaluation
        self.norm1 = LayerNorm(embed, shared.eps)
        official = shared.qkv == "official"
        self.attn = Attention(embed, heads, shared.head_dim, shared.qkv_bias, reach, places, execution, official)
        self.norm2 = LayerNorm(embed, shared.eps)
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
        self.space, self.shared = space, vit_settings(dict(space.settings))
        largest = space.hull()
        self.embed, depth = int(largest.one("embed")), int(largest.one("depth"))
        self.heads = int(max(largest.many("heads")))
        self.hidden = hidden_width(self.embed, max(largest.many("mlp")))
        places = Places(self.shared.grid, self.shared.reach, self.shared.head_dim)
        # Rates belong to the absolute block index, so a block keeps its rate in every sub-network.
        rates = [drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.patch_embed = PatchEmbed(self.shared.channels, self.shared.patch, self.embed)
        self.cls_token = nn.Parameter(torch.empty(1, 1, self.embed))
        self.pos_embed = nn.Parameter(torch.empty(1, self.shared.tokens, self.embed)) if self.shared.absolute else None
        self.blocks = nn.ModuleList(
            Block(self.shared, places, self.embed, self.heads, self.hidden, rate, execution) for rate in rates
        )
        self.norm = LayerNorm(self.embed, self.shared.eps)
        self.head = Linear(self.embed, self.shared.classes)
        initialise(self, self.shared.init)
        conv = nn.Conv2d(
            self.shared.channels, self.embed, self.shared.patch
        )  # for torch's initialisation of patch weights
        self.patch_embed.weight.data.copy_(conv.weight.data)
        assert conv.bias is not None
        self.patch_embed.bias.data.copy_(conv.bias.data)

    def plan(self, arch: Arch) -> tuple[Width, list[BlockPlan]]:
        """The widths of an architecture: of the embedding, and of every block."""
        embed, dim = int(arch.one("embed")), self.shared.head_dim
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
        x = x[:, 1:].mean(1) if self.shared.pool == "gap" else x[:, 0]
        logits: Tensor = self.head(x, embed, None)
        return logits

    def group(self, arch: Arch) -> Hashable:
        """Architectures of one group have the same shapes in :meth:`grouped`: equal width and depth."""
        return int(arch.one("embed")), len(arch.many("heads"))

    def switches(self, arch: Arch) -> Tensor:
        """What tells architectures of a group apart: (blocks, 2) attention and hidden entries in use, on the host."""
        dim, embed, counts = self.shared.head_dim, int(arch.one("embed")), [[0, 0]] * len(self.blocks)
        for i, (h, m) in enumerate(zip(arch.many("heads"), arch.many("mlp"), strict=True)):
            counts[i] = [int(h) * dim, hidden_width(embed, m)]
        return torch.tensor(counts)

    def grouped(self, x: Tensor, group: Any, switches: Tensor) -> Tensor:
        """Logits (B, classes) of one architecture of a group: heads and hidden widths are switched off, not cut."""
        embed, depth = group
        inner, hidden = self.heads * self.shared.head_dim, hidden_width(embed, max(self.space.largest().many("mlp")))
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


def build(shared: ViTSettings, arch: Arch, drop_path: Any = 0.0, execution: Execution = "auto") -> PlainViT:
    """The plain network of an architecture, freshly initialised."""
    heads = [int(h) for h in arch.many("heads")]
    shared = replace(shared, qkv="aligned")  # a network of one size is never cut
    return PlainViT(shared, int(arch.one("embed")), heads, arch.many("mlp"), drop_path, execution)


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
    return assemble(lambda: build(model.shared, arch, rates, execution), state, share)
