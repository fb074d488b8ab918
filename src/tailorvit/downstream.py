"""A found network at work: the calls behind ``tailorvit detect``, ``segment`` and ``answer``.

A task's run is a run: it resumes, has a report, predicts and is exported by the same commands.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailorvit import guard, units
from tailorvit.errors import TailorError
from tailorvit.texts import read_table

if TYPE_CHECKING:
    from tailorvit.callbacks import Callback
    from tailorvit.export import Exported
    from tailorvit.loggers import Callbacks
    from tailorvit.progress import Mode
    from tailorvit.runs import Run
    from tailorvit.tasks.base import TaskData
    from tailorvit.tasks.work import TaskPlan

Changes = Sequence[str] | Mapping[str, Any]


class TaskResult(guard.Result):
    """A finished run of a task."""

    def summary(self) -> list[str]:
        """The run in a few lines: the figures, what the network costs, where it lies."""
        metric, network, body = self["metric"], self["network"], self["backbone"]
        lines = [f"{self['task']} with {network['name']} as the backbone: test {metric} {self['test'][metric]:.2f}"]
        others = ", ".join(f"{k} {v:.2f}" for k, v in self["test"].items() if k != metric)
        lines += [f"  {others}"] if others else []
        lines.append(
            f"  {self['params']:,} parameters ({units.show(body['params'])} of them the backbone's), "
            f"{units.show(self['macs'])} MACs an image; its weights began {_began(network['weights'])}"
        )
        if "latency" in self:
            lines.append(f"  latency {units.show(self['latency'], 'latency')}")
        for row in self.get("candidates", ()):
            chosen = ", chosen" if row["chosen"] else ""
            lines.append(f"  candidate {row['name']}: {metric} {row['search'][metric]:.2f} on the search split{chosen}")
        for row in self.get("beside", ()):
            lines.append(f"  {row['name']}: test {metric} {row['test'][metric]:.2f}")
        if skipped := self["data"].get("skipped"):
            lines.append(f"  {skipped} left out; skipped.json says why")
        return [*lines, f"  folder {self.folder}, report {self.folder / 'report.html'}"]


def _began(weights: str) -> str:
    return {"fresh": "from scratch", "inherited": "as the network's own"}.get(weights, weights)


def task_of(folder: str | Path) -> str:
    """The task of a run folder; empty where it is none of a task."""
    with contextlib.suppress(OSError, ValueError):
        found = read_table(Path(folder) / "info.json").get("task")
        return found if isinstance(found, str) else ""
    return ""


def work(
    task: str,
    network: str | Path,
    *,
    data: str | Path,
    out: str | Path | None = None,
    preset: str = "default",
    image_size: int | Sequence[int] | None = None,
    weights: str | Path | None = None,
    scratch: bool = False,
    max_params: str | int | float | None = None,
    max_macs: str | int | float | None = None,
    candidates: int | None = None,
    seed: int | None = None,
    settings: Changes = (),
    tiny: bool = False,
    callbacks: Callbacks = (),
    progress: Mode | None = None,
) -> TaskResult:
    """Train a network of a task on a backbone, in a new folder.

    ``network`` is the folder of a finished run or of a network, or ``timm:NAME``. The arguments are the options of the
    command of the task's name; limits are of the whole network. ``callbacks`` are told what happens.
    """
    from tailorvit.loggers import callbacks_of
    from tailorvit.rng import preserved_state
    from tailorvit.runs import Run
    from tailorvit.tasks.candidates import candidates_of
    from tailorvit.tasks.work import prepare_task, recipe_text, task_recipe
    from tailorvit.train.stopping import stoppable

    options: dict[str, Any] = {"preset": preset, "image_size": image_size, "scratch": scratch, "seed": seed}
    options |= {"limits": {"max_params": max_params, "max_macs": max_macs}, "candidates": candidates}
    options |= {"weights": None if weights is None else str(weights), "settings": settings, "tiny": tiny}
    recipe, called = task_recipe(task, str(network), str(data), **options), callbacks_of(callbacks)
    with preserved_state(), stoppable():
        if out is not None:
            Run.require_free(Path(out))
        plan = prepare_task(recipe, candidates=candidates_of)
        folder = Path(out) if out is not None else guard.free_folder(task, plan.config.data.source)
        Run.require_free(folder)
        info = {**guard.run_info(plan.data, plan.config.seed), "task": task, "starts": len(plan.starts)}
        begun = Run.create(folder, recipe_text(plan.config, plan.settings), info, plan.data.split_record())
        with begun as record, guard.to_go_on_with(record):
            _keep_starts(plan, record)
            return _work(plan, record, progress, called)


def resume(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    callbacks: Callbacks = (),
    progress: Mode | None = None,
) -> TaskResult:
    """Go on with an unfinished run of a task; a finished one just gives its result."""
    from tailorvit.config import parse_recipe
    from tailorvit.data.sources import source_of_run
    from tailorvit.loggers import callbacks_of
    from tailorvit.report import write_report
    from tailorvit.rng import preserved_state
    from tailorvit.runs import Run
    from tailorvit.tasks.candidates import candidates_of
    from tailorvit.tasks.work import prepare_task
    from tailorvit.train.stopping import stoppable

    place, called = Path(folder), callbacks_of(callbacks)
    with Run.open(place) as record, preserved_state(), stoppable(), guard.to_go_on_with(record):
        if record.finished:
            if not (place / "report.html").exists():  # killed between the two
                write_report(place)
            found: TaskResult = TaskResult.finished(record)
            return found
        recipe = parse_recipe(record.recipe, str(place / "recipe.toml"))
        if recipe.get("task") != record.info.get("task"):
            raise TailorError(
                f"'{place}' began with the task '{record.info.get('task')}', and its recipe says "
                f"'{recipe.get('task')}'."
            )
        known = recipe.get("data")
        typed = str(known.get("source", "")) if isinstance(known, Mapping) else ""
        source = str(data) if data is not None else source_of_run(typed, record.info, place)
        splits = record.read_json("splits")
        starts = _kept_starts(record)
        plan = prepare_task({**recipe, "data": {"source": source}}, splits, starts, candidates_of)
        if splits is None:
            record.write_json("splits", plan.data.split_record())
        _require_same(plan, record)
        if data is not None:
            guard.note_moved(plan.data, record)
        _keep_starts(plan, record)
        record.event("resume", "the run goes on")
        return _work(plan, record, progress, called)


def _require_same(plan: TaskPlan, record: Run) -> None:
    """Refuse other data, or another number of networks, than the run began with."""
    known = record.info.get("data")
    if isinstance(known, Mapping) and known.get("fingerprint") != plan.data.fingerprint:
        raise TailorError(f"'{plan.data.source}' does not hold the images that '{record.folder}' began with.")
    if record.info.get("starts") != len(plan.starts):
        raise TailorError(
            f"'{record.folder}' began with {record.info.get('starts')} network(s), and '{plan.config.network}' gives "
            f"{len(plan.starts)} now."
        )


def _keep_starts(plan: TaskPlan, record: Run) -> None:
    """Copy the networks that the run begins with into it, once."""
    from tailorvit.tasks.backbone import START

    for number, start in enumerate(plan.starts):
        folder = record.folder / START / str(number)
        if not (folder / f"{START}.json").is_file():
            start.save(folder)


def _kept_starts(record: Run) -> list[Any]:
    """The run's own copies; none where a kill came before the last of them."""
    from tailorvit.tasks.backbone import START, Start

    folders = [record.folder / START / str(i) for i in range(int(record.info.get("starts") or 0))]
    whole = folders and all((folder / f"{START}.json").is_file() for folder in folders)
    return [Start.saved(folder) for folder in folders] if whole else []


