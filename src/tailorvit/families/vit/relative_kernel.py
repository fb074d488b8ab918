"""Attention with 2-D relative position as Triton kernels: nothing wider than a head ever reaches memory.

The formula is :mod:`tailorvit.plain.relative`'s. Per query the key tables give one number for each of the 2K+2 rows of
the vertical and of the horizontal table (its *bins*); the numbers a query needs for grid row r and column c are a
window of its bins that starts at its own row and column, so they are read back skewed: ``place`` s of a query is bin
``s - row + K + 1``. Logits then are ``q k^T + places onehot^T`` on the matrix units, and
what the values' tables need is ``attention @ onehot``, written back through the same skew.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tailorvit.families.vit import relative
from tailorvit.families.vit.relative import half_of, power

# Triton's language is untyped and its kernels are compiled from this text, so mypy and the linter cannot follow them.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,import-untyped"
# ruff: noqa: ANN001, ANN202, E501, SIM102


@triton.jit
def _to_places(bins, i, s, b, tokens: tl.constexpr, high: tl.constexpr, wide: tl.constexpr, reach: tl.constexpr, half: tl.constexpr):  # fmt: skip
    """(queries, places) from (queries, bins); the class token's place takes bins 0 and ``half``, its query has none."""
    row, column = (i - 1) // wide, (i - 1) % wide
    down = reach + 1 + s[None, :] - row[:, None]
    across = half + reach + 1 + (s[None, :] - high) - column[:, None]
    inner = tl.where(s[None, :] < high, down, across)
    live = ((i > 0) & (i < tokens))[:, None]
    found = tl.gather(bins, tl.where(live & (s[None, :] < high + wide), inner, 0), 1)
    token = tl.sum(tl.where((b[None, :] == 0) | (b[None, :] == half), bins, 0.0), 1)
    found = tl.where(s[None, :] == high + wide, token[:, None], found)
    return tl.where(live & (s[None, :] <= high + wide), found, 0.0)


@triton.jit
def _to_bins(places, first, i, b, high: tl.constexpr, wide: tl.constexpr, reach: tl.constexpr, half: tl.constexpr):
    """(queries, bins) from (queries, places); zero outside a query's windows; the class token's query has ``first``."""
    row, column = (i - 1) // wide, (i - 1) % wide
    down = b[None, :] - (reach + 1) + row[:, None]
    across = b[None, :] - half - (reach + 1) + column[:, None]
    token = (b[None, :] == 0) | (b[None, :] == half)
    vertical = (b[None, :] < half) & (down >= 0) & (down < high)
    horizontal = (b[None, :] >= half) & (across >= 0) & (across < wide)
    inner = tl.where(vertical, down, tl.where(horizontal, high + across, 0))
    found = tl.gather(places, tl.where(token, high + wide, inner), 1)
    found = tl.where(token | vertical | horizontal, found, 0.0)
    return tl.where((i == 0)[:, None], tl.where(token, first, 0.0), found)


