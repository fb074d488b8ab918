"""The report as a page: complete, half-finished, damaged, hostile and large runs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sqlite3
import time
from html import unescape
from html.parser import HTMLParser

import pytest

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.report import collect, page, render, result, space, write_report
from tailorvit.report.result import interval
from tailorvit.runs import Run

VOID = {"meta", "path", "circle", "rect", "br", "img", "image", "input", "line", "ellipse", "polygon", "use"}
KINDS = ("s4", "s3", "free", "fixed")
TROUBLE = "is damaged and cannot be shown"


class Checker(HTMLParser):
    """Collects tags and attributes and checks that every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.feed(text)
        assert self.open == []
        ids = [v for _, k, v in self.attributes if k == "id"]
        assert len(ids) == len(set(ids)), "an id is used twice"

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


def scripts(text):
    """What would run: the content of every script element that is not data."""
    found = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.S)
    return [body for kind, body in found if "application/json" not in kind]


def test_a_full_run_shows_everything_in_order(make):
    folder = make()
    path = write_report(folder)
    assert path == folder / "report.html"
    text = path.read_text()
    checker = Checker(text)
    assert checker.tags.count("figure") >= 18
    assert re.findall(r"<h2>(\d)\. ", text) == list("1234567")
    anchors = [v for tag, k, v in checker.attributes if (tag, k) == ("section", "id")]
    assert anchors == ["result", "space", "search", "network", "training", "checks", "reproduce"]
    assert [v for tag, k, v in checker.attributes if (tag, k) == ("a", "href")] == [f"#{a}" for a in anchors]
    for words in (
        "at most 8M parameters",
        "for photos (900 training images, 3 classes)",
        "<b>Goal:</b> the most accurate network for photos",
        "visited 2 spaces and evaluated 126 architectures",
        "It classifies 63.50 % of the test images correctly (95 % interval 58.7 to 68.1 %, 400 images).",
        "uniform blocks within the limits (7.9M parameters) reaches 62.25 %",
        "The network found is 1.25 points more accurate.",
        "The 95 % interval of the difference is -5.4 to +7.9 points. It includes 0",
        "Everything took 1 min 45 s, the search 1 min 15 s of it.",
        "Moved depth down and embed up: agreement 0.90.",
        "depth -1, embed +1",
        "from 40 pairs each",
        "Errors of random sub-networks of every space",
        "Best and median of every generation",
        "The candidates before and after their training",
        "3 images could not be read",
        "tailorvit search &#x27;my data&#x27;",
        "abc123",
        "# recipe",
        "repair",
        '<span class="badge c2">finished</span>',
    ):
        assert words in text, words
    assert "not complete" not in text and TROUBLE not in text
    assert not re.search(r"\b(nan|inf|None)\b", "".join(re.sub(r"<script.*?</script>", "", text, flags=re.S)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [{}, {"finished": False}, {"failed": True}])
def test_every_kind_of_run_renders(make, kind, how):
    facts = collect(make(kind=kind, **how))
    text = render(facts)
    Checker(text)
    assert TROUBLE not in text
    assert facts.status == ("finished" if not how else "failed" if "failed" in how else "running")
    if not how:
        assert facts.missing == ()
    keys = [f.key for f in page.figures(facts)]
    assert len(keys) == len(set(keys)) and all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", k) for k in keys)
    for figure in page.figures(facts):
        assert f'id="{figure.key}"' in text, "every figure has its place on the page"
        assert figure.svg.startswith("<svg") and figure.rows and figure.title and figure.caption
        assert all(len(row) == len(figure.columns) for row in figure.rows), figure.key


def test_each_kind_words_itself(make):
    pages = {kind: render(collect(make(kind=kind, name=kind))) for kind in KINDS}
    assert "<b>Goal:</b> train one given network" in pages["fixed"]
    assert "There was no search." in pages["fixed"] and "nothing was searched" in pages["fixed"]
    assert "scored 60 architectures without training (dss)" in pages["free"]
    assert "Score against parameters" in pages["free"] and "Accuracy against parameters" not in pages["free"]
    assert "E-T error per choice at step 0" in pages["s3"] and "The choices of every stage" in pages["s3"]
    assert "The choices of every stage" not in pages["s4"]


def test_a_failed_run_says_why_and_how_to_go_on(make):
    text = result.section(collect(make(failed=True)))
    assert "The run failed: RuntimeError: out of memory." in text
    assert re.search(r"To continue: tailorvit resume \S+/run<", text), "as a command takes it"
    assert "The best of 66 trials so far reached" in text


def test_the_page_speaks_of_agreement_with_the_slopes(make):
    """Old and new runs wrote the cosine into their sentences."""
    folder = make()
    said = "The best of 3 legal neighbours has cosine -0.02 with the slopes, so none promises higher accuracy."
    with Run.open(folder) as run:
        run.record_decision(1, {"t": 1, "gamma": {}, "reason": "stop", "stop": True, "sentence": said, "legal": []})
    text = space.section(collect(folder))
    assert "has agreement -0.02 with the slopes" in text and "agreement 0.90." in text
    assert "Agreement says how well a move follows all slopes together" in text
    assert text.count("cosine") == 1, "where the word is explained"


def test_the_start_is_a_readable_time(tmp_path):
    for i, (started, shown) in enumerate((("2026-11-18T04:26:08+02:00", "2026-11-18 02:26 UTC"), ("then", "then"))):
        Run.create(tmp_path / f"run{i}", "", {"started": started}).close()
        assert f"started {shown}<" in render(collect(tmp_path / f"run{i}"))


def test_an_interrupted_run_that_went_on_is_running(make):
    folder = make(finished=False)
    with Run.open(folder) as run:
        run.event("interrupted", "stopped by the user")
    assert collect(folder).status == "interrupted" and "interrupted</span>" in render(collect(folder))
    with Run.open(folder) as run:
        run.event("resume", "the run goes on")
    assert collect(folder).status == "running"


def test_nothing_is_fetched_and_only_our_scripts_run(make):
    text = write_report(make()).read_text()
    plain = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not re.search(r"https?://|url\(|@import|javascript:", plain)
    checker = Checker(text)
    assert not {"link", "iframe", "object", "base", "form", "embed"} & set(checker.tags)
    assert not [a for a in checker.attributes if a[1].startswith("on")]
    for _, name, value in checker.attributes:
        if name in ("src", "href"):
            assert value.startswith(("data:image/", "#")), value[:40]
    policy = unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    assert "default-src 'none'" in policy and "connect-src" not in policy
    rule = next(part for part in policy.split(";") if part.strip().startswith("script-src"))
    hashes = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts(text)}
    assert len(hashes) == 2 and set(re.findall(r"'sha256-([^']+)'", rule)) == hashes and "unsafe" not in rule
    assert "prefers-color-scheme:dark" in text and 'name="viewport"' in text
    assert "innerHTML" not in text and "insertAdjacentHTML" not in text and "eval(" not in text


