"""Labels weighed by the rarity of their class: through smoothing and mixing, on every path that makes batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from tailorvit.data import open_data
from tailorvit.data.batches import class_weights, weighed
from tailorvit.train.optim import soft_cross_entropy

COUNTS = (80, 16, 4)
LABELS = np.repeat([0, 1, 2], COUNTS)


def test_weights_are_scikit_learns_and_one_in_the_mean():
    weights = class_weights(LABELS, 3)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=LABELS)
    assert weights.numpy() == pytest.approx(expected)
    assert weights[LABELS].mean() == pytest.approx(1)
    assert class_weights(LABELS, 5).tolist() == [*weights.tolist(), 1.0, 1.0], "classes without images"
    assert class_weights(np.repeat([0, 1], 8), 2).tolist() == [1.0, 1.0]


def test_hard_labels_give_torchs_weighted_loss():
    weights, logits = class_weights(LABELS, 3), torch.randn(5, 3)
    y = torch.tensor([0, 2, 1, 0, 0])
    loss = soft_cross_entropy(logits, weighed(torch.eye(3)[y], weights, 0.0))
    assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, y, weights, reduction="sum")) / 5)


def test_mixed_and_smoothed_targets_keep_the_mass_of_their_labels():
    weights, smoothing, share = class_weights(LABELS, 3), 0.3, 0.25
    soft = (1 - smoothing) * torch.eye(3) + smoothing / 3
    mixed = share * soft[0] + (1 - share) * soft[2]
    by_hand = share * weights[0] * soft[0] + (1 - share) * weights[2] * soft[2]
    assert torch.allclose(weighed(mixed[None], weights, smoothing)[0], by_hand, atol=1e-6)
    one = weighed(soft[:1], weights, smoothing)[0]
    assert torch.allclose(one, weights[0] * soft[0]), "a common image does not argue for a rare class"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("uneven") / "uneven.npz"
    x = rng.integers(0, 256, (len(LABELS), 8, 8), dtype=np.uint8)
    np.savez(path, x_train=x, y_train=LABELS, x_test=x[::5], y_test=LABELS[::5])
    return open_data(str(path), seed=0)


@pytest.mark.parametrize("where", ["never", "always"])
@pytest.mark.parametrize("how", [{}, {"smoothing": 0.1, "mixup": 0.8}])
def test_every_batch_is_weighed_by_its_training_images(data, where, how):
    augment = replace(data.augment("none"), **how)
    plain, balanced = (data.train_batches(16, 3, augment, "cpu", where) for _ in range(2))
    steps = plain.steps_per_epoch
    weights = class_weights(plain.reader.labels, 3)
    total = 0.0
    for a, b in zip(plain.iterate(0, steps), balanced.balanced().iterate(0, steps), strict=True):
        assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y)
        assert torch.allclose(b.target, weighed(a.target, weights, augment.smoothing))
        if not how:
            assert torch.allclose(b.target.sum(-1), weights[a.y])
        total += float(b.target.sum())
    assert total == pytest.approx(16 * steps, rel=0.3), "about one an image"
