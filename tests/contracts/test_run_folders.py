"""What a run folder promises: the test split stays shut, the recipe in it repeats the run, trouble on disk is survived.

Kills are in tests/end_to_end/test_kill_and_resume.py. (tests/runs holds a test_run_folder.py; two of one name clash.)
"""

from __future__ import annotations

import errno
import itertools
import json

import pytest

import tailorvit
from tailorvit.config import configure, parse_recipe, to_toml
from tailorvit.costs import meter as meter_module
from tailorvit.data import Data
from tailorvit.methods import METHODS
from tailorvit.methods import session as session_module
from tailorvit.methods.session import Session
from tailorvit.methods.stages import StageSink
from tailorvit.report import write_report
from tailorvit.runs import Run, checkpoint

QUICK = ["train.epochs=1", "final.train.epochs=1", "s4.iterations=1", "s4.pairs=2"]
MINE = 'method = "s4"\n[limits]\nmax_params = "20k"\n[train]\nlr = 2e-3\n'
RECIPES = {
    "contest": ["method=contest", "data.limit=60"],
    "s4": [],
    "s3": ["method=s3"],
    "autoformer": ["method=autoformer"],
    "fixed": ["method=fixed"],
    "bignas": ["method=bignas", "final.how=retrain"],
    "hat": ["method=hat", "limits.max_latency=1s"],
    "tf-tas": ["method=tf-tas", "proxy.candidates=6"],
    "finetune": [],  # starts from a finished network
    "tailor": ["method=tailor", "start.network=random:tiny", "tailor.search=supernet"],
}
UNSEARCHED = ("contest", "fixed", "finetune", "tf-tas")  # of one network, or by scores of untrained ones


def go(folder, *sets, **options):
    recipe = folder.parent / "mine.toml"
    recipe.write_text(MINE)
    return tailorvit.run(str(recipe), out=folder, tiny=True, settings=[*QUICK, *sets], progress="quiet", **options)


def facts(folder) -> dict:
    found = json.loads((folder / "result.json").read_text())
    found.pop("seconds")
    return found


def weights(folder) -> bytes:
    return (folder / "network" / "network.safetensors").read_bytes()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "done"
    go(folder)
    return folder


def test_every_method_is_tested():
    assert set(RECIPES) == set(METHODS)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_the_test_split_is_opened_last(name, done, tmp_path, monkeypatch):
    """All training and searching is over, and the network chosen, before anything reads a test image or label."""
    seen = []
    for owner, method in ((Data, "eval_batches"), (Data, "unseal_test"), (Data, "labels"), (Data, "examples")):
        inner = getattr(owner, method)

        def watched(self, what, *rest, inner=inner, method=method):
            seen.append("test" if what == "test" or method == "unseal_test" else str(what))
            return inner(self, what, *rest)

        monkeypatch.setattr(owner, method, watched)
    fit, search = Session.fit, Session.search

    def fitted(self, model, rule, settings, stage, *args, **rest):
        seen.append(f"fit {stage}")
        return fit(self, model, rule, settings, stage, *args, **rest)

    def searched(self, *args, **rest):
        trials = search(self, *args, **rest)
        seen.append("searched")
        return trials

    monkeypatch.setattr(Session, "fit", fitted)
    monkeypatch.setattr(Session, "search", searched)
    if name == "finetune":
        result = tailorvit.finetune(done, data="digits", tiny=True, out=tmp_path / "run", progress="quiet")
    else:
        result = go(tmp_path / "run", *RECIPES[name])
    opened = seen.index("test")
    assert seen[opened:] == ["test"] * len(seen[opened:]), "nothing is trained or scored after the seal is broken"
    assert {"fit final", "search"} <= set(seen[:opened]) and (
        name in ("finetune", "contest") or "fit baseline" in seen[:opened]
    )
    assert name in UNSEARCHED or "searched" in seen[:opened]
    assert 0 <= result["test_accuracy"] <= 100


