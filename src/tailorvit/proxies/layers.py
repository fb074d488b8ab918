"""Which layers of a plain network a proxy looks at, and how to look without leaving a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tailorvit.proxies.base import Refused, Task
from tailorvit.rng import derive


class Weight(NamedTuple):
    """One weight matrix or filter: its name, what kind of layer it serves (patch, msa, mlp, head or other) and it."""

    name: str
    part: str
    layer: str  # the last name of the layer: qkv, proj, fc1, ...
    tensor: Tensor


# Every family of the house names its layers alike (docs/adding.md). One that does not gets its words here.
WORDS: Mapping[str, Mapping[str, str]] = {}
COMMON: Mapping[str, str] = {"attn": "msa", "mlp": "mlp", "patch_embed": "patch", "head": "head"}


def weights(task: Task, model: nn.Module) -> list[Weight]:
    """The weights of all linear layers and of the patch convolutions, by the rooms their path goes through."""
    words = WORDS.get(task.family, COMMON)
    found = []
    for path, module in model.named_modules():
        steps = path.split(".")
        part = next((words[s] for s in steps if s in words), "other")
        if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and part == "patch"):
            found.append(Weight(f"{path}.weight", part, steps[-1], module.weight))
    return found


@contextmanager
def asking(model: nn.Module, wanted: Iterable[Tensor], training: bool = False) -> Iterator[None]:
    """The network with gradients for the wanted weights only, in evaluation unless said; afterwards as it was."""
    modes = [(m, m.training) for m in model.modules()]
    flags = [(p, p.requires_grad) for p in model.parameters()]
    buffers = [(b, b.clone()) for b in model.buffers()] if training else []  # batch norms count as they go
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


class Gelus(TorchFunctionMode):
    """Hands every GELU's input to a function, whether a module or a call makes it."""

    def __init__(self, see: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.see = see

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.gelu and args:
            self.see(args[0].detach())
        return func(*args, **(kwargs or {}))


def agreement(batch: int) -> tuple[Tensor, Callable[[Tensor], None]]:
    """A matrix (batch, batch) in float64 and what adds to it: entries at whose GELU two images have the same sign.

    A last diagonal entry is therefore the number of entries seen; images of equal codes agree everywhere.
    """
    total = torch.zeros(batch, batch, dtype=torch.float64)

    def see(x: Tensor) -> None:
        if x.shape[0] % batch:
            raise Refused(f"A GELU sees {x.shape[0]} rows for {batch} images: its codes cannot be told apart.")
        code = (x > 0).reshape(batch, -1).float()  # sums stay under 2^24, where float32 counts exactly
        both = code @ code.T
        ones = code.sum(1)
        total.add_((code.shape[1] - ones[:, None] - ones[None, :] + 2 * both).double().cpu())

    return total, see


def shape(task: Task) -> tuple[int, int, int]:
    """Channels and sides of one input; for a ladder its taps, their tokens and their width."""
    high, wide = task.frame.image_size
    return int(task.frame.channels), int(high), int(wide)


def device(model: nn.Module) -> torch.device:
    """Where the network is."""
    return next(model.parameters()).device


def noise(task: Task, model: nn.Module, name: str) -> Tensor:
    """A batch of standard normal images, the same for every architecture of one seed."""
    start = torch.Generator().manual_seed(derive(task.seed, name, "images"))
    return torch.randn(task.batch, *shape(task), generator=start).to(device(model))


def labelled(task: Task, model: nn.Module, name: str) -> tuple[Tensor, Tensor]:
    """The caller's images and labels, or noise and random labels."""
    if task.labelled is not None:
        images, labels = task.labelled
        return images[: task.batch].to(device(model)), labels[: task.batch].to(device(model))
    start = torch.Generator().manual_seed(derive(task.seed, name, "labels"))
    labels = torch.randint(int(task.frame.classes), (task.batch,), generator=start)
    return noise(task, model, name), labels.to(device(model))


def totals(rows: Iterable[tuple[str, Tensor]]) -> dict[str, float]:
    """Sums by part, and their sum as the score; one wait for the device."""
    names, values = zip(*rows, strict=True)
    parts: dict[str, float] = {}
    for name, value in zip(names, torch.stack([v.double() for v in values]).tolist(), strict=True):
        parts[name] = parts.get(name, 0.0) + value
    return {"score": sum(parts.values()), **parts}
