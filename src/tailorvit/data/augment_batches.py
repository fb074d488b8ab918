"""Augmentation of whole batches on any device.

The host draws everything random about a step with numpy and puts it into a :class:`Plan`, so every device makes the
same batch up to rounding. The device carries the plan out. Nothing waits for the device: no value is read back, and no
shape depends on one. Several consecutive plans can be joined into one (:func:`join_plans`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tailorvit.data.augment import Augment, Rng, crop_boxes, crop_lines, draw_jitter, timm_randaugment
from tailorvit.data.splits import Ints
from tailorvit.errors import TailorError
from tailorvit.portable import Size
from tailorvit.rng import generator

Arrays = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]

# -- crops ------------------------------------------------------------------------------------------------------------


def _to_uint8(x: Tensor) -> Tensor:
    """Floats to uint8 as Pillow's C code does: clipped, then truncated."""
    return x.clamp_(0, 255).to(torch.uint8)


def crop(images: Tensor, at: Tensor, channel: Tensor, lines: Tensor, size: Size) -> Tensor:
    """Windows of the images ``at``, each by its rows and columns: shift, border and mirror are one look-up."""
    lines = lines.long()
    rows, cols = lines[:, : size[0]], lines[:, size[0] :]
    return images[at[:, None, None, None], channel[None, :, None, None], rows[:, None, :, None], cols[:, None, None, :]]


def _cubic_weights(low: Tensor, high: Tensor, want: int, have: int) -> Tensor:
    """(n, want, have) cubic weights (a = -1/2) that make ``want`` values from the span low..high of a line.

    The filter is wider than a pixel where the span shrinks, so nothing aliases. This is Pillow's formula, with its
    rule for the border.
    """
    step = ((high - low) / want)[:, None, None]
    places = torch.arange(max(want, have), device=low.device, dtype=torch.float32) + 0.5
    centre = low[:, None, None] + places[:want, None] * step
    d = ((places[:have] - centre) / step.clamp_min(1)).abs_()
    inner = ((1.5 * d - 2.5) * d * d).add_(1)
    outer = (((-0.5 * d).add_(2.5) * d).add_(-4) * d).add_(2)
    weight = torch.where(d < 1, inner, torch.where(d < 2, outer, 0.0))
    return weight / weight.sum(2, keepdim=True)


def _products(a: Tensor, b: Tensor, per_step: int) -> Tensor:
    """Matrix products, ``per_step`` at a time: libraries choose the order of summation by the number of products."""
    out = a.new_empty(len(a), a.shape[1], b.shape[2])
    for into, left, right in zip(out.split(per_step), a.split(per_step), b.split(per_step)):
        torch.bmm(left, right, out=into)
    return out


def resized_crop(x: Tensor, boxes: Tensor, size: Size, per_step: int | None = None) -> Tensor:
    """The boxes (left, top, right, bottom, mirrored) of uint8 images at one size: two matrix products per image.

    The same filter as the host's, antialiasing included; grid_sample would not widen its filter where a crop shrinks.
    Like Pillow, rows are made first and rounded, then columns. ``per_step`` images belong to one step (None: all).
    """
    n, channels, height, width = x.shape
    per_step = per_step or n
    left, top, right, bottom, mirrored = boxes.unbind(1)
    across = _cubic_weights(left, right, size[1], width)
    across = torch.where(mirrored[:, None, None] > 0, across.flip(1), across)
    down = _cubic_weights(top, bottom, size[0], height)
    lines = _products(x.view(n, channels * height, width).float(), across.transpose(1, 2), per_step)
    lines = lines.add_(0.5).floor_().clamp_(0, 255).view(n, channels, height, size[1])
    lines = lines.transpose(1, 2).reshape(n, height, channels * size[1])
    out = _products(down, lines, per_step).add_(0.5).view(n, size[0], channels, size[1])
    return _to_uint8(out).transpose(1, 2).contiguous()


# -- operations of RandAugment and colour jitter, each as Pillow does it to one image ---------------------------------


