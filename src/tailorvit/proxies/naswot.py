"""NASWOT: how different the activation signs of a batch of images are, with standard normal weights (ICML 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tailorvit.proxies.base import Proxy, Refused, Task
from tailorvit.proxies.layers import WatchGelu, gradients_for, noise, sign_agreement
from tailorvit.rng import derive


def normal_weights(task: Task, model: nn.Module) -> dict[str, Tensor]:
    """Standard normal weights and zero biases for all linear and convolution layers."""
    start = torch.Generator().manual_seed(derive(task.seed, "naswot", "weights"))
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            weight = module.weight
            found[f"{path}.weight"] = torch.randn(weight.shape, generator=start).to(weight)
            if module.bias is not None:
                found[f"{path}.bias"] = torch.zeros_like(module.bias)
    return found


def measure(task: Task) -> dict[str, float]:
    """log |det K|, where K counts the GELU inputs at which two images have the same sign."""
    if task.batch < 2:
        raise Refused(f"naswot compares images and needs a batch of at least 2, not {task.batch}.")
    model = task.network()
    kernel, watch = sign_agreement(task.batch)
    images = task.labelled.images[: task.batch] if task.labelled is not None else noise(task, model, "naswot")
    with gradients_for(model, ()), torch.no_grad(), WatchGelu(watch):
        torch.func.functional_call(model, normal_weights(task, model), (images.to(next(model.parameters())),))
    codes = float(kernel[0, 0])
    if codes == 0:
        raise Refused("The network has no GELU, and naswot reads the signs of GELU inputs.")
    twins = (kernel.triu(1) >= codes).nonzero()
    if len(twins):
        i, j = twins[0].tolist()
        raise Refused(
            f"Images {i + 1} and {j + 1} of the batch have the same signs everywhere, so naswot is minus infinity."
        )
    return {"score": float(torch.linalg.slogdet(kernel).logabsdet), "codes": codes}


NASWOT = Proxy(
    name="naswot",
    summary="log-determinant of how often two images have the same sign at the GELUs",
    paper="Neural Architecture Search without Training (ICML 2021)",
    higher=True,
    cost="forward",
    needs="noise",
    measure=measure,
    batch=64,
    least_batch=2,
)
