"""Callbacks are told what a run stores: each thing once, and the run is the same with them as without."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import tailorvit
from tailorvit import downstream
from tailorvit.callbacks import Callback, Hooks, checked
from tailorvit.errors import TailorError
from tailorvit.loggers import LOGGERS
from tailorvit.runs import Run
from tailorvit.space import Dim, Space

EVENTS = [name for name in vars(Callback) if not name.startswith("_")]
QUICK = {"train.epochs": 1, "data.limit": 60, "analysis.images": 0, "analysis.mistakes": 0, "threads": 1}
FIXED = {**QUICK, "method": "fixed", "baseline": False}
SPACE = Space("vit", (Dim("depth", (1, 2)), Dim("embed", (16, 24)), Dim("mlp", (3, 4), "block")))


class Recorder(Callback):
    """Keeps every event as (name, ...), draws from every generator, and may stop the run at an event."""

    def __init__(self, stop: str = "", after: int = 0) -> None:
        self.seen, self.stop, self.after = [], stop, after

    def told(self, event: str) -> list:
        return [rest for name, *rest in self.seen if name == event]


def _kept(event):
    def method(self, *facts):
        torch.rand(3), np.random.rand(), random.random()  # noqa: NPY002 - the generators a run seeds
        self.seen.append((event, *facts))
        if event == self.stop and len(self.told(event)) == self.after:
            raise KeyboardInterrupt

    return method


for _name in EVENTS:
    setattr(Recorder, _name, _kept(_name))


def stored(folder) -> dict:
    """What a run has come to, without times."""
    with Run.open(folder, lock=False) as run:
        trials = [(t["stage"], t["arch"], t["accuracy"]) for t in run.trials()]
        epochs = [(e["stage"], e["epoch"], e["loss"]) for e in run.epochs()]
        decisions = [d["t"] for d in run.decisions()]
    result = json.loads((folder / "result.json").read_text())
    weights = (folder / "network" / "network.safetensors").read_bytes()
    return {
        "trials": trials,
        "epochs": epochs,
        "decisions": decisions,
        "result": {k: result[k] for k in ("arch", "test_accuracy", "params")},
        "weights": weights,
    }


@pytest.fixture(scope="module")
def stopped_and_resumed(tmp_path_factory):
    """A run without callbacks, and one that was stopped among its trials and resumed: both with what they stored."""
    place = tmp_path_factory.mktemp("runs")
    options = {"tiny": True, "settings": {**QUICK, "s4.iterations": 1}, "progress": "quiet"}
    tailorvit.run(out=place / "plain", **options)
    first, second = Recorder("trial", 7), Recorder()
    with pytest.raises(KeyboardInterrupt):
        tailorvit.run(out=place / "told", **options, callbacks=[first])
    tailorvit.resume(place / "told", progress="quiet", callbacks=[second])
    return stored(place / "plain"), stored(place / "told"), first, second


def test_a_run_is_the_same_with_callbacks_that_draw_random_numbers(stopped_and_resumed):
    plain, told, *_ = stopped_and_resumed
    assert told == plain


def test_everything_stored_is_told_once_over_a_stop_and_a_resume(stopped_and_resumed):
    _, found, first, second = stopped_and_resumed
    assert len(first.told("trial")) == 7 and len(found["trials"]) > 20
    trials = [(s, f["arch"], f["accuracy"]) for s, f in first.told("trial") + second.told("trial")]
    assert trials == found["trials"]
    epochs = [(s, e, f["loss"]) for s, e, f in first.told("epoch_ends") + second.told("epoch_ends")]
    assert epochs == found["epochs"]
    assert [t for t, _ in first.told("decision") + second.told("decision")] == found["decisions"] != []
    numbers = Counter((s, f["number"]) for s, f in first.told("trial") + second.told("trial"))
    counts = Counter(s for s, *_ in found["trials"])
    assert numbers == {(s, i): 1 for s, n in counts.items() for i in range(1, n + 1)}


def test_begin_and_end_of_a_run(stopped_and_resumed):
    *_, first, second = stopped_and_resumed
    for one, resumed in ((first, False), (second, True)):
        names = [name for name, *_ in one.seen]
        assert names[0] == "run_begins" and names.count("run_begins") == 1
        info = one.told("run_begins")[0][0]
        assert info.resumed is resumed and info.method == "s4" and info.recipe["train"]["epochs"] == 1
        assert info.folder.name == "told" and info.info["data"]["source"] == "digits"
    assert [type(e) for (e,) in first.told("failed")] == [KeyboardInterrupt] and not first.told("run_ends")
    assert second.seen[-1][0] == "run_ends" and not second.told("failed")
    assert second.told("run_ends")[0][0]["test_accuracy"] >= 0


def test_stages_begin_and_end_in_pairs_and_a_finished_training_begins_no_more(stopped_and_resumed):
    *_, first, second = stopped_and_resumed
    open_stages = []
    for name, *rest in second.seen:
        if name == "stage_begins":
            open_stages.append(rest[0])
        elif name == "stage_ends":
            assert rest[0] == open_stages.pop() and rest[1] >= 0
    assert open_stages == []
    assert ["supernet-0"] in first.told("stage_begins") and ["supernet-0"] not in second.told("stage_begins")
    assert ["final"] in second.told("stage_begins")
    stopped = {s for (s,) in first.told("stage_begins")} - {s for s, _ in first.told("stage_ends")}
    assert len(stopped) == 1, "a stage that was stopped in has no end"


def test_a_finished_run_tells_nothing(tmp_path):
    tailorvit.run(out=tmp_path / "run", tiny=True, settings=FIXED, progress="quiet")
    late = Recorder()
    tailorvit.resume(tmp_path / "run", progress="quiet", callbacks=[late])
    assert late.seen == []


# -- callbacks that fail ----------------------------------------------------------------------------------------------


class Bad(Callback):
    def __init__(self):
        self.calls = 0

    def epoch_ends(self, stage, epoch, facts):
        self.calls += 1
        facts.clear()
        raise ValueError("no disk")

    def message(self, kind, text):
        raise AssertionError("switched off before")

    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = None


def test_a_callback_that_raises_is_reported_once_and_switched_off(tmp_path):
    bad, good = Bad(), Recorder()
    result = tailorvit.run(out=tmp_path / "run", tiny=True, settings=FIXED, progress="quiet", callbacks=[bad, good])
    warning = "The callback Bad failed in epoch_ends (ValueError: no disk); it is off now."
    with Run.open(result.folder, lock=False) as run:
        assert [e["text"] for e in run.events("warning")] == [warning]
        assert all("loss" in row for row in run.epochs()) and len(run.epochs()) > 1
    assert bad.calls == 1
    assert ["warning", warning] in good.told("message") and good.seen[-1][0] == "run_ends"


def test_a_report_that_fails_too_does_no_harm():
    def full_disk(text):
        raise TailorError("full")

    hooks = Hooks([Bad()], full_disk)
    hooks.tell("epoch_ends", "final", 1, {})
    assert not hooks


def test_a_failure_of_the_run_is_told(tmp_path, monkeypatch):
    from tailorvit import api

    def broken(session):
        raise TailorError("broken")

    monkeypatch.setattr(api, "run_method", broken)
    seen = Recorder()
    with pytest.raises(TailorError, match="broken"):
        tailorvit.run(out=tmp_path / "run", tiny=True, settings=FIXED, progress="quiet", callbacks=[seen])
    assert [str(e) for (e,) in seen.told("failed")] == ["broken"] and ["failed", "broken"] in seen.told("message")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([print], "must be an object of tailorvit.Callback, not <built-in"),
        (print, "must be an object of tailorvit.Callback, not <built-in"),
        ([Recorder], r"make an object of it: Recorder\(\)"),
        ("cvs", "Unknown logger 'cvs'. Did you mean 'csv'"),
        (["csv", "mlflows"], "Did you mean 'mlflow'"),
    ],
)
def test_what_is_no_callback_is_refused_before_there_is_a_folder(tmp_path, given, sentence):
    for call in (tailorvit.run, lambda **o: tailorvit.finetune("nowhere", data="digits", **o)):
        with pytest.raises(TailorError, match=sentence):
            call(out=tmp_path / "run", callbacks=given)
    with pytest.raises(TailorError, match=sentence):
        tailorvit.resume(tmp_path / "run", callbacks=given)
    assert not (tmp_path / "run").exists()


# -- what is told, row by row -----------------------------------------------------------------------------------------


def test_rows_that_are_there_are_not_told_again(tmp_path):
    small, large = SPACE.smallest(), SPACE.largest()
    trial = {"arch": small, "accuracy": 50.0, "params": 7, "macs": 9, "costs": {"latency": 0.1}}
    with Run.create(tmp_path / "run", "", {}) as run:
        run.record_trials("search", [trial])
        run.record_epoch("final", 1, loss=1.0)
        run.record_decision(0, {"kind": "move"})
        seen = Recorder()
        run.hooks = Hooks([seen])
        run.record_trials("search", [trial, {**trial, "arch": large}, {**trial, "arch": large}])
        run.record_trials("edf-0", [trial])
        run.record_epoch("final", 1, loss=1.0)
        run.record_epoch("final", 2, loss=0.5)
        run.record_epoch("baseline", 2, loss=0.4)
        run.record_decision(0, {"kind": "move"})
        run.record_decision(1, {"kind": "stop"})
        run.event("note", "a word")
        costs = seen.told("trial")[0][1]["costs"]
        costs.clear()
        assert trial["costs"], "what a callback does with its facts stays its own"
    assert [(s, f["arch"], f["number"]) for s, f in seen.told("trial")] == [("search", large, 2), ("edf-0", small, 1)]
    assert seen.told("epoch_ends") == [["final", 2, {"loss": 0.5}], ["baseline", 2, {"loss": 0.4}]]
    assert seen.told("decision") == [[1, {"kind": "stop"}]]
    assert seen.told("message") == [["note", "a word"]]


def test_what_other_processes_did_is_told_by_the_writer(tmp_path):
    with Run.create(tmp_path / "other", "", {}) as other, Run.create(tmp_path / "run", "", {}) as run:
        other.record_epoch("fit-1", 1, loss=1.0)
        other.event("note", "from there")
        seen = Recorder()
        run.hooks = Hooks([seen])
        run.absorb(other.drained())
    assert seen.told("epoch_ends") == [["fit-1", 1, {"loss": 1.0}]] and seen.told("message") == [["note", "from there"]]


def test_the_examples_of_the_page_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna")
    page = (Path(__file__).parent.parent / "docs" / "callbacks.md").read_text(encoding="utf-8")
    first, last = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(first, names)
    assert (tmp_path / "runs" / "told" / "log.csv").is_file()
    exec(last, names)
    assert names["study"].best_value == names["best"].accuracy > 0
    assert f"done: {names['result'].test_accuracy:.1f} %" in capsys.readouterr().out


def test_the_page_names_every_event_and_logger():
    page = (Path(__file__).parent.parent / "docs" / "callbacks.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)\(", page, re.M) == EVENTS
    assert re.findall(r"^\| `(\w+)` \|", page, re.M) == list(LOGGERS)


def test_every_call_that_works_takes_callbacks():
    import inspect

    calls = (tailorvit.run, tailorvit.resume, tailorvit.finetune, tailorvit.study, tailorvit.work, downstream.resume)
    for call in calls:
        assert inspect.signature(call).parameters["callbacks"].default == ()
    assert checked([]) == ()
