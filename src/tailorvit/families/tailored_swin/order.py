"""The same Swin with its parts in another order: heads, hidden units, and the channels of every stage.

A merge reads four neighbours side by side, so the channels of a stage stand four times in the norm and the reduction
behind it. Its norm takes one mean over all four, which only a change of order leaves as it is: there is no turn to
principal components.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tailorvit.arch import Arch
from tailorvit.families.network import State, hidden_width
from tailorvit.families.refit import enough, fitted, refit_blocks
from tailorvit.families.tailored_swin.spaces import TailoredSwinSettings, tailored_swin_arch
from tailorvit.families.tailoring import Order, Orders, Parts
from tailorvit.families.windows.plain import STAGES, PlainWindowed, WindowBlock, WindowLayer, WindowMerge, quarters

POSITIONS = 400_000  # of the first stage's maps: 127 images of 224 px


def blocks_of(model: PlainWindowed) -> list[list[WindowBlock]]:
    """The blocks of every stage."""
    layers = [layer for layer in model.layers if isinstance(layer, WindowLayer)]
    return [[b for b in layer.blocks if isinstance(b, WindowBlock)] for layer in layers]


def parts(model: PlainWindowed) -> Parts:
    """A stream per stage, read by its blocks and by the merge or the last norm behind them."""
    stages = blocks_of(model)
    merges = [layer.downsample for layer in model.layers if isinstance(layer, WindowLayer)]
    behind = [merge.norm for merge in merges if isinstance(merge, WindowMerge)]
    norms = [
        [*(m for b in blocks for m in (b.norm1, b.norm2)), last]
        for blocks, last in zip(stages, [*behind, model.norm], strict=True)
    ]
    return Parts(
        [b for blocks in stages for b in blocks],
        [s for s, blocks in enumerate(stages) for _ in blocks],
        [shape.embed for shape in model.shapes],
        norms,
        model.shapes[0].head_dim[0],
    )


def logits(model: PlainWindowed, x: Tensor, blocks: Sequence[int]) -> Tensor:
    """Of the network with these blocks alone, numbered through all stages."""
    x, number, kept = model.patch_embed(x), 0, set(blocks)
    for layer in model.layers:
        assert isinstance(layer, WindowLayer)
        x = layer.downsample(x)
        for block in layer.blocks:
            x = block(x) if number in kept else x
            number += 1
    return model.forward_head(model.norm(x))


def whole_arch(model: PlainWindowed) -> Arch:
    """The architecture of a network."""
    genes: dict[str, Any] = {}
    for s, shape in enumerate(model.shapes, 1):
        hidden = [hidden_width(shape.embed, ratio) for ratio in shape.mlp]
        genes |= {f"depth.{s}": len(shape.heads), f"embed.{s}": shape.embed}
        genes |= {f"heads.{s}": list(shape.heads), f"hidden.{s}": hidden}
    return tailored_swin_arch(genes)


def best_side(shared: TailoredSwinSettings, side: int, trained: int) -> int:
    """The nearest side whose maps are whole windows, which grow with the image and are two positions wide at least."""
    unit = shared.patch << (STAGES - 1)  # halved three times
    least = -(-2 * trained // (shared.window[0] * unit))
    return unit * max(1, least, round(side / unit))


# -- another order ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def reordered(model: PlainWindowed, orders: Orders) -> PlainWindowed:
    """The network with its heads, hidden units and channels in this order."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    number = 0
    for s, blocks in enumerate(blocks_of(model)):
        for i, block in enumerate(blocks):
            dim = block.attn.proj.in_features // block.attn.heads
            at = f"layers.{s}.blocks.{i}."
            _order_block(state, at, list(orders.heads[number]), list(orders.hidden[number]), dim)
            number += 1
    for s, order in enumerate(orders.streams or ()):
        _order_stream(state, s, order)
    rates = [b.drop_path.rate for blocks in blocks_of(model) for b in blocks]
    new = PlainWindowed(model.shared, model.shapes, rates).to(next(model.parameters()).device)
    new.load_state_dict(state)
    return new.train(model.training)


def _order_block(state: State, at: str, heads: list[int], hidden: list[int], dim: int) -> None:
    for leaf in ("weight", "bias"):
        if (qkv := state.get(f"{at}attn.qkv.{leaf}")) is not None:
            state[f"{at}attn.qkv.{leaf}"] = qkv.unflatten(0, (3, -1, dim))[:, heads].flatten(0, 2)
        state[f"{at}mlp.fc1.{leaf}"] = state[f"{at}mlp.fc1.{leaf}"][hidden]
    if (table := state.get(f"{at}attn.relative_position_bias_table")) is not None:
        state[f"{at}attn.relative_position_bias_table"] = table[:, heads]
    state[f"{at}attn.proj.weight"] = state[f"{at}attn.proj.weight"].unflatten(1, (-1, dim))[:, heads].flatten(1)
    state[f"{at}mlp.fc2.weight"] = state[f"{at}mlp.fc2.weight"][:, hidden]


def _order_stream(state: State, stage: int, order: Order) -> None:
    """All that writes to a stage's stream, normalises it or reads it, with the channels in this order."""
    own, after, channels = f"layers.{stage}.", f"layers.{stage + 1}.downsample.", list(order)
    last = f"{after}norm.weight" not in state
    for name, tensor in state.items():
        if name.startswith(after):  # four neighbours side by side
            if not name.endswith("reduction.weight"):
                state[name] = tensor.unflatten(0, (4, -1))[:, channels].flatten()
            else:
                state[name] = tensor.unflatten(1, (4, -1))[:, :, channels].flatten(1)
        elif name.startswith(f"{own}blocks."):
            if name.endswith(("qkv.weight", "fc1.weight")):
                state[name] = tensor[:, channels]
            elif ".norm" in name or ".proj." in name or ".fc2." in name:
                state[name] = tensor[channels]
        elif (
            name == f"{own}downsample.reduction.weight"
            or (stage == 0 and name.startswith("patch_embed."))
            or (last and name.startswith("norm."))
        ):
            state[name] = tensor[channels]
        elif last and name == "head.fc.weight":
            state[name] = tensor[:, channels]


# -- a cut network ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def refit(cut: PlainWindowed, whole: PlainWindowed, order: Order, images: Sequence[Tensor]) -> None:
    """Make a network cut from an ordered one follow it, in place: its blocks, and the layers that merge neighbours.

    Its blocks know the places they had. Maps shrink from stage to stage: many positions of the first are taken, so that
    the last has some thousands.
    """
    theirs = list(enough((whole.patch_embed(x) for x in images), POSITIONS))
    ours = [cut.patch_embed(x) for x, _ in zip(images, theirs, strict=False)]
    for own, other, shape, blocks, originals in zip(
        cut.layers, whole.layers, cut.shapes, blocks_of(cut), blocks_of(whole), strict=True
    ):
        assert isinstance(own, WindowLayer) and isinstance(other, WindowLayer)
        theirs = [other.downsample(x) for x in theirs]
        if isinstance(own.downsample, WindowMerge):
            read = [own.downsample.norm(quarters(x).flatten(3)) for x in ours]
            blank = [x.new_zeros(*x.shape[:-1], shape.embed) for x in theirs]
            ours = fitted(own.downsample.reduction, blank, read, theirs)
        ours, theirs = refit_blocks(blocks, originals, [shape.place(i) for i in range(len(blocks))], ours, theirs)
