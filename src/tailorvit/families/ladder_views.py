"""Looking into a plain ladder: what the query, or every token, sees of the picture in each block."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from tailorvit.families.base import Maps
from tailorvit.plain.ladder import LadderBlock, PlainLadder


def attention(model: nn.Module, images: Tensor) -> Iterator[Maps]:
    """Block by block; nothing where the places of the tokens are not known (see :attr:`LadderFrame.places`).

    A lone query has no place of its own and is put at the centre of the grid.
    """
    assert isinstance(model, PlainLadder)
    if model.places is None:
        return
    high, wide = model.places
    rows, columns = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
    keys = torch.stack([rows, columns], -1).view(1, -1, 2).to(images.device, torch.float32)
    queries = keys.mean(1, keepdim=True) if model.frame.one_query else keys
    for i, (block, (x, y, _)) in enumerate(zip(model.blocks, model.steps(images), strict=True), 1):
        assert isinstance(block, LadderBlock)
        weights = partial(_on_patches, block, x, y, high * wide)
        yield Maps(f"block {i}", None, i, (high, wide), block.attn.heads, queries, keys, weights)


def _on_patches(block: LadderBlock, x: Tensor, y: Tensor, patches: int) -> Tensor:
    """(B, 1, heads, Q, n): tokens before the patches left out, the rest of each row brought back to 1."""
    weights = block.attn.weights(*block.looking(x, y))[..., -patches:]
    weights = weights[:, :, -patches:] if weights.shape[2] > 1 else weights
    total = weights.sum(-1, keepdim=True)
    return (weights / total.clamp_min(torch.finfo(total.dtype).tiny)).unsqueeze(1)
