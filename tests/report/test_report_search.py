"""Why and search: quality of spaces, legal moves, the trials the script gets, and the winner's ancestry."""

from __future__ import annotations

import json
import re
import statistics

import numpy as np
import pytest
from tailorvit.seek.quality import quality

from tailorvit.report import collect, render
from tailorvit.report.ancestry import ancestry, changes, family_tree, line_of
from tailorvit.report.facts import Facts, Trial, moves
from tailorvit.report.search import figures, main_stage, search
from tailorvit.report.why import figures as why_figures
from tailorvit.report.why import why
from tailorvit.runs import Run


def trial(depth, accuracy=50.0, parents=(), generation=0, **more):
    arch = {"family": "vit", "depth": depth, "heads": [2] * depth}
    return Trial(
        "search", accuracy, 1e6 * depth, 1e8, "cross", generation, arch, tuple(p.arch for p in parents), **more
    )


def data_of(text):
    return json.loads(re.search(r'id="search-data">(.*?)</script>', text, re.S)[1])


# -- why ---------------------------------------------------------------------------------------------------------------


def test_moves_read_both_forms():
    keys = ("depth", "mlp", "embed")
    assert moves([-1, 0, 1], keys) == moves({"embed": 1, "depth": -1}, keys) == "depth -1, embed +1"
    assert moves([1, 0], keys) == "dimension 1 +1", "a list that does not fit is still told"
    assert moves({}) == moves(None) == moves([0, 0, 0], keys) == "no move"


def test_legal_moves_are_named_and_the_one_taken_has_a_ring(make):
    facts = collect(make())
    assert [d.gamma for d in facts.decisions[0].legal] == ["depth -1, embed +1", "mlp +1"]
    figure = next(f for f in why_figures(facts) if f.key == "moves-0")
    assert [row[-1] for row in figure.rows] == [True, False] and figure.svg.count("ring") == 1
    assert "taken: depth -1, embed +1" in figure.svg


def test_many_legal_moves_are_folded_but_all_in_the_numbers(make):
    folder = make()
    legal = [{"gamma": {"depth": i}, "size": 1e6 + i, "cosine": i / 1000, "gain": 0.0} for i in range(1, 1001)]
    with Run.open(folder) as run:
        run.record_decision(0, {"gamma": {"depth": 1000}, "sentence": "s", "legal": legal})
    facts = collect(folder)
    text = why(facts)
    assert "The best of 1,000 legal moves" in text and "800 more are in the figure" in text
    assert text.index("depth +1000") < text.index("The next 195")
    assert len(next(f for f in why_figures(facts) if f.key == "moves-0").rows) == 1000


def test_quality_is_the_mean_of_all_and_of_the_best_fifty():
    errors = [float(i) for i in range(100)]
    assert quality(np.array(errors), 50) == (49.5, 24.5, 37.0)
    assert quality(np.array([3.0, 5.0]), 50) == (4.0, 4.0, 4.0)


def test_error_distribution_rises_to_one(make):
    facts = collect(make())
    figure = next(f for f in why_figures(facts) if f.key == "edf")
    for step in (0, 1):
        rows = [r for r in figure.rows if r[0] == step]
        errors = [100 - t.accuracy for t in facts.trials if t.stage == f"edf-{step}"]
        assert [r[1] for r in rows] == sorted(errors) and rows[-1][2] == 1.0
        assert rows[0][3] == pytest.approx(statistics.fmean(errors))
    assert len(figure.legend) == 2 and "step 0: Q" in figure.legend[0][1]


def test_fits_of_s3_hold_choice_error_line_and_shift(make):
    figure = next(f for f in why_figures(collect(make(kind="s3"))) if f.key == "fits-0")
    first = [r for r in figure.rows if r[1] == "depth.1"]
    assert [r[2] for r in first] == [1, 2, 3]
    assert [r[3] for r in first] == pytest.approx([r[4] for r in first]), "made-up errors lie on their line"
    assert {r[6] for r in first} == {1} and figure.svg.count("line c1") == 16


def test_stages_have_a_cell_each(make):
    figure = next(f for f in why_figures(collect(make(kind="s3"))) if f.key == "space-stages")
    assert len(figure.rows) == 2 * 16 and figure.svg.count("line c1") == 16
    moved = [r for r in figure.rows if (r[2], r[3]) == ("depth", "3")]
    assert [r[5] for r in moved] == [2.0, 3.0]


def test_the_limit_is_drawn_over_the_path(make):
    figure = next(f for f in why_figures(collect(make())) if f.key == "space-size")
    assert "at most 8M" in figure.svg and [r[2] for r in figure.rows] == [9e6, 7.8e6]


# -- search ------------------------------------------------------------------------------------------------------------


