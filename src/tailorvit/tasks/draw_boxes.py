"""Pictures of the report: boxes and masks drawn on images."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tailorvit.portable import flat
from tailorvit.tasks.annotations import Photo
from tailorvit.tasks.average_precision import Found
from tailorvit.tasks.base import Picture
from tailorvit.tasks.detect_data import mask_pixels

if TYPE_CHECKING:
    from PIL import Image

WIDTH = 480  # pixels of each half; two of them and a gap are as wide as a page shows
SURE = 0.5  # findings below this score are not drawn
_GAP = 8
_QUALITY = 88
Item = tuple[Sequence[float], int, str, Any]  # box, class number, text, mask


def colour(label: int) -> tuple[int, int, int]:
    """Of a class; neighbours in number are far apart in hue."""
    red, green, blue = colorsys.hsv_to_rgb((0.02 + label * 0.618034) % 1, 0.85, 0.9 if label % 2 == 0 else 0.7)
    return round(255 * red), round(255 * green), round(255 * blue)


def compared(photo: Photo, found: Found, classes: Sequence[str]) -> Picture:
    """The truth on the left, the findings on the right, as a JPEG."""
    from PIL import Image, ImageOps

    with Image.open(photo.path) as opened:
        image = flat(ImageOps.exif_transpose(opened), 3)
    sure = np.flatnonzero(found.scores >= SURE).tolist()
    true: list[Item] = [(t.box, t.label, classes[t.label], t.mask) for t in photo.things if t.trained]
    said: list[Item] = [
        (
            found.boxes[i].tolist(),
            int(found.labels[i]),
            f"{classes[int(found.labels[i])]} {100 * found.scores[i]:.0f}",
            found.masks[i] if found.masks else None,
        )
        for i in sure
    ]
    if not found.masks:
        true = [(*item[:3], None) for item in true]
    halves = [drawn(image, items) for items in (true, said)]
    sheet = Image.new("RGB", (2 * WIDTH + _GAP, halves[0].height), "white")
    for i, half in enumerate(halves):
        sheet.paste(half, (i * (WIDTH + _GAP), 0))
    stream = io.BytesIO()
    sheet.save(stream, "JPEG", quality=_QUALITY, subsampling=0)
    caption = (
        f"{photo.name}: {len(true)} object{'s' if len(true) != 1 else ''} annotated (left), "
        f"{len(sure)} found with a score of {100 * SURE:.0f} % or more (right)."
    )
    return Picture(photo.name, stream.getvalue(), caption)


def drawn(image: Image.Image, items: Sequence[Item]) -> Image.Image:
    """An image at the width of a half with boxes, names and masks on it."""
    from PIL import Image, ImageDraw, ImageFont

    share = WIDTH / image.width
    rows = max(1, round(image.height * share))
    out = image.resize((WIDTH, rows), Image.Resampling.BICUBIC)
    for _, label, _, mask in items:
        if mask is not None:
            inside = Image.fromarray(mask_pixels(mask, (image.height, image.width)) * 110).resize((WIDTH, rows))
            out.paste(Image.new("RGB", out.size, colour(label)), mask=inside)
    pen, font = ImageDraw.Draw(out), ImageFont.load_default(12)
    for box, label, _, _ in items:
        corners = [v * share for v in box]
        pen.rectangle(
            [corners[0], corners[1], max(corners[2] - 1, corners[0]), max(corners[3] - 1, corners[1])],
            None,
            colour(label),
            2,
        )
    for box, label, text, _ in items:  # names over all boxes
        left, top = box[0] * share, max(0.0, box[1] * share - 14)
        left = max(0.0, min(left, WIDTH - pen.textlength(text, font) - 4))
        pen.rectangle([left, top, left + pen.textlength(text, font) + 4, top + 14], colour(label))
        pen.text((left + 2, top), text, "white" if sum(colour(label)) < 420 else "black", font)
    return out
