"""Other ways to a smaller network: blocks left out, widths slimmed by weight magnitude, Torch-Pruning, a fresh start.

Each function takes the fine-tuned network and a limit on parameters and gives a network with weights, to be trained on.
"""

from __future__ import annotations

import copy
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.errors import TailorError, unknown
from tailorvit.families.tailored.elastic import ElasticTailored, extract
from tailorvit.families.tailored.order import reordered
from tailorvit.families.tailored.plain import PlainTailored
from tailorvit.families.tailored.spaces import cut_space, tailored_arch
from tailorvit.methods.importance import importance as score
from tailorvit.rng import seed_everything

Criterion = Literal["magnitude", "taylor"]
ROUND = 8  # hidden units come in eights, which a GPU multiplies fastest
TRIES = 12  # of a bisection; the last ones differ by less than one channel


def count(model: nn.Module) -> int:
    """Parameters."""
    return sum(p.numel() for p in model.parameters())


# -- cuts of our own network ------------------------------------------------------------------------------------------


def first_blocks(model: PlainTailored, limit: float) -> PlainTailored:
    """The first whole blocks, as many as fit."""
    return cut(model, range(_fitting(model, limit)))


def every_other(model: PlainTailored, limit: float) -> PlainTailored:
    """As many whole blocks as fit, evenly spaced, the first and the last among them."""
    return cut(model, spaced(len(model.blocks), _fitting(model, limit)))


def slimmed(model: PlainTailored, limit: float, blocks: int = 12) -> PlainTailored:
    """All blocks, or evenly spaced ones, with the same share of heads and hidden units, the largest weights kept."""
    kept = spaced(len(model.blocks), min(blocks, len(model.blocks)))
    most = max(model.shape["heads"]), max(model.shape["hidden"])
    widths, shapes = [*range(ROUND, most[1], ROUND), most[1]], []
    for heads in range(1, most[0] + 1):
        fits = bisect_right(widths, limit, key=partial(size, model, kept, heads))
        if fits:
            hidden = widths[fits - 1]
            shapes.append((abs(heads / most[0] - hidden / most[1]), heads, hidden))
    if not shapes:
        raise _none_fits(f"{len(kept)} blocks of one head", limit, size(model, kept, 1, widths[0]))
    _, heads, hidden = min(shapes)
    ranked = reordered(model, score(model, [], "magnitude").orders(channels=False))
    return cut(ranked, kept, heads, hidden)


def scratch(model: PlainTailored, limit: float, seed: int = 0) -> PlainTailored:
    """The shape of :func:`first_blocks` with fresh weights."""
    kept = range(_fitting(model, limit))
    seed_everything(seed, "init", "plain")
    return PlainTailored(replace(model.shared, init="scaled", order=()), **_shape(model, kept))


def spaced(blocks: int, wanted: int) -> list[int]:
    """So many of the blocks, evenly spaced from the first to the last; one alone is the first."""
    return [round(i * (blocks - 1) / max(wanted - 1, 1)) for i in range(wanted)]


def cut(
    model: PlainTailored, kept: Sequence[int], heads: int | None = None, hidden: int | None = None
) -> PlainTailored:
    """The network of these blocks, each with its first heads and hidden units."""
    depth, shape, own = len(model.blocks), model.shape, _shape(model, kept, heads, hidden)
    order = (*kept, *(b for b in range(depth) if b not in set(kept)))
    space = cut_space(
        [depth], [max(shape["hidden"])], [max(shape["heads"])], [shape["embed"]], **model.shared.to_dict()
    )
    space = replace(space, settings=tuple({**dict(space.settings), "order": order}.items()))
    whole = ElasticTailored(space).to(next(model.parameters()).device)
    state = model.state_dict()
    with torch.no_grad():
        for name, p in whole.named_parameters():
            p.copy_(state[name].view(p.shape))
    return extract(whole, tailored_arch({"depth": len(kept), **own})).train(model.training)


def size(model: PlainTailored, kept: Sequence[int], heads: int | None = None, hidden: int | None = None) -> int:
    """Parameters of :func:`cut`'s network."""
    with torch.device("meta"):
        return count(PlainTailored(model.shared, **_shape(model, kept, heads, hidden)))


def _shape(
    model: PlainTailored, kept: Sequence[int], heads: int | None = None, hidden: int | None = None
) -> dict[str, Any]:
    shape = model.shape
    return {
        "embed": shape["embed"],
        "heads": [heads or shape["heads"][b] for b in kept],
        "hidden": [hidden or shape["hidden"][b] for b in kept],
    }


