"""``import tailorvit.for_timm`` registers the model name 'tailorvit' with timm.

``timm.create_model("local-dir:FOLDER", pretrained=True)`` then loads a folder that ``tailorvit export`` wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from timm.models import build_model_with_cfg, register_model
from torch import Tensor, nn

from tailorvit.errors import TailorError
from tailorvit.export.network import PREFIX
from tailorvit.families import plain_class
from tailorvit.families.network import PlainNetwork
from tailorvit.families.resize import resized_settings


def plain_state(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The weights under the plain network's own names, and as its image size needs them.

    A Hugging Face folder has a prefix before the names.
    """
    found = {name.removeprefix(PREFIX): tensor for name, tensor in state.items()}
    if isinstance(model, PlainNetwork) and (before := getattr(model, "trained_as", None)) is not None:
        with torch.device("meta"):
            old = type(model).from_settings(before)
        old.carry(model, found)
    return found


def build_network(
    family: str = "vit",
    settings: Mapping[str, Any] | None = None,
    num_classes: int | None = None,
    in_chans: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    global_pool: str | None = None,
    drop_path_rate: float = 0.0,
) -> nn.Module:
    """The plain network of the settings, with timm's usual changes.

    They are image size, classes, channels, pooling and stochastic depth.
    """
    if settings is None:
        raise ValueError("'tailorvit' needs the settings of a network: timm.create_model('local-dir:FOLDER').")
    first = settings.get("trunk") or settings  # the part that takes the images
    size = (img_size, img_size) if isinstance(img_size, int) else img_size
    resize = size is not None and list(size) != list(first["image_size"])
    if resize and first is not settings:
        raise ValueError(f"This network takes images of {first['image_size']}, not {list(size or ())}.")
    changed = _at_size(family, settings, size) if resize and size is not None else dict(settings)
    if in_chans is not None:
        changed.update({"trunk": {**first, "channels": in_chans}} if settings.get("trunk") else {"channels": in_chans})
    model = plain_class(family).from_settings(changed, drop_path_rate)
    if resize:
        model.trained_as = dict(settings)
    pool = global_pool if global_pool in ("avg", "token") else None
    if num_classes not in (None, model.num_classes) or pool is not None:
        model.reset_classifier(model.num_classes if num_classes is None else num_classes, pool)
    return model


def _at_size(family: str, settings: Mapping[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """The settings for another image size; windows stay as they are, which is what timm's ``img_size`` means."""
    with torch.device("meta"):
        bare = plain_class(family).from_settings(settings)
    try:
        return resized_settings(bare, size, windows="keep")
    except TailorError as error:
        raise ValueError(str(error)) from None


def feature_maps(family: str, settings: Mapping[str, Any] | None) -> int:
    """How many maps ``features_only`` returns by default: one per stage, or the last three blocks without stages."""
    if settings is None:
        return 1
    with torch.device("meta"):
        info = plain_class(family).from_settings(settings).feature_info
    return len(info) if len({row["reduction"] for row in info}) > 1 else min(3, len(info))


@register_model
def tailorvit(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """A network found by TailorViT; its settings come from the folder it is loaded from."""
    indices = kwargs.pop("out_indices", None) or feature_maps(kwargs.get("family", "vit"), kwargs.get("settings"))
    model: nn.Module = build_model_with_cfg(
        build_network,
        "tailorvit",
        pretrained,
        pretrained_filter_fn=plain_state,
        feature_cfg={"out_indices": indices, "feature_cls": "getter"},
        **kwargs,
    )
    return model
