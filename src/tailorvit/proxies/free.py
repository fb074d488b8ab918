"""What costs nothing to know: parameters, MACs and depth. A proxy that does not beat these adds nothing."""

from __future__ import annotations

from tailorvit.families import FAMILIES
from tailorvit.proxies.base import Proxy, Task


def _blocks(task: Task) -> dict[str, float]:
    return {"score": float(len(FAMILIES[task.family].outline(task.frame, task.arch)))}


_COUNT = "counted from the layer inventory"
PARAMS = Proxy(
    "params", "trainable numbers", _COUNT, True, "counted", "nothing", lambda task: {"score": float(task.params)}
)
MACS = Proxy(
    "macs",
    "multiply-accumulates an image",
    _COUNT,
    True,
    "counted",
    "nothing",
    lambda task: {"score": float(task.macs)},
)
DEPTH = Proxy("depth", "blocks, over all stages", _COUNT, True, "counted", "nothing", _blocks)