def test_without_scripts_the_search_is_drawn(make):
    text = render(collect(make()))
    figure = re.search(r'<figure id="search-trials".*?</figure>', text, re.S)[0]
    assert figure.count("h.01") >= 50, "every trial is a dot of a path"
    assert 'class="ring' in figure


EVIL = "</pre></svg></script><script>alert(1)</script><img src=x onerror='a'>\"'&\u202e\u2066\x07" + "x" * 10_000


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_names_stay_text(make, kind):
    folder = make(evil=EVIL, kind=kind)
    (folder / "recipe.toml").write_bytes(EVIL.encode() + b"\xff\xfe")
    text = write_report(folder).read_text("utf-8")
    checker = Checker(text)
    assert TROUBLE not in text
    assert len(scripts(text)) == 2 and "<script>alert" not in text
    assert not [a for a in checker.attributes if a[1] == "onerror"]
    assert all(v.startswith("data:image/") for _, k, v in checker.attributes if k == "src")
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 6
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08]", text), "nothing turns the words around it"
    assert len(text) < 1_500_000, "a name of 10,000 letters is cut"
    for block in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S):
        json.loads(block)


def test_a_hostile_folder_name(tmp_path):
    folder = tmp_path / "<b>'&\"</title>"
    Run.create(folder, "", {"started": "<i>"}).close()  # a slash would be another folder
    text = render(collect(folder.parent / folder.name))
    assert "<b>" not in text and "<i>" not in text


