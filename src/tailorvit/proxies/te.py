"""TE-NAS: trainability (condition number of the tangent kernel) and expressivity (linear regions) (ICLR 2021).

``te`` adds the ranks of both over the candidates scored together. ``te_released`` is what TF-TAS's released code gives:
minus the condition number alone, since its hooks for counting regions are never called in a transformer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.proxies.base import Proxy, Refused, Task
from tailorvit.proxies.layers import WatchGelu, gradients_for, noise, sign_agreement, weights
from tailorvit.stats import ranks


def tangent_kernel(model: nn.Module, layers: Mapping[str, nn.Module], images: Tensor) -> Tensor:
    """(B, B) products of the per-image gradients of the summed logits over these layers' weights, in float64.

    One pass for the whole batch: an image's gradient is its layer inputs times its output gradients. Gradients are
    computed layer by layer, so that memory holds a batch of one layer and not of the network.
    """
    batch, seen = len(images), list[tuple[nn.Module, Tensor, Tensor]]()

    def remember(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((layer, inputs[0].detach(), output))

    with ExitStack() as hooks:
        for layer in layers.values():
            hooks.callback(layer.register_forward_hook(remember).remove)
        logits = model(images)
    slopes = torch.autograd.grad(logits.sum(), [out for _, _, out in seen], materialize_grads=True)
    by_layer: dict[nn.Module, Tensor] = {}
    for (layer, x, _), slope in zip(seen, slopes, strict=True):
        by_layer[layer] = by_layer.get(layer, 0) + _per_image(layer, x, slope, batch)
    kernel = images.new_zeros(batch, batch, dtype=torch.float64)
    for gradients in by_layer.values():
        flat = gradients.flatten(1).double()
        kernel += flat @ flat.T
    return kernel


def _per_image(layer: nn.Module, x: Tensor, slope: Tensor, batch: int) -> Tensor:
    """(B, out, in) gradients of one layer's weight; windows and the like lie inside an image's rows."""
    if isinstance(layer, nn.Conv2d):
        assert isinstance(layer.padding, tuple)
        columns = F.unfold(x, layer.weight.shape[-2:], layer.dilation, layer.padding, layer.stride)
        return slope.flatten(2) @ columns.mT
    x, slope = (t.reshape(batch, -1, t.shape[-1]) for t in (x, slope))
    return slope.mT @ x


def measure(task: Task) -> dict[str, float]:
    """Minus the condition number, with kappa and the number of regions as parts."""
    if task.batch < 2:
        raise Refused(f"te compares images and needs a batch of at least 2, not {task.batch}.")
    model = task.network()
    names = {w.name.removesuffix(".weight") for w in weights(task, model)}
    layers = {n: m for n, m in model.named_modules() if n in names}
    images = noise(task, model, "te")
    agree, watch = sign_agreement(task.batch)
    # All weights require gradients so that every layer's output has one; the weights' own are not computed.
    with gradients_for(model, model.parameters()), torch.enable_grad(), WatchGelu(watch):
        kernel = tangent_kernel(model, layers, images)
    if not bool(kernel.isfinite().all()):
        return {"score": float("nan"), "kappa": float("nan"), "regions": float("nan")}
    eigenvalues = torch.linalg.eigvalsh(kernel.cpu())
    low, high = float(eigenvalues[0]), float(eigenvalues[-1])
    kappa = high / low if low > 0 else float("inf")
    same = agree >= agree[0, 0]
    return {"score": -kappa, "kappa": kappa, "regions": float((1 / same.sum(1)).sum())}


def together(parts: Sequence[Mapping[str, float]]) -> list[float]:
    """rank(-kappa) + rank(regions) over the set."""
    kappas, regions = ranks([-p["kappa"] for p in parts]), ranks([p["regions"] for p in parts])
    return [a + b for a, b in zip(kappas, regions, strict=True)]


TE = Proxy(
    name="te",
    summary="ranks of trainability and expressivity added, over the candidates scored together",
    paper="TE-NAS (ICLR 2021)",
    higher=True,
    cost="backward",
    needs="noise",
    measure=measure,
    batch=16,
    together=together,
    least_batch=2,
)
TE_RELEASED = Proxy(
    name="te_released",
    summary="minus the condition number of the tangent kernel, as TF-TAS's released code computes te",
    paper="TE-NAS (ICLR 2021), TF-TAS's code",
    higher=True,
    cost="backward",
    needs="noise",
    measure=measure,
    batch=16,
    least_batch=2,
)
