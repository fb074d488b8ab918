"""The section of the contest: its sentences, the race, what choices were worth, the tables; and no section without."""

from __future__ import annotations

import csv
import json
import re
import sqlite3

import pytest

from fake_runs import contest as contest_facts
from tailorvit.arch import Arch
from tailorvit.families import FAMILIES
from tailorvit.registry import HOME
from tailorvit.report import collect, contest, page, render, write_report_figures
from tailorvit.runs import Run

NAMES = ("Result", "Contest", "Space", "Search", "Network", "Training", "Checks", "Reproduce")


@pytest.fixture
def facts(make):
    return collect(make(with_contest=True))


def changed(folder, **parts):
    """The facts of a run whose contest was changed."""
    with Run.open(folder) as run:
        run.write_json("result", {**run.read_json("result"), "contest": {**contest_facts(), **parts}})
    return collect(folder)


def figure(facts, key):
    return next(f for f in page.figures(facts) if f.key == key)


def links(text):
    nav = re.search(r"<nav.*?</nav>", text, re.S)[0]
    return [words.replace("&nbsp;", " ") for words in re.findall(r"<a [^>]*>([^<]*)</a>", nav)]


def cells(text, heading):
    """The table after a heading, as rows of words."""
    table = re.search(rf"<h3>{heading}</h3>.*?</table>", text, re.S)[0]
    return [re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table, re.S)]


def test_the_section_stands_after_the_result_and_numbers_follow(facts):
    text = render(facts)
    assert links(text) == [f"{n} {name}" for n, name in enumerate(NAMES, 1)]
    heads = re.findall(r"<h2>(\d)\. ([^<]+)</h2>", text)
    assert heads[1] == ("2", "The contest") and heads[-1][0] == "8"


def test_a_run_without_a_contest_has_no_such_section(make):
    facts = collect(make())
    text = render(facts)
    assert links(text) == [f"{n} {name}" for n, name in enumerate((n for n in NAMES if n != "Contest"), 1)]
    assert 'id="contest' not in text and "The contest" not in text and "competed" not in text
    assert not [f.key for f in page.figures(facts) if f.key.startswith("contest")]


def test_the_sentences(facts):
    words = re.findall(r"<p>([^<]*)</p>", contest.section(facts))
    assert words[0] == "Shunted, hand-designed, with medium augmentation won: 2.5 points ahead after 27 epochs."
    assert words[1].startswith("10 networks of 4 families took part in 3 rounds.")
    assert "judged on 500 search images; the test images were not used. It took 1 min 1 s." in words[1]
    assert words[2] == (
        "The choice that mattered most was the family: shunted was 11.0 points better than swin (95 % interval 6.4 to"
        " 15.5), all else equal. This contest shows no clear difference by augmentation."
    )
    assert "10 networks competed; then the search (s4) visited 2 spaces" in render(facts)
    assert ", in the same time." in contest._worth_in_words(facts.result.contest.worth, timed=True)


def test_trials_of_the_contest_are_not_the_search(make):
    folder = make(with_contest=True)
    with Run.open(folder) as run:
        run.record_trials("contest-0", [{"arch": Arch("vit", depth=d), "accuracy": 50.0} for d in (1, 2, 3)])
        run.spend("contest-0", 61.0)
    text = render(collect(folder))
    assert "evaluated 126 architectures with the weights of a supernet" in text
    assert "the contest 1 min 1 s" in text


def test_the_race_has_a_line_per_network_and_a_thick_one_for_the_winner(facts):
    drawn = figure(facts, "contest-rungs")
    lines = re.findall(r'<path class="line (\w+) (c\d)" d="M[^"]*"', drawn.svg)
    assert len(lines) == 10 and lines[-1] == ("thick", "c2"), "the winner lies on top"
    assert [kind for kind, _ in lines].count("faded") == 9
    assert drawn.svg.count("<circle") == len(drawn.rows) == 14
    assert {name: style for style, name in drawn.legend} == {
        "shunted": "c2",
        "pit": "c1",
        "swin": "c3",
        "vit": "c0",
    }
    assert ">winner: shunted, hand-designed</text>" in drawn.svg
    axis = re.findall(r'text-anchor="middle">([\d.]+)<', drawn.svg)
    assert sorted(axis, key=float) == ["3", "9", "27"], "rungs are named by their epochs"
    best = [row for row in drawn.rows if row[-1]]
    assert [(row[1], row[7], row[8]) for row in best] == [("shunted", 9.0, 64.2), ("shunted", 27.0, 74.0)]
    assert "round 2, 9 epochs: 64.20 %, the winner" in drawn.svg and "round 1, 3 epochs: 41.00 %, left out" in drawn.svg