def apply_affine(x: Tensor, maps: Tensor, fill: Tensor) -> Tensor:
    """Images sampled through affine maps (n, 3, 2) of coordinates from -1 to 1; what lies outside is filled.

    torch's cubic has a = -3/4, Pillow's -1: edges overshoot a little less here. The grid is not a matrix product, since
    TF32 would move positions by a tenth of a pixel.
    """
    down, across = (
        torch.linspace(1 / side - 1, 1 - 1 / side, side, device=x.device, dtype=torch.float32) for side in x.shape[2:]
    )
    by_col, by_row, start = maps[:, :, None, None].unbind(1)
    grid = torch.addcmul(torch.addcmul(start, by_row, down[:, None, None]), by_col, across[:, None])
    inside = (grid.abs() < 1).all(3)
    sampled = F.grid_sample(x.float(), grid, "bicubic", "border", align_corners=False)
    return torch.where(inside[:, None], _to_uint8(sampled), fill)


def autocontrast_tables(x: Tensor) -> Tensor:
    """(n, C, 256): the darkest value becomes 0, the lightest 255. In float64, as the last digit decides a level."""
    pixels = x.flatten(2)
    low, high = (t.double() for t in pixels.aminmax(dim=2, keepdim=True))
    level = torch.arange(256, device=x.device, dtype=torch.float64)
    scale = torch.full_like(low, 255).div_((high - low).clamp_min(1))  # 255 / x would use torch's reciprocal
    new = (level * scale).add_(-low * scale)
    return torch.where(high > low, new, level).clamp_(0, 255).to(torch.uint8)


def equalise_tables(x: Tensor) -> Tensor:
    """(n, C, 256): tables that spread the values evenly."""
    pixels = x.flatten(2).long()
    count = torch.zeros((*pixels.shape[:2], 256), device=x.device, dtype=torch.int64)
    count.scatter_add_(2, pixels, torch.ones_like(count[:1, :1, :1]).expand(pixels.shape))
    last = count.gather(2, pixels.amax(2, True))
    step = (pixels.shape[2] - last).div_(255, rounding_mode="floor")
    before = count.cumsum(2) - count
    new = (before + step.div(2, rounding_mode="floor")).div_(step.clamp_min(1), rounding_mode="floor")
    level = torch.arange(256, device=x.device)
    return torch.where(step > 0, new, level).clamp_(0, 255).to(torch.uint8)


def apply_tables(x: Tensor, tables: Sequence[Tensor]) -> Tensor:
    """Every value replaced through the table of its image and channel."""
    table = torch.cat(list(tables)) if len(tables) > 1 else tables[0]
    return table.gather(2, x.flatten(2).long()).view(x.shape)


def grey_values(x: Tensor) -> Tensor:
    """(n, 1, H, W) grey values of float images in 0..255; 24 bits hold every sum, so float32 is exact."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.unbind(1)
    mixed = (red * (19595 / 65536)).add_(green, alpha=38470 / 65536).add_(blue, alpha=7471 / 65536)
    return mixed.add_(0.5).floor_()[:, None]


def _smooth(x: Tensor) -> Tensor:
    """Each pixel averaged with its neighbours, its own weight five times theirs; the border is unchanged."""
    out = x.clone()
    inner = x[:, :, 1:-1, 1:-1]
    if inner.numel():
        around = F.avg_pool2d(x, 3, 1, divisor_override=1)  # a sum of nine
        out[:, :, 1:-1, 1:-1] = around.add_(inner, alpha=4).div_(13).add_(0.5).floor_()
    return out


def enhance(x: Tensor, how: Tensor, grey: bool = True, smooth: bool = True) -> Tensor:
    """Blend images with black (brightness), their mean grey (contrast), their grey (colour) or their smooth image.

    ``how`` is (n, 4): flags for contrast, colour and sharpness (none: brightness), and the factor. ``grey`` and
    ``smooth`` say whether any image needs those.
    """
    contrast, colour, sharpness, factor = how[:, :, None, None, None].unbind(1)
    image = x.float()
    other: Tensor = torch.zeros((), device=x.device)
    if grey:
        light = grey_values(image)
        # Whole numbers add up exactly in float64, so the order of adding changes nothing.
        total = light.sum((1, 2, 3), keepdim=True, dtype=torch.float64)
        mean = (total / light[0].numel()).add_(0.5).floor_().float()
        other = torch.addcmul(contrast * mean, colour, light)
    if smooth:
        other = torch.addcmul(other, sharpness, _smooth(image))
    return _to_uint8((image - other).mul_(factor).add_(other))


# -- RandAugment ------------------------------------------------------------------------------------------------------
#
# Paper: Cubuk et al. 2019, RandAugment; the notation, the list of operations and their strengths are timm's. The images
# of a layer fall into three groups, so that a step takes about sixty kernels whatever the batch: an affine map, a table
# of 256 values (invert, posterise, solarise, autocontrast, equalise), and a blend (the enhancements).

_AFFINE = ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")
_TABLES = ("Invert", "Posterize", "PosterizeIncreasing", "Solarize", "SolarizeIncreasing", "SolarizeAdd")
_IMAGE_TABLES = ("AutoContrast", "Equalize")  # their tables depend on the image
_BLENDS = ("Brightness", "Contrast", "Color", "Sharpness")
_LEVELS = np.arange(256)


@dataclass(frozen=True)
class RandSettings:
    """RandAugment's settings as timm reads them from the notation."""

    ops: tuple[str, ...]
    weights: tuple[float, ...] | None
    layers: int
    chance: float
    magnitude: float
    spread: float
    top: float


