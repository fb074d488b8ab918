"""Plain Shunted Transformer: four stages, heads that look at keys of two scales, convolutions inside the blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.errors import TailorError
from tailorvit.families.base import Maps
from tailorvit.families.network import (
    Count,
    DropPath,
    Init,
    NetworkSettings,
    PlainNetwork,
    Sides,
    Windows,
    as_map,
    as_tokens,
    drop_rates,
    hidden_width,
    picked,
    start_scale,
)

STAGES = 4


@dataclass(frozen=True)
class ShuntedSettings(NetworkSettings):
    """What all networks of a Shunted space share; the defaults are those of S4's space."""

    image_size: Sides = (224, 224)
    channels: int = 3
    classes: int = 1000
    stem: int = 64  # channels of the stem, the same in every network: its batch statistics fit them all
    stem_kernel: int = 7
    stem_convs: Count = 1  # 3x3 convolutions between the first and the last of the stem
    stem_strides: tuple[int, ...] = (2, 2)  # of the stem's first and last convolution
    strides: tuple[int, ...] = (2, 2, 2)  # between stages
    heads: tuple[int, ...] = (2, 4, 8, 16)
    reduce: tuple[int, ...] = (8, 4, 2, 1)  # pixels a side of the coarse keys; the fine ones have half, 1 has neither
    depth_base: tuple[int, ...] = (2, 0, 0, 1)  # blocks of a stage: base + growth * depth
    depth_growth: tuple[int, ...] = (0, 1, 3, 0)
    ratios: Literal["half", "four", "same"] = "half"  # MLP ratios (m, m, m/2, m/2), (m, m, 4, 4) or m four times
    eps: float = 1e-6
    init: Init = "scaled"

    @property
    def stem_grid(self) -> tuple[int, int]:
        """Rows and columns inside the stem."""
        high, wide = (-(-side // self.stem_strides[0]) for side in self.image_size)
        return high, wide

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of every stage."""
        high, wide = (side // self.stem_strides[1] for side in self.stem_grid)
        grids = [(high, wide)]
        for stride in self.strides:
            high, wide = -(-high // stride), -(-wide // stride)
            grids.append((high, wide))
        return tuple(grids)

    @property
    def reductions(self) -> tuple[int, ...]:
        """``reduce``, halved where a map is smaller than one key."""
        return tuple(min(k, 2 ** int(math.log2(min(grid)))) for k, grid in zip(self.reduce, self.grids, strict=True))

    def depths(self, depth: int) -> tuple[int, ...]:
        """Blocks of every stage."""
        return tuple(b + g * depth for b, g in zip(self.depth_base, self.depth_growth, strict=True))

    def mlps(self, mlp: float) -> tuple[float, ...]:
        """MLP ratio of every stage."""
        late = {"half": mlp / 2, "four": 4, "same": mlp}[self.ratios]
        return (mlp, mlp, late, late)


def filled(x: Tensor, cell: int) -> Tensor:
    """A map whose sides are multiples of ``cell``: zeros below and to the right where it needs them."""
    down, right = -x.shape[-2] % cell, -x.shape[-1] % cell
    return F.pad(x, (0, right, 0, down)) if down or right else x


def cells(grid: tuple[int, int], cell: int) -> tuple[int, int]:
    """Rows and columns of a map after reducing it."""
    return -(-grid[0] // cell), -(-grid[1] // cell)


def stem_layers(shared: ShuntedSettings) -> tuple[nn.ModuleList, nn.ModuleList]:
    """The stem's convolutions of a fixed width, and their batch norms."""
    width, kernels = shared.stem, [shared.stem_kernel, *[3] * shared.stem_convs]
    convs = nn.ModuleList(
        nn.Conv2d(width if i else shared.channels, width, k, 1 if i else shared.stem_strides[0], k // 2, bias=False)
        for i, k in enumerate(kernels)
    )
    return convs, nn.ModuleList(nn.BatchNorm2d(width) for _ in kernels)


def stem_features(convs: nn.ModuleList, norms: nn.ModuleList, x: Tensor) -> Tensor:
    """(B, C, H, W) through the stem's fixed part."""
    for conv, norm in zip(convs, norms, strict=True):
        x = F.relu(norm(conv(x)))
    return x


class ShuntedStem(nn.Module):
    """Convolutions with batch norm at a fixed width, then non-overlapping patches to the first stage's width."""

    def __init__(self, shared: ShuntedSettings, embed: int) -> None:
        super().__init__()
        self.convs, self.norms = stem_layers(shared)
        self.proj = nn.Conv2d(shared.stem, embed, shared.stem_strides[1], shared.stem_strides[1])
        self.norm = nn.LayerNorm(embed, shared.eps)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, n, embed)."""
        out: Tensor = self.norm(as_tokens(self.proj(stem_features(self.convs, self.norms, x))))
        return out


class ShuntedDown(nn.Module):
    """Overlapping 3x3 patches between stages."""

    def __init__(self, inputs: int, embed: int, stride: int, eps: float) -> None:
        super().__init__()
        self.proj, self.norm = nn.Conv2d(inputs, embed, 3, stride, 1), nn.LayerNorm(embed, eps)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, n, inputs) to (B, n', embed)."""
        out: Tensor = self.norm(as_tokens(self.proj(as_map(x, grid))))
        return out


class ShuntedKeys(nn.Module):
    """Keys and values of one scale for some of the heads, and what a 3x3 convolution makes of the values."""

    def __init__(self, embed: int, heads: int, head_dim: int, cell: int | None, eps: float) -> None:
        super().__init__()
        self.heads, self.cell, width = heads, cell, heads * head_dim
        if cell is not None:
            self.sr, self.norm = nn.Conv2d(embed, embed, cell, cell), nn.LayerNorm(embed, eps)
        self.kv = nn.Linear(embed, 2 * width)
        self.local = nn.Conv2d(width, width, 3, 1, 1, groups=width)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and convolved values, each (B, heads, keys, head_dim)."""
        if self.cell is not None:
            x = F.gelu(self.norm(as_tokens(self.sr(filled(as_map(x, grid), self.cell)))))
            grid = cells(grid, self.cell)
        k, v = self.kv(x).unflatten(-1, (2, -1)).unbind(2)
        near = as_tokens(self.local(as_map(v, grid)))
        k, v, near = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (k, v, near))
        return k, v, near


class ShuntedAttention(nn.Module):
    """The first half of the heads attends to coarse keys, the second to fine ones; without reduction all to all."""

    def __init__(self, embed: int, heads: int, reduction: int, eps: float) -> None:
        super().__init__()
        self.heads, head_dim = heads, embed // heads
        self.q, self.proj = nn.Linear(embed, embed), nn.Linear(embed, embed)
        sights = [(heads, None)] if reduction == 1 else [(heads // 2, reduction), (heads // 2, reduction // 2)]
        self.sets = nn.ModuleList(ShuntedKeys(embed, share, head_dim, cell, eps) for share, cell in sights)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """The queries (B, heads, n, head_dim) of each set of keys."""
        heads: Tensor = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return heads.chunk(len(self.sets), 1)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, n, embed) to (B, n, embed)."""
        # One set: every pixel is a key, and the convolved values join the output. Two: they join the values.
        mixed = [shunt(q, keys(x, grid), len(self.sets) > 1) for q, keys in zip(self.split(x), self.sets, strict=True)]
        out: Tensor = self.proj(torch.cat(mixed, 1).transpose(1, 2).flatten(2))
        return out

    def weights(self, x: Tensor, grid: tuple[int, int], number: int) -> Tensor:
        """The attention maps (B, heads, n, keys) of one set of keys for an input of the block."""
        q, k = self.split(x)[number], self.sets[number](x, grid)[0]
        out: Tensor = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return out


def shunt(q: Tensor, keys: tuple[Tensor, Tensor, Tensor], early: bool) -> Tensor:
    """Attention of one set of keys (k, v, convolved v); the convolved values join the values, or else the output."""
    k, v, near = keys
    if early:
        return F.scaled_dot_product_attention(q, k, v + near)
    return F.scaled_dot_product_attention(q, k, v) + near


class ShuntedMlp(nn.Module):
    """Two linear layers around a GELU, with a 3x3 depthwise convolution beside the identity before it."""

    def __init__(self, embed: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(embed, hidden), nn.Linear(hidden, embed)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Same shape out as in."""
        x = self.fc1(x)
        out: Tensor = self.fc2(F.gelu(x + as_tokens(self.dwconv(as_map(x, grid)))))
        return out


class ShuntedBlock(nn.Module):
    """Pre-norm block."""

    def __init__(self, embed: int, heads: int, reduction: int, ratio: float, drop: float, eps: float) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(embed, eps), ShuntedAttention(embed, heads, reduction, eps)
        self.norm2, self.mlp = nn.LayerNorm(embed, eps), ShuntedMlp(embed, hidden_width(embed, ratio))
        self.drop_path = DropPath(drop)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, n, embed) to (B, n, embed)."""
        x = x + self.drop_path(self.attn(self.norm1(x), grid))
        out: Tensor = x + self.drop_path(self.mlp(self.norm2(x), grid))
        return out


class ShuntedStage(nn.Module):
    """Blocks of one width between a reduction of the map and a norm."""

    def __init__(self, shared: ShuntedSettings, number: int, embed: int, ratio: float, rates: Sequence[float]) -> None:
        super().__init__()
        self.grid, width, eps = shared.grids[number], embed * 2**number, shared.eps
        self.before = shared.grids[max(number - 1, 0)]
        if number:
            self.downsample = ShuntedDown(width // 2, width, shared.strides[number - 1], eps)
        heads, reduction = shared.heads[number], shared.reductions[number]
        self.blocks = nn.ModuleList(ShuntedBlock(width, heads, reduction, ratio, rate, eps) for rate in rates)
        self.norm = nn.LayerNorm(width, eps)

    def enter(self, x: Tensor) -> Tensor:
        """Tokens of the stage before to tokens of this one; the first stage takes the stem's as they are."""
        out: Tensor = self.downsample(x, self.before) if hasattr(self, "downsample") else x
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Tokens in, normalised tokens out."""
        x = self.enter(x)
        for block in self.blocks:
            x = block(x, self.grid)
        out: Tensor = self.norm(x)
        return out


class PlainShunted(PlainNetwork):
    """A Shunted Transformer of one fixed architecture."""

    kind: ClassVar[str] = "shunted"
    first_weight: ClassVar[str] = "patch_embed.convs.0.weight"
    shared: ShuntedSettings

    def __init__(
        self, shared: ShuntedSettings, embed: int, depth: int, mlp: float, drop_path: Sequence[float] | float = 0.0
    ) -> None:
        super().__init__()
        self.shared = shared
        self.shape = {"embed": embed, "depth": depth, "mlp": mlp}
        depths = shared.depths(depth)
        rates = iter(drop_rates(drop_path, sum(depths)))
        self.patch_embed = ShuntedStem(shared, embed)
        self.stages = nn.ModuleList(
            ShuntedStage(shared, i, embed, ratio, [next(rates) for _ in range(depths[i])])
            for i, ratio in enumerate(shared.mlps(mlp))
        )
        self.head = self.classifier()
        start_shunted(self, shared.init)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], drop_path: float = 0.0) -> PlainShunted:
        """The network of these settings, freshly initialised."""
        shape = {k: settings[k] for k in ("embed", "depth", "mlp")}
        return cls(ShuntedSettings.of(settings, *shape), **shape, drop_path=drop_path)

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Per stage: its name, channels and pixels a side of one position."""
        rows, reduction = [], self.shared.stem_strides[0] * self.shared.stem_strides[1]
        for i, stride in enumerate((1, *self.shared.strides)):
            reduction *= stride
            rows.append({"module": f"stages.{i}", "num_chs": self.shape["embed"] * 2**i, "reduction": reduction})
        return rows

    def forward_features(self, x: Tensor) -> Tensor:
        """Normalised tokens (B, n, channels) of the last stage."""
        x = self.patch_embed(x)
        for stage in self.stages:
            x = stage(x)
        return x

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """What leaves the chosen stages (all; the last n; by number), as maps (NCHW) or tokens (NLC).

        Every stage ends with its norm, so ``norm`` changes nothing. Unless only these are wanted,
        :meth:`forward_features` comes first; arguments and order as in timm.
        """
        x, found = self.patch_embed(x), []
        for stage, grid in zip(self.stages, self.shared.grids, strict=True):
            x = stage(x)
            found.append(as_map(x, grid) if output_fmt == "NCHW" else x)
        kept = [found[i] for i in picked(indices, STAGES)]
        return kept if intermediates_only else (x, kept)

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of :meth:`forward_features`' tokens, or what the head would see."""
        pooled = tokens.mean(1)
        out: Tensor = pooled if pre_logits else self.head(pooled)
        return out

    def suits(self, side: int) -> bool:
        """Whole steps of the stem, and maps no smaller than the reduced keys."""
        shared = replace(self.shared, image_size=(side, side), reduce=self.shared.reductions)
        first, last = shared.stem_grid[0], shared.stem_strides[1]
        return first >= last and first % last == 0 and shared.reductions == self.shared.reductions

    def size_rule(self) -> str:
        """What the sides must suit, in words."""
        step = self.shared.stem_strides[0] * self.shared.stem_strides[1]
        keys = "x".join(map(str, self.shared.reductions))
        return f"steps of {step} px, maps no smaller than its keys of {keys}"

    def settings_at(self, size: Sides, windows: Windows) -> dict[str, Any]:
        """Small maps had their keys reduced less than set: the kernels have that size, so it stays on larger maps."""
        return {"reduce": list(self.shared.reductions)}


def start_shunted(model: nn.Module, init: str = "scaled") -> None:
    """Truncated normal for linear weights, zero biases; convolutions and norms as torch does."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02 if name == "head" else start_scale(module.in_features, init))
            nn.init.zeros_(module.bias)


# -- attention maps ---------------------------------------------------------------------------------------------------


def attention(model: nn.Module, images: Tensor) -> Iterator[Maps]:
    """Block by block; two records where half of the heads look at coarse keys and half at fine ones.

    A key stands for the square of pixels it was reduced from; that it also saw its neighbours (the convolution of the
    values) is not part of the weights.
    """
    assert isinstance(model, PlainShunted)
    x = model.patch_embed(images)
    for number, stage in enumerate(model.stages, 1):
        assert isinstance(stage, ShuntedStage)
        x = stage.enter(x)
        for i, block in enumerate(stage.blocks, 1):
            assert isinstance(block, ShuntedBlock)
            yield from _sets(block.attn, block.norm1(x), stage.grid, number, i)
            x = block(x, stage.grid)
        x = stage.norm(x)


def _sets(attn: ShuntedAttention, x: Tensor, grid: tuple[int, int], stage: int, block: int) -> Iterator[Maps]:
    for number, keys in enumerate(attn.sets):
        assert isinstance(keys, ShuntedKeys)
        cell = keys.cell or 1
        kind = ("", ", coarse keys", ", fine keys")[number + len(attn.sets) - 1]
        yield Maps(
            f"stage {stage}, block {block}{kind}",
            stage,
            block,
            grid,
            keys.heads,
            _places(grid, 1, x),
            _places(cells(grid, cell), cell, x),
            partial(_weights, attn, x, grid, number),
            (float(cell), float(cell)),
        )


def _weights(attn: ShuntedAttention, x: Tensor, grid: tuple[int, int], number: int) -> Tensor:
    return attn.weights(x, grid, number).unsqueeze(1)


def _places(grid: tuple[int, int], cell: int, x: Tensor) -> Tensor:
    """(1, n, 2): the centres of cells, in patches of the stage."""
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    centres = torch.stack([rows, columns], -1).view(1, -1, 2).to(x.device, torch.float32)
    return centres * cell + (cell - 1) / 2


# -- checked settings -------------------------------------------------------------------------------------------------


def shunted_settings(data: Mapping[str, Any]) -> ShuntedSettings:
    """Type and check the shared settings."""
    shared = ShuntedSettings.read("shunted", data)
    rows = (("stem_strides", 2, 1), ("strides", 3, 1), ("heads", 4, 1), ("reduce", 4, 1))
    for name, count, least in (*rows, ("depth_base", 4, 0), ("depth_growth", 4, 0)):
        value = getattr(shared, name)
        if not isinstance(value, tuple) or len(value) != count or any(type(v) is not int or v < least for v in value):
            raise TailorError(
                f"The shunted setting '{name}' must be {count} whole numbers of at least {least}, not {value}."
            )
    if shared.stem_kernel % 2 == 0:
        raise TailorError(f"The shunted setting 'stem_kernel' must be odd, not {shared.stem_kernel}.")
    if any(side % shared.stem_strides[1] for side in shared.stem_grid):
        step = shared.stem_strides[0] * shared.stem_strides[1]
        raise TailorError(
            f"A shunted network needs image sides that are multiples of {step}, not {list(shared.image_size)}."
        )
    if any(k & (k - 1) for k in shared.reduce):
        raise TailorError(f"The shunted setting 'reduce' must be powers of two, not {list(shared.reduce)}.")
    for heads, k in zip(shared.heads, shared.reduce, strict=True):
        if heads % 2 and k > 1:
            raise TailorError(f"Shunted heads must be even where keys are reduced, not {heads} at a reduction of {k}.")
    if min(shared.depths(1)) < 1:
        raise TailorError("Every shunted stage needs a block: depth_base plus depth_growth must be at least 1.")
    return shared


def shapes(shared: ShuntedSettings, embed: int, mlp: float) -> list[tuple[int, int, int]]:
    """Embedding, head and hidden width of every stage."""
    found = []
    for s, (heads, ratio) in enumerate(zip(shared.heads, shared.mlps(mlp), strict=True)):
        width = embed * 2**s
        if width % heads:
            raise TailorError(
                f"A shunted embed of {embed} gives stage {s + 1} {width} channels: not whole {heads} heads."
            )
        if hidden_width(width, ratio) < 1:
            raise TailorError(f"A shunted MLP ratio of {mlp} leaves stage {s + 1} no hidden channel.")
        found.append((width, width // heads, hidden_width(width, ratio)))
    return found