def test_the_script_gets_every_trial_whole(make):
    facts = collect(make())
    data = data_of(search(facts))
    assert len(data["rows"]) == len(facts.trials) and [c[0] for c in data["costs"]] == ["params", "macs", "latency"]
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for row, one in zip(data["rows"], facts.trials, strict=True):
        assert data["stages"][row[0]] == one.stage and data["sources"][row[1]] == one.source
        assert row[2] == one.generation and row[3] == pytest.approx(one.accuracy, rel=1e-6)
        assert row[4:6] == [one.params, one.macs]
        for (name, values), code in zip(data["genes"], row[-1].split("."), strict=True):
            genes = one.arch[name] if isinstance(one.arch[name], list) else [one.arch[name]]
            assert [values[letters.index(c)] for c in code] == [str(g) for g in genes]
    assert facts.trials[data["chosen"]].arch == facts.result["arch"]


@pytest.mark.parametrize("gene", [{"a": 1}, [[1]], "<b>"])
def test_genes_without_letters_are_sent_as_words(gene):
    odd = Trial("search", 1.0, 1e6, 1e6, "", 0, {"family": "x", "g": gene})
    many = [Trial("search", 1.0, 1e6, 1e6, "", 0, {"family": "x", "g": i}) for i in range(70)]
    data = data_of(search(Facts("run", False, trials=(odd, *many))))
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
    text = search(collect(make(evil="<b>\"'&</script>")))
    assert "<b>" not in text.replace("<b>64", "") and text.count("</script>") == 1


# -- ancestry ----------------------------------------------------------------------------------------------------------


def test_changes_in_words():
    old = {"family": "vit", "embed": 40, "heads": [2, 3], "mlp": [4, 4]}
    assert changes(old, {**old, "embed": 48, "heads": [2, 4]}) == "embed 40 -> 48, heads of block 2: 3 -> 4"
    assert changes(old, old) == "nothing"
    far = {"family": "vit", "embed": 1, "heads": [1, 1], "mlp": [1, 1]}
    assert changes(old, far, most=2).endswith("and 3 more")


def test_the_tree_finds_every_ancestor_once():
    a, b = trial(1, 40.0), trial(2, 50.0)
    c = trial(3, 60.0, (a, b), 1)
    d = trial(4, 70.0, (c, b), 2)
    nodes = family_tree(d, [a, b, c, d, trial(9)])
    assert [(n.arch["depth"], n.level) for n in nodes] == [(4, 0), (3, 1), (2, 1), (1, 2)]
    figure = ancestry(d, [a, b, c, d])
    assert figure.svg.count("<rect") == 4 and figure.svg.count("line thin") == 4
    assert {row[6].split(",")[0] for row in figure.rows if row[0] == 1 and row[6]} == {"depth 1 -> 3", "depth 2 -> 3"}
    steps = line_of(d, [a, b, c, d])
    assert len(steps) == 3 and "depth 3 -> 4" in steps[0][1] and steps[-1][1] == "drawn at random"


def test_circles_and_unknown_parents_end():
    me = {"family": "vit", "depth": 1}
    twin = {"family": "vit", "depth": 2}
    first = Trial("search", 1.0, 1.0, 1.0, "cross", 1, me, (twin, {"family": "gone", "depth": 7}))
    second = Trial("search", 2.0, 1.0, 1.0, "cross", 1, twin, (me, twin))
    assert len(family_tree(first, [first, second])) == 3
    assert len(line_of(first, [first, second])) == 2
    figure = ancestry(first, [first, second])
    assert "not known" in figure.svg and "?" in figure.svg


def test_a_random_winner_has_no_tree():
    alone = trial(1)
    assert ancestry(alone, [alone]) is None and line_of(alone, [alone]) == [
        (line_of(alone, [alone])[0][0], "drawn at random")
    ]


def test_a_large_tree_is_cut_and_says_so():
    trials, last = [], []
    for generation in range(12):
        last = [
            trial(generation * 20 + i + 1, 50.0 + generation, last[i : i + 2] or last[:1], generation)
            for i in range(12)
        ]
        trials += last
    figure = ancestry(trials[-12], trials)
    nodes = family_tree(trials[-12], trials)
    assert figure.svg.count("<rect") <= 60
    assert len(nodes) > 60 and f"{len(nodes) - figure.svg.count('<rect'):,} further ancestors" in figure.caption
    assert len({row[4] for row in figure.rows}) == len(nodes)


def test_slopes_that_carry_earlier_ones_say_so(make):
    folder = make()
    said = "slopes of earlier steps are part of them"
    assert said not in render(collect(folder))
    with Run.open(folder) as run:
        row = run.slopes(1)[0]
        run.record_slope(1, row["dim"], {**row, "carried": 0.01})
    page = render(collect(folder))
    assert page.count(said) == 1 and page.index(said) > page.index("Slopes at step 1")
