"""Architectures written by hand and dimensions of networks with per-block genes: what several families share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tailorvit.arch import Arch, Value, number, require_blocks
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
    require_blocks({"depth": depth})
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


def staged_arch(
    family: str, genes: Mapping[str, Any], stages: int, block_genes: Sequence[str], fractional: Sequence[str] = ()
) -> Arch:
    """An architecture of several stages, each with a depth and a width, written by hand.

    ``name.s`` is one stage's gene: one number, or for the genes of blocks one per block. ``name`` alone is one number
    for all stages or a list with one value per stage.
    """
    names, found = ("depth", "embed", *block_genes), dict[str, Any]()
    for key in genes:
        name, dot, stage = key.partition(".")
        if name not in names or (dot and stage not in map(str, range(1, stages + 1))):
            raise TailorError(
                f"A {family} architecture has no gene '{key}'; it has {', '.join(names)} of stages 1-{stages}."
            )
    for s in range(1, stages + 1):
        own = {name: _of_stage(family, genes, name, s, stages) for name in names}
        lists = [v for v in own.values() if isinstance(v, list | tuple)]
        depth: Any = own["depth"] if own["depth"] is not None else len(lists[0]) if lists else None
        require_blocks({"depth": depth})
        for name, value in {**own, "depth": depth}.items():
            if value is None:
                raise TailorError(f"A {family} architecture needs '{name}.{s}', or '{name}' for all stages.")
        if isinstance(depth, list | tuple) or not isinstance(number(depth), int) or depth < 1:
            raise TailorError(f"Stage {s} of a {family} network needs at least one whole block, not {depth}.")
        found |= {f"depth.{s}": depth, f"embed.{s}": own["embed"]}
        for name in block_genes:
            values = list(own[name]) if isinstance(own[name], list | tuple) else [own[name]] * int(depth)
            if len(values) != depth:
                raise TailorError(f"Stage {s} has {depth} blocks, but '{name}.{s}' has {len(values)} values.")
            found[f"{name}.{s}"] = values
    arch = Arch(family, **found)
    kind = f"positive and (but for {', '.join(fractional)}) whole" if fractional else "whole and positive"
    for key, value in arch.items():
        for v in value if isinstance(value, tuple) else (value,):
            whole = key.partition(".")[0] not in fractional
            if not isinstance(v, int if whole else int | float) or v <= 0:
                raise TailorError(f"'{key}' of a {family} architecture must be {kind}, not {v}.")
    return arch


def _of_stage(family: str, genes: Mapping[str, Any], name: str, stage: int, stages: int) -> Any:
    """A stage's own gene, or its part of the gene of all stages; None where there is neither."""
    if f"{name}.{stage}" in genes:
        return genes[f"{name}.{stage}"]
    value = genes.get(name)
    if isinstance(value, list | tuple):
        if len(value) != stages:
            raise TailorError(f"'{name}' of a {family} architecture needs one value per stage, not {len(value)}.")
        return value[stage - 1]
    return value


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
