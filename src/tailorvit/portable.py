"""Image files to numbers and ONNX files to answers, with numpy and Pillow alone: this module never needs torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tailorvit.errors import TailorError, unknown

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]
Size = tuple[int, int]  # height, width

MARGIN = 256 / 224  # evaluation sees the middle 87.5 % of a photo, as is usual
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2")
INTERPOLATIONS = ("bicubic",)
METADATA = "tailorvit"  # the key under which an ONNX file carries classes and preprocessing
FORMAT = 1
_GREY = ("1", "L", "LA", "La", "I", "F")
_ALPHA = ("RGBA", "RGBa", "LA", "La", "PA")

# -- sizes ------------------------------------------------------------------------------------------------------------


def checked_size(size: int | Sequence[int]) -> Size:
    """A side or (height, width) as (height, width)."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or any(isinstance(s, bool) or not isinstance(s, int) or s < 1 for s in pair):
        raise TailorError(f"The image size must be a whole number or (height, width), both above zero, not {size}.")
    return pair[0], pair[1]


def stored_size(size: Size, margin: float) -> Size:
    """The size images are kept at: the network's size plus the margin that crops play in."""
    return round(margin * size[0]), round(margin * size[1])


@dataclass(frozen=True)
class Preprocessing:
    """How evaluation sees a file: cover the size times the margin, crop the middle, take out mean and deviation."""

    image_size: Size
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    margin: float = MARGIN
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if self.channels not in (1, 3) or len(self.mean) != self.channels or len(self.std) != self.channels:
            given = f"{self.channels}, {self.mean} and {self.std}"
            raise TailorError(f"Images have 1 or 3 channels with a mean and std each, not {given}.")
        if not all(map(math.isfinite, self.mean)) or not all(math.isfinite(s) and s > 0 for s in self.std):
            raise TailorError(f"Mean and std must be finite and std above zero, not {self.mean} and {self.std}.")
        if not (math.isfinite(self.margin) and self.margin >= 1):
            raise TailorError(f"The margin of the crop must be at least 1, not {self.margin}.")
        if self.interpolation not in INTERPOLATIONS:
            raise unknown("interpolation", self.interpolation, INTERPOLATIONS)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Preprocessing:
        """Read the plain form; a key this version cannot honour is refused, for it would change every answer."""
        names = [f.name for f in fields(cls)]
        for key in data:
            if key not in names:
                raise unknown("preprocessing key", key, names)
        try:
            return cls(
                checked_size(data["image_size"]),
                int(data["channels"]),
                tuple(map(float, data["mean"])),
                tuple(map(float, data["std"])),
                float(data.get("margin", MARGIN)),
                str(data.get("interpolation", "bicubic")),
            )
        except KeyError as error:
            raise TailorError(
                f"The preprocessing lacks {error}; it needs image_size, channels, mean and std."
            ) from None
        except (TypeError, ValueError) as error:
            raise TailorError(f"The preprocessing {dict(data)} cannot be used: {error}.") from None


# -- one image --------------------------------------------------------------------------------------------------------


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
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()  # the path is named beside it already
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def prepare(source: str | Path | BinaryIO, how: Preprocessing) -> Floats:
    """One file (or open binary stream) as evaluation would see it: float32 (C, H, W)."""
    from PIL import Image

    name = f"'{source}'" if isinstance(source, str | Path) else "the stream"
    if isinstance(source, str | Path) and not Path(source).is_file():
        raise TailorError(f"There is no image file {name}.")
    try:
        with Image.open(source) as image:
            pixels = to_pixels(image, how.channels, stored_size(how.image_size, how.margin))
    except Exception as error:  # decoders raise whatever they like on broken files
        raise TailorError(f"Cannot read {name} as an image: {reason(error)}.") from error
    height, width = how.image_size
    top, left = (pixels.shape[1] - height) // 2, (pixels.shape[2] - width) // 2
    x = pixels[:, top : top + height, left : left + width].astype(np.float32)
    # The same float32 steps in the same order as data.images.normalise, so both agree to the last bit.
    scale = 1 / (255 * np.asarray(how.std, np.float32))
    bias = -np.asarray(how.mean, np.float32) * 255 * scale
    x *= scale[:, None, None]
    x += bias[:, None, None]
    return x


