"""The tiny form of a recipe: same method and structure, seconds of work on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailorvit.checkpoints.starts import open_pretrained
from tailorvit.config import Config, configure, merged
from tailorvit.costs.limits import COUNTED
from tailorvit.costs.meter import Meter
from tailorvit.families import family
from tailorvit.methods.first_space import fixed_arch, recipe_space
from tailorvit.search import SEARCHERS
from tailorvit.seek.s4 import MAX_DIMS
from tailorvit.space import Space

TRAIN = {"epochs": 2, "batch": 64, "warmup": 0.5, "compile": False, "precision": "fp32", "augment": "mild"}
START = "random:tiny"  # where the user brings no pretrained network
LIMIT = 400  # images a split
FEW_LIMIT = 100  # in a contest, which is some twenty trainings, and for a pretrained network, which is large
SIDE = 32  # px of the user's own images


def tiny(recipe: Mapping[str, Any], own_data: bool) -> dict[str, Any]:
    """The tiny form of a recipe; its data becomes digits unless the user brings images."""
    config = configure(recipe)
    small = merged(
        recipe,
        {
            "train": TRAIN,
            "final": {"train": TRAIN, "candidates": 1},
            "analysis": {"samples": 4},
            "evaluate": {"throughput": False},
            "s4": {
                "pairs": min(config.s4.pairs, 4),
                "survey": min(config.s4.survey, MAX_DIMS + 2),
                "iterations": min(config.s4.iterations, 2),
            },
            # Two epochs leave slopes of many points; unbounded, they would move the space by dozens of steps.
            "s3": {"samples": 6, "top": 3, "updates": min(config.s3.updates, 2), "max_shift": 1},
            "hat": {"samples": 12, "held_out": 4, "rounds": 2},
            "proxy": {"candidates": min(config.proxy.candidates, 24)},
            "seek": {"train_epochs": 1},
            "device": "cpu",
        },
    )
    small.pop("time", None)  # epochs decide
    small["search"] = {"name": config.searcher, **SEARCHERS[config.searcher].tiny}
    large = config.method == "tailor" and bool(config.start.network)
    limit = FEW_LIMIT if large or config.method == "contest" or config.family == "auto" else LIMIT
    small["data"] = {**dict(recipe.get("data", {})), "limit": limit}
    if config.trunk.source:
        small["trunk"] = {"source": "random:tiny", "mirror": config.trunk.mirror}
    if config.method == "finetune":
        return small  # the network, and with it the image size, is there already
    if config.method == "tailor":
        return _tailored(config, small, own_data)
    if own_data:
        small["data"].setdefault("image_size", SIDE)
        return small
    return {**small, "data": {"source": "digits", "limit": limit}, **_for_digits(config)}


def _tailored(config: Config, small: dict[str, Any], own_data: bool) -> dict[str, Any]:
    """The user's pretrained network or a small random one, at some patches a side; without a limit it is halved."""
    start = {**small.get("start", {}), "network": config.start.network or START}
    pretrained = open_pretrained(start["network"], config.start.weights or None)
    patch, trained = pretrained.settings.patch, max(pretrained.settings.image_size)
    data = small["data"] if own_data else {"source": "digits", "limit": small["data"]["limit"]}
    rough = patch * max(2, round((SIDE if own_data or patch > 4 else 8) / patch))
    side = max(rough, pretrained.tailoring.side(pretrained.settings, rough, trained))
    # Limits and sizes in millions are none of a small random network's.
    front = list(config.tailor.front) if config.start.network else []
    return {
        **small,
        "start": start,
        "data": {"image_size": side, **data},
        "limits": dict(config.limits) if config.start.network else {},
        "tailor": {**small.get("tailor", {}), "epochs": TRAIN["epochs"], "front": front},
    }


def _for_digits(config: Config) -> dict[str, Any]:
    """Architecture, space and limits of a recipe, shrunk to 8 px images."""
    if config.method == "fixed":
        name = config.family if config.arch is None else fixed_arch(config)[0].family
        return {"arch": {"family": name, **family(name).tiny}, "space": "auto", "limits": {}}
    if config.space == "auto":
        return {"limits": {} if config.limits.get("table") else {"max_params": "20k"}}  # a table brings its space
    space = recipe_space(config)
    small = family(space.family).shrink(space)
    return {"space": small.to_dict(), "limits": _scaled_limits(config, space, small)}


def _scaled_limits(config: Config, space: Space, small: Space) -> dict[str, str | float]:
    """Counted limits at the same place between smallest and largest as in the recipe; measured ones are left out."""
    before, after = Meter.for_space(space), Meter.for_space(small)
    limits: dict[str, str | float] = {}
    for metric, low, high in config.budget():
        if metric not in COUNTED:
            continue
        least, most = before.least(metric, space), before.most(metric, space)
        new_least, new_most = after.least(metric, small), after.most(metric, small)
        for side, bound in (("min", low), ("max", high)):
            if bound is not None:
                place = (bound - least) / max(most - least, 1)
                limits[f"{side}_{metric}"] = float(
                    round(new_least + min(max(place, 0.1), 1.5) * (new_most - new_least))
                )
    return limits
