"""tailorvit rank: scores beside the size, seeds, missing values, refusals, text, JSON and figure."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from rank_tools import pit_rows, tiny_rows, vit_rows, write
from typer.testing import CliRunner

from tailorvit import cli
from tailorvit.errors import TailorError
from tailorvit.proxies.ranking import rank, rank_file, share, to_compute
from tailorvit.proxies.tables import table_of
from tailorvit.report.ranking import ranking_figure, write_ranking


def oracle(noise=0.0, holes=0):
    """Scores from the formula behind the rows' accuracies: depth, plus noise of the seed."""

    def score(family, fixed, archs, names, seed):
        rng = np.random.default_rng(seed)
        values = [float(a.one("depth")) + noise * rng.normal() for a in archs]
        found = {n: [None if i < holes else v for i, v in enumerate(values)] for n in names}
        return found, [f"{names[0]} has no score for {holes} architectures."] if holes else []

    return score


def entry(ranking, score, target=None):
    return next(e for e in ranking.entries if e.score == score and target in (None, e.target))


def test_the_free_ones_always_stand_beside():
    table = table_of("t", vit_rows(60))
    found = rank(table, ["dss"], oracle(), bootstrap=50)
    assert [e.score for e in found.entries] == ["params", "macs", "depth", "dss"]
    assert entry(found, "dss").agreement == entry(found, "depth").agreement
    assert entry(found, "dss").verdict == "better than #params" and entry(found, "params").verdict == ""
    free = rank(table, ["params"], bootstrap=50)
    assert [e.score for e in free.entries] == ["params", "macs", "depth"]


def test_a_score_against_the_truth_is_worse():
    table = table_of("t", [{**r, "top1": -r["top1"]} for r in vit_rows(60)])
    assert entry(rank(table, ["dss"], oracle(), bootstrap=50), "dss").verdict == "worse than #params"


def test_every_target_or_the_one_named():
    table = table_of("t", vit_rows(30, form="vitbench"))
    assert rank(table, ["dss"], oracle(), bootstrap=5).targets == ["c100_acc", "noise_acc"]
    assert rank(table, ["dss"], oracle(), target="noise_acc", bootstrap=5).targets == ["noise_acc"]


def test_seeds_are_kept_apart_and_merged():
    table = table_of("t", vit_rows(80))
    found = entry(rank(table, ["dss"], oracle(2.0), seeds=4, bootstrap=20), "dss").agreement
    assert len(found.by_seed) == 4 and len(set(found.by_seed)) == 4
    assert found.band_tau.value > np.mean(found.by_seed), "four initialisations together rank better than one"
    steady = rank(table, ["dss"], oracle(), seeds=3, bootstrap=20)
    assert entry(steady, "dss").agreement.by_seed == (), "a score without chance has nothing to spread"
    assert "seeds" not in steady.text() and "seeds" in rank(table, ["dss"], oracle(2.0), seeds=2, bootstrap=5).text()


def test_missing_scores_are_counted_and_explained():
    found = rank(table_of("t", vit_rows(30)), ["dss"], oracle(holes=4), bootstrap=5)
    assert entry(found, "dss").agreement.rows == 26
    assert found.notes == ("dss has no score for 4 architectures.",)
    assert "dss (26 rows)" in found.text() and found.notes[0] in found.text()


def test_rows_without_an_accuracy_are_left_out_for_it(tmp_path):
    rows = vit_rows(30, form="vitbench")
    for row in rows[:7]:
        row["c100_acc"] = None
    found = rank_file(write(tmp_path / "t.json", rows), ["depth"])
    alone = rank_file(write(tmp_path / "u.json", rows[7:]), ["depth"])
    assert entry(found, "depth", "c100_acc").agreement == entry(alone, "depth", "c100_acc").agreement
    assert {e.agreement.rows for e in found.of("c100_acc")} == {23} and found.rows == 30
    assert {e.agreement.rows for e in found.of("noise_acc")} == {30}, "the other accuracy keeps them"
    note = "'c100_acc' is null in 7 of 30 rows, which are left out for it."
    assert found.notes == (note,) and note in found.text() and "depth (23 rows)" in found.text()
    assert rank(table_of("t", rows), ["depth"], target="noise_acc", bootstrap=2).notes == ()
    nothing = rank(table_of("t", [{**r, "c100_acc": None} for r in rows]), ["depth"], bootstrap=2)
    assert entry(nothing, "depth", "c100_acc").agreement.tau.value is None and "null in 30 of 30" in nothing.text()


