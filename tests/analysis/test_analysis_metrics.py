"""The figures beside accuracy against scikit-learn's, and top-5 accuracy against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import balanced_accuracy_score, f1_score, top_k_accuracy_score

from tailorvit.analysis import metrics
from tailorvit.analysis.metrics import BINS, calibration_error
from tailorvit.analysis.predictions import predict


def found(classes: int, images: int = 400, seed: int = 0):
    """Predictions of made-up scores that are often right, of classes that are not equally frequent."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(classes, images, p=np.arange(1, classes + 1) / np.arange(1, classes + 1).sum())
    logits = rng.normal(0, 1.5, (images, classes)) + 2 * np.eye(classes)[truth]
    batches = [(torch.tensor(a), torch.tensor(b)) for a, b in zip(np.array_split(logits, 7), np.array_split(truth, 7))]
    return predict(lambda x: x, batches, "cpu"), truth, logits


def test_they_are_scikit_learns():
    got, truth, logits = found(9)
    said = logits.argmax(-1)
    figures = metrics(got, 9)
    assert figures["top5_accuracy"] == pytest.approx(100 * top_k_accuracy_score(truth, logits, k=5))
    assert figures["macro_f1"] == pytest.approx(100 * f1_score(truth, said, average="macro"))
    assert figures["balanced_accuracy"] == pytest.approx(100 * balanced_accuracy_score(truth, said))
    assert figures["balanced_accuracy"] != pytest.approx(100 * (truth == said).mean())
    assert 100 * (truth == said).mean() < figures["top5_accuracy"] < 100


def test_the_calibration_error_is_the_weighed_sum_over_scikit_learns_bins():
    got, truth, _ = found(4)
    right, sure = truth == got.predicted, got.probability.astype(np.float64)
    accuracies, confidences = calibration_curve(right, sure, n_bins=BINS)
    filled = np.bincount(np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], sure), minlength=BINS)
    filled = filled[filled > 0]
    expected = (filled * np.abs(accuracies - confidences)).sum() / len(truth)
    assert metrics(got, 4)["calibration_error"] == pytest.approx(100 * expected, abs=5e-4)
    assert 0.5 < 100 * expected < 30


def test_a_calibrated_and_a_boastful_network():
    sure = np.full(10, 0.8, np.float32)
    right = np.arange(10) < 8
    assert calibration_error(sure, right) == pytest.approx(0, abs=1e-5)
    assert calibration_error(np.ones(10, np.float32), right) == pytest.approx(20)
    assert calibration_error(np.zeros(1, np.float32), np.array([True])) == 100


@pytest.mark.parametrize("classes", [2, 5, 6])
def test_top_5_is_given_of_more_than_five_classes(classes):
    assert ("top5_accuracy" in metrics(found(classes)[0], classes)) is (classes > 5)


def test_classes_without_images_do_not_count_and_no_images_give_no_figures():
    got, *_ = found(3)
    alone = got._replace(
        **{k: getattr(got, k)[got.truth == 2] for k in got._fields if isinstance(getattr(got, k), np.ndarray)}
    )
    assert metrics(alone, 3)["balanced_accuracy"] == pytest.approx(100 * (alone.predicted == 2).mean())
    assert metrics(predict(lambda x: x, [], "cpu"), 3) == {}
