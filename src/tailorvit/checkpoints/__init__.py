"""Published checkpoints in our networks: reading the file, recognising its kind, filling a network or a supernet.

LOADERS is the table of kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from tailorvit.arch import Arch
from tailorvit.checkpoints.files import State, checksum, read_state
from tailorvit.checkpoints.loaders import IMAGENET, LOADERS, Loader, autoformer_sizes, fill
from tailorvit.errors import TailorError
from tailorvit.families import family, named_arch, named_space, with_settings
from tailorvit.families.network import PlainNetwork
from tailorvit.space import Space

__all__ = [
    "IMAGENET",
    "LOADERS",
    "Loader",
    "State",
    "autoformer_sizes",
    "checksum",
    "class_count",
    "load_plain",
    "load_supernet",
    "read_state",
    "recognise",
]


def recognise(state: State) -> str:
    """The name of the loader for a state dict, recognised by its tensors' names."""
    for loader in LOADERS.values():
        if loader.recognises(state):
            return loader.name
    first = next(iter(state), "none")
    known = "; ".join(loader.summary for loader in LOADERS.values())
    raise TailorError(f"The checkpoint's names (such as '{first}') are of no known kind. Known: {known}.")


def class_count(state: State) -> int:
    """The number of classes of the head."""
    for name in ("head.fc.weight", "head.weight"):
        if name in state and state[name].dim() == 2:
            return int(state[name].shape[0])
    raise TailorError("The checkpoint has no head ('head.weight'), so its number of classes is unknown.")


def load_plain(
    state: State, arch: str | Arch, settings: Mapping[str, Any] | None = None, *, label: str | None = None
) -> PlainNetwork:
    """The plain network of a named architecture (or of an Arch and its settings) with a checkpoint's weights.

    The classes are those of the checkpoint's head. ``settings`` override the named ones, and the loader's own
    settings override both. ``label`` is the architecture's name in error messages.
    """
    loader = LOADERS[recognise(state)]
    if isinstance(arch, str):
        named = named_arch(arch)
        arch, settings, label = named.arch, {**named.settings, **(settings or {})}, label or f"'{arch}'"
    else:
        settings, label = dict(settings or {}), label or f"this {arch.family}"
    record = family(arch.family)
    if arch.family not in loader.families:
        raise TailorError(
            f"The checkpoint is of the kind '{loader.name}' ({loader.summary}), for the family "
            f"{' or '.join(loader.families)}; {label} is of the family {arch.family}."
        )
    shared = record.settings({**settings, **loader.settings, "classes": class_count(state)})
    converted = loader.plain(state, arch, shared)
    network = record.build(shared, arch)
    assert isinstance(network, PlainNetwork)
    fill(network, converted, label)
    return network.eval()


def load_supernet(state: State, space: str | Space) -> nn.Module:
    """The supernet of a space with a released supernet's weights: ``model(x, arch)`` runs any architecture of it.

    ``model.space`` is the space with the settings of the file: its classes, its Q-K-V layout and the eps of its norms.
    """
    loader = LOADERS[recognise(state)]
    if loader.supernet is None:
        names = ", ".join(other.name for other in LOADERS.values() if other.supernet is not None)
        raise TailorError(f"A checkpoint of the kind '{loader.name}' is not a supernet; kinds with supernets: {names}.")
    space = named_space(space) if isinstance(space, str) else space
    if space.family not in loader.families:
        raise TailorError(
            f"The checkpoint is a supernet of the family {' or '.join(loader.families)}, "
            f"but the space is of the family {space.family}."
        )
    space = with_settings(space, classes=class_count(state), **loader.settings, **loader.supernet_settings)
    model = family(space.family).supernet(space)
    fill(model, loader.supernet(state, space), "the space")
    return model.eval()
