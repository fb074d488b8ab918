"""The report of a pretrained network that was cut: the first sentence, the section, odd files, several runs."""

from __future__ import annotations

import csv
import json
import re
from html import unescape

import pytest

from fake_runs import cut_arch, tailored_result, write_tailored
from tailorvit.api import Result
from tailorvit.report import collect, page, render, write_report_figures
from tailorvit.report.checks import checks
from tailorvit.report.compare import compare, render_comparison
from tailorvit.report.lead import lead
from tailorvit.report.markup import stage_name
from tailorvit.report.result import networks
from tailorvit.report.tailored import kept, section
from tailorvit.runs import Run

NAMES = ("Result", "Tailored", "Space", "Search", "Network", "Training", "Checks", "Reproduce")
HUGE = 10**400


@pytest.fixture
def folder(tmp_path):
    return write_tailored(tmp_path / "run")


@pytest.fixture
def facts(folder):
    return collect(folder)


def changed(folder, **parts):
    """The facts of a run whose result was changed."""
    with Run.open(folder) as run:
        run.write_json("result", {**run.read_json("result"), **parts})
    return collect(folder)


def plain(markup):
    return unescape(re.sub(r"<[^>]*>", "", markup)).strip()


def cells(text):
    """The first table of some markup, as rows of words."""
    table = re.search(r"<table.*?</table>", text, re.S)[0]
    return [re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table, re.S)]


def figure(facts, key):
    return next(f for f in page.figures(facts) if f.key == key)


# -- the first sentence -----------------------------------------------------------------------------------------------


