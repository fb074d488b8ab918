"""Section 5: curves, confusion, classes and mistakes, from 1 to 1,000 classes, whole and damaged."""

from __future__ import annotations

import base64
import math
import re
import time
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tailorvit.report import collect, training
from tailorvit.report.reading import Analysis, Epoch, Facts
from tailorvit.stats import wilson

PIXEL = "data:image/jpeg;base64," + base64.b64encode(b"not decoded here").decode() + "none"
EVIL = "</svg><script>alert(1)</script><img src=x onerror='a'>\"&'\u202e"


def analysis(classes: int, name: str = "class {}", images: int = 20, wrong: int = 3):
    """Each class of ``images``, ``wrong`` of them taken for the next class."""
    names = [name.format(i) for i in range(classes)]
    wrong = wrong if classes > 1 else 0
    confusion = [[i, i, images - wrong] for i in range(classes)]
    confusion += [[i, (i + 1) % classes, wrong] for i in range(classes) if wrong]
    return {
        "classes": names,
        "test": {
            "count": images * classes,
            "correct": (images - wrong) * classes,
            "confusion": confusion,
            "per_class": [[images, images - wrong]] * classes,
            "mistakes": [
                {
                    "name": f"photos/{i}.jpg",
                    "truth": i % classes,
                    "said": (i + 1) % classes,
                    "probability": 0.97 - i / 100,
                    "truth_probability": 0.02,
                    "picture": PIXEL,
                }
                for i in range(30 if wrong else 0)
            ],
        },
    }


def drawn(facts: Facts):
    """The figures by key, each checked."""
    found = training.figures(facts)
    for figure in found:
        drawing = ElementTree.fromstring(figure.svg)
        width, height = map(float, drawing.get("viewBox").split()[2:])
        for rect in drawing.iter("rect"):
            assert float(rect.get("x")) >= -1 and float(rect.get("x")) + float(rect.get("width")) <= width + 1
            assert float(rect.get("y")) + float(rect.get("height")) <= height + 1
        assert all(len(values) == len(figure.columns) for values in figure.rows), figure.key
        assert not re.search(r"\b(nan|inf|None)\b", figure.svg), figure.key
    assert len({f.key for f in found}) == len(found)
    return {figure.key: figure for figure in found}


def facts(raw) -> Facts:
    return Facts("run", True, analysis=raw)


def tips(figure) -> list[str]:
    return [g.get("data-tip") for g in ElementTree.fromstring(figure.svg).iter("g") if g.get("data-tip")]


def test_curves_have_a_line_a_stage_and_one_colour_a_stage():
    epochs = [Epoch(s, i, 2 / i, 10.0 * i, 1e-3, 500.0) for s in ("supernet-0", "final") for i in range(1, 6)]
    epochs += [Epoch("final", 6, search_accuracy=61.0)]
    epochs += [Epoch("supernet-0", 6, largest=60.0, smallest=50.0)]
    found = drawn(Facts("run", True, epochs=tuple(epochs)))
    assert list(found) == [f"training-{k}" for k in ("loss", "accuracy", "watched", "rate", "speed", "supernets")]
    assert found["training-loss"].legend == (("c0", "supernet 0"), ("c1", "network"))
    assert found["training-watched"].legend == (("c1", "network"),)
    assert found["training-watched"].rows == [("final", 6, 61.0)]
    assert found["training-supernets"].rows == [("supernet-0", "largest", 6, 60.0), ("supernet-0", "smallest", 6, 50.0)]
    assert found["training-loss"].svg.count('class="line c') == 2


def test_a_run_without_epochs_or_analysis_says_so():
    text = training.section(Facts("run", False))
    assert "No epoch has been recorded." in text and "were not recorded" in text
    empty = Facts("run", False, epochs=(Epoch("final", 1),))
    assert "No epoch has a finite loss or accuracy." in training.section(empty)


def test_many_stages_draw_the_last_and_keep_all_numbers():
    epochs = tuple(Epoch(f"supernet-{s}", i, 1.0 / i) for s in range(20) for i in (1, 2))
    figure = drawn(Facts("run", True, epochs=epochs))["training-loss"]
    assert len(figure.legend) == 12 and len(figure.rows) == 40 and "The first 8 stages" in figure.caption


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (1, ["confusion", "class-accuracy"]),
        (2, ["confusion", "class-accuracy", "mistakes"]),
        (10, ["confusion", "class-accuracy", "mistakes"]),
        (30, ["confusion", "class-accuracy", "mistakes"]),
        (31, ["confused-pairs", "confusion-coarse", "class-accuracy", "mistakes"]),
        (102, ["confused-pairs", "confusion-coarse", "class-accuracy", "mistakes"]),
        (121, ["confused-pairs", "class-accuracy", "mistakes"]),
        (1000, ["confused-pairs", "class-accuracy", "mistakes"]),
    ],
)
def test_the_test_images_by_number_of_classes(classes, expected):
    known = facts(analysis(classes))
    start = time.perf_counter()
    assert list(drawn(known)) == expected
    text = training.section(known)
    assert time.perf_counter() - start < 3 and len(text) < 1.5 * 2**20
    assert f"{17 * classes if classes > 1 else 20:,} of {20 * classes:,} test images are classified correctly" in text
    assert ("is not drawn" in text) == (classes > 120)


