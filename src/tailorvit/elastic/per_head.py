"""Elastic layers whose channels lie on two axes, (heads, width of a head), each cut by itself."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.elastic.slicing import Width, prefix

Axes = tuple[Width | None, ...]


class Group(NamedTuple):
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
    """A linear layer between groups of axes."""

    def __init__(self, out: tuple[int, ...], inputs: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*out, *inputs))
        self.bias = nn.Parameter(torch.empty(*out))

    def forward(self, x: Tensor, out: Axes, inputs: Axes) -> Tensor:
        """(..., inputs) to (..., out)."""
        bias = prefix(self.bias, *out)
        weight = prefix(self.weight, *out, *inputs).flatten(bias.dim()).flatten(0, -2)
        return F.linear(x, weight, bias.flatten())