@triton.jit
def _forward(
    qkv, key_table, value_table, hot, alive, out, lse, kept, heads, scale,
    tokens: tl.constexpr, dim: tl.constexpr, high: tl.constexpr, wide: tl.constexpr, reach: tl.constexpr,
    half: tl.constexpr, places: tl.constexpr, some: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head: output and log-sum-exp; ``kept`` are their places."""
    block, which = tl.program_id(0), tl.program_id(1).to(tl.int64)
    image, head = which // heads, which % heads
    stride = 3 * heads * dim
    base = qkv + image * tokens * stride + head * dim
    i, d, s = block * rows + tl.arange(0, rows), tl.arange(0, dim), tl.arange(0, places)
    b = tl.arange(0, 2 * half)
    inside = (i < tokens)[:, None]
    at = out + (image * tokens * heads + head) * dim + i[:, None] * (heads * dim) + d[None, :]
    if some:
        if tl.load(alive + head * dim) == 0:
            tl.store(at, tl.zeros([rows, dim], out.dtype.element_ty), inside)
            return
    q = tl.load(base + i[:, None] * stride + d[None, :], inside, 0.0)
    kind = q.dtype
    table = tl.load(key_table + b[None, :] * dim + d[:, None])
    place = _to_places(tl.dot(q, table), i, s, b, tokens, high, wide, reach, half).to(kind)
    tl.store(kept + which * tokens * places + i[:, None] * places + s[None, :], place, inside)

    top = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    acc = tl.zeros([rows, dim], tl.float32)
    mass = tl.zeros([rows, places], tl.float32)
    for start in range(0, tokens, columns):
        j = start + tl.arange(0, columns)
        k = tl.load(base + heads * dim + j[None, :] * stride + d[:, None], (j < tokens)[None, :], 0.0)
        v = tl.load(base + 2 * heads * dim + j[:, None] * stride + d[None, :], (j < tokens)[:, None], 0.0)
        mark = tl.load(hot + j[:, None] * places + s[None, :])
        logits = tl.dot(place, tl.trans(mark), tl.dot(q, k)) * (scale * 1.4426950408889634)
        logits = tl.where((j < tokens)[None, :], logits, float("-inf"))
        peak = tl.maximum(top, tl.max(logits, 1))
        weight = tl.exp2(logits - peak[:, None])
        fade = tl.exp2(top - peak)
        total = total * fade + tl.sum(weight, 1)
        weight = weight.to(kind)
        acc = tl.dot(weight, v, acc * fade[:, None])
        mass = tl.dot(weight, mark, mass * fade[:, None])
        top = peak
    acc = acc / total[:, None]
    mine = _to_bins(mass / total[:, None], 1.0, i, b, high, wide, reach, half).to(kind)
    acc = tl.dot(mine, tl.load(value_table + b[:, None] * dim + d[None, :]), acc)
    tl.store(at, acc.to(kind), inside)
    tl.store(lse + which * tokens + i, top + tl.log2(total), i < tokens)


@triton.jit
def _queries(
    qkv, key_table, value_table, hot, alive, out, lse, kept, grad, pulls, delta, bins, d_bins, d_qkv, heads, scale,
    tokens: tl.constexpr, dim: tl.constexpr, high: tl.constexpr, wide: tl.constexpr, reach: tl.constexpr,
    half: tl.constexpr, places: tl.constexpr, some: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of queries; leaves what the keys need (``pulls``, ``delta``) and what the tables need.

    For the value tables that is the mass of attention in bins, made again here rather than kept from the forward pass:
    as wide as a head, it was an eleventh of a block's memory.
    """
    block, which = tl.program_id(0), tl.program_id(1).to(tl.int64)
    image, head = which // heads, which % heads
    stride = 3 * heads * dim
    base = qkv + image * tokens * stride + head * dim
    of_out = (image * tokens * heads + head) * dim
    i, d, s = block * rows + tl.arange(0, rows), tl.arange(0, dim), tl.arange(0, places)
    b = tl.arange(0, 2 * half)
    inside = (i < tokens)[:, None]
    kind = qkv.dtype.element_ty
    to = d_qkv + image * tokens * stride + head * dim + i[:, None] * stride + d[None, :]
    if some:
        if tl.load(alive + head * dim) == 0:
            tl.store(to, tl.zeros([rows, dim], kind), inside)
            return
    g = tl.load(grad + of_out + i[:, None] * (heads * dim) + d[None, :], inside, 0.0)
    o = tl.load(out + of_out + i[:, None] * (heads * dim) + d[None, :], inside, 0.0)
    away = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    # The class token's query has one table row for every key. That adds the same to all its logits, which softmax
    # ignores, and the same vector to its output whatever the weights: it is no part of their gradient.
    token = tl.load(value_table + d).to(tl.float32) + tl.load(value_table + half * dim + d).to(tl.float32)
    away -= tl.where(i == 0, tl.sum(g.to(tl.float32) * token[None, :], 1), 0.0)
    tl.store(delta + which * tokens + i, away, i < tokens)
    table = tl.load(value_table + b[None, :] * dim + d[:, None])
    pull = _to_places(tl.dot(g, table), i, s, b, tokens, high, wide, reach, half).to(kind)
    of_place = which * tokens * places + i[:, None] * places + s[None, :]
    tl.store(pulls + of_place, pull, inside)
    place = tl.load(kept + of_place, inside, 0.0)
    q = tl.load(base + i[:, None] * stride + d[None, :], inside, 0.0)
    level = tl.load(lse + which * tokens + i, i < tokens, float("inf"))

    dq = tl.zeros([rows, dim], tl.float32)
    d_place = tl.zeros([rows, places], tl.float32)
    mass = tl.zeros([rows, places], tl.float32)
    for start in range(0, tokens, columns):
        j = start + tl.arange(0, columns)
        k = tl.load(base + heads * dim + j[:, None] * stride + d[None, :], (j < tokens)[:, None], 0.0)
        v = tl.load(base + 2 * heads * dim + j[None, :] * stride + d[:, None], (j < tokens)[None, :], 0.0)
        mark = tl.load(hot + j[:, None] * places + s[None, :])
        logits = tl.dot(place, tl.trans(mark), tl.dot(q, tl.trans(k))) * (scale * 1.4426950408889634)
        weight = tl.where((j < tokens)[None, :], tl.exp2(logits - level[:, None]), 0.0)
        d_weight = tl.dot(pull, tl.trans(mark), tl.dot(g, v))
        d_logits = (weight * (d_weight - away[:, None]) * scale).to(kind)
        dq = tl.dot(d_logits, k, dq)
        d_place = tl.dot(d_logits, mark, d_place)
        mass = tl.dot(weight.to(kind), mark, mass)
    of_bin = which * tokens * (2 * half) + i[:, None] * (2 * half) + b[None, :]
    tl.store(bins + of_bin, _to_bins(mass, 1.0, i, b, high, wide, reach, half).to(kind), inside)
    mine = _to_bins(d_place, 0.0, i, b, high, wide, reach, half).to(kind)
    tl.store(d_bins + of_bin, mine, inside)
    dq = tl.dot(mine, tl.load(key_table + b[:, None] * dim + d[None, :]), dq)
    tl.store(to, dq.to(kind), inside)


@triton.jit
def _keys(
    qkv, hot, alive, lse, kept, grad, pulls, delta, d_qkv, heads, scale,
    tokens: tl.constexpr, dim: tl.constexpr, places: tl.constexpr, some: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys and values."""
    block, which = tl.program_id(0), tl.program_id(1).to(tl.int64)
    image, head = which // heads, which % heads
    stride = 3 * heads * dim
    base = qkv + image * tokens * stride + head * dim
    of_out = (image * tokens * heads + head) * dim
    j, d, s = block * columns + tl.arange(0, columns), tl.arange(0, dim), tl.arange(0, places)
    there = (j < tokens)[:, None]
    kind = qkv.dtype.element_ty
    to = d_qkv + image * tokens * stride + (heads + head) * dim + j[:, None] * stride + d[None, :]
    if some:
        if tl.load(alive + head * dim) == 0:
            tl.store(to, tl.zeros([columns, dim], kind), there)
            tl.store(to + heads * dim, tl.zeros([columns, dim], kind), there)
            return
    k = tl.load(base + heads * dim + j[:, None] * stride + d[None, :], there, 0.0)
    v = tl.load(base + 2 * heads * dim + j[:, None] * stride + d[None, :], there, 0.0)
    mark = tl.load(hot + j[:, None] * places + s[None, :])
    dk = tl.zeros([columns, dim], tl.float32)
    dv = tl.zeros([columns, dim], tl.float32)
    for first in range(0, tokens, rows):
        i = first + tl.arange(0, rows)
        inside = (i < tokens)[:, None]
        q = tl.load(base + i[:, None] * stride + d[None, :], inside, 0.0)
        g = tl.load(grad + of_out + i[:, None] * (heads * dim) + d[None, :], inside, 0.0)
        of_place = which * tokens * places + i[:, None] * places + s[None, :]
        place = tl.load(kept + of_place, inside, 0.0)
        pull = tl.load(pulls + of_place, inside, 0.0)
        level = tl.load(lse + which * tokens + i, i < tokens, float("inf"))
        away = tl.load(delta + which * tokens + i, i < tokens, 0.0)
        logits = tl.dot(mark, tl.trans(place), tl.dot(k, tl.trans(q))) * (scale * 1.4426950408889634)  # keys x queries
        weight = tl.exp2(logits - level[None, :])  # rows of absent keys are never stored, absent queries weigh nothing
        dv = tl.dot(weight.to(kind), g, dv)
        d_weight = tl.dot(mark, tl.trans(pull), tl.dot(v, tl.trans(g)))
        d_logits = (weight * (d_weight - away[None, :]) * scale).to(kind)
        dk = tl.dot(d_logits, q, dk)
    tl.store(to, dk.to(kind), there)
    tl.store(to + heads * dim, dv.to(kind), there)


@triton.jit
def _tables(
    qkv, grad, alive, d_bins, bins, d_key, d_value, heads, every, step,
    tokens: tl.constexpr, dim: tl.constexpr, half: tl.constexpr, some: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    """A share of the tables' gradients: bins^T q and bins^T g, summed over every ``step``-th head."""
    stride = 3 * heads * dim
    d, b = tl.arange(0, dim), tl.arange(0, 2 * half)
    keys = tl.zeros([2 * half, dim], tl.float32)
    values = tl.zeros([2 * half, dim], tl.float32)
    pid = tl.program_id(0).to(tl.int64)
    for turn in range(0, (every - pid + step - 1) // step):
        which = pid + turn * step
        image, head = which // heads, which % heads
        count = tokens
        if some:
            count = tl.where(tl.load(alive + head * dim) == 0, 0, tokens)
        for first in range(0, count, rows):
            i = first + tl.arange(0, rows)
            inside = (i < tokens)[:, None]
            of_bin = which * tokens * (2 * half) + i[None, :] * (2 * half) + b[:, None]
            q = tl.load(qkv + image * tokens * stride + head * dim + i[:, None] * stride + d[None, :], inside, 0.0)
            keys = tl.dot(tl.load(d_bins + of_bin, (i < tokens)[None, :], 0.0), q, keys)
            at = (image * tokens * heads + head) * dim + i[:, None] * (heads * dim) + d[None, :]
            g = tl.load(grad + at, inside, 0.0)
            values = tl.dot(tl.load(bins + of_bin, (i < tokens)[None, :], 0.0), g, values)
    flat = pid * (2 * half * dim) + b[:, None] * dim + d[None, :]
    tl.store(d_key + flat, keys)
    tl.store(d_value + flat, values)


# -- operators --------------------------------------------------------------------------------------------------------

# Measured on an H200 (benchmarks/speed/tiles.py): rows and columns of a tile, warps, stages of the load pipeline.
TILES: dict[str, dict[str, int]] = {
    "forward": {"rows": 64, "columns": 32, "num_warps": 4, "num_stages": 3},
    "queries": {"rows": 64, "columns": 32, "num_warps": 4, "num_stages": 3},
    "keys": {"rows": 32, "columns": 64, "num_warps": 4, "num_stages": 2},
    "tables": {"rows": 64, "num_warps": 4, "num_stages": 3},
}
# For up to a hundred tokens: 65 of them would fill two tiles of 64 rows, the second with one query.
FEW: dict[str, dict[str, int]] = {
    "forward": {"rows": 16, "columns": 16, "num_warps": 1},
    "queries": {"rows": 16, "num_warps": 1},
    "keys": {"num_stages": 3},
}
SHARES = 528  # programs that sum up the tables' gradients: four for each of 132 multiprocessors


def _tile(name: str, tokens: int) -> dict[str, int]:
    return {**TILES[name], **(FEW.get(name, {}) if tokens <= 100 else {})}


def _shape(qkv: Tensor, grid: list[int], reach: int) -> dict[str, Any]:
    high, wide = grid
    sizes = {"high": high, "wide": wide, "reach": reach, "half": half_of(reach), "places": power(high + wide + 1)}
    return {"tokens": qkv.shape[1], "dim": qkv.shape[4], **sizes}


def _blocks(tokens: int, tile: int) -> int:
    return -(-tokens // tile)


@torch.library.custom_op("tailorvit::relative_attention", mutates_args=())
def relative_attention(
    qkv: Tensor, key_table: Tensor, value_table: Tensor, hot: Tensor, alive: Tensor | None,
    grid: list[int], reach: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(B, N, 3, H, D) and two tables of bins (2 half, D) to the output (B, N, H, D), and what its gradient needs.

    Heads whose entries of ``alive`` (H * D) are zero are left out: their output and gradients are zero.
    """
    qkv = qkv.contiguous()
    images, tokens, _, heads, dim = qkv.shape
    shape, tile = _shape(qkv, grid, reach), _tile("forward", tokens)
    out = qkv.new_empty(images, tokens, heads, dim)
    lse = qkv.new_empty(images, heads, tokens, dtype=torch.float32)
    kept = qkv.new_empty(images, heads, tokens, shape["places"])
    _forward[(_blocks(tokens, tile["rows"]), images * heads)](
        qkv, key_table, value_table, hot, hot if alive is None else alive, out, lse, kept, heads, scale,
        some=alive is not None, **shape, **tile,
    )  # fmt: skip
    return out, lse, kept


@relative_attention.register_fake
def _(
    qkv: Tensor, key_table: Tensor, value_table: Tensor, hot: Tensor, alive: Tensor | None,
    grid: list[int], reach: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    images, tokens, _, heads, dim = qkv.shape
    return (
        qkv.new_empty(images, tokens, heads, dim),
        qkv.new_empty(images, heads, tokens, dtype=torch.float32),
        qkv.new_empty(images, heads, tokens, hot.shape[1]),
    )


@torch.library.custom_op("tailorvit::relative_attention_grad", mutates_args=())
def relative_attention_grad(
    grad: Tensor, qkv: Tensor, key_table: Tensor, value_table: Tensor, hot: Tensor, alive: Tensor | None,
    out: Tensor, lse: Tensor, kept: Tensor, grid: list[int], reach: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the projections and of both tables."""
    qkv, grad = qkv.contiguous(), grad.contiguous()
    images, tokens, _, heads, dim = qkv.shape
    shape, every = _shape(qkv, grid, reach), images * heads
    d_qkv, pulls, delta = (torch.empty_like(t) for t in (qkv, kept, lse))
    bins, d_bins = (qkv.new_empty(images, heads, tokens, 2 * shape["half"]) for _ in range(2))
    tile, some = _tile("queries", tokens), {"some": alive is not None}
    on = hot if alive is None else alive
    _queries[(_blocks(tokens, tile["rows"]), every)](
        qkv, key_table, value_table, hot, on, out, lse, kept, grad, pulls, delta, bins, d_bins, d_qkv, heads, scale,
        **shape, **some, **tile,
    )  # fmt: skip
    tile = _tile("keys", tokens)
    narrow = {k: shape[k] for k in ("tokens", "dim", "places")}
    _keys[(_blocks(tokens, tile["columns"]), every)](
        qkv, hot, on, lse, kept, grad, pulls, delta, d_qkv, heads, scale, **narrow, **some, **tile
    )  # fmt: skip
    shares = min(SHARES, every)
    sums = qkv.new_empty(2, shares, 2 * shape["half"], dim, dtype=torch.float32)
    narrow = {k: shape[k] for k in ("tokens", "dim", "half")}
    _tables[(shares,)](
        qkv, grad, on, d_bins, bins, sums[0], sums[1], heads, every, shares, **narrow, **some, **TILES["tables"]
    )  # fmt: skip
    key, value = sums.sum(1).to(key_table.dtype).unbind(0)
    return d_qkv, key.clone(), value.clone()


@relative_attention_grad.register_fake
def _(
    grad: Tensor, qkv: Tensor, key_table: Tensor, value_table: Tensor, hot: Tensor, alive: Tensor | None,
    out: Tensor, lse: Tensor, kept: Tensor, grid: list[int], reach: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    whole = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    return whole, torch.empty_like(key_table), torch.empty_like(value_table)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.grid, ctx.reach, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)  # alive may be None, which is kept as such
    ctx.mark_non_differentiable(*output[1:])


def _gradients(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    found = relative_attention_grad(grad, *ctx.saved_tensors, ctx.grid, ctx.reach, ctx.scale)
    return (*found, None, None, None, None, None)


relative_attention.register_autograd(_gradients, setup_context=_keep)
relative.KERNEL = relative_attention
