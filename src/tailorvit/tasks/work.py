"""A task's run: from a network and annotated pictures to the task's network, trained, tested and saved.

Any task: what is special about one lies behind ``tasks/base.py``. The pieces of work are stages of the run's folder,
so a killed run goes on by running again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from tailorvit import ranks, units
from tailorvit.config import MOST_THREADS, checked, merged, overrides, toml_text
from tailorvit.costs.limits import COUNTED, Limits
from tailorvit.costs.measure import measure_latency
from tailorvit.errors import TailorError, unknown
from tailorvit.memory import usable_device
from tailorvit.methods.finetune import normalise_by
from tailorvit.methods.peers import PREFIX
from tailorvit.methods.prepare import SMALL_STEP
from tailorvit.methods.session import NAMED, SKIPPED
from tailorvit.methods.stages import Stages
from tailorvit.progress import Progress
from tailorvit.rng import derive, preserved_state, seed_everything
from tailorvit.runs import Run
from tailorvit.tasks import TASKS
from tailorvit.tasks.backbone import Start, counted, open_start
from tailorvit.tasks.base import Picture, Task, TaskBatch, TaskBatches, TaskData, TaskNetwork
from tailorvit.tasks.saved import require_libraries, save_task
from tailorvit.train import Fixed, Sink, TrainSettings, train
from tailorvit.train.loop import Trained, shortened

FORBID = {"extra": "forbid"}
DEFAULT = "default"  # the preset that changes nothing
TINY: Mapping[str, Any] = {"train": {"epochs": 2, "batch": 4, "warmup": 0.5}, "epoch_steps": 4, "device": "cpu"}
LATENCY_SECONDS = 1.0  # after which few timed passes are enough
_PICTURES, _PICTURE_FILES = "pictures.json", "pictures"

# -- the recipe -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceSettings:
    """[data]: the pictures and their annotations."""

    __pydantic_config__ = FORBID
    source: str = ""


@dataclass(frozen=True)
class TaskConfig:
    """A task's run; the task's own keys are in a table of its name."""

    __pydantic_config__ = FORBID
    task: str
    network: str  # folder of a run or of a network, or timm:NAME
    weights: str = ""  # of timm:NAME; without a file it starts from scratch
    scratch: bool = False  # fresh weights in the network of a folder
    preset: str = DEFAULT
    seed: int = 0
    device: str = "auto"
    threads: int = 0  # CPU threads; 0 chooses, and the choice stays with the run
    backbone_lr: float = 1.0  # share of the learning rate that the backbone gets
    beside: bool = True  # also train what the task has beside: networks to compare with
    candidates: int = 0  # best networks of the run's search that are tried on the task; 0: the delivered one alone
    candidate_share: float = 0.2  # of the epochs that each of them is tuned for
    epoch_steps: int = 0  # at most so many steps an epoch; 0: all
    data: SourceSettings = field(default_factory=SourceSettings)
    limits: dict[str, str | float] = field(default_factory=dict)  # of the whole network
    train: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise TailorError(f"seed must be a whole number from 0 to 2147483647, not {self.seed}.")
        if not 0 <= self.threads <= MOST_THREADS:
            raise TailorError(f"threads must be 0 (choose) to {MOST_THREADS}, not {self.threads}.")
        for name in ("candidates", "epoch_steps"):
            if getattr(self, name) < 0:
                raise TailorError(f"{name} must be at least 0, not {getattr(self, name)}.")
        if not 0 < self.backbone_lr <= 1:
            raise TailorError(f"backbone_lr must be above 0 and at most 1, not {self.backbone_lr}.")
        if not 0 < self.candidate_share <= 1:
            raise TailorError(f"candidate_share must be above 0 and at most 1, not {self.candidate_share}.")
        for metric in self.budget().metrics:
            if metric not in COUNTED:
                raise TailorError(f"A task's network is limited in params and macs, not in {metric}.")
        # Keys of [train] that mean nothing here must not be silently without effect.
        usual = TrainSettings()
        foreign = (
            "rule",
            "paths",
            "distill",
            "reg_largest_only",
            "freeze",
            "compile",
            "augment",
            "class_weights",
            "keep",
        )
        for name in foreign:
            if getattr(self.train, name) != getattr(usual, name):
                raise TailorError(f"train.{name} is not for tasks; leave it at {getattr(usual, name)!r}.")

    def budget(self) -> Limits:
        """The limits, read."""
        return Limits.of(**self.limits)


def task_recipe(
    name: str,
    network: str,
    data: str,
    *,
    weights: str | None = None,
    scratch: bool = False,
    preset: str = DEFAULT,
    image_size: int | Sequence[int] | None = None,
    limits: Mapping[str, Any] | None = None,
    candidates: int | None = None,
    seed: int | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    tiny: bool = False,
) -> dict[str, Any]:
    """The recipe of a task's run: the task's defaults, the preset, the options, then the settings."""
    task = TASKS[name]
    known = {DEFAULT: {}, **task.presets}
    if preset not in known:
        raise unknown(f"preset of the task {name}", preset, known)
    chosen = {k: v for k, v in known[preset].items() if k != "summary"}
    options: dict[str, Any] = {
        "task": name,
        "network": str(network),
        "data": {"source": str(data)},
        "preset": preset,
        "limits": {k: v for k, v in (limits or {}).items() if v is not None},
        **({"weights": str(weights)} if weights is not None else {}),
        **({"scratch": True} if scratch else {}),
        **({"candidates": candidates} if candidates is not None else {}),
        **({"seed": seed} if seed is not None else {}),
        **({name: {"image_size": image_size}} if image_size is not None else {}),
    }
    recipe = merged({"train": dict(task.train)}, chosen)
    if tiny:
        recipe = merged(merged(recipe, TINY), getattr(task, "tiny", {}))
    return merged(merged(recipe, options), overrides(settings))


def read_recipe(recipe: Mapping[str, Any]) -> tuple[TaskConfig, Any]:
    """Config and the task's own settings, checked."""
    name = str(recipe.get("task"))
    own = recipe.get(name, {})
    if not isinstance(own, Mapping):
        raise TailorError(f"'{name}' is a table of settings, not {own!r}.")
    config = checked(TaskConfig, {k: v for k, v in recipe.items() if k != name})
    return config, checked(TASKS[name].settings, own, name)


