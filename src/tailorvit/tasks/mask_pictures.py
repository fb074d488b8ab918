"""Masks drawn: colours of classes, palette images, and an image beside its mask and its prediction."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tailorvit.tasks.mask_files import IGNORE, Classes, open_image

if TYPE_CHECKING:
    from PIL import Image

_SIDE = 240  # of the longer side of a drawn image
_GAP, _LINE = 6, 16
_LEGEND = 12  # classes at most
_OPACITY = 0.6
# Okabe and Ito (2008), told apart by people with any colour vision; further classes get evenly turned hues.
_FIRST = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167))
_GOLDEN = 0.618034  # the turn of the hue that keeps any number of classes apart


def colours(classes: int) -> list[tuple[int, int, int]]:
    """A colour for every class."""
    found = list(_FIRST[:classes])
    for k in range(len(found), classes):
        r, g, b = colorsys.hsv_to_rgb(k * _GOLDEN % 1, (1.0, 0.65, 0.45)[k % 3], (0.95, 0.7)[k % 2])
        found.append((round(255 * r), round(255 * g), round(255 * b)))
    return found


def mask_image(mask: Classes, classes: int) -> Image.Image:
    """Class numbers as a palette image."""
    from PIL import Image

    image = Image.fromarray(mask)
    image.putpalette([value for colour in colours(classes) for value in colour])
    return image


def overlaid(image: Image.Image, mask: Classes, classes: int) -> Image.Image:
    """An image in grey under the colours of its mask; pixels without a class get none."""
    from PIL import Image

    table = np.zeros((IGNORE + 1, 3))
    table[:classes] = colours(classes)
    pixels = np.asarray(image.convert("L").convert("RGB"), np.float64)
    mixed = np.where(mask[..., None] < classes, (1 - _OPACITY) * pixels + _OPACITY * table[mask], pixels)
    return Image.fromarray(np.rint(mixed).astype(np.uint8))


def side_by_side(path: Path, truth: Classes, predicted: Classes, names: Sequence[str]) -> bytes:
    """A PNG of an image, its mask over it and the prediction over it, with a legend of the classes that occur."""
    from PIL import Image, ImageDraw

    image, classes = open_image(path), len(names)
    parts = [image, overlaid(image, truth, classes), overlaid(image, predicted, classes)]
    scale = _SIDE / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    present = [k for k in range(classes) if (truth == k).any() or (predicted == k).any()]
    shown = [(colours(classes)[k], names[k]) for k in present[:_LEGEND]]
    if len(present) > _LEGEND:
        shown.append(((255, 255, 255), f"and {len(present) - _LEGEND} more"))
    page = Image.new("RGB", (3 * width + 2 * _GAP, height + _GAP + _LINE * (1 + -(-len(shown) // 3))), "white")
    draw = ImageDraw.Draw(page)
    for k, (part, title) in enumerate(zip(parts, ("image", "mask", "prediction"))):
        left = k * (width + _GAP)
        page.paste(part.resize((width, height), Image.Resampling.NEAREST), (left, _LINE))
        draw.text((left + 2, 2), title, "black")
    for k, (colour, name) in enumerate(shown):
        left, top = k % 3 * (width + _GAP), height + _LINE + _GAP + k // 3 * _LINE
        draw.rectangle((left, top + 2, left + 10, top + 12), colour)
        text = name.encode("latin-1", "replace").decode("latin-1")  # all that Pillow's smallest font has
        draw.text((left + 15, top + 1), text, "black")
    buffer = io.BytesIO()
    page.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
