"""GraSP: how the gradient norm changes if a weight is removed (ICLR 2020; sign as in Zero-Cost NAS, ICLR 2021)."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tailorvit.proxies.base import Proxy, Task
from tailorvit.proxies.layers import gradients_for, labelled, sums_by_part, weights
from tailorvit.proxies.snip import gradient, losses


def measure(task: Task) -> dict[str, float]:
    """Sum of -w (H g) over the patch embedding and all linear layers, by part."""
    model = task.network()
    chosen = weights(task, model)
    images, labels = labelled(task, model, "grasp")
    tensors = [w.tensor for w in chosen]
    products = [torch.zeros_like(t) for t in tensors]  # Hessian x gradient
    # The fused kernels of attention cannot be differentiated twice.
    with gradients_for(model, tensors), sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        first = gradient(model, tensors, images, labels)
        for loss in losses(model, images, labels):
            second = torch.autograd.grad(loss, tensors, create_graph=True, materialize_grads=True)
            product = torch.stack([(a * b).sum() for a, b in zip(first, second, strict=True)]).sum()
            for total, part in zip(
                products, torch.autograd.grad(product, tensors, materialize_grads=True), strict=True
            ):
                total += part
    return sums_by_part((w, -(w.tensor.detach() * h).sum()) for w, h in zip(chosen, products, strict=True))


GRASP = Proxy(
    name="grasp",
    summary="sum of -weight x (Hessian x gradient) of the loss on a batch of images",
    paper="GraSP (ICLR 2020), Zero-Cost NAS (ICLR 2021)",
    higher=True,
    cost="backward",
    needs="images",
    measure=measure,
    batch=64,
)