def test_epochs_are_placed_by_their_factors(facts):
    svg = figure(facts, "contest-rungs").svg
    at = {float(v): float(x) for x, v in re.findall(r'<text x="([\d.]+)"[^>]*middle">([\d.]+)<', svg)}
    assert at[9] - at[3] == pytest.approx(at[27] - at[9], abs=0.2)


def test_every_family_of_ours_has_a_colour_of_its_own():
    ours = {name for name in FAMILIES if FAMILIES.origin(name) == HOME and FAMILIES[name].from_scratch}
    assert set(contest._FAMILIES) == ours and len(set(contest._FAMILIES.values())) == len(ours)


def test_families_from_outside_keep_apart(make):
    entries = contest_facts()["entries"]
    for i, entry in enumerate(entries):
        entry["family"] = ("vit", "mixer", "other")[i % 3]
    drawn = figure(changed(make(), entries=entries), "contest-rungs")
    styles = {name: style for style, name in drawn.legend}
    assert styles == {"vit": "c0", "mixer": "c0 dashed", "other": "c1 dashed"}


def test_worth_shows_points_with_uneven_intervals_and_zero(facts):
    drawn = figure(facts, "contest-worth")
    assert drawn.rows[0][:3] == ("family", "shunted", "swin")
    assert "+11.0 (6.4 to 15.5)" in drawn.svg and "+1.2 (-0.6 to 3.1)" in drawn.svg and "±" not in drawn.svg
    assert "shape: hand-designed over shallow and wide" in drawn.svg
    zero = {float(x) for x in re.findall(r'class="axis" d="M([\d.]+)', drawn.svg)}
    assert len(zero) == 1, "one line at zero through all rows"
    dots = re.findall(r'dot solid (c\d)" cx="([\d.]+)"', drawn.svg)
    ends = re.findall(r'whisker" d="M([\d.]+) [\d.]+H([\d.]+)', drawn.svg)
    assert [c for c, _ in dots] == ["c0", "c0", "c5", "c0"], "grey: the interval includes 0"
    for (_, x), (a, b) in zip(dots, ends, strict=True):
        assert float(a) < float(x) < float(b)
    assert float(ends[2][0]) < zero.pop() < float(ends[2][1])


def test_an_interval_that_touches_zero_has_no_minus(make):
    worth = [{"what": "rate", "best": 0.001, "worst": 0.002, "points": 3.9, "low": -0.02, "high": 7.8}]
    assert "+3.9 (0.0 to 7.8)" in figure(changed(make(), worth=worth), "contest-worth").svg


def test_the_tables(facts):
    text = contest.section(facts)
    rungs = cells(text, "How each round went")
    assert rungs[1] == ["1", "family and shape", "3", "8", "3", "52.00 %", "32.0 s"]
    assert [row[5] for row in rungs[1:]] == ["52.00 %", "64.20 %", "74.00 %"]
    head, *rows = cells(text, "Who took part")
    assert head[-3:] == ["round 1, %", "round 2, %", "round 3, %"] and len(rows) == 10
    assert rows[0][:5] == ["shunted", "hand-designed", "medium", "0.001", "won"]
    assert rows[0][-3:] == ["–", "64.20", "74.00"] and [row[0] for row in rows].count("pit fine") == 2
    assert [row[4] for row in rows[1:5]] == ["round 3", "round 2", "round 2", "round 1"]
    table = re.search(r"Who took part</h3>.*?</table>", text, re.S)[0]
    assert 'class="sortable stack"' in table and 'data-v="1472000.0" data-name="parameters">1.472M' in table


def test_how_the_time_was_shared_out(make):
    folder = make(with_contest=True)
    assert "How the time was shared out" not in contest.section(collect(folder))
    rows = [
        {"label": "vit, <shallow>", "epoch": 0.18, "epochs": 111, "inside": True},
        {"label": "vit fine", "epoch": 90, "epochs": 0, "inside": False},
    ]
    with Run.open(folder) as run:
        plan = {"seconds": 140, "final_epochs": 97, "entries": rows}
        run.write_json("result", {**run.read_json("result"), "plan": plan})
    text = contest.section(collect(folder))
    table = text[text.index("How the time was shared out") :]
    assert (
        "97 epochs" in table and "vit, &lt;shallow&gt;" in table and ">111<" in table and "left out: too slow" in table
    )


def test_a_round_of_equal_time_shows_the_span_of_its_epochs(make):
    entries = contest_facts()["entries"]
    entries[1]["rungs"][0]["epochs"] = 1
    rounds = cells(contest.section(changed(make(), entries=entries)), "How each round went")
    assert [row[2] for row in rounds[1:]] == ["1 to 3", "6", "18"]


def test_what_all_share_is_said_once(make):
    entries = [{**e, "augment": "mild", "lr": 0.001} for e in contest_facts()["entries"]]
    text = contest.section(changed(make(), entries=entries))
    assert cells(text, "Who took part")[0][:3] == ["family", "shape", "reached"]
    assert "All of them: augmentation mild, learning rate 0.001. The winner: depth 4, embed 64." in text


