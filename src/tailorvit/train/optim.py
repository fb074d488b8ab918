"""What training steps share: the loss, precision, drop path, AdamW or SGD, and AdamW for the slices in use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit.elastic.slicing import Width
from tailorvit.train.settings import TrainSettings

Slices = dict[str, tuple[Width | None, ...]]
BETAS = (0.9, 0.999)  # AdamW's
MOMENTUM = 0.9  # SGD's
BACKBONE = "backbone."  # how the names of a task network's backbone begin
# Share of the labels in what the others of a sandwich learn. With none, three of four gradients repeat what the largest
# network says already, right or wrong: 91 and 88 % on digits, 98 and 97 % with half (docs/log.md).
LABELS = 0.5


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy against soft targets, in float32."""
    return -(target * logits.float().log_softmax(-1)).sum(-1).mean()


def batch_statistics(model: nn.Module) -> list[Tensor]:
    """The buffers a checkpoint holds: those of batch norms, which a forward pass changes."""
    saved = model.state_dict()
    return [b for n, b in model.named_buffers() if n in saved]


def taught(target: Tensor, logits: Tensor) -> Tensor:
    """What the others of a sandwich learn: the labels and the largest network's outputs, taken as constants."""
    return LABELS * target + (1 - LABELS) * logits.detach().float().softmax(-1)


@contextmanager
def without_drop_path(model: nn.Module) -> Iterator[None]:
    """No drop path inside; the rest stays as in training (evaluation mode would change batch norms)."""
    blocks: list[tuple[Any, Any]] = [
        (m, m.rate) for m in model.modules() if isinstance(getattr(m, "rate", None), int | float)
    ]
    try:
        for block, _ in blocks:
            block.rate = 0.0
        yield
    finally:
        for block, rate in blocks:
            block.rate = rate


@contextmanager
def float32_sums() -> Iterator[None]:
    """Partial sums of 16-bit matrix products in 32 bits: a weight's gradient sums over every token of a batch."""
    switches: Any = torch.backends.cuda.matmul
    before = switches.allow_bf16_reduced_precision_reduction
    switches.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        switches.allow_bf16_reduced_precision_reduction = before


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: not to norms, biases, positions, tokens and relative-position tables."""
    leaf = name.rsplit(".", 1)[-1]
    # Norms by name as well: those of a family with channels per head have two axes.
    if parameter.dim() <= 1 or "norm" in name or leaf.endswith("bias") or leaf in ("pos_embed", "cls_token", "query"):
        return False
    return not leaf.startswith(("rel_", "relative_"))


_BLOCK = re.compile(r"(?:.+\.)?blocks\.\d+\.")


def depths(names: Iterable[str]) -> dict[str, int]:
    """How deep a parameter lies: 0 before the blocks, then block by block, and last what comes after them."""
    found, blocks, last = dict[str, int](), list[str](), list[str]()
    for name in names:
        block = _BLOCK.match(name)
        if block:
            last.clear()
            if block[0] not in blocks:
                blocks.append(block[0])
        elif blocks:
            last.append(name)  # after the blocks, unless another one follows
        found[name] = len(blocks)
    return {**found, **dict.fromkeys(last, len(blocks) + 1)}


def rate_shares(names: Sequence[str], layer_decay: float, backbone: float = 1.0) -> dict[str, float]:
    """The share of the learning rate that a parameter gets: all of it behind the blocks, less block by block before.

    A task's network has a backbone, which may get less than the head that comes after it.
    """
    first = sorted(names, key=lambda name: not name.startswith(BACKBONE))  # in whatever order they were made
    deep = depths(first)
    most = max(deep.values(), default=0)
    return {
        name: layer_decay ** (most - depth) * (backbone if name.startswith(BACKBONE) else 1.0)
        for name, depth in deep.items()
    }


def make_optimizer(model: nn.Module, settings: TrainSettings, backbone: float = 1.0) -> torch.optim.Optimizer:
    """AdamW or SGD over groups with and without weight decay; the loop sets the learning rate at every step.

    A group's ``share`` is the part of the rate that it gets: another one for every block with a layer decay, and for
    the backbone of a task's network.
    """
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    shares = rate_shares([n for n, _ in named], settings.layer_decay, backbone)
    groups: list[dict[str, Any]] = []
    for share in dict.fromkeys(shares.values()):
        own = [(n, p) for n, p in named if shares[n] == share]
        for decay in (True, False):
            params = [p for n, p in own if decays(n, p) is decay]
            weight_decay = settings.weight_decay if decay else 0.0
            groups += [{"params": params, "weight_decay": weight_decay, "share": share}] if params else []
    if settings.freeze == "slice":
        return SliceAdamW(groups, lr=settings.lr, betas=BETAS)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=MOMENTUM)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=BETAS, eps=1e-8, fused=True)


class SliceAdamW(torch.optim.Optimizer):
    """AdamW that changes weights and moments only at entries some sub-network used since the last step.

    Every entry counts its own steps for the bias correction. Prefixes of one tensor need not contain each other, so
    their union is a boolean mask, made anew in every step.
    """

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], eps: float = 1e-8) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.used: dict[Tensor, list[tuple[slice, ...]]] = {}

    def use(self, model: nn.Module, slices: Slices) -> None:
        """Register the prefixes one forward pass used."""
        named = dict(model.named_parameters())
        for name, widths in slices.items():
            box = tuple(slice(None) if w is None else slice(w.size) for w in widths)
            self.used.setdefault(named[name], []).append(box)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the union of the registered prefixes and clear them."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None or p not in self.used:
                    continue
                mask = torch.zeros(p.shape, dtype=torch.bool, device=p.device)
                for box in self.used[p]:
                    mask[box] = True
                state = self.state[p]
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                    state["steps"] = torch.zeros_like(p)
                first, second, steps, grad = state["exp_avg"], state["exp_avg_sq"], state["steps"], p.grad
                first.copy_(torch.where(mask, first.lerp(grad, 1 - beta1), first))
                second.copy_(torch.where(mask, beta2 * second + (1 - beta2) * grad * grad, second))
                steps += mask
                n = steps.clamp(min=1)
                update = first / (1 - beta1**n) / ((second / (1 - beta2**n)).sqrt() + group["eps"])
                changed = p * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * update
                p.copy_(torch.where(mask, changed, p))
        self.used.clear()


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors, for a checkpoint without pickle."""
    return {
        f"{name}/{key}": value
        for name, p in model.named_parameters()
        for key, value in optimizer.state.get(p, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """Put :func:`optimizer_tensors` back."""
    named = dict(model.named_parameters())
    optimizer.state.clear()
    for key, value in tensors:
        name, field = key.rsplit("/", 1)
        device = torch.device("cpu") if field == "step" and named[name].device.type == "cpu" else named[name].device
        optimizer.state[named[name]][field] = value.to(device).clone()
