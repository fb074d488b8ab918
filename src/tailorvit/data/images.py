"""One image file to pixels: every mode, orientation and size ends as uint8 of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailorvit.errors import TailorError

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8]
Size = tuple[int, int]  # height, width

MARGIN = 1.15  # evaluation sees the middle 1/1.15 of a photo, the usual 87.5 % crop
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2")
_GREY = ("1", "L", "LA", "La", "I", "F")
_ALPHA = ("RGBA", "RGBa", "LA", "La", "PA")


def checked_size(size: int | Sequence[int]) -> Size:
    """A side or (height, width) as (height, width)."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or any(isinstance(s, bool) or not isinstance(s, int) or s < 1 for s in pair):
        raise TailorError(f"The image size must be a whole number or (height, width), both above zero, not {size}.")
    return pair[0], pair[1]


def stored_size(size: Size, margin: float) -> Size:
    """The size images are kept at: the network's size plus the margin that crops play in."""
    return round(margin * size[0]), round(margin * size[1])


def centre_crop(x: Tensor, size: Size) -> Tensor:
    """The middle of the last two dimensions."""
    top, left = (x.shape[-2] - size[0]) // 2, (x.shape[-1] - size[1]) // 2
    return x[..., top : top + size[0], left : left + size[1]]


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 (B, C, H, W) to float32 with the given mean and deviation taken out."""
    scale = 1 / (255 * torch.tensor(std, dtype=torch.float32))
    bias = -torch.tensor(mean, dtype=torch.float32) * 255 * scale
    return x.to(torch.float32).mul_(scale[:, None, None]).add_(bias[:, None, None])


def is_grey(image: Image.Image) -> bool:
    """Whether the header promises grey; pixels are not decoded, so grey-looking RGB counts as colour."""
    if image.mode == "P" and image.palette is not None:
        width = len(image.palette.rawmode or image.palette.mode)
        raw = bytes(image.palette.palette)
        table = np.frombuffer(raw[: len(raw) // width * width], np.uint8).reshape(-1, width)[:, :3]
        return bool((table == table[:, :1]).all())
    return image.mode in _GREY or image.mode.startswith("I;16")


def _eight_bit(image: Image.Image) -> Image.Image:
    """Deep grey (16 bit, 32 bit, float) as 8 bit; float images are read as 0..1 unless they exceed it."""
    from PIL import Image

    raw: Any = np.nan_to_num(np.asarray(image).astype(np.float64))
    scale = (255 if raw.max(initial=0) <= 1 else 1) if image.mode == "F" else 1 / 257
    return Image.fromarray(np.clip(np.rint(raw * scale), 0, 255).astype(np.uint8))


def flat(image: Image.Image, channels: int) -> Image.Image:
    """The image as plain grey or RGB, what is transparent laid on white."""
    from PIL import Image

    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _eight_bit(image)
    elif image.mode in _ALPHA or "transparency" in image.info:
        if image.mode == "La":
            image = image.convert("LA")
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    elif image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    return image.convert("L" if channels == 1 else "RGB")


def fit(image: Image.Image, size: Size) -> Image.Image:
    """Resized to cover the size, the overhang cut evenly: the short side is kept whole."""
    from PIL import Image

    height, width = size
    scale = max(height / image.height, width / image.width)
    dx, dy = (image.width - width / scale) / 2, (image.height - height / scale) / 2
    if (image.height, image.width) == size:
        return image
    box = (max(dx, 0.0), max(dy, 0.0), min(image.width - dx, image.width), min(image.height - dy, image.height))
    return image.resize((width, height), Image.Resampling.BICUBIC, box=box)


def to_pixels(image: Image.Image, channels: int, size: Size) -> Pixels:
    """An opened image as uint8 (C, H, W), upright."""
    from PIL import ImageOps

    # JPEG decodes at 1/2, 1/4 or 1/8 scale for little cost; twice the need leaves the resize filter its work.
    image.draft(None, (2 * max(size), 2 * max(size)))
    image = fit(flat(ImageOps.exif_transpose(image), channels), size)
    array = np.array(image, dtype=np.uint8)  # a copy: Pillow's own memory is read-only, which torch warns about
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def to_image(pixels: Pixels) -> Image.Image:
    """uint8 (C, H, W) as an image."""
    from PIL import Image

    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def reason(error: Exception) -> str:
    """Why an image could not be read, on one line."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    return " ".join(str(error).split()) or type(error).__name__


def preprocess(
    path: str | Path,
    *,
    image_size: int | Sequence[int],
    channels: int,
    mean: Sequence[float],
    std: Sequence[float],
    margin: float = MARGIN,
) -> Tensor:
    """One file as evaluation would see it, (1, C, H, W); ``Data.preprocessing`` holds the arguments."""
    from PIL import Image

    size = checked_size(image_size)
    if channels not in (1, 3) or len(mean) != channels or len(std) != channels:
        raise TailorError(f"Images have 1 or 3 channels with a mean and std each, not {channels}, {mean} and {std}.")
    if not Path(path).is_file():
        raise TailorError(f"There is no image file '{path}'.")
    try:
        with Image.open(path) as image:
            pixels = to_pixels(image, channels, stored_size(size, margin))
    except Exception as error:  # decoders raise whatever they like on broken files
        raise TailorError(f"Cannot read '{path}' as an image: {reason(error)}.") from error
    return normalise(centre_crop(torch.from_numpy(pixels)[None], size), mean, std)
