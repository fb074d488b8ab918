"""Elastic layers: linear, norm, patch embedding, MLP, drop path, and layers with channels per head."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.elastic.slicing import Width, prefix


class Linear(nn.Module):
    """A linear layer with elastic input and output; ``out=None`` keeps all outputs (a classifier)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor, inputs: Width, out: Width | None) -> Tensor:
        """(..., inputs) to (..., out)."""
        weight = prefix(self.weight, out, inputs)
        # A zero weight neither reads an entry nor sends a gradient to it, so the layers before it get none either.
        return F.linear(x, weight if inputs.reads is None else weight * inputs.reads, prefix(self.bias, out))


class LayerNorm(nn.Module):
    """Normalises over the entries in use."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor, width: Width) -> Tensor:
        """Same shape out as in."""
        return F.layer_norm(x, (width.size,), prefix(self.weight, width), prefix(self.bias, width), self.eps)


class PatchEmbed(nn.Module):
    """Patches to tokens as one linear layer over unfolded pixels; the same weights as a strided convolution's."""

    def __init__(self, channels: int, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.weight = nn.Parameter(torch.empty(width, channels, patch, patch))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor, width: Width) -> Tensor:
        """(B, C, H, W) to (B, n, width)."""
        p = self.patch
        x = x.unflatten(-2, (-1, p)).unflatten(-1, (-1, p)).movedim((-4, -2), (-5, -4))  # B rows columns C p p
        x = x.flatten(-3).flatten(-3, -2)
        return F.linear(x, prefix(self.weight, width).flatten(1), prefix(self.bias, width))


class Mlp(nn.Module):
    """Two linear layers around a GELU with an elastic hidden width."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = Linear(width, hidden), Linear(hidden, width)

    def forward(self, x: Tensor, width: Width, hidden: Width) -> Tensor:
        """Same shape out as in."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x, width, hidden)), hidden, width)
        return out


def drop_path(x: Tensor, rate: float, training: bool) -> Tensor:
    """Drop a residual branch per sample and rescale the others."""
    if not training or rate == 0:
        return x
    keep = 1 - rate
    return x * x.new_empty(*x.shape[:-2], 1, 1).bernoulli_(keep) / keep


# -- channels per head ------------------------------------------------------------------------------------------------
# Layers whose channels lie on two axes, (heads, width of a head), each cut by itself.

Axes = tuple[Width | None, ...]


class PlainAxis(NamedTuple):
    """Axes of a parameter that are one axis in the plain network, and the stage whose channels they are, if any."""

    axes: Axes
    stage: int | None = None


class Filters(nn.Module):
    """One number or filter per channel: a norm, a convolution."""

    def __init__(self, out: tuple[int, int], *kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*out, *kernel))
        self.bias = nn.Parameter(torch.empty(*out))

    def cut(self, out: Axes) -> tuple[Tensor, Tensor]:
        """Weight (channels, *kernel) and bias (channels) in use."""
        return prefix(self.weight, *out).flatten(0, 1), prefix(self.bias, *out).flatten()


class Dense(nn.Module):
    """A linear layer whose outputs and inputs each span one or more axes."""

    def __init__(self, out: tuple[int, ...], inputs: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*out, *inputs))
        self.bias = nn.Parameter(torch.empty(*out))

    def forward(self, x: Tensor, out: Axes, inputs: Axes) -> Tensor:
        """(..., inputs) to (..., out)."""
        bias = prefix(self.bias, *out)
        weight = prefix(self.weight, *out, *inputs).flatten(bias.dim()).flatten(0, -2)
        return F.linear(x, weight, bias.flatten())
