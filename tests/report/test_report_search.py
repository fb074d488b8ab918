"""Space and search: quality of spaces, possible moves, candidates, and the trials that the script gets."""

from __future__ import annotations

import json
import re
import statistics

import pytest

from tailorvit.report import collect, search, space
from tailorvit.report.markup import stage_name
from tailorvit.report.reading import Facts, Trial, moves
from tailorvit.report.search import figures, main_stage
from tailorvit.runs import Run


def data_of(text):
    return json.loads(re.search(r'id="search-data">(.*?)</script>', text, re.S)[1])


# -- space -------------------------------------------------------------------------------------------------------------


def test_moves_read_both_forms():
    keys = ("depth", "mlp", "embed")
    assert moves([-1, 0, 1], keys) == moves({"embed": 1, "depth": -1}, keys) == "depth -1, embed +1"
    assert moves([1, 0], keys) == "dimension 1 +1", "a list that does not fit is still shown"
    assert moves({}) == moves(None) == moves([0, 0, 0], keys) == "no move"


def test_legal_moves_are_named_and_the_one_taken_has_a_ring(make):
    facts = collect(make())
    assert [d.gamma for d in facts.decisions[0].legal] == ["depth -1, embed +1", "mlp +1"]
    figure = next(f for f in space.figures(facts) if f.key == "moves-0")
    assert [row[-1] for row in figure.rows] == [True, False] and figure.svg.count("ring") == 1
    assert "taken: depth -1, embed +1" in figure.svg


def test_many_legal_moves_are_folded_but_all_in_the_numbers(make):
    folder = make()
    legal = [{"gamma": {"depth": i}, "size": 1e6 + i, "cosine": i / 1000, "gain": 0.0} for i in range(1, 1001)]
    with Run.open(folder) as run:
        run.record_decision(0, {"gamma": {"depth": 1000}, "sentence": "s", "legal": legal})
    facts = collect(folder)
    text = space.section(facts)
    assert "The best of 1,000 possible moves" in text and "800 more are in the figure" in text
    assert text.index("depth +1000") < text.index("The next 195")
    assert len(next(f for f in space.figures(facts) if f.key == "moves-0").rows) == 1000


def test_error_distribution_rises_to_one(make):
    facts = collect(make())
    figure = next(f for f in space.figures(facts) if f.key == "edf")
    for step in (0, 1):
        rows = [r for r in figure.rows if r[0] == step]
        errors = [100 - t.accuracy for t in facts.trials if t.stage == f"edf-{step}"]
        assert [r[1] for r in rows] == sorted(errors) and rows[-1][2] == 1.0
        mean, best = statistics.fmean(errors), statistics.fmean(sorted(errors)[:50])
        assert rows[0][3:] == pytest.approx((mean, best, (mean + best) / 2))
    assert len(figure.legend) == 2 and figure.legend[0][1].startswith("step 0: mean error ")


def test_fits_of_s3_hold_choice_error_line_and_shift(make):
    figure = next(f for f in space.figures(collect(make(kind="s3"))) if f.key == "fits-0")
    first = [r for r in figure.rows if r[1] == "depth.1"]
    assert [r[2] for r in first] == [1, 2, 3]
    assert [r[3] for r in first] == pytest.approx([r[4] for r in first]), "made-up errors lie on their line"
    assert {r[6] for r in first} == {1} and figure.svg.count("line c1") == 16


def test_stages_have_a_cell_each(make):
    figure = next(f for f in space.figures(collect(make(kind="s3"))) if f.key == "space-stages")
    assert len(figure.rows) == 2 * 16 and figure.svg.count("line c1") == 16
    moved = [r for r in figure.rows if (r[2], r[3]) == ("depth", "3")]
    assert [r[5] for r in moved] == [2.0, 3.0]


def test_the_limit_is_drawn_over_the_path(make):
    figure = next(f for f in space.figures(collect(make())) if f.key == "space-size")
    assert "at most 8M" in figure.svg and [r[2] for r in figure.rows] == [9e6, 7.8e6]


# -- search ------------------------------------------------------------------------------------------------------------


def test_the_script_gets_every_trial_whole(make):
    facts = collect(make())
    data = data_of(search.section(facts))
    assert len(data["rows"]) == len(facts.trials) and [c[0] for c in data["costs"]] == ["params", "macs", "latency"]
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for row, one in zip(data["rows"], facts.trials, strict=True):
        assert data["stages"][row[0]] == stage_name(one.stage) and data["sources"][row[1]] == one.source
        assert row[2] == one.generation and row[3] == pytest.approx(one.accuracy, rel=1e-6)
        assert row[4:6] == [one.params, one.macs]
        for (name, values), code in zip(data["genes"], row[-1].split("."), strict=True):
            genes = one.arch[name] if isinstance(one.arch[name], list) else [one.arch[name]]
            assert [values[letters.index(c)] for c in code] == [str(g) for g in genes]
    assert facts.trials[data["chosen"]].arch == facts.result.arch


