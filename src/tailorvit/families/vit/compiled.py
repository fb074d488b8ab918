"""Blocks of a ViT supernet with torch.compile: weights are cut first, so that all blocks of one shape share one graph.

A compiler that sees a prefix of a weight checks whether the prefix is the whole weight, and makes a new graph for each
case. So weights are cut and cast outside the graph, which then sees ordinary tensors. One graph with variable widths
would serve every architecture, but its kernels were half as fast on an H200 (docs/log.md). Shapes are therefore fixed:
one graph per embedding width, as heads and hidden widths are switched off instead of cut.
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

from tailorvit.elastic.slicing import Width, thirds
from tailorvit.families.vit.relative import TRITON, Execution, Places, Tables, attend_packed

Slices = Mapping[str, tuple[Width | None, ...]]
# (block, x, the prefixes in use, 0/1 masks of the attention's and the MLP's inner entries) to the block's output
BlockCall = Callable[[Any, Tensor, Slices, Tensor | None, Tensor | None], Tensor]
Pair = tuple[Tensor, Tensor]
Box = tuple[slice, ...]

FUSED_CUT = True  # False cuts every weight in a launch of its own, as on a CPU
KERNEL: Any = None  # elastic/cut_kernel.py where it can run
if TRITON:
    from tailorvit.families.vit import cut_kernel

    KERNEL = cut_kernel


class Cut(torch.autograd.Function):
    """Copies prefixes of parameters to new tensors of given dtypes; the gradients have the full shapes."""

    @staticmethod
    def forward(
        ctx: Any, boxes: list[Box], dtypes: list[torch.dtype], masks: list[Tensor | None], *whole: Tensor
    ) -> Any:
        """One tensor per box with its leading axes merged: those of Q, K and V are (3, heads, width of a head).

        A mask switches off entries of the last axis; it gets no gradient.
        """
        ctx.boxes, ctx.shapes, ctx.like, ctx.masks = boxes, [w.shape for w in whole], whole[0], masks
        ctx.layout = KERNEL.layout_of(boxes, dtypes, masks, whole) if FUSED_CUT and KERNEL is not None else None
        if ctx.layout is not None:
            return KERNEL.cut(ctx.layout, masks, whole)
        out = []
        for w, box, dtype, mask in zip(whole, boxes, dtypes, masks, strict=True):
            part = w[box]
            last = part.shape[-1:] if w.dim() % 2 == 0 else ()
            # A new tensor, not a view: the compiler sees through views to the shape of the whole weight.
            new = torch.empty(part.numel() // math.prod(last), *last, dtype=dtype, device=w.device)
            new.view(part.shape).copy_(part)
            out.append(new if mask is None else new.mul_(mask.to(dtype)))
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Each gradient padded with zeros to its parameter's shape, all in one allocation."""
        if ctx.layout is not None:
            return None, None, None, *KERNEL.uncut(ctx.layout, ctx.masks, grads, ctx.shapes)
        sizes = [shape.numel() for shape in ctx.shapes]
        full = ctx.like.new_zeros(sum(sizes)).split(sizes)
        views = [flat.view(shape) for flat, shape in zip(full, ctx.shapes, strict=True)]
        for view, box, grad, mask in zip(views, ctx.boxes, grads, ctx.masks, strict=True):
            inside = view[box]
            inside.copy_((grad if mask is None else grad * mask.to(grad.dtype)).view(inside.shape))
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
    """A pre-norm block with weights already cut: norm, Q-K-V, projection, norm, two linear layers."""
    norm1, qkv, proj, norm2, fc1, fc2 = weights
    parts = F.linear(F.layer_norm(x, x.shape[-1:], *norm1, eps), *qkv).unflatten(-1, (3, -1, head_dim))
    branch = F.linear(attend_packed(parts, tables, places, head_dim**-0.5, execution, alive), *proj)
    x = x + (branch if drops is None else branch * drops[0])
    branch = F.linear(F.gelu(F.linear(F.layer_norm(x, x.shape[-1:], *norm2, eps), *fc1)), *fc2)
    return x + (branch if drops is None else branch * drops[1])


def _save_products(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Save the results of matrix products and attention for the backward pass; recompute norms and GELU."""
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    attention = str(op).startswith(("tailorvit", "aten._scaled_dot_product"))
    return CheckpointPolicy.MUST_SAVE if attention or op in products else CheckpointPolicy.PREFER_RECOMPUTE


def _checkpointed(*args: Any) -> Tensor:
    """The block with fewer tensors saved: a third less memory on an H200 for a few per cent of the time."""
    context = partial(create_selective_checkpoint_contexts, _save_products)
    out: Tensor = checkpoint(transformer_block, *args, use_reentrant=False, context_fn=context)
    return out


def compiled_block(drops: bool) -> BlockCall:
    """Calls of ViT blocks through one compiled function; ``drops`` says whether any block has drop path."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 256)
    run: Callable[..., Tensor] = torch.compile(_checkpointed, dynamic=False, fullgraph=True)

    def call(block: Any, x: Tensor, slices: Slices, inner: Tensor | None, hidden: Tensor | None) -> Tensor:
        named = block.__dict__.setdefault("_named", dict(block.named_parameters()))
        names = [n for n in slices if n in named]
        kind, half = x.device.type, x.dtype
        if torch.is_autocast_enabled(kind):
            half = torch.get_autocast_dtype(kind)
        boxes = [tuple(slice(None) if w is None else slice(w.size) for w in slices[n]) for n in names]
        dtypes = [named[n].dtype if n.startswith("norm") else half for n in names]
        masks = [{"attn.proj.weight": inner, "mlp.fc2.weight": hidden}.get(n) for n in names]
        parts = Cut.apply(boxes, dtypes, masks, *(named[n] for n in names))
        cut: dict[str, Tensor] = dict(zip(names, parts, strict=True))
        pairs = [(cut[f"{n}.weight"], cut[f"{n}.bias"]) for n in ("norm1", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")]
        tables = None if block.attn.reach is None else Tables(*(cut[f"attn.rel_{n}"] for n in Tables._fields))
        noise = None
        if drops and block.training:
            keep = 1 - block.rate
            one, two = (x.new_empty((*x.shape[:-2], 1, 1), dtype=half).bernoulli_(keep) / keep for _ in range(2))
            noise = (one, two)
        attn, bias = block.attn, cut.get("attn.qkv_bias")
        if bias is not None and inner is not None and attn.qkv_bias.dim() == 1:  # the released layout
            bias = thirds(bias, Width(len(inner), reads=inner))
        weights = (pairs[0], (cut["attn.qkv_weight"], bias), *pairs[1:])
        return run(x, weights, tables, attn.places, attn.head_dim, block.eps, attn.execution, inner, noise)

    return call
