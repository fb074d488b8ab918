"""Weights shaped so that every slice is a prefix: linear layers, convolutions and norms of any number of axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.elastic.slicing import Width, prefix

Plan = Mapping[str, Width]  # the widths of one call, by name
Axis = int | tuple[int, str]  # an axis used whole, or one whose prefix the plan names
MOMENTUM = 0.1  # of batch statistics, as in torch


class Weights(nn.Module):
    """A layer's weight and bias (or none); the axes say which width cuts them."""

    bias: nn.Parameter | None

    def __init__(self, weight: Sequence[Axis], bias: Sequence[Axis] | None) -> None:
        super().__init__()
        self.axes = {"weight": weight, **({} if bias is None else {"bias": bias})}
        self.weight = _blank(weight)
        self.register_parameter("bias", None if bias is None else _blank(bias))

    def widths(self, plan: Plan) -> dict[str, tuple[Width | None, ...]]:
        """Per parameter, what a plan uses of it."""
        return {n: tuple(None if isinstance(a, int) else plan[a[1]] for a in axes) for n, axes in self.axes.items()}

    def forward(self, plan: Plan) -> tuple[Tensor, Tensor | None]:
        """The weight and bias a plan uses."""
        widths = self.widths(plan)
        return prefix(self.weight, *widths["weight"]), None if self.bias is None else prefix(self.bias, *widths["bias"])


class BatchNorm(Weights):
    """Normalises over batch and pixels; a narrower network shares the statistics of its channels.

    They are means over all sub-networks that were trained and fit none of them exactly: before one is judged or used
    alone they are measured anew (:func:`tailorvit.train.statistics.measured`).
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, axis: tuple[int, str], eps: float) -> None:
        super().__init__([axis], [axis])
        self.eps = eps
        self.register_buffer("running_mean", torch.zeros(axis[0]))
        self.register_buffer("running_var", torch.ones(axis[0]))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def widths(self, plan: Plan) -> dict[str, tuple[Width | None, ...]]:
        """Per parameter and per statistic, what a plan uses of it."""
        found = super().widths(plan)
        return {**found, "running_mean": found["weight"], "running_var": found["weight"]}

    def normalise(self, x: Tensor, plan: Plan) -> Tensor:
        """(B, channels, rows, columns) normalised."""
        weight, bias = self(plan)
        mean, var = self.running_mean[: len(weight)], self.running_var[: len(weight)]
        return F.batch_norm(x, mean, var, weight, bias, self.training, MOMENTUM, self.eps)


def _blank(axes: Sequence[Axis]) -> nn.Parameter:
    return nn.Parameter(torch.empty([a if isinstance(a, int) else a[0] for a in axes]))


def layer_norm(layer: Weights, x: Tensor, plan: Plan, eps: float) -> Tensor:
    """Normalised over the channels in use."""
    weight, bias = layer(plan)
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def linear(layer: Weights, x: Tensor, plan: Plan, outputs: int, inputs: int = 1) -> Tensor:
    """A linear layer whose outputs and inputs span that many axes of the weight."""
    weight, bias = layer(plan)
    assert bias is not None
    return F.linear(x, weight.flatten(0, outputs - 1).flatten(1, inputs), bias.flatten())


def conv(layer: Weights, x: Tensor, plan: Plan, stride: int = 1, padding: int = 0) -> Tensor:
    """A convolution of maps."""
    weight, bias = layer(plan)
    return F.conv2d(x, weight, bias, stride, padding)


def depthwise(layer: Weights, x: Tensor, plan: Plan) -> Tensor:
    """A 3x3 convolution of every channel by itself, of maps."""
    weight, bias = layer(plan)
    weight = weight.flatten(0, -4)
    return F.conv2d(x, weight, None if bias is None else bias.flatten(), padding=1, groups=len(weight))
