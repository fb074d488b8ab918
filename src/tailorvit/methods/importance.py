"""How much the parts of a tailored network matter for these images: heads, hidden units, channels and blocks.

The order says what a smaller network gives up first. Three criteria: the size of the weights, the strength of what
flows through a part, and Taylor's, the change of the loss to first order if the part were switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.errors import unknown
from tailorvit.families.network import PlainNetwork
from tailorvit.families.tailoring import Orders, Parts, tailoring_of

Criterion = Literal["magnitude", "activation", "taylor"]
CRITERIA: tuple[str, ...] = get_args(Criterion)
Batches = Sequence[tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Importance:
    """A score for every head and hidden unit of every block, and for every channel of every stream; more is better."""

    heads: list[Tensor]
    hidden: list[Tensor]
    streams: list[Tensor]

    def orders(self, channels: bool = True) -> Orders:
        """The most important first; of equals the first stays ahead."""

        def ranked(scores: Tensor) -> list[int]:
            return torch.argsort(scores, descending=True, stable=True).tolist()

        return Orders(
            [ranked(s) for s in self.heads],
            [ranked(s) for s in self.hidden],
            [ranked(s) for s in self.streams] if channels else None,
        )


def importance(model: PlainNetwork, batches: Batches, criterion: str = "taylor") -> Importance:
    """Measured on batches of images and labels; the network is left as it was."""
    if criterion not in CRITERIA:
        raise unknown("criterion", criterion, CRITERIA)
    parts = tailoring_of(model).parts(model)
    if criterion == "magnitude":
        return _magnitude(parts)
    blocks: list[Any] = list(parts.blocks)
    norms = [m for own in parts.norms for m in own]
    widths = [width for width, own in zip(parts.widths, parts.norms, strict=True) for _ in own]
    places: list[nn.Module] = [*(b.attn.proj for b in blocks), *(b.mlp.fc2 for b in blocks), *norms]
    sums: list[Tensor | None] = [None] * len(places)
    taylor = criterion == "taylor"

    def add(i: int, found: Tensor) -> None:
        before = sums[i]
        sums[i] = found if before is None else before + found

    with _evaluating(model), torch.enable_grad() if taylor else torch.no_grad():
        for x, y in batches:
            with _inputs(places, taylor) as seen:
                loss = F.cross_entropy(model(x).float(), y.to(x.device), reduction="sum")
            flows = seen()
            # Per image, summed over its tokens before the absolute value: a part acts on all of them at once.
            changes = torch.autograd.grad(loss, flows) if taylor else flows
            for i, (flow, change) in enumerate(zip(flows, changes, strict=True)):
                product = (flow * change).detach().float().flatten(1, -2).sum(1)
                if i >= 2 * len(blocks):  # neighbours side by side have the same channels
                    product = product.unflatten(1, (-1, widths[i - 2 * len(blocks)])).sum(1)
                add(i, (product.abs() if taylor else product).sum(0))
    found = [s for s in sums if s is not None]
    count, dim = len(blocks), parts.head_dim
    if not taylor:
        for i, layer in enumerate(places[: 2 * count]):
            weight = layer.weight
            assert isinstance(weight, Tensor)
            found[i] = found[i].sqrt() * weight.detach().float().norm(dim=0)
    heads = [s.unflatten(0, (-1, dim)).sum(-1) for s in found[:count]]
    flows_in, streams = iter(found[2 * count :]), []
    for own in parts.norms:
        streams.append(torch.stack([next(flows_in) for _ in own]).sum(0))
    return Importance(heads, found[count : 2 * count], streams)


def _magnitude(parts: Parts) -> Importance:
    """Norms of what leads into a part times what leads out of it; of a channel, of what blocks read and write."""
    heads, hidden, dim = [], [], parts.head_dim
    streams = [torch.zeros(width) for width in parts.widths]
    every: list[Any] = list(parts.blocks)
    for block, stage in zip(every, parts.stages, strict=True):
        q, k, v = (w.unflatten(0, (-1, dim)).flatten(1) for w in block.attn.qkv.weight.detach().float().chunk(3))
        out = block.attn.proj.weight.detach().float().unflatten(1, (-1, dim)).transpose(0, 1).flatten(1)
        heads.append(q.norm(dim=1) * k.norm(dim=1) + v.norm(dim=1) * out.norm(dim=1))
        first, second = block.mlp.fc1.weight.detach().float(), block.mlp.fc2.weight.detach().float()
        hidden.append(first.norm(dim=1) * second.norm(dim=0))
        embed = streams[stage].to(out.device) + second.norm(dim=1) + first.norm(dim=0)
        embed = embed + block.attn.proj.weight.detach().float().norm(dim=1)
        streams[stage] = embed + block.attn.qkv.weight.detach().float().norm(dim=0)
    return Importance(heads, hidden, streams)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@contextmanager
def _inputs(modules: Sequence[nn.Module], gradients: bool) -> Iterator[Callable[[], list[Tensor]]]:
    """What enters these modules in one forward pass, in their order."""
    seen: dict[int, Tensor] = {}

    def keep(i: int) -> Callable[..., tuple[Tensor] | None]:
        def look(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor] | None:
            seen[i] = given[0]
            if not gradients or given[0].requires_grad:
                return None
            seen[i] = given[0].detach().requires_grad_()  # nothing before it is trained, so nothing asked for one
            return (seen[i],)

        return look

    hooks = [m.register_forward_pre_hook(keep(i)) for i, m in enumerate(modules)]
    try:
        yield lambda: [seen[i] for i in range(len(modules))]
    finally:
        for hook in hooks:
            hook.remove()


# -- blocks -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def block_order(model: PlainNetwork, batches: Batches) -> list[int]:
    """The blocks, the most important first: again and again the one is given up that the loss misses least.

    Every stage keeps one block; those that are left come first.
    """
    stages = tailoring_of(model).parts(model).stages
    left, given_up = list(range(len(stages))), list[int]()
    with _evaluating(model):
        while free := [b for b in left if [stages[k] for k in left].count(stages[b]) > 1]:
            losses = {b: _loss(model, batches, [k for k in left if k != b]) for b in free}
            worst = min(free, key=lambda b: (losses[b], -b))
            left.remove(worst)
            given_up.append(worst)
    return [*left, *reversed(given_up)]


def _loss(model: PlainNetwork, batches: Batches, blocks: Sequence[int]) -> float:
    """Mean cross entropy of the network with these blocks only."""
    logits_of = tailoring_of(model).logits
    total, count = 0.0, 0
    for x, y in batches:
        logits = logits_of(model, x, blocks).float()
        total += float(F.cross_entropy(logits, y.to(x.device), reduction="sum"))
        count += len(y)
    return total / max(count, 1)
