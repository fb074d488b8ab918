"""Scores that need no network: parameters, MACs and depth. A proxy should beat them."""

from __future__ import annotations

from tailorvit.families import FAMILIES
from tailorvit.proxies.base import Proxy, Task


def _blocks(task: Task) -> dict[str, float]:
    return {"score": float(len(FAMILIES[task.family].outline(task.shared, task.arch)))}


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
