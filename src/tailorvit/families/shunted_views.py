"""Looking into a plain Shunted Transformer: what each half of the heads attends to."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from tailorvit.families.base import Maps
from tailorvit.plain.shunted import PlainShunted, ShuntedAttention, ShuntedBlock, ShuntedKeys, ShuntedStage, cells


def attention(model: nn.Module, images: Tensor) -> Iterator[Maps]:
    """Block by block; two records where half of the heads look at coarse keys and half at fine ones.

    A key stands for the square of pixels it was reduced from; that it also saw its neighbours (the convolution of the
    values) is not part of the weights.
    """
    assert isinstance(model, PlainShunted)
    x = model.patch_embed(images)
    for number, stage in enumerate(model.stages, 1):
        assert isinstance(stage, ShuntedStage)
        x = stage.enter(x)
        for i, block in enumerate(stage.blocks, 1):
            assert isinstance(block, ShuntedBlock)
            yield from _sets(block.attn, block.norm1(x), stage.grid, number, i)
            x = block(x, stage.grid)
        x = stage.norm(x)


def _sets(attn: ShuntedAttention, x: Tensor, grid: tuple[int, int], stage: int, block: int) -> Iterator[Maps]:
    for number, keys in enumerate(attn.sets):
        assert isinstance(keys, ShuntedKeys)
        cell = keys.cell or 1
        kind = ("", ", coarse keys", ", fine keys")[number + len(attn.sets) - 1]
        yield Maps(
            f"stage {stage}, block {block}{kind}",
            stage,
            block,
            grid,
            keys.heads,
            _places(grid, 1, x),
            _places(cells(grid, cell), cell, x),
            partial(_weights, attn, x, grid, number),
            (float(cell), float(cell)),
        )


def _weights(attn: ShuntedAttention, x: Tensor, grid: tuple[int, int], number: int) -> Tensor:
    return attn.weights(x, grid, number).unsqueeze(1)


def _places(grid: tuple[int, int], cell: int, x: Tensor) -> Tensor:
    """(1, n, 2): the centres of cells, in patches of the stage."""
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    centres = torch.stack([rows, columns], -1).view(1, -1, 2).to(x.device, torch.float32)
    return centres * cell + (cell - 1) / 2
