"""Elastic linear, norm, patch embedding, MLP and drop path."""

from __future__ import annotations

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
        # A zero weight neither reads an entry nor sends a gradient to it, so nothing before it learns from it either.
        return F.linear(x, weight if inputs.reads is None else weight * inputs.reads, prefix(self.bias, out))


class LayerNorm(nn.Module):
    """Normalises over the entries in use only."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor, width: Width) -> Tensor:
        """Same shape out as in."""
        weight, bias = prefix(self.weight, width), prefix(self.bias, width)
        return F.layer_norm(x, (width.size,), weight, bias, self.eps)


class PatchEmbed(nn.Module):
    """Patches to tokens as one linear layer over unfolded pixels; the same weights as a strided convolution's."""

    def __init__(self, channels: int, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.weight = nn.Parameter(torch.empty(width, channels, patch, patch))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor, width: Width) -> Tensor:
        """(..., C, H, W) to (..., n, width)."""
        p = self.patch
        x = x.unflatten(-2, (-1, p)).unflatten(-1, (-1, p)).movedim((-4, -2), (-5, -4))  # ... rows columns C p p
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
    """Drop a residual branch per sample and rescale the rest."""
    if not training or rate == 0:
        return x
    keep = 1 - rate
    return x * x.new_empty(*x.shape[:-2], 1, 1).bernoulli_(keep) / keep