def test_a_finding_worse_than_the_baseline_says_so(make):
    folder = make()
    with Run.open(folder) as run:
        run.write_json("result", {**run.read_json("result"), "test_accuracy": 50.0})
    text = result.section(collect(folder))
    assert "12.25 points less accurate" in text and "On these images the baseline is better." in text


WHY = "The 100 search images cannot tell the network found and the hand-designed baseline apart, so ... was taken."
PEER = {"name": "timm:resnet18", "params": 11e6, "macs": 4e7, "test_accuracy": 70.25, "over": "params 11M > 8M"}
PEER |= {"gap": {"difference": 8.0, "low": 2.5, "high": 13.25, "clear": True}, "final_search_accuracy": 69.0}


def with_choice(folder, **more):
    """The made-up run, with the baseline delivered."""
    with Run.open(folder) as run:
        facts = run.read_json("result")
        other = {**facts["baseline"], "name": "baseline", "final_search_accuracy": 66.0, "chosen": True}
        rows = [{**c, "name": f"found {i}", "chosen": False} for i, c in enumerate(facts["candidates"], 1)]
        gap = {"first": "found 1", "second": "baseline", "difference": -2.0, "low": -7.5, "high": 3.5, "images": 100}
        own = {k: facts["baseline"][k] for k in ("arch", "params", "macs", "test_accuracy")}
        choice = {"chosen": "baseline", "why": WHY, "tied": ["found 1", "baseline"], "comparison": [gap]}
        run.write_json("result", {**facts, **own, **choice, "candidates": [*rows, other], **more})
    return collect(folder)


def test_a_delivered_baseline_is_said_plainly(make):
    facts = with_choice(make())
    text = unescape(result.section(facts))
    assert "<b>Result:</b> the hand-designed network, with 7.9M parameters" in text and f"<b>Choice:</b> {WHY}" in text
    assert "reaches 62.25 % and was delivered. The network found is 1.25 points more accurate." in text
    assert "baseline (delivered)" in text and "found (delivered)" not in text
    assert "found 1 less baseline" in text and "-7.5 to +3.5" in text
    assert "66.00 %" not in text and "64.00 %" in text, "the column of the best found has its own figures"
    (drawn,) = [f for f in page.figures(facts) if f.key == "candidates"]
    assert [row[0] for row in drawn.rows] == [1, 2, 3, 4, "baseline"] and "baseline*" in drawn.svg
    Checker(render(facts))


def test_peers_have_their_rows_and_a_better_one_is_said_first(make):
    even = {**PEER, "name": "timm:<b>tiny</b>", "over": None, "test_accuracy": 62.5}
    even |= {"gap": {"difference": 0.25, "low": -4.0, "high": 4.5, "clear": False}}
    failed = {
        "name": "timm:odd",
        "params": 5e5,
        "macs": 1e6,
        "test_accuracy": None,
        "problem": "out of memory",
        "gap": None,
    }
    facts = with_choice(make(), peers=[PEER, even, failed])
    page_text = result.section(facts)
    assert "<b>tiny" not in page_text
    text = unescape(page_text)
    assert "<b>Result:</b> timm:resnet18, over the limit, was better than the network delivered: 70.25 %" in text
    assert "resnet18 (over the limit)" in text and "95 % interval +2.5 to +13.2 points)." in text
    assert "cannot tell the two apart" in text and "odd (500k parameters) could not be trained: out of memory." in text
    (drawn,) = [f for f in page.figures(facts) if f.key == "result-accuracy"]
    assert [row[0] for row in drawn.rows] == ["found", "baseline", "resnet18", "<b>tiny</b>"]
    Checker(render(facts))


@pytest.mark.parametrize(
    "peers", [3, [3], [{"name": 5, "gap": 7}], [{"over": [], "test_accuracy": "x", "gap": {"low": "a"}}]]
)
def test_odd_peers_render(make, peers):
    facts = with_choice(make(), peers=peers, comparison=peers, why=3, tied=5)
    assert TROUBLE not in render(facts)


