"""Plain vision transformer with per-block heads and MLP ratios; names as in timm, so DeiT weights load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from tailorvit.errors import TailorError
from tailorvit.families.base import Maps
from tailorvit.families.network import (
    DropPath,
    Init,
    NetworkSettings,
    PlainNetwork,
    Sides,
    State,
    drop_rates,
    hidden_width,
    picked,
    resized_map,
    start_scale,
)
from tailorvit.families.vit.relative import (
    Execution,
    Grid,
    Places,
    Tables,
    attend_packed,
    attention_weights,
    table_rows,
)


@dataclass(frozen=True)
class ViTSettings(NetworkSettings):
    """What all networks of a ViT space share."""

    image_size: Sides = (224, 224)
    patch: int = 16
    channels: int = 3
    classes: int = 1000
    head_dim: int = 64
    relative: bool = True  # AutoFormer's 2-D relative position on keys and values
    reach: int = 14  # largest offset the tables tell apart
    absolute: bool = True
    pool: Literal["gap", "cls"] = "gap"
    qkv_bias: bool = True
    eps: float = 1e-6
    qkv: Literal["aligned", "official"] = "aligned"  # a supernet's cut of its Q-K-V bias; nothing to a plain network
    init: Init = "scaled"

    @property
    def grid(self) -> Grid:
        """Patches down and across."""
        return self.image_size[0] // self.patch, self.image_size[1] // self.patch

    @property
    def tokens(self) -> int:
        """Patches plus the class token."""
        return self.grid[0] * self.grid[1] + 1


class PatchEmbed(nn.Module):
    """Non-overlapping patches to tokens."""

    def __init__(self, shared: ViTSettings, embed: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(shared.channels, embed, shared.patch, shared.patch)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, n, embed)."""
        out: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return out


class Attention(nn.Module):
    """Multi-head attention whose inner width is heads * head_dim, free of the embedding width."""

    def __init__(self, shared: ViTSettings, places: Places, embed: int, heads: int, execution: Execution) -> None:
        super().__init__()
        self.heads, self.places, self.execution = heads, places, execution
        self.scale = shared.head_dim**-0.5
        width = heads * shared.head_dim
        self.qkv = nn.Linear(embed, 3 * width, bias=shared.qkv_bias)
        self.proj = nn.Linear(width, embed)
        self.relative = shared.relative
        if shared.relative:
            for name in Tables._fields:
                rows = table_rows(shared.reach)
                self.register_parameter(f"rel_{name}", nn.Parameter(torch.empty(rows, shared.head_dim)))

    def _tables(self) -> Tables | None:
        return Tables(*(getattr(self, f"rel_{n}") for n in Tables._fields)) if self.relative else None

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed) to (B, N, embed)."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        projected: Tensor = self.proj(attend_packed(qkv, self._tables(), self.places, self.scale, self.execution))
        return projected

    def weights(self, x: Tensor) -> Tensor:
        """The attention maps (B, heads, N, N) for an input of the block."""
        q, k, _ = self._split(x)
        return attention_weights(q, k, self._tables(), self.places, self.scale)


