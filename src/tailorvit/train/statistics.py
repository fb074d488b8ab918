"""Batch statistics of a network, measured on images: what a sub-network needs that shares a supernet's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tailorvit.elastic.weights import BatchNorm

Network = TypeVar("Network", bound=nn.Module)


def shared_statistics(model: nn.Module) -> bool:
    """Whether the sub-networks of a supernet share batch statistics that fit none of them exactly."""
    return any(isinstance(m, BatchNorm) for m in model.modules())


@torch.no_grad()
def measured(model: Network, images: Iterable[Tensor]) -> Network:
    """The network with the mean statistics of these batches in its batch norms; nothing else is changed.

    Every image counts the same: were it every batch, a small last one would cost points.
    """
    norms, seen = [m for m in model.modules() if isinstance(m, _BatchNorm)], 0
    momenta = [m.momentum for m in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
    for x in images:
        if seen and len(x) == 1:
            continue  # one image has no variance where a map is one pixel
        seen += len(x)
        for norm in norms:
            norm.momentum = len(x) / seen
        model(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model.eval()