def test_every_cell_of_a_small_matrix_tells_its_count():
    figure = drawn(facts(analysis(3)))["confusion"]
    assert "class 0 correct: 17 of 20" in tips(figure) and "class 2 predicted as class 0: 3 of 20" in tips(figure)
    assert figure.rows[0] == ("class 0", "class 0", 17) and len(figure.rows) == 6
    drawing = ElementTree.fromstring(figure.svg)
    inks = {r.get("class"): float(r.get("opacity")) for r in drawing.iter("rect") if r.get("opacity")}
    assert inks["bar c0"] == pytest.approx(math.sqrt(17 / 20), abs=0.01)
    assert inks["bar c1"] == pytest.approx(math.sqrt(3 / 20), abs=0.01)


def test_the_most_confused_pairs_come_first():
    raw = analysis(50, wrong=1)
    raw["test"]["confusion"] += [[7, 9, 5], [8, 3, 9]]
    figure = drawn(facts(raw))["confused-pairs"]
    assert tips(figure)[:2] == ["class 8 predicted as class 3: 9 of 29", "class 7 predicted as class 9: 5 of 25"]
    assert len(tips(figure)) == 20 and len(figure.rows) == 102


def test_classes_are_sorted_worst_first_with_intervals():
    raw = analysis(3)
    raw["test"]["per_class"] = [[20, 19], [4, 1], [0, 0]]
    figure = drawn(facts(raw))["class-accuracy"]
    assert [r[:3] for r in figure.rows] == [("class 1", 4, 1), ("class 0", 20, 19), ("class 2", 0, 0)]
    assert figure.rows[0][3:] == pytest.approx(wilson(1, 4)) and "no image" in figure.svg


def test_many_classes_show_worst_and_best_and_keep_all():
    raw = analysis(102)
    raw["test"]["per_class"] = [[102, i] for i in range(102)]
    figure = drawn(facts(raw))["class-accuracy"]
    names = [t.partition(":")[0] for t in tips(figure)]
    assert names == [f"class {i}" for i in (*range(15), *range(87, 102))] and len(figure.rows) == 102


def test_mistakes_show_prediction_truth_and_probability():
    figure = drawn(facts(analysis(2)))["mistakes"]
    assert tips(figure)[0] == "predicted class 1 (97 %), true class class 0 (2 %): photos/0.jpg"
    assert figure.svg.count(f'<image href="{PIXEL}"') == 24 and len(figure.rows) == 30
    assert figure.rows[1] == ("photos/1.jpg", "class 1", "class 0", 0.96, 0.02)


def test_no_mistake_is_a_sentence():
    assert "No test image was misclassified." in training.section(facts(analysis(4, wrong=0)))


class Tags(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs


@pytest.mark.parametrize("classes", [3, 40, 1000])
def test_hostile_names_stay_text_and_bounded(classes):
    raw = analysis(classes, name=EVIL * 100 + "{}")
    for i, mistake in enumerate(raw["test"]["mistakes"]):
        mistake.update(name=EVIL * 200, picture=("javascript:alert(1)", PIXEL + "'", PIXEL)[i % 3])
    known = facts(raw)
    drawn(known)
    text = training.section(known)
    page = Tags(text)
    assert not {"script", "img"} & page.tags and not [k for k, _ in page.attributes if k.startswith("on") or k == "src"]
    assert all(v == PIXEL or v.startswith("data:image/png;base64,") for k, v in page.attributes if k == "href")
    assert "20 of 30 pictures of mistakes are missing or damaged." in text and len(text) < 1.5 * 2**20


NAN = float("nan")
DAMAGES = {
    "confusion of words": (
        "confusion",
        [["a", "b", "c"], [0, 0, 17]],
        "Damaged entries of the confusion matrix, left out: 1.",
    ),
    "confusion outside": (
        "confusion",
        [[0, 99, 1], [-1, 0, 1], [0, 0]],
        "Damaged entries of the confusion matrix, left out: 3.",
    ),
    "confusion nan": (
        "confusion",
        [[NAN, 0, 1], [0, 0, 10**400]],
        "Damaged entries of the confusion matrix, left out: 2.",
    ),
    "confusion short": ("confusion", [[0, 0, 5]], "The confusion matrix holds 5 of 60 test images."),
    "classes more right than there are": (
        "per_class",
        [[2, 3], [5, 5]],
        "Damaged rows of the accuracy per class, left out: 1.",
    ),
    "classes of nothing": ("per_class", [None, [1], "x"], "Damaged rows of the accuracy per class, left out: 3."),
    "mistake without picture": ("mistakes", [{"name": None, "truth": NAN}], "1 of 1 pictures"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_becomes_a_sentence(name):
    key, value, sentence = DAMAGES[name]
    raw = analysis(3)
    raw["test"][key] = value
    drawn(facts(raw))
    assert sentence in training.section(facts(raw))


@pytest.mark.parametrize("raw", [None, 5, [], {"count": "x"}, {"count": NAN, "confusion": {}, "per_class": 3}])
def test_a_part_that_is_no_part(raw):
    known = facts({"test": raw, "classes": 7})
    assert drawn(known) == {}
    assert "The test images" in training.section(known)


def test_counts_missing_are_taken_from_the_matrix():
    raw = {"classes": ["a", "b"], "test": {"confusion": [[0, 0, 3], [1, 0, 1]]}}
    found = Analysis.model_validate(raw).test
    assert found is not None and (found.count, found.correct, found.problems) == (4, 3, ())


def test_counts_without_any_class_are_drawn():
    known = facts({"test": {"confusion": [[0, 0, 3]]}})
    assert list(drawn(known)) == ["confusion"] and "class 0 correct: 3 of 3" in tips(drawn(known)["confusion"])


def test_the_section_of_a_whole_run(make):
    known = collect(make(classes=10))
    assert {"training-loss", "training-rate", "confusion", "class-accuracy", "mistakes"} <= set(drawn(known))
    assert training.section(known).count("<figure") == len(training.figures(known))
