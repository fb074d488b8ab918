"""Figures of segmentation from one table: how many pixels of each class were taken for each class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tailorvit.tasks.mask_files import Classes

Counts = NDArray[np.int64]  # (true class, predicted class)


def pixel_counts(truth: Classes, predicted: Classes, classes: int) -> Counts:
    """Pixels by true and predicted class; those whose truth is no class count for nothing."""
    counted = truth < classes
    index = truth[counted].astype(np.int64) * classes + predicted[counted]
    found: Counts = np.bincount(index, minlength=classes**2).reshape(classes, classes)
    return found


def figures(counts: Counts, classes: Sequence[str]) -> dict[str, float]:
    """Mean IoU, mean accuracy, pixel accuracy and the IoU of every class, in percent.

    A class that is neither true nor predicted anywhere has no IoU and enters no mean; one that is never true has no
    accuracy.
    """
    right = np.diag(counts).astype(np.float64)
    true, union = counts.sum(1), counts.sum(1) + counts.sum(0) - np.diag(counts)
    iou = 100 * right[union > 0] / union[union > 0]
    names = [name for name, pixels in zip(classes, union) if pixels]
    return {
        "miou": float(iou.mean()) if len(iou) else 0.0,
        "mean_accuracy": float((100 * right[true > 0] / true[true > 0]).mean()) if true.any() else 0.0,
        "pixel_accuracy": float(100 * right.sum() / max(counts.sum(), 1)),
        **{f"iou/{name}": float(value) for name, value in zip(names, iou)},
    }
