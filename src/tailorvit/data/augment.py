"""Augmentation: its settings and presets, and how the host does it with Pillow and timm, one image at a time."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailorvit.data.images import centre_crop, thread_map
from tailorvit.errors import TailorError, unknown
from tailorvit.portable import Size, checked_size, to_image
from tailorvit.rng import Step, derive

LADDER = ("mild", "light", "medium", "strong")  # from weak to strong; a contest climbs it
PRESETS = ("auto", "none", *LADDER, "standard")
SMALL = 48  # px; the object fills a smaller image, so it is shifted and not cut out at random
# Words in a data source's name that mean its images must not be mirrored: they show digits, letters or signs.
_WRITTEN = ("digits", "mnist", "svhn", "gtsrb", "omniglot", "usps", "semeion")
_RAND = re.compile(r"rand(-(m|n|inc|mmax)\d+|-(mstd|p)\d+(\.\d+)?|-t[a-z]+)*")
Rng = np.random.Generator


@dataclass(frozen=True)
class Augment:
    """What is done to a training batch; the defaults do nothing."""

    crop_pad: int = 0  # random shift by up to this many pixels
    flip: bool = False
    randaugment: str | None = None  # timm's notation, such as rand-m9-mstd0.5-inc1
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_prob: float = 1.0
    switch: float = 0.5  # share of cutmix where both are on
    smoothing: float = 0.0
    scale: tuple[float, float] | None = None  # random resized crop, share of the area; replaces the shift
    jitter: float = 0.0  # brightness, contrast, saturation; as in timm, off where RandAugment is on

    def __post_init__(self) -> None:
        for name in ("erasing", "mix_prob", "switch", "smoothing", "jitter"):
            if not 0 <= getattr(self, name) <= 1:
                raise TailorError(f"Augmentation: {name} must lie between 0 and 1, not {getattr(self, name)}.")
        for name in ("crop_pad", "mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise TailorError(f"Augmentation: {name} must not be negative, not {getattr(self, name)}.")
        if self.randaugment is not None and not _RAND.fullmatch(self.randaugment):
            raise TailorError(
                f"Augmentation: cannot read randaugment '{self.randaugment}'; write it like rand-m9-mstd0.5-inc1."
            )
        if self.scale is not None:
            object.__setattr__(self, "scale", tuple(self.scale))
            if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] <= 1:
                raise TailorError(f"Augmentation: scale must be (low, high) within 0..1, not {self.scale}.")

    @property
    def mixes(self) -> bool:
        """Whether images of a batch are mixed."""
        return (self.mixup > 0 or self.cutmix > 0) and self.mix_prob > 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "scale": None if self.scale is None else list(self.scale)}


def augment_preset(
    name: str,
    image_size: int | tuple[int, int],
    source: str,
    *,
    channels: int = 3,
    images: int | None = None,
) -> Augment:
    """A preset by name: none, mild to strong, standard (DeiT's recipe), or auto, which chooses by size and count."""
    side = min(checked_size(image_size))
    photo = channels == 3 and not any(word in source.lower() for word in _WRITTEN)
    if name == "none":
        return Augment()
    if name == "auto":
        few = side < SMALL or (images is not None and images < 5000)
        return augment_preset("mild" if few else "strong", image_size, source, channels=channels)
    # One pixel is an eighth of an 8 px digit: a shift cost 2.5 points in 40 epochs, mixup gained 0.8 (docs/log.md).
    shift = 0 if side < 16 else max(1, side // 8)
    mild = Augment(crop_pad=shift, flip=photo, mixup=0.0 if shift else 0.2, smoothing=0.1)
    rungs = {
        "mild": mild,
        "light": replace(mild, scale=(0.5, 1.0), mixup=0.2, cutmix=1.0, mix_prob=0.3),
        "medium": replace(
            mild,
            scale=(0.35, 1.0),
            randaugment="rand-m6-mstd0.5-inc1",
            erasing=0.1,
            mixup=0.2,
            cutmix=1.0,
            mix_prob=0.5,
        ),
        "strong": replace(
            mild, scale=(0.3, 1.0), randaugment="rand-m9-mstd0.5-inc1", erasing=0.25, mixup=0.8, cutmix=1.0
        ),
    }
    if name in rungs:
        return rungs[name] if side >= SMALL else replace(rungs[name], scale=None)
    if name == "standard":
        return replace(rungs["strong"], scale=(0.08, 1.0), crop_pad=0, jitter=0.4)
    raise unknown("augmentation preset", name, PRESETS)


# -- random draws, shared by host and device --------------------------------------------------------------------------


def crop_lines(n: int, channels: int, have: Size, size: Size, pad: int, flip: bool, rng: Rng) -> tuple[Any, Any]:
    """Rows (n, height) and columns (n, width) of one random window per image.

    Beyond the border grey images repeat their edge, colour images are reflected.
    """

    def lines(length: int, want: int) -> Any:
        offset = (length - want) // 2 + (rng.integers(-pad, pad + 1, n) if pad or flip else np.zeros(n, np.int64))
        at = offset[:, None] + np.arange(want)
        if channels > 1:
            at = (length - 1) - np.abs((length - 1) - np.abs(at))
        return at.clip(0, length - 1)

    rows, cols = lines(have[0], size[0]), lines(have[1], size[1])
    if flip:
        cols = np.where((rng.random(n) < 0.5)[:, None], cols[:, ::-1], cols)
    return rows, cols


def crop_boxes(n: int, have: Size, scale: tuple[float, float], rng: Rng) -> Any:
    """Boxes (left, top, right, bottom) of random area and aspect 3/4 to 4/3; the whole image where ten tries fail."""
    height, width = have
    area = rng.uniform(*scale, (n, 10)) * height * width
    aspect = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), (n, 10)))
    wide, high = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (wide <= width) & (high <= height) & (wide >= 1) & (high >= 1)
    pick = fits.argmax(1)
    row = np.arange(n)
    w, h = (np.where(fits.any(1), a[row, pick], whole) for a, whole in ((wide, width), (high, height)))
    left, top = np.floor(rng.random(n) * (width - w + 1)), np.floor(rng.random(n) * (height - h + 1))
    return np.stack([left, top, left + w, top + h], 1)


