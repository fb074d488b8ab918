"""One training on several processes: each has a part of every batch, and all take the same step.

The gradients of a step are added up in one buffer after its last backward pass, not by DistributedDataParallel: a
supernet leaves blocks out and a sandwich has four backward passes a step, where DDP must search the graph for unused
parameters, or be told which pass is the last. One buffer needs neither, and the writer's checkpoint is that of a
training in one process. The price is that sending does not begin while gradients are still computed
(docs/distributed.md counts it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from tailorvit import ranks
from tailorvit.elastic.weights import BatchNorm


class Share:
    """This process's part of every batch of a training."""

    def __init__(self, model: nn.Module, batch: int, compiled: bool, device: str = "cpu") -> None:
        self.batch, self.places = batch, rows_of(ranks.rank(), ranks.world(), batch)
        self.rows = torch.tensor(self.places, device=device)
        self.weight = len(self.places) / batch  # of its mean loss in the batch's
        self.norms = any(isinstance(m, _BatchNorm | BatchNorm) for m in model.modules())
        self.compiled = compiled and not self.norms  # a compiler cannot hold what batch norms must tell each other

    def forward(self) -> AbstractContextManager[Any]:
        """Around a forward pass: what it draws and normalises by is the whole batch's."""
        return nullcontext() if self.compiled else _WholeBatch(self.rows, self.batch)

    @torch.no_grad()
    def add_up(self, gradients: Sequence[Tensor], figures: Tensor) -> None:
        """Make gradients and figures (weighted loss, correct answers) those of the whole batch, in place.

        Losses are weighted before they are differentiated. What is not finite anywhere is so everywhere afterwards.
        """
        every = [*gradients, figures]
        whole = torch.cat([t.reshape(-1) for t in every])
        ranks.add_up(whole)
        parts = whole.split([t.numel() for t in every])
        torch._foreach_copy_(every, [part.view_as(t) for part, t in zip(parts, every, strict=True)])

    def step(self, parameters: Iterable[nn.Parameter], loss: float, correct: int) -> tuple[float, int]:
        """Complete the gradients of an eager step; the loss and the correct answers of the whole batch."""
        found = [p.grad for p in parameters if p.grad is not None]
        figures = torch.tensor([loss * self.weight, correct], device=found[0].device)
        self.add_up(found, figures)
        mean, right = figures.tolist()
        return mean, round(right)

    @staticmethod
    def agreed(found: Any) -> Any:
        """What the writer found, a checkpoint for one, in every process."""
        return ranks.broadcast(found)


def rows_of(rank: int, world: int, batch: int) -> list[int]:
    """The places in a batch that belong to a process.

    Each part is a piece of the first half and its mirror image in the second, as mixing pairs a batch with its reverse;
    an odd last image, which is not mixed, is the last process's.
    """
    pairs = batch // 2
    low, high = rank * pairs // world, (rank + 1) * pairs // world
    last = [batch - 1] if batch % 2 and rank == world - 1 else []
    return [*range(low, high), *range(2 * pairs - high, 2 * pairs - low), *last]


def paths_of(places: Sequence[int], paths: int, batch: int) -> dict[int, list[int]]:
    """The paths that a process has, each with its rows among the process's own; those of a whole path or none."""
    own = {place: row for row, place in enumerate(places)}
    rows = {path: rows_of(path, paths, batch) for path in range(paths)}
    return {path: [own[place] for place in of] for path, of in rows.items() if of[0] in own}


def cannot_share(batch: int, paths: int = 1, accumulate: int = 1) -> str:
    """Why a batch cannot be dealt to all processes; empty where it can."""
    if accumulate > 1:
        return "train.accumulate takes a batch in parts, as several processes would"
    if batch // 2 < ranks.world():
        return f"a batch of {batch} has no part for each of {ranks.world()} processes"
    if paths > 1 and paths % ranks.world():
        return f"train.paths = {paths} cannot be dealt evenly to {ranks.world()} processes"
    return ""


# -- a forward pass that sees the whole batch -------------------------------------------------------------------------


class _WholeBatch(TorchFunctionMode):
    """Inside, drop path and dropout draw for the whole batch and keep their rows; batch norms use all its images."""

    def __init__(self, rows: Tensor, batch: int) -> None:
        super().__init__()
        self.rows, self.batch = rows, batch

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is F.batch_norm:
            return _batch_norm(*args, **given)
        if func is Tensor.bernoulli_:
            return args[0].copy_(self._draws(args[0], *args[1:], **given))
        if func is F.dropout:
            return self._dropout(*args, **given)
        return func(*args, **given)

    def _draws(self, like: Tensor, p: float = 0.5) -> Tensor:
        """Zeros and ones for the own rows; a row may stand for several in a tensor, as windows of an image do."""
        parts = like.shape[0] // len(self.rows)
        whole = like.new_empty(self.batch * parts, *like.shape[1:])
        return whole.bernoulli_(p).view(self.batch, parts, *like.shape[1:])[self.rows].view(like.shape)

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        return x * self._draws(x, 1 - p) / (1 - p)


class _Sum(torch.autograd.Function):
    """The sum over all processes, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.clone()
        ranks.add_up(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        out = grads[0].clone(memory_format=torch.contiguous_format)
        ranks.add_up(out)
        return out


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """:func:`torch.nn.functional.batch_norm` with the statistics of all processes' images."""
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    wide, dims = x.float(), [0, *range(2, x.dim())]
    shape = (1, -1, *[1] * (x.dim() - 2))
    count = wide.new_full((1,), x.numel() / x.shape[1])
    total: Tensor = _Sum.apply(torch.cat([wide.sum(dims), count]))
    images = total[-1].detach()
    mean = total[:-1] / images
    centred = wide - mean.view(shape)
    squares: Tensor = _Sum.apply(centred.square().sum(dims))
    var = squares / images
    out = centred * (var + eps).rsqrt().view(shape)
    if weight is not None:
        out = out * weight.float().view(shape)
    if bias is not None:
        out = out + bias.float().view(shape)
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(squares / (images - 1), momentum)
    return out.to(x.dtype)
