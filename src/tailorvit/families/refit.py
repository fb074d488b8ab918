"""Cut networks that follow the whole one before they are trained: what their blocks write is fitted by least squares.

A cut loses heads and hidden units, and every loss shifts what later blocks read. So block after block the two layers
that write to the stream are fitted anew, on training images: what the cut network has so far and what its block can say
should add up to the whole network's stream at that place. What dropped blocks wrote is made up for by the block before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

RIDGE = 0.01  # of the mean square of an input: how strongly weights are held to what they were
ROWS = 32_000  # tokens that are enough: a layer has at most some 1,500 inputs


def enough(batches: Iterable[Tensor], rows: int | None = None) -> Iterator[Tensor]:
    """As many batches of tokens or maps as have the positions that are needed."""
    seen = 0
    for x in batches:
        yield x
        seen += x.shape[:-1].numel()
        if seen >= (ROWS if rows is None else rows):
            return


def refit_blocks(
    cut: Sequence[nn.Module], whole: Sequence[nn.Module], kept: Sequence[int], ours: list[Tensor], theirs: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Fit blocks that were kept of all blocks of a stage, in place; the streams of both networks behind the last one.

    A block has norm1, attn with mixed and proj, norm2, and mlp with inner and fc2.
    """
    reached = 0
    for own, number, then in zip(list[Any](cut), kept, [*kept[1:], len(whole)], strict=True):
        original: Any = whole[number]
        theirs = _through(whole[reached:number], theirs)
        attended = [x + original.attn(original.norm1(x)) for x in theirs]
        ours = fitted(own.attn.proj, ours, [own.attn.mixed(own.norm1(x)) for x in ours], attended)
        theirs = _through(whole[number + 1 : then], [x + original.mlp(original.norm2(x)) for x in attended])
        ours = fitted(own.mlp.fc2, ours, [own.mlp.inner(own.norm2(x)) for x in ours], theirs)
        reached = then
    return ours, theirs


def _through(blocks: Sequence[nn.Module], streams: list[Tensor]) -> list[Tensor]:
    """Streams after some blocks."""
    for block in blocks:
        streams = [block(x) for x in streams]
    return streams


def fitted(layer: nn.Linear, streams: list[Tensor], inputs: list[Tensor], wanted: list[Tensor]) -> list[Tensor]:
    """The streams with what a layer adds to them, after its weights were fitted so that they come near those wanted.

    Wanted streams may be wider: their first channels count. Every token counts alike, whatever its size: the norms of a
    network see directions.
    """
    width, size = layer.out_features, layer.in_features + (layer.bias is not None)
    square, product = (torch.zeros(size, n, dtype=torch.float64) for n in (size, width))
    for x, given, target in zip(streams, inputs, wanted, strict=True):
        weight = target.square().mean(-1, keepdim=True).clamp_min(1e-12).rsqrt().flatten(0, -2)
        missing = (target[..., :width] - x - layer(given)).flatten(0, -2) * weight
        rows = given.flatten(0, -2) * weight
        rows = rows if layer.bias is None else torch.cat([rows, weight], 1)  # the last input is a constant
        square += (rows.T @ rows).double().cpu()
        product += (rows.T @ missing).double().cpu()
    square.diagonal().add_(RIDGE * square.diagonal()[: layer.in_features].mean().clamp_min(1e-12))
    change = torch.linalg.solve(square, product).to(layer.weight)
    layer.weight.add_(change[: layer.in_features].T)
    if layer.bias is not None:
        layer.bias.add_(change[-1])
    return [x + layer(given) for x, given in zip(streams, inputs, strict=True)]
