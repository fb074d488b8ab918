"""The elastic ladder supernet: layers whose widths come with the call, and the plain network of an architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.elastic.layers import LayerNorm, Linear, drop_path
from tailorvit.elastic.slicing import Width, prefix, transformer_slices
from tailorvit.families.assemble import assemble
from tailorvit.families.base import require_room
from tailorvit.families.ladder.plain import (
    TEMPERATURE,
    LadderSettings,
    PlainLadder,
    check_size,
    ladder_act,
    ladder_settings,
    start_ladder,
)
from tailorvit.space import Space

# -- modules ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockPlan:
    """The widths of one block for one call."""

    heads: Width
    inner: Width
    hidden: Width


class Attention(nn.Module):
    """Attention of x to y; the weight is (3, heads, head_dim, width): head j is the same rows in every sub-network."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.qkv_weight = nn.Parameter(torch.empty(3, heads, head_dim, width))
        self.qkv_bias = nn.Parameter(torch.empty(3, heads, head_dim))
        self.proj = Linear(heads * head_dim, width)

    def forward(self, x: Tensor, y: Tensor, width: Width, plan: BlockPlan) -> Tensor:
        """(B, Q, width) and (B, N, width) to (B, Q, width)."""
        weight = prefix(self.qkv_weight, None, plan.heads, None, width).flatten(1, 2)
        bias = prefix(self.qkv_bias, None, plan.heads).flatten(1)
        q = F.linear(x, weight[0], bias[0]).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        pair = F.linear(y, weight[1:].flatten(0, 1), bias[1:].flatten())
        k, v = pair.unflatten(-1, (2, -1, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, scale=self.head_dim**-0.5)
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(2), plan.inner, width)
        return out


class Mlp(nn.Module):
    """Two linear layers around an activation, with dropout where the settings ask for it."""

    def __init__(self, shared: LadderSettings, width: int, hidden: int) -> None:
        super().__init__()
        self.act, self.rate_inside = shared.act, shared.mlp_dropout
        self.fc1, self.fc2 = Linear(width, hidden), Linear(hidden, width)

    def forward(self, x: Tensor, width: Width, hidden: Width) -> Tensor:
        """Same shape out as in."""
        inside = F.dropout(ladder_act(self.fc1(x, width, hidden), self.act), self.rate_inside, self.training)
        out: Tensor = self.fc2(inside, hidden, width)
        return out


class Tap(nn.Module):
    """Brings the features of a trunk layer to the decoder's width; in design lst with the gate that mixes them in."""

    def __init__(self, shared: LadderSettings, width: int) -> None:
        super().__init__()
        self.inputs = Width(shared.features)
        self.norm = LayerNorm(shared.features, shared.eps) if shared.one_query else None
        self.proj = Linear(shared.features, width)
        self.alpha = None if shared.one_query else nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor, y: Tensor, width: Width) -> tuple[Tensor, Tensor]:
        """The two inputs of the block."""
        features = self.proj(y if self.norm is None else self.norm(y, self.inputs), self.inputs, width)
        if self.alpha is None:
            return x, features
        gate = torch.sigmoid(self.alpha / TEMPERATURE)
        return gate * x + (1 - gate) * features, y


