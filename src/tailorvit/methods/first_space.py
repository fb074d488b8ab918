"""The space a run starts in: named, written out in the recipe, or made for the data and the limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailorvit import units
from tailorvit.arch import Arch
from tailorvit.costs.limits import COUNTED, Limits
from tailorvit.costs.meter import Meter, growing, largest_fitting, largest_measured
from tailorvit.data import Data
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.families import family, named_arch, named_space, with_settings
from tailorvit.space import Space

if TYPE_CHECKING:
    from tailorvit.config import Config

MEASURED_ROOM = (
    0.05  # share left under a measured limit: measured again, a network at its limit is over it half the time
)


def default_limit(images: int) -> str:
    """A limit on parameters when none is set: some forty to sixty numbers per training image, between known sizes."""
    return "60k" if images < 3_000 else "1M" if images < 20_000 else "5M" if images < 200_000 else "22M"


def initial_space(config: Config, data: Data, limits: Limits, device: str = "cpu") -> Space:
    """The first space of a run, with the settings that follow from the data."""
    if config.space == "auto":
        return auto_space(config.family, data_settings(None, data, limits, config.family), limits, device=device)
    space = recipe_space(config)
    family(space.family)
    return with_settings(space, **data_settings(space, data, limits, space.family))


def recipe_space(config: Config) -> Space:
    """The space a recipe names or writes out."""
    if not isinstance(config.space, dict):
        return named_space(config.space)
    written = dict(config.space)
    if "name" not in written:
        return Space.from_dict(written)
    name, settings = str(written.pop("name")), dict(written.pop("settings", written.pop("fixed", {})))
    for key in written:
        raise TailorError(f"A space with a name takes only 'settings' besides, not '{key}'.")
    return named_space(name, **settings)


def data_settings(space: Space | None, data: Data, limits: Limits, family_name: str = "vit") -> dict[str, Any]:
    """The shared settings of a space for this data; without a space also patch, head width and the like."""
    settings = dict(space.settings) if space else {}
    settings.update(classes=len(data.classes), channels=data.channels, image_size=tuple(data.image_size))
    if space is None:
        # MACs stand in for parameters where only they are limited: some fifty a parameter on small images.
        params = limits.high("params") or (limits.high("macs") or 1e12) / 50
        high, wide = data.image_size
        settings.update(family(family_name).settle((high, wide), params))
    family(family_name).settings(settings)
    return settings


def auto_space(family_name: str, settings: Mapping[str, Any], limits: Limits, **meter: Any) -> Space:
    """The largest space of the family's usual shape whose largest network lies under every limit."""
    record, gauge = family(family_name), Meter(family_name, settings, limits, **meter)
    if not limits.measured:
        space = largest_fitting(record.auto(settings), gauge.holds, lambda s: gauge.size(s.largest()))
    else:
        counted = Meter(family_name, settings, limits.counted())
        closer = Meter(family_name, settings, _with_room(limits), **meter)
        options = list(growing(record.auto(settings), counted.holds))
        space = largest_measured(options, closer.holds, lambda s: closer.counter.macs(s.largest()))
    if space is None:
        smallest = next(record.auto(settings)).largest()
        costs = ", ".join(f"{m} {units.show(gauge.cost(m, smallest), m)}" for m in limits.metrics)
        high, wide = settings["image_size"]
        raise InfeasibleError(
            f"No {family_name} for {settings['classes']} classes at {high}x{wide} px keeps {limits.describe()}: the "
            f"smallest tried has {costs}."
        )
    return space


def _with_room(limits: Limits) -> Limits:
    """The limits, the measured ones a little lower."""
    rows = ((m, low, high if high is None or m in COUNTED else (1 - MEASURED_ROOM) * high) for m, low, high in limits)
    return Limits(tuple(rows))


# -- what a recipe says of architecture, family and image size --------------------------------------------------------


def fixed_arch(config: Config) -> tuple[Arch, dict[str, Any]]:
    """The architecture of method ``fixed`` with its settings (patch, head width, ...), from its name or the space.

    An architecture written as a table has no settings of its own. Without a space they are made for the data.
    """
    if isinstance(config.arch, str):
        named = named_arch(config.arch)
        return named.arch, dict(named.settings)
    if isinstance(config.arch, dict):
        usual = "vit" if config.family == "auto" else config.family
        arch = family(str(config.arch.get("family", usual))).arch(config.arch)
        space = None if config.space == "auto" else recipe_space(config)
        if space is not None and space.family != arch.family:
            raise TailorError(
                f"The architecture is of family '{arch.family}', but the space is of '{space.family}'; leave the "
                "space out, or name one of the same family."
            )
        return arch, {} if space is None else dict(space.settings)
    raise TailorError("Method 'fixed' needs 'arch': a name (see tailorvit list archs) or a table.")


def family_of(config: Config) -> str:
    """The family of a run: its architecture's, its space's, or the one an auto space is made for."""
    if config.method == "fixed":
        return fixed_arch(config)[0].family
    return family(config.family).name if config.space == "auto" else recipe_space(config).family


def image_size_for(config: Config) -> int | tuple[int, int] | None:
    """The image size to read the data with: the recipe's, else the space's own, else None for the data's."""
    if config.data.image_size is not None or config.trunk.source:
        return config.data.image_size  # with a trunk a space's own size counts tokens, not pixels
    settings: Mapping[str, Any] = {}
    if config.method == "fixed":
        settings = fixed_arch(config)[1]
    elif config.space != "auto":
        settings = dict(recipe_space(config).settings)
    side = settings.get("image_size")
    return side if side is None or isinstance(side, int) else (int(side[0]), int(side[1]))
