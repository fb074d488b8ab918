"""Images as the network takes them, and exported ONNX networks; numpy and Pillow alone, never torch."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tailorvit.errors import TailorError, unknown
from tailorvit.texts import parse_json

if TYPE_CHECKING:
    from PIL import Image

    Source = str | Path | BinaryIO | Image.Image | NDArray[Any]  # one image

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]
Size = tuple[int, int]  # height, width

MARGIN = 256 / 224  # evaluation crops the middle 87.5 % of a photo, as is usual
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2")
INTERPOLATIONS = ("bicubic",)
METADATA = "tailorvit"  # the key under which an ONNX file carries classes and preprocessing
FORMAT = 1
HUB = "hf:"  # before USER/NAME of a network on the Hugging Face hub
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
    """The size images are resized to before the crop: the network's size times the margin."""
    return round(margin * size[0]), round(margin * size[1])


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the network's input: resize to cover size times margin, crop the middle, normalise."""

    image_size: Size
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    margin: float = MARGIN
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if self.channels not in (1, 3) or len(self.mean) != self.channels or len(self.std) != self.channels:
            values = f"{self.channels}, {self.mean} and {self.std}"
            raise TailorError(f"Images have 1 or 3 channels with a mean and std each, not {values}.")
        if not all(map(math.isfinite, self.mean)) or not all(math.isfinite(s) and s > 0 for s in self.std):
            raise TailorError(f"Mean and std must be finite and std above zero, not {self.mean} and {self.std}.")
        if not (math.isfinite(self.margin) and self.margin >= 1):
            raise TailorError(f"The margin of the crop must be at least 1, not {self.margin}.")
        if self.interpolation not in INTERPOLATIONS:
            raise unknown("interpolation", self.interpolation, INTERPOLATIONS)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Preprocessing:
        """Read the dictionary; an unknown key is an error, because ignoring it would change every prediction."""
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
    """Whether the header says grey; pixels are not decoded, so an RGB image of greys counts as colour."""
    if image.mode == "P" and image.palette is not None:
        width = len(image.palette.rawmode or image.palette.mode)
        raw = bytes(image.palette.palette)
        table = np.frombuffer(raw[: len(raw) // width * width], np.uint8).reshape(-1, width)[:, :3]
        return bool((table == table[:, :1]).all())
    return image.mode in _GREY or image.mode.startswith("I;16")


def _eight_bit(image: Image.Image) -> Image.Image:
    """Deep grey (16 bit, 32 bit, float) as 8 bit; the range is the smallest usual one that holds the values.

    Whole numbers are of 16 or 32 bits; floats run to 1, 255 or 65535.
    """
    from PIL import Image

    raw: Any = np.nan_to_num(np.asarray(image).astype(np.float64))
    if image.mode == "I":  # 32 bits without a sign, which Pillow reads with one
        raw = np.where(raw < 0, raw + 2**32, raw)
    high = raw.max(initial=0)
    if image.mode == "F" and high > 65535:
        raise ValueError(f"its values go up to {high:g}; floats are read up to 1, 255 or 65535")
    tops = (1, 255, 65535) if image.mode == "F" else (65535, 2**32 - 1)
    scale = 255 / next(top for top in tops if high <= top)
    return Image.fromarray(np.clip(np.rint(raw * scale), 0, 255).astype(np.uint8))


def flat(image: Image.Image, channels: int) -> Image.Image:
    """The image as plain grey or RGB, transparent parts on white."""
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
    """The image resized to cover the size; what sticks out is cut evenly from both sides."""
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

    # JPEG decodes at 1/2, 1/4 or 1/8 scale at little cost; twice the target size is enough for the resize filter.
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


def from_array(array: NDArray[Any]) -> Image.Image:
    """An array (H, W) or (H, W, C) as an image: uint8, or float from 0 to 1."""
    from PIL import Image

    if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise TailorError(
            f"An image array has the shape (H, W) or (H, W, C) with C 1, 3 or 4, several images (N, H, W, C); "
            f"not {array.shape}."
        )
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 1):
            raise TailorError(f"A float image array holds values from 0 to 1, not from {low:g} to {high:g}.")
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise TailorError(f"An image array is uint8, or float from 0 to 1, not {array.dtype}.")
    return Image.fromarray(array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else np.ascontiguousarray(array))


def _copied(image: Image.Image) -> Image.Image:
    """A copy to work on. An undecoded JPEG is read again: only then can it shrink while decoding, as in training."""
    from PIL import Image

    if image.format not in ("JPEG", "MPO") or not getattr(image, "tile", None) or image.tell():
        return image.copy()
    file: Any = image.fp  # type: ignore[attr-defined]
    at = file.tell()
    file.seek(0)
    copy = Image.open(io.BytesIO(file.read()))
    file.seek(at)
    return copy


def _opened(source: Source) -> Image.Image:
    """The image behind a source, which the caller may change and must close."""
    from PIL import Image

    if isinstance(source, np.ndarray):
        return from_array(source)
    if isinstance(source, Image.Image):
        return _copied(source)
    return Image.open(source)


def prepare(source: Source, how: Preprocessing) -> Floats:
    """One image as the network takes it, float32 (C, H, W): a path, a binary stream, a Pillow image or an array."""
    from PIL import Image

    if isinstance(source, str | Path):
        name = f"'{source}'"
        if not Path(source).is_file():
            raise TailorError(f"There is no image file {name}.")
    elif isinstance(source, np.ndarray | Image.Image) or hasattr(source, "read"):
        name = "the stream" if hasattr(source, "read") else "the image"
    else:
        kind = type(source).__name__
        raise TailorError(f"An image is a file's path, a Pillow image or a numpy array, not of the type {kind}.")
    try:
        with _opened(source) as image:
            pixels = to_pixels(image, how.channels, stored_size(how.image_size, how.margin))
    except TailorError:
        raise
    except Exception as error:  # decoders raise errors of every type on broken files
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


# -- several images ---------------------------------------------------------------------------------------------------


def is_folder(path: Path) -> bool:
    """Whether there is a folder; an impossible name is none, and reading it will say why."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def image_files(folder: Path, recursive: bool = True) -> Iterator[tuple[Path, str | None]]:
    """Image files of a folder in sorted order, listed as they are needed; hidden files and linked folders are left out.

    A folder that cannot be listed comes with the reason.
    """
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda e: e.name)
    except OSError as error:
        yield folder, f"the folder cannot be listed: {reason(error)}"
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = Path(entry.path)
        if is_folder(path):
            if recursive and not entry.name.startswith("__") and not entry.is_symlink():
                yield from image_files(path, recursive)
        elif path.suffix.lower() in SUFFIXES:
            yield path, None


def image_list(images: Source | Iterable[Source]) -> tuple[list[Source], bool]:
    """One or several images as a list, and whether they were several: a list, an array (N, H, W, C) or a folder."""
    from PIL import Image

    if isinstance(images, str | Path) and is_folder(Path(images)):
        files = list(image_files(Path(images)))
        if not files:
            raise TailorError(f"There are no images in or below '{images}'; known endings: {', '.join(SUFFIXES)}.")
        for path, problem in files:
            if problem is not None:
                raise TailorError(f"'{path}': {problem}.")
        return [path for path, _ in files], True
    if isinstance(images, np.ndarray) and images.ndim == 4:
        return list(images), True
    if isinstance(images, str | Path | np.ndarray | Image.Image) or hasattr(images, "read"):
        return [images], False  # type: ignore[list-item]
    if not isinstance(images, Iterable):
        raise TailorError(
            "Images are a path, a Pillow image, a numpy array, a list of those, or a folder, "
            f"not of the type {type(images).__name__}."
        )
    return list(images), True


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
    """The class names; a name that comes twice is an error, because predictions are given by name."""
    twice = sorted({c for c in classes if classes.count(c) > 1}) if len(set(classes)) < len(classes) else []
    if twice:
        raise TailorError(f"The network in '{where}' has two classes called '{twice[0]}'.")
    return tuple(classes)


class OnnxNetwork:
    """An exported ONNX network in onnxruntime: ``predict`` takes what ``prepare`` returns."""

    def __init__(self, path: str | Path, *, threads: int | None = None) -> None:
        place = Path(path)
        if not place.is_file():
            raise TailorError(f"There is no ONNX file '{path}'.")
        try:
            import onnxruntime
        except ImportError:
            raise TailorError(f"Opening '{path}' needs onnxruntime: pip install onnxruntime.") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # problems are raised as exceptions; the log would repeat them
        # Set explicitly: onnxruntime's default pins threads to cores that a container may not own, and logs errors.
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
        except Exception as error:  # any of onnxruntime's types
            raise TailorError(f"'{self.path}' cannot be run: {reason(error)}.") from None
        if out.shape != (len(x), len(self.classes)):
            raise TailorError(f"'{self.path}' returns the shape {out.shape} for its {len(self.classes)} classes.")
        return out

    def predict(self, batch: Sequence[Floats] | Floats) -> Floats:
        """Probabilities (n, classes) of prepared images, float32."""
        return softmax(self.logits(batch))


def _metadata(text: str | None, path: object) -> dict[str, Any]:
    """The metadata that the export wrote into the file, checked."""
    if text is None:
        raise TailorError(
            f"'{path}' is an ONNX file but not one of tailorvit's: it names no classes and no preprocessing "
            f"(metadata '{METADATA}'); make one with tailorvit export RUN --to onnx."
        )
    try:
        data = parse_json(text)
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
