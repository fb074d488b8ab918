"""The slicing rule: the only place that says which entries of a supernet's tensors a narrower layer uses.

``Width(n)`` cuts an axis to its first n entries. A width with ``reads`` keeps the axis at its size and switches entries
off instead: the weights that read them are multiplied by zero. All architectures of a group then have the same shapes,
as recorded and compiled supernets need.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Width:
    """How much of an axis is in use: the first ``size`` entries."""

    size: int
    reads: Tensor | None = None  # (size,): 0 where the next weight ignores an entry, which then has no effect


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

    Unlike a prefix of each part it gives the same entry to K in one sub-network and to Q or V in another; the released
    weights were trained that way. For a width with ``reads`` the result has 3 * size entries, and those that are
    switched off are arbitrary.
    """
    if part.reads is None:
        return flat[: 3 * part.size]
    begin = part.reads.sum().long() * torch.arange(3, device=flat.device)[:, None]
    return flat.index_select(0, (begin + torch.arange(part.size, device=flat.device)).flatten())
