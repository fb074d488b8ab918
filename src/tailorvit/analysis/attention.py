"""A network's attention on some images: distances, similarity of heads, and maps small enough for the report."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tailorvit.families.base import Maps

TOPS = (5, 10)  # strongest keys over which a distance is averaged, as in S3's figure 4
BYTES = 400_000  # of all maps together; base64 adds a third
QUERIES = 3200  # a layer with more is left out: 56 x 56 patches are 3136, and 12 heads of them 470 MB per image
POOLED = 16  # images for distances and similarities
WEIGHTS = 200_000_000  # attention weights sorted for the distances: about ten seconds on one core
AT_ONCE = 1 << 25  # weights of one layer held together, 128 MB; computing them needs about five times that

Grid = tuple[int, int]
AttentionOf = Callable[[nn.Module, Tensor], Iterator[Maps]]  # a family's `attention`


# -- arithmetic -------------------------------------------------------------------------------------------------------


def distances(weights: Tensor, queries: Tensor, keys: Tensor, tops: Sequence[int] = TOPS) -> list[Tensor]:
    """Per number of strongest keys: mean Euclidean distance in patches from each query to them, (B, groups, heads, Q).

    Where there are fewer keys, all count; keys without any weight (masked) never do. NaN where no key is left.
    """
    across = queries[:, :, None] - keys[:, None]
    gaps = torch.hypot(across[..., 0], across[..., 1])[None, :, None].expand(weights.shape)
    strongest, at = weights.topk(min(max(tops), weights.shape[-1]), -1)
    far, counts = gaps.gather(-1, at), strongest > 0
    return [(far * counts)[..., :top].sum(-1) / counts[..., :top].sum(-1) for top in tops]


def box(values: NDArray[Any]) -> dict[str, float] | None:
    """The numbers of a box plot: quartiles, mean, whiskers at the last value within 1.5 quartile ranges."""
    values = values[np.isfinite(values)].astype(np.float64)
    if not len(values):
        return None
    q1, median, q3 = np.quantile(values, (0.25, 0.5, 0.75))
    reach = 1.5 * (q3 - q1)
    # Quartiles lie between values, so the last value within reach may lie inside the box: the whisker ends at the box.
    low, high = min(values[values >= q1 - reach].min(), q1), max(values[values <= q3 + reach].max(), q3)
    numbers = {"low": low, "q1": q1, "median": median, "q3": q3, "high": high, "mean": values.mean()}
    return {k: round(float(v), 4) for k, v in numbers.items()}


def cosines(weights: Tensor) -> Tensor:
    """(B, heads, heads): cosine between the whole maps of every two heads."""
    flat = weights.transpose(1, 2).flatten(2)
    flat = flat / flat.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
    out: Tensor = flat @ flat.transpose(1, 2)
    return out


def redundancy(similarity: NDArray[Any]) -> float | None:
    """Mean cosine between different heads; None for a single head."""
    heads = len(similarity)
    return float(similarity[~np.eye(heads, dtype=bool)].mean()) if heads > 1 else None


# -- maps -------------------------------------------------------------------------------------------------------------


def references(grid: Grid, side: int) -> list[list[int]]:
    """Query patches to show: side x side of them spread over the grid, or all of a shorter axis; the centre first.

    The side is odd, so that the centre patch is always one of them.
    """
    rows, columns = ([(2 * i + 1) * n // (2 * min(side, n)) for i in range(min(side, n))] for n in grid)
    centre = [grid[0] // 2, grid[1] // 2]
    return [centre, *([r, c] for r in rows for c in columns if [r, c] != centre)]


class MapPlan(NamedTuple):
    """Which maps are kept: query patches per side, images, and every how many layers."""

    side: int
    images: int
    stride: int


def plan_maps(layers: Sequence[tuple[int, Grid]], images: int, limit: int = BYTES) -> MapPlan:
    """As many maps of (heads, grid) layers as fit: more query patches if possible, else fewer images, then layers."""

    def fits(side: int, images: int, stride: int = 1) -> bool:
        spent = sum(
            heads * rows * columns * min(side, rows) * min(side, columns) for heads, (rows, columns) in layers[::stride]
        )
        return spent * images <= limit

    longest = max(n for _, grid in layers for n in grid)
    sides = [s for s in range(1, longest + 2, 2) if fits(s, images)]
    if sides:
        return MapPlan(max(sides), images, 1)
    fewer = next((n for n in range(images, 0, -1) if fits(1, n)), 1)
    stride = next((s for s in range(1, len(layers)) if fits(1, fewer, s)), len(layers))
    return MapPlan(1, fewer, stride)


def as_map(weights: Tensor, keys: Tensor, grid: Grid, cover: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """(..., K) weights of one query's keys as (..., rows, columns); patches without a key stay 0."""
    hits = []
    for axis in (0, 1):
        off = torch.arange(grid[axis], device=keys.device)[:, None] - keys[None, :, axis]
        hits.append(((off >= -cover[axis] / 2) & (off < cover[axis] / 2)).to(weights.dtype))
    return torch.einsum("...k,rk,ck->...rc", weights, *hits)


def as_bytes(maps: Tensor) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Each map (last two dimensions) as bytes with its maximum at 255, and those maxima."""
    peaks = maps.amax((-2, -1), keepdim=True)
    scaled = (maps / peaks.clamp_min(torch.finfo(maps.dtype).tiny) * 255).round().to(torch.uint8)
    return scaled.cpu().numpy(), peaks[..., 0, 0].float().cpu().numpy()


def as_base64(array: NDArray[Any]) -> str:
    """An array's bytes, C order and little-endian, as base64."""
    return base64.b64encode(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()).decode()


