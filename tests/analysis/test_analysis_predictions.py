"""Confusion, classes, mistakes, the choice of images, thumbnails and names."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from analysis_tools import opened

from tailorvit.analysis.predictions import (
    Predictions,
    confident_mistakes,
    confusion,
    images_to_show,
    per_class,
    predict,
    shown_name,
    summary,
    thumbnail,
)
from tailorvit.analysis.settings import AnalysisSettings
from tailorvit.errors import TailorError


def ints(*values):
    return np.array(values, dtype=np.int64)


def predictions(truth, said, sure=None):
    sure = np.array([0.5] * len(truth) if sure is None else sure, dtype=np.float32)
    return Predictions(ints(*truth), ints(*said), sure, 1 - sure, np.ones(len(truth), dtype=bool))


# -- counts -----------------------------------------------------------------------------------------------------------


def test_a_planted_confusion():
    truth, said = ints(0, 0, 0, 1, 1, 3), ints(0, 2, 2, 1, 0, 3)
    assert confusion(truth, said) == [[0, 0, 1], [0, 2, 2], [1, 0, 1], [1, 1, 1], [3, 3, 1]]
    assert per_class(truth, said, 5) == [[3, 1], [2, 1], [0, 0], [1, 1], [0, 0]]
    facts = summary(predictions(truth, said), 5)
    assert (facts["count"], facts["correct"]) == (6, 3)
    assert json.loads(json.dumps(facts)) == facts


def test_one_class_and_nothing_at_all():
    assert confusion(ints(0, 0), ints(0, 0)) == [[0, 0, 2]] and per_class(ints(0, 0), ints(0, 0), 1) == [[2, 2]]
    assert summary(predictions([], []), 2) == {"count": 0, "correct": 0, "confusion": [], "per_class": [[0, 0], [0, 0]]}
    assert len(predict(lambda x: x, [], "cpu").truth) == 0


def test_predictions_stream_in_order_with_float32_probabilities():
    logits = torch.tensor([[0.0, 2.0, 0.0], [5.0, 1.0, 1.0], [0.0, 0.0, 9.0]])
    labels = torch.tensor([1, 2, 0])
    asked = []

    def model(x):
        asked.append(len(x))
        return x.bfloat16()

    found = predict(model, zip(logits.split(2), labels.split(2)), "cpu")
    assert asked == [2, 1], "one pass"
    assert found.predicted.tolist() == [1, 0, 2] and found.truth.tolist() == [1, 2, 0] and found.not_finite == 0
    exact = logits.softmax(-1).tolist()
    assert found.probability.tolist() == pytest.approx([exact[0][1], exact[1][0], exact[2][2]])
    assert found.truth_probability.tolist() == pytest.approx([exact[0][1], exact[1][2], exact[2][0]])
    assert found.probability.dtype == np.float32


def test_predictions_that_are_not_finite_are_counted():
    logits = torch.tensor([[float("nan"), 0.0], [1.0, 0.0], [float("inf"), 0.0]])
    found = predict(lambda x: x, [(logits, torch.tensor([1, 0, 0]))], "cpu")
    assert found.not_finite == 2
    assert np.isfinite(found.probability).all() and np.isfinite(found.truth_probability).all()


# -- choices ----------------------------------------------------------------------------------------------------------


def test_the_most_confident_mistakes_come_first():
    found = predictions([0, 0, 0, 1, 1], [1, 1, 0, 0, 0], [0.6, 0.9, 0.99, 0.9, 0.7])
    assert confident_mistakes(found, 3) == [1, 3, 4]
    assert confident_mistakes(found, 100) == [1, 3, 4, 0] and confident_mistakes(found, 0) == []
    assert confident_mistakes(predictions([0, 1], [0, 1]), 5) == []


def test_images_are_right_and_wrong_of_different_classes_and_spread():
    truth = np.repeat(np.arange(10), 20)
    said = np.where(np.arange(200) % 5 == 0, (truth + 1) % 10, truth)
    chosen = images_to_show(truth, said, 4)
    assert [truth[i] == said[i] for i in chosen] == [True, False, True, False]
    assert len({truth[i] for i in chosen}) == 4
    assert all(abs(i - goal) < 20 for i, goal in zip(chosen, (25, 75, 125, 175), strict=True))
    assert chosen == images_to_show(truth, said, 4)


def test_images_when_there_is_little_to_choose_from():
    right = ints(0, 0, 0, 0)
    assert sorted(images_to_show(right, right, 9)) == [0, 1, 2, 3]
    assert images_to_show(right, 1 - right, 2) == [1, 3], "all wrong: nearest to a quarter and to three quarters"
    assert images_to_show(right, right, 0) == [] and images_to_show(ints(), ints(), 3) == []


# -- pictures and names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_small_pictures_keep_every_pixel(channels):
    pixels = np.random.default_rng(0).integers(0, 256, (channels, 64, 40), dtype=np.uint8)
    image = opened(thumbnail(pixels))
    back = np.asarray(image)
    assert image.format == "PNG"
    np.testing.assert_array_equal(back[None] if channels == 1 else back.transpose(2, 0, 1), pixels)
    assert thumbnail(pixels) == thumbnail(pixels)


@pytest.mark.parametrize(
    ("size", "shown"), [((65, 65), (65, 65)), ((224, 224), (128, 128)), ((100, 400), (32, 128)), ((3000, 2), (128, 1))]
)
def test_large_pictures_become_small_jpegs(size, shown):
    image = opened(thumbnail(np.full((3, *size), 77, np.uint8)))
    assert image.format == "JPEG" and (image.height, image.width) == shown
    assert abs(int(np.asarray(image).mean()) - 77) <= 1


def test_names_are_relative_to_their_source(monkeypatch, tmp_path):
    root = str(tmp_path / "pets")
    assert shown_name(f"{root}/test/cat/1.png", root) == "test/cat/1.png"
    assert shown_name(f"{root}/cat/1.png", root + "/") == "cat/1.png"
    assert shown_name("data/cat/1.png", "data") == "cat/1.png"
    assert shown_name("/elsewhere/secret/cat/1.png", root) == "1.png"
    assert shown_name(root + "-2/cat/1.png", root) == "1.png", "a longer name is another folder"
    assert shown_name("test[3]", "digits") == "test[3]"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert shown_name(f"{root}/cat/1.png", "~/pets") == "cat/1.png"


def test_names_that_are_no_utf8_stay_text():
    name = os.fsdecode(b"data/\xff<b>&\"'.png")
    shown = shown_name(name, "data")
    assert shown == "�<b>&\"'.png" and shown.encode("utf-8")


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["samples", "images", "mistakes"])
@pytest.mark.parametrize("value", [-1, 10**9, 2.0, True, "4", None])
def test_settings_are_checked_at_birth(name, value):
    with pytest.raises(TailorError, match=rf"^analysis\.{name} must be a whole number from 0 to \d+, not {value}\.$"):
        AnalysisSettings(**{name: value})


def test_settings_have_defaults_and_may_be_zero():
    assert AnalysisSettings() == AnalysisSettings(samples=60, images=4, mistakes=24)
    assert AnalysisSettings(0, 0, 0).images == 0
