"""Frozen trunks: CLIP's image towers and any timm ViT, from a file or by name, as one torch-only network."""

from __future__ import annotations

from tailorvit.trunks.sources import SOURCES, TrunkRequest, TrunkSource, open_trunk, read_tower, tower_from_state
from tailorvit.trunks.tower import Tower, Trunk, TrunkSettings

__all__ = [
    "SOURCES",
    "Tower",
    "Trunk",
    "TrunkRequest",
    "TrunkSettings",
    "TrunkSource",
    "open_trunk",
    "read_tower",
    "tower_from_state",
]
