"""What a family offers besides its record where its networks are cut from pretrained ones (method ``tailor``).

A network has blocks with heads and hidden units, and streams: channels that all blocks of a stage read and write. A ViT
has one stream, a Swin one per stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.families.network import NetworkSettings, PlainNetwork
from tailorvit.space import Space

Order = Sequence[int]


@dataclass(frozen=True)
class Orders:
    """For every block its heads and hidden units, and for every stream its channels, the most important first."""

    heads: Sequence[Order]
    hidden: Sequence[Order]
    streams: Sequence[Order] | None = None  # None: as they are


class Parts(NamedTuple):
    """The parts of a network whose importance is measured."""

    # Each has attn.qkv, attn.proj, mlp.fc1 and mlp.fc2.
    blocks: Sequence[nn.Module]
    stages: Sequence[int]  # of every block, counted from 0: the stream it reads and writes
    widths: Sequence[int]  # channels of every stream
    # What reads every stream; where neighbours are side by side, their channels come one neighbour after the other.
    norms: Sequence[Sequence[nn.Module]]
    head_dim: int


def _no_other_basis(network: PlainNetwork, images: Sequence[Tensor]) -> PlainNetwork | None:
    return None


@dataclass(frozen=True)
class Tailoring:
    """What the method ``tailor`` asks of a family. All networks are plain ones of the family."""

    settings: type[NetworkSettings]  # all of it that its networks share; a pretrained one has no classes
    space: Callable[[Arch, Mapping[str, Any]], Space]  # what can be kept of a whole network
    whole: Callable[[Any], Arch]  # the architecture of a network
    # (settings, side of the images, side it was trained for) -> the nearest side that suits the network well
    side: Callable[[Any, int, int], int]
    parts: Callable[[Any], Parts]
    logits: Callable[[Any, Tensor, Sequence[int]], Tensor]  # (network, images, blocks): of these blocks alone
    reordered: Callable[[Any, Orders], PlainNetwork]  # the same function with its parts in another order
    fill: Callable[[nn.Module, Any], None]  # (supernet, network): put it in as the largest member
    # (cut network, ordered whole one, all blocks by importance, images): make the cut one follow the whole, in place
    refit: Callable[[Any, Any, Sequence[int], Sequence[Tensor]], None]
    # (network, images) -> the same function with its stream in the basis of its principal components; None: there is no
    # other basis, and channels are ordered one by one.
    turned: Callable[[Any, Sequence[Tensor]], PlainNetwork | None] = _no_other_basis
    # (architecture, settings of a whole network) -> what changes in the settings by ordering it
    turned_settings: Callable[[Arch, Any], dict[str, Any]] = field(default=lambda arch, settings: {})
    first: Callable[[Any, int], Arch] | None = None  # (network, depth): its first blocks; None where they are no rival


def steps(whole: int, parts: int, least: int) -> list[int]:
    """The whole and what is left of it, part by part, down to ``least`` of so many parts."""
    part = max(1, whole // parts)
    return sorted({whole - i * part for i in range(parts - least + 1) if whole > i * part})


def tailoring_of(network: nn.Module) -> Tailoring:
    """By the class of a network, which belongs to one family of this kind."""
    from tailorvit.families import FAMILIES

    for record in FAMILIES.working():
        if record.tailoring is not None and record.plain is type(network):
            return record.tailoring
    raise TailorError(f"A {type(network).__name__} is of no family that is cut from pretrained networks.")