def test_wilson_agrees_with_known_values():
    # Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662; 0 of 20 gives 0 to 0.1611.
    assert interval(100 * 81 / 263, 263) == pytest.approx((25.53, 36.62), abs=0.01)
    assert interval(0, 20) == pytest.approx((0, 16.11), abs=0.01)
    assert interval(100, 20) == pytest.approx((83.89, 100), abs=0.01)


def test_half_finished(make):
    folder = make(finished=False)
    facts = collect(folder)
    assert not facts.finished and facts.missing == ("The run has not finished: no result yet.",)
    text = render(facts)
    assert "The best of 66 trials so far reached" in text and "not finished</span>" in text


def test_a_run_still_being_written(tmp_path):
    with Run.create(tmp_path / "run", "", {}) as run:
        Checker(render(collect(run.folder)))
        run.record_trials("search", [{"arch": Arch("vit", depth=1), "accuracy": 42.0}])
        assert [t.accuracy for t in collect(run.folder).trials] == [42.0]


def test_an_empty_run(tmp_path):
    Run.create(tmp_path / "run", "", {}).close()
    text = write_report(tmp_path / "run").read_text()
    Checker(text)
    for words in ("no result yet", "No space has", "No trial has", "No events were recorded"):
        assert words in text
    assert TROUBLE not in text


def test_a_section_that_trips_is_named_and_the_rest_shown(make, monkeypatch):
    def broken(facts):
        raise KeyError("depth <b>")

    first = page.SECTIONS[0]._replace(render=broken, figures=broken)
    monkeypatch.setattr(page, "SECTIONS", (first, *page.SECTIONS[1:]))
    facts = collect(make())
    text = render(facts)
    Checker(text)
    assert text.count(TROUBLE) == 1 and "depth &lt;b&gt;" in text and "Moved depth down" in text
    assert "space-path" in [f.key for f in page.figures(facts)]


def test_damaged_parts_become_sentences(make):
    folder = make()
    (folder / "run.db").write_bytes(b"not a database" * 500)
    (folder / "info.json").write_text("{")
    (folder / "analysis.json").write_text("[1, 2")
    facts = collect(folder)
    assert len(facts.missing) == 3
    assert facts.missing[0].startswith("info.json is damaged")
    assert any("run.db' cannot be used" in s for s in facts.missing)
    assert any("analysis.json is damaged" in s for s in facts.missing)
    text = render(facts)
    Checker(text)
    assert "63.50 %" in text, "what result.json holds is still shown"
    assert "The choices of every dimension" in text and "depth, step 0: 12, 13, 14" in text, "and the path it repeats"
    (folder / "run.db").unlink()
    (folder / "result.json").write_text('{"arch"')
    facts = collect(folder)
    assert "The file result.json is damaged." in facts.missing and not facts.finished
    Checker(render(facts))


def test_an_analysis_is_missed_only_where_the_run_should_have_one(make):
    folder = make(with_analysis=False)
    assert any("analysis.json is missing" in s for s in collect(folder).missing)
    with Run.open(folder) as run:  # as written before the analysis existed
        run.write_json("result", {k: v for k, v in run.read_json("result").items() if k != "blocks"})
    assert collect(folder).missing == ()


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("UPDATE epochs SET facts='{' WHERE epoch=2", "epochs"),
        ("UPDATE epochs SET facts='[1]' WHERE epoch=2", "epochs"),
        ("UPDATE trials SET arch='[]' WHERE id=3", "trials"),
        ("UPDATE trials SET costs='' WHERE id=3", "trials"),
        ("UPDATE spaces SET space='null' WHERE t=1", "spaces"),
        ("UPDATE slopes SET facts='7' WHERE id=1", "slopes"),
        ("UPDATE decisions SET facts=x'ff'", "decisions"),
    ],
)
def test_one_damaged_row_costs_only_itself(make, statement, table):
    folder = make()
    whole = collect(folder)
    link = sqlite3.connect(folder / "run.db")
    link.execute(statement)
    link.commit()
    link.close()
    facts = collect(folder)
    assert len(getattr(facts, table)) == len(getattr(whole, table)) - 1
    assert facts.missing == (f"One row is damaged in the table {table} of run.db and left out.",)
    text = render(facts)
    Checker(text)
    assert TROUBLE not in text


