"""Plain hybrid network: four stages of inverted residuals with batch norm; blocks of the last stages also attend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.errors import TailorError
from tailorvit.families.base import Maps
from tailorvit.families.network import (
    DropPath,
    Init,
    NetworkSettings,
    PlainNetwork,
    Sides,
    as_map,
    as_tokens,
    drop_rates,
    hidden_width,
    picked,
    start_scale,
)

STAGES = 4


@dataclass(frozen=True)
class HybridSettings(NetworkSettings):
    """What all networks of a hybrid space share."""

    image_size: Sides = (224, 224)
    channels: int = 3
    classes: int = 1000
    stem: int = 24  # channels of the stem, the same in every network: its batch statistics fit them all
    stem_stride: int = 2
    strides: tuple[int, ...] = (2, 2, 2, 2)  # into every stage
    attention: int = 2  # how many of the last stages attend
    head_dim: int = 16
    eps: float = 1e-5
    init: Init = "scaled"

    @property
    def stem_grid(self) -> tuple[int, int]:
        """Rows and columns inside the stem."""
        high, wide = (-(-side // self.stem_stride) for side in self.image_size)
        return high, wide

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of every stage."""
        (high, wide), grids = self.stem_grid, []
        for stride in self.strides:
            high, wide = -(-high // stride), -(-wide // stride)
            grids.append((high, wide))
        return tuple(grids)

    def heads(self, stage: int, embed: int) -> int:
        """Heads of a stage of that width, counted from 0; none where it does not attend."""
        return max(1, embed // self.head_dim) if stage >= STAGES - self.attention else 0


def stem_layers(shared: HybridSettings) -> tuple[nn.ModuleList, nn.ModuleList]:
    """The stem's two convolutions of a fixed width, and their batch norms."""
    convs = nn.ModuleList(
        nn.Conv2d(inputs, shared.stem, 3, stride, 1, bias=False)
        for inputs, stride in ((shared.channels, shared.stem_stride), (shared.stem, 1))
    )
    return convs, nn.ModuleList(nn.BatchNorm2d(shared.stem, shared.eps) for _ in convs)


def stem_features(convs: nn.ModuleList, norms: nn.ModuleList, x: Tensor) -> Tensor:
    """(B, C, H, W) through the stem."""
    # Every layer keeps this layout: a step takes 0.7 of the time on a CPU (benchmarks/win/layout.py).
    x = x.contiguous(memory_format=torch.channels_last)
    for conv, norm in zip(convs, norms, strict=True):
        x = F.gelu(norm(conv(x)))
    return x


class HybridStem(nn.Module):
    """Two 3x3 convolutions."""

    def __init__(self, shared: HybridSettings) -> None:
        super().__init__()
        self.convs, self.norms = stem_layers(shared)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, stem, rows, columns)."""
        return stem_features(self.convs, self.norms, x)


class HybridDown(nn.Module):
    """A 3x3 convolution into a stage."""

    def __init__(self, inputs: int, embed: int, stride: int, eps: float) -> None:
        super().__init__()
        self.proj, self.norm = nn.Conv2d(inputs, embed, 3, stride, 1, bias=False), nn.BatchNorm2d(embed, eps)

    def forward(self, x: Tensor) -> Tensor:
        """Maps of the stage before to maps of this one."""
        out: Tensor = self.norm(self.proj(x))
        return out


class HybridMlp(nn.Module):
    """The inverted residual: expand, a 3x3 depthwise convolution, project; a batch norm after each."""

    def __init__(self, embed: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.fc1, self.norm1 = nn.Conv2d(embed, hidden, 1, bias=False), nn.BatchNorm2d(hidden, eps)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden, bias=False)
        self.norm2 = nn.BatchNorm2d(hidden, eps)
        self.fc2, self.norm3 = nn.Conv2d(hidden, embed, 1, bias=False), nn.BatchNorm2d(embed, eps)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out as in."""
        x = F.gelu(self.norm1(self.fc1(x)))
        x = F.gelu(self.norm2(self.dwconv(x)))
        out: Tensor = self.norm3(self.fc2(x))
        return out


class HybridAttention(nn.Module):
    """Every position looks at every other; positions are known from the convolutions around it."""

    def __init__(self, embed: int, heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.heads, width = heads, heads * head_dim
        self.norm = nn.BatchNorm2d(embed, eps)
        self.qkv, self.proj = nn.Linear(embed, 3 * width), nn.Linear(width, embed)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, heads, n, head_dim) of a map."""
        qkv = self.qkv(as_tokens(self.norm(x))).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out as in."""
        mixed = F.scaled_dot_product_attention(*self.split(x)).transpose(1, 2).flatten(2)
        return as_map(self.proj(mixed), (x.shape[-2], x.shape[-1]))

    def weights(self, x: Tensor) -> Tensor:
        """The attention maps (B, 1, heads, n, n) for an input of the block."""
        q, k, _ = self.split(x)
        out: Tensor = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1).unsqueeze(1)
        return out


class HybridBlock(nn.Module):
    """An inverted residual, after attention where the stage attends."""

    def __init__(self, embed: int, hidden: int, heads: int, head_dim: int, drop: float, eps: float) -> None:
        super().__init__()
        self.attn = HybridAttention(embed, heads, head_dim, eps) if heads else None
        self.mlp, self.drop_path = HybridMlp(embed, hidden, eps), DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out as in."""
        if self.attn is not None:
            x = x + self.drop_path(self.attn(x))
        out: Tensor = x + self.drop_path(self.mlp(x))
        return out


class HybridStage(nn.Module):
    """Blocks of one width behind a convolution that enters it."""

    def __init__(
        self, shared: HybridSettings, number: int, before: int, embed: int, mlp: float, rates: Sequence[float]
    ) -> None:
        super().__init__()
        heads, hidden = shared.heads(number, embed), hidden_width(embed, mlp)
        self.downsample = HybridDown(before, embed, shared.strides[number], shared.eps)
        self.blocks = nn.ModuleList(
            HybridBlock(embed, hidden, heads, shared.head_dim, rate, shared.eps) for rate in rates
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps in, maps out."""
        x = self.downsample(x)
        for block in self.blocks:
            x = block(x)
        return x