# -- ONNX -------------------------------------------------------------------------------------------------------------


def usable_cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def softmax(logits: NDArray[Any]) -> Floats:
    """Probabilities of the last dimension, float32."""
    x = np.asarray(logits, np.float32)
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    out: Floats = x / x.sum(axis=-1, keepdims=True)
    return out


def distinct(classes: Sequence[str], where: object) -> tuple[str, ...]:
    """The class names; a name that comes twice is refused, as answers are told by name."""
    twice = sorted({c for c in classes if classes.count(c) > 1}) if len(set(classes)) < len(classes) else []
    if twice:
        raise TailorError(f"The network in '{where}' has two classes called '{twice[0]}'.")
    return tuple(classes)


class OnnxNetwork:
    """An exported network opened by onnxruntime: ``predict`` takes what ``prepare`` makes."""

    def __init__(self, path: str | Path, *, threads: int | None = None) -> None:
        place = Path(path)
        if not place.is_file():
            raise TailorError(f"There is no ONNX file '{path}'.")
        try:
            import onnxruntime
        except ImportError:
            raise TailorError(f"Opening '{path}' needs onnxruntime: pip install onnxruntime.") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # problems come as exceptions; the log would say them a second time
        # Said explicitly, because onnxruntime pins its own choice to cores a container may not own, and complains.
        options.intra_op_num_threads = threads or usable_cores()
        try:
            self._session = onnxruntime.InferenceSession(str(place), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a type of its own for each failure
            raise TailorError(f"'{path}' cannot be opened as an ONNX network: {reason(error)}.") from None
        meta = _metadata(self._session.get_modelmeta().custom_metadata_map.get(METADATA), path)
        self.path = place
        self.classes = distinct(meta["classes"], path)
        self.preprocessing = Preprocessing.from_dict(meta["preprocessing"])
        self.arch: Mapping[str, Any] = meta.get("arch") or {}
        self.facts: Mapping[str, Any] = meta.get("facts") or {}

    def logits(self, batch: Sequence[Floats] | Floats) -> Floats:
        """Raw scores (n, classes) of prepared images."""
        x = np.stack([np.asarray(b, np.float32) for b in batch])
        how = self.preprocessing
        if x.shape[1:] != (how.channels, *how.image_size):
            want = "x".join(map(str, (how.channels, *how.image_size)))
            raise TailorError(f"'{self.path}' takes images of {want}, not {'x'.join(map(str, x.shape[1:]))}.")
        try:
            out: Floats = self._session.run(None, {self._session.get_inputs()[0].name: x})[0]
        except Exception as error:  # as above
            raise TailorError(f"'{self.path}' cannot be run: {reason(error)}.") from None
        if out.shape != (len(x), len(self.classes)):
            raise TailorError(f"'{self.path}' answers with shape {out.shape} for its {len(self.classes)} classes.")
        return out

    def predict(self, batch: Sequence[Floats] | Floats) -> Floats:
        """Probabilities (n, classes) of prepared images, float32."""
        return softmax(self.logits(batch))


def _metadata(text: str | None, path: object) -> dict[str, Any]:
    """What tailorvit wrote into the file, checked."""
    if text is None:
        raise TailorError(
            f"'{path}' is an ONNX file but not one of tailorvit's: it names no classes and no preprocessing "
            f"(metadata '{METADATA}'); make one with tailorvit export RUN --to onnx."
        )
    try:
        data = json.loads(text)
        known = data["format"] == FORMAT
        classes, how = data["classes"], data["preprocessing"]
        good = isinstance(how, dict) and isinstance(classes, list) and all(isinstance(c, str) for c in classes)
    except (ValueError, LookupError, TypeError):
        known, good = True, False
    if not known:
        raise TailorError(f"'{path}' has metadata of format {data['format']}; this tailorvit reads format {FORMAT}.")
    if not good:
        raise TailorError(f"The metadata '{METADATA}' in '{path}' is damaged: no class names or no preprocessing.")
    return dict(data)
