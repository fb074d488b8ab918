"""A frozen ViT tower that gives its blocks' outputs; names as in timm, whose weights load as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class TowerSettings:
    """The shape of a tower: CLIP's image towers, DeiT, DINOv2 and their like."""

    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    patch: int = 16
    embed: int = 768
    depth: int = 12  # blocks
    taps: int = 12  # of them, how many of the last give their output
    heads: int = 12
    hidden: int = 3072  # width inside the MLP
    act: Literal["gelu", "gelu_tanh", "quick_gelu"] = "gelu"
    pre_norm: bool = False  # CLIP's norm before the first block
    class_token: bool = True
    registers: int = 0
    prefix_positions: bool = True  # class token and registers have positions of their own
    layer_scale: bool = False
    qkv_bias: bool = True
    patch_bias: bool = True
    eps: float = 1e-6

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.image_size[0] // self.patch, self.image_size[1] // self.patch

    @property
    def prefix(self) -> int:
        """Tokens before the patches."""
        return int(self.class_token) + self.registers

    @property
    def tokens(self) -> int:
        """All tokens of a tap."""
        return self.prefix + self.grid[0] * self.grid[1]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all matrix products and the convolution for one image."""
        n, d = self.tokens, self.embed
        block = n * d * (4 * d + 2 * self.hidden) + 2 * n * n * d
        return (n - self.prefix) * self.channels * self.patch**2 * d + self.depth * block

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


class TrunkAttention(nn.Module):
    """Multi-head self-attention over all tokens."""

    def __init__(self, design: TowerSettings) -> None:
        super().__init__()
        self.heads = design.heads
        self.qkv = nn.Linear(design.embed, 3 * design.embed, bias=design.qkv_bias)
        self.proj = nn.Linear(design.embed, design.embed)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed) to (B, N, embed)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        out: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return out


class TrunkMlp(nn.Module):
    """Two linear layers around an activation."""

    def __init__(self, design: TowerSettings) -> None:
        super().__init__()
        self.act = design.act
        self.fc1, self.fc2 = nn.Linear(design.embed, design.hidden), nn.Linear(design.hidden, design.embed)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out as in."""
        x = self.fc1(x)
        if self.act == "quick_gelu":  # CLIP as OpenAI trained it
            x = x * torch.sigmoid(1.702 * x)
        else:
            x = F.gelu(x, approximate="tanh" if self.act == "gelu_tanh" else "none")
        out: Tensor = self.fc2(x)
        return out


class TrunkScale(nn.Module):
    """A learnt factor per channel behind a branch."""

    def __init__(self, embed: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(embed))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out as in."""
        return x * self.gamma


class TrunkBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, design: TowerSettings) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(design.embed, design.eps)
        self.attn = TrunkAttention(design)
        self.ls1 = TrunkScale(design.embed) if design.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(design.embed, design.eps)
        self.mlp = TrunkMlp(design)
        self.ls2 = TrunkScale(design.embed) if design.layer_scale else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, embed) to (B, N, embed)."""
        x = x + self.ls1(self.attn(self.norm1(x)))
        out: Tensor = x + self.ls2(self.mlp(self.norm2(x)))
        return out


class TrunkPatches(nn.Module):
    """Non-overlapping patches to tokens."""

    def __init__(self, design: TowerSettings) -> None:
        super().__init__()
        self.proj = nn.Conv2d(design.channels, design.embed, design.patch, design.patch, bias=design.patch_bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, n, embed)."""
        out: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return out


class PlainTrunk(nn.Module):
    """Images (B, C, H, W) to taps (B, taps, tokens, embed): what leaves the last blocks, without a final norm.

    Its parameters never train; what trains is a decoder on the taps.
    """

    def __init__(self, design: TowerSettings) -> None:
        super().__init__()
        self.design = design
        rows = design.tokens if design.prefix_positions else design.tokens - design.prefix
        self.patch_embed = TrunkPatches(design)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, design.embed)) if design.class_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, design.registers, design.embed)) if design.registers else None
        self.pos_embed = nn.Parameter(torch.zeros(1, rows, design.embed))
        self.norm_pre = nn.LayerNorm(design.embed, design.eps) if design.pre_norm else nn.Identity()
        self.blocks = nn.ModuleList(TrunkBlock(design) for _ in range(design.depth))
        self.requires_grad_(False)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> PlainTrunk:
        """The tower of these settings; its weights are to be loaded."""
        return cls(TowerSettings(**{**settings, "image_size": tuple(settings["image_size"])}))

    @property
    def settings(self) -> dict[str, Any]:
        """All of the tower but its weights, as plain data; :meth:`from_settings` reads it."""
        return self.design.to_dict()

    def tokens(self, x: Tensor) -> Tensor:
        """What the first block takes: class token, registers and patches (B, N, embed), with their positions."""
        x = self.patch_embed(x)
        own = self.design.prefix_positions
        if not own:
            x = x + self.pos_embed
        before = [t.expand(x.shape[0], -1, -1) for t in (self.cls_token, self.reg_token) if t is not None]
        x = torch.cat([*before, x], 1)
        out: Tensor = self.norm_pre(x + self.pos_embed if own else x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Taps (B, taps, N, embed), the deepest last."""
        x, found = self.tokens(x), []
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i >= self.design.depth - self.design.taps:
                found.append(x)
        return torch.stack(found, 1)
