"""Elastic layers: linear, norm, patch embedding, MLP, attention, drop path, and layers with channels per head."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.elastic.slicing import Width, prefix, thirds
from tailorvit.plain.relative import Execution, Places, Tables, attend_packed, table_rows

# Whether our Triton kernels can run here: Triton comes with torch for CUDA on Linux.
TRITON = torch.cuda.is_available() and find_spec("triton") is not None
if TRITON:
    # The kernel registers itself with plain/relative.py, which may import nothing of ours: exports carry it as text.
    import tailorvit.plain.relative_kernel  # noqa: F401


class Linear(nn.Module):
    """A linear layer with elastic input and output; ``out=None`` keeps all outputs (a classifier)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor, inputs: Width, out: Width | None) -> Tensor:
        """(..., inputs) to (..., out)."""
        weight = prefix(self.weight, out, inputs)
        # A zero weight neither reads an entry nor sends a gradient to it, so the layers before it get none either.
        return F.linear(x, weight if inputs.reads is None else weight * inputs.reads, prefix(self.bias, out))


class LayerNorm(nn.Module):
    """Normalises over the entries in use."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor, width: Width) -> Tensor:
        """Same shape out as in."""
        return F.layer_norm(x, (width.size,), prefix(self.weight, width), prefix(self.bias, width), self.eps)


class PatchEmbed(nn.Module):
    """Patches to tokens as one linear layer over unfolded pixels; the same weights as a strided convolution's."""

    def __init__(self, channels: int, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.weight = nn.Parameter(torch.empty(width, channels, patch, patch))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor, width: Width) -> Tensor:
        """(B, C, H, W) to (B, n, width)."""
        p = self.patch
        x = x.unflatten(-2, (-1, p)).unflatten(-1, (-1, p)).movedim((-4, -2), (-5, -4))  # B rows columns C p p
        x = x.flatten(-3).flatten(-3, -2)
        return F.linear(x, prefix(self.weight, width).flatten(1), prefix(self.bias, width))


class Mlp(nn.Module):
    """Two linear layers around a GELU with an elastic hidden width."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = Linear(width, hidden), Linear(hidden, width)

    def forward(self, x: Tensor, width: Width, hidden: Width) -> Tensor:
        """Same shape out as in."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x, width, hidden)), hidden, width)
        return out


class Attention(nn.Module):
    """Multi-head attention with AutoFormer's relative position; heads are a prefix, their width never changes.

    The weight has the shape (3, heads, head_dim, width), so head j uses the same rows in every sub-network. So does the
    bias, unless ``official``: then it is flat and cut as in the released AutoFormer.
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
        shape = (3 * heads * head_dim,) if official else (3, heads, head_dim)
        self.qkv_bias = nn.Parameter(torch.empty(shape)) if bias else None
        self.proj = Linear(heads * head_dim, width)
        self.reach = reach
        if reach is not None:
            for name in Tables._fields:
                self.register_parameter(f"rel_{name}", nn.Parameter(torch.empty(table_rows(reach), head_dim)))

    def tables(self) -> Tables | None:
        """The four relative-position tables, which every sub-network uses whole."""
        return None if self.reach is None else Tables(*(getattr(self, f"rel_{n}") for n in Tables._fields))

    def forward(self, x: Tensor, width: Width, heads: Width, inner: Width) -> Tensor:
        """(B, N, width) to (B, N, width); ``inner`` is heads * head_dim."""
        weight = prefix(self.qkv_weight, None, heads, None, width).flatten(0, 2)
        bias: Tensor | None = self.qkv_bias
        if bias is not None:
            bias = thirds(bias, inner) if bias.dim() == 1 else prefix(bias, None, heads).flatten()
        qkv = F.linear(x, weight, bias).unflatten(-1, (3, -1, self.head_dim))
        scale = self.head_dim**-0.5
        out = attend_packed(qkv, self.tables(), self.places, scale, self.execution, inner.reads)
        projected: Tensor = self.proj(out, inner, width)
        return projected


def drop_path(x: Tensor, rate: float, training: bool) -> Tensor:
    """Drop a residual branch per sample and rescale the others."""
    if not training or rate == 0:
        return x
    keep = 1 - rate
    return x * x.new_empty(*x.shape[:-2], 1, 1).bernoulli_(keep) / keep


# -- channels per head ------------------------------------------------------------------------------------------------
# Layers whose channels lie on two axes, (heads, width of a head), each cut by itself.

Axes = tuple[Width | None, ...]


class PlainAxis(NamedTuple):
    """Axes of a parameter that are one axis in the plain network, and the stage whose channels they are, if any."""

    axes: Axes
    stage: int | None = None


class Filters(nn.Module):
    """One number or filter per channel: a norm, a convolution."""

    def __init__(self, out: tuple[int, int], *kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*out, *kernel))
        self.bias = nn.Parameter(torch.empty(*out))

    def cut(self, out: Axes) -> tuple[Tensor, Tensor]:
        """Weight (channels, *kernel) and bias (channels) in use."""
        return prefix(self.weight, *out).flatten(0, 1), prefix(self.bias, *out).flatten()


class Dense(nn.Module):
    """A linear layer whose outputs and inputs each span one or more axes."""

    def __init__(self, out: tuple[int, ...], inputs: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*out, *inputs))
        self.bias = nn.Parameter(torch.empty(*out))

    def forward(self, x: Tensor, out: Axes, inputs: Axes) -> Tensor:
        """(..., inputs) to (..., out)."""
        bias = prefix(self.bias, *out)
        weight = prefix(self.weight, *out, *inputs).flatten(bias.dim()).flatten(0, -2)
        return F.linear(x, weight, bias.flatten())
