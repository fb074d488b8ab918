"""Loggers: callbacks that hand the figures of a run to CSV, TensorBoard, Weights & Biases, MLflow or trackio.

Names stand for them: ``run(callbacks="csv,wandb")``. They are small and our own, because the trackers of accelerate
need its process state, which begins torch.distributed anew in a torchrun and chooses the device.
"""

from __future__ import annotations

import csv
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tailorvit.callbacks import Callback, RunInfo, checked
from tailorvit.errors import TailorError, unknown
from tailorvit.runs.atomic import write_json
from tailorvit.texts import read_table

Callbacks = str | Callback | Sequence[str | Callback]
PROJECT = "tailorvit"  # where the service is not told another by a variable of its own
REMEMBERED = "loggers.json"  # in the run folder: what each service calls the run, so that a resumed one goes on there
COLUMNS = ("stage", "what", "number", "name", "value")
_RESULT = ("test_accuracy", "final_search_accuracy", "search_accuracy", "params", "macs", "latency", "memory")
_PARAMS = 100  # that MLflow takes at once


class Logger(Callback):
    """What all loggers share: every epoch and every trial is a row of figures, and the result ends them."""

    module = ""  # the library it needs
    install = ""  # what to install for it

    def __init__(self) -> None:
        if self.module and find_spec(self.module) is None:
            name = next(n for n, kind in LOGGERS.items() if isinstance(self, kind))
            raise TailorError(f"The logger {name} needs the package {self.module}: pip install '{self.install}'.")

    def open(self, info: RunInfo) -> None:
        """The run begins or goes on."""

    def write(self, stage: str, what: str, number: int, figures: Mapping[str, float]) -> None:
        """Figures of an epoch or a trial (``what``)."""

    def close(self, figures: Mapping[str, float], failed: bool) -> None:
        """The run has ended with these figures, or without any."""

    def run_begins(self, info: RunInfo) -> None:
        """Begin."""
        self.open(info)

    def epoch_ends(self, stage: str, epoch: int, facts: Mapping[str, Any]) -> None:
        """A row of an epoch."""
        self.write(stage, "epoch", epoch, numbers(facts))

    def trial(self, stage: str, facts: Mapping[str, Any]) -> None:
        """A row of a trial."""
        known = {k: facts.get(k) for k in ("accuracy", "score", "params", "macs")}
        self.write(stage, "trial", facts["number"], numbers({**known, **facts.get("costs", {})}))

    def run_ends(self, result: Mapping[str, Any]) -> None:
        """The figures of the result."""
        figures = numbers({key: result.get(key) for key in _RESULT})
        test = result.get("test")  # of a task
        figures |= {f"test_{k}": v for k, v in numbers(test if isinstance(test, Mapping) else {}).items()}
        self.close(figures, failed=False)

    def failed(self, error: BaseException) -> None:
        """End without figures."""
        self.close({}, failed=True)


def numbers(facts: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among facts."""
    return {k: v for k, v in facts.items() if isinstance(v, int | float) and not isinstance(v, bool)}


class CsvLogger(Logger):
    """RUN/log.csv: one line a figure, written at once; a resumed run goes on in it."""

    _path: Path

    def open(self, info: RunInfo) -> None:
        """Begin the file, or a new line where a kill cut the last one."""
        self._path = info.folder / "log.csv"
        if not self._path.exists():
            self._append([COLUMNS])
        elif not self._path.read_bytes().endswith(b"\n"):
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def write(self, stage: str, what: str, number: int, figures: Mapping[str, float]) -> None:
        """A line for each figure."""
        self._append([(stage, what, number, name, value) for name, value in figures.items()])

    def close(self, figures: Mapping[str, float], failed: bool) -> None:
        """The result's figures have no stage and no number."""
        self._append([("", "result", "", name, value) for name, value in figures.items()])

    def _append(self, rows: Sequence[Sequence[Any]]) -> None:
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


class TensorBoardLogger(Logger):
    """RUN/tensorboard: a folder for every stage, and one for the result."""

    module, install = "tensorboard", "tailorvit[tensorboard]"
    _place: Path

    def open(self, info: RunInfo) -> None:
        """Nothing is written before the first figure."""
        self._place, self._writers = info.folder / "tensorboard", dict[str, Any]()

    def write(self, stage: str, what: str, number: int, figures: Mapping[str, float]) -> None:
        """Scalars in the stage's folder."""
        from torch.utils.tensorboard import SummaryWriter

        if stage not in self._writers:
            self._writers[stage] = SummaryWriter(str(self._place / stage))
        for name, value in figures.items():
            self._writers[stage].add_scalar(name, value, number)

    def stage_ends(self, stage: str, seconds: float) -> None:
        """End the stage's writer, which keeps a thread."""
        if stage in self._writers:
            self._writers.pop(stage).close()

    def close(self, figures: Mapping[str, float], failed: bool) -> None:
        """End every writer."""
        if figures:
            self.write("result", "result", 0, figures)
        for stage in list(self._writers):
            self.stage_ends(stage, 0.0)


class WandbLogger(Logger):
    """Weights & Biases. Its own variables hold: WANDB_PROJECT, WANDB_MODE=offline, ..."""

    module, install = "wandb", "wandb"
    _run: Any = None

    def open(self, info: RunInfo) -> None:
        """Begin a run there, or go on with it; a run that the calling program has begun stays apart."""
        wandb: Any = import_module(self.module)
        self._stages = set[str]()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=info.folder.name,
            id=_remembered(info.folder, self.module, uuid.uuid4().hex[:12]),
            resume="allow",
            reinit="create_new",
            dir=str(info.folder),
            config=dict(info.recipe),
        )

    def write(self, stage: str, what: str, number: int, figures: Mapping[str, float]) -> None:
        """Figures under the stage's name, drawn over its epochs or trials."""
        if stage not in self._stages:
            self._stages.add(stage)
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/{what}")
        self._run.log(_under(stage, {what: number, **figures}))

    def close(self, figures: Mapping[str, float], failed: bool) -> None:
        """The result goes to the summary."""
        if self._run is not None:
            self._run.summary.update(dict(figures))
            self._run.finish(exit_code=int(failed))
            self._run = None