class PlainHybrid(PlainNetwork):
    """A hybrid of one fixed architecture."""

    kind: ClassVar[str] = "hybrid"
    first_weight: ClassVar[str] = "patch_embed.convs.0.weight"
    shared: HybridSettings

    def __init__(
        self,
        shared: HybridSettings,
        embed: Sequence[int],
        depth: Sequence[int],
        mlp: float,
        drop_path: Sequence[float] | float = 0.0,
    ) -> None:
        super().__init__()
        self.shared = shared
        self.shape = {"embed": list(embed), "depth": list(depth), "mlp": mlp}
        rates = iter(drop_rates(drop_path, sum(depth)))
        self.patch_embed = HybridStem(shared)
        self.stages = nn.ModuleList(
            HybridStage(shared, s, before, width, mlp, [next(rates) for _ in range(blocks)])
            for s, (before, width, blocks) in enumerate(zip((shared.stem, *embed), embed, depth))
        )
        self.norm = nn.BatchNorm2d(embed[-1], shared.eps)
        self.head = self.classifier()
        start_hybrid(self, shared.init)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], drop_path: float = 0.0) -> PlainHybrid:
        """The network of these settings, freshly initialised."""
        shape = {k: settings[k] for k in ("embed", "depth", "mlp")}
        return cls(HybridSettings.of(settings, *shape), **shape, drop_path=drop_path)

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Per stage: its name, channels and pixels a side of one position."""
        rows, reduction = [], self.shared.stem_stride
        for i, (width, stride) in enumerate(zip(self.shape["embed"], self.shared.strides, strict=True)):
            reduction *= stride
            rows.append({"module": f"stages.{i}", "num_chs": width, "reduction": reduction})
        return rows

    def forward_features(self, x: Tensor) -> Tensor:
        """Normalised maps (B, channels, rows, columns) of the last stage."""
        x = self.patch_embed(x)
        for stage in self.stages:
            x = stage(x)
        out: Tensor = self.norm(x)
        return out

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """What leaves the chosen stages (all; the last n; by number), as maps (NCHW) or tokens (NLC).

        ``norm`` is for the last one, which alone has a norm of its own. Unless only these are wanted,
        :meth:`forward_features` comes first; arguments and order as in timm.
        """
        x, found = self.patch_embed(x), []
        for i, stage in enumerate(self.stages):
            x = stage(x)
            own = self.norm(x) if norm and i == STAGES - 1 else x
            found.append(own if output_fmt == "NCHW" else as_tokens(own))
        kept = [found[i] for i in picked(indices, STAGES)]
        return kept if intermediates_only else (self.norm(x), kept)

    def forward_head(self, maps: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of :meth:`forward_features`' maps, or what the head would see."""
        pooled = maps.mean((2, 3))
        out: Tensor = pooled if pre_logits else self.head(pooled)
        return out

    def suits(self, side: int) -> bool:
        """Any side: maps are rounded up."""
        return side >= 1

    def size_rule(self) -> str:
        """What the sides must suit, in words."""
        return "any side"


def start_hybrid(model: nn.Module, init: str = "scaled") -> None:
    """Truncated normal for linear weights and 1x1 convolutions, zero biases; other convolutions and norms as torch."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1)):
            nn.init.trunc_normal_(
                module.weight, std=0.02 if name == "head" else start_scale(module.weight.shape[1], init)
            )
            if module.bias is not None:
                nn.init.zeros_(module.bias)


# -- attention maps ---------------------------------------------------------------------------------------------------


def attention(model: nn.Module, images: Tensor) -> Iterator[Maps]:
    """Block by block, of the stages that attend."""
    assert isinstance(model, PlainHybrid)
    x = model.patch_embed(images)
    for number, stage in enumerate(model.stages, 1):
        assert isinstance(stage, HybridStage)
        x = stage.downsample(x)
        grid = model.shared.grids[number - 1]
        rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
        places = torch.stack([rows, columns], -1).view(1, -1, 2).to(x.device, torch.float32)
        for i, block in enumerate(stage.blocks, 1):
            assert isinstance(block, HybridBlock)
            if block.attn is not None:
                heads, weights = block.attn.heads, partial(block.attn.weights, x)
                yield Maps(f"stage {number}, block {i}", number, i, grid, heads, places, places, weights)
            x = block(x)


# -- checked settings -------------------------------------------------------------------------------------------------


def hybrid_settings(data: Mapping[str, Any]) -> HybridSettings:
    """Type and check the shared settings."""
    shared = HybridSettings.read("hybrid", data)
    if len(shared.strides) != STAGES or any(type(s) is not int or s not in (1, 2) for s in shared.strides):
        raise TailorError(f"The hybrid setting 'strides' must be four times 1 or 2, not {list(shared.strides)}.")
    if shared.stem_stride > 2:
        raise TailorError(f"The hybrid setting 'stem_stride' must be 1 or 2, not {shared.stem_stride}.")
    if shared.attention > STAGES:
        raise TailorError(f"A hybrid has four stages, so 'attention' must be 1 to 4, not {shared.attention}.")
    return shared
