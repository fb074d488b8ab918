"""What few images can tell and what they cannot: sentences for a run and its report."""

from __future__ import annotations

import numpy as np

from tailorvit.data import Data
from tailorvit.methods.finish import FEW_IMAGES
from tailorvit.stats import paired_difference, wilson

FEW_OF_A_CLASS = 5  # training images
USUAL = 0.9  # the accuracy that a sentence takes as its example


def doubts(data: Data) -> list[str]:
    """A sentence for classes with few training images, and one for a small search split."""
    return [*_small_classes(data), *_small_search(data.counts["search"])]


def _small_classes(data: Data) -> list[str]:
    count = np.bincount(data.labels("train"), minlength=len(data.classes))
    few = np.flatnonzero(count < FEW_OF_A_CLASS)
    if not len(few):
        return []
    least = int(few[count[few].argmin()])
    name, images = f"'{data.classes[least]}'", f"{count[least]} training image{'s' if count[least] != 1 else ''}"
    others = f", and {len(few) - 1} more classes have fewer than {FEW_OF_A_CLASS}" if len(few) > 1 else ""
    return [f"Class {name} has {images}{others}: what a network learns of such a class is mostly chance."]


def _small_search(images: int) -> list[str]:
    if images >= FEW_IMAGES:
        return []
    low, high = wilson(USUAL * images, images)
    apart = clearly_apart(images)
    told = "no two networks can be told apart" if apart is None else f"networks that are less than {apart:.1f} points "
    told += "" if apart is None else "apart count as equally good"
    return [
        f"There are {images} search images to choose by: one of them is {100 / images:.1f} points, an accuracy of "
        f"{100 * USUAL:.0f} % is known to lie between {100 * low:.0f} and {100 * high:.0f} %, and {told}."
    ]


def clearly_apart(images: int) -> float | None:
    """Points by which two networks must differ to be told apart, at the best; None where so few images never can."""
    every = np.ones(images, dtype=bool)
    for wrong in range(1, images + 1):
        if paired_difference(every, np.arange(images) >= wrong).clear:
            return 100 * wrong / images
    return None
