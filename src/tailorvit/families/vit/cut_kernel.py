"""Triton kernels that cut and cast all weights of a block in one launch, and pad their gradients in another.

Cut one by one, the weights of a 14-block ViT of 1.5M parameters took 590 of the 1,483 kernels of a training step on an
H200, one or two microseconds each. Addresses are passed as plain numbers, which a CUDA graph records with the launch.
Sizes are in a table on the device, made once per shape and never freed, since a recording reads it at every replay.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Triton's language is untyped and its kernels are compiled from this text, so mypy and the linter cannot follow them.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,import-untyped"
# ruff: noqa: ANN001, ANN202

MAX_PARAMETERS = 16  # a block with relative position has as many; each is an argument of the kernels
AXES = 4
ROW = 16  # numbers per parameter in the table
BLOCK = 512  # elements per program: a block of a 1.5M-parameter supernet then has work for all 132 multiprocessors
ALIGN = 32  # each gradient starts at a multiple of 128 bytes, for the optimiser's vector loads
ADDRESSES = [f"{kind}{i}" for kind in "ao" for i in range(MAX_PARAMETERS)] + ["inner", "hidden"]


@triton.jit
def _pick(t, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15):
    """The t-th address."""
    low = tl.where(t == 0, a0, tl.where(t == 1, a1, tl.where(t == 2, a2, a3)))
    low = tl.where(t < 4, low, tl.where(t == 4, a4, tl.where(t == 5, a5, tl.where(t == 6, a6, a7))))
    high = tl.where(t == 8, a8, tl.where(t == 9, a9, tl.where(t == 10, a10, a11)))
    high = tl.where(t < 12, high, tl.where(t == 12, a12, tl.where(t == 13, a13, tl.where(t == 14, a14, a15))))
    return tl.where(t < 8, low, high)


@triton.jit
def _masked(value, which, k, live, inner, hidden, kind: tl.constexpr):
    """Values times entries k of a mask in precision ``kind``, as a product of two tensors of that precision rounds."""
    if which > 0:
        mask = tl.where(which == 1, inner, hidden).to(tl.pointer_type(tl.float32))
        switch = tl.load(mask + k, live, 0.0).to(kind).to(tl.float32)
        value = (value.to(kind).to(tl.float32) * switch).to(kind).to(tl.float32)
    return value


@triton.jit(do_not_specialize=ADDRESSES)
def _cut(
    table, work, inner, hidden,
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15,
    o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15,
    half: tl.constexpr, row: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Copy one piece of one parameter's box, in the order of the box, to the new tensor."""
    t = tl.load(work + 2 * tl.program_id(0))
    i = tl.load(work + 2 * tl.program_id(0) + 1) + tl.arange(0, block)
    own = table + t * row
    b0, b1, b2, b3 = tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
    s0, s1, s2, s3 = tl.load(own + 4), tl.load(own + 5), tl.load(own + 6), tl.load(own + 7)
    short, which = tl.load(own + 13), tl.load(own + 14)
    live = i < b0 * b1 * b2 * b3
    k, rest = i % b3, i // b3
    at = k * s3 + (rest % b2) * s2 + (rest // b2 % b1) * s1 + (rest // b2 // b1) * s0
    source = _pick(t, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15)
    target = _pick(t, o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13, o14, o15)
    value = tl.load(source.to(tl.pointer_type(tl.float32)) + at, live, 0.0)
    if short > 0:
        value = _masked(value, which, k, live, inner, hidden, half)
        tl.store(target.to(tl.pointer_type(half)) + i, value.to(half), live)
    else:
        value = _masked(value, which, k, live, inner, hidden, tl.float32)
        tl.store(target.to(tl.pointer_type(tl.float32)) + i, value, live)


@triton.jit(do_not_specialize=ADDRESSES)
def _uncut(
    table, work, whole, inner, hidden,
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15,
    half: tl.constexpr, row: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Write one piece of one parameter's full gradient: that of the box inside, zero around it."""
    t = tl.load(work + 2 * tl.program_id(0))
    i = tl.load(work + 2 * tl.program_id(0) + 1) + tl.arange(0, block)
    own = table + t * row
    b0, b1, b2, b3 = tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
    n0, n1, n2, n3 = tl.load(own + 8), tl.load(own + 9), tl.load(own + 10), tl.load(own + 11)
    start, short, which = tl.load(own + 12), tl.load(own + 13), tl.load(own + 14)
    k, rest = i % n3, i // n3
    i2, i1, i0 = rest % n2, rest // n2 % n1, rest // n2 // n1
    live = (i0 < b0) & (i1 < b1) & (i2 < b2) & (k < b3)
    at = ((i0 * b1 + i1) * b2 + i2) * b3 + k
    source = _pick(t, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15)
    if short > 0:
        value = tl.load(source.to(tl.pointer_type(half)) + at, live, 0.0).to(tl.float32)
        value = _masked(value, which, k, live, inner, hidden, half)
    else:
        value = tl.load(source.to(tl.pointer_type(tl.float32)) + at, live, 0.0)
        value = _masked(value, which, k, live, inner, hidden, tl.float32)
    # Outside the box the mask is not loaded: the value is zero times zero.
    tl.store(whole + start + i, value, i < n0 * n1 * n2 * n3)


# -- launches ---------------------------------------------------------------------------------------------------------

HALVES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
PLACE = "cuda" if isinstance(_cut, triton.JITFunction) else "cpu"  # Triton's interpreter runs on the host
Box = tuple[slice, ...]
Masks = Sequence[Tensor | None]


@dataclass(frozen=True)
class Layout:
    """Tables the kernels read, and sizes, for parameters and boxes of given shapes."""

    table: Tensor  # (parameters, ROW): box, strides, whole shape, start of the gradient, 16 bits?, which mask
    cuts: Tensor  # (programs, 2): parameter, first element in its box
    wholes: Tensor  # (programs, 2): parameter, first element in the whole
    shapes: tuple[tuple[int, ...], ...]  # of the cut tensors
    dtypes: tuple[torch.dtype, ...]
    sizes: tuple[int, ...]  # elements of each gradient, rounded up to ALIGN
    half: Any


_LAYOUTS: dict[Hashable, Layout | None] = {}


def _four(sizes: Sequence[int], fill: int) -> tuple[int, ...]:
    return (fill,) * (AXES - len(sizes)) + tuple(sizes)


def _work(counts: Sequence[int], device: torch.device) -> Tensor:
    """(parameter, first element) of every program, to cover that many elements of each parameter."""
    pieces = [(t, first) for t, count in enumerate(counts) for first in range(0, count, BLOCK)]
    return torch.tensor(pieces, dtype=torch.int32, device=device)


def layout_of(
    boxes: Sequence[Box], dtypes: Sequence[torch.dtype], masks: Masks, whole: Sequence[Tensor]
) -> Layout | None:
    """The layout for these parameters, or None where the kernels cannot handle them; at most two masks."""
    device = whole[0].device
    if device.type != PLACE or (device.index is not None and device.index != torch.cuda.current_device()):
        return None
    parts = []
    for w, box in zip(whole, boxes, strict=True):
        stops = [n if s.stop is None else min(s.stop, n) for n, s in zip(w.shape, box, strict=False)]
        parts.append((*stops, *w.shape[len(box) :]))
    marks = tuple(m is not None for m in masks)
    key = (device, marks, *dtypes, *parts, *((w.shape, w.stride(), w.dtype, w.device) for w in whole))
    if key not in _LAYOUTS:
        if PLACE == "cuda" and torch.cuda.is_current_stream_capturing():
            return None  # a table cannot be copied to the device now; recorders run the work once before
        _LAYOUTS[key] = _make(parts, dtypes, marks, whole)
    return _LAYOUTS[key]


def _make(
    parts: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype], marks: Sequence[bool], whole: Sequence[Tensor]
) -> Layout | None:
    device, short = whole[0].device, {d for d in dtypes if d != torch.float32}
    known = short <= HALVES.keys() and len(short) <= 1 and sum(marks) <= 2 and len(whole) <= MAX_PARAMETERS
    alike = all(w.dtype == torch.float32 and w.device == device and 1 <= w.dim() <= AXES for w in whole)
    sizes = [-(-w.numel() // ALIGN) * ALIGN for w in whole]
    # Kernels count in 32 bits.
    reach = max(sum(n * s for n, s in zip(w.shape, w.stride(), strict=True)) for w in whole)
    if not (known and alike and max(sum(sizes), reach) < 2**31 - BLOCK):
        return None
    rows, shapes, start, which = [], [], 0, 0
    for w, part, dtype, mark, size in zip(whole, parts, dtypes, marks, sizes, strict=True):
        which += mark
        row = [*_four(part, 1), *_four(w.stride(), 0), *_four(w.shape, 1), start, dtype != torch.float32]
        rows.append([int(v) for v in row] + [which if mark else 0, 0])
        last = part[-1:] if len(part) % 2 == 0 else ()
        shapes.append((math.prod(part) // math.prod(last), *last))
        start += size
    table = torch.tensor(rows, dtype=torch.int32, device=device)
    cuts, wholes = _work([math.prod(p) for p in parts], device), _work([w.numel() for w in whole], device)
    half = HALVES[next(iter(short), torch.float32)]
    return Layout(table, cuts, wholes, tuple(shapes), tuple(dtypes), tuple(sizes), half)


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    found = [t.data_ptr() for t in tensors]
    return found + found[:1] * (MAX_PARAMETERS - len(found))


def _switches(masks: Masks, like: Tensor) -> list[Tensor]:
    """Two masks as the kernels read them; a missing one is replaced by any tensor with an address."""
    found = [m.to(torch.float32).contiguous() for m in masks if m is not None]
    return found + [like] * (2 - len(found))


def cut(layout: Layout, masks: Masks, whole: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The boxes of all parameters as new tensors, leading axes merged, times their masks."""
    device = layout.table.device
    out = tuple(torch.empty(s, dtype=d, device=device) for s, d in zip(layout.shapes, layout.dtypes, strict=True))
    first, second = _switches(masks, layout.table)
    _cut[(len(layout.cuts),)](
        layout.table, layout.cuts, first.data_ptr(), second.data_ptr(), *_addresses(whole), *_addresses(out),
        half=layout.half, row=ROW, block=BLOCK,
    )  # fmt: skip
    return out


def uncut(layout: Layout, masks: Masks, grads: Sequence[Tensor], shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Full gradients of the parameters from those of the cut tensors, in one allocation."""
    whole = torch.empty(sum(layout.sizes), dtype=torch.float32, device=layout.table.device)
    grads = [g.contiguous() for g in grads]
    first, second = _switches(masks, layout.table)
    _uncut[(len(layout.wholes),)](
        layout.table, layout.wholes, whole, first.data_ptr(), second.data_ptr(), *_addresses(grads),
        half=layout.half, row=ROW, block=BLOCK,
    )  # fmt: skip
    return [flat[: s.numel()].view(s) for flat, s in zip(whole.split(layout.sizes), shapes, strict=True)]