class Mlp(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, embed: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(embed, hidden), nn.GELU(), nn.Linear(hidden, embed)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out as in."""
        out: Tensor = self.fc2(self.inner(x))
        return out

    def inner(self, x: Tensor) -> Tensor:
        """Hidden units."""
        out: Tensor = self.act(self.fc1(x))
        return out


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(
        self,
        shared: ViTSettings,
        places: Places,
        embed: int,
        heads: int,
        ratio: float,
        drop: float,
        execution: Execution,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed, shared.eps)
        self.attn = Attention(shared, places, embed, heads, execution)
        self.norm2 = nn.LayerNorm(embed, shared.eps)
        self.mlp = Mlp(embed, hidden_width(embed, ratio))
        self.drop_path = DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed) to (B, N, embed)."""
        x = x + self.drop_path(self.attn(self.norm1(x)))
        out: Tensor = x + self.drop_path(self.mlp(self.norm2(x)))
        return out


class PlainViT(PlainNetwork):
    """A ViT of one fixed architecture."""

    POOLS: ClassVar[Mapping[str, str | None]] = {"avg": "gap", "token": "cls"}
    kind: ClassVar[str] = "vit"
    shared: ViTSettings

    def __init__(
        self,
        shared: ViTSettings,
        embed: int,
        heads: Sequence[int],
        mlp: Sequence[float],
        drop_path: Sequence[float] | float = 0.0,
        execution: Execution = "auto",
    ) -> None:
        super().__init__()
        self.shared, depth = shared, len(heads)
        self.shape = {"embed": embed, "heads": list(heads), "mlp": list(mlp)}
        places = Places(shared.grid, shared.reach, shared.head_dim)
        self.patch_embed = PatchEmbed(shared, embed)
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed))
        self.pos_embed = nn.Parameter(torch.empty(1, shared.tokens, embed)) if shared.absolute else None
        self.blocks = nn.ModuleList(
            Block(shared, places, embed, h, m, r, execution)
            for h, m, r in zip(heads, mlp, drop_rates(drop_path, depth), strict=True)
        )
        self.norm = nn.LayerNorm(embed, shared.eps)
        self.head = self.classifier()
        initialise(self, shared.init)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], drop_path: float = 0.0) -> PlainViT:
        """The network of these settings, freshly initialised."""
        shared = ViTSettings.of(settings, "embed", "heads", "mlp")
        return cls(shared, settings["embed"], settings["heads"], settings["mlp"], drop_path)

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Per block: its name, channels and pixels a side of one position."""
        row = {"num_chs": self.shape["embed"], "reduction": self.shared.patch}
        return [{"module": f"blocks.{i}", **row} for i in range(len(self.blocks))]

    def tokens(self, x: Tensor) -> Tensor:
        """What the first block takes: the class token and patches (B, N, embed), with their positions."""
        x = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)
        return x if self.pos_embed is None else x + self.pos_embed

    def forward_features(self, x: Tensor) -> Tensor:
        """Normalised tokens (B, N, embed), class token first."""
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
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
        """What leaves the chosen blocks (all; the last n; by number), as maps (NCHW) or patch tokens (NLC).

        Unless only these are wanted, :meth:`forward_features` comes first; arguments and order as in timm.
        """
        wanted = picked(indices, len(self.blocks))
        x, found = self.tokens(x), {}
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i in wanted:
                patches = (self.norm(x) if norm else x)[:, 1:]
                maps = output_fmt == "NCHW"
                found[i] = patches.transpose(1, 2).unflatten(-1, self.shared.grid) if maps else patches
        kept = [found[i] for i in wanted]
        return kept if intermediates_only else (self.norm(x), kept)

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of :meth:`forward_features`' tokens, or what the head would see."""
        pooled = tokens[:, 1:].mean(1) if self.shared.pool == "gap" else tokens[:, 0]
        out: Tensor = pooled if pre_logits else self.head(pooled)
        return out

    def suits(self, side: int) -> bool:
        """Whole patches."""
        return side >= self.shared.patch and side % self.shared.patch == 0

    def size_rule(self) -> str:
        """What the sides must suit, in words."""
        return f"patches of {self.shared.patch} px"

    def carry(self, new: PlainViT, state: State) -> None:
        """Interpolate positions; fill relative tables beyond the offsets the old grid could train."""
        if self.pos_embed is not None:
            token, grid = state["pos_embed"][0].split([1, len(state["pos_embed"][0]) - 1])
            patches = resized_map(grid.T.unflatten(1, self.shared.grid), new.shared.grid)
            state["pos_embed"] = torch.cat([token, patches.flatten(1).T])[None]
        if self.shared.relative:
            sides = dict(zip("vh", zip(self.shared.grid, new.shared.grid, strict=True), strict=True))
            for i in range(len(self.blocks)):
                for field in Tables._fields:
                    name = f"blocks.{i}.attn.rel_{field}"
                    state[name] = filled_table(state[name], self.shared.reach, *sides[field[-1]])


def filled_table(table: Tensor, reach: int, before: int, after: int) -> Tensor:
    """A relative table on a longer axis: offsets the old one never had take the outermost row it could train.

    Row 0 is the class token's; offset d has row d + reach + 1. With 14 patches a side only 13 of a reach of 14 are
    trained, and the 24 of a 384 px image would use the untrained rows.
    """
    trained, middle = min(reach, before - 1), reach + 1
    if after <= before or trained == reach:
        return table
    filled = table.clone()
    filled[1 : middle - trained] = table[middle - trained]
    filled[middle + trained + 1 :] = table[middle + trained]
    return filled


def initialise(model: nn.Module, init: str = "scaled") -> None:
    """Truncated normal: linear weights by their inputs (:func:`start_scale`), tables, tokens and positions at 0.02.

    Zero biases; convolutions as torch does.
    """
    for name, parameter in model.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        if "patch_embed" in name:
            continue
        if leaf.endswith("bias"):
            nn.init.zeros_(parameter)
        elif "norm" in name:
            nn.init.ones_(parameter)
        else:
            linear = leaf in ("weight", "qkv_weight") and "head" not in name
            nn.init.trunc_normal_(parameter, std=start_scale(parameter.shape[-1], init) if linear else 0.02)


# -- attention maps ---------------------------------------------------------------------------------------------------


def attention(model: nn.Module, images: Tensor) -> Iterator[Maps]:
    """Block by block; the weights are those of the formula, which every execution of relative position shares."""
    assert isinstance(model, PlainViT)
    high, wide = model.shared.grid
    rows, columns = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
    places = torch.stack([rows, columns], -1).view(1, -1, 2).to(images.device, torch.float32)
    x = model.tokens(images)
    for i, block in enumerate(model.blocks, 1):
        assert isinstance(block, Block)
        weights = partial(_between_patches, block.attn, block.norm1(x))
        yield Maps(f"block {i}", None, i, (high, wide), block.attn.heads, places, places, weights)
        x = block(x)


def _between_patches(attn: Attention, x: Tensor) -> Tensor:
    """(B, 1, heads, n, n): the class token's row and column left out, the rest of each row brought back to 1."""
    weights = attn.weights(x)[:, :, 1:, 1:]
    total = weights.sum(-1, keepdim=True)
    return (weights / total.clamp_min(torch.finfo(total.dtype).tiny)).unsqueeze(1)


# -- checked settings -------------------------------------------------------------------------------------------------


def vit_settings(data: Mapping[str, Any]) -> ViTSettings:
    """Type and check the shared settings."""
    shared = ViTSettings.read("vit", data)
    if any(side < shared.patch or side % shared.patch for side in shared.image_size):
        raise TailorError(
            f"A vit needs image sides that are multiples of the patch {shared.patch}, not {list(shared.image_size)}."
        )
    return shared
