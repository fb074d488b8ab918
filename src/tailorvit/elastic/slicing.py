"""The slicing rule: the only place that says which entries of a super-tensor a narrower layer uses.

A width is chosen at call time in one of two ways. *Sliced*: ``Width(n)`` cuts weights to their first n entries, the
least arithmetic. *Masked*: the width carries a 0/1 mask per architecture; every tensor keeps its largest shape and
activations outside the mask are multiplied by zero, so one static graph serves every architecture and several
architectures run in one call. Masked activations are (archs, batch, tokens, width). Between the two lies a width whose
``reads`` mask zeroes the weights that read an axis: the shape stays, the activations need no pass of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Width:
    """How much of an axis is in use: the first ``size`` entries, or those where ``mask`` is one."""

    size: int  # sliced: entries in use; masked: entries there are
    mask: Tensor | None = None  # (archs, 1, 1, size)
    count: Tensor | None = None  # (archs, 1, 1, 1): entries in use
    reads: Tensor | None = None  # (size,): zero for entries no weight may read; what they hold is then of no effect

    @classmethod
    def masked(cls, used: Sequence[int], size: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Width:
        """One mask row per architecture."""
        count = torch.tensor(used, device=device).view(-1, 1, 1, 1)
        mask = torch.arange(size, device=device).view(1, 1, 1, -1) < count
        return cls(size, mask.to(dtype), count.to(dtype))

    def keep(self, x: Tensor) -> Tensor:
        """Zero what is not in use (nothing to do when sliced: it is not there)."""
        return x if self.mask is None else x * self.mask.to(x.dtype)


def prefix(tensor: Tensor, *widths: Width | None) -> Tensor:
    """The entries a narrower layer uses: a prefix of every axis that has a width; None keeps an axis whole."""
    cut = tuple(slice(None) if w is None else slice(w.size) for w in widths)
    return tensor[cut]


def transformer_slices(
    d: Width, heads: Width, inner: Width, hidden: Width, norms: int = 2
) -> dict[str, tuple[Width | None, ...]]:
    """Per parameter of a transformer block (attention and an MLP behind norms), the prefix these widths use."""
    return {
        **{f"norm{n}.{leaf}": (d,) for n in range(1, norms + 1) for leaf in ("weight", "bias")},
        "attn.qkv_weight": (None, heads, None, d),
        "attn.qkv_bias": (None, heads),
        "attn.proj.weight": (d, inner),
        "attn.proj.bias": (d,),
        "mlp.fc1.weight": (hidden, d),
        "mlp.fc1.bias": (hidden,),
        "mlp.fc2.weight": (d, hidden),
        "mlp.fc2.bias": (d,),
    }


def thirds(flat: Tensor, part: Width) -> Tensor:
    """The released AutoFormer's cut of a Q-K-V bias: the first 3n entries, then three equal parts, for n in use.

    Unlike a prefix of each part it gives the same entry to K in one sub-network and to Q or V in another; trained
    weights have learnt to live with it. Masked: (archs, 1, 1, 3 * size), where what lies outside the mask is arbitrary;
    so it is in the (3 * size,) of a width with ``reads``.
    """
    if part.reads is not None:
        begin = part.reads.sum().long() * torch.arange(3, device=flat.device)[:, None]
        return flat.index_select(0, (begin + torch.arange(part.size, device=flat.device)).flatten())
    if part.count is None:
        return flat[: 3 * part.size]
    start = part.count.long() * torch.arange(3, device=flat.device).view(1, 1, 3, 1)
    return flat[(start + torch.arange(part.size, device=flat.device)).flatten(-2)[:, :, None]]
