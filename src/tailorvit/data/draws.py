"""What one step does to its images, drawn on the host with numpy: the same for every device that carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailorvit.data.augment import Augment
from tailorvit.data.images import Size
from tailorvit.data.randaugment import Layer, RandWords, draw_rand
from tailorvit.data.splits import Ints
from tailorvit.data.transforms import Rng, crop_boxes, jitter_draws, windows
from tailorvit.rng import generator

NOISE = 1 << 20  # places in the bank of noise where an erased image may start to read
_AREA, _ASPECT = (0.02, 1 / 3), (0.3, 1 / 0.3)  # Random Erasing (Zhong et al. 2017), as timm sets it

_TYPES = {t: getattr(torch, t) for t in ("uint8", "int16", "int64", "float32")}
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Mix:
    """How a batch is mixed with its mirror image: a share kept, and a box (top, bottom, left, right) for cutmix."""

    share: float
    box: tuple[int, int, int, int] | None = None


@dataclass(frozen=True)
class Plan:
    """One step, or several joined. The arrays go to the device in one copy; lengths of groups and mixing do not."""

    arrays: Arrays
    rand: tuple[Layer, ...] = ()
    erased: int = 0
    mixes: tuple[Mix | None, ...] = (None,)  # one a step
    slots: int = field(default=0)  # turns of colour jitter


@dataclass(frozen=True)
class Task:
    """What is the same for every step."""

    augment: Augment
    channels: int
    have: Size  # as stored
    size: Size  # as the network takes them
    rand: RandWords | None


def draw_mix(augment: Augment, size: Size, rng: Rng) -> Mix | None:
    """One choice for the whole batch, as timm makes by default; cutmix tells the share that its clipped box leaves."""
    if not augment.mixes or rng.random() >= augment.mix_prob:
        return None
    cut = augment.cutmix > 0 and (augment.mixup == 0 or rng.random() < augment.switch)
    alpha = augment.cutmix if cut else augment.mixup
    share = float(rng.beta(alpha, alpha))
    if not cut:
        return Mix(share)
    return cut_box(share, size, int(rng.integers(0, size[0])), int(rng.integers(0, size[1])))


def cut_box(share: float, size: Size, row: int, col: int) -> Mix:
    """The box around a pixel that takes 1 - share of the image, clipped at the border."""
    side = float(np.sqrt(1 - share))
    ends = []
    for middle, whole in zip((row, col), size):
        cut = int(whole * side)
        ends += [max(0, middle - cut // 2), min(whole, middle + (cut + 1) // 2)]
    top, bottom, left, right = ends
    return Mix(1 - (bottom - top) * (right - left) / (size[0] * size[1]), (top, bottom, left, right))


def erase_boxes(n: int, size: Size, chance: float, rng: Rng) -> tuple[Ints, NDArray[np.int64]]:
    """Which images lose a box, and the boxes (top, bottom, left, right); none where ten tries do not fit."""
    high, wide = size
    area = rng.uniform(*_AREA, (n, 10)) * high * wide
    aspect = np.exp(rng.uniform(np.log(_ASPECT[0]), np.log(_ASPECT[1]), (n, 10)))
    h, w = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (h < high) & (w < wide)
    pick, row = fits.argmax(1), np.arange(n)
    h, w = h[row, pick], w[row, pick]
    top, left = np.floor(rng.random(n) * (high - h + 1)), np.floor(rng.random(n) * (wide - w + 1))
    chosen = np.flatnonzero((rng.random(n) < chance) & fits.any(1))
    boxes = np.stack([top, top + h, left, left + w], 1)
    return chosen.astype(np.int64), boxes[chosen].astype(np.int64)


def draw(task: Task, at: Ints, seed: int, step: int) -> Plan:
    """Everything random about one step. Crops, flips and jitter draw as the host's own pipeline does."""
    how, n = task.augment, len(at)
    rng = generator(seed, "augment", step)
    arrays: Arrays = {"at": at}
    slots = 0
    if how.scale is not None:
        boxes = crop_boxes(n, task.have, how.scale, rng)
        flip = rng.random(n) < 0.5 if how.flip else np.zeros(n, bool)
        arrays["boxes"] = np.concatenate([boxes, flip[:, None]], 1).astype(np.float32)
    else:
        rows, cols = windows(n, task.channels, task.have, task.size, how.crop_pad, how.flip, rng)
        arrays["lines"] = np.concatenate([rows, cols], 1).astype(np.int16)
    layers: tuple[Layer, ...] = ()
    if task.rand is not None:
        layers, more = draw_rand(task.rand, n, task.size, generator(seed, "augment", step, "rand"))
        arrays |= more
    elif how.jitter:
        slots = 3 if task.channels == 3 else 2
        factors, orders = jitter_draws(n, slots, how.jitter, rng)
        turn = np.take_along_axis(factors, orders, 1)
        # (slots, n, 4): contrast, colour, sharpness, factor; brightness is neither of the three.
        kinds = np.stack([orders == 1, orders == 2, np.zeros_like(orders), turn], 2)
        arrays["jitter"] = kinds.transpose(1, 0, 2).astype(np.float32)
    last = generator(seed, "augment", step, "mix")
    erased = 0
    if how.erasing:
        arrays["erase_at"], arrays["erase"] = erase_boxes(n, task.size, how.erasing, last)
        erased = len(arrays["erase_at"])
        arrays["noise_at"] = last.integers(0, NOISE, erased)
    mix = draw_mix(how, task.size, last) if n > 1 else None
    return Plan(arrays, layers, erased, (mix,), slots)


def noise_bank(seed: int, values: int, device: torch.device) -> Tensor:
    """(NOISE, values) windows of one line of normal numbers; fresh ones for every step would be its slowest part."""
    drawn = generator(seed, "noise").standard_normal(NOISE + values - 1, np.float32)
    return torch.from_numpy(drawn).to(device).unfold(0, values, 1)  # a view: it takes 4 MB, not terabytes


def send(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """Arrays on the device, in one copy that the host does not wait for; empty ones are left out."""
    spans: list[tuple[str, int, int]] = []
    end = 0
    for name, array in arrays.items():
        if array.size:
            spans.append((name, end, end + array.nbytes))
            end += -(-array.nbytes // 16) * 16  # views of another type must start at a multiple of its size
    host = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    flat = host.numpy()
    for name, low, high in spans:
        flat[low:high] = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)
    there = host.to(device, non_blocking=True)
    return {
        name: there[low:high].view(_TYPES[arrays[name].dtype.name]).view(arrays[name].shape)
        for name, low, high in spans
    }
