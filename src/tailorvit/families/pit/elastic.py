"""The elastic pit supernet: layers whose widths come with the call, and the plain network of an architecture."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.elastic.layers import Axes, Dense, Filters, PlainAxis, drop_path
from tailorvit.elastic.slicing import Width, prefix
from tailorvit.families.assemble import assemble
from tailorvit.families.base import require_room
from tailorvit.families.network import hidden_width
from tailorvit.families.pit.plain import PitSettings, PlainPiT, check_pool, pit_initialise, pit_settings
from tailorvit.families.pit.spaces import (
    STAGES,
)
from tailorvit.space import Space

# -- modules ----------------------------------------------------------------------------------------------------------
# A stage's channels have the shape (heads, base) and are cut on both axes, so that head j of every sub-network shares
# its weights whatever the base is; one axis of heads * base would mix head 1 of a narrow one with head 0 of a wide one.


class Attention(nn.Module):
    """Head j is the same rows in every sub-network."""

    def __init__(self, width: tuple[int, int]) -> None:
        super().__init__()
        self.qkv, self.proj = Dense((3, *width), width), Dense(width, width)

    def forward(self, x: Tensor, width: tuple[Width, Width]) -> Tensor:
        """(B, N, embed) to (B, N, embed)."""
        heads, base = width
        qkv = self.qkv(x, (None, *width), width).unflatten(-1, (3, heads.size, base.size))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, scale=base.size**-0.5)
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(2), width, width)
        return out


class Mlp(nn.Module):
    """Two linear layers around a GELU; the hidden width is a prefix."""

    def __init__(self, width: tuple[int, int], hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = Dense((hidden,), width), Dense(width, (hidden,))

    def forward(self, x: Tensor, width: Axes, hidden: Width) -> Tensor:
        """Same shape out as in."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x, (hidden,), width)), width, (hidden,))
        return out


class Block(nn.Module):
    """Pre-norm block whose widths come with the call."""

    def __init__(self, width: tuple[int, int], hidden: int, rate: float, eps: float) -> None:
        super().__init__()
        self.rate, self.eps = rate, eps
        self.norm1, self.attn = Filters(width), Attention(width)
        self.norm2, self.mlp = Filters(width), Mlp(width, hidden)

    def forward(self, x: Tensor, width: tuple[Width, Width], hidden: Width) -> Tensor:
        """(B, N, embed) to (B, N, embed)."""
        size = (x.shape[-1],)
        branch = self.attn(F.layer_norm(x, size, *self.norm1.cut(width), self.eps), width)
        x = x + drop_path(branch, self.rate, self.training)
        branch = self.mlp(F.layer_norm(x, size, *self.norm2.cut(width), self.eps), width, hidden)
        return x + drop_path(branch, self.rate, self.training)


