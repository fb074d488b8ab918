"""A network's attention on some images, layer by layer, within bounds of time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tailorvit.analysis import attention as arithmetic
from tailorvit.families.base import Maps

QUERIES = 3200  # a layer with more is passed by: 56 x 56 patches are 3136, and 12 heads of them 470 MB an image
POOLED = 16  # images behind distances and similarities
WEIGHTS = 200_000_000  # attention weights sorted for the distances: some ten seconds on one core
AT_ONCE = 1 << 25  # weights of one layer held together, 128 MB; the formula behind them needs some five times that

Look = Callable[[nn.Module, Tensor], Iterator[Maps]]


class Seen(NamedTuple):
    """One layer on some images."""

    far: list[NDArray[Any]]  # per number of strongest keys, the distances of all queries, heads and images
    alike: NDArray[Any]  # (images, heads, heads)
    maps: NDArray[np.uint8]  # (images, references, heads, rows, columns)
    peaks: NDArray[np.float32]  # (images, references, heads)


def _size(maps: Maps) -> int:
    """Attention weights an image."""
    groups, queries, _ = maps.queries.shape
    return int(groups * queries * maps.heads * maps.keys.shape[1])


def see(maps: Maps, weights: Tensor, references: list[list[int]], shown: int, pooled: int) -> Seen:
    """Distances and similarities of the first ``pooled`` images, maps of the first ``shown``."""
    queries, keys = maps.queries.to(weights), maps.keys.to(weights)
    size = torch.tensor(maps.grid, device=weights.device)
    inside = ((queries >= 0) & (queries <= size - 1)).all(-1)  # the rest is padding
    far = arithmetic.distances(weights[:pooled], queries, keys)
    pictures = []
    for place in references:
        gap = (queries.flatten(0, 1) - torch.tensor(place).to(queries)).square().sum(-1)
        group, query = divmod(int(gap.argmin()), queries.shape[1])
        pictures.append(arithmetic.painted(weights[:shown, group, :, query], keys[group], maps.grid, maps.cover))
    none = weights.new_zeros(len(weights[:shown]), 0, maps.heads, *maps.grid)
    stack = torch.stack(pictures, 1) if pictures else none
    return Seen(
        [d.transpose(1, 2)[:, :, inside].flatten().cpu().numpy() for d in far],
        arithmetic.cosines(weights[:pooled]).cpu().numpy(),
        *arithmetic.scaled(stack),
    )


def _joined(maps: Maps, references: list[list[int]], parts: list[Seen]) -> dict[str, Any]:
    """One layer over all images, as analysis.json keeps it."""
    similarity = np.concatenate([p.alike for p in parts]).mean(0, dtype=np.float64)
    alone = arithmetic.redundancy(similarity)
    far = [np.concatenate([p.far[i] for p in parts]) for i in range(len(arithmetic.TOPS))]
    return {
        "name": maps.name,
        "stage": maps.stage,
        "block": maps.block,
        "heads": maps.heads,
        "grid": list(maps.grid),
        "references": references,
        "maps": arithmetic.packed(np.concatenate([p.maps for p in parts])),
        "peaks": arithmetic.packed(np.concatenate([p.peaks for p in parts])),
        "distance": {str(top): arithmetic.box(values) for top, values in zip(arithmetic.TOPS, far, strict=True)},
        "similarity": [[round(float(v), 4) for v in row] for row in similarity],
        "redundancy": None if alone is None else round(alone, 4),
    }


class Bounds(NamedTuple):
    """How much of a network's attention is looked at."""

    wanted: dict[int, list[list[int]]]  # reference patches by the layer's place; layers too large are absent
    shown: int
    pooled: int
    at_once: int
    notes: list[str]


def bounds(every: list[Maps], images: int, shown: int) -> Bounds:
    """What fits, from shapes alone; sentences on what does not."""
    layers = {i: m for i, m in enumerate(every) if m.queries.shape[:2].numel() <= QUERIES}
    notes = []
    if len(layers) < len(every):
        names = ", ".join(m.name for i, m in enumerate(every) if i not in layers)
        notes.append(f"Attention is left out where a layer has more than {QUERIES} queries: {names}.")
    if not layers:
        return Bounds({}, 0, 0, 1, notes)
    kept = arithmetic.within_budget([(m.heads, m.grid) for m in layers.values()], shown)
    if kept.images < shown:
        notes.append(f"Attention maps are kept of {kept.images} of {shown} images, as more would swell the report.")
    if kept.stride > 1:
        notes.append(f"Attention maps are kept of one layer in {kept.stride}, as more would swell the report.")
    wanted = {
        i: arithmetic.references(m.grid, 1 if m.queries.shape[:2].numel() == 1 else kept.side)
        if k % kept.stride == 0
        else []
        for k, (i, m) in enumerate(layers.items())
    }
    sizes = [_size(m) for m in layers.values()]
    pooled = max(1, min(POOLED, images, WEIGHTS // sum(sizes)))
    return Bounds(wanted, kept.images, pooled, max(1, AT_ONCE // max(sizes)), notes)


@torch.inference_mode()
def view(look: Look, model: nn.Module, images: Tensor, shown: int) -> tuple[dict[str, Any] | None, list[str]]:
    """The layers, and sentences on what was left out; maps of at most the first ``shown`` of the images.

    ``images`` are normalised and on the network's device. ``shown`` in the result says how many have maps.
    """
    every = list(look(model, images[:1]))  # shapes only: nobody asks these for weights
    plan = bounds(every, len(images), shown)
    parts: dict[int, list[Seen]] = {i: [] for i in plan.wanted}
    total = max(plan.shown, plan.pooled) if parts else 0
    broken = set()
    for at in range(0, total, plan.at_once):
        for i, maps in enumerate(look(model, images[at : min(at + plan.at_once, total)])):
            if i not in parts:
                continue
            weights = maps.weights()
            if weights.isfinite().all():
                parts[i].append(see(maps, weights, plan.wanted[i], max(plan.shown - at, 0), max(plan.pooled - at, 0)))
            else:
                broken.add(i)
    notes = list(plan.notes)
    if broken:
        notes.append(f"Attention is not finite in {', '.join(every[i].name for i in sorted(broken))}, and left out.")
    rows = [_joined(every[i], plan.wanted[i], seen) for i, seen in parts.items() if i not in broken]
    return {"shown": plan.shown, "pooled": plan.pooled, "layers": rows} if rows else None, notes
