"""Settings of a training: the learning rate is a pure function of the step, and mistakes are one sentence."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tailorvit.errors import TailorError
from tailorvit.train import TrainSettings


def test_the_learning_rate_warms_up_and_falls_as_a_cosine():
    s = TrainSettings(epochs=10, lr=1e-2, min_lr=1e-4, warmup=2)
    rates = [s.lr_at(step, 5) for step in range(50)]
    assert rates[0] == pytest.approx(1e-6 + (1e-2 - 1e-6) / 10)
    assert rates[9] == pytest.approx(1e-2) and rates[10] == pytest.approx(1e-2)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[30] == pytest.approx((1e-2 + 1e-4) / 2)  # half way between warm-up and end
    assert 1e-4 <= rates[-1] < 2e-4
    assert s.lr_at(10**6, 5) == pytest.approx(1e-4), "stays at the floor past the end"
    assert all(0 < r <= 1e-2 for r in rates)


def test_without_warm_up_the_first_step_has_the_full_learning_rate():
    s = TrainSettings(epochs=4, lr=3e-3, warmup=0, min_lr=0)
    assert s.lr_at(0, 7) == pytest.approx(3e-3)
    assert s.lr_at(28, 7) == pytest.approx(0, abs=1e-12)


def test_a_warm_up_longer_than_the_training_never_reaches_the_peak():
    s = TrainSettings(epochs=1, lr=1e-2, warmup=4)
    rates = [s.lr_at(i, 10) for i in range(10)]
    assert rates == sorted(rates) and rates[-1] < 1e-2 / 3


def test_a_constant_learning_rate_stays():
    s = TrainSettings(epochs=4, lr=1e-5, warmup=1, schedule="constant")
    rates = [s.lr_at(step, 5) for step in range(20)]
    assert rates[:5] == sorted(rates[:5]) and rates[0] < 1e-5
    assert rates[5:] == [1e-5] * 15
    assert TrainSettings(epochs=4, lr=1e-5, warmup=0, schedule="constant").lr_at(0, 5) == 1e-5


def test_a_linear_learning_rate_falls_by_the_same_step_to_its_end():
    s = TrainSettings(epochs=5, lr=6e-5, min_lr=1e-5, warmup=1, schedule="linear")
    rates = [s.lr_at(step, 4) for step in range(20)]
    assert rates[:4] == sorted(rates[:4])
    assert rates[3] == pytest.approx(6e-5) and rates[4] == pytest.approx(6e-5)
    assert [a - b for a, b in pairwise(rates[4:])] == pytest.approx([5e-5 / 16] * 15)
    assert s.lr_at(20, 4) == s.lr_at(10**6, 4) == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epochs", 0),
        ("batch", -1),
        ("lr", 0),
        ("lr", -1.0),
        ("lr", float("nan")),
        ("min_lr", -1.0),
        ("warmup", -1.0),
        ("weight_decay", -0.1),
        ("drop_path", 1.0),
        ("drop_path", -0.1),
        ("clip", -1.0),
    ],
)
def test_wrong_values_are_named(key, value):
    with pytest.raises(TailorError, match=rf"train\.{key}.*\.$"):
        TrainSettings(**{key: value})
