"""SNIP: how much the loss changes without a weight, summed over weights (ICLR 2019; Zero-Cost NAS, ICLR 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.proxies.base import Proxy, Task
from tailorvit.proxies.layers import gradients_for, labelled, sums_by_part, weights

CHUNK = 16  # images in one pass; the sums are those of the whole batch


def losses(model: nn.Module, images: Tensor, labels: Tensor) -> Iterator[Tensor]:
    """The cross-entropy of the batch, in pieces that add up to it."""
    for x, y in zip(images.split(CHUNK), labels.split(CHUNK), strict=True):
        yield F.cross_entropy(model(x), y) * (len(y) / len(labels))


def gradient(model: nn.Module, tensors: Sequence[Tensor], images: Tensor, labels: Tensor) -> list[Tensor]:
    """The gradient of the batch's cross-entropy."""
    found = [torch.zeros_like(t) for t in tensors]
    for loss in losses(model, images, labels):
        for total, part in zip(found, torch.autograd.grad(loss, tensors, materialize_grads=True), strict=True):
            total += part
    return found


def measure(task: Task) -> dict[str, float]:
    """Sum of |w dL/dw| over the patch embedding and all linear layers, by part."""
    model = task.network()
    chosen = weights(task, model)
    images, labels = labelled(task, model, "snip")
    tensors = [w.tensor for w in chosen]
    with gradients_for(model, tensors), torch.enable_grad():
        found = gradient(model, tensors, images, labels)
    return sums_by_part((w, (w.tensor.detach() * g).abs().sum()) for w, g in zip(chosen, found, strict=True))


SNIP = Proxy(
    name="snip",
    summary="sum of |weight x gradient| of the loss on a batch of images",
    paper="SNIP (ICLR 2019), Zero-Cost NAS (ICLR 2021)",
    higher=True,
    cost="backward",
    needs="images",
    measure=measure,
    batch=64,
)
