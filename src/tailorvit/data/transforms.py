"""What augmentation does to pixels: geometry and colour on uint8, erasing and mixing on normalised batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailorvit.data.augment import Augment
from tailorvit.data.images import Size, centre_crop, to_image
from tailorvit.data.pools import thread_map
from tailorvit.rng import Step, derive

Rng = np.random.Generator


@contextmanager
def borrowed_seed(seed: int, *path: Step) -> Iterator[None]:
    """Seed the global CPU generators, which timm reads, and put them back; CUDA's stay untouched."""
    kept = random.getstate(), np.random.get_state(), torch.default_generator.get_state()  # noqa: NPY002
    value = derive(seed, *path)
    random.seed(value)
    np.random.seed(value % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(value)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002
        torch.default_generator.set_state(kept[2])


def windows(n: int, channels: int, have: Size, size: Size, pad: int, flip: bool, rng: Rng) -> tuple[Any, Any]:
    """Rows (n, height) and columns (n, width) of a random window each; grey grows by its edge, colour by reflection."""

    def line(long: int, want: int) -> Any:
        offset = (long - want) // 2 + (rng.integers(-pad, pad + 1, n) if pad or flip else np.zeros(n, np.int64))
        at = offset[:, None] + np.arange(want)
        if channels > 1:
            at = (long - 1) - np.abs((long - 1) - np.abs(at))
        return at.clip(0, long - 1)

    rows, cols = line(have[0], size[0]), line(have[1], size[1])
    if flip:
        cols = np.where((rng.random(n) < 0.5)[:, None], cols[:, ::-1], cols)
    return rows, cols


def shift_flip(x: Tensor, size: Size, pad: int, flip: bool, rng: Rng) -> Tensor:
    """A random window of the batch, each image its own."""
    if not pad and not flip:
        return centre_crop(x, size)
    n, channels, height, width = x.shape
    rows, cols = map(torch.from_numpy, windows(n, channels, (height, width), size, pad, flip, rng))
    index = (rows[:, :, None] * width + cols[:, None, :]).view(n, 1, -1).expand(-1, channels, -1)
    return x.reshape(n, channels, -1).gather(2, index).view(n, channels, *size)


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


def _each(x: Tensor, work: Callable[[Any, int], Any], size: Size, threads: bool) -> Tensor:
    """Apply work(image, index) to every image of a uint8 batch."""
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
    out = _each(x, lambda image, i: image.resize(wh, Image.Resampling.BICUBIC, box=tuple(boxes[i])), size, True)
    return torch.where(mirrored[:, None, None, None], out.flip(3), out)


def jitter_draws(n: int, kinds: int, strength: float, rng: Rng) -> tuple[Any, Any]:
    """Per image a factor for each kind, and the order of the kinds."""
    factors = rng.uniform(1 - strength, 1 + strength, (n, kinds))
    return factors, rng.permuted(np.tile(np.arange(kinds), (n, 1)), axis=1)


def colour_jitter(x: Tensor, strength: float, rng: Rng) -> Tensor:
    """Brightness, contrast and saturation by factors in 1 +- strength, in random order."""
    from PIL import ImageEnhance

    kinds = [ImageEnhance.Brightness, ImageEnhance.Contrast] + [ImageEnhance.Color] * (x.shape[1] == 3)
    factors, orders = jitter_draws(len(x), len(kinds), strength, rng)

    def work(image: Any, i: int) -> Any:
        for k in orders[i]:
            image = kinds[k](image).enhance(float(factors[i, k]))
        return image

    return _each(x, work, (x.shape[2], x.shape[3]), True)


def _posterize(image: Any, bits: int, **_: Any) -> Any:
    """timm's posterise may ask for no bits at all, which Pillow 13 refuses and older ones paint black."""
    from PIL import ImageOps

    return image if bits >= 8 else ImageOps.posterize(image, max(1, bits))


def fill_colour(mean: tuple[float, ...]) -> tuple[int, ...]:
    """What turned images show at their corners: the mean colour."""
    return tuple(round(255 * m) for m in mean)


def timm_rand(words: str, size: Size, mean: tuple[float, ...]) -> Any:
    """timm's RandAugment, which reads the words; grey images pass through it as RGB."""
    from PIL import Image
    from timm.data.auto_augment import rand_augment_transform

    fill = fill_colour(mean)
    settings = {
        "translate_const": int(min(size) * 0.45),
        "img_mean": fill * 3 if len(fill) == 1 else fill,
        "interpolation": Image.Resampling.BICUBIC,
    }
    return rand_augment_transform(words, settings)


class PixelStage:
    """uint8 at stored size to augmented uint8 at the network's size."""

    def __init__(self, augment: Augment, size: Size, mean: tuple[float, ...]) -> None:
        self.augment = augment
        self.size = size
        self.borrows = augment.randaugment is not None  # reads the global generators
        self.rand: Any = None
        if augment.randaugment is not None:
            self.rand = timm_rand(augment.randaugment, size, mean)
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
            back = "L" if x.shape[1] == 1 else "RGB"
            with borrowed_seed(seed, "augment", step, "rand"):
                x = _each(x, lambda image, _: self.rand(image.convert("RGB")).convert(back), self.size, False)
        elif how.jitter:
            x = colour_jitter(x, how.jitter, rng)
        return x


class BatchStage:
    """A normalised batch to its final form: erasing, mixing, soft targets."""

    def __init__(self, augment: Augment, classes: int) -> None:
        self.classes = classes
        self.smoothing = augment.smoothing
        self.borrows = augment.erasing > 0 or augment.mixes
        self.erase: Any = None
        self.mix: Any = None
        if augment.erasing:
            from timm.data.random_erasing import RandomErasing

            eraser: Any = RandomErasing  # timm is not fully typed
            self.erase = eraser(augment.erasing, mode="pixel", device="cpu")
        if augment.mixes:
            from timm.data.mixup import Mixup

            mixer: Any = Mixup
            self.mix = mixer(
                augment.mixup,
                augment.cutmix,
                prob=augment.mix_prob,
                switch_prob=augment.switch,
                label_smoothing=augment.smoothing,
                num_classes=classes,
            )

    def _soft(self, y: Tensor) -> Tensor:
        off = self.smoothing / self.classes
        return torch.full((len(y), self.classes), off).scatter_(1, y[:, None], 1 - self.smoothing + off)

    def __call__(self, x: Tensor, y: Tensor, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Images and soft targets of one step."""
        if not self.borrows:
            return x, self._soft(y)
        target = self._soft(y)
        with borrowed_seed(seed, "augment", step, "mix"):
            if self.erase is not None:
                x = self.erase(x)
            even = len(x) // 2 * 2  # timm mixes pairs; an odd last image stays as it is
            if self.mix is not None and even:
                _, target[:even] = self.mix(x[:even], y[:even])
        return x, target
