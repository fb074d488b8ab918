"""Pictures and names for the report: thumbnails as data URIs, file names without the machine's paths."""

from __future__ import annotations

import base64
import io
from pathlib import Path, PurePath

from tailorvit.portable import Pixels, to_image

EXACT = 64  # pixels; up to this side PNG keeps every pixel
LARGEST = 128  # pixels; a JPEG of this side is about 5 kB


def thumbnail(pixels: Pixels) -> str:
    """uint8 (C, H, W) as a data URI: PNG up to 64 pixels a side, JPEG of at most 128 above."""
    from PIL import Image

    image, kind, stream = to_image(pixels), "png", io.BytesIO()
    if max(image.size) <= EXACT:
        image.save(stream, "PNG", optimize=True)
    else:
        image.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
        image.save(stream, "JPEG", quality=85)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


def plain_text(words: str) -> str:
    """Text that any file can hold: bytes of a name that are no UTF-8 become the replacement sign."""
    return words.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def shown_name(name: str, source: str) -> str:
    """A file's name relative to its source; the bare name where it lies elsewhere."""
    path, root = PurePath(name), Path(source).expanduser()
    return plain_text(path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name)
