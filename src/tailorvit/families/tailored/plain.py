"""Plain ViT as timm, open_clip and transformers have them, with its own number of heads and hidden units per block.

What pretrained networks differ in is a setting: class token, registers, positions, a norm before the blocks, norms of
queries and keys, gated MLPs, activations. Names are timm's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    State,
    drop_rates,
    picked,
    resized_map,
    start_scale,
)

Act = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]


@dataclass(frozen=True)
class TailoredSettings(NetworkSettings):
    """What all networks of a tailored space share."""

    image_size: Sides = (224, 224)
    patch: int = 16
    channels: int = 3
    classes: int = 1000
    head_dim: int = 64
    class_token: bool = True
    registers: Count = 0
    positions: bool = True  # absolute ones, for all tokens but the registers
    pool: Literal["gap", "cls"] = "cls"
    pre_norm: bool = False  # before the first block, as in CLIP
    qkv_bias: bool = True
    qk_norm: bool = False  # layer norms of queries and keys, head by head
    gated: bool = False  # the MLP multiplies its activation by a second branch, as in SwiGLU
    act: Act = "gelu"
    norm: Literal["layer", "rms"] = "layer"
    width: Count = 0  # rms: channels of the uncut network, over which squares are averaged; 0: the network's own
    order: tuple[int, ...] = ()  # of a supernet's blocks, the most important first; nothing to a plain network
    eps: float = 1e-6
    init: Init = "scaled"

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.image_size[0] // self.patch, self.image_size[1] // self.patch

    @property
    def lead(self) -> int:
        """Tokens before the patches."""
        return int(self.class_token) + self.registers

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.lead + self.grid[0] * self.grid[1]


def activation(x: Tensor, act: Act) -> Tensor:
    """By name; quick_gelu is CLIP's as OpenAI trained it."""
    if act == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    if act == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if act == "gelu_tanh" else "none")


def rms(x: Tensor, weight: Tensor, width: int, eps: float) -> Tensor:
    """Scaled by the root of the squares, averaged over ``width`` channels, also where fewer are left."""
    whole = x.dtype == torch.float32
    wide = x if whole else x.float()  # casts that change nothing make torch's tracing exporter write invalid files
    squares = wide.square().sum(-1, keepdim=True) / (width or x.shape[-1])
    scaled = wide * torch.rsqrt(squares + eps)
    return (scaled if whole else scaled.to(x.dtype)) * weight


