"""The predictor as a proxy: what three tables of trained networks say about a shape; needs no network at all."""

from __future__ import annotations

import numpy as np

from tailorvit.families import FAMILIES
from tailorvit.proxies.base import Proxy, Task
from tailorvit.proxies.features import describe
from tailorvit.proxies.predictor import default


def _measure(task: Task) -> dict[str, float]:
    shape = describe(FAMILIES[task.family].outline(task.frame, task.arch), task.params, task.macs)
    mean, sd = default().model.predict(np.atleast_2d(shape))
    return {"score": float(mean[0]), "sd": float(sd[0])}


LEARNED = Proxy(
    "predictor",
    "a line through features of the shape, fitted on tables of trained networks",
    "fitted on ViT-Bench-101 and OoD-ViT-NAS, see docs/ranking.md",
    True,
    "counted",
    "nothing",
    _measure,
)
