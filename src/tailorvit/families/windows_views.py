"""Looking into a plain windowed network: the attention of every block on its true inputs, window by window."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from tailorvit.families.base import Maps
from tailorvit.plain.windowed import PlainWindowed, WindowBlock, WindowLayer


def attention(model: nn.Module, images: Tensor) -> Iterator[Maps]:
    """Block by block; each window is a group, and its positions say where on the unshifted map they lie."""
    assert isinstance(model, PlainWindowed)
    x = model.patch_embed(images)
    for s, layer in enumerate(model.layers, 1):
        assert isinstance(layer, WindowLayer)
        x = layer.downsample(x)
        for i, block in enumerate(layer.blocks, 1):
            assert isinstance(block, WindowBlock)
            attn = block.attn
            places = attn.cut.places().to(images.device, torch.float32)
            weights = partial(attn.weights, block.norm1(x))
            yield Maps(f"stage {s}, block {i}", s, i, attn.cut.sides, attn.heads, places, places, weights)
            x = block(x)