class RmsNorm(nn.Module):
    """A norm without a mean and a bias."""

    def __init__(self, embed: int, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.width, self.eps = nn.Parameter(torch.ones(embed)), width, eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out as in."""
        return rms(x, self.weight, self.width, self.eps)


def norm_layer(shared: TailoredSettings, embed: int) -> nn.Module:
    """The norm of a space's networks."""
    return nn.LayerNorm(embed, shared.eps) if shared.norm == "layer" else RmsNorm(embed, shared.width, shared.eps)


class PatchEmbed(nn.Module):
    """Non-overlapping patches to tokens."""

    def __init__(self, shared: TailoredSettings, embed: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(shared.channels, embed, shared.patch, shared.patch)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, n, embed)."""
        out: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return out


class Attention(nn.Module):
    """Multi-head attention whose inner width is heads * head_dim, free of the embedding width."""

    def __init__(self, shared: TailoredSettings, embed: int, heads: int) -> None:
        super().__init__()
        self.heads, width = heads, heads * shared.head_dim
        self.qkv = nn.Linear(embed, 3 * width, bias=shared.qkv_bias)
        self.q_norm, self.k_norm = (
            nn.LayerNorm(shared.head_dim, shared.eps) if shared.qk_norm else nn.Identity() for _ in "qk"
        )
        self.proj = nn.Linear(width, embed)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, heads, N, head_dim)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.q_norm(q), self.k_norm(k), v

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed) to (B, N, embed)."""
        out: Tensor = self.proj(self.mixed(x))
        return out

    def mixed(self, x: Tensor) -> Tensor:
        """Values as the heads mix them (B, N, heads * head_dim), before they are written to the stream."""
        return F.scaled_dot_product_attention(*self.split(x)).transpose(1, 2).flatten(2)

    def weights(self, x: Tensor) -> Tensor:
        """The attention maps (B, heads, N, N) for an input of the block."""
        q, k, _ = self.split(x)
        out: Tensor = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return out


class Mlp(nn.Module):
    """Two linear layers around an activation, or three where it is gated."""

    def __init__(self, shared: TailoredSettings, embed: int, hidden: int) -> None:
        super().__init__()
        self.act = shared.act
        self.fc1, self.fc2 = nn.Linear(embed, hidden), nn.Linear(hidden, embed)
        self.gate = nn.Linear(embed, hidden) if shared.gated else None

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out as in."""
        out: Tensor = self.fc2(self.inner(x))
        return out

    def inner(self, x: Tensor) -> Tensor:
        """Hidden units (B, N, hidden)."""
        inner = activation(self.fc1(x), self.act)
        return inner if self.gate is None else inner * self.gate(x)


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, shared: TailoredSettings, embed: int, heads: int, hidden: int, drop: float) -> None:
        super().__init__()
        self.norm1, self.attn = norm_layer(shared, embed), Attention(shared, embed, heads)
        self.norm2, self.mlp = norm_layer(shared, embed), Mlp(shared, embed, hidden)
        self.drop_path = DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed) to (B, N, embed)."""
        x = x + self.drop_path(self.attn(self.norm1(x)))
        out: Tensor = x + self.drop_path(self.mlp(self.norm2(x)))
        return out


class PlainTailored(PlainNetwork):
    """A tailored ViT of one fixed architecture."""

    POOLS: ClassVar[Mapping[str, str | None]] = {"avg": "gap", "token": "cls"}
    kind: ClassVar[str] = "tailored"
    shared: TailoredSettings

    def __init__(
        self,
        shared: TailoredSettings,
        embed: int,
        heads: Sequence[int],
        hidden: Sequence[int],
        drop_path: Sequence[float] | float = 0.0,
    ) -> None:
        super().__init__()
        self.shared, depth = shared, len(heads)
        self.shape = {"embed": embed, "heads": list(heads), "hidden": list(hidden)}
        self.patch_embed = PatchEmbed(shared, embed)
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed)) if shared.class_token else None
        self.reg_token = nn.Parameter(torch.empty(1, shared.registers, embed)) if shared.registers else None
        rows = shared.tokens - shared.registers
        self.pos_embed = nn.Parameter(torch.empty(1, rows, embed)) if shared.positions else None
        self.norm_pre = norm_layer(shared, embed) if shared.pre_norm else nn.Identity()
        self.blocks = nn.ModuleList(
            Block(shared, embed, h, m, rate)
            for h, m, rate in zip(heads, hidden, drop_rates(drop_path, depth), strict=True)
        )
        self.norm = norm_layer(shared, embed)
        self.head = self.classifier()
        start(self, shared.init)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], drop_path: float = 0.0) -> PlainTailored:
        """The network of these settings, freshly initialised."""
        shape = {k: settings[k] for k in ("embed", "heads", "hidden")}
        return cls(TailoredSettings.of(settings, *shape), **shape, drop_path=drop_path)

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Per block: its name, channels and pixels a side of one position."""
        row = {"num_chs": self.shape["embed"], "reduction": self.shared.patch}
        return [{"module": f"blocks.{i}", **row} for i in range(len(self.blocks))]

    def tokens(self, x: Tensor) -> Tensor:
        """What the first block takes: class token, registers and patches (B, N, embed), with their positions."""
        x = self.patch_embed(x)
        x = x if self.cls_token is None else torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1)
        x = x if self.pos_embed is None else x + self.pos_embed
        if self.reg_token is not None:
            at = int(self.shared.class_token)
            x = torch.cat([x[:, :at], self.reg_token.expand(x.shape[0], -1, -1), x[:, at:]], 1)
        out: Tensor = self.norm_pre(x)
        return out

    def forward_features(self, x: Tensor) -> Tensor:
        """Normalised tokens (B, N, embed), class token and registers first."""
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
                patches = (self.norm(x) if norm else x)[:, self.shared.lead :]
                maps = output_fmt == "NCHW"
                found[i] = patches.transpose(1, 2).unflatten(-1, self.shared.grid) if maps else patches
        kept = [found[i] for i in wanted]
        return kept if intermediates_only else (self.norm(x), kept)

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of :meth:`forward_features`' tokens, or what the head would see."""
        pooled = tokens[:, self.shared.lead :].mean(1) if self.shared.pool == "gap" else tokens[:, 0]
        out: Tensor = pooled if pre_logits else self.head(pooled)
        return out

    def suits(self, side: int) -> bool:
        """Whole patches."""
        return side >= self.shared.patch and side % self.shared.patch == 0

    def size_rule(self) -> str:
        """What the sides must suit, in words."""
        return f"patches of {self.shared.patch} px"

    def carry(self, new: PlainTailored, state: State) -> None:
        """Interpolate positions."""
        if self.pos_embed is not None:
            state["pos_embed"] = resized_positions(state["pos_embed"], self.shared, new.shared.grid)


