"""Attention with 2-D relative position on keys and values (AutoFormer), three exact executions of one formula.

For patches i, j the offset rows - and columns - between them, clamped to +-K, pick a row of a vertical and a
horizontal table; row 0 serves every pair with the class token. Keys' tables add to the logits, values' tables to the
output. ``dense`` builds the (N, N, head_dim) sums as the released code does; ``factored`` multiplies by the tables and
gathers; ``fused`` widens queries, keys and values so that one fused kernel does all of it in memory linear in N;
``kernel`` is our own on a GPU in 16 bits (:mod:`tailorvit.plain.relative_kernel`), without the widening.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Execution = Literal["auto", "kernel", "fused", "factored", "dense"]
EXECUTIONS: tuple[Execution, ...] = ("fused", "factored", "dense")
DENSE_TOKENS = 32  # dense sums are quicker on a CPU with 17 tokens, 2.7 times slower with 65 (benchmarks/speed/cpu.py)
Grid = tuple[int, int]
# Whether our Triton kernels can run here: Triton comes with torch for CUDA on Linux.
TRITON = torch.cuda.is_available() and find_spec("triton") is not None
TILE = 128  # the most keys our kernel takes at a time
KERNEL: Callable[..., tuple[Tensor, ...]] | None = None  # relative_kernel.py puts itself here where it can run


class Tables(NamedTuple):
    """Row (vertical) and column (horizontal) tables for keys and for values, each (2K+2, head_dim)."""

    key_v: Tensor
    key_h: Tensor
    value_v: Tensor
    value_h: Tensor


def table_rows(reach: int) -> int:
    """Rows of a table that tells offsets up to +-reach apart, with row 0 for the class token."""
    return 2 * reach + 2


def power(n: int) -> int:
    """The next power of two, at least 16, the least the matrix units take."""
    return max(16, 1 << (n - 1).bit_length())


def half_of(reach: int) -> int:
    """Bins our kernel sets aside for one table."""
    return power(table_rows(reach))


def _offsets(size: int, reach: int) -> Tensor:
    """(size, size): the table row for a key at position s as seen from a query at position r."""
    place = torch.arange(size)
    return (place[None, :] - place[:, None]).clamp(-reach, reach) + reach + 1


class Places(nn.Module):
    """Where the tokens of a grid lie: made once per network, moved with it, never saved.

    ``up`` and ``side`` hold the table rows between grid rows and between grid columns; ``mark`` says for every key
    which row and column it lies in and whether it is the class token, padded for the fused kernels; ``onehot`` is the
    same, padded for ours.
    """

    up: Tensor
    side: Tensor
    mark: Tensor
    onehot: Tensor

    def __init__(self, grid: Grid, reach: int, head_dim: int) -> None:
        super().__init__()
        self.grid, self.reach = grid, reach
        high, wide = grid
        row = torch.eye(high).repeat_interleave(wide, 0)
        column = torch.eye(wide).repeat(high, 1)
        token = torch.zeros(1, high + wide + 1)
        token[0, high + wide] = 1
        mark = torch.cat([token, F.pad(torch.cat([row, column], 1), (0, 1))])
        tall, broad = -(-mark.shape[0] // TILE) * TILE - mark.shape[0], power(mark.shape[1]) - mark.shape[1]
        self.register_buffer("onehot", F.pad(mark, (0, broad, 0, tall)), persistent=False)
        self.padding = fused_width(head_dim, grid) - head_dim - mark.shape[1]
        self.register_buffer("up", _offsets(high, reach), persistent=False)
        self.register_buffer("side", _offsets(wide, reach), persistent=False)
        self.register_buffer("mark", F.pad(mark, (0, self.padding)), persistent=False)

    def pairs(self) -> tuple[Tensor, Tensor]:
        """(N, N) table rows of every token pair, vertical and horizontal; row and column 0 are the class token."""
        high, wide = self.grid
        vertical = self.up.repeat_interleave(wide, 0).repeat_interleave(wide, 1)
        horizontal = self.side.repeat(high, high)
        return F.pad(vertical, (1, 0, 1, 0)), F.pad(horizontal, (1, 0, 1, 0))


def attend_packed(
    qkv: Tensor,
    tables: Tables | None,
    places: Places,
    scale: float,
    execution: Execution = "auto",
    alive: Tensor | None = None,
) -> Tensor:
    """Attention of (B, N, 3, H, D) projections to (B, N, H * D); ``auto`` takes the fastest exact execution.

    Heads whose entries of ``alive`` (H * D) are zero are read by nobody and may be left out (ours does, leaving zeros).
    """
    if tables is not None and KERNEL is not None and execution in ("auto", "kernel") and _kernel_serves(qkv, places):
        keys, values = (
            torch.cat([F.pad(t, (0, 0, 0, half_of(places.reach) - t.shape[0])) for t in pair]).to(qkv.dtype)
            for pair in (tables[:2], tables[2:])
        )
        onehot = places.onehot.to(qkv.dtype)
        return KERNEL(qkv, keys, values, onehot, alive, list(places.grid), places.reach, scale)[0].flatten(2)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return attend(q, k, v, tables, places, scale, execution).transpose(1, 2).flatten(2)


def _kernel_serves(qkv: Tensor, places: Places) -> bool:
    """On a GPU in 16 bits, where offsets are never clamped and heads have a width the matrix units take."""
    fits = max(places.grid) <= places.reach + 1 and places.reach < 64 and qkv.shape[-1] in (16, 32, 64, 128)
    return qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16) and fits


def attend(
    q: Tensor, k: Tensor, v: Tensor, tables: Tables | None, places: Places, scale: float, execution: Execution = "auto"
) -> Tensor:
    """Attention of (B, H, N, D) tensors, token 0 being the class token; relative position where tables are given."""
    if tables is None:
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    if execution in ("auto", "kernel"):
        execution = "dense" if q.device.type == "cpu" and q.shape[-2] <= DENSE_TOKENS else "fused"
    return _EXECUTE[execution](q, k, v, tables, places, scale)


def attention_weights(q: Tensor, k: Tensor, tables: Tables | None, places: Places, scale: float) -> Tensor:
    """The (B, H, N, N) attention itself, for looking at it."""
    logits = q @ k.transpose(-2, -1)
    if tables is not None:
        logits = logits + _gathered(q, tables, places)
    return _softmax(logits * scale)


def _softmax(logits: Tensor) -> Tensor:
    """At least in float32, whatever the products were in."""
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).to(logits.dtype)


def _gathered(q: Tensor, tables: Tables, places: Places) -> Tensor:
    """q . (Tk_v[dv] + Tk_h[dh]) for every pair, through (N, 2K+2) products instead of (N, N, D) tables."""
    vertical, horizontal = places.pairs()
    shape = (*q.shape[:-1], q.shape[-2])
    return (q @ tables.key_v.T).gather(-1, vertical.expand(shape)) + (q @ tables.key_h.T).gather(
        -1, horizontal.expand(shape)
    )


def _factored(q: Tensor, k: Tensor, v: Tensor, tables: Tables, places: Places, scale: float) -> Tensor:
    attention = attention_weights(q, k, tables, places, scale)
    out = attention @ v
    for index, table in zip(places.pairs(), (tables.value_v, tables.value_h), strict=True):
        bins = attention.new_zeros(*attention.shape[:-1], table.shape[0])
        out = out + bins.scatter_add(-1, index.expand(attention.shape), attention) @ table
    return out


def _dense(q: Tensor, k: Tensor, v: Tensor, tables: Tables, places: Places, scale: float) -> Tensor:
    vertical, horizontal = places.pairs()
    keys = tables.key_v[vertical] + tables.key_h[horizontal]
    values = tables.value_v[vertical] + tables.value_h[horizontal]
    logits = q @ k.transpose(-2, -1) + torch.einsum("bhid,ijd->bhij", q, keys)
    attention = _softmax(logits * scale)
    return attention @ v + torch.einsum("bhij,ijd->bhid", attention, values)


def fused_width(head_dim: int, grid: Grid) -> int:
    """The feature width of the fused execution: head + rows + columns + class, to a multiple of 8 for the kernels."""
    return -(-(head_dim + grid[0] + grid[1] + 1) // 8) * 8


def _fused(q: Tensor, k: Tensor, v: Tensor, tables: Tables, places: Places, scale: float) -> Tensor:
    batch, heads, _, dim = q.shape
    grid, up, side = places.grid, places.up, places.side
    high, wide = grid

    # A class-token query adds the same number to all its logits, which softmax ignores: its features stay zero.
    patches = q[:, :, 1:].unflatten(2, grid)
    by_row = torch.einsum("bhrcd,rsd->bhrcs", patches, tables.key_v[up].to(q.dtype))
    by_column = torch.einsum("bhrcd,csd->bhrcs", patches, tables.key_h[side].to(q.dtype))
    by_class = patches @ (tables.key_v[0] + tables.key_h[0]).to(q.dtype)[:, None]
    features = torch.cat([by_row, by_column, by_class], -1).flatten(2, 3)
    place = places.mark.to(q.dtype).expand(batch, heads, -1, -1)
    out = F.scaled_dot_product_attention(
        torch.cat([q, F.pad(features, (0, places.padding, 1, 0))], -1),
        torch.cat([k, place], -1),
        torch.cat([v, place], -1),
        scale=scale,
    )

    mass = out[:, :, 1:, dim : dim + high + wide + 1].unflatten(2, grid)
    on_rows, on_columns, on_class = mass.split([high, wide, 1], -1)
    extra = torch.einsum("bhrcs,rsd->bhrcd", on_rows, tables.value_v[up].to(q.dtype))
    extra = extra + torch.einsum("bhrcs,csd->bhrcd", on_columns, tables.value_h[side].to(q.dtype))
    token = (tables.value_v[0] + tables.value_h[0]).to(q.dtype)
    extra = extra + on_class * token
    first = token.expand(batch, heads, 1, dim)
    return out[..., :dim] + torch.cat([first, extra.flatten(2, 3)], 2)


_EXECUTE = {"fused": _fused, "factored": _factored, "dense": _dense}