def draw_jitter(n: int, kinds: int, strength: float, rng: Rng) -> tuple[Any, Any]:
    """Per image a factor for each kind of colour jitter, and the order of the kinds."""
    factors = rng.uniform(1 - strength, 1 + strength, (n, kinds))
    return factors, rng.permuted(np.tile(np.arange(kinds), (n, 1)), axis=1)


def fill_colour(mean: tuple[float, ...]) -> tuple[int, ...]:
    """The colour of the corners of rotated images: the mean colour."""
    return tuple(round(255 * m) for m in mean)


def timm_randaugment(notation: str, size: Size, mean: tuple[float, ...]) -> Any:
    """timm's RandAugment, which reads the notation; grey images pass through it as RGB."""
    from PIL import Image
    from timm.data.auto_augment import rand_augment_transform

    fill = fill_colour(mean)
    settings = {
        "translate_const": int(min(size) * 0.45),
        "img_mean": fill * 3 if len(fill) == 1 else fill,
        "interpolation": Image.Resampling.BICUBIC,
    }
    return rand_augment_transform(notation, settings)


# -- on the host ------------------------------------------------------------------------------------------------------


@contextmanager
def seeded_globals(seed: int, *path: Step) -> Iterator[None]:
    """Seed the global CPU generators, which timm uses, and restore them afterwards; CUDA's are not touched."""
    before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002
    value = derive(seed, *path)
    random.seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(value)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.default_generator.set_state(before[2])


def shift_flip(x: Tensor, size: Size, pad: int, flip: bool, rng: Rng) -> Tensor:
    """A random window of each image, mirrored at random."""
    if not pad and not flip:
        return centre_crop(x, size)
    n, channels, height, width = x.shape
    rows, cols = map(torch.from_numpy, crop_lines(n, channels, (height, width), size, pad, flip, rng))
    index = (rows[:, :, None] * width + cols[:, None, :]).view(n, 1, -1).expand(-1, channels, -1)
    return x.reshape(n, channels, -1).gather(2, index).view(n, channels, *size)


def _map_images(x: Tensor, work: Callable[[Any, int], Any], size: Size, threads: bool) -> Tensor:
    """Apply work(PIL image, index) to every image of a uint8 batch."""
    out = torch.empty((*x.shape[:2], *size), dtype=torch.uint8)
    source, target = x.numpy(), out.numpy()

    def one(i: int) -> None:
        array = np.asarray(work(to_image(source[i]), i))
        target[i] = array if array.ndim == 2 else array.transpose(2, 0, 1)

    if threads:
        thread_map(one, range(len(x)))
    else:
        for i in range(len(x)):
            one(i)
    return out


