"""What a run leaves for its report: candidates, blocks, analysis, samples of every space; also when it fails."""

from __future__ import annotations

import json

import pytest

from tailorvit import api
from tailorvit.arch import Arch
from tailorvit.costs import Counter
from tailorvit.errors import TailorError
from tailorvit.methods import finish as finish_module
from tailorvit.methods import team
from tailorvit.runs import Run

SETS = ["train.epochs=1", "final.train.epochs=1", "s4.iterations=1", "final.candidates=2", "analysis.samples=5"]
SETS += ["analysis.images=2"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return api.run(out=tmp_path_factory.mktemp("runs") / "run", tiny=True, settings=SETS, progress="quiet")


def test_candidates_are_listed_and_the_chosen_one_is_the_result(finished):
    rows = finished["candidates"]
    (chosen,) = [r for r in rows if r["chosen"]]
    assert [r["name"] for r in rows] == ["found 1", "found 2", "baseline"] and rows[0]["arch"] != rows[1]["arch"]
    for key in ("arch", "params", "macs", "search_accuracy", "final_search_accuracy", "test_accuracy"):
        assert chosen[key] == finished[key], key
    assert finished["chosen"] == ("baseline" if chosen["name"] == "baseline" else "found")
    assert chosen["name"] in finished["tied"] and finished["why"].endswith(".")
    assert [(c["first"], c["second"]) for c in finished["comparison"]] == [
        ("found 1", "found 2"),
        ("found 1", "baseline"),
        ("found 2", "baseline"),
    ]
    by_name = {r["name"]: r["final_search_accuracy"] for r in rows}
    for row in finished["comparison"]:
        assert row["difference"] == pytest.approx(by_name[row["first"]] - by_name[row["second"]])
        assert row["low"] <= row["difference"] <= row["high"] and row["images"] == finished["data"]["counts"]["search"]


def test_blocks_and_the_rest_make_the_whole(finished):
    arch = Arch.from_dict(finished["arch"])
    counter = Counter("vit", finished["settings"])
    outside = [row for row in counter.parts(arch) if not row.part.startswith("blocks.")]
    blocks = finished["blocks"]
    assert [b["heads"] for b in blocks] == list(arch.many("heads"))
    assert sum(b["params"] for b in blocks) + sum(r.params for r in outside) == finished["params"]
    assert sum(b["macs"] for b in blocks) + sum(r.macs for r in outside) == finished["macs"]


def test_analysis_agrees_with_the_result(finished):
    seen = json.loads((finished.folder / "analysis.json").read_text())
    test = seen["test"]
    assert test["count"] == finished["data"]["counts"]["test"] == sum(n for _, _, n in test["confusion"])
    assert 100 * test["correct"] / test["count"] == pytest.approx(finished["test_accuracy"])
    assert len(seen["attention"]["layers"]) == finished["arch"]["depth"] and len(seen["attention"]["images"]) == 2


def test_every_trained_space_has_its_sample(finished):
    with Run.open(finished.folder, lock=False) as run:
        steps = [row["step"] for row in run.spaces()]
        assert [len(run.trials(f"edf-{t}")) for t in steps] == [5] * len(steps)
    page = (finished.folder / "report.html").read_text()
    assert 'id="edf"' in page and 'id="attention-maps"' in page and 'id="confusion"' in page


def test_a_run_that_fails_says_so_in_log_and_report(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("the device caught fire")

    monkeypatch.setattr(team, "train", broken)
    with pytest.raises(RuntimeError, match="caught fire"):
        api.run(out=tmp_path / "run", tiny=True, progress="quiet")
    with Run.open(tmp_path / "run") as run:
        assert [e["text"] for e in run.events("failed")] == ["RuntimeError: the device caught fire"]
        assert not run.finished
    page = (tmp_path / "run" / "report.html").read_text()
    assert "failed" in page and "the device caught fire" in page


def test_a_failed_analysis_costs_no_result(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise TailorError("No picture today.")

    monkeypatch.setattr(finish_module, "analyse", broken)
    result = api.run(out=tmp_path / "run", tiny=True, settings=SETS, progress="quiet")
    assert result["test_accuracy"] > 0 and not (tmp_path / "run" / "analysis.json").exists()
    with Run.open(tmp_path / "run", lock=False) as run:
        assert "No picture today." in run.events("warning")[0]["text"]
    assert "analysis" in (tmp_path / "run" / "report.html").read_text()


def test_a_failed_page_costs_no_result(tmp_path, monkeypatch):
    import tailorvit.report

    def broken(*_, **__):
        raise ZeroDivisionError("a chart without numbers")

    monkeypatch.setattr(tailorvit.report, "write_report", broken)
    result = api.run(out=tmp_path / "run", tiny=True, settings=SETS, progress="quiet")
    assert result["test_accuracy"] > 0
    with Run.open(tmp_path / "run", lock=False) as run:
        assert "a chart without numbers" in run.events("warning")[-1]["text"] and run.finished