def test_what_a_finished_folder_holds(done):
    for name in (
        "recipe.toml",
        "info.json",
        "run.db",
        "splits.json",
        "log.txt",
        "result.json",
        "report.html",
        "network/network.json",
        "network/network.safetensors",
    ):
        assert (done / name).is_file(), name
    assert not list(done.rglob("*.tmp"))
    info = json.loads((done / "info.json").read_text())
    assert info["command"] and info["seed"] == 0 and "torch" in info["versions"]
    with Run.open(done, lock=False) as run:
        assert run.finished and len(run.decisions()) == 1 and run.slopes(0) and run.trials("search")
        assert {e["stage"] for e in run.epochs()} >= {"supernet-0", "final", "baseline"}
        assert set(run.seconds()) >= {"supernet-0", "slopes-0", "search", "final", "baseline"}


def test_the_resolved_recipe_repeats_the_run(done, tmp_path):
    text = (done / "recipe.toml").read_text()
    assert to_toml(configure(parse_recipe(text, "recipe"))) == text
    again = tailorvit.run(str(done / "recipe.toml"), out=tmp_path / "again", progress="quiet")
    assert facts(again.folder) == facts(done) and weights(again.folder) == weights(done)


def test_another_seed_is_another_run(done, tmp_path):
    go(tmp_path / "run", seed=1)
    found, first = facts(tmp_path / "run"), facts(done)
    assert found["seed"] == 1 and weights(tmp_path / "run") != weights(done)
    assert json.loads((tmp_path / "run" / "splits.json").read_text()) != json.loads((done / "splits.json").read_text())
    assert found.keys() == first.keys()


@pytest.mark.parametrize("stage", ["supernet-0", "supernet-1", "final", "baseline"])
def test_interrupted_anywhere_the_report_renders_and_the_run_goes_on(done, tmp_path, monkeypatch, stage):
    def stop(self, step, total, figures):
        if self.stage == stage:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StageSink, "progress", stop)
        go(folder)
    page = write_report(folder).read_text(encoding="utf-8")
    assert "<html" in page and ("unfinished" in page.lower() or "not finished" in page.lower())
    tailorvit.resume(folder, progress="quiet")
    assert facts(folder) == facts(done) and weights(folder) == weights(done)


def test_an_error_in_the_middle_leaves_a_run_to_go_on_with(done, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):
        patch.setattr(session_module, "run_search", lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
        go(tmp_path / "run")
    tailorvit.resume(tmp_path / "run", progress="quiet")
    assert facts(tmp_path / "run") == facts(done)


def test_a_full_disk_costs_checkpoints_not_the_run(done, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save", full)
    go(tmp_path / "run")
    assert facts(tmp_path / "run") == facts(done) and weights(tmp_path / "run") == weights(done)
    with Run.open(tmp_path / "run", lock=False) as run:
        assert any("disk is full" in e["text"] for e in run.events("checkpoint"))


def test_measured_costs_are_measured_once(tmp_path, monkeypatch):
    """A clock that never says the same twice: a resumed run must go by the first figures."""
    clock = itertools.count(1)

    def measure(model, shape, batch, device, **_):
        return type("Latency", (), {"median": 1e-3 + 1e-9 * next(clock)})

    monkeypatch.setattr(meter_module, "measure_latency", measure)
    folder, limits = tmp_path / "run", ["limits.max_latency=5ms", "space=vit-8px", "train.batch=200", "baseline=false"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            StageSink,
            "progress",
            lambda self, *_: (_ for _ in ()).throw(KeyboardInterrupt) if self.stage == "final" else None,
        )
        go(folder, *limits)
    with Run.open(folder, lock=False) as run:
        before = run.trials()
    read = next(clock)
    result = tailorvit.resume(folder, progress="quiet")
    assert next(clock) == read + 1, "nothing is measured again"
    with Run.open(folder, lock=False) as run:
        assert run.trials() == before
    assert result["latency"] < 5e-3 and result["limits"]["latency"] == {"min": None, "max": 5e-3}
