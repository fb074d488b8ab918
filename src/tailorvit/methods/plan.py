"""From data and budget to a first space: patch, head width, recipe and the space whose largest member just fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tailorvit.arch import Arch
from tailorvit.config import Config, configure, merged
from tailorvit.costs.limits import COUNTED, Limits
from tailorvit.costs.meter import Meter, growing, largest_fitting, largest_measured
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.families import family, named_arch, named_space, with_fixed
from tailorvit.families.base import around as around  # asked for here by the methods
from tailorvit.proxies.settings import TRAINING
from tailorvit.search import searcher
from tailorvit.seek.moves import MAX_DIMS, movable
from tailorvit.seek.s4 import seek
from tailorvit.space import Space


def default_limit(images: int) -> str:
    """A parameter budget when none is given: some forty to sixty numbers per training image, between known sizes."""
    return "60k" if images < 3_000 else "1M" if images < 20_000 else "5M" if images < 200_000 else "22M"


def data_fixed(space: Space | None, data: Any, limits: Limits, family_name: str = "vit") -> dict[str, Any]:
    """The shared settings that follow from the data, over those a named space brings."""
    fixed = dict(space.fixed) if space else {}
    fixed.update(classes=len(data.classes), channels=data.channels, image_size=tuple(data.image_size))
    if space is None:
        # MACs stand in for parameters where only they are limited: some fifty a parameter on small images.
        params = limits.high("params") or (limits.high("macs") or 1e12) / 50
        fixed.update(family(family_name).settle(tuple(data.image_size), params))
    family(family_name).frame(fixed)
    return fixed


def initial_space(config: Config, data: Any, limits: Limits, device: str = "cpu") -> Space:
    """The space a run starts in: named, written out in the recipe, or made for the budget on that device."""
    if isinstance(config.space, dict):
        given = dict(config.space)
        if "name" in given:
            name, extra = str(given.pop("name")), dict(given.pop("fixed", {}))
            for key in given:
                raise TailorError(f"A space with a name takes only 'fixed' besides, not '{key}'.")
            space = named_space(name, **extra)
        else:
            space = Space.from_dict(given)
            family(space.family)
        return with_fixed(space, **data_fixed(space, data, limits, space.family))
    if config.space != "auto":
        space = named_space(config.space)
        return with_fixed(space, **data_fixed(space, data, limits, space.family))
    return auto_space(config.family, data_fixed(None, data, limits, config.family), limits, device=device)


def auto_space(family_name: str, fixed: Mapping[str, Any], limits: Limits, **meter: Any) -> Space:
    """The largest space of the usual shape whose largest member lies under every limit."""
    record, gauge = family(family_name), Meter(family_name, fixed, limits, **meter)
    if not limits.measured:
        space = largest_fitting(record.auto(fixed), gauge.holds, lambda s: _size(gauge, s.largest()))
    else:
        sure, close = Meter(family_name, fixed, limits.counted()), Meter(family_name, fixed, _closer(limits), **meter)
        some = list(growing(record.auto(fixed), sure.holds))
        space = largest_measured(some, close.holds, lambda s: close.counter.macs(s.largest()))
    if space is None:
        least = next(record.auto(fixed))
        raise InfeasibleError(
            f"No {family_name} for {len_words(fixed)} keeps {limits.describe()}: the smallest tried has "
            + ", ".join(f"{m} {_show(gauge, m, least.largest())}" for m in limits.metrics)
            + "."
        )
    return space


def _closer(limits: Limits) -> Limits:
    """Measured limits a little lower: measured again, a space at its limit would be over it half of the time."""
    rows = ((m, low, high if high is None or m in COUNTED else (1 - ROOM) * high) for m, low, high in limits)
    return Limits(tuple(rows))


def _size(meter: Meter, arch: Arch) -> float:
    """How much of the budget an architecture uses: its cost in the first limited metric."""
    metric = next((m for m, _, high in meter.limits if high is not None), "params")
    return meter.cost(metric, arch)  # type: ignore[arg-type]


def _show(meter: Meter, metric: Any, arch: Arch) -> str:
    from tailorvit import units

    return units.show(meter.cost(metric, arch), metric)


ROOM = 0.05  # below a measured limit, for the clock
SMALL_STEP = (
    2_000_000_000  # MACs of a training step's forward pass; below, waiting for threads costs more than it gains
)


def threads_for(config: Config, space: Space) -> int:
    """CPU threads of a run: one for networks so small that a busy second core would slow every operation."""
    import torch

    if config.threads:
        return config.threads
    if config.budget().measured:
        return torch.get_num_threads()  # as latencies were measured while the space was chosen
    work = Meter.for_space(space).cost("macs", space.largest()) * config.train.batch
    return 1 if work < SMALL_STEP else torch.get_num_threads()


def len_words(fixed: Mapping[str, Any]) -> str:
    """The task in words: ``10 classes at 8x8 px``."""
    high, wide = fixed["image_size"]
    return f"{fixed['classes']} classes at {high}x{wide} px"


def hand_designed(space: Space, meter: Meter) -> Arch | None:
    """The largest hand-designed network that keeps the limits; None where even the smallest does not.

    Without an upper limit it may be as large as the space's largest member.
    """

    counted = meter.limits.counted()

    def small(arch: Arch) -> bool:
        return any(low is not None and meter.cost(metric, arch) < low for metric, low, _ in counted)

    top = float("inf") if any(high for _, _, high in meter.limits) else _size(meter, space.largest())
    # What is under a lower limit is left out, or the growing row would seem to have ended before it began.
    candidates = (arch for arch in family(space.family).baseline(dict(space.fixed)) if not small(arch))
    if not meter.limits.measured:
        return largest_fitting(
            candidates, lambda arch: meter.fits(arch) and _size(meter, arch) <= top, lambda arch: _size(meter, arch)
        )
    some = list(growing(candidates, Meter.for_space(space, counted).fits))
    found = largest_measured(some, meter.under, meter.counter.macs)
    return found if found is not None and meter.fits(found) else None


def unsure(config: Config, limits: Limits) -> Limits:
    """Limits that a first space has yet to be checked by.

    A space made for measured ones was measured a moment ago, and a busier clock must not refuse it now.
    """
    made = config.space == "auto" and config.method not in ("fixed", "finetune")
    return limits.counted() if made and not any(low for m, low, _ in limits if m not in COUNTED) else limits


def require_feasible(config: Config, space: Space, meter: Meter, given: Arch | None = None) -> None:
    """Raise before anything is trained or written when no network can keep the limits, or no neighbour be found."""
    if config.method == "s4" and config.s4.iterations:
        moving = movable(space, config.s4.dims)
        if config.s4.design == "survey":
            require_survey(config, len(moving))
    given = fixed_arch(config)[0] if config.method == "fixed" else given
    if given is not None:
        broken = meter.problem(given)
        if broken:
            raise InfeasibleError(f"The given architecture breaks the limits: {broken}.")
    elif config.method != "s4" or config.s4.on_violation == "ignore":
        meter.require_feasible(space)
    elif config.s4.repair == "size" and set(meter.limits.metrics) <= {"params", "macs"}:
        # Repairs by counted size need no training, so they can be tried here.
        none = replace(config.s4, iterations=0)
        meter.require_feasible(seek(space, meter, lambda _space, _t: lambda _archs: [], none, config.seed)[0])
    else:
        meter.require_feasible(_reachable(space))


def require_survey(config: Config, dims: int) -> None:
    """Raise where a survey would have nobody to judge its members, or fewer of them than slopes to tell."""
    if config.seek.evaluator != TRAINING:
        raise TailorError(
            "s4.design = 'survey' asks members beyond the space, which only their own training can judge: "
            f"seek.evaluator must be '{TRAINING}', not '{config.seek.evaluator}'."
        )
    if config.s4.survey < dims + 2:
        raise TailorError(
            f"s4.survey = {config.s4.survey} members cannot tell the slopes of {dims} dimensions and their errors; "
            f"{dims + 2} can, and three times as many do well."
        )


def _reachable(space: Space) -> Space:
    """The space with every dimension down to its minimum: what repair moves could reach."""
    return replace(space, dims=tuple(replace(d, choices=tuple(sorted({d.minimum, *d.choices}))) for d in space.dims))


def fixed_arch(config: Config) -> tuple[Arch, dict[str, Any]]:
    """The architecture of method ``fixed`` with its patch, head width and the like: those of its name, or of the space.

    A table says nothing of them. Without a space either they are made for the data.
    """
    if isinstance(config.arch, str):
        named = named_arch(config.arch)
        return named.arch, dict(named.fixed)
    if isinstance(config.arch, dict):
        arch = family(str(config.arch.get("family", config.family))).arch(config.arch)
        space = None if config.space == "auto" else _named_or_inline(config)
        if space is not None and space.family != arch.family:
            raise TailorError(
                f"The architecture is of family '{arch.family}', the space beside it of '{space.family}'; leave the "
                "space out, or name one of the same family."
            )
        return arch, {} if space is None else dict(space.fixed)
    raise TailorError("Method 'fixed' needs 'arch': a name (see tailorvit list archs) or a table.")


def wanted_size(config: Config) -> int | tuple[int, int] | None:
    """The image size to open the data with: the recipe's, else the named space's own, else the data's."""
    if config.data.image_size is not None or config.trunk.source:
        return config.data.image_size  # behind a trunk a space's own size counts tokens, not pixels
    fixed: Mapping[str, Any] = {}
    if config.method == "fixed":
        fixed = fixed_arch(config)[1]
    elif config.space != "auto":
        fixed = dict(_named_or_inline(config).fixed)
    size = fixed.get("image_size")
    return size if size is None or isinstance(size, int) else (int(size[0]), int(size[1]))


