"""Scores that need no network: parameters, MACs, depth, and the predictor. A proxy should beat the first three."""

from __future__ import annotations

import numpy as np

from tailorvit.families import FAMILIES
from tailorvit.proxies.base import Proxy, Task
from tailorvit.proxies.predictor import default, shape_features


def _blocks(task: Task) -> dict[str, float]:
    return {"score": float(len(FAMILIES[task.family].outline(task.shared, task.arch)))}


def _predicted(task: Task) -> dict[str, float]:
    shape = shape_features(FAMILIES[task.family].outline(task.shared, task.arch), task.params, task.macs)
    mean, sd = default().model.predict(np.atleast_2d(shape))
    return {"score": float(mean[0]), "sd": float(sd[0])}


_SOURCE = "counted from the layer inventory"
PARAMS = Proxy(
    "params", "number of parameters", _SOURCE, True, "counted", "nothing", lambda task: {"score": float(task.params)}
)
MACS = Proxy(
    "macs",
    "multiply-accumulates for one image",
    _SOURCE,
    True,
    "counted",
    "nothing",
    lambda task: {"score": float(task.macs)},
)
DEPTH = Proxy("depth", "number of blocks, over all stages", _SOURCE, True, "counted", "nothing", _blocks)
PREDICTOR = Proxy(
    "predictor",
    "a linear model of the architecture's shape, fitted on tables of trained networks",
    "fitted on ViT-Bench-101 and OoD-ViT-NAS, see docs/ranking.md",
    True,
    "counted",
    "nothing",
    _predicted,
    experimental=True,  # it ranks better than size on 4 of 14 accuracies, but S4 by it lost 4 points (docs/log.md)
)