def recipe_text(config: TaskConfig, settings: Any) -> str:
    """The resolved recipe as TOML."""
    return toml_text({**asdict(config), config.task: asdict(settings)})


# -- before the run ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskPlan:
    """Everything a task's run consists of, checked before anything is trained."""

    task: Task
    config: TaskConfig  # resolved
    settings: Any
    data: TaskData
    starts: tuple[Start, ...]  # the delivered network, and other candidates
    costs: tuple[dict[str, Any], ...]  # of the whole network and of its backbone, per start


def prepare_task(
    recipe: Mapping[str, Any],
    splits: Mapping[str, Any] | None = None,
    starts: Sequence[Start] = (),
    candidates: Callable[[TaskConfig], Sequence[Start]] | None = None,
) -> TaskPlan:
    """Check names, libraries, device, network, data and limits. A resumed run brings its splits and its starts."""
    if ranks.world() > 1:
        raise TailorError("A task is trained by one process; start it without torchrun.")
    require_libraries(TASKS[str(recipe.get("task"))])
    config, settings = read_recipe(recipe)
    task, device = TASKS[config.task], usable_device(config.device)
    if config.candidates and (config.scratch or config.network.startswith(PREFIX)):
        raise TailorError("Candidates come from the search of a run, with its weights; leave out --candidates.")
    if not starts:
        starts = [open_start(config.network, config.weights or None, config.scratch)]
        if config.candidates and candidates is not None:
            starts = [*starts, *candidates(config)]
    data = task.read(config.data.source, settings, config.seed, splits)
    if (mean := starts[0].mean) is not None and (std := starts[0].std) is not None:
        normalise_by(data, mean, std)  # type: ignore[arg-type]  # all it needs are channels, mean and std
    cuda = torch.device(device).type == "cuda"
    precision = config.train.precision if config.train.precision != "auto" else "bf16" if cuda else "fp32"
    batch = min(config.train.batch or 16, data.counts["train"])
    config = replace(config, device=device, train=replace(config.train, precision=precision, batch=batch))
    starts, costs = _within_limits(TaskPlan(task, config, settings, data, tuple(starts), ()))
    threads = config.threads or (1 if costs[0]["macs"] * batch < SMALL_STEP else torch.get_num_threads())
    return TaskPlan(task, replace(config, threads=threads), settings, data, starts, costs)


def build(plan: TaskPlan, start: Start, drop_path: float = 0.0, settings: Any = None) -> TaskNetwork:
    """The task's network on the backbone of a start; what has no weights yet is a function of the seed."""
    high, wide = plan.data.image_size
    backbone = start.backbone((high, wide), plan.data.channels, plan.config.seed, drop_path)
    seed_everything(plan.config.seed, "init", "head")
    network = plan.task.build(backbone, plan.data, plan.settings if settings is None else settings)
    if plan.config.backbone_lr < 1:
        network.rate_shares = {"backbone.": plan.config.backbone_lr}
    return network