def _fitting(model: PlainTailored, limit: float) -> int:
    """How many whole blocks fit."""
    fits = [k for k in range(1, len(model.blocks) + 1) if size(model, range(k)) <= limit]
    if not fits:
        raise _none_fits("one whole block", limit, size(model, range(1)))
    return fits[-1]


def _none_fits(what: str, limit: float, least: int) -> TailorError:
    return TailorError(f"A network of {what} has {least:,} parameters, more than the limit of {limit:,.0f}.")


# -- Torch-Pruning ----------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """timm's attention without its assumption that the inner width is the outer one, which pruning breaks."""

    def __init__(self, qkv: nn.Module, proj: nn.Module, heads: int) -> None:
        super().__init__()
        self.qkv, self.proj, self.heads = qkv, proj, heads

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        """(B, N, in) to (B, N, out); timm's block names a mask, which is None here."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        out: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return out


def as_timm(model: PlainTailored) -> nn.Module:
    """timm's own module with these weights; layer scale stays folded in."""
    from timm.models.vision_transformer import VisionTransformer

    shared, shape = model.shared, model.shape
    theirs = VisionTransformer(
        img_size=shared.image_size,
        patch_size=shared.patch,
        in_chans=shared.channels,
        num_classes=shared.classes,
        global_pool="token",
        embed_dim=shape["embed"],
        depth=len(model.blocks),
        num_heads=shape["heads"][0],
        mlp_ratio=shape["hidden"][0] / shape["embed"],
    )
    theirs.load_state_dict(model.state_dict())
    return theirs.to(next(model.parameters()).device).train(model.training)


@torch.enable_grad()  # Torch-Pruning finds its way by gradients, whoever calls
def torch_pruned(
    timm_model: nn.Module,
    example: Tensor,
    limit: float,
    importance: Criterion = "magnitude",
    batches: Sequence[tuple[Tensor, Tensor]] = (),
    isomorphic: bool = False,
) -> nn.Module:
    """Torch-Pruning as its own example for timm's ViT does it; a bisection on the ratio meets the limit.

    One ratio for the stream's channels, the hidden units and the channels of every head. ``isomorphic`` ranks parts of
    the same kind together over all blocks, as the same authors' later paper does. Taylor needs ``batches``.
    """
    if importance not in ("magnitude", "taylor"):
        raise unknown("importance", importance, ("magnitude", "taylor"))
    whole: Any = copy.deepcopy(timm_model).eval()
    for block in whole.blocks:
        block.attn = Attention(block.attn.qkv, block.attn.proj, block.attn.num_heads)
    if importance == "taylor":
        if not batches:
            raise TailorError("Taylor's importance needs batches of images and labels, and there are none.")
        whole.zero_grad()
        for x, y in batches:
            F.cross_entropy(whole(x.to(example.device)), y.to(example.device)).backward()
    low, high = 0.0, 1.0  # ratios: too large a network, small enough
    best: nn.Module | None = None
    for _ in range(TRIES):
        ratio = (low + high) / 2
        pruned = _pruned(whole, example, ratio, importance, isomorphic)
        if count(pruned) > limit:
            low = ratio
        else:
            high = ratio
            best = pruned if best is None or count(pruned) >= count(best) else best
    if best is None:
        raise _none_fits("what Torch-Pruning leaves", limit, count(_pruned(whole, example, low, importance, False)))
    return best.train(timm_model.training)


def _pruned(whole: Any, example: Tensor, ratio: float, importance: str, isomorphic: bool) -> nn.Module:
    """A copy of the network with this ratio of everything removed; gradients must lie in the given one."""
    import torch_pruning as tp

    model = copy.deepcopy(whole)
    for new, old in zip(model.parameters(), whole.parameters(), strict=True):
        new.grad = None if old.grad is None else old.grad.clone()  # a copied parameter has none
    judge = (
        tp.importance.GroupTaylorImportance() if importance == "taylor" else tp.importance.GroupMagnitudeImportance(p=2)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tables outside a layer, which are found and cut
        pruner = tp.pruner.BasePruner(
            model,
            example,
            importance=judge,
            pruning_ratio=ratio,
            global_pruning=isomorphic,
            isomorphic=isomorphic,
            ignored_layers=[model.head],
            num_heads={block.attn.qkv: block.attn.heads for block in model.blocks},
            prune_num_heads=False,
            prune_head_dims=True,
            round_to=2,
            in_channel_groups={},  # or its default, which all pruners of a process share, keeps our networks
            out_channel_groups={},
        )
        pruner.step()
    model.zero_grad()
    assert isinstance(model, nn.Module)
    return model
