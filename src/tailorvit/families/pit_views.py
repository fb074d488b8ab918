"""Looking into a plain PiT: the attention of every block, on the grid of its stage."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from tailorvit.families.base import Maps
from tailorvit.plain.pit import PitAttention, PitBlock, PitStage, PlainPiT


def attention(model: nn.Module, images: Tensor) -> Iterator[Maps]:
    """Stage by stage, block by block."""
    assert isinstance(model, PlainPiT)
    x = model.patch_embed(images) + model.pos_embed
    token = model.cls_token.expand(x.shape[0], -1, -1)
    for s, (stage, grid) in enumerate(zip(model.transformers, model.frame.grids, strict=True), 1):
        assert isinstance(stage, PitStage)
        rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
        places = torch.stack([rows, columns], -1).view(1, -1, 2).to(images.device, torch.float32)
        tokens = stage.tokens(x, token)
        for i, block in enumerate(stage.blocks, 1):
            assert isinstance(block, PitBlock)
            weights = partial(_between_patches, block.attn, block.norm1(tokens))
            yield Maps(f"stage {s}, block {i}", s, i, grid, block.attn.heads, places, places, weights)
            tokens = block(tokens)
        x, token = tokens[:, 1:].transpose(1, 2).unflatten(-1, grid), tokens[:, :1]


def _between_patches(attn: PitAttention, x: Tensor) -> Tensor:
    """(B, 1, heads, n, n): the class token's row and column left out, the rest of each row brought back to 1."""
    weights = attn.weights(x)[:, :, 1:, 1:]
    total = weights.sum(-1, keepdim=True)
    return (weights / total.clamp_min(torch.finfo(total.dtype).tiny)).unsqueeze(1)
