"""Elastic multi-head attention with AutoFormer's relative position; heads are a prefix, their width never changes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.elastic.kernels import AVAILABLE
from tailorvit.elastic.layers import Linear
from tailorvit.elastic.slicing import Width, prefix, thirds
from tailorvit.plain.relative import Execution, Places, Tables, attend_packed, table_rows

# The kernel makes itself known to plain/relative.py, which exports carry along as text and which therefore names
# nothing of ours.
if AVAILABLE:
    import tailorvit.plain.relative_kernel  # noqa: F401


class Attention(nn.Module):
    """Weights are kept as (3, heads, head_dim, width) so that head j is the same rows in every sub-network.

    So is the bias, unless ``official``: then it is flat and cut as the released AutoFormer cuts it.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        bias: bool,
        reach: int | None,
        places: Places,
        execution: Execution,
        official: bool = False,
    ) -> None:
        super().__init__()
        self.head_dim, self.places, self.execution = head_dim, places, execution
        self.qkv_weight = nn.Parameter(torch.empty(3, heads, head_dim, width))
        kept = (3 * heads * head_dim,) if official else (3, heads, head_dim)
        self.qkv_bias = nn.Parameter(torch.empty(kept)) if bias else None
        self.proj = Linear(heads * head_dim, width)
        self.reach = reach
        if reach is not None:
            for name in Tables._fields:
                self.register_parameter(f"rel_{name}", nn.Parameter(torch.empty(table_rows(reach), head_dim)))

    def tables(self) -> Tables | None:
        """The four relative-position tables, which no sub-network slices."""
        return None if self.reach is None else Tables(*(getattr(self, f"rel_{n}") for n in Tables._fields))

    def _project(self, x: Tensor, width: Width, heads: Width, inner: Width) -> Tensor:
        """(B, N, width) to (B, N, 3 * inner)."""
        weight, bias = prefix(self.qkv_weight, None, heads, None, width).flatten(0, 2), self.qkv_bias
        if bias is None:
            return F.linear(x, weight)
        if bias.dim() > 1:
            return F.linear(x, weight, prefix(bias, None, heads).flatten())
        return F.linear(x, weight, thirds(bias, inner))

    def forward(self, x: Tensor, width: Width, heads: Width, inner: Width) -> Tensor:
        """(B, N, width) to (B, N, width); ``inner`` is heads * head_dim."""
        qkv = self._project(x, width, heads, inner).unflatten(-1, (3, -1, self.head_dim))
        scale = self.head_dim**-0.5
        out = attend_packed(qkv, self.tables(), self.places, scale, self.execution, inner.reads)
        projected: Tensor = self.proj(out, inner, width)
        return projected
