"""What a run of few images says about itself."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import tailorvit
from tailorvit.methods.small_data import clearly_apart, doubts
from tailorvit.runs import Run
from tailorvit.stats import paired_difference


def data(counts, search):
    labels = np.repeat(np.arange(len(counts)), counts)
    return SimpleNamespace(
        classes=tuple("abcdef"[: len(counts)]), counts={"search": search}, labels=lambda split: labels
    )


def test_enough_images_need_no_sentence():
    assert doubts(data([5, 5, 40], 500)) == []


def test_few_search_images_say_how_little_they_tell():
    (sentence,) = doubts(data([20, 20], 120))
    assert "120 search images" in sentence and "one of them is 0.8 points" in sentence
    assert "between 83 and 94 %" in sentence and f"less than {clearly_apart(120):.1f} points apart" in sentence
    (least,) = doubts(data([20, 20], 2))
    assert "no two networks can be told apart" in least and sentence.count(". ") == least.count(". ") == 0


@pytest.mark.parametrize("images", [3, 10, 40, 120, 499])
def test_the_smallest_clear_difference_is_the_one_of_the_choice(images):
    points = clearly_apart(images)
    every, wrong = np.ones(images, dtype=bool), images if points is None else round(points * images / 100)
    for more, clear in ((0, points is not None), (-1, False)):
        assert paired_difference(every, np.arange(images) >= wrong + more).clear is clear


def test_classes_of_few_images_are_named():
    (one,) = doubts(data([20, 4, 20], 600))
    assert one == "Class 'b' has 4 training images: what a network learns of such a class is mostly chance."
    (several,) = doubts(data([3, 1, 20, 4], 600))
    assert several.startswith("Class 'b' has 1 training image, and 2 more classes have fewer than 5: ")


def test_result_report_and_log_of_a_pretrained_network_say_it(tmp_path):
    settings = ["analysis.images=0", "analysis.mistakes=0", "data.limit=30", "train.epochs=1", "tailor.epochs=1"]
    result = tailorvit.run(
        "tailor", start="random:tiny", data="digits", settings=settings, out=tmp_path / "run", progress="quiet"
    )
    few, search = result["doubts"]
    assert few.startswith("Class ") and "3 training images, and 9 more classes" in few and "30 search images" in search
    with Run.open(tmp_path / "run", lock=False) as run:
        assert {few, search} <= {e["text"] for e in run.events("data")}
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "30 search images to choose by" in page and "mostly chance" in page
