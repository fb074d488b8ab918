"""Published checkpoints in our networks: their files, their names and layouts.

LOADERS is the table of kinds: one entry each, the first that knows a file takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from tailorvit.arch import Arch
from tailorvit.checkpoints.autoformer import AUTOFORMER
from tailorvit.checkpoints.base import IMAGENET, Loader, fill
from tailorvit.checkpoints.files import State, checksum, read_state
from tailorvit.checkpoints.released import SWIN, TIMM_PIT, TIMM_SWIN, TIMM_VIT
from tailorvit.errors import TailorError
from tailorvit.families import family, named_arch, named_space, with_fixed
from tailorvit.families.network import PlainNetwork
from tailorvit.space import Space

LOADERS: Mapping[str, Loader] = {loader.name: loader for loader in (AUTOFORMER, SWIN, TIMM_SWIN, TIMM_PIT, TIMM_VIT)}

__all__ = [
    "IMAGENET",
    "LOADERS",
    "Loader",
    "State",
    "checksum",
    "class_count",
    "load_plain",
    "load_supernet",
    "read_state",
    "recognise",
]


def recognise(state: State) -> str:
    """Which of LOADERS a state dict is for, told by its names."""
    for loader in LOADERS.values():
        if loader.knows(state):
            return loader.name
    first = next(iter(state), "none")
    known = "; ".join(loader.summary for loader in LOADERS.values())
    raise TailorError(f"The checkpoint's names (such as '{first}') are of no kind known here: {known}.")


def class_count(state: State) -> int:
    """How many classes the head tells apart."""
    for name in ("head.fc.weight", "head.weight"):
        if name in state and state[name].dim() == 2:
            return int(state[name].shape[0])
    raise TailorError("The checkpoint has no head ('head.weight'), so it says nothing about classes.")


def load_plain(
    state: State, arch: str | Arch, fixed: Mapping[str, Any] | None = None, *, label: str | None = None
) -> PlainNetwork:
    """The plain network of a named architecture (or of an Arch and its shared settings) with a checkpoint's weights.

    The classes are those of the checkpoint's head; ``fixed`` goes over the named settings. ``label`` is what a mistake
    calls the architecture.
    """
    loader = LOADERS[recognise(state)]
    if isinstance(arch, str):
        named = named_arch(arch)
        shape, given, label = named.arch, {**named.fixed, **(fixed or {})}, label or f"'{arch}'"
    else:
        shape, given, label = arch, dict(fixed or {}), label or f"this {arch.family}"
    record = family(shape.family)
    if shape.family not in loader.families:
        raise TailorError(
            f"The checkpoint is of the kind '{loader.name}' ({loader.summary}), for the family "
            f"{' or '.join(loader.families)}; {label} is of the family {shape.family}."
        )
    frame = record.frame({**given, "classes": class_count(state)})
    converted = loader.plain(state, shape, frame)
    network = record.build(frame, shape)
    assert isinstance(network, PlainNetwork)
    fill(network, converted, label)
    return network.eval()


def load_supernet(state: State, space: str | Space) -> nn.Module:
    """The supernet of a space with a released supernet's weights: ``model(x, arch)`` runs any member.

    The model's space is the one given with the checkpoint's classes and Q-K-V layout.
    """
    loader = LOADERS[recognise(state)]
    if loader.supernet is None:
        having = ", ".join(other.name for other in LOADERS.values() if other.supernet is not None)
        raise TailorError(f"A checkpoint of the kind '{loader.name}' is no supernet; supernets come as: {having}.")
    given = named_space(space) if isinstance(space, str) else space
    if given.family not in loader.families:
        raise TailorError(
            f"The checkpoint is a supernet of the family {' or '.join(loader.families)}, "
            f"but the space is of the family {given.family}."
        )
    own, weights = loader.supernet(state, with_fixed(given, classes=class_count(state)))
    model = family(own.family).supernet(own)
    fill(model, weights, "the space")
    return model.eval()
