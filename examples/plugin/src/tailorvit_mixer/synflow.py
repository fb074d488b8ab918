"""SynFlow as a proxy: how much all paths through a network carry, at absolute weights (NeurIPS 2020)."""

from __future__ import annotations

import torch

from tailorvit.proxies.base import Proxy, Task
from tailorvit.proxies.layers import gradients_for


def synflow(task: Task) -> dict[str, float]:
    """Sum over weights of |w * dL/dw|, L being the sum of all outputs for an image of ones."""
    model = task.network()
    shared = task.shared
    weights = {n: p.detach().abs().double().requires_grad_() for n, p in model.named_parameters()}
    buffers = {n: b.double() if b.is_floating_point() else b for n, b in model.named_buffers()}
    x = torch.ones(1, shared.channels, *shared.image_size, dtype=torch.float64, device=next(model.parameters()).device)
    # In evaluation mode, whatever mode the network is in: batch norms would change their statistics.
    with gradients_for(model, ()), torch.enable_grad():
        total = torch.func.functional_call(model, {**weights, **buffers}, (x,)).sum()
        gradients = torch.autograd.grad(total, list(weights.values()), allow_unused=True, materialize_grads=True)
    score = sum(float((w * g).detach().abs().sum()) for w, g in zip(weights.values(), gradients, strict=True))
    return {"score": score}


SYNFLOW = Proxy(
    name="synflow",
    summary="what all paths through the network carry, at absolute weights",
    paper="SynFlow (NeurIPS 2020)",
    higher=True,
    cost="backward",
    needs="ones",
    measure=synflow,
)