def _within_limits(plan: TaskPlan) -> tuple[tuple[Start, ...], tuple[dict[str, Any], ...]]:
    """The starts whose whole network is within the limits, with their costs; it is refused where none is."""
    limits, kept, breaks = plan.config.budget(), [], []
    for start in plan.starts:
        with preserved_state():
            network = build(plan, start)
            whole = network_costs(plan, network)
        if problem := limits.breaks(whole):
            breaks.append((start.name, problem))
        else:
            kept.append((start, whole))
    if not kept:
        name, problem = breaks[0]
        raise TailorError(f"The whole network on '{name}' breaks the limit: {problem}; take a smaller one.")
    return tuple(start for start, _ in kept), tuple(costs for _, costs in kept)


def network_costs(plan: TaskPlan, network: TaskNetwork) -> dict[str, Any]:
    """Parameters and MACs of an image: of the whole network, and of its backbone."""
    form = plan.task.for_onnx(network, plan.data)
    inputs = list(form.inputs.values())
    whole = counted(form.module, *inputs)
    high, wide = plan.data.image_size
    backbone = network.backbone
    body = counted(backbone, torch.zeros(1, plan.data.channels, high, wide))
    return {
        "params": sum(p.numel() for p in network.parameters()),
        "macs": whole["macs"] // len(inputs[0]),
        "backbone": {**body, "strides": list(backbone.strides), "channels": list(backbone.channels)},
    }


# -- the run ----------------------------------------------------------------------------------------------------------


class _Few:
    """Training batches with fewer steps an epoch."""

    def __init__(self, batches: TaskBatches, steps: int) -> None:
        self.batches, self.steps_per_epoch = batches, min(steps, batches.steps_per_epoch)

    def iterate(self, start: int, stop: int) -> Iterator[TaskBatch]:
        return self.batches.iterate(start, stop)


class TaskSession(Stages):
    """The pieces of work: train a network on the task, judge it."""

    def __init__(self, plan: TaskPlan, run: Run, progress: Progress) -> None:
        super().__init__(run, progress, plan.config.seed, plan.config.device)
        self.plan, self.task, self.data, self.config = plan, plan.task, plan.data, plan.config

    def note_skipped(self) -> None:
        """List what was left out in a file of the run; the log names the first."""
        rows = [{"path": path, "reason": why} for path, why in self.data.skipped.items()]
        if not rows or self.run.read_json(SKIPPED) == rows:
            return
        self.run.write_json(SKIPPED, rows)
        names = ", ".join(f"{row['path']} ({row['reason'].rstrip('.')})" for row in rows[:NAMED])
        more = f" and {len(rows) - NAMED} more" if rows[NAMED:] else ""
        self.log_once("skipped", f"{len(rows)} left out: {names}{more}; {SKIPPED} lists them.", files=rows[:NAMED])

    def fit(self, network: TaskNetwork, settings: TrainSettings, stage: str) -> TaskNetwork:
        """Train a network, once; evaluated on the search split ten times on the way."""

        def score() -> dict[str, float]:
            return {"score": self.task.evaluate(network, self.data, "search", self.device)[self.task.metric]}

        def work(sink: Sink) -> Trained:
            batches: Any = self.data.train_batches(settings.batch, derive(self.seed, "task", "data") % 2**31)
            if self.config.epoch_steps:
                batches = _Few(batches, self.config.epoch_steps)
            seed = derive(self.seed, "task", "train") % 2**31
            return train(network, batches, Fixed(), settings, seed, sink, score, self.device, objective=network.loss)

        self.trained(network, stage, work)
        return network

    def figures(self, network: TaskNetwork, split: str, stage: str) -> dict[str, float]:
        """The task's figures on a split, computed once a stage."""
        name = f"{stage} {split}"
        known = self.run.result(name)
        if known is None:
            with self.timed(f"evaluate-{split}"):
                found = self.task.evaluate(network.to(self.device).eval(), self.data, split, self.device)
            known = {key: float(value) for key, value in found.items()}
            self.run.finish(name, known)
        return dict(known)


def run_task(session: TaskSession) -> dict[str, Any]:
    """Choose among candidates, train, test, save: the facts of result.json."""
    plan, config = session.plan, session.config
    session.note_skipped()
    session.progress.say(_opening(session))
    for sentence in session.data.notes:
        session.log_once("data", sentence)
    chosen, rows = _choose(session)
    start, costs = plan.starts[chosen], plan.costs[chosen]
    network = session.fit(build(plan, start, config.train.drop_path), config.train, "train")
    search = session.figures(network, "search", "train")
    beside = {name: (made, found) for name, made, found in _beside(session, start)}
    session.data.unseal_test("the network is trained")
    test = session.figures(network, "test", "train")
    compared = [
        {"name": name, "search": found, "test": session.figures(made, "test", f"beside-{_slug(name)}")}
        for name, (made, found) in beside.items()
    ]
    pictures = session.task.pictures(network.to(session.device), session.data, "test", session.device)
    _save_pictures(session.run, pictures)
    latency = _latency(session, network)
    save_task(session.run.folder / "network", session.task, network.cpu(), session.data, plan.settings)
    data = session.data
    return {
        "task": session.task.name,
        "metric": session.task.metric,
        "search": search,
        "test": test,
        **costs,
        **({} if latency is None else {"latency": latency}),
        "limits": config.budget().to_dict(),
        "network": {
            "source": config.network,
            "name": start.name,
            "family": start.plain.get("family", "timm"),
            "weights": "fresh" if start.state is None else "from a file" if config.weights else "inherited",
        },
        "image_size": list(data.image_size),
        "epochs": config.train.epochs,
        "seed": config.seed,
        "preset": config.preset,
        "data": {
            "source": data.source,
            "counts": dict(data.counts),
            "classes": len(data.classes),
            "skipped": len(data.skipped),
            "fingerprint": data.fingerprint,
        },
        **({"beside": compared} if compared else {}),
        **({"candidates": rows} if rows else {}),
        "seconds": session.run.seconds(),
    }


