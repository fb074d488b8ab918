"""torch.compile where it pays: whole plain networks, blocks of plain ViTs and of ViT supernets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.families.vit.compiled import compiled_block


class CompiledBlocks:
    """A plain network whose blocks run compiled inside ``enabled()`` only: evaluations would compile other shapes.

    There is one graph per shape among the blocks: seconds, where the whole network takes half a minute on a GPU server.
    """

    def __init__(self, model: nn.Module, blocks: nn.ModuleList) -> None:
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 256)
        self.model: Any = model
        self.blocks: list[Any] = list(blocks)
        self.calls = [torch.compile(b._call_impl, dynamic=False) for b in blocks]

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Blocks run compiled inside."""
        try:
            for block, call in zip(self.blocks, self.calls, strict=True):
                block._compiled_call_impl = call
            yield
        finally:
            for block in self.blocks:
                block._compiled_call_impl = None

    def __call__(self, x: Tensor) -> Any:
        """What the network gives: its logits."""
        with self.enabled():
            return self.model(x)


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """A supernet's blocks without their compiled calls inside, so that the network can be sent to another process."""
    blocks: list[Any] = [m for m in model.modules() if hasattr(m, "compiled_evaluation")]
    calls = [block.compiled for block in blocks]
    try:
        for block in blocks:
            block.compiled = None
        yield
    finally:
        for block, call in zip(blocks, calls, strict=True):
            block.compiled = call


def compiled(model: nn.Module, evaluation: bool = False, called: nn.Module | None = None) -> Callable[..., Any]:
    """The same call, compiled: ``call(x)`` of a plain network, ``call(x, arch)`` of a supernet.

    A plain ViT is compiled block by block, other plain networks whole. A supernet of the ViT family keeps its own
    forward. Its blocks share one graph per width, as architectures run in groups (``model.grouped``): cut in every
    dimension, AutoFormer-S would have 27 shapes of a block. Other supernets are not compiled. With ``evaluation`` a
    supernet's blocks are compiled in evaluation mode too, which pays for its seconds in long evaluations only.
    ``called`` is a module around the network that is called in its place; groups do not go through it.
    """
    blocks: list[Any] = [m for m in model.modules() if hasattr(m, "compiled_evaluation")]
    if called is not None or not blocks:
        called = called or model
        plain = getattr(model, "blocks", None)
        if hasattr(model, "slices"):
            return called
        return CompiledBlocks(called, plain) if isinstance(plain, nn.ModuleList) else torch.compile(called)
    shared = compiled_block(any(b.rate > 0 for b in blocks))
    for block in blocks:
        block.compiled, block.compiled_evaluation = shared, evaluation
    supernet: Any = model

    def call(x: Tensor, arch: Arch | None = None) -> Tensor:
        if arch is None:
            out: Tensor = supernet(x)
            return out
        switches = supernet.switches(arch)
        switches = switches.pin_memory() if x.is_cuda else switches  # or the host would wait for the copy
        out = supernet.grouped(x, supernet.group(arch), switches.to(x.device, non_blocking=True))
        return out

    return call