@dataclass(frozen=True)
class RandLayer:
    """How many images each group of a layer has; the host knows it, so no kernel waits for a count."""

    name: str
    affine: int
    fixed_tables: int  # made by the host
    autocontrast: int
    equalise: int
    blends: int
    grey: bool  # whether a blend needs the grey image
    smooth: bool  # whether a blend needs the smooth image


def parse_randaugment(notation: str, size: Size, mean: tuple[float, ...]) -> RandSettings:
    """The notation as timm reads it."""
    rand = timm_randaugment(notation, size, mean)
    ops, first = tuple(str(op.name) for op in rand.ops), rand.ops[0]
    known = {*_AFFINE, *_TABLES, *_IMAGE_TABLES, *_BLENDS, *(f"{b}Increasing" for b in _BLENDS)}
    if missing := sorted(set(ops) - known):
        raise TailorError(
            f"Augmentation: randaugment '{notation}' has operations without a batched form: {', '.join(missing)}."
        )
    weights = None if rand.choice_weights is None else tuple(map(float, rand.choice_weights))
    if weights is not None and rand.num_layers > len(ops):
        raise TailorError(f"Augmentation: randaugment '{notation}' needs more layers than its {len(ops)} operations.")
    return RandSettings(
        ops,
        weights,
        int(rand.num_layers),
        float(first.prob),
        float(first.magnitude),
        float(first.magnitude_std),
        float(first.magnitude_max or 10),
    )


def draw_ops(settings: RandSettings, n: int, rng: Rng) -> Any:
    """(layers, n) operation numbers; with weights an image gets no operation twice (smallest weighted waiting time)."""
    if settings.weights is None:
        return rng.integers(0, len(settings.ops), (settings.layers, n))
    waits = rng.standard_exponential((n, len(settings.ops))) / np.asarray(settings.weights)
    return waits.argsort(1)[:, : settings.layers].T


def _draw_magnitudes(settings: RandSettings, n: int, rng: Rng) -> Floats:
    """Strengths from 0 to the top, which is 10 by default."""
    if settings.spread == np.inf:
        drawn = rng.uniform(0, settings.magnitude, n)
    else:
        drawn = settings.magnitude + settings.spread * rng.standard_normal(n)
    return drawn.clip(0, settings.top)


