"""DSS, the diversity of attention and the saliency of MLPs at initialisation (TF-TAS, CVPR 2022, Algorithm 1).

Sum over attention's linear layers of |dL/dW|_nuc |W|_nuc, plus sum over the MLPs' of |dL/dW W|, where L is the sum of
all logits on an image of ones. Three readings. ``fixed``: the formula with Q-K-V and output projections, signed
weights, evaluation mode. ``paper``: the same in training mode, as the supplement's listing says; without drop path it
differs only where dropout or batch statistics do. ``official``: what the released code computes. It takes absolute
values of the class token and the positions alone (its other slices are made before), and Q-K-V contributes 0, because
its slice does not require gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tailorvit.proxies.base import Proxy, Refused, Task
from tailorvit.proxies.layers import Weight, asking, device, noise, shape, weights
from tailorvit.proxies.norms import nuclear
from tailorvit.rng import derive

OUTPUT = "proj"  # attention's layer the released code does see
MUTED = ("ladder",)  # its first norms make zeros of constant taps, so it gets noise instead of ones


def measure(task: Task) -> dict[str, float]:
    """The score, its two halves, and attention's by layer."""
    model = task.network()
    chosen = [w for w in weights(task, model) if w.part in ("msa", "mlp")]
    if not any(w.part == "msa" for w in chosen):
        raise Refused("The network has no attention layers, so DSS says nothing about it.")
    official = task.reading == "official"
    asked = [w for w in chosen if not official or w.part == "mlp" or w.layer == OUTPUT]
    gradients = _gradients(task, model, asked)
    attention = [(w, g) for w, g in zip(asked, gradients, strict=True) if w.part == "msa"]
    of_weights = task.norms(_keys([w for w, _ in attention]), lambda i: attention[i][0].tensor)
    of_gradients = nuclear([g for _, g in attention], low_rank=True)
    parts = {w.layer: 0.0 for w in chosen if w.part == "msa"}
    for (w, _), a, b in zip(attention, of_weights, of_gradients, strict=True):
        parts[w.layer] += a * b
    mlp = [(w.tensor.detach() * g).abs().sum() for w, g in zip(asked, gradients, strict=True) if w.part == "mlp"]
    msa, saliency = sum(parts.values()), float(torch.stack(mlp).sum()) if mlp else 0.0
    return {"score": msa + saliency, "msa": msa, "mlp": saliency, **parts}


def _gradients(task: Task, model: nn.Module, asked: list[Weight]) -> list[Tensor]:
    """dL/dW for the weights asked for; zeros where L does not depend on one."""
    if task.family in MUTED:
        x = noise(task, model, "dss")[:1]
    else:
        x = torch.ones(1, *shape(task), device=device(model))
    training = task.reading == "paper"
    tensors = [w.tensor for w in asked]
    swapped = {}
    if task.reading == "official":
        swapped = {n: p.detach().abs() for n, p in model.named_parameters() if n in ("cls_token", "pos_embed")}
    with asking(model, tensors, training), torch.random.fork_rng(enabled=training), torch.enable_grad():
        if training:
            torch.manual_seed(derive(task.seed, "dss", "dropout"))
        logits = torch.func.functional_call(model, swapped, (x,)) if swapped else model(x)
        return list(torch.autograd.grad(logits.sum(), tensors, materialize_grads=True))


def _keys(attention: list[Weight]) -> list[tuple[str, torch.Size, float]]:
    """What tells slices of one supernet apart: layer, shape, and a mark where equal shapes cut or order differently."""
    first = attention[0].tensor
    ramp = torch.arange(1, 1 + max(max(w.tensor.shape) for w in attention), dtype=first.dtype, device=first.device)
    marks = []
    for w in attention:
        t = w.tensor.detach()
        marks.append(torch.dot(t[-1], ramp[: t.shape[1]]) + torch.dot(t[:, -1], ramp[: t.shape[0]]))
    return [(w.name, w.tensor.shape, m) for w, m in zip(attention, torch.stack(marks).tolist(), strict=True)]


DSS = Proxy(
    name="dss",
    summary="diversity of attention and saliency of MLPs on an image of ones",
    paper="TF-TAS (CVPR 2022)",
    higher=True,
    cost="backward",
    needs="ones",
    measure=measure,
)