class Pool(nn.Module):
    """To the next stage: its head h' filters head h' mod heads, so most heads have the same source in all sub-networks.

    timm's grouped convolution puts the copies of a channel side by side instead, which is the same network with its
    channels in another order; :func:`extract` reorders them.
    """

    def __init__(self, before: tuple[int, int], width: tuple[int, int]) -> None:
        super().__init__()
        self.conv, self.fc = Filters(width, 1, 3, 3), Dense(width, before)

    def forward(self, x: Tensor, token: Tensor, before: Axes, width: tuple[Width, Width]) -> tuple[Tensor, Tensor]:
        """The map and the class token of the next stage."""
        channels = width[0].size * width[1].size
        x = x.repeat(1, channels // x.shape[1], 1, 1)
        x = F.conv2d(x, *self.conv.cut(width), stride=2, padding=1, groups=channels)
        return x, self.fc(token, width, before)


class Stage(nn.Module):
    """Pooling (in all stages but the first) and blocks."""

    def __init__(self, pool: Pool | None, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.pool, self.blocks = pool, nn.ModuleList(blocks)


class Patches(nn.Module):
    """The filters of the overlapping patches."""

    def __init__(self, width: tuple[int, int], shared: PitSettings) -> None:
        super().__init__()
        self.conv = Filters(width, shared.channels, shared.patch, shared.patch)


# -- model ------------------------------------------------------------------------------------------------------------


class ElasticPiT(nn.Module):
    """The supernet and every sub-network: ``model(x, arch)``; no arch means the largest."""

    def __init__(self, space: Space, drop_path: float = 0.0) -> None:
        super().__init__()
        self.space, self.shared = space, pit_settings(dict(space.settings))
        base, shared = int(space["base"].high), self.shared
        widths = [(int(space[f"heads.{s}"].high), base) for s in STAGES]
        depths = [int(space[f"depth.{s}"].high) for s in STAGES]
        self.widths, self.depths = widths, depths
        self.hidden = [hidden_width(h * b, space["mlp"].high) for h, b in widths]
        # Rates belong to the absolute block index of the largest network, so a block keeps its rate in all.
        total = sum(depths)
        rates = iter([drop_path * i / max(total - 1, 1) for i in range(total)])
        self.patch_embed = Patches(widths[0], shared)
        self.pos_embed = nn.Parameter(torch.empty(*widths[0], *shared.grids[0]))
        self.cls_token = nn.Parameter(torch.empty(*widths[0]))
        self.transformers = nn.ModuleList(
            Stage(
                Pool(widths[s - 1], widths[s]) if s else None,
                [Block(widths[s], self.hidden[s], next(rates), shared.eps) for _ in range(depths[s])],
            )
            for s in range(len(widths))
        )
        self.norm = Filters(widths[-1])
        self.head = Dense((shared.classes,), widths[-1])
        pit_initialise(self, shared.init, self._inputs())

    def _inputs(self) -> dict[str, int]:
        """Inputs of an output, per weight: the rest of its shape after the shape of the bias."""
        owners = {n: m for n, m in self.named_modules() if isinstance(m, Dense | Filters)}
        return {f"{n}.weight": m.weight.numel() // m.bias.numel() for n, m in owners.items()}

    def plan(self, arch: Arch) -> tuple[list[tuple[Width, Width]], list[Width]]:
        """Widths (heads, base) and hidden width per stage; refuses what the supernet has no weights for."""
        base, heads = int(arch.one("base")), [int(arch.one(f"heads.{s}")) for s in STAGES]
        hidden = [hidden_width(base * h, arch.one("mlp")) for h in heads]
        needs = [("base", base, self.widths[0][1])]
        for i, s in enumerate(STAGES):
            needs.append((f"depth.{s}", int(arch.one(f"depth.{s}")), self.depths[i]))
            needs.append((f"heads.{s}", heads[i], self.widths[i][0]))
        require_room([*needs, *(("mlp", mine, there) for mine, there in zip(hidden, self.hidden, strict=True))])
        check_pool(heads[0], heads[1])
        check_pool(heads[1], heads[2])
        return [(Width(h), Width(base)) for h in heads], [Width(h) for h in hidden]

    def forward(self, x: Tensor, arch: Arch | None = None) -> Tensor:
        """Logits (B, classes) of one architecture."""
        arch = arch or self.space.largest()
        widths, hidden = self.plan(arch)
        x = F.conv2d(x, *self.patch_embed.conv.cut(widths[0]), stride=self.shared.stride)
        x = x + prefix(self.pos_embed, *widths[0]).flatten(0, 1)
        token = prefix(self.cls_token, *widths[0]).flatten().expand(x.shape[0], 1, -1)
        for i, stage in enumerate(self.transformers):
            assert isinstance(stage, Stage)
            if stage.pool is not None:
                x, token = stage.pool(x, token, widths[i - 1], widths[i])
            grid, tokens = x.shape[2:], torch.cat([token.to(x.dtype), x.flatten(2).transpose(1, 2)], 1)
            for block in stage.blocks[: int(arch.one(f"depth.{STAGES[i]}"))]:
                tokens = block(tokens, widths[i], hidden[i])
            x, token = tokens[:, 1:].transpose(1, 2).unflatten(-1, grid), tokens[:, :1]
        token = F.layer_norm(token[:, 0], token.shape[2:], *self.norm.cut(widths[-1]), self.shared.eps)
        logits: Tensor = self.head(token, (None,), widths[-1])
        return logits

    def plain_axes(self, arch: Arch) -> dict[str, tuple[PlainAxis, ...]]:
        """Per parameter, the axes this arch cuts, grouped as axes of the plain network."""
        widths, hidden = self.plan(arch)
        embed = [PlainAxis(w, s) for s, w in enumerate(widths)]
        used: dict[str, tuple[PlainAxis, ...]] = {"pos_embed": (embed[0],), "cls_token": (embed[0],)}

        def put(name: str, out: PlainAxis, *inputs: PlainAxis) -> None:
            used[f"{name}.weight"], used[f"{name}.bias"] = (out, *inputs), (out,)

        put("patch_embed.conv", embed[0])
        put("norm", embed[-1])
        put("head", PlainAxis((None,)), embed[-1])
        for s, width in enumerate(widths):
            stage, qkv, wide = f"transformers.{s}", PlainAxis((None, *width)), PlainAxis((hidden[s],))
            if s:
                put(f"{stage}.pool.conv", embed[s])
                put(f"{stage}.pool.fc", embed[s], embed[s - 1])
            for i in range(int(arch.one(f"depth.{STAGES[s]}"))):
                block = f"{stage}.blocks.{i}"
                put(f"{block}.norm1", embed[s])
                put(f"{block}.attn.qkv", qkv, embed[s])
                put(f"{block}.attn.proj", embed[s], PlainAxis(width))
                put(f"{block}.norm2", embed[s])
                put(f"{block}.mlp.fc1", wide, embed[s])
                put(f"{block}.mlp.fc2", embed[s], wide)
        return used

    def slices(self, arch: Arch) -> dict[str, tuple[Width | None, ...]]:
        """Per parameter, the prefix this arch uses."""
        return {name: tuple(w for axis in axes for w in axis.axes) for name, axes in self.plain_axes(arch).items()}


def build(shared: PitSettings, arch: Arch, drop_path: Any = 0.0) -> PlainPiT:
    """The plain network of an architecture, freshly initialised."""
    heads, depth = ([int(arch.one(f"{gene}.{s}")) for s in STAGES] for gene in ("heads", "depth"))
    check_pool(heads[0], heads[1])
    check_pool(heads[1], heads[2])
    return PlainPiT(shared, int(arch.one("base")), depth, heads, arch.one("mlp"), drop_path)


def _orders(base: int, heads: Sequence[int]) -> list[Tensor]:
    """Per stage, which of our channels timm's channel p is: timm keeps the copies of a channel side by side."""
    orders = [torch.arange(base * heads[0])]
    for before, after in itertools.pairwise(heads):
        copies = torch.arange(after // before) * before * base
        orders.append((orders[-1][:, None] + copies).flatten())
    return orders


def extract(model: nn.Module, arch: Arch, share: bool = False) -> PlainPiT:
    """The plain network that holds this architecture's slice of the supernet's weights, in timm's order of channels."""
    assert isinstance(model, ElasticPiT)
    depths = [int(arch.one(f"depth.{s}")) for s in STAGES]
    rates = [b.rate for s, n in zip(model.transformers, depths, strict=True) for b in s.blocks[:n]]  # type: ignore[index]
    device = model.cls_token.device
    orders = [o.to(device) for o in _orders(int(arch.one("base")), [int(arch.one(f"heads.{s}")) for s in STAGES])]
    weights, state = dict(model.named_parameters()), {}
    for name, axes in model.plain_axes(arch).items():
        weight = prefix(weights[name].detach(), *(w for axis in axes for w in axis.axes))
        for i, axis in enumerate(axes):
            weight = weight.flatten(i, i + len(axis.axes) - 1)
            if axis.stage is not None:
                weight = weight.index_select(i, orders[axis.stage])
        state[name] = weight
    return assemble(lambda: build(model.shared, arch, rates), state, share)