def pit_row():
    return {
        "arch": {"family": "pit", "base": 8, "depth": [1, 1, 1], "heads": [1, 2, 2], "mlp": 2},
        "fixed": {"image_size": 8, "patch": 2, "stride": 1},
        "accuracy": 3.0,
    }


def test_mixed_families_are_scored_in_groups():
    groups = []

    def score(family, fixed, archs, names, seed):
        groups.append((family, len(archs)))
        return {n: [float(len(a)) for a in archs] for n in names}, []

    rank(table_of("t", [*tiny_rows(5), pit_row(), pit_row()]), ["dss"], score, bootstrap=2)
    assert groups == [("vit", 5), ("pit", 2)]


def test_refusals_come_before_any_scoring(tmp_path):
    path = write(tmp_path / "t.json", tiny_rows(4))
    cases = [
        ({"names": ["dds"]}, "Unknown proxy 'dds'. Did you mean 'dss'"),
        ({"names": ["dss", "nasswot"]}, "Unknown proxy 'nasswot'"),
        ({"names": ["dss"], "target": "top1"}, "Unknown target 'top1'"),
        ({"names": ["dss"], "band": "wide"}, "'wide'"),
        ({"names": ["dss"], "band": "0"}, "above zero"),
        ({"names": ["dss"], "seeds": 0}, "at least 1"),
    ]
    for options, words in cases:
        with pytest.raises(TailorError) as error:
            rank_file(path, options.pop("names"), **options)
        assert words in str(error.value)


def test_bands_and_names_as_people_write_them():
    assert share("5%") == share(" 5 % ") == share("0.05") == pytest.approx(0.05)
    assert to_compute(["macs", "dss", "params", "naswot", "dss"]) == ["dss", "naswot"]


# -- the command -------------------------------------------------------------------------------------------------------


def run(*args):
    done = CliRunner().invoke(cli.app, ["rank", *map(str, args)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_real_proxies_from_the_command_line(tmp_path):
    path = write(tmp_path / "t.json", tiny_rows(12))
    done = run(path, "--proxy", "dss,snip", "--seeds", 2, "--band", "20%", "--json")
    facts = json.loads(done.stdout)
    scores = {r["score"]: r for r in facts["results"]}
    assert list(scores) == ["params", "macs", "depth", "dss", "snip"]
    assert scores["dss"]["rows"] == 12 and scores["dss"]["tau"]["value"] is not None
    assert len(scores["dss"]["by_seed"]) == 2 and facts["band"] == pytest.approx(0.2)
    assert any("snip saw seeded noise" in note for note in facts["notes"])
    assert json.loads(run(path, "--proxy", "dss,snip", "--seeds", 2, "--band", "20%", "--json").stdout) == facts


def test_text_and_figure(tmp_path):
    path = write(tmp_path / "t.json", pit_rows(40))
    figure = tmp_path / "f.svg"
    done = run(path, "--proxy", "params", "--figure", figure, "--limit", 30)
    assert "vitbench pit): 30 architectures" in done.output
    for word in ("params", "macs", "depth", "tau, within 5 %"):
        assert word in done.output
    words = "".join(ET.parse(figure).getroot().itertext())
    assert "depth" in words and "macs" in words and "within 5 % of size" in words


def test_the_figure_holds_its_numbers(tmp_path):
    found = rank(table_of("t", vit_rows(60)), ["dss"], oracle(), bootstrap=20)
    figure = ranking_figure(found)
    row = dict(zip(figure.columns, figure.rows[-1]))
    assert row["score"] == "dss" and row["band_tau"] == entry(found, "dss").agreement.band_tau.value
    with pytest.raises(TailorError, match=r"\.svg"):
        write_ranking(found, tmp_path / "f.png")
