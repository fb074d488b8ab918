"""RandAugment for whole batches: ops and strengths drawn on the host, images grouped by what happens to them.

Paper: Cubuk et al. 2019, RandAugment; the words, the list of ops and their strengths are timm's. Each layer falls into
three groups, so that a step takes some sixty kernels whatever the batch: a turn or shift (one affine grid), a table of
256 values (invert, posterise, solarise, autocontrast, equalise) and a blend with a duller self (the enhancements).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tailorvit.data.images import Size
from tailorvit.data.pixels import affine, auto_tables, enhance, equal_tables, through_tables
from tailorvit.data.transforms import Rng, timm_rand
from tailorvit.errors import TailorError

_TURNS = ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")
_TABLES = ("Invert", "Posterize", "PosterizeIncreasing", "Solarize", "SolarizeIncreasing", "SolarizeAdd")
_SEEN = ("AutoContrast", "Equalize")  # tables that depend on the image
_BLENDS = ("Brightness", "Contrast", "Color", "Sharpness")
_LEVELS = np.arange(256)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RandWords:
    """What timm reads in the words."""

    ops: tuple[str, ...]
    weights: tuple[float, ...] | None
    layers: int
    chance: float
    magnitude: float
    spread: float
    top: float


@dataclass(frozen=True)
class Layer:
    """How many images of a layer each group has; known to the host, so no kernel waits for a count."""

    name: str
    turned: int
    fixed: int  # tables made by the host
    auto: int
    equal: int
    blended: int
    lightness: bool  # whether a blend needs the grey image
    smooth: bool  # or the smooth one


def read_words(words: str, size: Size, mean: tuple[float, ...]) -> RandWords:
    """The words as timm understands them."""
    rand = timm_rand(words, size, mean)
    ops, first = tuple(str(op.name) for op in rand.ops), rand.ops[0]
    known = {*_TURNS, *_TABLES, *_SEEN, *_BLENDS, *(f"{b}Increasing" for b in _BLENDS)}
    if set(ops) - known:
        raise TailorError(
            f"Augmentation: randaugment '{words}' has ops without a batched form; try data.on_device=never."
        )
    weights = None if rand.choice_weights is None else tuple(map(float, rand.choice_weights))
    if weights is not None and rand.num_layers > len(ops):
        raise TailorError(f"Augmentation: randaugment '{words}' wants more layers than there are ops, {len(ops)}.")
    return RandWords(
        ops,
        weights,
        int(rand.num_layers),
        float(first.prob),
        float(first.magnitude),
        float(first.magnitude_std),
        float(first.magnitude_max or 10),
    )


def _choices(words: RandWords, n: int, rng: Rng) -> Any:
    """(layers, n) op numbers; with weights an image gets no op twice, the smallest of weighted waiting times."""
    if words.weights is None:
        return rng.integers(0, len(words.ops), (words.layers, n))
    waits = rng.standard_exponential((n, len(words.ops))) / np.asarray(words.weights)
    return waits.argsort(1)[:, : words.layers].T


def magnitudes(words: RandWords, n: int, rng: Rng) -> Floats:
    """Strengths from 0 to the top, 10 unless told."""
    if words.spread == np.inf:
        drawn = rng.uniform(0, words.magnitude, n)
    else:
        drawn = words.magnitude + words.spread * rng.standard_normal(n)
    return drawn.clip(0, words.top)


def maps(op: str, level: Floats, sign: Floats, size: Size) -> Floats:
    """(n, 3, 2): where an output place looks (x, y), by its column, its row and a start, from -1 to 1 as torch has it.

    In pixels from the corner, as Pillow has it, x' = a x + b y + c and y' = d x + e y + f.
    """
    (high, wide), share = size, sign * level / 10
    a, b, c, d, e, f = np.tile(np.asarray([1.0, 0, 0, 0, 1, 0])[:, None], len(level))
    if op == "ShearX":
        b = 0.3 * share
    elif op == "ShearY":
        d = 0.3 * share
    elif op == "TranslateXRel":
        c = 0.45 * share * wide
    elif op == "TranslateYRel":
        f = 0.45 * share * high
    else:
        angle, x, y = -np.radians(30 * share), wide / 2, high / 2
        a, b = np.cos(angle), np.sin(angle)
        d, e = -b, a
        c, f = x - a * x - b * y, y - d * x - e * y
    b, d = b * high / wide, d * wide / high
    rows = [(a, d), (b, e), (a + b + 2 * c / wide - 1, d + e + 2 * f / high - 1)]
    return np.stack([np.stack(row, 1) for row in rows], 1)


def tables(op: str, level: Floats) -> NDArray[np.uint8]:
    """(n, 256) new values of the old ones."""
    share, old = level[:, None] / 10, _LEVELS[None, :]
    if op == "Invert":
        new = np.repeat(255 - old, len(level), 0)
    elif op.startswith("Posterize"):
        kept = (share * 4).astype(np.int64)
        bits = (4 - kept if op.endswith("Increasing") else kept).clip(1, 8)  # none at all would paint it black
        new = old & (256 - 2 ** (8 - bits))
    elif op.startswith("SolarizeAdd"):
        new = np.where(old < 128, np.minimum(255, old + np.minimum(128, (share * 110).astype(np.int64))), old)
    else:
        bound = np.minimum(256, (share * 256).astype(np.int64))
        new = np.where(old < (256 - bound if op.endswith("Increasing") else bound), old, 255 - old)
    return new.astype(np.uint8)


def factors(op: str, level: Floats, sign: Floats) -> Floats:
    """How far from its duller self an image goes: 0 all the way, 1 nowhere, above 1 the other way."""
    if op.endswith("Increasing"):
        return np.maximum(0.1, 1 + sign * level / 10 * 0.9)
    return level / 10 * 1.8 + 0.1


def draw_rand(words: RandWords, n: int, size: Size, rng: Rng) -> tuple[tuple[Layer, ...], dict[str, NDArray[Any]]]:
    """The layers of one step, and their arrays."""
    layers: list[Layer] = []
    arrays: dict[str, NDArray[Any]] = {}
    for k, chosen in enumerate(_choices(words, n, rng)):
        level, sign = magnitudes(words, n, rng), np.where(rng.random(n) > 0.5, -1.0, 1.0)
        chosen = np.where(rng.random(n) <= words.chance, chosen, -1)
        groups = {op: np.flatnonzero(chosen == i) for i, op in enumerate(words.ops)}

        def some(wanted: tuple[str, ...], groups: Mapping[str, Any] = groups) -> list[tuple[str, Any]]:
            return [(op, at) for op, at in groups.items() if op.removesuffix("Increasing") in wanted or op in wanted]

        turns, fixed, blends = some(_TURNS), some(_TABLES), some(_BLENDS)
        auto, equal = (groups.get(op, np.empty(0, np.int64)) for op in _SEEN)
        lookup = [at for _, at in fixed] + [auto, equal]
        counts = [sum(len(at) for _, at in part) for part in (turns, fixed, blends)]
        parts = {
            "turn_at": [at for _, at in turns],
            "turn": [maps(op, level[at], sign[at], size) for op, at in turns],
            "table_at": lookup,
            "table": [tables(op, level[at]) for op, at in fixed],
            "blend_at": [at for _, at in blends],
            "blend": [_blend(op, factors(op, level[at], sign[at])) for op, at in blends],
        }
        for part, pieces in parts.items():
            whole = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
            arrays[f"{k}.{part}"] = whole.astype(np.float32) if whole.dtype == np.float64 else whole
        has = {op.removesuffix("Increasing") for op, at in blends if len(at)}
        layers.append(
            Layer(str(k), counts[0], counts[1], len(auto), len(equal), counts[2],
                  bool(has & {"Contrast", "Color"}), "Sharpness" in has)
        )  # fmt: skip
    return tuple(layers), arrays


def _blend(op: str, factor: Floats) -> Floats:
    """(n, 4): whether contrast, colour or sharpness, and the factor."""
    rows = np.zeros((len(factor), 4))
    for k, name in enumerate(("Contrast", "Color", "Sharpness")):
        rows[:, k] = op.startswith(name)
    rows[:, 3] = factor
    return rows


def apply_layer(x: Tensor, layer: Layer, sent: Mapping[str, Tensor], fill: Tensor) -> None:
    """One layer on a uint8 batch, in place; the images that it leaves alone are not touched."""

    def part(name: str) -> Tensor:
        return sent[f"{layer.name}.{name}"]

    if layer.turned:
        at = part("turn_at")
        x.index_copy_(0, at, affine(x.index_select(0, at), part("turn"), fill))
    if layer.fixed + layer.auto + layer.equal:
        at = part("table_at")
        old = x.index_select(0, at)
        seen = [part("table")[:, None].expand(-1, x.shape[1], -1)] if layer.fixed else []
        if layer.auto:
            seen.append(auto_tables(old[layer.fixed : layer.fixed + layer.auto]))
        if layer.equal:
            seen.append(equal_tables(old[layer.fixed + layer.auto :]))
        x.index_copy_(0, at, through_tables(old, seen))
    if layer.blended:
        at = part("blend_at")
        x.index_copy_(0, at, enhance(x.index_select(0, at), part("blend"), layer.lightness, layer.smooth))
