"""Loggers: what they write of a run, and that a resumed run goes on where it was."""

from __future__ import annotations

import csv
import sys
from types import ModuleType, SimpleNamespace

import pytest
from typer.testing import CliRunner

import tailorvit
from tailorvit import cli, loggers
from tailorvit.callbacks import Callback, RunInfo
from tailorvit.errors import TailorError
from tailorvit.loggers import LOGGERS, CsvLogger, TensorBoardLogger, callbacks_of, with_tensorboard

QUICK = {"train.epochs": 1, "data.limit": 60, "analysis.images": 0, "analysis.mistakes": 0, "threads": 1}
QUICK |= {"method": "fixed", "baseline": False}
RECIPE = {"seed": 3, "train": {"epochs": 2, "rule": "single"}, "note": None}


@pytest.fixture
def installed(monkeypatch):
    """Pretend that a library is there, with this module."""

    def install(name, **parts):
        module = ModuleType(name)
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(loggers, "find_spec", lambda name: SimpleNamespace())

    return install


def story(logger, folder, result=True, resumed=False):
    """One run as a logger sees it: an epoch, a trial, and its end."""
    logger.run_begins(RunInfo(folder, "s4", RECIPE, {}, resumed))
    logger.stage_begins("final")
    logger.epoch_ends("final", 2, {"loss": 0.5, "note": "text", "kept": True})
    logger.stage_ends("final", 1.0)
    trial = {"number": 7, "arch": object(), "accuracy": 50.0, "params": 10, "macs": 20, "costs": {"latency": 0.1}}
    logger.trial("search", trial)
    if result:
        logger.run_ends({"test_accuracy": 60.0, "params": 10, "arch": {}, "test": {"mAP": 0.3}})
    else:
        logger.failed(KeyboardInterrupt())


TOLD = {"final/loss": 0.5}
TRIAL = {"search/accuracy": 50.0, "search/params": 10, "search/macs": 20, "search/latency": 0.1}
RESULT = {"test_accuracy": 60.0, "params": 10, "test_mAP": 0.3}


# -- names ------------------------------------------------------------------------------------------------------------


def test_names_and_objects_become_callbacks():
    one, other = Callback(), CsvLogger()
    assert [type(c) for c in callbacks_of("csv, csv,")] == [CsvLogger]
    assert callbacks_of([one, other, one])[:2] == (one, other) and len(callbacks_of([one, one])) == 1
    assert callbacks_of(one) == (one,) and callbacks_of("") == () == callbacks_of(())
    assert [type(c) for c in with_tensorboard(())] == [TensorBoardLogger]
    assert with_tensorboard([one, there := TensorBoardLogger()]) == (one, there)


@pytest.mark.parametrize("name", sorted(set(LOGGERS) - {"csv"}))
def test_a_missing_library_is_one_sentence_before_anything_begins(name, monkeypatch, tmp_path):
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(TailorError, match=f"The logger {name} needs the package {name}: pip install '.*{name}.*'"):
        tailorvit.run(out=tmp_path / "run", callbacks=f"csv,{name}")
    assert not (tmp_path / "run").exists()


def test_the_help_names_every_logger():
    text = CliRunner().invoke(cli.app, ["resume", "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"}).output
    assert ", ".join(LOGGERS) in text


@pytest.mark.parametrize("verb", ["run", "resume", "finetune"])
def test_torchrun_takes_no_option_of_ours_as_its_own(verb):
    """It reads the beginning of an option as the option, also behind the program's name."""
    import typer
    from torch.distributed.run import get_args_parser

    known = [o for p in typer.main.get_command(cli.app).commands[verb].params for o in p.opts if o.startswith("--")]
    assert "--log-to" in known
    for option in known:
        found = get_args_parser().parse_args(["-m", "tailorvit", verb, option])
        assert found.training_script_args == [verb, option]
    with pytest.raises(SystemExit):
        get_args_parser().parse_args(["-m", "tailorvit", verb, "--log"])


# -- files ------------------------------------------------------------------------------------------------------------


def rows(folder) -> list[list[str]]:
    with (folder / "log.csv").open(newline="") as file:
        return list(csv.reader(file))


def test_csv_has_a_line_for_every_figure(tmp_path):
    story(CsvLogger(), tmp_path)
    assert rows(tmp_path) == [
        ["stage", "what", "number", "name", "value"],
        ["final", "epoch", "2", "loss", "0.5"],
        *(["search", "trial", "7", k.removeprefix("search/"), str(v)] for k, v in TRIAL.items()),
        *(["", "result", "", k, str(v)] for k, v in RESULT.items()),
    ]


def test_csv_goes_on_after_a_line_that_a_kill_cut(tmp_path):
    story(CsvLogger(), tmp_path, result=False)
    with (tmp_path / "log.csv").open("a") as file:
        file.write("final,epo")
    before = len(rows(tmp_path))
    story(CsvLogger(), tmp_path, resumed=True)
    found = rows(tmp_path)
    assert found[before - 1] == ["final", "epo"] and found[before] == ["final", "epoch", "2", "loss", "0.5"]
    assert sum(row[0] == "stage" for row in found) == 1


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_has_a_folder_for_every_stage(tmp_path):
    pytest.importorskip("tensorboard")
    story(TensorBoardLogger(), tmp_path)
    assert scalars(tmp_path / "tensorboard" / "final") == {"loss": [(2, 0.5)]}
    assert scalars(tmp_path / "tensorboard" / "search")["accuracy"] == [(7, 50.0)]
    assert scalars(tmp_path / "tensorboard" / "result")["test_accuracy"] == [(0, 60.0)]


