"""A finished plain network at another image size, for other classes or channels, with its weights carried over.

What depends on the image is interpolated or filled in by the network's own class (``PlainNetwork.carry``); all else is
copied.
"""

from __future__ import annotations

from typing import Any

import torch

from tailorvit.errors import TailorError
from tailorvit.families.network import PlainNetwork, Sides, Windows

_FARTHEST = 4096  # pixels; the search for a size that suits ends here


def _require_resizable(model: PlainNetwork) -> None:
    if model.not_resizable:
        raise TailorError(f"This {model.kind} network cannot be resized or fine-tuned: {model.not_resizable}.")


def require_size(model: PlainNetwork, size: Sides) -> None:
    """Refuse an image size the network cannot cut, and name the nearest it can."""
    _require_resizable(model)
    for side in size:
        if model.suits(side):
            continue
        below = next((s for s in range(side - 1, 0, -1) if model.suits(s)), None)
        above = next((s for s in range(max(side, 0) + 1, _FARTHEST) if model.suits(s)), None)
        near = " and ".join(str(s) for s in (below, above) if s is not None)
        raise TailorError(
            f"Images of {side} px do not suit this {model.kind} network ({model.size_rule()}); the nearest that do: "
            f"{near}."
        )


def resized_settings(
    model: PlainNetwork,
    image_size: Sides | None = None,
    classes: int | None = None,
    channels: int | None = None,
    windows: Windows = "scale",
) -> dict[str, Any]:
    """The settings of :func:`resized`'s network; a mistake is found here, before anything is built."""
    _require_resizable(model)
    settings = model.settings
    size: Sides = tuple(settings["image_size"]) if image_size is None else image_size
    require_size(model, size)
    before, after = int(settings["channels"]), int(settings["channels"]) if channels is None else channels
    if before != after and {before, after} != {1, 3}:
        raise TailorError(
            f"A network for images of {before} channels cannot take {after}: "
            "only grey (1) and colour (3) are exchanged."
        )
    if size != tuple(settings["image_size"]):
        settings = {**settings, "image_size": list(size), **model.settings_at(size, windows)}
    return {**settings, "classes": settings["classes"] if classes is None else classes, "channels": after}


@torch.no_grad()
def resized(
    model: PlainNetwork,
    image_size: Sides | None = None,
    classes: int | None = None,
    channels: int | None = None,
    windows: Windows = "scale",
    drop_path: float = 0.0,
) -> PlainNetwork:
    """A new network with this one's weights, at another image size or for other channels.

    ``classes`` asks for a new head, drawn from torch's generator; None keeps the old one. A colour filter becomes a
    grey one by its sum, which answers a grey picture as it was answered; a grey one becomes three of a third.
    """
    settings = resized_settings(model, image_size, classes, channels, windows)
    weight = next(model.parameters())
    new = type(model).from_settings(settings, drop_path).to(weight.device, weight.dtype)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.carry(new, state)
    filters = state[model.first_weight]
    if filters.shape[1] != settings["channels"]:
        grey = settings["channels"] == 1
        state[model.first_weight] = filters.sum(1, True) if grey else filters.repeat(1, 3, 1, 1) / 3
    if classes is not None:
        kept = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
        state = kept | {name: tensor for name, tensor in new.state_dict().items() if name.startswith("head.")}
    new.load_state_dict(state)
    return new.train(model.training)
