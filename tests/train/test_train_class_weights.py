"""Balanced class weights: rare classes are found more often, in every kind of training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import recall_score
from torch.nn.functional import cross_entropy
from train_toys import SPACE, Store, Toys, gradients, plain, same, settings, supernet, weights

from tailorvit.data import open_data
from tailorvit.data.batches import weighed
from tailorvit.errors import TailorError
from tailorvit.train import Fixed, Sandwich, Teacher, class_scores, train
from tailorvit.train import loop as loop_module

COUNTS = (240, 60, 20)  # training images of a class


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three shades of grey that overlap; the test images are as many of each class."""
    rng, parts = np.random.default_rng(0), {}
    for part, counts in (("train", COUNTS), ("test", (60, 60, 60))):
        y = np.repeat(np.arange(3), counts)
        x = rng.normal(0, 70, (len(y), 4, 4)) + rng.normal(0, 18, (len(y), 1, 1)) + 80 + 35 * y[:, None, None]
        parts |= {f"x_{part}": np.clip(x, 0, 255).astype(np.uint8), f"y_{part}": y}
    path = tmp_path_factory.mktemp("shades") / "shades.npz"
    np.savez(path, **parts)
    found = open_data(str(path), seed=0)
    found.unseal_test("a test")
    return found


def trained(data, balanced, teacher=None, epochs=8):
    network, chosen = plain(), settings(epochs=epochs, lr=5e-3)
    batches = data.train_batches(32, 1, data.augment("mild"), "cpu")
    train(network, batches.balanced() if balanced else batches, Fixed(), chosen, 3, teacher=teacher)
    return network.eval()


def recalls(model, data):
    scores, truth = class_scores(model, data.eval_batches("test", 200))
    return recall_score(truth, scores.argmax(-1), average=None, labels=[0, 1, 2])


@pytest.mark.parametrize("kind", ["eager", "recorded"])
def test_balanced_accuracy_improves(data, kind, monkeypatch):
    if kind == "recorded":  # on a CPU a recording is the work itself
        monkeypatch.setattr(loop_module, "can_record", lambda *_: True)
    found = [recalls(trained(data, balanced), data) for balanced in (False, True)]
    assert found[1].mean() > found[0].mean() + 0.05, found
    assert found[1][2] > found[0][2], "the rarest class is found more often"


def test_the_gradients_of_a_sandwich_are_those_of_torchs_weighted_loss():
    model, batch, by_class = supernet(), Toys().at(0), torch.tensor([0.25, 1.0, 4.0])
    archs = Sandwich(SPACE).archs_at(0, 0)
    found = gradients(model, archs, settings(clip=0), batch._replace(target=weighed(batch.target, by_class, 0.0)))
    model.zero_grad()
    losses = [cross_entropy(model(batch.x, arch), batch.y, by_class, reduction="sum") / len(batch.y) for arch in archs]
    sum(losses).backward()
    assert found.pop("loss") == pytest.approx(float(sum(losses)) / len(archs), rel=1e-5)
    for name, p in model.named_parameters():
        if p.grad is not None:
            assert torch.allclose(found[name], p.grad, atol=1e-6), name


def test_what_a_teacher_says_is_not_weighed(data):
    """A student that learns from its teacher alone is the same with and without weights."""
    teacher = Teacher(trained(data, False, epochs=1), share=1.0)
    ends = [weights(trained(data, balanced, teacher=teacher, epochs=1)) for balanced in (False, True)]
    assert same(*ends)
    half = Teacher(teacher.network, share=0.5)
    ends = [weights(trained(data, balanced, teacher=half, epochs=1)) for balanced in (False, True)]
    assert not same(*ends)


def test_equal_classes_weigh_one(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (96, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "even.npz", x_train=x, y_train=np.arange(96) % 3, x_test=x[:9], y_test=np.arange(9) % 3)
    even = open_data(str(tmp_path / "even.npz"), seed=0)
    batches = [even.train_batches(16, 1, even.augment("none"), "cpu") for _ in range(2)]
    for a, b in zip(batches[0].iterate(0, 4), batches[1].balanced().iterate(0, 4), strict=True):
        assert torch.allclose(a.target, b.target, atol=1e-6)


def test_a_training_without_class_labels_has_none_to_weigh():
    options = settings(class_weights="balanced")
    with pytest.raises(TailorError, match=r"train\.class_weights weighs the labels of whole images"):
        train(plain(), Toys(), Fixed(), options, 0, Store(), objective=lambda x, y, target: x.sum())
