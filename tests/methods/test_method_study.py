"""A study of a finished run: retrained bests of its spaces, networks in three ways, exact resume, an untouched run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import tailorvit
from tailorvit.arch import Arch
from tailorvit.data import open_data
from tailorvit.errors import TailorError
from tailorvit.families import family
from tailorvit.methods.session import Session
from tailorvit.methods.stages import StageSink, load_weights
from tailorvit.methods.study import STUDY, WAYS, StudySettings, agreement, tuning
from tailorvit.runs import Run
from tailorvit.stats import kendall
from tailorvit.train import TrainSettings, accuracy

QUICK = {
    "train.epochs": 1,
    "final.train.epochs": 2,
    "train.batch": 100,
    "final.train.batch": 100,
    "final.train.lr": 5e-3,
    "s4.pairs": 2,
    "s4.iterations": 1,
    "data.limit": 200,
    "baseline": False,
    "analysis.images": 0,
    "analysis.mistakes": 0,
    "analysis.samples": 2,
}
QUIET = {"progress": "quiet"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    tailorvit.run("s4-digits", tiny=True, settings=QUICK, out=folder, **QUIET)
    return folder


@pytest.fixture(scope="module")
def whole(finished, tmp_path_factory) -> tailorvit.Study:
    """The uninterrupted study."""
    return tailorvit.study(finished, count=3, out=tmp_path_factory.mktemp("study") / "whole", **QUIET)


@pytest.fixture
def run(finished, tmp_path) -> Path:
    """A copy of the run, to change."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def same(study: tailorvit.Study) -> dict:
    return {k: v for k, v in study.items() if k != "seconds"}


def test_every_space_has_its_best_retrained(finished, whole):
    with Run.open(finished, lock=False) as run, Run.open(whole.folder, lock=False) as record:
        spaces = {row.get("step", row["t"]): row["space"] for row in run.spaces()}
        found = max(row["accuracy"] for row in run.trials("search"))
        searched = {row["arch"]: row["accuracy"] for row in record.trials("search-0")}
        trained = {row["stage"]: row["epoch"] for row in record.epochs()}
    rows = whole["spaces"]
    assert [row["t"] for row in rows] == [0, 1] and [row["searched"] for row in rows] == [False, True]
    assert rows[1]["inherited"] == found, "the run's own search, not another"
    assert searched[Arch.from_dict(rows[0]["arch"])] == rows[0]["inherited"] == max(searched.values())
    for row in rows:
        arch = Arch.from_dict(row["arch"])
        assert spaces[row["t"]].contains(arch) and row["params"] <= whole["limits"]["params"]["max"]
        assert row["retrained"]["low"] < row["retrained"]["test_accuracy"] < row["retrained"]["high"]
    assert trained["space-0"] == trained["retrained-0"] == whole["epochs"] == 2 + 1 + 1 and trained["tuned-0"] == 1, (
        "as the baseline"
    )
    text = "\n".join(whole.summary())
    assert "retrained for 4 epoch(s)" in text and f"{rows[0]['retrained']['test_accuracy']:.2f} %" in text


def test_networks_in_three_ways_are_what_their_weights_give(finished, whole):
    """Each figure, computed again from the weights in the two folders."""
    with Run.open(finished, lock=False) as run, Run.open(whole.folder, lock=False) as record:
        space, splits = run.spaces()[-1]["space"], run.read_json("splits")
        supernet = family(space.family).supernet(space, 0.0)
        load_weights(supernet, run.load_checkpoint("supernet-1")[0])
        data = open_data("digits", seed=0, saved=splits)
        data.unseal_test("test")
        row = whole["networks"][1]
        arch = Arch.from_dict(row["arch"])
        networks = {"inherited": family(space.family).extract(supernet, arch)}
        for way in WAYS[1:]:
            networks[way] = family(space.family).build(family(space.family).settings(dict(space.settings)), arch, 0.0)
            load_weights(networks[way], record.load_checkpoint(f"{way}-1")[0])
    for way, network in networks.items():
        for split in ("search", "test"):
            assert row[way][f"{split}_accuracy"] == pytest.approx(
                accuracy(network.eval(), data.eval_batches(split, 64))
            )
    assert len({json.dumps(row["arch"]) for row in whole["networks"]}) == 3, "no network is drawn twice"


def test_tau_between_each_two_ways():
    rows = [
        {way: {"test_accuracy": value} for way, value in zip(WAYS, values, strict=True)}
        for values in ((10, 30, 70), (12, 20, 80), (15, 40, 75), (20, 50, 90))
    ]
    found = {(row["first"], row["second"]): row for row in agreement(rows, 0)}
    assert set(found) == {("inherited", "tuned"), ("inherited", "retrained"), ("tuned", "retrained")}
    for (first, second), row in found.items():
        columns = [[r[way]["test_accuracy"] for r in rows] for way in (first, second)]
        assert row["tau"] == pytest.approx(kendall(*columns)) and -1 <= row["low"] <= row["tau"] <= row["high"] <= 1
    assert found["inherited", "retrained"]["gain"] == pytest.approx(64.5)
    ties = agreement([{way: {"test_accuracy": 5.0} for way in WAYS}] * 3, 0)
    assert ties[0]["tau"] is None and ties[0]["low"] is None


