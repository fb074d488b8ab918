"""Cutting a map into (shifted) windows, and attention within them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

Sides = tuple[int, int]


def clipped(sides: Sides, window: int) -> Sides:
    """A window is never larger than the map."""
    return min(window, sides[0]), min(window, sides[1])


@dataclass(frozen=True)
class Cut:
    """How a map is cut: window and shift per axis, and the map padded (right and below) to whole windows."""

    sides: Sides
    window: Sides
    shift: Sides

    @classmethod
    def of(cls, sides: Sides, window: int, odd: bool) -> Cut:
        """Odd blocks are shifted by half a window, unless one window covers the axis."""
        high, wide = clipped(sides, window)
        shift = (high // 2 if odd and high < sides[0] else 0, wide // 2 if odd and wide < sides[1] else 0)
        return cls(sides, (high, wide), shift)

    @property
    def padded(self) -> Sides:
        """Sides that are whole windows."""
        (high, wide), (down, across) = self.sides, self.window
        return -(-high // down) * down, -(-wide // across) * across

    def split(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, windows, positions, C)."""
        (high, wide), (down, across) = self.padded, self.window
        if self.padded != self.sides:
            x = F.pad(x, (0, 0, 0, wide - self.sides[1], 0, high - self.sides[0]))
        if any(self.shift):
            x = torch.roll(x, (-self.shift[0], -self.shift[1]), (1, 2))
        x = x.reshape(x.shape[0], high // down, down, wide // across, across, x.shape[-1])
        return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def join(self, x: Tensor) -> Tensor:
        """Back to (B, H, W, C)."""
        (high, wide), (down, across) = self.padded, self.window
        x = x.reshape(x.shape[0], high // down, wide // across, down, across, x.shape[-1])
        x = x.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        if any(self.shift):
            x = torch.roll(x, self.shift, (1, 2))
        return x[:, : self.sides[0], : self.sides[1]] if self.padded != self.sides else x

    def places(self) -> Tensor:
        """(windows, positions, 2): row and column of every position; beyond the sides it is padding."""
        rows, columns = torch.meshgrid(*(torch.arange(n, device="cpu") for n in self.padded), indexing="ij")
        return replace(self, sides=self.padded).split(torch.stack([rows, columns], -1)[None])[0]


@cache
def pair_mask(cut: Cut) -> Tensor | None:
    """(windows, positions, positions): minus infinity between regions that do not touch; None where all do."""
    with torch.inference_mode(False):  # remembered, so it must serve training too
        places = cut.places()
        sides, first = torch.tensor(cut.sides, device="cpu"), torch.tensor(cut.shift, device="cpu")
        # What the roll brought in from the other edge, and padding, are regions of their own.
        region = torch.cat([places < first, (places >= sides).any(-1, keepdim=True)], -1)
        apart = (region[:, :, None] != region[:, None]).any(-1)
        return torch.zeros(apart.shape, device="cpu").masked_fill(apart, float("-inf")) if apart.any() else None


@cache
def pair_offsets(window: Sides) -> Tensor:
    """(positions, positions, 2): row and column offset of query and key, counted from 0."""
    with torch.inference_mode(False):
        rows, columns = torch.meshgrid(*(torch.arange(n, device="cpu") for n in window), indexing="ij")
        places = torch.stack([rows, columns], -1).view(-1, 2)
        return places[:, None] - places[None] + torch.tensor(window, device="cpu") - 1


def window_bias(bias: Tensor | None, mask: Tensor | None, windows: int) -> Tensor | None:
    """What is added to the logits, (1, windows * heads, N, N), from a bias (heads, N, N) and the mask of the cut."""
    if bias is None:
        return None
    both = bias[None].expand(windows, -1, -1, -1) if mask is None else bias[None] + mask[:, None].to(bias.dtype)
    return both.flatten(0, 1)[None]


def window_heads(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B, windows, N, 3 * inner) to three times (B, windows * heads, N, head_dim)."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(3, 0, 1, 4, 2, 5).flatten(2, 3).unbind(0)
    return q, k, v


def window_attend(qkv: Tensor, heads: int, bias: Tensor | None) -> Tensor:
    """(B, windows, N, 3 * inner) to (B, windows, N, inner)."""
    windows = qkv.shape[1]
    q, k, v = window_heads(qkv, heads)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=None if bias is None else bias.to(q.dtype))
    out = out.unflatten(1, (windows, heads)).transpose(2, 3)
    # An explicit copy: whether one is needed depends on the kernel, and an exporter would freeze this machine's answer.
    mixed: Tensor = out.clone(memory_format=torch.contiguous_format).flatten(3)
    return mixed
