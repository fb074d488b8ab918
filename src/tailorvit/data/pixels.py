"""Batched changes to uint8 images on any device, each as Pillow makes it to one image.

Nothing here waits for the device: no value is read back, and no shape depends on one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tailorvit.data.images import Size


def _eight_bit(x: Tensor) -> Tensor:
    """Floats to uint8 as Pillow's C code does: clipped, then cut off."""
    return x.clamp_(0, 255).to(torch.uint8)


def crop(images: Tensor, at: Tensor, channel: Tensor, lines: Tensor, size: Size) -> Tensor:
    """Windows of the images ``at``, by the rows and columns of each: shift, border and mirror are one look-up."""
    lines = lines.long()
    rows, cols = lines[:, : size[0]], lines[:, size[0] :]
    return images[at[:, None, None, None], channel[None, :, None, None], rows[:, None, :, None], cols[:, None, None, :]]


# -- random resized crop ----------------------------------------------------------------------------------------------


def _weights(low: Tensor, high: Tensor, want: int, have: int) -> Tensor:
    """(n, want, have) cubic weights (a = -1/2) that make ``want`` values of the span low..high of a line.

    Wider than a pixel where the span shrinks, so nothing aliases; Pillow's formula, its border rule included.
    """
    step = ((high - low) / want)[:, None, None]
    places = torch.arange(max(want, have), device=low.device, dtype=torch.float32) + 0.5
    centre = low[:, None, None] + places[:want, None] * step
    d = ((places[:have] - centre) / step.clamp_min(1)).abs_()
    near = ((1.5 * d - 2.5) * d * d).add_(1)
    far = (((-0.5 * d).add_(2.5) * d).add_(-4) * d).add_(2)
    weight = torch.where(d < 1, near, torch.where(d < 2, far, 0.0))
    return weight / weight.sum(2, keepdim=True)


def _products(a: Tensor, b: Tensor, each: int) -> Tensor:
    """A product a pair, ``each`` at a time: libraries choose how to add up by the count of products, too."""
    out = a.new_empty(len(a), a.shape[1], b.shape[2])
    for into, left, right in zip(out.split(each), a.split(each), b.split(each)):
        torch.bmm(left, right, out=into)
    return out


def resized_crop(x: Tensor, boxes: Tensor, size: Size, each: int | None = None) -> Tensor:
    """The boxes (left, top, right, bottom, mirrored) of uint8 images at one size: two matrix products an image.

    The same filter as the host's pipeline, antialiasing included: grid_sample would not widen its filter where a crop
    shrinks. Like Pillow, the lines are made first and rounded, then the columns. ``each`` images belong to one step
    (None: all).
    """
    n, channels, height, width = x.shape
    each = each or n
    left, top, right, bottom, mirrored = boxes.unbind(1)
    across = _weights(left, right, size[1], width)
    across = torch.where(mirrored[:, None, None] > 0, across.flip(1), across)
    down = _weights(top, bottom, size[0], height)
    lines = _products(x.view(n, channels * height, width).float(), across.transpose(1, 2), each)
    lines = lines.add_(0.5).floor_().clamp_(0, 255).view(n, channels, height, size[1])
    lines = lines.transpose(1, 2).reshape(n, height, channels * size[1])
    out = _products(down, lines, each).add_(0.5).view(n, size[0], channels, size[1])
    return _eight_bit(out).transpose(1, 2).contiguous()


# -- RandAugment's groups ---------------------------------------------------------------------------------------------


def affine(x: Tensor, maps: Tensor, fill: Tensor) -> Tensor:
    """Images looked at through affine maps (n, 3, 2) of places from -1 to 1; what lies outside is filled.

    torch's cubic has a = -3/4, Pillow's -1: edges overshoot a little less here. No matrix product makes the grid, since
    TF32 would move places by a tenth of a pixel.
    """
    down, across = (
        torch.linspace(1 / side - 1, 1 - 1 / side, side, device=x.device, dtype=torch.float32) for side in x.shape[2:]
    )
    by_col, by_row, start = maps[:, :, None, None].unbind(1)
    grid = torch.addcmul(torch.addcmul(start, by_row, down[:, None, None]), by_col, across[:, None])
    inside = (grid.abs() < 1).all(3)
    seen = F.grid_sample(x.float(), grid, "bicubic", "border", align_corners=False)
    return torch.where(inside[:, None], _eight_bit(seen), fill)


