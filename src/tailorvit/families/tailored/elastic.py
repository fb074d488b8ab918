"""The elastic tailored supernet: layers whose widths come with the call, and the plain network of an architecture.

A shallower architecture uses the most important blocks (``order``), wherever they are, in their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.elastic.layers import drop_path
from tailorvit.elastic.slicing import Width, prefix
from tailorvit.elastic.weights import Axis, Plan, Weights, layer_norm, linear
from tailorvit.families.assemble import assemble
from tailorvit.families.base import require_room
from tailorvit.families.tailored.plain import PlainTailored, TailoredSettings, activation, rms, tailored_settings
from tailorvit.space import Space

# -- modules ----------------------------------------------------------------------------------------------------------


class Norm(Weights):
    """A norm over the channels in use."""

    def __init__(self, shared: TailoredSettings, embed: int) -> None:
        axes = [(embed, "embed")]
        super().__init__(axes, axes if shared.norm == "layer" else None)
        self.width, self.eps = shared.width, shared.eps

    def normalise(self, x: Tensor, plan: Plan) -> Tensor:
        """Same shape out as in."""
        if self.bias is not None:
            return layer_norm(self, x, plan, self.eps)
        return rms(x, self(plan)[0], self.width, self.eps)


class Attention(nn.Module):
    """Heads are a prefix, their width never changes."""

    def __init__(self, shared: TailoredSettings, embed: int, heads: int) -> None:
        super().__init__()
        dim, self.eps = shared.head_dim, shared.eps
        bias: list[Axis] | None = [3, (heads, "heads"), dim] if shared.qkv_bias else None
        self.qkv = Weights([3, (heads, "heads"), dim, (embed, "embed")], bias)
        self.q_norm, self.k_norm = (Weights([dim], [dim]) if shared.qk_norm else None for _ in "qk")
        self.proj = Weights([(embed, "embed"), (heads, "heads"), dim], [(embed, "embed")])

    def forward(self, x: Tensor, plan: Plan) -> Tensor:
        """(B, N, embed) to (B, N, embed)."""
        weight, bias = self.qkv(plan)
        qkv = F.linear(x, weight.flatten(0, 2), None if bias is None else bias.flatten())
        q, k, v = qkv.unflatten(-1, (3, plan["heads"].size, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = (layer_norm(norm, t, plan, self.eps) for norm, t in ((self.q_norm, q), (self.k_norm, k)))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return linear(self.proj, mixed, plan, 1, 2)


class Mlp(nn.Module):
    """Two linear layers, or three, with an elastic hidden width."""

    def __init__(self, shared: TailoredSettings, embed: int, hidden: int) -> None:
        super().__init__()
        self.act = shared.act
        into, out = ([(hidden, "hidden"), (embed, "embed")], [(hidden, "hidden")]), ([(embed, "embed")])
        self.fc1, self.gate = Weights(*into), Weights(*into) if shared.gated else None
        self.fc2 = Weights([(embed, "embed"), (hidden, "hidden")], out)

    def forward(self, x: Tensor, plan: Plan) -> Tensor:
        """Same shape out as in."""
        inner = activation(linear(self.fc1, x, plan, 1), self.act)
        if self.gate is not None:
            inner = inner * linear(self.gate, x, plan, 1)
        return linear(self.fc2, inner, plan, 1)


class Block(nn.Module):
    """Pre-norm block whose widths come with the call."""

    def __init__(self, shared: TailoredSettings, embed: int, heads: int, hidden: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.norm1, self.attn = Norm(shared, embed), Attention(shared, embed, heads)
        self.norm2, self.mlp = Norm(shared, embed), Mlp(shared, embed, hidden)

    def forward(self, x: Tensor, plan: Plan) -> Tensor:
        """(B, N, embed) to (B, N, embed)."""
        x = x + drop_path(self.attn(self.norm1.normalise(x, plan), plan), self.rate, self.training)
        return x + drop_path(self.mlp(self.norm2.normalise(x, plan), plan), self.rate, self.training)


class Stem(nn.Module):
    """Patches to tokens."""

    def __init__(self, shared: TailoredSettings, embed: int) -> None:
        super().__init__()
        self.patch = shared.patch
        self.proj = Weights([(embed, "embed"), shared.channels, shared.patch, shared.patch], [(embed, "embed")])

    def forward(self, x: Tensor, plan: Plan) -> Tensor:
        """(B, C, H, W) to (B, n, embed)."""
        weight, bias = self.proj(plan)
        return F.conv2d(x, weight, bias, self.patch).flatten(2).transpose(1, 2)


# -- model ------------------------------------------------------------------------------------------------------------


class ElasticTailored(nn.Module):
    """The supernet and every sub-network: ``model(x, arch)``; no arch means the largest."""

    def __init__(self, space: Space, drop_path: float = 0.0) -> None:
        super().__init__()
        self.space, self.shared = space, tailored_settings(dict(space.settings))
        shared, largest = self.shared, space.hull()
        embed, depth = int(largest.one("embed")), int(largest.one("depth"))
        self.most = {"depth": depth, "embed": embed}
        self.most |= {gene: int(max(largest.many(gene))) for gene in ("heads", "hidden")}
        # Rates belong to the block, so it keeps its rate in every sub-network.
        rates = [drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.patch_embed = Stem(shared, embed)
        rows = shared.tokens - shared.registers
        for name, there, count in (
            ("cls_token", shared.class_token, 1),
            ("reg_token", shared.registers > 0, shared.registers),
            ("pos_embed", shared.positions, rows),
        ):
            self.register_parameter(name, nn.Parameter(torch.empty(1, count, embed)) if there else None)
        self.norm_pre = Norm(shared, embed) if shared.pre_norm else None
        self.blocks = nn.ModuleList(
            Block(shared, embed, self.most["heads"], self.most["hidden"], rate) for rate in rates
        )
        self.norm = Norm(shared, embed)
        self.head = Weights([shared.classes, (embed, "embed")], [shared.classes])
        fresh = build(shared, largest).state_dict()  # plain and elastic are initialised alike: same names
        with torch.no_grad():
            for name, p in self.named_parameters():
                p.copy_(fresh[name].view(p.shape))

    def kept(self, depth: int) -> list[int]:
        """The blocks of a network that deep, in their places."""
        order = self.shared.order or tuple(range(len(self.blocks)))
        return sorted([b for b in order if b < len(self.blocks)][:depth])

    def plans(self, arch: Arch) -> tuple[Plan, list[tuple[int, Plan]]]:
        """The width of the stream, and of every block in use its number and widths."""
        heads, hidden, embed = arch.many("heads"), arch.many("hidden"), int(arch.one("embed"))
        needs = {"depth": len(heads), "embed": embed, "heads": int(max(heads)), "hidden": int(max(hidden))}
        require_room([(gene, needed, self.most[gene]) for gene, needed in needs.items()])
        stream = {"embed": Width(embed)}
        blocks = zip(self.kept(len(heads)), heads, hidden, strict=True)
        return stream, [(b, {**stream, "heads": Width(int(h)), "hidden": Width(int(m))}) for b, h, m in blocks]

    def _cut(self, name: str, plan: Plan) -> Tensor | None:
        whole = getattr(self, name)
        return None if whole is None else prefix(whole, None, None, plan["embed"])

    def forward(self, x: Tensor, arch: Arch | None = None) -> Tensor:
        """Logits (B, classes) of one architecture."""
        return self.forward_head(self.forward_features(x, arch), arch)

    def forward_features(self, x: Tensor, arch: Arch | None = None) -> Tensor:
        """Normalised tokens (B, N, embed) of one architecture, class token and registers first."""
        plan, blocks = self.plans(self.space.largest() if arch is None else arch)
        x, first = self.patch_embed(x, plan), int(self.shared.class_token)
        token, places, registers = (self._cut(name, plan) for name in ("cls_token", "pos_embed", "reg_token"))
        x = x if token is None else torch.cat([token.expand(x.shape[0], -1, -1).to(x.dtype), x], 1)
        x = x if places is None else x + places
        if registers is not None:
            x = torch.cat([x[:, :first], registers.expand(x.shape[0], -1, -1).to(x.dtype), x[:, first:]], 1)
        x = x if self.norm_pre is None else self.norm_pre.normalise(x, plan)
        for b, own in blocks:
            x = self.blocks[b](x, own)
        return self.norm.normalise(x, plan)

    def forward_head(self, tokens: Tensor, arch: Arch | None = None) -> Tensor:
        """Logits of :meth:`forward_features`' tokens."""
        plan, _ = self.plans(self.space.largest() if arch is None else arch)
        pooled = tokens[:, self.shared.lead :].mean(1) if self.shared.pool == "gap" else tokens[:, 0]
        return linear(self.head, pooled, plan, 1)

    def slices(self, arch: Arch) -> dict[str, tuple[Width | None, ...]]:
        """Per parameter, the prefix this arch uses."""
        plan, blocks = self.plans(arch)
        used: dict[str, tuple[Width | None, ...]] = {}
        for name in ("cls_token", "pos_embed", "reg_token"):
            if getattr(self, name) is not None:
                used[name] = (None, None, plan["embed"])
        plans = dict(blocks)
        for path, module in self.named_modules():
            at = path.split(".")
            if at[0] == "blocks" and len(at) > 1 and int(at[1]) not in plans:
                continue
            if isinstance(module, Weights):
                own = plans[int(at[1])] if at[0] == "blocks" else plan
                used.update({f"{path}.{n}": cut for n, cut in module.widths(own).items()})
        return used


def build(shared: TailoredSettings, arch: Arch, drop_path: Any = 0.0) -> PlainTailored:
    """The plain network of an architecture, freshly initialised."""
    heads, hidden = ([int(v) for v in arch.many(gene)] for gene in ("heads", "hidden"))
    shared = replace(shared, order=())  # its blocks are all there are
    return PlainTailored(shared, int(arch.one("embed")), heads, hidden, drop_path)


def extract(model: nn.Module, arch: Arch, share: bool = False) -> PlainTailored:
    """The plain network that holds this architecture's slice of the weights; its blocks are numbered anew."""
    assert isinstance(model, ElasticTailored)
    kept: Sequence[int] = model.kept(len(arch.many("heads")))
    rates = [b.rate for b in (model.blocks[i] for i in kept) if isinstance(b, Block)]
    weights, state = dict(model.named_parameters()), {}
    for name, widths in model.slices(arch).items():
        at = name.split(".")
        if at[0] == "blocks":
            at[1] = str(kept.index(int(at[1])))
        state[".".join(at)] = prefix(weights[name].detach(), *widths)
    return assemble(lambda: build(model.shared, arch, rates), state, share)
