"""The figures of a network beside its accuracy, from its predictions on labelled images; all are percent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tailorvit.analysis.predictions import TOP, Predictions
from tailorvit.data.splits import Ints

BINS = 15  # of equal width, as in Guo et al. (2017)


def metrics(predictions: Predictions, classes: int) -> dict[str, float]:
    """Top-5 accuracy (of more than five classes), macro-F1, balanced accuracy, calibration error; empty without images.

    Averages over classes are over those that have images.
    """
    if not len(predictions.truth):
        return {}
    recall, f1 = class_averages(predictions.truth, predictions.predicted)
    found = {"top5_accuracy": 100 * float(predictions.among_top.mean())} if classes > TOP else {}
    correct = predictions.truth == predictions.predicted
    return {
        **found,
        "macro_f1": f1,
        "balanced_accuracy": recall,
        "calibration_error": calibration_error(predictions.probability, correct),
    }


def class_averages(truth: Ints, predicted: Ints) -> tuple[float, float]:
    """Recall and F1, each averaged over the classes with images; the mean recall is the balanced accuracy."""
    from sklearn.metrics import precision_recall_fscore_support

    present = np.unique(truth)
    _, recall, f1, _ = precision_recall_fscore_support(
        truth, predicted, labels=present, average="macro", zero_division=0
    )
    return 100 * float(recall), 100 * float(f1)


def calibration_error(confidence: NDArray[np.floating], correct: NDArray[np.bool_]) -> float:
    """The expected calibration error: how far confidence and accuracy lie apart, bin by bin, weighed by images.

    Confidence is the probability of the predicted class. scikit-learn has the bins (calibration_curve) but not the sum.
    Rounded, as probabilities differ in their last digits with the number of images that are evaluated at once.
    """
    edges = np.linspace(0, 1, BINS + 1)
    place = np.searchsorted(edges[1:-1], confidence)
    gaps = np.bincount(place, weights=confidence - correct.astype(np.float64), minlength=BINS)
    return round(100 * float(np.abs(gaps).sum()) / len(confidence), 3)
