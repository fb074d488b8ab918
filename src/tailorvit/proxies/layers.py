"""Tools for writing a proxy: find a network's layers, change its mode without leaving a trace, make its input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tailorvit.families import FAMILIES
from tailorvit.proxies.base import Refused, Task
from tailorvit.rng import derive

# -- layers -----------------------------------------------------------------------------------------------------------


class Weight(NamedTuple):
    """The weight of one linear layer, patch convolution or 1x1 convolution of an MLP."""

    name: str
    part: str  # patch, mixing, mlp, head or other
    layer: str  # the last word of the layer's path: qkv, proj, fc1, ...
    tensor: Tensor


def weights(task: Task, model: nn.Module) -> list[Weight]:
    """The weights of all linear layers and of the patch convolutions; the words in a layer's path give its part.

    In an MLP of convolutions those of 1x1 are the linear layers, applied at every pixel.
    """
    words = FAMILIES[task.family].layer_words
    found = []
    for path, module in model.named_modules():
        steps = path.split(".")
        part = next((words[s] for s in steps if s in words), "other")
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and _counts(module, part)):
            found.append(Weight(f"{path}.weight", part, steps[-1], module.weight))
    return found


def _counts(conv: nn.Conv2d, part: str) -> bool:
    """Whether a convolution counts: in the patch embedding, or as an MLP's linear layer."""
    return part == "patch" or (part == "mlp" and conv.kernel_size == (1, 1) and conv.groups == 1)


def sums_by_part(rows: Iterable[tuple[Weight, Tensor]]) -> dict[str, float]:
    """One number per weight, summed by part, and their sum as the score; waits for the device once."""
    chosen, values = zip(*rows, strict=True)
    parts: dict[str, float] = {}
    for weight, value in zip(chosen, torch.stack([v.double() for v in values]).tolist(), strict=True):
        name = "msa" if weight.part == "mixing" else weight.part  # as run folders store it
        parts[name] = parts.get(name, 0.0) + value
    return {"score": sum(parts.values()), **parts}


@contextmanager
def gradients_for(model: nn.Module, wanted: Iterable[Tensor], training: bool = False) -> Iterator[None]:
    """Inside, only the wanted weights require gradients and the network is in the given mode; afterwards as before."""
    modes = [(m, m.training) for m in model.modules()]
    flags = [(p, p.requires_grad) for p in model.parameters()]
    buffers = [(b, b.clone()) for b in model.buffers()] if training else []  # batch norms update theirs
    keep = {id(w) for w in wanted}
    try:
        model.train(training)
        for p, _ in flags:
            p.requires_grad_(id(p) in keep)
        yield
    finally:
        for p, flag in flags:
            p.requires_grad_(flag)
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for buffer, old in buffers:
                buffer.copy_(old)


# -- signs at the GELUs -----------------------------------------------------------------------------------------------


class WatchGelu(TorchFunctionMode):
    """Hands the input of every GELU to a function, whether a module or a function call computes it."""

    def __init__(self, watch: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.gelu and args:
            self.watch(args[0].detach())
        return func(*args, **(kwargs or {}))


def sign_agreement(batch: int) -> tuple[Tensor, Callable[[Tensor], None]]:
    """A (batch, batch) matrix and the function for :class:`WatchGelu` that fills it.

    An entry counts the GELU inputs at which two images have the same sign. So the diagonal holds the number of all
    inputs, and two images whose signs agree everywhere have an entry as large as the diagonal.
    """
    total = torch.zeros(batch, batch, dtype=torch.float64)

    def watch(x: Tensor) -> None:
        if x.shape[0] % batch:
            raise Refused(f"A GELU has {x.shape[0]} rows for {batch} images, so its signs belong to no single image.")
        code = (x > 0).reshape(batch, -1).float()  # sums stay under 2^24, where float32 counts exactly
        both = code @ code.T
        ones = code.sum(1)
        total.add_((code.shape[1] - ones[:, None] - ones[None, :] + 2 * both).double().cpu())

    return total, watch


# -- input ------------------------------------------------------------------------------------------------------------


def input_shape(task: Task) -> tuple[int, int, int]:
    """Channels, height and width of one input; for trunk features: layers, tokens and width."""
    high, wide = task.shared.image_size
    return int(task.shared.channels), int(high), int(wide)


def device(model: nn.Module) -> torch.device:
    """Where the network is."""
    return next(model.parameters()).device


def noise(task: Task, model: nn.Module, name: str) -> Tensor:
    """A batch of standard normal images, the same for every architecture of one seed."""
    start = torch.Generator().manual_seed(derive(task.seed, name, "images"))
    return torch.randn(task.batch, *input_shape(task), generator=start).to(device(model))


def labelled(task: Task, model: nn.Module, name: str) -> tuple[Tensor, Tensor]:
    """The caller's images and labels, or noise and random labels."""
    if task.labelled is not None:
        images, labels = task.labelled
        return images[: task.batch].to(device(model)), labels[: task.batch].to(device(model))
    start = torch.Generator().manual_seed(derive(task.seed, name, "labels"))
    labels = torch.randint(int(task.shared.classes), (task.batch,), generator=start)
    return noise(task, model, name), labels.to(device(model))