def test_a_contest_alone_needs_no_space_and_no_search(make):
    folder = make(kind="fixed", with_contest=True)
    with Run.open(folder) as run:
        run.write_json("result", {**run.read_json("result"), "method": "contest", "candidates": [], "baseline": None})
        run.record_trials("contest-0-1", [{"arch": Arch("vit", depth=2), "accuracy": 50.0, "source": "contest"}])
        run.record_epoch("contest-0-1", 1, loss=1.0, accuracy=20.0)
        run.spend("contest-0-1", 61.0)
    link = sqlite3.connect(folder / "run.db")
    link.execute("DELETE FROM trials WHERE stage NOT LIKE 'contest%'")
    link.commit()
    link.close()
    facts = collect(folder)
    text = render(facts)
    assert links(text) == ["1 Result", "2 Contest", "3 Network", "4 Training", "5 Checks", "6 Reproduce"]
    assert "10 networks competed. The winner was then trained from scratch. Everything took" in text
    assert "You get a ViT network" in text and "the winner among 10 networks of 4 families, that classifies" in text
    loss = figure(facts, "training-loss")
    assert {row[0] for row in loss.rows} == {"final"}, "the contest has a figure of its own"
    assert "contest, round 1, network 2" in text, "a stage in words"


def test_a_contest_under_way_shows_its_trials(make):
    folder = make(kind="fixed", finished=False)
    with Run.open(folder) as run:
        run.record_trials(
            "contest-0-1", [{"arch": Arch("vit", depth=2), "accuracy": 50.0, "params": 5, "generation": 0}]
        )
    text = render(collect(folder))
    assert "The best of 1 trial so far reached 50.00 %" in text and "contest, round 1, network 2" in text


def test_many_entries_are_folded(make):
    entries = [{**e, "id": i} for i, e in enumerate(contest_facts()["entries"] * 4)]
    text = contest.section(changed(make(), entries=entries))
    assert "The other 16" in text and text.count("<tr>") == 1 + 3 + 1 + 24 + 1 + 16


def test_files_carry_the_numbers(make, tmp_path):
    written = {p.name for p in write_report_figures(make(with_contest=True), tmp_path / "figures")}
    assert {"contest-rungs.svg", "contest-rungs.csv", "contest-worth.svg", "contest-worth.csv"} <= written
    with (tmp_path / "figures" / "contest-worth.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        "choice": "family",
        "best": "shunted",
        "worst": "swin",
        "points": "11.0",
        "low": "6.4",
        "high": "15.5",
    }
    assert "stroke-width:3.4" in (tmp_path / "figures" / "contest-rungs.svg").read_text()


HUGE = 10**400


@pytest.mark.parametrize(
    "parts",
    [
        {"entries": [{"id": 0}]},
        {
            "entries": [{"id": "x", "family": 3, "rungs": "none", "lr": HUGE, "params": -4, "augment": 0.5}],
            "winner": [],
        },
        {"entries": [{"family": "vit", "rungs": [{"rung": 0, "accuracy": 50.0, "total_epochs": 0}]}]},
        {"entries": [{"family": "vit", "rungs": [{"accuracy": 50.0, "epochs": 3}]}], "winner": 77, "why": None},
        {"entries": [{"family": "vit", "rungs": [{"rung": HUGE, "accuracy": 1e99, "total_epochs": 1e17}]}]},
        {"rungs": [{"rung": 7}, 4, {}], "worth": [{"what": 3}, {"what": "a", "points": float("inf")}, []]},
        {"worth": [{"what": "family", "points": 0.0}], "rungs": None},
        {"worth": [{"what": "family", "points": 3.0, "low": 1.0}]},
    ],
)
def test_odd_contests_render(make, parts):
    facts = changed(make(), **parts)
    text = render(facts)
    assert "The contest</h2>" in text and "cannot be shown" not in text
    assert not re.search(r'="[^"]*\b(nan|inf)\b', text)
    for found in page.figures(facts):
        assert all(len(row) == len(found.columns) for row in found.rows)


@pytest.mark.parametrize("broken", [None, 3, [], {}, {"entries": []}, {"entries": [3, "x"]}])
def test_no_entries_no_section(make, broken):
    folder = make()
    with Run.open(folder) as run:
        run.write_json("result", {**json.loads((folder / "result.json").read_text()), "contest": broken})
    assert "The contest</h2>" not in render(collect(folder))


def test_hostile_names_stay_text(make):
    evil = "</script><script>alert(1)</script>\"'" + "x" * 5000
    text = render(collect(make(evil=evil, with_contest=True)))
    assert "<script>alert" not in text and len(text) < 1_500_000
    section = re.search(r'<section id="contest">.*?</section>', text, re.S)[0]
    assert "&lt;script&gt;alert(1)" in section