def test_a_run_from_the_command_line_and_by_the_recipes_key(tmp_path):
    pytest.importorskip("tensorboard")
    sets = [
        word for key, value in {**QUICK, "tensorboard": True}.items() for word in ("--set", f"{key}={value}".lower())
    ]
    command = ["run", "--tiny", "--quiet", "--out", str(tmp_path / "run"), "--log-to", "csv", *sets]
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0, done.output
    lost = [
        (int(n), float(v)) for s, w, n, k, v in rows(tmp_path / "run")[1:] if (s, w, k) == ("final", "epoch", "loss")
    ]
    drawn = scalars(tmp_path / "run" / "tensorboard" / "final")["loss"]
    assert [n for n, _ in lost] == [n for n, _ in drawn] == list(range(1, len(lost) + 1)) != []
    assert [v for _, v in drawn] == pytest.approx([v for _, v in lost])


# -- services ---------------------------------------------------------------------------------------------------------


class FakeRun:
    """A run of wandb or trackio."""

    def __init__(self):
        self.logged, self.metrics, self.summary, self.ended = [], [], {}, []

    def define_metric(self, name, step_metric):
        self.metrics.append((name, step_metric))

    def log(self, figures):
        self.logged.append(figures)

    def finish(self, **how):
        self.ended.append(how)


def service():
    """What begins runs, and those begun, each with what it was begun with."""
    begun = []

    def init(**options):
        begun.append((options, FakeRun()))
        return begun[-1][1]

    return init, begun


def test_wandb_gets_figures_by_stage_and_goes_on_in_the_same_run(tmp_path, installed, monkeypatch):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    init, begun = service()
    installed("wandb", init=init)
    story(LOGGERS["wandb"](), tmp_path, result=False)
    story(LOGGERS["wandb"](), tmp_path, resumed=True)
    (first, stopped), (second, ended) = begun
    assert first["project"] == "tailorvit" and first["name"] == tmp_path.name and first["config"] == RECIPE
    assert first["id"] == second["id"] and first["resume"] == "allow" and first["reinit"] == "create_new"
    assert stopped.ended == [{"exit_code": 1}] and stopped.summary == {}
    assert ended.logged == [{"final/epoch": 2, **TOLD}, {"search/trial": 7, **TRIAL}]
    assert ended.metrics == [("final/*", "final/epoch"), ("search/*", "search/trial")]
    assert ended.summary == RESULT and ended.ended == [{"exit_code": 0}]


def test_trackio_goes_on_under_the_same_name(tmp_path, installed, monkeypatch):
    monkeypatch.setenv("TRACKIO_PROJECT", "photos")
    init, begun = service()
    installed("trackio", init=init)
    story(LOGGERS["trackio"](), tmp_path, result=False)
    story(LOGGERS["trackio"](), tmp_path, resumed=True)
    (first, _), (second, ended) = begun
    assert first["name"] == second["name"] and first["name"].startswith(tmp_path.name)
    assert first["project"] == "photos" and first["resume"] == "allow" and first["embed"] is False
    assert first["config"] == {"seed": 3, "train.epochs": 2, "train.rule": "single", "note": "None"}
    assert ended.logged[0] == {"final/epoch": 2, **TOLD} and ended.logged[-1] == {
        f"result/{k}": v for k, v in RESULT.items()
    }
    assert ended.ended == [{}]


class FakeClient:
    """MLflow's client, whose runs outlive it."""

    experiments, runs = {}, {}

    def get_experiment_by_name(self, name):
        known = self.experiments.get(name)
        return None if known is None else SimpleNamespace(experiment_id=known)

    def create_experiment(self, name):
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def create_run(self, experiment, run_name):
        key = f"run{len(self.runs)}"
        self.runs[key] = {"in": experiment, "name": run_name, "status": "RUNNING", "params": {}, "metrics": []}
        return SimpleNamespace(info=SimpleNamespace(run_id=key))

    def update_run(self, key, status):
        self.runs[key]["status"] = status

    set_terminated = update_run

    def log_batch(self, key, metrics=(), params=()):
        assert len(params) <= 100
        self.runs[key]["params"] |= dict(params)
        self.runs[key]["metrics"] += [(name, value, step) for name, value, _, step in metrics]


def test_mlflow_gets_metrics_with_steps_in_one_run(tmp_path, installed, monkeypatch):
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setattr(FakeClient, "experiments", {})
    monkeypatch.setattr(FakeClient, "runs", {})
    installed("mlflow.entities", Metric=lambda *row: row, Param=lambda *row: row)
    installed("mlflow", MlflowClient=FakeClient)
    story(LOGGERS["mlflow"](), tmp_path, result=False)
    (run,) = FakeClient.runs.values()
    assert run["status"] == "FAILED" and run["name"] == tmp_path.name and run["in"] == "0"
    assert run["params"] == {"seed": "3", "train.epochs": "2", "train.rule": "single", "note": "None"}
    story(LOGGERS["mlflow"](), tmp_path, resumed=True)
    assert len(FakeClient.runs) == 1 and FakeClient.experiments == {"tailorvit": "0"} and run["status"] == "FINISHED"
    once = [("final/loss", 0.5, 2), *((k, v, 7) for k, v in TRIAL.items())]
    assert run["metrics"] == [*once, *once, *((k, v, 0) for k, v in RESULT.items())]


def test_a_service_that_cannot_be_reached_does_not_end_the_run(tmp_path, installed):
    def init(**options):
        raise ConnectionError("no network")

    installed("wandb", init=init)
    options = {"tiny": True, "settings": QUICK, "progress": "quiet"}
    result = tailorvit.run(out=tmp_path / "run", **options, callbacks="wandb,csv")
    assert (
        "The callback WandbLogger failed in run_begins (ConnectionError: no network)"
        in (result.folder / "log.txt").read_text()
    )
    assert ["", "result", "", "params", str(result.params)] in rows(result.folder)