def test_one_sentence_says_how_small_how_good_and_what_next(facts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert plain(lead(collect(tmp_path / "run"))) == (
        "You get a network with 5.8M parameters, 27 % of the size of timm:vit_small_patch14_dinov2, that classifies"
        " 85.25 % of the test images correctly, 3.50 points less than the whole network after fine-tuning (88.75 %) and"
        " 11.75 points more than its first 3 blocks (73.50 %); to take it away, run tailorvit export run --to onnx."
    )


def test_three_others_are_listed_in_one_sentence(folder):
    more = {"name": "timm:mobilevit_xxs", "params": 1e6, "test_accuracy": 60.0, "gap": {"clear": True}}
    said = plain(lead(changed(folder, peers=[*tailored_result()["peers"], more])))
    assert "(88.75 %), 11.75 points more than its first 3 blocks (73.50 %) and 25.25 points more than mobile" in said
    assert "mobilevit_xxs of timm (60.00 %)" in said and "whole network after fine-tuning of timm" not in said


def test_the_first_blocks_may_be_delivered(tmp_path):
    facts = collect(write_tailored(tmp_path / "run", first=True))
    said, text = plain(lead(facts)), render(facts)
    assert said.startswith("You get the first 3 blocks with 5.55M parameters, 26 % of the size of timm:vit_small")
    assert "than its first" not in said and "whole network after fine-tuning" in said
    assert [row.block for row in kept(facts) if row.heads is not None] == [0, 1, 2], "not the most important ones"
    assert "The first 3 of 12 blocks, 384 of 384 channels" in text and "first 3 blocks (delivered)" in text
    assert [title for *_, title in networks(facts)][:2] == ["found", "first blocks (delivered)"]
    assert facts.result.found.test_accuracy == 85.25
    assert checks(facts)[0].question == "Is the network found better than the first blocks?"


def test_without_first_blocks_only_the_whole_is_compared(folder):
    facts = changed(folder, candidates=tailored_result()["candidates"][:1])
    assert plain(lead(facts)).count("points") == 1
    assert [name for _, name, _ in networks(facts)] == ["found", "whole network"]
    assert "First blocks:</b> not trained" in render(facts)


# -- the section ------------------------------------------------------------------------------------------------------


def test_the_section_stands_after_the_result(facts):
    nav = re.search(r"<nav.*?</nav>", render(facts), re.S)[0]
    names = [words.split("&nbsp;")[1] for words in re.findall(r"<a [^>]*>([^<]*)</a>", nav)]
    assert tuple(names) == NAMES


def test_other_runs_have_no_such_section(make):
    assert 'id="tailored"' not in render(collect(make()))


def test_the_table_holds_every_network(facts):
    head, *rows = cells(section(facts))
    assert head[:4] == ["network", "parameters", "of the whole", "MACs"]
    assert rows == [
        ["whole network", "21.52M", "100 %", "215M", "–", "90.00 %", "88.75 %", "85.3 to 91.5 %"],
        ["delivered", "5.8M", "27 %", "58M", "81.00 %", "86.50 %", "85.25 %", "81.4 to 88.4 %"],
        ["for 3M", "2.85M", "13 %", "28.5M", "73.50 %", "80.50 %", "79.50 %", "75.3 to 83.2 %"],
        ["for 1.5M", "1.425M", "7 %", "14.25M", "60.00 %", "67.00 %", "66.00 %", "61.2 to 70.5 %"],
        ["first 3 blocks", "5.55M", "26 %", "55M", "–", "74.00 %", "73.50 %", "69.0 to 77.6 %"],
    ]


def places(svg):
    return [(float(x), float(y)) for x, y in re.findall(r'<circle class="dot[^"]*" cx="([\d.]+)" cy="([\d.]+)"', svg)]


def test_the_figure_names_its_dots_and_spreads_sizes_by_factors(facts):
    svg = figure(facts, "tailored-sizes").svg
    for name in ("whole network", "delivered", "for 3M", "for 1.5M", "first 3 blocks"):
        assert f">{name}</text>" in svg
    assert "parameters, in factors" in svg and svg.count('class="ring') == 1
    at = {words: float(x) for x, words in re.findall(r'<text x="([\d.]+)"[^>]*middle">([\d.]+M)<', svg)}
    assert at["10M"] - at["5M"] == pytest.approx(at["20M"] - at["10M"], abs=0.3)
    dots = places(svg)
    assert dots[2][0] - dots[3][0] == pytest.approx(at["10M"] - at["5M"], abs=0.3), "3M is twice 1.5M"


def test_sizes_that_are_alike_are_drawn_from_zero(folder):
    svg = figure(changed(folder, sizes=[]), "tailored-sizes").svg
    assert "in factors" not in svg and 'middle">0<' in svg and "line joins" not in svg


def boxes(svg):
    """The room of every name in the figure."""
    for x, y, rest, words in re.findall(r'<text x="([\d.]+)" y="([\d.]+)"([^>]*halo[^>]*)>([^<]+)<', svg):
        wide = 6.2 * len(words)
        left = float(x) - (wide if '"end"' in rest else wide / 2 if '"middle"' in rest else 0)
        yield left, float(y) - 9, left + wide, float(y) + 2


@pytest.mark.parametrize("apart", [0.0, 0.2])
def test_names_do_not_cover_each_other(folder, apart):
    """Networks of the same limit lie close together."""
    rows = tailored_result()
    rows["candidates"][1] |= {"params": 5_790_000, "test_accuracy": 85.25 - apart}
    sizes = [{**rows["sizes"][0], "params": 5_400_000, "test_accuracy": 85.25 + apart}, rows["sizes"][1]]
    found = list(boxes(figure(changed(folder, candidates=rows["candidates"], sizes=sizes), "tailored-sizes").svg))
    assert len(found) == 5
    for i, (a, b, c, d) in enumerate(found):
        assert a >= 0 and c <= 440 and b >= 0 and d <= 300
        for e, f, g, h in found[i + 1 :]:
            assert c <= e or g <= a or d <= f or h <= b


def test_what_was_kept(facts):
    rows = kept(facts)
    inside = [row.block for row in rows if row.heads is not None]
    assert inside == sorted([11, 10, 5, 4, 3, 0, 9, 1]) and len(rows) == 12
    assert [row.heads for row in rows if row.heads] == cut_arch(8, 240)["heads"], "in their places"
    assert rows[11].rank == 1 and rows[7].rank == 12
    text = section(facts)
    assert "8 of 12 blocks (without 3, 7, 8 and 9), 240 of 384 channels, 36 of 72 heads, 9,792 of 18,432" in text
    drawn = figure(facts, "tailored-kept")
    assert drawn.svg.count(">left out<") == 4 and ">5 (83 %)<" in drawn.svg
    assert drawn.rows[1] == (2, 8, True, 5, 6, 1344, 1536) and drawn.rows[2][2:4] == (False, None)


def test_what_the_supernet_had_promised(facts):
    said = plain(section(facts))
    assert "the network delivered 81.00 %, then 86.50 % (+5.5 points); the network for 3M 73.50 %, then 80.50 %" in said
    assert "/front/3M --to onnx" in said


def test_the_whole_network_is_no_model_of_timm(facts):
    text = plain(render(facts))
    assert "models of timm" not in text and not re.search(r"of timm\b(?!:)", text)
    assert "Whole network: fine-tuned (21.52M parameters, over the limit), it reaches 88.75 %" in text
    assert "was better than the network delivered" not in text
    assert "First blocks: the most that keep the limits, taught alike (5.55M parameters) reach 73.50 %" in text
    assert "the whole network was fine-tuned and its parts ordered; then the search (tailor)" in text
    assert "fine-tuned, with the whole network as its teacher" in text


def test_stages_in_words_and_times(facts):
    assert stage_name("whole") == "fine-tuning the whole network" and stage_name("ordered") == "ordering its parts"
    legend = " ".join(words for _, words in figure(facts, "result-time").legend)
    assert "fine-tuning the whole network 30.0 s" in legend and "ordering its parts 12.0 s" in legend
    assert "training the first blocks 30.0 s" in legend and "baseline" not in legend
    assert facts.search_seconds == 38.0, "the supernet and the search"


def test_the_candidates_name_the_first_blocks(facts):
    assert "first blocks" in figure(facts, "candidates").svg


def test_the_last_lines_of_the_command(folder):
    lines = "\n".join(Result(folder, json.loads((folder / "result.json").read_text())).summary())
    assert lines.startswith("Found depth 8") and "timm" not in lines
    assert "  first blocks: 5,550,000 parameters, 73.50 %" in lines
    assert "  whole network, fine-tuned: 21,516,676 parameters, 88.75 %, over the limit" in lines
    assert f"  at most 3M: 2,850,000 parameters, 79.50 %, folder {folder / 'front' / '3M'}" in lines
    first = Result(folder, {**tailored_result(first=True)}).summary()
    assert first[0].startswith("Delivered the first blocks: depth 3")


def test_files_carry_the_numbers(folder, tmp_path):
    written = {p.name for p in write_report_figures(folder, tmp_path / "figures")}
    assert {"tailored-sizes.svg", "tailored-sizes.csv", "tailored-kept.svg", "tailored-kept.csv"} <= written
    with (tmp_path / "figures" / "tailored-sizes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    marks = {row["network"]: row["delivered"] for row in rows}
    assert [name for name, mark in marks.items() if mark != marks["whole network"]] == ["delivered"]
    assert float(rows[1]["parameters"]) == 5_800_000


# -- half a run, odd files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [0, 1, 2, 4, 5])
def test_half_a_run_renders(tmp_path, stages):
    facts = collect(write_tailored(tmp_path / "run", stages=stages, finished=False))
    text = render(facts)
    assert "The tailored network</h2>" in text and "cannot be shown" not in text and lead(facts) == ""
    assert "timm:vit_small_patch14_dinov2 is fine-tuned whole" in text, "the recipe names it"
    said = "The whole network has had 3 epochs and classifies 75.00 % of the search images correctly."
    assert (said in text) == (stages > 0) and ("Its parts are ordered." in text) == (stages > 0)


ODD = [
    {"whole": None},
    {"whole": 3, "sizes": 4, "peers": 5},
    {"whole": {"network": 7, "params": HUGE, "blocks": [0, 0, 1]}},
    {"whole": {"params": 0, "blocks": ["a", None]}, "peers": []},
    {"whole": {"blocks": list(range(100_000))}},
    {"whole": {"blocks": [1, 0]}},
    {"sizes": [{}, 3, {"size": "x"}, {"size": HUGE, "params": -4, "test_accuracy": float("nan"), "folder": []}]},
    {"sizes": [{"size": 3e6, "params": 1e17, "test_accuracy": 1e99, "arch": 3}] * 100},
    {"sizes": [{"params": 0, "test_accuracy": 50.0}]},
    {"arch": {"family": "tailored", "depth": 8, "heads": [1, 2], "hidden": "x"}},
    {"arch": {"family": "tailored", "depth": 2, "heads": [-1, 2], "hidden": [3, None]}},
    {"arch": {"family": "tailored", "depth": 2, "heads": [99, 99], "hidden": [10**9, 1]}},
    {"candidates": [{"name": "first blocks"}], "baseline": 4},
    {"candidates": [{"name": "first blocks", "arch": {"depth": "many"}, "test_accuracy": 40.0}, 7]},
    {"peers": [{"name": "whole network, fine-tuned"}]},
    {"peers": [{"name": "whole network, fine-tuned", "params": -1, "test_accuracy": 12.0, "gap": 3}]},
    {"params": None, "test_accuracy": 50.0},
    {"data": {}, "limits": {}},
    {"spaces": []},
]


@pytest.mark.parametrize("parts", ODD)
def test_odd_results_render(folder, parts):
    facts = changed(folder, **parts)
    text = render(facts)
    assert "The tailored network</h2>" in text and "cannot be shown" not in text
    assert not re.search(r'="[^"]*\b(nan|inf)\b', text)
    assert len(text) < 1_000_000
    assert 'class="lead"' in text


def test_a_lost_database_costs_only_itself(folder):
    (folder / "run.db").write_bytes(b"damaged")
    text = render(collect(folder))
    assert "This report is not complete" in text and "8 of 12 blocks" in text


def test_damaged_blocks_are_named(folder):
    text = section(changed(folder, whole={**tailored_result()["whole"], "blocks": [5, 5]}))
    assert "Which blocks were kept is not recorded, or damaged." in text and "tailored-kept" not in text


def test_names_are_escaped(tmp_path):
    evil = "<script>x</script>\"'&"
    text = render(collect(write_tailored(tmp_path / "run", evil)))
    assert "<script>x" not in text and "&lt;script&gt;x" in text


# -- several runs -----------------------------------------------------------------------------------------------------


def test_runs_that_cut_can_be_compared(tmp_path, make):
    folders = [write_tailored(tmp_path / f"cut-{seed}", seed=seed) for seed in (1, 2, 3)]
    for i, folder in enumerate(folders):
        changed(folder, seed=i, test_accuracy=85.0 + i)
    found = compare([*folders, make(name="other"), write_tailored(tmp_path / "half", stages=2)])
    rows = [row for row in found.runs if row.method == "tailor" and row.counted]
    assert len(rows) == 3 and len({row.group for row in rows}) == 1
    assert [row.baseline_accuracy for row in rows] == [73.5] * 3, "the first blocks stand for the baseline"
    assert [row.gain for row in rows] == [11.5, 12.5, 13.5]
    text = render_comparison(found)
    assert "tailor" in text and "not finished" in text