def _opening(session: TaskSession) -> str:
    """The first line of a run."""
    data, costs, counts = session.data, session.plan.costs[0], session.data.counts
    high, wide = data.image_size
    names = f"{', '.join(data.classes[:4])}{', ...' if len(data.classes) > 4 else ''}"
    return (
        f"{session.task.name} on {data.source}: {len(data.classes)} classes ({names}), {counts['train']} training / "
        f"{counts['search']} search / {counts['test']} test images at {high}x{wide} px; the whole network has "
        f"{units.show(costs['params'])} parameters, its backbone {units.show(costs['backbone']['params'])}."
    )


def _choose(session: TaskSession) -> tuple[int, list[dict[str, Any]]]:
    """Which start goes on to the full training, and what was found of each: the best on the search split."""
    plan, settings = session.plan, session.config.train
    if len(plan.starts) == 1:
        return 0, []
    short, rows = shortened(settings, session.config.candidate_share), []
    for i, (start, costs) in enumerate(zip(plan.starts, plan.costs, strict=True)):
        stage = f"candidate-{i + 1}"
        network = session.fit(build(plan, start, settings.drop_path), short, stage)
        found = session.figures(network, "search", stage)
        body = costs["backbone"]
        rows.append({"name": start.name, "params": costs["params"], "macs": costs["macs"], "backbone": body["params"]})
        rows[-1] |= {"epochs": short.epochs, "search": found, "chosen": False}
    metric = session.task.metric
    best = max(range(len(rows)), key=lambda i: (rows[i]["search"][metric], -i))
    rows[best]["chosen"] = True
    session.log_once(
        "choice",
        f"Of {len(rows)} candidates '{rows[best]['name']}' goes on: {metric} {rows[best]['search'][metric]:.2f} after "
        f"{short.epochs} epochs on the search split.",
    )
    return best, rows


def _beside(session: TaskSession, start: Start) -> Iterator[tuple[str, TaskNetwork, dict[str, float]]]:
    """The networks that the task has beside its own, trained by the same recipe."""
    for name, changes in getattr(session.task, "beside", {}).items() if session.config.beside else ():
        if all(getattr(session.plan.settings, key) == value for key, value in changes.items()):
            continue  # it is the network itself
        settings, stage = replace(session.plan.settings, **changes), f"beside-{_slug(name)}"
        network = build(session.plan, start, session.config.train.drop_path, settings)
        session.fit(network, session.config.train, stage)
        yield name, network, session.figures(network, "search", stage)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _latency(session: TaskSession, network: TaskNetwork) -> float | None:
    """Seconds an image takes, measured once; None for a network that takes more than images."""
    form = session.task.for_onnx(network.cpu(), session.data)
    if len(form.inputs) > 1:
        return None
    known = session.run.result("latency")
    if known is None:
        high, wide = session.data.image_size
        shape = (session.data.channels, high, wide)
        found = measure_latency(form.module, shape, 1, session.device, runs=10, warmup=1, seconds=LATENCY_SECONDS)
        known = found.median if math.isfinite(found.median) else None
        session.run.finish("latency", known)
    return None if known is None else float(known)


def _save_pictures(run: Run, pictures: Sequence[Picture]) -> None:
    """The pictures as files, and for the report in one."""
    import base64

    from tailorvit.runs.atomic import write_bytes

    folder, rows = run.folder / _PICTURE_FILES, []
    folder.mkdir(exist_ok=True)
    for number, picture in enumerate(pictures, 1):
        png = picture.data.startswith(b"\x89PNG")
        write_bytes(folder / f"{number}.{'png' if png else 'jpg'}", picture.data)
        address = f"data:image/{'png' if png else 'jpeg'};base64,{base64.b64encode(picture.data).decode()}"
        rows.append({"name": picture.name, "caption": picture.caption, "picture": address})
    run.write_json(_PICTURES, rows)
