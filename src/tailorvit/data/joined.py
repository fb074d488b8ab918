"""Consecutive steps carried out as one: where batches are small, launching kernels takes longer than running them.

Each step's draws stay its own. Plans are put behind each other, so that a kernel works on the images of all steps, and
what the device makes of them is cut into batches again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tailorvit.data.draws import Arrays, Plan
from tailorvit.data.images import Size
from tailorvit.data.randaugment import Layer

STEPS = 8  # at most, as the first batch waits for all of them
IMAGES = 2048  # more leave little to save: a kernel's work outlasts its launch
BYTES = 320 << 20  # of float32 images: 512 of 224 px; making them takes some four times that for a moment
_SHARE = 256  # part of a device's memory that joined batches may take, if that is less
_PLACES = {"erase_at", "turn_at", "table_at", "blend_at"}  # of images within the batch


def steps_at_once(batch: int, channels: int, have: Size, size: Size, device: torch.device) -> int:
    """How many steps are worth joining. It changes no batch: matrix products stay each step's own.

    A CPU launches nothing, and larger tensors leave its caches. Steps whose images would not start at multiples of 64
    bytes are left alone too, as libraries choose kernels by that.
    """
    if device.type != "cuda" or (batch % 16 and any(side % 4 for side in (*have, *size))):
        return 1
    room = min(BYTES, int(torch.cuda.get_device_properties(device).total_memory) // _SHARE)
    each = 4 * batch * channels * size[0] * size[1]
    return max(1, min(STEPS, IMAGES // batch, room // each))


def join(plans: Sequence[Plan]) -> Plan:
    """One plan for the images of several steps, in their order."""
    first = plans[0]
    if len(plans) == 1:
        return first
    starts = np.cumsum([0, *(len(plan.arrays["at"]) for plan in plans)]).tolist()
    arrays: Arrays = {}
    for name in first.arrays:
        parts = [plan.arrays[name] for plan in plans]
        if name.rpartition(".")[2] in _PLACES:
            parts = [start + part for start, part in zip(starts, parts)]
        arrays[name] = np.concatenate(parts, 1 if name == "jitter" else 0)
    layers = list(zip(*(plan.rand for plan in plans), strict=True))
    for layer in layers:
        # Tables of the host first, then those for autocontrast, then those for equalising, as one layer has them.
        kinds = [np.repeat((0, 1, 2), (part.fixed, part.auto, part.equal)) for part in layer]
        name = f"{layer[0].name}.table_at"
        arrays[name] = arrays[name][np.argsort(np.concatenate(kinds), kind="stable")]
    return Plan(
        arrays,
        tuple(map(_join_layer, layers)),
        sum(plan.erased for plan in plans),
        tuple(mix for plan in plans for mix in plan.mixes),
        first.slots,
    )


def _join_layer(parts: Sequence[Layer]) -> Layer:
    return Layer(
        parts[0].name,
        sum(part.turned for part in parts),
        sum(part.fixed for part in parts),
        sum(part.auto for part in parts),
        sum(part.equal for part in parts),
        sum(part.blended for part in parts),
        any(part.lightness for part in parts),
        any(part.smooth for part in parts),
    )
