"""The space a run starts in: named, written out in the recipe, or made for the data and the limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tailorvit import units
from tailorvit.arch import Arch, Value
from tailorvit.costs.clock import Clock
from tailorvit.costs.limits import COUNTED, Limits
from tailorvit.costs.meter import Meter, growing, largest_fitting, largest_measured
from tailorvit.data import Data
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.families import family, named_arch, named_space, with_settings
from tailorvit.space import Dim, Space

if TYPE_CHECKING:
    from tailorvit.config import Config

MEASURED_ROOM = (
    0.05  # share left under a measured limit: measured again, a network at its limit is over it half the time
)

PATIENCE = 48  # growing spaces in a row that no longer hold the baseline


def default_limit(images: int) -> str:
    """A limit on parameters when none is set: some forty to sixty numbers per training image, between known sizes."""
    return "60k" if images < 3_000 else "1M" if images < 20_000 else "5M" if images < 200_000 else "22M"


def initial_space(config: Config, data: Data, limits: Limits, device: str = "cpu", clock: Clock | None = None) -> Space:
    """The first space of a run, with the settings that follow from the data."""
    if config.space == "auto":
        settings = data_settings(None, data, limits, config.family)
        return auto_space(config.family, settings, limits, device=device, clock=clock)
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


def data_settings(
    space: Space | None, data: Data, limits: Limits, family_name: str = "vit", stem: str | None = None
) -> dict[str, Any]:
    """The shared settings of a space for this data; without a space also patch, head width and the like.

    ``stem`` names one of the family's other stems, in place of the one that suits the image size.
    """
    settings = dict(space.settings) if space else {}
    settings.update(classes=len(data.classes), channels=data.channels, image_size=tuple(data.image_size))
    if space is None:
        # MACs stand in for parameters where only they are limited: some fifty a parameter on small images.
        params = limits.high("params") or (limits.high("macs") or 1e12) / 50
        high, wide = data.image_size
        settle = family(family_name).settle if stem is None else family(family_name).stems[stem]
        settings.update(settle((high, wide), params))
    family(family_name).settings(settings)
    return settings


def auto_space(family_name: str, settings: Mapping[str, Any], limits: Limits, **meter: Any) -> Space:
    """The largest space of the family's usual shape that lies under every limit and holds the baseline.

    Where no hand-designed network keeps the limits there is no baseline to hold.
    """
    record, gauge = family(family_name), Meter(family_name, settings, limits, **meter)
    if limits.measured:
        gauge = Meter(family_name, settings, _with_room(limits), **meter)
    counted = Meter(family_name, settings, limits.counted())
    bounded = any(high is not None for _, _, high in limits)
    anchor = baseline_arch(next(record.auto(settings)), gauge, strict=True) if bounded else None
    space = None if anchor is None else _around(record.auto(settings), anchor, gauge)
    if space is None and not limits.measured:
        space = largest_fitting(record.auto(settings), gauge.holds, lambda s: gauge.size(s.largest()))
    elif space is None:
        options = list(growing(record.auto(settings), counted.holds))
        space = largest_measured(options, gauge.holds, lambda s: gauge.counter.macs(s.largest()))
    if space is None:
        smallest = next(record.auto(settings)).largest()
        costs = ", ".join(f"{m} {units.show(gauge.cost(m, smallest), m)}" for m in limits.metrics)
        high, wide = settings["image_size"]
        raise InfeasibleError(
            f"No {family_name} for {settings['classes']} classes at {high}x{wide} px keeps {limits.describe()}: the "
            f"smallest tried has {costs}."
        )
    return space


def _around(candidates: Iterable[Space], arch: Arch, meter: Meter) -> Space | None:
    """Of the spaces whose grid holds an architecture the largest under the limits, cut at the top where it must be."""
    found, misses = list[Space](), 0
    for space in candidates:
        misses = 0 if space.contains(arch) else misses + 1
        if not misses:
            found.append(space)
        elif found and misses >= PATIENCE:
            break
    whole = [space for space in found if meter.holds(space)]
    fitting = whole or [cut for space in found if (cut := _cut_to(space, arch, meter)) is not None]
    return max(fitting, key=lambda s: (meter.size(s.largest()), s.count()), default=None)


def _cut_to(space: Space, arch: Arch, meter: Meter) -> Space | None:
    """The space without choices above those of an architecture, as few dimensions cut as keep the limits."""
    whole = {d.key: d for d in space.dims}
    low = {d.key: d.only(*(c for c in d.choices if c <= _most(arch, d))) for d in space.dims}

    def made(dims: Mapping[str, Dim]) -> Space:
        return replace(space, dims=tuple(dims[key] for key in space.keys))

    if not meter.holds(made(low)):
        return None
    for key in space.keys:
        back = {**low, key: whole[key]}
        low = back if meter.holds(made(back)) else low
    return made(low)


def _most(arch: Arch, dim: Dim) -> Value:
    return max(arch.many(dim.key)) if dim.scope == "block" else arch.one(dim.key)


def baseline_arch(space: Space, meter: Meter, strict: bool = False) -> Arch | None:
    """The family's largest hand-designed network that keeps the limits; None where even the smallest does not.

    Without an upper limit it may be as large as the space's largest network. ``strict``: below the limits, not at them.
    """
    highest = float("inf") if any(high for _, _, high in meter.limits) else meter.size(space.largest())
    row, counted = family(space.family).baseline(dict(space.settings)), Meter.for_space(space, meter.limits.counted())
    return largest_of_row(row, meter, counted, highest, strict)


def largest_of_row(
    row: Iterator[Arch], meter: Meter, counted: Meter, highest: float = float("inf"), strict: bool = False
) -> Arch | None:
    """The largest network of a growing row that keeps the limits, ``counted`` those that need no measuring."""

    def too_small(arch: Arch) -> bool:
        return any(low is not None and meter.cost(metric, arch) < low for metric, low, _ in counted.limits)

    def good(arch: Arch) -> bool:
        return meter.fits(arch) and meter.size(arch) <= highest and (not strict or meter.below(arch))

    # What is under a lower limit is left out, or the growing row would seem to have ended before it began.
    candidates = (arch for arch in row if not too_small(arch))
    if not meter.limits.measured:
        return largest_fitting(candidates, good, meter.size)
    options = list(growing(candidates, counted.fits))
    found = largest_measured(options, meter.below if strict else meter.under, meter.counter.macs)
    return found if found is not None and meter.fits(found) else None


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
