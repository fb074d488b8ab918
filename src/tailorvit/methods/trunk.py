"""The frozen trunk of a run, where its family needs one: trunk features in place of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailorvit.data import Data
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, plain_class
from tailorvit.methods.first_space import family_of
from tailorvit.trunks import Tower, read_tower

if TYPE_CHECKING:
    from tailorvit.config import Config


def tower_of(config: Config) -> Tower | None:
    """The tower of a recipe, or None; a family without the trunk it needs, or the reverse, is an error."""
    source = config.trunk.source
    if config.method == "finetune":
        if source:
            raise TailorError("Method 'finetune' trains a finished network and takes no trunk; leave trunk.source out.")
        return None
    if config.family == "auto":  # those that decode a trunk take part in the contest where there is one
        return read_tower(source) if source else None
    name = family_of(config)
    decodes = plain_class(name).takes_features
    if decodes and not source:
        raise TailorError(f"The {name} family decodes a frozen trunk: set trunk.source, for example to 'random:tiny'.")
    if source and not decodes:
        known = ", ".join(f.name for f in FAMILIES.working() if f.plain.takes_features)
        raise TailorError(f"trunk.source '{source}' needs a family that decodes a trunk ({known}), not '{name}'.")
    return read_tower(source) if source else None


def trunk_data(config: Config, tower: Tower | None, images: Data, device: str) -> Data:
    """The data a run trains on: the images, or their trunk features; refused here if the disk cannot hold them."""
    if tower is None:
        return images
    from tailorvit.data.trunk_features import TrunkFeatureData

    settings = config.trunk
    trunk = tower.trunk(images.image_size, images.channels, settings.layers, settings.taps)
    data = TrunkFeatureData(images, trunk, settings.mirror, device, config.threads)
    data.require_room()
    return data


def require_same_trunk(data: Data, info: Mapping[str, Any]) -> None:
    """A run may be resumed only with the trunk it began with."""
    before = info.get("trunk")
    if data.trunk is not None and isinstance(before, Mapping) and before.get("checksum") != data.trunk.checksum:
        raise TailorError(
            f"The trunk '{data.trunk.source}' is not the one this run began with: its weights or settings have changed."
        )
