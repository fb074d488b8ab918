"""Comparing runs: groups over seeds, honest spread, unfinished and damaged runs named."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from scipy import stats

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.report.compare import (
    compare,
    comparison_figures,
    gap,
    paired,
    render_comparison,
    stat,
    welch,
    write_comparison,
    write_comparison_figures,
)
from tailorvit.runs import Run
from tailorvit.space import Dim, Space

SPACE = Space("vit", (Dim("depth", (2, 3, 4)), Dim("embed", (32, 48, 64))))
VOID = {"meta", "br", "input"}


class Page(HTMLParser):
    """Tags and words of a page; every tag must be closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words, self.names = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.names += [k for k, _ in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def make(tmp_path):
    def build(name, test=90.0, seed=0, method="s4", epochs=40, finished=True, source="digits", limit='"60k"', **more):
        recipe = f'method = "{method}"\nseed = {seed}\nthreads = {seed + 1}\n[limits]\nmax_params = {limit}\n'
        recipe += (
            f"[train]\nepochs = {epochs}\ncheckpoint_seconds = {20 + seed}\n[data]\nsource = {json.dumps(source)}\n"
        )
        info = {"seed": seed, "data": {"source": source, "fingerprint": "f"}, "versions": {"torch": "2.6"}}
        with Run.create(tmp_path / name, recipe, info) as run:
            for t, space in enumerate((SPACE, SPACE.shift({"embed": 1}))):
                run.record_space(t, space, step=t, largest={"params": 50_000 + 4_000 * t, "macs": 1e6})
            for stage, base in (("edf-0", 50), ("edf-1", 60), ("search", 70)):
                rows = [{"arch": Arch("vit", depth=i), "accuracy": base + (i * 7 + seed) % 10} for i in range(1, 9)]
                run.record_trials(stage, rows)
            for stage, spent in (("supernet-0", 20.0), ("supernet-1", 10.0), ("search", 3.0), ("final", 60.0)):
                run.spend(stage, spent + seed)
            if finished:
                result = {
                    "method": method,
                    "params": 55_000 + seed,
                    "macs": 1e6,
                    "limits": {"params": {"min": None, "max": 60_000.0}},
                    "test_accuracy": test,
                    "baseline": {"params": 59_000, "test_accuracy": 89.0 + seed / 10},
                    "seed": seed,
                    "data": {"source": source},
                }
                run.write_json("result", result | more)
            return run.folder

    return build


def test_means_and_spread_over_seeds(make):
    tests = {"a": [90.0, 91.0, 92.5], "b": [89.0, 90.5, 91.0]}
    folders = [make(f"a{s}", tests["a"][s], s) for s in range(3)]
    folders += [make(f"b{s}", tests["b"][s], s, method="autoformer") for s in range(3)]
    found = compare(folders)
    first, second = found.groups
    assert [r.group for r in found.runs] == [1, 1, 1, 2, 2, 2]
    assert first.name == "s4, digits, at most 60k parameters" and second.name.startswith("autoformer")
    figure = first.stats["test_accuracy"]
    assert (figure.n, figure.low, figure.high) == (3, 90.0, 92.5)
    assert figure.mean == pytest.approx(sum(tests["a"]) / 3)
    assert figure.sd == pytest.approx(stats.tstd(tests["a"]))
    assert first.stats["search_seconds"].low == pytest.approx(33.0), "supernets and search, not the final training"
    assert first.stats["gain"].mean == pytest.approx(figure.mean - 89.1)
    ((a, b, between),) = found.gaps
    expected = stats.ttest_rel(tests["b"], tests["a"]).confidence_interval(0.95)
    assert (a, b, between.kind, between.n) == (1, 2, "paired", (3, 3))
    assert (between.low, between.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert any("Group 2 against group 1: -1.00 points (3 pairs of the same seed)" in s for s in found.sentences())


def test_chance_and_machine_make_no_group_but_the_recipe_does(make):
    one = compare([make("x", seed=0), make("y", seed=1, source="elsewhere/digits"), make("w", limit="60000", seed=2)])
    assert len(one.groups) == 1, "seed, threads, the place of the same images, the spelling of a limit"
    assert {"seed", "threads", "train.checkpoint_seconds", "data.source"} <= {k for k, _ in one.keys}
    two = compare([make("p"), make("q", epochs=50, seed=1)])
    assert [g.name.rpartition(", ")[2] for g in two.groups] == ["train.epochs = 40", "train.epochs = 50"]
    assert dict(two.keys)["train.epochs"] == ("40", "50")
    assert "method" not in dict(two.keys)
    assert [g.label for g in two.groups] == ["train.epochs = 40", "train.epochs = 50"], (
        "what they share is not repeated"
    )
    assert one.groups[0].label == one.groups[0].name


def test_unfinished_and_damaged_runs_are_named_and_left_out(make):
    damaged = make("damaged", 10.0, seed=3)
    (damaged / "run.db").write_bytes(b"no database" * 900)
    lost = make("lost", seed=4)
    (lost / "result.json").write_text("{")
    silent = make("silent", test=None, seed=5)
    found = compare([make("good", 90.0), make("half", seed=1, finished=False), damaged, lost, silent])
    assert [r.counted for r in found.runs] == [True, False, True, False, False]
    assert found.runs[1].status == "not finished" and found.runs[1].group == 1, "its recipe says where it belongs"
    assert found.groups[0].counted == 2
    notes = " ".join(found.notes)
    for words in (
        "half is not finished and not in the means.",
        "damaged: The database",
        "lost: The file result.json is",
    ):
        assert words in notes
    assert "silent has no test accuracy" in notes and str(damaged / "run.db") in notes
    Page(render_comparison(found))


def test_one_run_has_no_spread_and_says_so(make):
    found = compare([make("only")])
    assert found.groups[0].stats["test_accuracy"].sd is None
    assert "One finished run only, so no spread: group 1." in found.notes
    text = found.text()
    assert "90.00 (one run)" in text and "±" not in text and "too few runs to judge" in text
    page = render_comparison(found)
    assert "90.00 (one run)" in page and "There is one run only." in page


def test_few_runs_carry_no_verdict(make):
    words = compare([make("a"), make("b", 95.0, epochs=50)]).sentences()
    assert all("too few runs to judge" in s for s in words[:-1]) and "3 comparisons" in words[-1]
    assert not any("include" in s or "significan" in s for s in words)
    assert "it does not include 0" in paired([1.0, 1.1, 0.9]).words()
    assert "it includes 0: no clear difference" in paired([1.0, -1.1, 0.9]).words()


def test_intervals_agree_with_scipy():
    a, b = [90.0, 91.0, 92.5, 90.2], [88.0, 88.1, 91.0]
    expected = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    found = welch(a, b)
    assert found.kind == "welch" and found.n == (4, 3)
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    by_seed = gap([(0, 90.0), (0, 92.0), (1, 95.0)], [(1, 96.0), (0, 93.0), (7, 1.0)])
    assert (by_seed.kind, by_seed.n, by_seed.mean) == ("paired", (2, 2), 1.5), "a seed run twice counts once"
    assert gap([(0, 1.0), (1, 2.0)], [(2, 3.0), (3, 5.0)]).kind == "welch"
    assert gap([(0, 1.0)], [(0, 3.0)]).kind == "plain" and gap([], [(0, 1.0)]) is None
    still = welch([1.0, 1.0], [2.0, 2.0])
    assert (still.low, still.high) == (1.0, 1.0)
    assert stat([]) is None and stat([2.0]).sd is None


def test_data_for_programs(make):
    found = compare([make("a", 1 / 3), make("b", seed=1)])
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["runs"][0]["test_accuracy"] == 1 / 3 and plain["groups"][0]["stats"]["test_accuracy"]["n"] == 2
    rows = list(csv.DictReader(io.StringIO(found.csv())))
    assert float(rows[0]["test_accuracy"]) == 1 / 3 and rows[1]["name"] == "b" and len(rows) == 2
    lines = found.text().splitlines()
    assert lines[0].split()[:4] == ["run", "group", "seed", "status"]
    starts = [m.start() for m in re.finditer(r"finished", "\n".join(lines[:3]))]
    assert len(starts) == 2


def test_figures_carry_the_numbers(make, tmp_path):
    found = compare([make("a"), make("b", 92.0, seed=1), make("c", 91.0, epochs=50)])
    figures = {f.key.removeprefix("compare-"): f for f in comparison_figures(found)}
    assert list(figures) == ["accuracy", "size", "path", "edf", "progress", "seconds"]
    assert figures["accuracy"].rows[1] == ("b", 1, 1, 92.0, 89.1)
    assert [r for r in figures["path"].rows if r[0] == "a"] == [("a", 1, 0.0, 50_000.0), ("a", 1, 1.0, 54_000.0)]
    assert 'class="rule' in figures["path"].svg, "the limit"
    edf = [r for r in figures["edf"].rows if r[0] == "a"]
    assert max(r[2] for r in edf) <= 40 and edf[-1][3] == 1.0, "the last space, not the first"
    assert edf[0][3] == 0.0, "a share begins at nothing"
    best = [r[3] for r in figures["progress"].rows if r[0] == "a"]
    assert best == sorted(best) and len(best) == 8 and best[-1] == 79
    assert ("b", 1, "supernet", 32.0) in figures["seconds"].rows
    for figure in figures.values():
        ET.fromstring(figure.svg)
        assert not re.search(r"\b(nan|inf)\b", figure.svg)
    made = write_comparison_figures(found, tmp_path / "f", ["svg", "csv"])
    assert len(made) == 13


def test_the_page_is_whole_and_fetches_nothing(make, tmp_path):
    folders = [make("a"), make("b", 92.0, seed=1), make("c", 91.0, epochs=50)]
    path = write_comparison(folders, tmp_path / "deep" / "c.html")
    text = path.read_text()
    page = Page(text)
    assert page.tags.count("svg") == 6 and page.tags.count("table") >= 3
    assert "3 runs compared" in text and "train.epochs" in text
    # The one address allowed is the name of SVG, which scripts need to draw and nobody fetches.
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import|<link|<img|<iframe", text)
    assert write_comparison(compare(folders), tmp_path / "d.html").read_text() == text


def test_hostile_names_stay_text(make):
    evil = "</td><script>alert(1)</script>\"'&\x1b[31m"
    found = compare([make("a <b>&'", source=evil), make("c")])
    page = Page(render_comparison(found))
    assert "img" not in page.tags and not [n for n in page.names if n.startswith("on")]
    assert "<script>alert" not in render_comparison(found)
    assert "\x1b" not in found.text()


def test_a_run_without_numbers_renders(make, tmp_path):
    empty = tmp_path / "empty"
    Run.create(empty, "", {}).close()
    odd = make("odd", test=float("nan"), params="many", baseline=3, limits=[])
    found = compare([empty, odd])
    assert not any(r.counted for r in found.runs) and found.gaps == ()
    Page(render_comparison(found))
    assert "not in the means" in found.text()
    assert all(math.isfinite(s.mean) for g in found.groups for s in g.stats.values())


def test_runs_of_the_same_name_are_told_apart(make):
    (make("one").parent / "sub").mkdir()
    first = make("one/x")
    second = make("sub/x")
    assert [r.name for r in compare([first, second]).runs] == ["one/x", "sub/x"]


def test_mistakes_are_sentences(make, tmp_path):
    folder = make("a")
    for folders, words in (
        ([], "Name at least one run folder"),
        ([folder, folder.parent / "." / "a"], "was given twice"),
        ([folder, tmp_path / "nowhere"], "nowhere' is not a run folder: there is no such folder"),
        ([tmp_path], "is not a run folder"),
    ):
        with pytest.raises(TailorError, match=words):
            compare(folders)
    with pytest.raises(TailorError, match="is a folder; name the file"):
        write_comparison([folder], tmp_path)


def test_reading_leaves_no_trace(make):
    folder = make("a")
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    compare([folder])
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before


def test_a_repeated_seed_counts_once(make):
    folders = [make(f"a{i}", 90.0 + i, seed) for i, seed in enumerate((0, 1, 1))]
    found = compare(folders)
    assert [r.counted for r in found.runs] == [True, True, False]
    assert found.groups[0].stats["test_accuracy"].n == 2
    assert any("a2 repeats seed 1 of group 1" in note for note in found.notes)


def test_looking_at_the_network_is_no_search_time(make):
    folder = make("a0", 90.0, 0)
    before = compare([folder]).runs[0].search_seconds
    with Run.open(folder) as run:
        run.spend("analysis", 500.0)
        run.spend("final-1", 500.0)
        run.spend("edf-0", 2.0)
    assert compare([folder]).runs[0].search_seconds == before + 2


def test_names_and_kinds_of_work_are_whole_words(make):
    name = "a-rather-long-name-of-a-folder-with-photographs-7"
    folder = make(name, seed=3)
    with Run.open(folder) as run:
        run.spend("edf-0", 2.0)
    time = next(f for f in comparison_figures(compare([folder])) if f.key == "compare-seconds")
    assert f">1: {name}</text>" in time.svg, "not cut"
    assert ": random sample of space 2.0 s" in time.svg and "edf" not in time.svg


def test_the_page_has_a_way_to_every_section(make):
    page = render_comparison(compare([make("a"), make("b", seed=1)]))
    links = re.findall(r'<a href="#(\w+)">\d&nbsp;(\w+)</a>', page)
    assert links == [("groups", "Groups"), ("figures", "Figures"), ("runs", "Runs"), ("recipes", "Recipes")]
    assert re.findall(r'<section id="(\w+)">', page) == [key for key, _ in links]


def test_many_differing_keys_are_folded(make):
    folders = [make("a"), make("b", seed=1, epochs=41)]
    text = (folders[1] / "recipe.toml").read_text()
    extra = "\n".join(f"key{i} = {i}" for i in range(30))
    (folders[1] / "recipe.toml").write_text(f"{extra}\n{text}")
    found = compare(folders)
    page = render_comparison(found)
    assert f"<summary>{len(found.keys) - 16} more keys</summary>" in page
    assert page.count(">key29<") == 1
