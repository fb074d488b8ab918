"""Augmentation as a value: what is done to training images, and the presets."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from tailorvit.data.images import checked_size
from tailorvit.errors import TailorError, unknown

PRESETS = ("auto", "mild", "none", "standard")
# Sources whose pictures change their meaning in the mirror.
_WRITTEN = ("digits", "mnist", "svhn", "gtsrb", "omniglot", "usps", "semeion")
_RAND = re.compile(r"rand(-(m|n|inc|mmax)\d+|-(mstd|p)\d+(\.\d+)?|-t[a-z]+)*")


@dataclass(frozen=True)
class Augment:
    """What is done to a training batch; the defaults do nothing."""

    crop_pad: int = 0  # random shift by up to this many pixels
    flip: bool = False
    randaugment: str | None = None  # timm's words, such as rand-m9-mstd0.5-inc1
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
    """A preset by name: none, mild, standard (DeiT's recipe), or auto, which looks at image size and image count."""
    side = min(checked_size(image_size))
    photo = channels == 3 and not any(word in source.lower() for word in _WRITTEN)
    if name == "none":
        return Augment()
    if name == "mild" and side < 16:
        # One pixel is an eighth of an 8 px digit: a shift cost 2.5 points in 40 epochs, mixup gained 0.8 (docs/log.md).
        return Augment(flip=photo, mixup=0.2, smoothing=0.1)
    if name == "mild":
        return Augment(crop_pad=max(1, side // 8), flip=photo, smoothing=0.1)
    standard = Augment(
        flip=photo,
        randaugment="rand-m9-mstd0.5-inc1",
        erasing=0.25,
        mixup=0.8,
        cutmix=1.0,
        smoothing=0.1,
        scale=(0.08, 1.0),
        jitter=0.4,
    )
    if name == "standard":
        return standard
    if name == "auto":
        if side < 48 or (images is not None and images < 5000):
            return augment_preset("mild", image_size, source, channels=channels)
        return replace(standard, scale=(0.3, 1.0))
    raise unknown("augmentation preset", name, PRESETS)
