"""Many small tensors side by side in one buffer: filled or cast in two launches instead of one for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGN = 64  # entries: compilers and fused optimisers want tensors that begin at round addresses


class Flat:
    """A buffer with a part for each of the tensors it is like, in their order."""

    def __init__(self, like: Sequence[Tensor], dtype: torch.dtype) -> None:
        device = like[0].device if like else torch.device("cpu")
        self.gaps = [-t.numel() % ALIGN for t in like]
        sizes = [t.numel() + gap for t, gap in zip(like, self.gaps, strict=True)]
        self.whole = torch.zeros(sum(sizes), dtype=dtype, device=device)
        self.parts: list[Tensor] = []
        place = 0
        for t, size in zip(like, sizes, strict=True):
            # On the same memory but no view: compilers look through views, at the shape they are views of.
            part = torch.empty(0, dtype=dtype, device=device)
            part.set_(self.whole.untyped_storage(), place, t.shape, _strides(t.shape))
            self.parts.append(part)
            place += size
        self.blanks: dict[torch.dtype, Tensor] = {}

    @torch.no_grad()
    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy tensors of one precision to the parts."""
        if not tensors:
            return
        kind = tensors[0].dtype
        if kind not in self.blanks:  # kept: a recording would make it anew at every replay
            self.blanks[kind] = torch.zeros(ALIGN, dtype=kind, device=self.whole.device)
        blank = self.blanks[kind]
        pieces: list[Tensor] = []
        for t, gap in zip(tensors, self.gaps, strict=True):
            pieces.append(t.reshape(-1))
            if gap:
                pieces.append(blank[:gap])
        if kind == self.whole.dtype:
            torch.cat(pieces, out=self.whole)
        else:
            self.whole.copy_(torch.cat(pieces))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))
