"""Architectures and dimensions of networks with one width and per-block genes: what ViT and ladder share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tailorvit.arch import Arch, Value, number
from tailorvit.errors import TailorError
from tailorvit.space import Dim

GENES = ("depth", "embed", "heads", "mlp")


def block_arch(
    name: str, embed: Any = None, heads: Any = None, mlp: Any = None, depth: Any = None, **unknown: Any
) -> Arch:
    """An architecture of family ``name`` written by hand: one number for all blocks, or one per block."""
    has = "it has depth, embed, heads and mlp"
    for key in unknown:
        raise TailorError(f"A {name} architecture has no gene '{key}'; {has}.")
    for gene, value in (("embed", embed), ("heads", heads), ("mlp", mlp)):
        if value is None:
            raise TailorError(f"A {name} architecture needs '{gene}'; {has}.")
    lists = [v for v in (heads, mlp) if isinstance(v, list | tuple)]
    if depth is None and not lists:
        raise TailorError(f"A {name} architecture needs 'depth' when heads and mlp are single numbers.")
    blocks = number(depth) if depth is not None else len(lists[0])
    if not isinstance(blocks, int) or blocks < 1:
        raise TailorError(f"A {name} needs a depth of at least one whole block, not {blocks if lists else depth}.")
    genes = {n: list(v) if isinstance(v, list | tuple) else [v] * blocks for n, v in (("heads", heads), ("mlp", mlp))}
    for gene, values in genes.items():
        if len(values) != blocks:
            raise TailorError(f"A {name} of depth {blocks} needs {blocks} values of '{gene}', not {len(values)}.")
    arch = Arch(name, depth=blocks, embed=embed, **genes)
    whole = (arch["embed"], *arch.many("heads"))
    if any(not isinstance(v, int) or v < 1 for v in whole) or min(arch.many("mlp")) <= 0:
        raise TailorError(f"A {name} needs whole positive embed and heads, and positive MLP ratios.")
    return arch


def block_dims(
    depth: Sequence[Value], mlp: Sequence[Value], heads: Sequence[Value], embed: Sequence[Value]
) -> tuple[Dim, ...]:
    """Dimensions in S4's order: depth, ratio, heads, embed; each sequence is (low, high, step)."""
    return (
        Dim.span("depth", *depth, minimum=1),
        Dim.span("mlp", *mlp, scope="block", minimum=0.5),
        Dim.span("heads", *heads, scope="block", minimum=1),
        Dim.span("embed", *embed, minimum=embed[2]),
    )


# -- spans of spaces made for a budget: three choices, the largest given ----------------------------------------------

DEEP = 8  # blocks from which one more or less changes little


def depth_span(top: int) -> tuple[int, int, int]:
    """(low, high, step): steps of one block, of two in deep networks."""
    step = 2 if top >= DEEP else 1
    return max(1, top - 2 * step), top, step


def width_span(top: int, head_dim: int) -> tuple[int, int, int]:
    """(low, high, step): steps of about an eighth of the width, in quarters of a head where the width allows."""
    unit = max(2, min(head_dim // 4, 2 ** int(math.log2(top / 8))))
    step = max(1, round(top / 8 / unit)) * unit
    return top - 2 * step, top, step
