"""Accuracy of networks, and of sub-networks with a supernet's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.families import family
from tailorvit.train.graphs import GraphCalls
from tailorvit.train.memory import Fitting
from tailorvit.train.optim import float32_sums
from tailorvit.train.statistics import measured, shared_statistics

Batch = tuple[Tensor, Tensor]


@torch.inference_mode()
def accuracy(model: Callable[..., Tensor], batches: Iterable[Batch], device: str = "cpu") -> float:
    """Top-1 accuracy in percent."""
    if isinstance(model, nn.Module):
        model.eval()
    hits, count = torch.zeros((), device=device), 0  # counted there: the device need not wait for the host
    call = Fitting(model)
    for x, y in batches:
        hits += (call(x.to(device)).argmax(-1) == y.to(device)).sum()
        count += len(y)
    return 100 * int(hits) / max(count, 1)


@torch.inference_mode()
def hits(model: nn.Module, batches: Iterable[Batch], device: str = "cpu") -> NDArray[np.bool_]:
    """For each image whether the network is right, to compare networks image by image."""
    model.eval()
    call = Fitting(model)
    found = [(call(x.to(device)).argmax(-1) == y.to(device)).cpu() for x, y in batches]
    return torch.cat(found).numpy() if found else np.zeros(0, dtype=bool)


@torch.inference_mode()
def class_scores(model: nn.Module, batches: Iterable[Batch], device: str = "cpu") -> tuple[Tensor, Tensor]:
    """(probabilities, labels) of a whole split."""
    model.eval()
    call = Fitting(model)
    rows = [(call(x.to(device)).float().softmax(-1).cpu(), y) for x, y in batches]
    return torch.cat([p for p, _ in rows]), torch.cat([y for _, y in rows])


class Evaluator:
    """Accuracies of sub-networks on fixed batches; each architecture is evaluated once.

    Where sub-networks share batch statistics, each is judged with its own, measured on the same images.
    """

    def __init__(self, model: nn.Module, batches: Iterable[Batch], device: str = "cpu", bf16: bool = False) -> None:
        self.model, self.device, self.bf16 = model.to(device).eval(), device, bf16
        # A list fits into memory and moves to the device once; anything else is read again for every architecture.
        self.batches = [(x.to(device), y.to(device)) for x, y in batches] if isinstance(batches, list) else batches
        self.call: Callable[..., Tensor] = model
        if torch.device(device).type == "cuda" and hasattr(model, "grouped"):
            self.call = GraphCalls(model, bf16)
        self.remeasure = shared_statistics(model)
        self.known: dict[Arch, float] = {}
        self.most = 0  # images at a time, where memory bounds them

    def __call__(self, archs: Sequence[Arch]) -> list[float]:
        """Percent, in the order of the architectures."""
        for arch in archs:
            if arch not in self.known:
                self.known[arch] = self._accuracy(arch)
        return [self.known[a] for a in archs]

    @torch.no_grad()  # not inference mode: a recording's tensors outlive the call
    def _accuracy(self, arch: Arch) -> float:
        self.model.eval()
        hits, count = torch.zeros((), device=self.device), 0
        with float32_sums(), torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.bf16):
            call: Callable[[Tensor], Tensor] = partial(self.call, arch=arch)
            if self.remeasure:
                plain = family(arch.family).extract(self.model, arch)
                call = measured(plain, (x.to(self.device) for x, _ in self.batches))
            fitting = Fitting(call, self.most)
            for x, y in ((x.to(self.device), y.to(self.device)) for x, y in self.batches):
                hits += (fitting(x).argmax(-1) == y).sum()
                count += len(y)
            self.most = fitting.most
        return 100 * float(hits) / max(count, 1)
