"""The first sentence of the page: what the user gets, how it compares, what to do next."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from tailorvit.report import collect, render, result
from tailorvit.report.lead import lead
from tailorvit.runs import Run


def changed(folder, **parts):
    with Run.open(folder) as run:
        run.write_json("result", {**run.read_json("result"), **parts})
    return collect(folder)


def words(facts):
    return unescape(re.sub(r"<[^>]*>", "", lead(facts))).strip()


def test_one_sentence_says_what_how_good_and_what_next(make, tmp_path, monkeypatch):
    folder = make()
    monkeypatch.chdir(tmp_path)
    assert words(collect(folder)) == (
        "You get a ViT network with 7M parameters that classifies 63.50 % of the test images correctly, about as many"
        " as the hand-designed baseline (62.25 %); to take it away, run tailorvit export run --to onnx."
    )


def test_it_is_the_first_sentence_of_the_page(make):
    body = re.search(r"<main>(.*?)</main>", render(collect(make())), re.S)[1]
    assert re.search(r"<p[^>]*>(.)", body).group(0) == '<p class="lead">Y'
    assert body.index('class="lead"') < body.index('class="soft"') < body.index("<section")


@pytest.mark.parametrize(
    ("baseline", "said"),
    [
        (50.0, "13.50 points more than the hand-designed baseline (50.00 %)"),
        (80.0, "16.50 points less than the hand-designed baseline (80.00 %)"),
        (63.5, "about as many as the hand-designed baseline (63.50 %)"),
    ],
)
def test_how_it_compares(make, baseline, said):
    assert said in words(changed(make(), baseline={"test_accuracy": baseline}))


def test_without_a_baseline_nothing_is_compared(make):
    assert "correctly; to take it away" in words(changed(make(), baseline={}))


def test_the_best_peer_is_named(make):
    gap = {"difference": 12.6, "low": 6.0, "high": 19.0, "clear": True}
    peers = [
        {"name": "timm:mobilevit_xxs", "test_accuracy": 76.1, "gap": gap, "over": "params 9M > 8M"},
        {"name": "timm:other", "test_accuracy": 40.0},
        {"name": "broken", "test_accuracy": None},
    ]
    said = words(changed(make(), peers=peers))
    assert " and 12.60 points less than mobilevit_xxs of timm, over the limit (76.10 %); to take" in said
    assert "other" not in said
    unclear = [{**peers[0], "over": None, "gap": {**gap, "clear": False}}]
    assert "and about as many as mobilevit_xxs of timm (76.10 %)" in words(changed(make(name="tie"), peers=unclear))
    assert words(changed(make(name="odd"), peers="none")).startswith("You get")


def test_a_delivered_baseline_is_not_compared_with_itself(make):
    said = words(changed(make(), chosen="baseline"))
    assert said.startswith(
        "You get the hand-designed ViT network with 7M parameters (the search found nothing clearly better) that"
        " classifies 63.50 % of the test images correctly; to take it away"
    )


def test_the_folder_is_quoted_as_a_shell_needs_it(make, tmp_path, monkeypatch):
    folder = make(name="my <b> run's")
    monkeypatch.chdir(tmp_path)
    text = lead(collect(folder))
    assert "<b>" not in text
    assert "tailorvit export 'my <b> run'\"'\"'s' --to onnx." in unescape(re.sub(r"</?(p|code)[^>]*>", "", text))


def test_the_folder_as_it_was_given(make, tmp_path, monkeypatch):
    folder = make()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert "export ../run --to" in words(collect(Path("../run")))
    assert f"export {folder} --to" in words(collect(folder)), "from elsewhere the whole path is needed"


@pytest.mark.parametrize("how", [{"finished": False}, {"failed": True}])
def test_an_unfinished_run_promises_nothing(make, how):
    facts = collect(make(**how))
    assert lead(facts) == "" and 'class="lead"' not in render(facts)


def test_an_uneven_interval_is_shown_by_its_ends(make):
    """Wilson's interval of 0 of 21 images is 0 to 15.5 %, not 0 and something to both sides."""
    facts = changed(make(with_analysis=False), test_accuracy=0.0, data={"counts": {"test": 21}})
    text = result.section(facts)
    assert "0.00 % of the test images correctly (95 % interval 0.0 to 15.5 %, 21 images)" in text
    assert "±" not in render(facts)


@pytest.mark.parametrize(
    "before, said",
    [
        (20.0, "43.50 points more than before fine-tuning (20.00 %)"),
        (63.0, "about as many as before fine-tuning (63.00 %)"),
        (None, "correctly; to take it away"),
    ],
)
def test_a_fine_tuned_network_is_compared_with_itself(make, before, said):
    folder = make()
    facts = changed(folder, method="finetune", baseline=None, start={"image_size": [8, 8], "test_accuracy": before})
    assert words(facts).startswith("You get a ViT network") and said in words(facts)
