"""What attention tells: how far queries look, how alike heads are, and maps of it small enough to send along."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TOPS = (5, 10)  # strongest keys a distance is the mean over, as in S3's figure 4
BYTES = 400_000  # of all maps together; base64 makes a third more of it
Grid = tuple[int, int]


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


def references(grid: Grid, side: int) -> list[list[int]]:
    """A lattice of side x side patches spread over the grid, or all of an axis that is shorter; the centre first.

    The side is odd, so that the centre patch is always one of the lattice.
    """
    rows, columns = ([(2 * i + 1) * n // (2 * min(side, n)) for i in range(min(side, n))] for n in grid)
    centre = [grid[0] // 2, grid[1] // 2]
    return [centre, *([r, c] for r in rows for c in columns if [r, c] != centre)]


class Kept(NamedTuple):
    """Which maps are kept: references per side, images, every how many layers."""

    side: int
    images: int
    stride: int


def within_budget(layers: Sequence[tuple[int, Grid]], images: int, budget: int = BYTES) -> Kept:
    """The most maps of (heads, grid) layers that fit: more references if possible, else fewer images, then layers."""

    def fits(side: int, images: int, stride: int = 1) -> bool:
        spent = sum(
            heads * rows * columns * min(side, rows) * min(side, columns) for heads, (rows, columns) in layers[::stride]
        )
        return spent * images <= budget

    longest = max(n for _, grid in layers for n in grid)
    sides = [s for s in range(1, longest + 2, 2) if fits(s, images)]
    if sides:
        return Kept(max(sides), images, 1)
    fewer = next((n for n in range(images, 0, -1) if fits(1, n)), 1)
    stride = next((s for s in range(1, len(layers)) if fits(1, fewer, s)), len(layers))
    return Kept(1, fewer, stride)


def painted(weights: Tensor, keys: Tensor, grid: Grid, cover: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """(..., K) weights of one query's keys as (..., rows, columns); patches no key stands for stay 0."""
    hits = []
    for axis in (0, 1):
        off = torch.arange(grid[axis], device=keys.device)[:, None] - keys[None, :, axis]
        hits.append(((off >= -cover[axis] / 2) & (off < cover[axis] / 2)).to(weights.dtype))
    return torch.einsum("...k,rk,ck->...rc", weights, *hits)


def scaled(maps: Tensor) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Each map (last two dimensions) as bytes with its maximum at 255, and those maxima."""
    peaks = maps.amax((-2, -1), keepdim=True)
    bytes_ = (maps / peaks.clamp_min(torch.finfo(maps.dtype).tiny) * 255).round().to(torch.uint8)
    return bytes_.cpu().numpy(), peaks[..., 0, 0].float().cpu().numpy()


def packed(array: NDArray[Any]) -> str:
    """An array's bytes, C order and little-endian, as base64."""
    return base64.b64encode(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()).decode()
