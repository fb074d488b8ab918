"""FAMILIES: the explicit table of network families, and look-ups by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailorvit.errors import TailorError, unknown
from tailorvit.families.base import Family, Layer, Named
from tailorvit.families.ladder import LADDER
from tailorvit.families.pit import PIT
from tailorvit.families.shunted import SHUNTED
from tailorvit.families.swin import SWIN
from tailorvit.families.vit import VIT
from tailorvit.families.windowed import WINDOWED
from tailorvit.space import Space

FAMILIES: Mapping[str, Family] = {f.name: f for f in (VIT, PIT, SHUNTED, SWIN, WINDOWED, LADDER)}

__all__ = ["FAMILIES", "Family", "Layer", "Named", "family", "named_arch", "named_space", "with_fixed"]


def family(name: str) -> Family:
    """The family of that name."""
    if name not in FAMILIES:
        raise unknown("family", name, FAMILIES)
    return FAMILIES[name]


def named_space(name: str, **fixed: Any) -> Space:
    """A named space, with some shared settings replaced (classes, image_size, ...)."""
    spaces = {n: s for f in FAMILIES.values() for n, s in f.spaces.items()}
    if name not in spaces:
        raise unknown("space", name, spaces)
    return with_fixed(spaces[name], **fixed)


def with_fixed(space: Space, **fixed: Any) -> Space:
    """A space with other shared settings, checked by its family."""
    wanted = FAMILIES[space.family].genes
    if set(space.keys) != set(wanted):
        raise TailorError(
            f"A {space.family} space has the dimensions {', '.join(wanted)}, not {', '.join(space.keys)}."
        )
    changed = space.with_fixed(**{k: v for k, v in fixed.items() if v is not None})
    FAMILIES[space.family].frame(dict(changed.fixed))
    return FAMILIES[space.family].fit(changed)


def named_arch(name: str) -> Named:
    """A published architecture with its settings."""
    archs = {n: a for f in FAMILIES.values() for n, a in f.archs.items()}
    if name not in archs:
        raise unknown("architecture", name, archs)
    return archs[name]