def test_the_run_stays_as_it_is_and_its_report_shows_the_study(run):
    def state() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in run.rglob("*") if p.is_file() and STUDY not in p.relative_to(run).parts}

    before, generator = state(), torch.get_rng_state()
    tailorvit.study(run, what="spaces", epochs=1, **QUIET)
    after = state()
    assert torch.equal(generator, torch.get_rng_state()), "torch's generator is left alone"
    changed = {k for k in before if before[k] != after.get(k)} | (set(after) - set(before))
    assert changed == {str(run / "report.html")}
    page = (run / "report.html").read_text()
    assert "The study of this run" in page and "cannot be shown" not in page


def test_killed_and_resumed_it_ends_the_same_and_then_trains_nothing(run, whole, monkeypatch):
    def stop(self, step, total, facts):
        if self.stage == "tuned-1":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match=rf"resume .*{STUDY}"):
        patch.setattr(StageSink, "progress", stop)
        tailorvit.study(run, count=3, **QUIET)
    assert "spaces" in json.loads((run / STUDY / "study.json").read_text()), "the first part is kept"
    moved = run.with_name("moved")
    run.rename(moved)
    again = tailorvit.resume(moved / STUDY, **QUIET)
    assert same(again) == same(whole)
    with monkeypatch.context() as patch:
        patch.setattr(Session, "fit", None)
        assert same(tailorvit.study(moved, **QUIET)) == same(whole), "settings left out are those it began with"
        assert same(tailorvit.study(moved, what="spaces", **QUIET)) == same(whole)


def test_one_part_after_the_other_is_the_same(run, whole):
    first = tailorvit.study(run, what="networks", count=3, **QUIET)
    assert "spaces" not in first and first["networks"] == whole["networks"]
    assert same(tailorvit.study(run, what="spaces", **QUIET)) == same(whole)


def test_spaces_without_a_network_or_a_supernet(run):
    """As where S3 grew beyond the limit and went back, and where a run has lost a supernet."""
    with Run.open(run) as record:
        rows = record.spaces()
        last, t = rows[-1]["space"], len(rows)
        dims = {d.key: d for d in last.dims}
        big = last.to_dict()
        space = type(last).from_dict(big)
        space = type(last)(
            space.family, tuple(d.only(64, 72) if d.key == "embed" else dims[d.key] for d in space.dims), space.settings
        )
        record.record_space(t, space, step=2)
        record.record_space(t + 1, last, step=1)
        record.drop_checkpoint("supernet-0")
    study = tailorvit.study(run, what="spaces", epochs=1, **QUIET)
    first, second, third = study["spaces"]
    assert "networks that the run evaluated" in first["how"] and second["searched"]
    assert "No architecture of the space has params <= " in third["problem"] and "retrained" not in third
    assert third["problem"] in "\n".join(study.summary())
    with Run.open(run) as record:
        record.drop_checkpoint("supernet-1")
    with pytest.raises(TailorError, match="The weights of 'supernet-1' are gone"):
        tailorvit.study(run, what="networks", **QUIET)


def test_mistakes(run, whole, tmp_path):
    def refused(match: str, folder: Path = run, **options) -> None:
        with pytest.raises(TailorError, match=match):
            tailorvit.study(folder, **{**QUIET, **options})

    refused("Unknown part of a study 'space'", what="space")
    refused("2 to 1000 networks, not 1", count=1)
    refused("at least one epoch, not 0", epochs=0)
    refused("holds the study of another run", folder=_changed(tmp_path, run, started="then"), out=whole.folder)
    refused("of method 'fixed', which searches in no supernet", folder=_changed(tmp_path, run, method="fixed"))
    refused("began with count 3, not 4", out=whole.folder, count=4)
    refused("began with epochs the recipe's, not 7", out=whole.folder, epochs=7)
    refused("lost its splits.json", folder=_without(run, "splits.json"))
    refused("is not a finished run", folder=_without(run, "result.json"))
    assert not (run / STUDY).exists(), "nothing was made"


def _changed(place: Path, run: Path, **facts: str) -> Path:
    """A copy of the run that says something else of itself."""
    folder = Path(shutil.copytree(run, place / "-".join(facts)))
    info = json.loads((folder / "info.json").read_text())
    (folder / "info.json").write_text(json.dumps({**info, **facts}))
    return folder


def _without(run: Path, name: str) -> Path:
    (run / name).unlink()
    return run


def test_a_tuning_is_short_and_gentle():
    settings = TrainSettings(epochs=300, lr=1e-3, min_lr=1e-5, warmup=20)
    short = tuning(settings)
    assert (short.epochs, short.lr, short.min_lr, short.warmup) == (30, pytest.approx(1e-4), 1e-5, 0)
    assert tuning(TrainSettings(epochs=3)).epochs == 1
    assert StudySettings("all").parts == {"spaces", "networks"} and not StudySettings("spaces").networks
