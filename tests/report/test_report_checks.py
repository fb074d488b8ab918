"""Section 6: every check with numbers that are fine and numbers that are not."""

from __future__ import annotations

import pytest

from tailorvit.report import checks, collect
from tailorvit.report.reading import Epoch, Event, Facts, SpaceStep
from tailorvit.report.result import difference_interval

BASELINE, LIMIT, IMAGES = "Is the network better than the baseline?", "Does the network use its limit?", 1000


def known(test=80.0, baseline=80.0, params=58e3, spaces=(59e3,), events=(), images=IMAGES, **result) -> Facts:
    facts = {
        "test_accuracy": test,
        "baseline": {"test_accuracy": baseline},
        "params": params,
        "limits": {"params": {"max": 60e3}},
        "data": {"counts": {"test": images}, "skipped": 0},
    }
    steps = tuple(SpaceStep(t, {"depth": (1, 2)}, p, 1e9, 3.0, False, t) for t, p in enumerate(spaces))
    return Facts("run", True, result={**facts, **result}, spaces=steps, events=tuple(events))


def answer(facts: Facts, question: str) -> checks.Check:
    (found,) = [c for c in checks.checks(facts) if c.question == question]
    return found


@pytest.mark.parametrize(
    ("test", "fine", "words"),
    [(90.0, True, "Yes: +10.00 points"), (80.5, False, "Not clear: +0.50"), (70.0, False, "No, it is worse: -10.00")],
)
def test_the_difference_to_the_baseline(test, fine, words):
    found = answer(known(test), BASELINE)
    assert found.fine is fine and found.answer.startswith(words) and found.advice


def test_a_delivered_baseline_is_no_question_of_its_own():
    facts = known(chosen="baseline", why="The 60 search images cannot tell them apart.")
    found = answer(facts, "Is the network found better than the baseline?")
    assert not found.fine and found.answer == "No: The 60 search images cannot tell them apart." and found.advice
    assert BASELINE not in [c.question for c in checks.checks(facts)]


def test_the_interval_of_a_difference():
    # Newcombe 1998, Statistics in Medicine 17: 56/70 against 48/80 gives 0.0524 to 0.3339 by method 10.
    # With equal counts, the only case here: 9 of 10 against 3 of 10 gives 0.1705 to 0.8090.
    assert difference_interval(90, 30, 10) == pytest.approx((17.05, 80.90), abs=0.01)
    low, high = difference_interval(50, 50, 100)
    assert low == pytest.approx(-high) and low < 0


@pytest.mark.parametrize(("images", "fine"), [(100, False), (5000, True)])
def test_the_number_of_test_images(images, fine):
    found = answer(known(images=images), "Are there enough test images?")
    assert found.fine is fine and f"{images:,} images" in found.answer and bool(found.advice) is not fine


def test_a_limit_that_is_used():
    found = answer(known(), LIMIT)
    assert found.fine and found.answer == "It uses 97 % of the limit of 60k parameters."


def test_an_idle_limit():
    found = answer(known(params=30e3, spaces=(20e3, 35e3)), LIMIT)
    assert not found.fine and "The largest sub-network of all spaces has 35k: the limit was idle." in found.answer
    found = answer(known(params=30e3), LIMIT)
    assert not found.fine and "idle" not in found.answer and "50 %" in found.answer


def test_a_measured_limit_is_checked_too():
    limits = {"latency": {"max": 0.02}, "params": {"max": None}}
    found = answer(known(limits=limits, latency=0.019), LIMIT)
    assert found.fine and "95 % of the limit of 20 ms (latency)" in found.answer


def test_skipped_images_and_unstable_training_are_named():
    skipped = Event("now", "skipped", "3 unreadable image(s) were skipped, the first: a.jpg.")
    unstable = [Event("now", "skip", "step 3"), Event("now", "rollback", "back"), Event("now", "warning", "odd <b>")]
    facts = known(events=[skipped, *unstable])
    assert "a.jpg" in answer(facts, "Were all images read?").answer
    found = answer(facts, "Was training stable?")
    assert not found.fine and found.answer.startswith("1 step skipped, 1 return to an earlier checkpoint")
    assert answer(facts, "1 warning during the run").answer == "odd <b>"
    assert "odd &lt;b&gt;" in checks.section(facts)
    lost = known(data={"counts": {"test": IMAGES}, "skipped": 2})
    assert answer(lost, "Were all images read?").answer == "2 images could not be read."


def test_a_quiet_run_is_fine():
    facts = known(test=95.0, images=5000)
    assert all(c.fine for c in checks.checks(facts)) and "Was training stable?" not in checks.section(facts)
    trained = Facts("run", False, epochs=(Epoch("final", 1, 1.0),))
    assert [c.question for c in checks.checks(trained)] == ["Was training stable?"]


@pytest.mark.parametrize("kind", ["s4", "s3", "free", "fixed"])
def test_every_kind_of_run(make, kind):
    text = checks.section(collect(make(kind=kind)))
    assert BASELINE in text and "3 images could not be read" in text and text.count("<p>") >= 4


def test_nothing_to_check_yet():
    assert "There is nothing to check yet." in checks.section(Facts("run", False))
    odd = {"limits": {"params": {"max": 0}, "x": {"max": 5}}, "params": "many", "test_accuracy": float("nan")}
    assert checks.checks(Facts("run", True, result=odd)) == []
