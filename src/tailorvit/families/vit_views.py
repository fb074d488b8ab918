"""Looking into a plain ViT: the attention of every block on its true inputs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from tailorvit.families.base import Maps
from tailorvit.plain.vit import Attention, Block, PlainViT


def attention(model: nn.Module, images: Tensor) -> Iterator[Maps]:
    """Block by block; the weights are those of the formula, which every execution of relative position shares."""
    assert isinstance(model, PlainViT)
    high, wide = model.frame.grid
    rows, columns = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
    places = torch.stack([rows, columns], -1).view(1, -1, 2).to(images.device, torch.float32)
    x = model.tokens(images)
    for i, block in enumerate(model.blocks, 1):
        assert isinstance(block, Block)
        weights = partial(_between_patches, block.attn, block.norm1(x))
        yield Maps(f"block {i}", None, i, (high, wide), block.attn.heads, places, places, weights)
        x = block(x)


def _between_patches(attn: Attention, x: Tensor) -> Tensor:
    """(B, 1, heads, n, n): the class token's row and column left out, the rest of each row brought back to 1."""
    weights = attn.weights(x)[:, :, 1:, 1:]
    total = weights.sum(-1, keepdim=True)
    return (weights / total.clamp_min(torch.finfo(total.dtype).tiny)).unsqueeze(1)
