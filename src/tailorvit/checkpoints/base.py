"""What a loader is, and how weights are put into a network: whole, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.checkpoints.files import State
from tailorvit.elastic.slicing import Width
from tailorvit.errors import TailorError
from tailorvit.space import Space

Shape = tuple[int | Width, ...]  # a width is elastic: the tensor may hold more, and its prefix is taken


class Seen(NamedTuple):
    """How images were prepared for a network: mean and deviation of the channels, and the margin of the crop."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    margin: float


# DeiT, Swin, PiT, AutoFormer and S3 alike: the middle 224 px of an image resized to 256.
IMAGENET = Seen((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 256 / 224)


@dataclass(frozen=True)
class Loader:
    """The entry record of one kind of checkpoint: how to know it, and its names in ours."""

    name: str
    summary: str
    families: tuple[str, ...]  # whose plain networks it can fill
    knows: Callable[[State], bool]
    plain: Callable[[State, Arch, Any], State]  # (state, arch, frame) -> the plain network's names and shapes
    supernet: Callable[[State, Space], tuple[Space, State]] | None = None  # -> its space, and the supernet's weights


def fill(network: nn.Module, state: Mapping[str, Tensor], what: str) -> None:
    """Copy the weights; every one must be there, nothing left over, all shapes equal."""
    own = network.state_dict()
    require(state, {name: tuple(tensor.shape) for name, tensor in own.items()}, what)
    left_over([name for name in state if name not in own], what)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])


def require(state: Mapping[str, Tensor], shapes: Mapping[str, Shape], what: str) -> None:
    """Refuse a state that lacks a tensor or has one of another shape; axes given as a width may be longer."""
    lacking = [name for name in shapes if name not in state]
    if lacking:
        refuse(f"The checkpoint lacks '{lacking[0]}'{others(lacking)}", what)
    odd = [name for name, shape in shapes.items() if not _fits(state[name], shape)]
    if odd:
        here, there = sides(shapes[odd[0]]), tuple(state[odd[0]].shape)
        refuse(f"The checkpoint has another shape of '{odd[0]}', {there} instead of {here}{others(odd)}", what)


def left_over(names: Sequence[str], what: str) -> None:
    """Refuse tensors nothing would use: without them the network is not the one that was trained."""
    if names:
        refuse(f"The checkpoint has a tensor too many, '{names[0]}'{others(names)}", what)


def _fits(tensor: Tensor, shape: Shape) -> bool:
    if tensor.dim() != len(shape):
        return False
    pairs = zip(tensor.shape, shape, strict=True)
    return all(have >= n.size if isinstance(n, Width) else have == n for have, n in pairs)


def sides(shape: Shape) -> tuple[int, ...]:
    """A shape in plain numbers."""
    return tuple(n.size if isinstance(n, Width) else n for n in shape)


def refuse(problem: str, what: str) -> NoReturn:
    """The one sentence."""
    raise TailorError(f"{problem}; it does not belong to {what}.")


def others(names: Sequence[str]) -> str:
    """How many more there are than the first."""
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
