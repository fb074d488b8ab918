"""The elastic shunted supernet: layers whose widths come with the call, and the plain network of an architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.elastic.layers import drop_path
from tailorvit.elastic.slicing import Width, prefix
from tailorvit.elastic.weights import Plan, Weights, conv, depthwise, layer_norm, linear
from tailorvit.families.assemble import assemble
from tailorvit.families.base import require_room
from tailorvit.families.network import as_map, as_tokens
from tailorvit.families.shunted.plain import (
    STAGES,
    PlainShunted,
    ShuntedSettings,
    cells,
    filled,
    shapes,
    shunt,
    shunted_settings,
    stem_features,
    stem_layers,
)
from tailorvit.space import Space

# -- modules ----------------------------------------------------------------------------------------------------------

Grid = tuple[int, int]


def _norm_weights(embed: int) -> Weights:
    return Weights([(embed, "embed")], [(embed, "embed")])


class Keys(nn.Module):
    """Keys and values of one scale for some of the heads."""

    def __init__(self, embed: int, heads: int, head: int, cell: int | None, eps: float) -> None:
        super().__init__()
        self.heads, self.cell, self.eps = heads, cell, eps
        if cell is not None:
            self.sr = Weights([(embed, "embed"), (embed, "embed"), cell, cell], [(embed, "embed")])
            self.norm = _norm_weights(embed)
        self.kv = Weights([2, heads, (head, "head"), (embed, "embed")], [2, heads, (head, "head")])
        self.local = Weights([heads, (head, "head"), 1, 3, 3], [heads, (head, "head")])

    def forward(self, x: Tensor, grid: Grid, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and convolved values, each (B, heads, keys, head)."""
        if self.cell is not None:
            x = as_tokens(conv(self.sr, filled(as_map(x, grid), self.cell), plan, self.cell))
            x, grid = F.gelu(layer_norm(self.norm, x, plan, self.eps)), cells(grid, self.cell)
        k, v = linear(self.kv, x, plan, 3).unflatten(-1, (2, -1)).unbind(2)
        convolved = as_tokens(depthwise(self.local, as_map(v, grid), plan))
        k, v, convolved = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (k, v, convolved))
        return k, v, convolved