def resized_crop(x: Tensor, size: Size, scale: tuple[float, float], flip: bool, rng: Rng) -> Tensor:
    """Random resized crop, then a random mirror."""
    from PIL import Image

    boxes = crop_boxes(len(x), (x.shape[2], x.shape[3]), scale, rng)
    mirrored = torch.from_numpy(rng.random(len(x)) < 0.5) if flip else torch.zeros(len(x), dtype=torch.bool)
    wh = (size[1], size[0])
    out = _map_images(x, lambda image, i: image.resize(wh, Image.Resampling.BICUBIC, box=tuple(boxes[i])), size, True)
    return torch.where(mirrored[:, None, None, None], out.flip(3), out)


def colour_jitter(x: Tensor, strength: float, rng: Rng) -> Tensor:
    """Brightness, contrast and saturation by factors in 1 +- strength, in random order."""
    from PIL import ImageEnhance

    kinds = [ImageEnhance.Brightness, ImageEnhance.Contrast] + [ImageEnhance.Color] * (x.shape[1] == 3)
    factors, orders = draw_jitter(len(x), len(kinds), strength, rng)

    def work(image: Any, i: int) -> Any:
        for k in orders[i]:
            image = kinds[k](image).enhance(float(factors[i, k]))
        return image

    return _map_images(x, work, (x.shape[2], x.shape[3]), True)


def _posterize(image: Any, bits: int, **_: Any) -> Any:
    """timm's posterise may ask for 0 bits, which Pillow 13 refuses and older versions paint black."""
    from PIL import ImageOps

    return image if bits >= 8 else ImageOps.posterize(image, max(1, bits))


class PixelStage:
    """uint8 images at stored size to augmented uint8 images at the network's size."""

    def __init__(self, augment: Augment, size: Size, mean: tuple[float, ...]) -> None:
        self.augment = augment
        self.size = size
        self.uses_globals = augment.randaugment is not None  # timm draws from the global generators
        self.rand: Any = None
        if augment.randaugment is not None:
            self.rand = timm_randaugment(augment.randaugment, size, mean)
            for op in self.rand.ops:
                if op.name.startswith("Posterize"):
                    op.aug_fn = _posterize

    def __call__(self, x: Tensor, rng: Rng, seed: int, step: int) -> Tensor:
        """The batch of one step."""
        how = self.augment
        if how.scale is not None:
            x = resized_crop(x, self.size, how.scale, how.flip, rng)
        else:
            x = shift_flip(x, self.size, how.crop_pad, how.flip, rng)
        if self.rand is not None:
            mode = "L" if x.shape[1] == 1 else "RGB"
            with seeded_globals(seed, "augment", step, "rand"):
                x = _map_images(x, lambda image, _: self.rand(image.convert("RGB")).convert(mode), self.size, False)
        elif how.jitter:
            x = colour_jitter(x, how.jitter, rng)
        return x


class BatchStage:
    """A normalised batch to its final form: erasing, mixing, soft targets."""

    def __init__(self, augment: Augment, classes: int) -> None:
        self.classes = classes
        self.smoothing = augment.smoothing
        self.uses_globals = augment.erasing > 0 or augment.mixes
        self.erase: Any = None
        self.mix: Any = None
        if augment.erasing:
            from timm.data.random_erasing import RandomErasing

            eraser: Any = RandomErasing  # timm is not fully typed
            self.erase = eraser(augment.erasing, mode="pixel", device="cpu")
        if augment.mixes:
            from timm.data.mixup import Mixup

            mixup: Any = Mixup
            self.mix = mixup(
                augment.mixup,
                augment.cutmix,
                prob=augment.mix_prob,
                switch_prob=augment.switch,
                label_smoothing=augment.smoothing,
                num_classes=classes,
            )

    def _soft_targets(self, y: Tensor) -> Tensor:
        off = self.smoothing / self.classes
        return torch.full((len(y), self.classes), off).scatter_(1, y[:, None], 1 - self.smoothing + off)

    def __call__(self, x: Tensor, y: Tensor, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Images and soft targets of one step."""
        target = self._soft_targets(y)
        if not self.uses_globals:
            return x, target
        with seeded_globals(seed, "augment", step, "mix"):
            if self.erase is not None:
                x = self.erase(x)
            even = len(x) // 2 * 2  # timm mixes pairs; an odd last image is not mixed
            if self.mix is not None and even:
                _, target[:even] = self.mix(x[:even], y[:even])
        return x, target
