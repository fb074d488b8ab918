"""The report: complete, half-finished, damaged, hostile and large runs."""

from __future__ import annotations

import re
import sqlite3
import time
from html.parser import HTMLParser

import pytest

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.report import collect, render, write_report
from tailorvit.report.sections import answer
from tailorvit.runs import Run

VOID = {"meta", "path", "circle", "rect", "br"}


class Checker(HTMLParser):
    """Collects tags and attributes and checks that every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, k, v) for k, v in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, k, v) for k, v in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_full_run_tells_everything_in_order(make):
    folder = make()
    path = write_report(folder)
    assert path == folder / "report.html"
    text = path.read_text()
    checker = Checker(text)
    assert checker.tags.count("svg") >= 4 + 2 + 1 + 1 + 2, "4 dimensions, 2 steps of slopes, front, generations, curves"
    titles = re.findall(r"<h2>(\d)\. ", text)
    assert titles == list("1234567")
    for words in (
        "params at most 8M",
        "It is right on 63.50 % of the test images.",
        "1.25 points more than the hand-designed baseline (7.9M parameters) in this one run",
        "The work took 1 min 15 s.",
        "Moved depth down and embed up: cosine 0.90.",
        "depth -1, embed +1",
        "from 40 pairs each",
        "Best and median per generation",
        "3 images could not be read",
        "tailorvit search &#x27;my data&#x27;",
        "abc123",
        "# recipe",
        "75.0 %",
        "repair",
    ):
        assert words in text, words
    assert "not complete" not in text
    assert not re.search(r"\b(nan|inf|None)\b", text)


def test_nothing_is_fetched_and_nothing_runs(make):
    text = write_report(make()).read_text()
    assert not re.search(r"https?://|url\(|@import", text)
    checker = Checker(text)
    assert not {"script", "img", "link", "iframe", "a", "object", "base"} & set(checker.tags)
    assert not [a for a in checker.attributes if a[1] in ("src", "href") or a[1].startswith("on")]
    assert "prefers-color-scheme:dark" in text and 'name="viewport"' in text


def test_hostile_names_stay_text(make):
    evil = "</pre></svg><script>alert(1)</script><img src=x onerror='a'>\"'&\udcff"
    # SQLite cannot hold lone surrogates in a name, files can; what reaches the database leaves the last byte out.
    folder = make(evil=evil[:-1])
    (folder / "recipe.toml").write_bytes(evil.encode("utf-8", "surrogateescape"))
    text = write_report(folder).read_text("utf-8")
    checker = Checker(text)
    assert not {"script", "img"} & set(checker.tags)
    assert not [a for a in checker.attributes if a[1] in ("src", "onerror")]
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 7


def test_a_finding_worse_than_the_baseline_says_so(make):
    folder = make()
    with Run.open(folder) as run:
        run.write_json("result", {**run.read_json("result"), "test_accuracy": 60.0})
    assert "2.25 points less than" in answer(collect(folder))


def test_half_finished(make):
    folder = make(finished=False)
    facts = collect(folder)
    assert not facts.finished and facts.missing == ("The run has not finished: no result yet.",)
    text = render(facts)
    Checker(text)
    assert "The best of 6 trials so far reached" in text and "No network has been chosen yet." in text


def test_a_run_still_being_written(tmp_path):
    with Run.create(tmp_path / "run", "", {}) as run:
        Checker(render(collect(run.folder)))
        run.record_trials("search", [{"arch": Arch("vit", depth=1), "accuracy": 42.0}])
        assert [t.accuracy for t in collect(run.folder).trials] == [42.0]


def test_an_empty_run(tmp_path):
    Run.create(tmp_path / "run", "", {}).close()
    text = write_report(tmp_path / "run").read_text()
    Checker(text)
    for words in ("no result yet", "No space has", "No trial has", "No epoch has", "Nothing out of the ordinary"):
        assert words in text


def test_damaged_parts_become_sentences(make):
    folder = make()
    (folder / "run.db").write_bytes(b"not a database" * 500)
    (folder / "info.json").write_text("{")
    facts = collect(folder)
    assert len(facts.missing) == 2
    assert facts.missing[0].startswith("info.json is damaged")
    assert "run.db' cannot be used" in facts.missing[1]
    text = render(facts)
    Checker(text)
    assert "63.50 %" in text, "what result.json holds is still told"
    assert "Choices of depth at each step" in text, "and so is the path of the space it repeats"
    (folder / "run.db").unlink()
    (folder / "result.json").write_text('{"arch"')
    facts = collect(folder)
    assert "The file result.json is damaged." in facts.missing and not facts.finished
    Checker(render(facts))


def test_one_damaged_row_costs_its_table_only(make):
    folder = make()
    link = sqlite3.connect(folder / "run.db")
    link.execute("UPDATE epochs SET facts='{' WHERE epoch=2")
    link.commit()
    link.close()
    facts = collect(folder)
    assert facts.epochs == () and len(facts.trials) == 66
    assert any("damaged" in sentence for sentence in facts.missing)
    Checker(render(facts))


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"arch": "none", "limits": 3, "baseline": [], "parts": "x", "seconds": None, "spaces": {"t": 1}},
        {"arch": {"family": "s3", "depth.0": 2, "heads.0": [1, 2], "heads.1": []}, "params": "many", "macs": None},
        {"params": 1e400, "test_accuracy": True, "parts": [3, {"part": None}], "spaces": [{}, 4], "method": None},
        {"limits": {"latency": {"max": 0.012}, "x": 1, "macs": {"min": "a"}}, "seconds": {"a": "b", "c": 3}},
    ],
)
def test_odd_results_render(tmp_path, result):
    with Run.create(tmp_path / "run", "", {"seed": None, "versions": 4, "command": 7}) as run:
        run.write_json("result", result)
    Checker(write_report(tmp_path / "run").read_text())


def test_not_a_run(tmp_path):
    with pytest.raises(TailorError, match="not a run folder"):
        write_report(tmp_path)
    with pytest.raises(TailorError, match="no such folder"):
        collect(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_reading_leaves_the_folder_alone(make):
    folder = make()
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    collect(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_five_thousand_trials_stay_light(make):
    folder = make(trials=5000)
    assert len(collect(folder).trials) == 5006
    start = time.perf_counter()
    path = write_report(folder)
    assert time.perf_counter() - start < 3
    assert path.stat().st_size < 8 * 2**20
    assert re.search(r"Drawn are 2,0\d\d of 5,000 dots; the front is complete", path.read_text())