def auto_tables(x: Tensor) -> Tensor:
    """(n, C, 256): the darkest value becomes 0, the lightest 255. In float64, as the last digit decides a level."""
    flat = x.flatten(2)
    low, high = (t.double() for t in flat.aminmax(dim=2, keepdim=True))
    level = torch.arange(256, device=x.device, dtype=torch.float64)
    scale = torch.full_like(low, 255).div_((high - low).clamp_min(1))  # 255 / x would take torch's reciprocal
    new = (level * scale).add_(-low * scale)
    return torch.where(high > low, new, level).clamp_(0, 255).to(torch.uint8)


def equal_tables(x: Tensor) -> Tensor:
    """(n, C, 256): tables that spread the values evenly."""
    flat = x.flatten(2).long()
    count = torch.zeros((*flat.shape[:2], 256), device=x.device, dtype=torch.int64)
    count.scatter_add_(2, flat, torch.ones_like(count[:1, :1, :1]).expand(flat.shape))
    last = count.gather(2, flat.amax(2, True))
    step = (flat.shape[2] - last).div_(255, rounding_mode="floor")
    before = count.cumsum(2) - count
    new = (before + step.div(2, rounding_mode="floor")).div_(step.clamp_min(1), rounding_mode="floor")
    level = torch.arange(256, device=x.device)
    return torch.where(step > 0, new, level).clamp_(0, 255).to(torch.uint8)


def through_tables(x: Tensor, tables: Sequence[Tensor]) -> Tensor:
    """Every value replaced by its image's and channel's table."""
    table = torch.cat(list(tables)) if len(tables) > 1 else tables[0]
    return table.gather(2, x.flatten(2).long()).view(x.shape)


def lightness(x: Tensor) -> Tensor:
    """(n, 1, H, W) grey values of float images in 0..255; 24 bits hold every sum, so float32 is exact."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.unbind(1)
    mixed = (red * (19595 / 65536)).add_(green, alpha=38470 / 65536).add_(blue, alpha=7471 / 65536)
    return mixed.add_(0.5).floor_()[:, None]


def _smooth(x: Tensor) -> Tensor:
    """Each pixel with its neighbours, five times its own share; the border stays as it is."""
    out = x.clone()
    inner = x[:, :, 1:-1, 1:-1]
    if inner.numel():
        around = F.avg_pool2d(x, 3, 1, divisor_override=1)  # a sum of nine
        out[:, :, 1:-1, 1:-1] = around.add_(inner, alpha=4).div_(13).add_(0.5).floor_()
    return out


def enhance(x: Tensor, how: Tensor, grey: bool = True, smooth: bool = True) -> Tensor:
    """Blend images with a duller self: black, their mean grey, their grey or their smooth image.

    ``how`` is (n, 4): whether contrast, colour or sharpness (none: brightness), and the factor; ``grey`` and
    ``smooth`` say whether any image needs those.
    """
    contrast, colour, sharpness, factor = how[:, :, None, None, None].unbind(1)
    image = x.float()
    dull: Tensor = torch.zeros((), device=x.device)
    if grey:
        light = lightness(image)
        # Whole numbers add up exactly in float64, so the order of adding changes nothing.
        total = light.sum((1, 2, 3), keepdim=True, dtype=torch.float64)
        mean = (total / light[0].numel()).add_(0.5).floor_().float()
        dull = torch.addcmul(contrast * mean, colour, light)
    if smooth:
        dull = torch.addcmul(dull, sharpness, _smooth(image))
    return _eight_bit((image - dull).mul_(factor).add_(dull))
