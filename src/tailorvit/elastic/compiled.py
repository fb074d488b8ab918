"""Sliced ViT blocks through the compiler: weights are cut first, so that all blocks of one shape share one graph.

A compiler that sees a prefix of a weight asks whether the prefix is the whole, and makes a new graph for each answer.
Cut outside, in one step that also brings the weights to the precision of the products, they are ordinary tensors. Open
widths in one graph would serve every architecture, but their kernels were half as fast on an H200 (docs/log.md), so
shapes are fixed: one graph per embedding width, when heads and hidden widths are switched instead of cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tailorvit.elastic.kernels import AVAILABLE
from tailorvit.elastic.slicing import Width, thirds
from tailorvit.plain.relative import Execution, Places, Tables, attend_packed

Slices = Mapping[str, tuple[Width | None, ...]]
# (block, x, the prefixes in use, switches of inner and hidden entries) to the block's output
Fast = Callable[[Any, Tensor, Slices, Tensor | None, Tensor | None], Tensor]
Pair = tuple[Tensor, Tensor]
Box = tuple[slice, ...]

FUSED_CUT = True  # off: every weight cut by launches of its own, as on a CPU
KERNEL: Any = None  # elastic/cut_kernel.py where it can run
if AVAILABLE:
    from tailorvit.elastic import cut_kernel

    KERNEL = cut_kernel


class Cut(torch.autograd.Function):
    """Prefixes of parameters as tensors of their own, in another precision where asked; gradients go back whole."""

    @staticmethod
    def forward(
        ctx: Any, boxes: list[Box], dtypes: list[torch.dtype], masks: list[Tensor | None], *whole: Tensor
    ) -> Any:
        """One tensor per box, leading axes merged: Q, K and V lie on (3, heads, width of a head).

        A mask switches entries of the last axis off; it gets no gradient.
        """
        ctx.boxes, ctx.shapes, ctx.like, ctx.masks = boxes, [w.shape for w in whole], whole[0], masks
        ctx.layout = KERNEL.layout_of(boxes, dtypes, masks, whole) if FUSED_CUT and KERNEL is not None else None
        if ctx.layout is not None:
            return KERNEL.cut(ctx.layout, masks, whole)
        out = []
        for w, box, dtype, mask in zip(whole, boxes, dtypes, masks, strict=True):
            part = w[box]
            last = part.shape[-1:] if w.dim() % 2 == 0 else ()
            # Written into a tensor of its own: the compiler looks through views, at the shapes they are views of.
            made = torch.empty(part.numel() // math.prod(last), *last, dtype=dtype, device=w.device)
            made.view(part.shape).copy_(part)
            out.append(made if mask is None else made.mul_(mask.to(dtype)))
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Zeros around each gradient, all out of one allocation."""
        if ctx.layout is not None:
            return None, None, None, *KERNEL.uncut(ctx.layout, ctx.masks, grads, ctx.shapes)
        sizes = [shape.numel() for shape in ctx.shapes]
        full = ctx.like.new_zeros(sum(sizes)).split(sizes)
        views = [flat.view(shape) for flat, shape in zip(full, ctx.shapes, strict=True)]
        for view, box, grad, mask in zip(views, ctx.boxes, grads, ctx.masks, strict=True):
            place = view[box]
            place.copy_((grad if mask is None else grad * mask.to(grad.dtype)).view(place.shape))
        return None, None, None, *views


def transformer_block(
    x: Tensor,
    weights: tuple[Pair, tuple[Tensor, Tensor | None], Pair, Pair, Pair, Pair],
    tables: Tables | None,
    places: Places,
    head_dim: int,
    eps: float,
    execution: Execution,
    alive: Tensor | None,
    drops: Pair | None,
) -> Tensor:
    """A pre-norm block on weights already cut: norm, Q-K-V, projection, norm, two linear layers."""
    norm1, qkv, proj, norm2, fc1, fc2 = weights
    parts = F.linear(F.layer_norm(x, x.shape[-1:], *norm1, eps), *qkv).unflatten(-1, (3, -1, head_dim))
    made = F.linear(attend_packed(parts, tables, places, head_dim**-0.5, execution, alive), *proj)
    x = x + (made if drops is None else made * drops[0])
    made = F.linear(F.gelu(F.linear(F.layer_norm(x, x.shape[-1:], *norm2, eps), *fc1)), *fc2)
    return x + (made if drops is None else made * drops[1])


def _products(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Keep what products and attention made; norms and GELU are made again, at the price of reading their inputs."""
    kept = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    own = str(op).startswith(("tailorvit", "aten._scaled_dot_product"))
    return CheckpointPolicy.MUST_SAVE if own or op in kept else CheckpointPolicy.PREFER_RECOMPUTE


def _recomputed(*args: Any) -> Tensor:
    """The block with less kept for its gradient: a third less memory on an H200 for a few per cent of the time."""
    context = partial(create_selective_checkpoint_contexts, _products)
    out: Tensor = checkpoint(transformer_block, *args, use_reentrant=False, context_fn=context)
    return out


def fast_block(drops: bool) -> Fast:
    """Sliced calls of a ViT block through one compiled function; ``drops`` says whether any block drops paths."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 256)
    run: Callable[..., Tensor] = torch.compile(_recomputed, dynamic=False, fullgraph=True)

    def fast(block: Any, x: Tensor, slices: Slices, inner: Tensor | None, hidden: Tensor | None) -> Tensor:
        named = block.__dict__.setdefault("_named", dict(block.named_parameters()))
        names = [n for n in slices if n in named]
        kind, half = x.device.type, x.dtype
        if torch.is_autocast_enabled(kind):
            half = torch.get_autocast_dtype(kind)
        boxes = [tuple(slice(None) if w is None else slice(w.size) for w in slices[n]) for n in names]
        dtypes = [named[n].dtype if n.startswith("norm") else half for n in names]
        masks = [{"attn.proj.weight": inner, "mlp.fc2.weight": hidden}.get(n) for n in names]
        made = Cut.apply(boxes, dtypes, masks, *(named[n] for n in names))
        cut: dict[str, Tensor] = dict(zip(names, made, strict=True))
        own = [(cut[f"{n}.weight"], cut[f"{n}.bias"]) for n in ("norm1", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")]
        tables = None if block.attn.reach is None else Tables(*(cut[f"attn.rel_{n}"] for n in Tables._fields))
        noise = None
        if drops and block.training:
            keep = 1 - block.rate
            one, two = (x.new_empty((*x.shape[:-2], 1, 1), dtype=half).bernoulli_(keep) / keep for _ in range(2))
            noise = (one, two)
        attn, bias = block.attn, cut.get("attn.qkv_bias")
        if bias is not None and inner is not None and attn.qkv_bias.dim() == 1:  # a flat one is cut by what is in use
            bias = thirds(bias, Width(len(inner), reads=inner))
        weights = (own[0], (cut["attn.qkv_weight"], bias), *own[1:])
        return run(x, weights, tables, attn.places, attn.head_dim, block.eps, attn.execution, inner, noise)

    return fast