HUGE = 10**400


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"arch": "none", "limits": 3, "baseline": [], "parts": "x", "seconds": None, "spaces": {"t": 1}},
        {"arch": {"family": "s3", "depth.0": 2, "heads.0": [1, 2], "heads.1": []}, "params": "many", "macs": None},
        {"params": 1e400, "test_accuracy": True, "parts": [3, {"part": None}], "spaces": [{}, 4], "method": None},
        {"limits": {"latency": {"max": 0.012}, "x": 1, "macs": {"min": "a"}}, "seconds": {"a": "b", "c": 3}},
        {"limits": {"params": {"max": -1, "min": 0}}, "params": -5, "baseline": {"params": -7}, "macs": HUGE},
        {"data": {"counts": {"test": HUGE}, "classes": -1}, "test_accuracy": 250.0, "baseline": {"test_accuracy": -3}},
        {
            "data": [],
            "test_accuracy": 1e308,
            "seconds": {"search": -1e308, "final": 1e308},
            "candidates": 4,
            "blocks": "b",
        },
        {"spaces": [{"t": 0, "dims": {"a": [1e308, -1e308], "b": ["x"], "c.1": [5], "d.": [HUGE]}}] * 2},
    ],
)
def test_odd_results_render(tmp_path, result):
    with Run.create(tmp_path / "run", "", {"seed": None, "versions": 4, "command": 7}) as run:
        run.write_json("result", result)
    text = write_report(tmp_path / "run").read_text()
    Checker(text)
    assert TROUBLE not in text


def test_odd_rows_render(tmp_path):
    """Numbers at the edge of what a float holds, in every table of the database."""
    with Run.create(tmp_path / "run", "", {}) as run:
        for i, value in enumerate((float("nan"), float("inf"), 1e308, -1e308, 0.0)):
            trial = {"arch": Arch("vit", depth=i, heads=[i] * i), "accuracy": value, "params": 2**62, "generation": i}
            run.record_trials("search", [{**trial, "parents": [trial["arch"]], "costs": {"latency": value}}])
            run.record_trials("edf-0", [trial])
            run.record_slope(0, f"d{i}", {"z": value, "se": value, "z_step": value, "pairs": [value]})
            fit = {"kind": "et", "choices": [value, 1], "errors": [value, None], "fit": [value], "k": value}
            run.record_slope(1, f"w.{i}", fit)
            legal = [{"gamma": [1, value, "x"], "size": value, "cosine": value, "gain": value}, 7, {"gamma": None}]
            run.record_decision(i, {"gamma": {"a": value}, "legal": legal})
            run.record_epoch("final", i, loss=value, accuracy=value, lr=value, images_per_second=value)
            run.spend(f"s{i}", value if value == value else 1.0)
    text = write_report(tmp_path / "run").read_text()
    Checker(text)
    assert TROUBLE not in text and not re.search(r'="[^"]*\b(nan|inf)\b', text)


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
    start = time.process_time()  # the machine may be busy with other tests
    facts = collect(folder)
    text = render(facts)
    assert time.process_time() - start < 2
    assert len(facts.trials) == 5066 and len(text.encode()) < 2 * 2**20
    data = json.loads(re.search(r'id="search-data">(.*?)</script>', text, re.S)[1])
    assert len(data["rows"]) == 5066


def test_a_shell_stands_alone():
    text = page.shell("a <b>", "<main><p>x</p></main>", scripts=("let a = 1;",), head='<meta name="x" content="y">\n')
    Checker(text)
    assert "<title>a &lt;b&gt;</title>" in text and scripts(text)[-1] == "let a = 1;"
    own = base64.b64encode(hashlib.sha256(b"let a = 1;").digest()).decode()
    assert f"'sha256-{own}'" in text and '<meta name="x"' in text


def test_a_damaged_recipe_is_named(make):
    folder = make()
    (folder / "recipe.toml").write_text("x = [")
    assert "The file recipe.toml is damaged." in collect(folder).missing