class Attention(nn.Module):
    """Heads in one set, or halved between coarse and fine keys."""

    def __init__(self, embed: int, heads: int, reduction: int, eps: float) -> None:
        super().__init__()
        self.heads, head = heads, embed // heads
        self.q = Weights([heads, (head, "head"), (embed, "embed")], [heads, (head, "head")])
        self.proj = Weights([(embed, "embed"), heads, (head, "head")], [(embed, "embed")])
        scales = [(heads, None)] if reduction == 1 else [(heads // 2, reduction), (heads // 2, reduction // 2)]
        self.sets = nn.ModuleList(Keys(embed, share, head, cell, eps) for share, cell in scales)

    def forward(self, x: Tensor, grid: Grid, plan: Plan) -> Tensor:
        """(B, n, embed) to (B, n, embed)."""
        queries = linear(self.q, x, plan, 2).unflatten(-1, (self.heads, -1)).transpose(1, 2).chunk(len(self.sets), 1)
        mixed = []
        for q, keys in zip(queries, self.sets, strict=True):
            mixed.append(shunt(q, keys(x, grid, plan), len(self.sets) > 1))
        return linear(self.proj, torch.cat(mixed, 1).transpose(1, 2).flatten(2), plan, 1, 2)


class Mlp(nn.Module):
    """Two linear layers and a depthwise convolution, with an elastic hidden width."""

    def __init__(self, embed: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = Weights([(hidden, "hidden"), (embed, "embed")], [(hidden, "hidden")])
        self.fc2 = Weights([(embed, "embed"), (hidden, "hidden")], [(embed, "embed")])
        self.dwconv = Weights([(hidden, "hidden"), 1, 3, 3], [(hidden, "hidden")])

    def forward(self, x: Tensor, grid: Grid, plan: Plan) -> Tensor:
        """Same shape out as in."""
        x = linear(self.fc1, x, plan, 1)
        return linear(self.fc2, F.gelu(x + as_tokens(depthwise(self.dwconv, as_map(x, grid), plan))), plan, 1)


class Block(nn.Module):
    """Pre-norm block whose widths come with the call."""

    def __init__(self, embed: int, heads: int, reduction: int, hidden: int, rate: float, eps: float) -> None:
        super().__init__()
        self.rate, self.eps = rate, eps
        self.norm1, self.attn = _norm_weights(embed), Attention(embed, heads, reduction, eps)
        self.norm2, self.mlp = _norm_weights(embed), Mlp(embed, hidden)

    def forward(self, x: Tensor, grid: Grid, plan: Plan) -> Tensor:
        """(B, n, embed) to (B, n, embed)."""
        branch = self.attn(layer_norm(self.norm1, x, plan, self.eps), grid, plan)
        x = x + drop_path(branch, self.rate, self.training)
        branch = self.mlp(layer_norm(self.norm2, x, plan, self.eps), grid, plan)
        return x + drop_path(branch, self.rate, self.training)


class Stem(nn.Module):
    """Convolutions and batch norms of fixed width, whose statistics fit all sub-networks; the last layer is elastic."""

    def __init__(self, shared: ShuntedSettings, embed: int) -> None:
        super().__init__()
        self.stride, self.eps = shared.stem_strides[1], shared.eps
        self.convs, self.norms = stem_layers(shared)
        self.proj = Weights([(embed, "embed"), shared.stem, self.stride, self.stride], [(embed, "embed")])
        self.norm = _norm_weights(embed)

    def forward(self, x: Tensor, plan: Plan) -> Tensor:
        """(B, C, H, W) to (B, n, embed)."""
        x = conv(self.proj, stem_features(self.convs, self.norms, x), plan, self.stride)
        return layer_norm(self.norm, as_tokens(x), plan, self.eps)


class Down(nn.Module):
    """Overlapping 3x3 patches between stages."""

    def __init__(self, inputs: int, embed: int, stride: int, eps: float) -> None:
        super().__init__()
        self.stride, self.eps = stride, eps
        self.proj = Weights([(embed, "embed"), (inputs, "before"), 3, 3], [(embed, "embed")])
        self.norm = _norm_weights(embed)

    def forward(self, x: Tensor, grid: Grid, plan: Plan) -> Tensor:
        """(B, n, inputs) to (B, n', embed)."""
        x = conv(self.proj, as_map(x, grid), plan, self.stride, 1)
        return layer_norm(self.norm, as_tokens(x), plan, self.eps)


class Stage(nn.Module):
    """Blocks of one width; a shallower architecture uses the first ones."""

    def __init__(self, shared: ShuntedSettings, s: int, embed: int, hidden: int, rates: Sequence[float]) -> None:
        super().__init__()
        self.grid, self.before, self.eps = shared.grids[s], shared.grids[max(s - 1, 0)], shared.eps
        if s:
            self.downsample = Down(embed // 2, embed, shared.strides[s - 1], shared.eps)
        heads, reduction = shared.heads[s], shared.reductions[s]
        self.blocks = nn.ModuleList(Block(embed, heads, reduction, hidden, rate, shared.eps) for rate in rates)
        self.norm = _norm_weights(embed)

    def forward(self, x: Tensor, depth: int, plan: Plan) -> Tensor:
        """Tokens in, normalised tokens out."""
        x = self.downsample(x, self.before, plan) if hasattr(self, "downsample") else x
        for block in self.blocks[:depth]:
            x = block(x, self.grid, plan)
        return layer_norm(self.norm, x, plan, self.eps)


# -- model ------------------------------------------------------------------------------------------------------------


class ElasticShunted(nn.Module):
    """The supernet and every sub-network: ``model(x, arch)``; no arch means the largest."""

    def __init__(self, space: Space, drop_path: float = 0.0) -> None:
        super().__init__()
        self.space, self.shared = space, shunted_settings(dict(space.settings))
        largest = space.hull()
        for embed in space["embed"].choices:
            shapes(self.shared, int(embed), largest.one("mlp"))
        embed, depths = int(largest.one("embed")), self.shared.depths(int(largest.one("depth")))
        self.sizes = shapes(self.shared, embed, largest.one("mlp"))
        # Rates belong to the position in the largest network, so a block keeps its rate in every sub-network.
        rates = [drop_path * i / max(sum(depths) - 1, 1) for i in range(sum(depths))]
        starts = [sum(depths[:s]) for s in range(STAGES)]
        self.patch_embed = Stem(self.shared, embed)
        self.stages = nn.ModuleList(
            Stage(self.shared, s, width, hidden, rates[starts[s] : starts[s] + depths[s]])
            for s, (width, _, hidden) in enumerate(self.sizes)
        )
        self.head = Weights([self.shared.classes, (self.sizes[-1][0], "embed")], [self.shared.classes])
        fresh = build(self.shared, largest).state_dict()  # plain and elastic are initialised alike: same names
        with torch.no_grad():
            for name, p in self.named_parameters():
                p.copy_(fresh[name].view(p.shape))

    def plans(self, arch: Arch) -> list[tuple[int, Plan]]:
        """Blocks and widths of every stage; refuses what the supernet has no weights for."""
        sizes, before = shapes(self.shared, int(arch.one("embed")), arch.one("mlp")), 0
        found: list[tuple[int, Plan]] = []
        depths = self.shared.depths(int(arch.one("depth")))
        for depth, (embed, head, hidden), largest, stage in zip(depths, sizes, self.sizes, self.stages, strict=True):
            assert isinstance(stage, Stage)
            require_room(
                [("depth", depth, len(stage.blocks)), ("embed", embed, largest[0]), ("mlp", hidden, largest[2])]
            )
            widths = {"embed": Width(embed), "before": Width(before), "head": Width(head), "hidden": Width(hidden)}
            found.append((depth, widths))
            before = embed
        return found

    def forward(self, x: Tensor, arch: Arch | None = None) -> Tensor:
        """Logits (B, classes) of one architecture."""
        plans = self.plans(self.space.largest() if arch is None else arch)
        x = self.patch_embed(x, plans[0][1])
        for stage, (depth, plan) in zip(self.stages, plans, strict=True):
            x = stage(x, depth, plan)
        return linear(self.head, x.mean(1), plans[-1][1], 1)

    def slices(self, arch: Arch) -> dict[str, tuple[Width | None, ...]]:
        """Per parameter, the prefix this arch uses."""
        plans = self.plans(arch)
        used: dict[str, tuple[Width | None, ...]] = {}
        for name, module in self.named_modules():
            at = name.split(".")
            stage = int(at[1]) if at[0] == "stages" and len(at) > 1 else STAGES - 1 if at[0] == "head" else 0
            depth, plan = plans[stage]
            if len(at) > 3 and at[2] == "blocks" and int(at[3]) >= depth:
                continue
            cut = module.widths(plan) if isinstance(module, Weights) else {}
            used.update({f"{name}.{n}": cut.get(n, ()) for n, _ in module.named_parameters(recurse=False)})
        return used


def build(shared: ShuntedSettings, arch: Arch, drop_path: Any = 0.0) -> PlainShunted:
    """The plain network of an architecture, freshly initialised."""
    embed, depth, mlp = int(arch.one("embed")), int(arch.one("depth")), arch.one("mlp")
    shapes(shared, embed, mlp)
    return PlainShunted(shared, embed, depth, mlp, drop_path)


def extract(model: nn.Module, arch: Arch, share: bool = False) -> PlainShunted:
    """The plain network that holds this architecture's slice of the weights, and the stem's batch statistics."""
    assert isinstance(model, ElasticShunted)
    rates = []
    for (depth, _), stage in zip(model.plans(arch), model.stages, strict=True):
        assert isinstance(stage, Stage)
        rates += [b.rate for b in stage.blocks[:depth] if isinstance(b, Block)]
    slices, state = model.slices(arch), model.state_dict()
    names = dict(model.named_parameters())
    weights = {k: prefix(v, *slices.get(k, ())) for k, v in state.items() if k in slices or k not in names}
    return assemble(lambda: build(model.shared, arch, rates), weights, share)