class Block(nn.Module):
    """Pre-norm block whose widths come with the call."""

    def __init__(self, shared: LadderSettings, width: int, heads: int, hidden: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.norm1 = LayerNorm(width, shared.eps)
        self.norm3 = LayerNorm(width, shared.eps) if shared.one_query else None
        self.attn = Attention(width, heads, shared.head_dim)
        self.norm2 = LayerNorm(width, shared.eps)
        self.mlp = Mlp(shared, width, hidden)

    def forward(self, x: Tensor, y: Tensor, width: Width, plan: BlockPlan) -> Tensor:
        """(B, Q, width) to (B, Q, width)."""
        queries = self.norm1(x, width)
        keys = queries if self.norm3 is None else self.norm3(y, width)
        x = x + drop_path(self.attn(queries, keys, width, plan), self.rate, self.training)
        return x + drop_path(self.mlp(self.norm2(x, width), width, plan.hidden), self.rate, self.training)


# -- model ------------------------------------------------------------------------------------------------------------


class ElasticLadder(nn.Module):
    """The supernet and every sub-network: ``model(x, arch)``; no arch means the largest.

    Blocks are counted from the first, ``taps`` from the trunk's last layer: each belongs to one trunk layer in every
    sub-network, whatever the depth, since its matrix is trained on the features of that layer.
    """

    def __init__(self, space: Space, drop_path: float = 0.0) -> None:
        super().__init__()
        self.space, self.shared = space, ladder_settings(dict(space.settings))
        shared, largest = self.shared, space.hull()
        check_size(shared, int(largest.one("embed")), int(largest.one("depth")))
        self.embed, depth = int(largest.one("embed")), int(largest.one("depth"))
        self.heads = int(max(largest.many("heads")))
        self.hidden = shared.hidden(self.embed, max(largest.many("mlp")))
        width = shared.width(self.embed)
        # Rates belong to the absolute block index, so a block keeps its rate in every sub-network.
        rates = [drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.query = nn.Parameter(torch.empty(1, 1, width)) if shared.one_query else None
        self.entry = None if shared.one_query else Linear(shared.features, width)
        self.taps = nn.ModuleList(Tap(shared, width) for _ in range(0 if shared.design == "evl" else depth))
        self.blocks = nn.ModuleList(Block(shared, width, self.heads, self.hidden, rate) for rate in rates)
        self.norm = LayerNorm(width, shared.eps)
        self.head = Linear(width, shared.classes)
        start_ladder(self)

    def plan(self, arch: Arch) -> tuple[Width, list[BlockPlan]]:
        """Widths for one call; refuses what the supernet has no weights for."""
        embed, shared = int(arch.one("embed")), self.shared
        hidden = [shared.hidden(embed, m) for m in arch.many("mlp")]
        require_room(
            [
                ("depth", len(arch.many("heads")), len(self.blocks)),
                ("embed", embed, self.embed),
                ("heads", int(max(arch.many("heads"))), self.heads),
                ("mlp", max(hidden), self.hidden),
            ]
        )
        check_size(shared, embed, len(hidden))
        return Width(shared.width(embed)), [
            BlockPlan(Width(int(h)), Width(int(h) * shared.head_dim), Width(m))
            for h, m in zip(arch.many("heads"), hidden, strict=True)
        ]

    def forward(self, x: Tensor, arch: Arch | None = None) -> Tensor:
        """Logits (B, classes) of one architecture, from trunk features (B, layers, tokens, features)."""
        width, plans = self.plan(arch or self.space.largest())
        features, depth = x, len(plans)
        first = self.shared.channels - depth
        if self.query is not None:
            x = prefix(self.query, None, None, width).expand(features.shape[0], -1, -1)
        else:
            assert self.entry is not None
            x = self.entry(features[:, max(first - 1, 0)], Width(self.shared.features), width)
        for i, plan in enumerate(plans):
            y = features[:, first + i]
            if self.taps:
                x, y = self.taps[depth - 1 - i](x, y, width)
            x = self.blocks[i](x, y, width, plan)
        x = self.norm(x, width)
        x = F.dropout(x[:, 0] if self.query is not None else x.mean(1), self.shared.head_dropout, self.training)
        logits: Tensor = self.head(x, width, None)
        return logits

    def slices(self, arch: Arch) -> dict[str, tuple[Width | None, ...]]:
        """Per parameter, the prefix this arch uses."""
        d, plans = self.plan(arch)
        used: dict[str, tuple[Width | None, ...]] = {
            "query": (None, None, d),
            "entry.weight": (d,),
            "entry.bias": (d,),
            "norm.weight": (d,),
            "norm.bias": (d,),
            "head.weight": (None, d),
            "head.bias": (),
        }
        for i, plan in enumerate(plans):
            tap: dict[str, tuple[Width | None, ...]] = {"proj.weight": (d,), "proj.bias": (d,), "alpha": ()}
            tap |= {"norm.weight": (), "norm.bias": ()}
            block = transformer_slices(d, plan.heads, plan.inner, plan.hidden, norms=3)
            used.update({f"blocks.{i}.{k}": v for k, v in block.items()})
            used.update({f"taps.{i}.{k}": v for k, v in tap.items()})
        names = dict(self.named_parameters())
        return {k: v for k, v in used.items() if k in names}


def build(shared: LadderSettings, arch: Arch, drop_path: Any = 0.0) -> PlainLadder:
    """The plain network of an architecture, freshly initialised, without a trunk."""
    heads, embed = [int(h) for h in arch.many("heads")], int(arch.one("embed"))
    check_size(shared, embed, len(heads))
    return PlainLadder(shared, embed, heads, arch.many("mlp"), drop_path)


def extract(model: nn.Module, arch: Arch, share: bool = False) -> PlainLadder:
    """The plain network that holds this architecture's slice of the supernet's weights."""
    assert isinstance(model, ElasticLadder)
    depth = len(arch.many("heads"))
    rates = [b.rate for b in model.blocks if isinstance(b, Block)][:depth]
    weights, state = dict(model.named_parameters()), {}
    for name, widths in model.slices(arch).items():
        weight = prefix(weights[name].detach(), *widths)
        part, *rest = name.split(".")
        if part == "taps":
            name = ".".join(["taps", str(depth - 1 - int(rest[0])), *rest[1:]])
        if "qkv_" in name:
            state[name.replace("qkv_", "q.")] = weight[0].flatten(0, 1)
            state[name.replace("qkv_", "kv.")] = weight[1:].flatten(0, 2)
        else:
            state[name] = weight
    return assemble(lambda: build(model.shared, arch, rates), state, share)
