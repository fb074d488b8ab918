"""Network families: one folder each. FAMILIES names them; plug-ins add to it."""

from __future__ import annotations

from typing import Any

from tailorvit.errors import TailorError, unknown
from tailorvit.families.base import Family, Layer, Named
from tailorvit.families.network import PlainNetwork
from tailorvit.registry import Registry
from tailorvit.space import Space

FAMILIES: Registry[Family] = Registry(
    "family",
    "tailorvit.families",
    {
        "vit": "tailorvit.families.vit.family:FAMILY",
        "pit": "tailorvit.families.pit.family:FAMILY",
        "shunted": "tailorvit.families.shunted.family:FAMILY",
        "hybrid": "tailorvit.families.hybrid.family:FAMILY",
        "swin": "tailorvit.families.windows.swin:FAMILY",
        "windowed": "tailorvit.families.windows.windowed:FAMILY",
        "tailored": "tailorvit.families.tailored.family:FAMILY",
        "tailored-swin": "tailorvit.families.tailored_swin.family:FAMILY",
        "ladder": "tailorvit.families.ladder.family:FAMILY",
    },
)

__all__ = [
    "FAMILIES",
    "Family",
    "Layer",
    "Named",
    "family",
    "named_arch",
    "named_space",
    "plain_class",
    "with_settings",
]


def family(name: str) -> Family:
    """The family of that name."""
    return FAMILIES[name]


def plain_class(name: str) -> type[PlainNetwork]:
    """The plain network of a family."""
    return FAMILIES[name].plain


def named_space(name: str, **settings: Any) -> Space:
    """A named space, with some shared settings replaced (classes, image_size, ...)."""
    spaces = {n: s for f in FAMILIES.working() for n, s in f.spaces.items()}
    if name not in spaces:
        raise unknown("space", name, spaces)
    return with_settings(spaces[name], **settings)


def with_settings(space: Space, **settings: Any) -> Space:
    """A space with other shared settings, checked by its family."""
    record = FAMILIES[space.family]
    if set(space.keys) != set(record.genes):
        raise TailorError(
            f"A {space.family} space has the dimensions {', '.join(record.genes)}, not {', '.join(space.keys)}."
        )
    for dim in space.dims:
        if dim.name not in record.fractional and any(not isinstance(c, int) for c in dim.choices):
            raise TailorError(f"The choices of dimension '{dim.key}' must be whole numbers, not {list(dim.choices)}.")
    arch = space.smallest()
    usual = record.arch({"family": arch.family, **arch})
    for key in arch:
        if isinstance(arch[key], tuple) != isinstance(usual[key], tuple):
            scope = "block" if isinstance(usual[key], tuple) else "global or stage"
            raise TailorError(
                f"The scope of dimension '{key}' is '{space[key].scope}'; in a {space.family} it is {scope}."
            )
    changed = space.with_settings(**{k: v for k, v in settings.items() if v is not None})
    record.settings(dict(changed.settings))
    return record.fit(changed)


def named_arch(name: str) -> Named:
    """A published architecture with its settings."""
    archs = {n: a for f in FAMILIES.working() for n, a in f.archs.items()}
    if name not in archs:
        raise unknown("architecture", name, archs)
    return archs[name]
