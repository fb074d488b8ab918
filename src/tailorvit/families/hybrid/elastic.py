"""The elastic hybrid supernet: layers whose widths come with the call, and the plain network of an architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.elastic.layers import drop_path
from tailorvit.elastic.slicing import Width, prefix
from tailorvit.elastic.weights import BatchNorm, Plan, Weights, conv, depthwise, linear
from tailorvit.families.assemble import assemble
from tailorvit.families.base import require_room
from tailorvit.families.hybrid.plain import (
    STAGES,
    HybridSettings,
    PlainHybrid,
    hybrid_settings,
    stem_features,
    stem_layers,
)
from tailorvit.families.network import as_map, as_tokens, hidden_width
from tailorvit.space import Space

# -- modules ----------------------------------------------------------------------------------------------------------


class Stem(nn.Module):
    """Convolutions and batch norms of fixed width."""

    def __init__(self, shared: HybridSettings) -> None:
        super().__init__()
        self.convs, self.norms = stem_layers(shared)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, stem, rows, columns)."""
        return stem_features(self.convs, self.norms, x)


class Down(nn.Module):
    """A 3x3 convolution into a stage."""

    def __init__(self, inputs: int, embed: int, stride: int, eps: float) -> None:
        super().__init__()
        self.stride = stride
        self.proj = Weights([(embed, "embed"), (inputs, "before"), 3, 3], None)
        self.norm = BatchNorm((embed, "embed"), eps)

    def forward(self, x: Tensor, plan: Plan) -> Tensor:
        """Maps of the stage before to maps of this one."""
        return self.norm.normalise(conv(self.proj, x, plan, self.stride, 1), plan)


