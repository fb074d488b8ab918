"""GraSP: how the gradient's flow would change without each weight (ICLR 2020; sign as in Zero-Cost NAS, ICLR 2021)."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tailorvit.proxies.base import Proxy, Task
from tailorvit.proxies.layers import asking, labelled, totals, weights
from tailorvit.proxies.snip import gradient, losses


def measure(task: Task) -> dict[str, float]:
    """Sum of -w (H g) over the patch embedding and all linear layers, by part."""
    model = task.network()
    chosen = weights(task, model)
    images, labels = labelled(task, model, "grasp")
    tensors = [w.tensor for w in chosen]
    flow = [torch.zeros_like(t) for t in tensors]
    # The fused kernels of attention cannot be differentiated twice.
    with asking(model, tensors), sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        first = gradient(model, tensors, images, labels)
        for loss in losses(model, images, labels):
            again = torch.autograd.grad(loss, tensors, create_graph=True, materialize_grads=True)
            product = torch.stack([(a * b).sum() for a, b in zip(first, again, strict=True)]).sum()
            for total, part in zip(flow, torch.autograd.grad(product, tensors, materialize_grads=True), strict=True):
                total += part
    return totals((w.part, -(w.tensor.detach() * h).sum()) for w, h in zip(chosen, flow, strict=True))


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