def affine_maps(op: str, level: Floats, sign: Floats, size: Size) -> Floats:
    """(n, 3, 2): the source (x, y) of an output pixel, by its column, its row and an offset, from -1 to 1 as in torch.

    In pixels from the corner, as in Pillow, x' = a x + b y + c and y' = d x + e y + f.
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


def fixed_tables(op: str, level: Floats) -> NDArray[np.uint8]:
    """(n, 256) new values for the old ones."""
    share, old = level[:, None] / 10, _LEVELS[None, :]
    if op == "Invert":
        new = np.repeat(255 - old, len(level), 0)
    elif op.startswith("Posterize"):
        whole = (share * 4).astype(np.int64)
        bits = (4 - whole if op.endswith("Increasing") else whole).clip(1, 8)  # 0 bits would paint the image black
        new = old & (256 - 2 ** (8 - bits))
    elif op.startswith("SolarizeAdd"):
        new = np.where(old < 128, np.minimum(255, old + np.minimum(128, (share * 110).astype(np.int64))), old)
    else:
        bound = np.minimum(256, (share * 256).astype(np.int64))
        new = np.where(old < (256 - bound if op.endswith("Increasing") else bound), old, 255 - old)
    return new.astype(np.uint8)


def blend_factors(op: str, level: Floats, sign: Floats) -> Floats:
    """The factor of an enhancement: 0 gives the other image of the blend, 1 the image itself, above 1 the opposite."""
    if op.endswith("Increasing"):
        return np.maximum(0.1, 1 + sign * level / 10 * 0.9)
    return level / 10 * 1.8 + 0.1


def blend_rows(op: str, factor: Floats) -> Floats:
    """(n, 4): flags for contrast, colour and sharpness, and the factor, as :func:`enhance` takes them."""
    rows = np.zeros((len(factor), 4))
    for k, name in enumerate(("Contrast", "Color", "Sharpness")):
        rows[:, k] = op.startswith(name)
    rows[:, 3] = factor
    return rows


def draw_randaugment(settings: RandSettings, n: int, size: Size, rng: Rng) -> tuple[tuple[RandLayer, ...], Arrays]:
    """The layers of one step, and their arrays."""
    layers: list[RandLayer] = []
    arrays: Arrays = {}
    for k, chosen in enumerate(draw_ops(settings, n, rng)):
        level, sign = _draw_magnitudes(settings, n, rng), np.where(rng.random(n) > 0.5, -1.0, 1.0)
        chosen = np.where(rng.random(n) <= settings.chance, chosen, -1)
        groups = {op: np.flatnonzero(chosen == i) for i, op in enumerate(settings.ops)}

        def among(wanted: tuple[str, ...], groups: Mapping[str, Any] = groups) -> list[tuple[str, Any]]:
            return [(op, at) for op, at in groups.items() if op.removesuffix("Increasing") in wanted or op in wanted]

        affine, fixed, blends = among(_AFFINE), among(_TABLES), among(_BLENDS)
        auto, equal = (groups.get(op, np.empty(0, np.int64)) for op in _IMAGE_TABLES)
        counts = [sum(len(at) for _, at in group) for group in (affine, fixed, blends)]
        parts = {
            "affine_at": [at for _, at in affine],
            "affine": [affine_maps(op, level[at], sign[at], size) for op, at in affine],
            "table_at": [at for _, at in fixed] + [auto, equal],
            "table": [fixed_tables(op, level[at]) for op, at in fixed],
            "blend_at": [at for _, at in blends],
            "blend": [blend_rows(op, blend_factors(op, level[at], sign[at])) for op, at in blends],
        }
        for part, pieces in parts.items():
            whole = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
            arrays[f"{k}.{part}"] = whole.astype(np.float32) if whole.dtype == np.float64 else whole
        used = {op.removesuffix("Increasing") for op, at in blends if len(at)}
        layers.append(
            RandLayer(str(k), counts[0], counts[1], len(auto), len(equal), counts[2],
                      bool(used & {"Contrast", "Color"}), "Sharpness" in used)
        )  # fmt: skip
    return tuple(layers), arrays


def apply_layer(x: Tensor, layer: RandLayer, sent: Mapping[str, Tensor], fill: Tensor) -> None:
    """Carry out one layer on a uint8 batch, in place; images without an operation are not touched."""

    def part(name: str) -> Tensor:
        return sent[f"{layer.name}.{name}"]

    if layer.affine:
        at = part("affine_at")
        x.index_copy_(0, at, apply_affine(x.index_select(0, at), part("affine"), fill))
    if layer.fixed_tables + layer.autocontrast + layer.equalise:
        at = part("table_at")
        old = x.index_select(0, at)
        tables = [part("table")[:, None].expand(-1, x.shape[1], -1)] if layer.fixed_tables else []
        end = layer.fixed_tables + layer.autocontrast
        if layer.autocontrast:
            tables.append(autocontrast_tables(old[layer.fixed_tables : end]))
        if layer.equalise:
            tables.append(equalise_tables(old[end:]))
        x.index_copy_(0, at, apply_tables(old, tables))
    if layer.blends:
        at = part("blend_at")
        x.index_copy_(0, at, enhance(x.index_select(0, at), part("blend"), layer.grey, layer.smooth))


# -- erasing and mixing -----------------------------------------------------------------------------------------------

NOISE = 1 << 20  # positions in the noise bank where an erased image may start to read
_ERASED_AREA, _ERASED_ASPECT = (0.02, 1 / 3), (0.3, 1 / 0.3)  # Random Erasing (Zhong et al. 2017), as timm sets it


@dataclass(frozen=True)
class Mix:
    """How a batch is mixed with itself in reverse order: the share kept, and for cutmix (top, bottom, left, right)."""

    share: float
    box: tuple[int, int, int, int] | None = None


def draw_mix(augment: Augment, size: Size, rng: Rng) -> Mix | None:
    """One choice for the whole batch, as timm does by default; for cutmix the share that the clipped box leaves."""
    if not augment.mixes or rng.random() >= augment.mix_prob:
        return None
    cut = augment.cutmix > 0 and (augment.mixup == 0 or rng.random() < augment.switch)
    alpha = augment.cutmix if cut else augment.mixup
    share = float(rng.beta(alpha, alpha))
    if not cut:
        return Mix(share)
    return cutmix_box(share, size, int(rng.integers(0, size[0])), int(rng.integers(0, size[1])))


def cutmix_box(share: float, size: Size, row: int, col: int) -> Mix:
    """The box around a pixel that takes 1 - share of the image, clipped at the border."""
    side = float(np.sqrt(1 - share))
    ends = []
    for middle, whole in zip((row, col), size):
        cut = int(whole * side)
        ends += [max(0, middle - cut // 2), min(whole, middle + (cut + 1) // 2)]
    top, bottom, left, right = ends
    return Mix(1 - (bottom - top) * (right - left) / (size[0] * size[1]), (top, bottom, left, right))


def apply_mix(x: Tensor, target: Tensor, mix: Mix) -> None:
    """Mix a batch with itself in reverse order, in place; an odd last image is not mixed."""
    even = len(x) // 2 * 2
    x, target = x[:even], target[:even]
    if mix.box is None:
        other = x.flip(0).mul_(1 - mix.share)
        x.mul_(mix.share).add_(other)
    else:
        top, bottom, left, right = mix.box
        x[:, :, top:bottom, left:right] = x[:, :, top:bottom, left:right].flip(0)
    swapped = target.flip(0).mul_(1 - mix.share)
    target.mul_(mix.share).add_(swapped)


def erase_boxes(n: int, size: Size, chance: float, rng: Rng) -> tuple[Ints, NDArray[np.int64]]:
    """Which images lose a box, and the boxes (top, bottom, left, right); none where ten tries do not fit."""
    high, wide = size
    area = rng.uniform(*_ERASED_AREA, (n, 10)) * high * wide
    aspect = np.exp(rng.uniform(np.log(_ERASED_ASPECT[0]), np.log(_ERASED_ASPECT[1]), (n, 10)))
    h, w = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (h < high) & (w < wide)
    pick, row = fits.argmax(1), np.arange(n)
    h, w = h[row, pick], w[row, pick]
    top, left = np.floor(rng.random(n) * (high - h + 1)), np.floor(rng.random(n) * (wide - w + 1))
    chosen = np.flatnonzero((rng.random(n) < chance) & fits.any(1))
    boxes = np.stack([top, top + h, left, left + w], 1)
    return chosen.astype(np.int64), boxes[chosen].astype(np.int64)


def noise_bank(seed: int, values: int, device: torch.device) -> Tensor:
    """(NOISE, values) windows of one row of normal numbers; fresh numbers would be the slowest part of a step."""
    drawn = generator(seed, "noise").standard_normal(NOISE + values - 1, np.float32)
    return torch.from_numpy(drawn).to(device).unfold(0, values, 1)  # a view: it takes 4 MB, not terabytes


# -- plans ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanSettings:
    """What is the same for every step."""

    augment: Augment
    channels: int
    have: Size  # as stored
    size: Size  # as the network takes them
    rand: RandSettings | None


@dataclass(frozen=True)
class Plan:
    """What is drawn for one step, or for several joined. The arrays go to the device in one copy, the rest does not."""

    arrays: Arrays
    rand_layers: tuple[RandLayer, ...] = ()
    erased: int = 0
    mixes: tuple[Mix | None, ...] = (None,)  # one per step
    jitters: int = 0  # colour jitters one after the other


def draw_plan(settings: PlanSettings, positions: Ints, seed: int, step: int) -> Plan:
    """Everything random about one step. Crops, flips and jitter are drawn as on the host."""
    how, n = settings.augment, len(positions)
    rng = generator(seed, "augment", step)
    arrays: Arrays = {"positions": positions}
    jitters = 0
    if how.scale is not None:
        boxes = crop_boxes(n, settings.have, how.scale, rng)
        flip = rng.random(n) < 0.5 if how.flip else np.zeros(n, bool)
        arrays["crop_boxes"] = np.concatenate([boxes, flip[:, None]], 1).astype(np.float32)
    else:
        rows, cols = crop_lines(n, settings.channels, settings.have, settings.size, how.crop_pad, how.flip, rng)
        arrays["crop_lines"] = np.concatenate([rows, cols], 1).astype(np.int16)
    layers: tuple[RandLayer, ...] = ()
    if settings.rand is not None:
        layers, more = draw_randaugment(settings.rand, n, settings.size, generator(seed, "augment", step, "rand"))
        arrays |= more
    elif how.jitter:
        jitters = 3 if settings.channels == 3 else 2
        factors, orders = draw_jitter(n, jitters, how.jitter, rng)
        ordered = np.take_along_axis(factors, orders, 1)
        # (jitters, n, 4): flags for contrast, colour and sharpness, and the factor; brightness is none of the three.
        kinds = np.stack([orders == 1, orders == 2, np.zeros_like(orders), ordered], 2)
        arrays["jitter"] = kinds.transpose(1, 0, 2).astype(np.float32)
    last = generator(seed, "augment", step, "mix")
    erased = 0
    if how.erasing:
        arrays["erase_at"], arrays["erase"] = erase_boxes(n, settings.size, how.erasing, last)
        erased = len(arrays["erase_at"])
        arrays["noise_start"] = last.integers(0, NOISE, erased)
    mix = draw_mix(how, settings.size, last) if n > 1 else None
    return Plan(arrays, layers, erased, (mix,), jitters)


_TYPES = {t: getattr(torch, t) for t in ("uint8", "int16", "int64", "float32")}


def send(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """Arrays on the device, in one copy that the host does not wait for; empty ones are left out."""
    spans: list[tuple[str, int, int]] = []
    end = 0
    for name, array in arrays.items():
        if array.size:
            spans.append((name, end, end + array.nbytes))
            end += -(-array.nbytes // 16) * 16  # views of another type must start at a multiple of its size
    host = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    buffer = host.numpy()
    for name, low, high in spans:
        buffer[low:high] = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)
    there = host.to(device, non_blocking=True)
    return {
        name: there[low:high].view(_TYPES[arrays[name].dtype.name]).view(arrays[name].shape)
        for name, low, high in spans
    }


# -- several steps at once: where batches are small, launching kernels takes longer than running them -----------------

MAX_STEPS = 8  # the first batch waits for all of them
MAX_IMAGES = 2048  # more leave little to save: a kernel then runs longer than its launch takes
MAX_BYTES = 320 << 20  # of float32 images: 512 of 224 px; making them takes about four times that for a moment
_MEMORY_SHARE = 256  # at most this part of a device's memory, if that is less
_IMAGE_INDICES = {"erase_at", "affine_at", "table_at", "blend_at"}  # arrays of places within the batch


def steps_at_once(batch: int, channels: int, have: Size, size: Size, device: torch.device) -> int:
    """How many steps are worth joining. It changes no batch: matrix products stay separate for each step.

    A CPU launches nothing, and larger tensors leave its caches. Steps whose images would not start at multiples of 64
    bytes are not joined either, as libraries choose kernels by that.
    """
    if device.type != "cuda" or (batch % 16 and any(side % 4 for side in (*have, *size))):
        return 1
    limit = min(MAX_BYTES, int(torch.cuda.get_device_properties(device).total_memory) // _MEMORY_SHARE)
    step_bytes = 4 * batch * channels * size[0] * size[1]
    return max(1, min(MAX_STEPS, MAX_IMAGES // batch, limit // step_bytes))


def join_plans(plans: Sequence[Plan]) -> Plan:
    """One plan for the images of several steps, in their order; what is drawn for a step does not change."""
    first = plans[0]
    if len(plans) == 1:
        return first
    starts = np.cumsum([0, *(len(plan.arrays["positions"]) for plan in plans)]).tolist()
    arrays: Arrays = {}
    for name in first.arrays:
        parts = [plan.arrays[name] for plan in plans]
        if name.rpartition(".")[2] in _IMAGE_INDICES:
            parts = [start + part for start, part in zip(starts, parts)]
        arrays[name] = np.concatenate(parts, 1 if name == "jitter" else 0)
    layers = list(zip(*(plan.rand_layers for plan in plans), strict=True))
    for layer in layers:
        # The host's tables first, then autocontrast, then equalise, as within one layer.
        kinds = [np.repeat((0, 1, 2), (part.fixed_tables, part.autocontrast, part.equalise)) for part in layer]
        name = f"{layer[0].name}.table_at"
        arrays[name] = arrays[name][np.argsort(np.concatenate(kinds), kind="stable")]
    return Plan(
        arrays,
        tuple(map(_join_layers, layers)),
        sum(plan.erased for plan in plans),
        tuple(mix for plan in plans for mix in plan.mixes),
        first.jitters,
    )


def _join_layers(parts: Sequence[RandLayer]) -> RandLayer:
    return RandLayer(
        parts[0].name,
        sum(part.affine for part in parts),
        sum(part.fixed_tables for part in parts),
        sum(part.autocontrast for part in parts),
        sum(part.equalise for part in parts),
        sum(part.blends for part in parts),
        any(part.grey for part in parts),
        any(part.smooth for part in parts),
    )


# -- a part of a step -------------------------------------------------------------------------------------------------


def part_of_plan(plan: Plan, rows: Ints) -> Plan:
    """The plan of one step for these rows alone; what was drawn for them, and how they are mixed, does not change."""
    place = np.full(len(plan.arrays["positions"]), -1)
    place[rows] = np.arange(len(rows))
    arrays = dict(plan.arrays)
    for name in ("positions", "crop_boxes", "crop_lines"):
        if name in arrays:
            arrays[name] = arrays[name][rows]
    if "jitter" in arrays:
        arrays["jitter"] = arrays["jitter"][:, rows]

    def keep(at: str, *others: str) -> NDArray[np.bool_]:
        """Leave the entries of other rows out of an array of places, and of those that go with it."""
        wanted = place[arrays[at]] >= 0
        arrays[at] = place[arrays[at]][wanted]
        for other in others:
            arrays[other] = arrays[other][wanted[: len(arrays[other])]]  # tables: the host's come first
        return wanted

    if "erase_at" in arrays:
        keep("erase_at", "erase", "noise_start")
    layers = []
    for layer in plan.rand_layers:
        name, fixed = layer.name, layer.fixed_tables
        affine = keep(f"{name}.affine_at", f"{name}.affine")
        tables = keep(f"{name}.table_at", f"{name}.table")
        blends = keep(f"{name}.blend_at", f"{name}.blend")
        ends = (0, fixed, fixed + layer.autocontrast, len(tables))
        counts = [int(tables[low:high].sum()) for low, high in pairwise(ends)]
        layers.append(
            replace(
                layer,
                affine=int(affine.sum()),
                fixed_tables=counts[0],
                autocontrast=counts[1],
                equalise=counts[2],
                blends=int(blends.sum()),
            )
        )
    return replace(plan, arrays=arrays, rand_layers=tuple(layers), erased=len(arrays.get("erase_at", ())))