class Mlp(nn.Module):
    """The inverted residual with an elastic hidden width."""

    def __init__(self, embed: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.fc1 = Weights([(hidden, "hidden"), (embed, "embed"), 1, 1], None)
        self.norm1 = BatchNorm((hidden, "hidden"), eps)
        self.dwconv = Weights([(hidden, "hidden"), 1, 3, 3], None)
        self.norm2 = BatchNorm((hidden, "hidden"), eps)
        self.fc2 = Weights([(embed, "embed"), (hidden, "hidden"), 1, 1], None)
        self.norm3 = BatchNorm((embed, "embed"), eps)

    def forward(self, x: Tensor, plan: Plan) -> Tensor:
        """Same shape out as in."""
        x = F.gelu(self.norm1.normalise(conv(self.fc1, x, plan), plan))
        x = F.gelu(self.norm2.normalise(depthwise(self.dwconv, x, plan), plan))
        return self.norm3.normalise(conv(self.fc2, x, plan), plan)


class Attention(nn.Module):
    """Heads of a fixed width; a narrower stage has fewer of them."""

    def __init__(self, embed: int, heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.norm = BatchNorm((embed, "embed"), eps)
        self.qkv = Weights([3, (heads, "heads"), head_dim, (embed, "embed")], [3, (heads, "heads"), head_dim])
        self.proj = Weights([(embed, "embed"), (heads, "heads"), head_dim], [(embed, "embed")])

    def forward(self, x: Tensor, plan: Plan) -> Tensor:
        """Same shape out as in."""
        tokens = as_tokens(self.norm.normalise(x, plan))
        qkv = linear(self.qkv, tokens, plan, 3).unflatten(-1, (3, plan["heads"].size, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return as_map(linear(self.proj, mixed, plan, 1, 2), (x.shape[-2], x.shape[-1]))


class Block(nn.Module):
    """An inverted residual, after attention where the stage attends."""

    def __init__(self, embed: int, hidden: int, heads: int, head_dim: int, rate: float, eps: float) -> None:
        super().__init__()
        self.rate = rate
        self.attn = Attention(embed, heads, head_dim, eps) if heads else None
        self.mlp = Mlp(embed, hidden, eps)

    def forward(self, x: Tensor, plan: Plan) -> Tensor:
        """Same shape out as in."""
        if self.attn is not None:
            x = x + self._dropped(self.attn(x, plan))
        return x + self._dropped(self.mlp(x, plan))

    def _dropped(self, branch: Tensor) -> Tensor:
        """Drop path by image: all channels and pixels alike."""
        return drop_path(branch.flatten(1).unsqueeze(1), self.rate, self.training).view_as(branch)


class Stage(nn.Module):
    """Blocks of one width; a shallower architecture uses the first ones."""

    def __init__(
        self, shared: HybridSettings, s: int, before: int, embed: int, hidden: int, rates: Sequence[float]
    ) -> None:
        super().__init__()
        heads = shared.heads(s, embed)
        self.downsample = Down(before, embed, shared.strides[s], shared.eps)
        self.blocks = nn.ModuleList(Block(embed, hidden, heads, shared.head_dim, rate, shared.eps) for rate in rates)

    def forward(self, x: Tensor, depth: int, plan: Plan) -> Tensor:
        """Maps in, maps out."""
        x = self.downsample(x, plan)
        for block in self.blocks[:depth]:
            x = block(x, plan)
        return x


# -- model ------------------------------------------------------------------------------------------------------------


def sizes(arch: Arch) -> list[tuple[int, int, int]]:
    """Blocks, channels and hidden channels of every stage."""
    rows = [(int(arch.one(f"depth.{s}")), int(arch.one(f"embed.{s}"))) for s in range(1, STAGES + 1)]
    return [(depth, embed, hidden_width(embed, arch.one("mlp"))) for depth, embed in rows]


class ElasticHybrid(nn.Module):
    """The supernet and every sub-network: ``model(x, arch)``; no arch means the largest."""

    def __init__(self, space: Space, drop_path: float = 0.0) -> None:
        super().__init__()
        self.space, self.shared = space, hybrid_settings(dict(space.settings))
        largest = space.hull()
        self.sizes, total = sizes(largest), sum(depth for depth, _, _ in sizes(largest))
        # Rates belong to the position in the largest network, so a block keeps its rate in every sub-network.
        rates = iter([drop_path * i / max(total - 1, 1) for i in range(total)])
        befores = [self.shared.stem, *(embed for _, embed, _ in self.sizes)]
        self.patch_embed = Stem(self.shared)
        self.stages = nn.ModuleList(
            Stage(self.shared, s, befores[s], embed, hidden, [next(rates) for _ in range(depth)])
            for s, (depth, embed, hidden) in enumerate(self.sizes)
        )
        self.norm = BatchNorm((befores[-1], "embed"), self.shared.eps)
        self.head = Weights([self.shared.classes, (befores[-1], "embed")], [self.shared.classes])
        fresh = build(self.shared, largest).state_dict()  # plain and elastic are initialised alike: same names
        with torch.no_grad():
            for name, p in self.named_parameters():
                p.copy_(fresh[name].view(p.shape))

    def plans(self, arch: Arch) -> list[tuple[int, Plan]]:
        """Blocks and widths of every stage; refuses what the supernet has no weights for."""
        before, found = self.shared.stem, list[tuple[int, Plan]]()
        for s, ((depth, embed, hidden), most) in enumerate(zip(sizes(arch), self.sizes, strict=True)):
            needs = zip(("depth", "embed", "mlp"), (depth, embed, hidden), most, strict=True)
            require_room(needs, f" of stage {s + 1}")
            heads = self.shared.heads(s, embed)
            widths = {"before": before, "embed": embed, "hidden": hidden, "heads": heads}
            found.append((depth, {name: Width(size) for name, size in widths.items()}))
            before = embed
        return found

    def forward(self, x: Tensor, arch: Arch | None = None) -> Tensor:
        """Logits (B, classes) of one architecture."""
        plans = self.plans(self.space.largest() if arch is None else arch)
        x = self.patch_embed(x)
        for stage, (depth, plan) in zip(self.stages, plans, strict=True):
            x = stage(x, depth, plan)
        last = plans[-1][1]
        return linear(self.head, self.norm.normalise(x, last).mean((2, 3)), last, 1)

    def tensors(self, arch: Arch) -> dict[str, tuple[Width | None, ...]]:
        """Per parameter and batch statistic, the prefix this arch uses; those of skipped blocks are absent."""
        plans, used = self.plans(arch), dict[str, tuple[Width | None, ...]]()
        for name, module in self.named_modules():
            at = name.split(".")
            depth, plan = plans[int(at[1]) if at[0] == "stages" and len(at) > 1 else STAGES - 1]
            if len(at) > 3 and at[2] == "blocks" and int(at[3]) >= depth:
                continue
            cut = module.widths(plan) if isinstance(module, Weights) else {}
            own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
            used.update({f"{name}.{n}": cut.get(n, ()) for n, _ in own})
        return used

    def slices(self, arch: Arch) -> dict[str, tuple[Width | None, ...]]:
        """Per parameter, the prefix this arch uses."""
        names = dict(self.named_parameters())
        return {k: v for k, v in self.tensors(arch).items() if k in names}


def build(shared: HybridSettings, arch: Arch, drop_path: Any = 0.0) -> PlainHybrid:
    """The plain network of an architecture, freshly initialised."""
    rows = sizes(arch)
    return PlainHybrid(shared, [r[1] for r in rows], [r[0] for r in rows], arch.one("mlp"), drop_path)


def extract(model: nn.Module, arch: Arch, share: bool = False) -> PlainHybrid:
    """The plain network that holds this architecture's slice of the weights and batch statistics."""
    assert isinstance(model, ElasticHybrid)
    rates = []
    for (depth, _), stage in zip(model.plans(arch), model.stages, strict=True):
        assert isinstance(stage, Stage)
        rates += [b.rate for b in stage.blocks[:depth] if isinstance(b, Block)]
    state = model.state_dict()
    weights = {k: prefix(state[k], *widths) for k, widths in model.tensors(arch).items()}
    return assemble(lambda: build(model.shared, arch, rates), weights, share)