def family_of(config: Config) -> str:
    """The family a run is of: its architecture's, its space's, or the one an auto space is made for."""
    if config.method == "fixed":
        return fixed_arch(config)[0].family
    return family(config.family).name if config.space == "auto" else _named_or_inline(config).family


def shrunk(space: Space) -> Space:
    """A space with the same dimensions and scopes and small numbers, for a tiny form of any recipe."""
    return family(space.family).shrink(space)


TINY_TRAIN = {"epochs": 2, "batch": 64, "warmup": 0.5, "compile": False, "precision": "fp32", "augment": "mild"}


def tiny(data: Mapping[str, Any], own_data: bool) -> dict[str, Any]:
    """The tiny form of a recipe: same method and structure, seconds of work, digits unless the user brought images."""
    config = configure(data)
    small = merged(
        data,
        {
            "train": TINY_TRAIN,
            "final": {"train": TINY_TRAIN, "candidates": 1},
            "analysis": {"samples": 4, "images": 2, "mistakes": 4},
            "s4": {
                "pairs": min(config.s4.pairs, 4),
                "survey": min(config.s4.survey, MAX_DIMS + 2),
                "iterations": min(config.s4.iterations, 2),
            },
            # Two epochs leave slopes of many points; unbounded, they would move the space by dozens of steps.
            "s3": {"samples": 6, "top": 3, "updates": min(config.s3.updates, 2), "max_shift": 1},
            "hat": {"samples": 12, "held_out": 4, "rounds": 2},
            "proxy": {"candidates": min(config.proxy.candidates, 24)},
            "seek": {"samples": min(config.seek.samples, 12), "train_epochs": 1, "tune_epochs": 1},
            "device": "cpu",
        },
    )
    name = str(config.search.get("name", "evolution"))
    small["search"] = {"name": name, **searcher(name).tiny}
    small["data"] = {**dict(data.get("data", {})), "limit": 400}
    if config.trunk.source:
        small["trunk"] = {"source": "random:tiny", "mirror": config.trunk.mirror}
    if config.method == "finetune":
        return small  # the network is given, and with it the size of the images
    if own_data:
        small["data"].setdefault("image_size", 32)
    else:
        small["data"] = {"source": "digits", "limit": 400}
        small["limits"] = {}
        if config.method == "fixed":
            name = config.family if config.arch is None else fixed_arch(config)[0].family
            small |= {"arch": {"family": name, **family(name).tiny}, "space": "auto"}
        elif config.space != "auto":
            full = _named_or_inline(config)
            small["space"] = shrunk(full).to_dict()
            small["limits"] = _scaled_limits(config, full, Space.from_dict(small["space"]))
        else:
            small["limits"] = {"max_params": "20k"}
    return small


def _named_or_inline(config: Config) -> Space:
    if isinstance(config.space, dict):
        if "name" in config.space:
            return named_space(str(config.space["name"]), **config.space.get("fixed", {}))
        return Space.from_dict(config.space)
    return named_space(config.space)


def _scaled_limits(config: Config, full: Space, small: Space) -> dict[str, str | float]:
    """Counted limits at the same place between smallest and largest as in the recipe; measured ones are left out."""
    before, after = Meter.for_space(full), Meter.for_space(small)
    limits: dict[str, str | float] = {}
    for metric, low, high in config.budget():
        if metric not in ("params", "macs"):
            continue
        least, most = before.least(metric, full), before.most(metric, full)
        new_least, new_most = after.least(metric, small), after.most(metric, small)
        for side, bound in (("min", low), ("max", high)):
            if bound is not None:
                place = (bound - least) / max(most - least, 1)
                limits[f"{side}_{metric}"] = float(
                    round(new_least + min(max(place, 0.1), 1.5) * (new_most - new_least))
                )
    return limits