@pytest.mark.parametrize("gene", [{"a": 1}, [[1]], "<b>"])
def test_genes_without_letters_are_sent_as_words(gene):
    odd = Trial("search", 1.0, 1e6, 1e6, "", 0, {"family": "x", "g": gene})
    many = [Trial("search", 1.0, 1e6, 1e6, "", 0, {"family": "x", "g": i}) for i in range(70)]
    data = data_of(search.section(Facts("run", False, trials=(odd, *many))))
    assert data["genes"] is None and data["rows"][5][-1] == "g 4"


def test_figures_hold_all_trials_the_front_and_the_choice(make):
    facts = collect(make())
    figure = next(f for f in figures(facts) if f.key == "search-trials")
    rows = [dict(zip(figure.columns, row, strict=True)) for row in figure.rows]
    assert len(rows) == len(facts.trials) and sum(r["chosen"] for r in rows) == 1
    best = [r for r in rows if r["front"]]
    for row in best:
        others = [r for r in rows if r["stage"] == "search" and r["params"] <= row["params"]]
        assert row["accuracy"] == max(r["accuracy"] for r in others)


def test_the_main_stage_is_the_search_or_what_evolved_last():
    def of(*stages):
        return Facts("r", False, trials=tuple(Trial(s, 1.0, 1.0, 1.0, "", g, {}) for s, g in stages))

    assert main_stage(of(("edf-0", None), ("search", 0), ("edf-1", None))) == "search"
    assert main_stage(of(("evolve", 0), ("evolve", 1), ("edf-1", 0))) == "evolve"
    assert main_stage(of(("slopes-0", 0), ("edf-1", 0))) == "edf-1"
    assert main_stage(of()) is None


def test_best_so_far_never_falls(make):
    figure = next(f for f in figures(collect(make(kind="free"))) if f.key == "search-generations")
    so_far = [row[4] for row in figure.rows]
    assert so_far == sorted(so_far) and all(row[3] <= row[2] <= row[4] for row in figure.rows)
    assert sum(row[1] for row in figure.rows) == 60


def test_hostile_sources_stay_text(make):
    text = search.section(collect(make(evil="<b>\"'&</script>")))
    assert "<b>" not in text.replace("<b>64", "") and text.count("</script>") == 1


# -- candidates --------------------------------------------------------------------------------------------------------


def candidate(inherited, final, test, **more):
    row = {"arch": {"family": "vit", "depth": 2}, "params": 5e6, "search_accuracy": inherited}
    return {**row, "final_search_accuracy": final, "test_accuracy": test, "chosen": False, **more}


def drawn(candidates):
    result = {"final": "retrain", "candidates": list(candidates)}
    return {f.key: f for f in figures(Facts("run", True, result=result))}.get("candidates")


def test_candidates_before_and_after_their_training():
    figure = drawn([candidate(70, 75, 76), candidate(68, 76, 74), candidate(66, 73, 73, chosen=True)])
    assert figure.svg.count("<circle") == 9 and ">3*</text>" in figure.svg and "<rect" not in figure.svg
    assert figure.rows[1] == (2, "depth 2", 5e6, 68, 76, 74, False)
    assert figure.legend[1] == ("c1", "trained from scratch")


def test_candidates_without_inherited_weights_have_no_such_dots():
    figure = drawn([candidate(None, 75, 76), candidate(None, 74, 77)])
    assert figure.svg.count("<circle") == 4 and [style for style, _ in figure.legend] == ["c1", "c2"]


@pytest.mark.parametrize("rows", [[], [candidate(70, 75, 76)], [candidate("x", float("nan"), 10**400), 5, None] * 2])
def test_nothing_to_compare_is_not_drawn(rows):
    assert drawn(rows) is None


def test_many_candidates_are_drawn_in_part():
    figure = drawn([candidate(60 + i / 10, 70, 70) for i in range(60)])
    assert "40 of 60 are drawn." in figure.caption and len(figure.rows) == 60


def test_hostile_candidates_stay_text():
    figure = drawn([candidate(70, 75, 76, arch={"depth": "<script>"})] * 2)
    assert "<script>" not in figure.svg and "&lt;script&gt;" in figure.svg


# -- stages in words ---------------------------------------------------------------------------------------------------


def test_stages_have_plain_names():
    named = {"edf-1": "random sample of space 1", "supernet-0": "supernet 0", "search": "search", "odd-3": "odd-3"}
    assert {stage: stage_name(stage) for stage in named} == named