class TrackioLogger(Logger):
    """Trackio, on this machine, or where its variable TRACKIO_SPACE_ID says."""

    module, install = "trackio", "trackio"
    _run: Any = None

    def open(self, info: RunInfo) -> None:
        """Begin a run there, or go on with the one of that name."""
        trackio: Any = import_module(self.module)
        name = _remembered(info.folder, self.module, f"{info.folder.name}-{uuid.uuid4().hex[:6]}")
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        config = dict(_flat(info.recipe))
        self._run = trackio.init(project=project, name=name, resume="allow", config=config, embed=False)

    def write(self, stage: str, what: str, number: int, figures: Mapping[str, float]) -> None:
        """Figures under the stage's name, with the epoch or trial beside them."""
        self._run.log(_under(stage, {what: number, **figures}))

    def close(self, figures: Mapping[str, float], failed: bool) -> None:
        """The result is the last row."""
        if self._run is not None:
            if figures:
                self._run.log(_under("result", figures))
            self._run.finish()
            self._run = None


class MlflowLogger(Logger):
    """MLflow, where its variables MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say."""

    module, install = "mlflow", "mlflow"
    _client: Any = None

    def open(self, info: RunInfo) -> None:
        """Begin a run there, or go on with it; by a client of its own, as the program's active run is not ours."""
        mlflow: Any = import_module(self.module)
        entities: Any = import_module(f"{self.module}.entities")
        self._metric, client = entities.Metric, mlflow.MlflowClient()
        known = _remembered(info.folder, self.module)
        if known:
            client.update_run(known, status="RUNNING")
            self._id = known
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            experiment = client.get_experiment_by_name(name)
            place = client.create_experiment(name) if experiment is None else experiment.experiment_id
            self._id = client.create_run(place, run_name=info.folder.name).info.run_id
            _remembered(info.folder, self.module, self._id)
            params = [entities.Param(key, str(value)[:500]) for key, value in _flat(info.recipe)]
            for at in range(0, len(params), _PARAMS):
                client.log_batch(self._id, params=params[at : at + _PARAMS])
        self._client = client

    def write(self, stage: str, what: str, number: int, figures: Mapping[str, float]) -> None:
        """Metrics under the stage's name; the step is the epoch or the trial."""
        now = int(1000 * time.time())
        rows = [self._metric(key, float(value), now, number) for key, value in _under(stage, figures).items()]
        self._client.log_batch(self._id, metrics=rows)

    def close(self, figures: Mapping[str, float], failed: bool) -> None:
        """The result's figures, and how it ended."""
        if self._client is not None:
            if figures:
                now = int(1000 * time.time())
                self._client.log_batch(
                    self._id, metrics=[self._metric(k, float(v), now, 0) for k, v in figures.items()]
                )
            self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")
            self._client = None


LOGGERS: dict[str, type[Logger]] = {
    "csv": CsvLogger,
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
    "trackio": TrackioLogger,
}


def callbacks_of(callbacks: Callbacks) -> tuple[Callback, ...]:
    """Callbacks as they were given, names of loggers among them; checked before anything begins."""
    given = callbacks.split(",") if isinstance(callbacks, str) else callbacks
    found: dict[Any, Any] = {}  # a name that is given twice logs once
    for one in given if isinstance(given, Sequence) else [given]:
        name = one.strip() if isinstance(one, str) else ""
        if name and name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
        if name:
            found[name] = found.get(name) or LOGGERS[name]()
        elif not isinstance(one, str):
            found[id(one)] = one
    return checked(list(found.values()))


def with_tensorboard(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """The callbacks with TensorBoard among them, as the recipe's key asks for it."""
    there = any(isinstance(callback, TensorBoardLogger) for callback in callbacks)
    return tuple(callbacks) if there else (*callbacks, TensorBoardLogger())


def _under(stage: str, figures: Mapping[str, float]) -> dict[str, float]:
    """Names such as ``final/loss``."""
    return {f"{stage}/{name}": value for name, value in figures.items()}


def _flat(recipe: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys such as ``train.epochs``."""
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str | int | float | bool) else str(value)


def _remembered(folder: Path, service: str, new: str = "") -> str:
    """What a service calls the run; where it has no name yet the new one, which is kept."""
    path = folder / REMEMBERED
    try:
        known = read_table(path)
    except (OSError, ValueError):
        known = {}
    found = known.get(service)
    if isinstance(found, str):
        return found
    if new:
        write_json(path, {**known, service: new})
    return new
