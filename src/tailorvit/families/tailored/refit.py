"""A cut network made to follow the whole one before it is trained: what its blocks write is fitted by least squares.

A cut loses heads and hidden units, and every loss shifts what later blocks read. So block after block the two layers
that write to the stream are fitted anew, on training images: what the cut network has so far and what its block can say
should add up to the whole network's stream at that place. What dropped blocks wrote is made up for by the block before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from tailorvit.families.tailored.plain import Block, PlainTailored

RIDGE = 0.01  # of the mean square of an input: how strongly weights are held to what they were
ROWS = 32_000  # tokens that are enough: a layer has at most some 1,500 inputs


@torch.no_grad()
def refit(cut: PlainTailored, whole: PlainTailored, blocks: Sequence[int], images: Sequence[Tensor]) -> None:
    """Fit a network of these blocks of the whole one, in place, on batches of images, or as many as are needed."""
    width, kept, modes = int(cut.shape["embed"]), sorted(blocks), (cut.training, whole.training)
    cut.eval(), whole.eval()
    theirs = list(_enough(whole.tokens(x) for x in images))
    ours = [cut.tokens(x) for x, _ in zip(images, theirs, strict=False)]
    reached = 0
    for block, number, then in zip(cut.blocks, kept, [*kept[1:], len(whole.blocks)], strict=True):
        own, original = cast(Block, block), cast(Block, whole.blocks[number])
        theirs = _through(whole, theirs, reached, number)
        attended = [x + original.attn(original.norm1(x)) for x in theirs]
        ours = _fitted(own.attn.proj, ours, [own.attn.mixed(own.norm1(x)) for x in ours], attended, width)
        theirs = _through(whole, [x + original.mlp(original.norm2(x)) for x in attended], number + 1, then)
        ours = _fitted(own.mlp.fc2, ours, [own.mlp.inner(own.norm2(x)) for x in ours], theirs, width)
        reached = then
    cut.train(modes[0])
    whole.train(modes[1])


def _enough(batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """As many as have the tokens that are needed."""
    seen = 0
    for x in batches:
        yield x
        seen += x.shape[0] * x.shape[1]
        if seen >= ROWS:
            return


def _through(model: PlainTailored, streams: list[Tensor], start: int, stop: int) -> list[Tensor]:
    """Streams after some of the blocks."""
    for block in model.blocks[start:stop]:
        streams = [block(x) for x in streams]
    return streams


def _fitted(
    layer: nn.Linear, streams: list[Tensor], inputs: list[Tensor], wanted: list[Tensor], width: int
) -> list[Tensor]:
    """The streams with what a layer adds to them, after its weights were fitted so that they come near those wanted.

    Every token counts alike, whatever its size: the norms of a network see directions.
    """
    size = layer.in_features + 1
    square, product = (torch.zeros(size, n, dtype=torch.float64) for n in (size, layer.out_features))
    for x, given, target in zip(streams, inputs, wanted, strict=True):
        weight = target.square().mean(-1, keepdim=True).clamp_min(1e-12).rsqrt().flatten(0, 1)
        missing = (target[..., :width] - x - layer(given)).flatten(0, 1) * weight
        rows = torch.cat([given.flatten(0, 1), torch.ones_like(weight)], 1) * weight  # the last input is a constant
        square += (rows.T @ rows).double().cpu()
        product += (rows.T @ missing).double().cpu()
    square.diagonal().add_(RIDGE * square.diagonal()[:-1].mean().clamp_min(1e-12))
    change = torch.linalg.solve(square, product).to(layer.weight)
    layer.weight.add_(change[:-1].T)
    layer.bias.add_(change[-1])
    return [x + layer(given) for x, given in zip(streams, inputs, strict=True)]
