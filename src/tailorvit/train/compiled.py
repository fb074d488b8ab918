"""The compiler where it pays: whole plain networks, and the blocks of a supernet, whose widths change every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.elastic.compiled import fast_block


def compiled(model: nn.Module) -> Callable[..., Tensor]:
    """The same call, compiled: ``call(x)`` of a plain network, ``call(x, arch)`` of a supernet.

    A supernet of the ViT family keeps its own forward; its blocks share one graph per width, as architectures run by
    groups (``model.grouped``): cut in every dimension, AutoFormer-S would have 27 shapes of a block. Other supernets
    run as they are.
    """
    blocks: list[Any] = [m for m in model.modules() if hasattr(m, "fast")]
    if not blocks:
        return model if hasattr(model, "slices") else torch.compile(model)
    fast = fast_block(any(b.rate > 0 for b in blocks))
    for block in blocks:
        block.fast = fast
    elastic: Any = model

    def call(x: Tensor, arch: Any = None, masked: bool = False) -> Tensor:
        if masked or not isinstance(arch, Arch):
            out: Tensor = elastic(x, arch, masked)
            return out
        switches = elastic.switches(arch)
        switches = switches.pin_memory() if x.is_cuda else switches  # or the host would wait for the copy
        out = elastic.grouped(x, elastic.group(arch), switches.to(x.device, non_blocking=True))
        return out

    return call