def resized_positions(positions: Tensor, shared: TailoredSettings, grid: Sides) -> Tensor:
    """(1, rows, embed) for another grid; the class token's row stays."""
    first = int(shared.class_token)
    token, patches = positions[0, :first], positions[0, first:]
    moved = resized_map(patches.T.unflatten(1, shared.grid), grid)
    return torch.cat([token, moved.flatten(1).T])[None]


def start(model: nn.Module, init: str = "scaled") -> None:
    """Truncated normal: linear weights by their inputs, tokens and positions at 0.02; zero biases, norms at one."""
    for name, parameter in model.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        if "patch_embed" in name:
            continue
        if leaf == "bias":
            nn.init.zeros_(parameter)
        elif "norm" in name:
            nn.init.ones_(parameter)
        else:
            linear = leaf == "weight" and "head" not in name
            nn.init.trunc_normal_(parameter, std=start_scale(parameter.shape[-1], init) if linear else 0.02)


# -- attention maps ---------------------------------------------------------------------------------------------------


def attention(model: nn.Module, images: Tensor) -> Iterator[Maps]:
    """Block by block; class token and registers left out, the rest of each row brought back to 1."""
    assert isinstance(model, PlainTailored)
    high, wide = model.shared.grid
    rows, columns = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
    places = torch.stack([rows, columns], -1).view(1, -1, 2).to(images.device, torch.float32)
    x = model.tokens(images)
    for i, block in enumerate(model.blocks, 1):
        assert isinstance(block, Block)
        weights = partial(_between_patches, block.attn, block.norm1(x), model.shared.lead)
        yield Maps(f"block {i}", None, i, (high, wide), block.attn.heads, places, places, weights)
        x = block(x)


def _between_patches(attn: Attention, x: Tensor, lead: int) -> Tensor:
    weights = attn.weights(x)[:, :, lead:, lead:]
    total = weights.sum(-1, keepdim=True)
    return (weights / total.clamp_min(torch.finfo(total.dtype).tiny)).unsqueeze(1)


# -- checked settings -------------------------------------------------------------------------------------------------


def tailored_settings(data: Mapping[str, Any]) -> TailoredSettings:
    """Type and check the shared settings."""
    shared = TailoredSettings.read("tailored", data)
    if any(side < shared.patch or side % shared.patch for side in shared.image_size):
        raise TailorError(
            f"A tailored network needs image sides that are multiples of the patch {shared.patch}, "
            f"not {list(shared.image_size)}."
        )
    if shared.pool == "cls" and not shared.class_token:
        raise TailorError("A tailored network without a class token pools by 'gap', not by 'cls'.")
    if sorted(shared.order) != list(range(len(shared.order))):
        raise TailorError(f"The tailored setting 'order' must name every block once, not {list(shared.order)}.")
    return shared