# -- layers -----------------------------------------------------------------------------------------------------------


class LayerStats(NamedTuple):
    """One layer on some images."""

    far: list[NDArray[Any]]  # per number of strongest keys, the distances of all queries, heads and images
    similarity: NDArray[Any]  # (images, heads, heads)
    maps: NDArray[np.uint8]  # (images, references, heads, rows, columns)
    peaks: NDArray[np.float32]  # (images, references, heads)


def layer_stats(maps: Maps, weights: Tensor, places: list[list[int]], shown: int, pooled: int) -> LayerStats:
    """Distances and similarities of the first ``pooled`` images, maps of the first ``shown``."""
    queries, keys = maps.queries.to(weights), maps.keys.to(weights)
    size = torch.tensor(maps.grid, device=weights.device)
    inside = ((queries >= 0) & (queries <= size - 1)).all(-1)  # the rest is padding
    far = distances(weights[:pooled], queries, keys)
    found = []
    for place in places:
        gap = (queries.flatten(0, 1) - torch.tensor(place).to(queries)).square().sum(-1)
        group, query = divmod(int(gap.argmin()), queries.shape[1])
        found.append(as_map(weights[:shown, group, :, query], keys[group], maps.grid, maps.cover))
    none = weights.new_zeros(len(weights[:shown]), 0, maps.heads, *maps.grid)
    return LayerStats(
        [d.transpose(1, 2)[:, :, inside].flatten().cpu().numpy() for d in far],
        cosines(weights[:pooled]).cpu().numpy(),
        *as_bytes(torch.stack(found, 1) if found else none),
    )


def _layer_row(maps: Maps, places: list[list[int]], parts: list[LayerStats]) -> dict[str, Any]:
    """One layer over all images, as analysis.json holds it."""
    similarity = np.concatenate([p.similarity for p in parts]).mean(0, dtype=np.float64)
    mean = redundancy(similarity)
    far = [np.concatenate([p.far[i] for p in parts]) for i in range(len(TOPS))]
    return {
        "name": maps.name,
        "stage": maps.stage,
        "block": maps.block,
        "heads": maps.heads,
        "grid": list(maps.grid),
        "references": places,
        "maps": as_base64(np.concatenate([p.maps for p in parts])),
        "peaks": as_base64(np.concatenate([p.peaks for p in parts])),
        "distance": {str(top): box(values) for top, values in zip(TOPS, far, strict=True)},
        "similarity": [[round(float(v), 4) for v in row] for row in similarity],
        "redundancy": None if mean is None else round(mean, 4),
    }


class Plan(NamedTuple):
    """How much of a network's attention is computed."""

    places: dict[int, list[list[int]]]  # query patches by layer; layers that are too large are absent
    shown: int
    pooled: int
    at_once: int
    notes: list[str]


def plan(layers: list[Maps], images: int, shown: int) -> Plan:
    """What fits, from shapes alone; sentences on what does not."""
    small = {i: m for i, m in enumerate(layers) if m.queries.shape[:2].numel() <= QUERIES}
    notes = []
    if len(small) < len(layers):
        names = ", ".join(m.name for i, m in enumerate(layers) if i not in small)
        notes.append(f"Attention is left out where a layer has more than {QUERIES} queries: {names}.")
    if not small:
        return Plan({}, 0, 0, 1, notes)
    kept = plan_maps([(m.heads, m.grid) for m in small.values()], shown)
    if kept.images < shown:
        notes.append(f"Attention maps are kept of {kept.images} of {shown} images, to keep the report small.")
    if kept.stride > 1:
        notes.append(f"Attention maps are kept of one layer in {kept.stride}, to keep the report small.")
    places = {
        i: references(m.grid, 1 if m.queries.shape[:2].numel() == 1 else kept.side) if k % kept.stride == 0 else []
        for k, (i, m) in enumerate(small.items())
    }
    sizes = [m.queries.shape[:2].numel() * m.heads * m.keys.shape[1] for m in small.values()]  # weights per image
    pooled = max(1, min(POOLED, images, WEIGHTS // sum(sizes)))
    return Plan(places, kept.images, pooled, max(1, AT_ONCE // max(sizes)), notes)


@torch.inference_mode()
def attention_of(
    function: AttentionOf, model: nn.Module, images: Tensor, shown: int
) -> tuple[dict[str, Any] | None, list[str]]:
    """The layers, and sentences on what was left out; maps of at most the first ``shown`` images.

    ``images`` are normalised and on the network's device. ``shown`` in the result says how many have maps.
    """
    layers = list(function(model, images[:1]))  # for their shapes; no weights are computed here
    chosen = plan(layers, len(images), shown)
    parts: dict[int, list[LayerStats]] = {i: [] for i in chosen.places}
    total = max(chosen.shown, chosen.pooled) if parts else 0
    not_finite = set()
    for at in range(0, total, chosen.at_once):
        for i, maps in enumerate(function(model, images[at : min(at + chosen.at_once, total)])):
            if i not in parts:
                continue
            weights = maps.weights()
            if weights.isfinite().all():
                left = max(chosen.shown - at, 0), max(chosen.pooled - at, 0)
                parts[i].append(layer_stats(maps, weights, chosen.places[i], *left))
            else:
                not_finite.add(i)
    notes = list(chosen.notes)
    if not_finite:
        names = ", ".join(layers[i].name for i in sorted(not_finite))
        notes.append(f"Attention is not finite in {names}, and left out.")
    rows = [_layer_row(layers[i], chosen.places[i], p) for i, p in parts.items() if i not in not_finite]
    return {"shown": chosen.shown, "pooled": chosen.pooled, "layers": rows} if rows else None, notes