def _work(plan: TaskPlan, record: Run, mode: Mode | None, called: Sequence[Callback]) -> TaskResult:
    """Train, write result and report."""
    import torch

    from tailorvit.progress import make_progress
    from tailorvit.tasks.work import TaskSession, run_task

    progress = make_progress(mode)
    session = TaskSession(plan, record, progress)
    advice = "a smaller backbone, batch (--set train.batch=) or image (--image-size)"
    told = guard.callbacks_told(session, called)
    with contextlib.closing(progress), told, guard.failures_told(record, advice):
        torch.set_num_threads(plan.config.threads)
        with guard.memory_notices(session):
            facts = run_task(session)
        record.write_json("result", facts)
        guard.report_on(session)
        result = TaskResult(record.folder, facts)
        record.hooks.tell("run_ends", result)
        return result


# -- the commands a task's run shares with others -------------------------------------------------------------------


def export(
    folder: str | Path,
    to: str,
    out: str | Path | None = None,
    *,
    data: str | Path | None = None,
    int8: bool = False,
) -> Exported:
    """Write the network of a run in another format: a task's as ONNX, any other as ``tailorvit.export`` does."""
    from tailorvit.export import export as export_network
    from tailorvit.tasks.saved import export_task, task_folder

    if task_folder(folder) is None:
        return export_network(folder, to, out, data=data, int8=int8)
    if int8:
        raise TailorError("A task's network is exported in float; leave out --int8.")
    return export_task(folder, to, out, _data_of(Path(folder), None if data is None else str(data)))


def _data_of(folder: Path, source: str | None) -> TaskData | None:
    """The data of a task's run where they can be read; an error where their place was given."""
    from tailorvit.data.sources import source_of_run
    from tailorvit.tasks import TASKS
    from tailorvit.tasks.saved import load_task
    from tailorvit.tasks.work import read_recipe
    from tailorvit.texts import read_toml

    try:
        config, settings = read_recipe(read_toml(folder / "recipe.toml"))
        info, splits = (read_table(folder / name) for name in ("info.json", "splits.json"))
        place = source or source_of_run(config.data.source, info, folder)
        found = TASKS[config.task].read(place, settings, config.seed, splits)
        facts = load_task(folder).facts
        found.mean, found.std = facts["mean"], facts["std"]
        return found
    except (TailorError, OSError, ValueError, LookupError) as error:
        if source is not None:
            raise TailorError(f"The run's data cannot be read from '{source}': {error}") from error
        return None


def predictions(source: str | Path, images: Iterable[str], **more: Any) -> Iterator[dict[str, Any]]:
    """What a task's network says of image files and folders: one row an image, with the reason where it has none."""
    from tailorvit.portable import image_files
    from tailorvit.tasks.saved import load_task

    trained = load_task(source)
    for text in images:
        path = Path(text)
        files = list(image_files(path)) if path.is_dir() else [(path, None)]
        if not files:
            raise TailorError(f"There are no images in or below '{path}'.")
        for file, problem in files:
            try:
                if problem is not None:
                    raise TailorError(problem)
                yield {"image": str(file), **trained.predict(file, **more)}
            except TailorError as error:
                yield {"image": str(file), "error": str(error)}


def print_predictions(source: str | Path, images: Iterable[str], stream: Any, **more: Any) -> int:
    """Write :func:`predictions` as JSON, one line an image; 1 where an image could not be read."""
    failed = 0
    for row in predictions(source, images, **more):
        stream.write(json.dumps(row, default=str) + "\n")
        failed = failed or int("error" in row)
    return failed
