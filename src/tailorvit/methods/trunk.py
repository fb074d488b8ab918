"""A run behind a frozen trunk: whether one is wanted, and its outputs in place of the images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailorvit.config import Config
from tailorvit.data import Data
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, plain_class
from tailorvit.methods.plan import family_of
from tailorvit.trunks import Tower, read_tower


def open_tower(config: Config) -> Tower | None:
    """The tower of the recipe, or None; a family without its trunk, or the other way round, is told."""
    source = config.trunk.source
    if config.method == "finetune":
        if source:
            raise TailorError("Method 'finetune' trains a finished network; trunk.source plays no part, leave it out.")
        return None
    name = family_of(config)
    decodes = plain_class(name).takes_features
    if decodes and not source:
        raise TailorError(f"The {name} family decodes a frozen trunk: set trunk.source, for example to 'random:tiny'.")
    if source and not decodes:
        known = ", ".join(f.name for f in FAMILIES.working() if f.plain.takes_features)
        raise TailorError(f"trunk.source '{source}' needs a family that decodes a trunk ({known}), not '{name}'.")
    return read_tower(source) if source else None


def behind(config: Config, tower: Tower | None, pictures: Data, device: str) -> Data:
    """The data a run trains on: the images, or the trunk's outputs; too large ones are refused here."""
    if tower is None:
        return pictures
    from tailorvit.data.taps import TapData

    settings = config.trunk
    trunk = tower.trunk(pictures.image_size, pictures.channels, settings.layers, settings.taps)
    data = TapData(pictures, trunk, settings, device, config.threads)
    data.require_room()
    return data


def require_same(data: Data, info: Mapping[str, Any]) -> None:
    """A run goes on only behind the trunk it began with."""
    before = info.get("trunk")
    if data.trunk is not None and isinstance(before, Mapping) and before.get("checksum") != data.trunk.checksum:
        raise TailorError(
            f"The trunk '{data.trunk.source}' is not the one this run began with: its weights or settings have changed."
        )
