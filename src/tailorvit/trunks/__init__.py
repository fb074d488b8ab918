"""Frozen trunks: CLIP's image towers and any timm ViT, from a file or by name, as one torch-only network."""

from __future__ import annotations

from tailorvit.trunks.settings import TrunkSettings
from tailorvit.trunks.sources import SOURCES, open_trunk, read_tower
from tailorvit.trunks.tower import Tower, Trunk

__all__ = ["SOURCES", "Tower", "Trunk", "TrunkSettings", "open_trunk", "read_tower"]
