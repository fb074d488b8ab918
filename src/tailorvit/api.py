"""The calls behind the commands that work: run a recipe, resume a run, fine-tune a network."""

from __future__ import annotations

import contextlib
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, TypeVar

from tailorvit import downstream, guard, ranks, units
from tailorvit.callbacks import Callback
from tailorvit.checkpoints.pretrained import Pretrained
from tailorvit.checkpoints.starts import first_at_hand
from tailorvit.config import (
    METHOD_DEFAULTS,
    Config,
    configure,
    for_searcher,
    merged,
    modernised,
    overrides,
    parse_recipe,
    read_recipe,
    recipe_names,
    to_toml,
)
from tailorvit.costs.runtime import MEASURING, bounds_of
from tailorvit.data.memory import keep_copy, source_of
from tailorvit.data.sources import source_of_run
from tailorvit.errors import TailorError
from tailorvit.loggers import Callbacks, callbacks_of, with_tensorboard
from tailorvit.methods import METHODS, default_start, schedule, tailor_plan, team
from tailorvit.methods import study as studies
from tailorvit.methods.contest import after_contest
from tailorvit.methods.finetune import copy_start, preset, read_start
from tailorvit.methods.first_space import auto_space
from tailorvit.methods.follower import follow
from tailorvit.methods.latency import as_begun, keep_table, say_clock
from tailorvit.methods.prepare import prepare, several_gpus
from tailorvit.methods.session import CHANGED, SKIPPED, Plan, Session
from tailorvit.methods.study_folder import open_study, run_studied, study_in, study_settings
from tailorvit.methods.trunk import require_same_trunk
from tailorvit.progress import Mode, make_progress
from tailorvit.rng import preserved_state
from tailorvit.runs import Run
from tailorvit.tiny import tiny as tiny_form
from tailorvit.train.stopping import stoppable

DEFAULT_RECIPE = "s4-digits"
TAILOR = "tailor"  # the method, and its recipe, for a pretrained start
OWN_IMAGES = "image-folder"  # the recipe for one's own images
AUTO, NONE = "auto", "none"  # of --from
USUAL_SIDE = 224  # in pixels, that --from auto takes images to have
Size = str | int | float | None  # of a limit: "5M", "12ms", or a plain number
Front = str | Sequence[str | int] | None  # sizes: "2M,4M" or ["2M", 4_000_000]
T = TypeVar("T")
Changes = Sequence[str] | Mapping[str, Any]  # of recipe keys: ["train.epochs=50"] or {"train.epochs": 50}


class Result(guard.Result):
    """The result of a run that found or tuned a network."""

    def summary(self) -> list[str]:
        """The run in a few lines: what was found, what it costs, the baseline beside it, where it lies."""
        start = self.get("start", {})
        genes = ", ".join(f"{k} {v}" for k, v in self["arch"].items() if k != "family")
        if "contest" in self:
            genes = f"{self['arch']['family']}: {genes}"
        size = f"{self['params']:,} parameters, {units.show(self['macs'])} MACs"
        by_hand = self.get("chosen") == "baseline"
        first = next((row for row in self.get("candidates", ()) if row.get("name") == "first blocks"), None)
        what = "Tuned" if start else "Delivered the hand-designed baseline:" if by_hand else "Found"
        what = "Delivered the first blocks:" if first is not None and first["chosen"] else what
        lines = [f"{what} {genes}", f"  {size}; test accuracy {self['test_accuracy']:.2f} %"]
        for metric in (m for m in ("latency", "memory") if m in self):
            high = self["limits"].get(metric, {}).get("max")
            limit = "" if high is None else f" (limit {units.show(high, metric)})"
            how = f", {_how_known(self['latency_by'])}" if metric == "latency" and "latency_by" in self else ""
            lines.append(f"  {metric} {units.show(self[metric], metric)}{limit}{how}")
        if trunk := self.get("trunk"):
            lines.append(f"  on the frozen trunk {trunk['source']}: {trunk['params']:,} parameters, not counted")
        if "test_accuracy" in start:
            lines.append(f"  before fine-tuning, at this size: {start['test_accuracy']:.2f} %")
        if by_hand:
            found = [row for row in self["candidates"] if row.get("name") != "baseline"]
            lines += [f"  found: {row['params']:,} parameters, {row['test_accuracy']:.2f} %" for row in found]
        elif baseline := self.get("baseline"):
            lines.append(f"  baseline: {baseline['params']:,} parameters, {baseline['test_accuracy']:.2f} %")
        if first is not None and not first["chosen"]:
            lines.append(f"  first blocks: {first['params']:,} parameters, {first['test_accuracy']:.2f} %")
        for cut in self.get("sizes", ()):
            shown = f"{cut['params']:,} parameters, {cut['test_accuracy']:.2f} %"
            lines.append(f"  at most {units.show(cut['size'])}: {shown}, folder {self.folder / cut['folder']}")
        for peer in self.get("peers", ()):
            known = peer["test_accuracy"] is not None
            about = f"{peer['test_accuracy']:.2f} %" if known else "could not be trained"
            over = ", over the limit" if peer["over"] else ""
            lines.append(f"  {peer['name']}: {peer['params']:,} parameters, {about}{over}")
        if len(self.get("candidates", ())) > 1 and self.get("why"):
            lines.append(f"  {self['why']}")
        if skipped := self["data"].get("skipped"):
            lines.append(f"  {skipped} image(s) could not be read and were left out; {SKIPPED} lists them")
        return [*self._beaten(), *lines, f"  folder {self.folder}, report {self.folder / 'report.html'}"]

    def _beaten(self) -> list[str]:
        """A first line where a peer was clearly better on the test images; that a cut costs accuracy is no news."""
        peers = [p for p in self.get("peers", ()) if "whole" not in self or p["name"].startswith("timm:")]
        better = [p for p in peers if p["gap"] and p["gap"]["clear"] and p["gap"]["difference"] > 0]
        if not better:
            return []
        best = max(better, key=lambda p: p["test_accuracy"])
        over = ", over the limit," if best["over"] else ""
        figures = f"{best['test_accuracy']:.2f} % of the test images against {self['test_accuracy']:.2f} %"
        return [f"{best['name']}{over} was better than the network delivered: {figures}."]


def _how_known(facts: Mapping[str, Any]) -> str:
    """How the latency of a result is known, in a few words."""
    if facts.get("how") != "predicted":
        return f"measured in {facts['runtime']}"
    table = facts["table"]
    return f"predicted for {table['host']}, median error {100 * table['median_error']:.1f} %"


# -- run --------------------------------------------------------------------------------------------------------------


def run(
    recipe: str | Path | None = None,
    *,
    data: Any = None,
    start: str | Path | None = None,
    weights: str | Path | None = None,
    max_params: Size = None,
    min_params: Size = None,
    max_macs: Size = None,
    max_latency: Size = None,
    max_memory: Size = None,
    latency_table: str | Path | None = None,
    front: Front = None,
    method: str | None = None,
    baseline: str | Sequence[str] | None = None,
    prefer: str | None = None,
    image_size: int | None = None,
    budget: Size = None,
    seed: int | None = None,
    settings: Changes = (),
    tiny: bool = False,
    out: str | Path | None = None,
    callbacks: Callbacks = (),
    progress: Mode | None = None,
) -> Result:
    """Find, train and save a network for images and limits, in a new folder.

    The arguments are the options of ``tailorvit run``; ``settings`` changes recipe keys: ``{"train.epochs": 50}``.
    ``start`` is the pretrained network of ``--from``, such as ``timm:NAME``; ``from`` is a keyword in Python.
    ``data`` may also be (images, labels), a torch Dataset, a DataFrame of files and classes, or a data set of Hugging
    Face; the run keeps a copy of them.
    ``callbacks`` are told what happens (docs/callbacks.md): objects of ``tailorvit.Callback``, and names of loggers.
    Everything that can be checked is checked before the folder is made.
    """
    limits = {"max_params": max_params, "min_params": min_params, "max_macs": max_macs}
    limits |= {"max_latency": max_latency, "max_memory": max_memory}
    limits["table"] = None if latency_table is None else str(latency_table)
    options: dict[str, Any] = {
        "data": _source(data),
        "start": start,
        "weights": weights,
        "front": front,
        "limits": limits,
        "method": method,
        "baseline": baseline,
        "prefer": prefer,
        "image_size": image_size,
        "budget": budget,
    }
    rest = {"seed": seed, "settings": settings, "tiny": tiny}
    called = callbacks_of(callbacks)
    return _led(lambda: _begin(_choices(recipe, options, rest), out, progress, called))


def plan(recipe: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """What a run would do and how long it would take, with nothing trained or written; options as for :func:`run`."""
    limits = {k: options.pop(k) for k in list(options) if k.startswith(("max_", "min_"))}
    limits["table"] = options.pop("latency_table", None)
    rest: dict[str, Any] = {k: v for k, v in options.items() if k in ("seed", "settings", "tiny")}
    options = {k: v for k, v in options.items() if k not in rest}
    options["data"] = _source(options.get("data"))
    choices = _choices(recipe, {**options, "limits": limits}, rest)

    def attempt(choice: Choice) -> dict[str, Any]:
        with preserved_state(), _rehearsal(prepare(choice.config), "quiet") as session:
            if session.config.method != TAILOR:
                return schedule.planned(session)
            found = tailor_plan.planned(session)
            if choice.by_default and session.config.time:
                default_start.require_epochs(found)
            return found

    found, note = _first_that_works(choices, attempt)
    return {**found, "lines": [*([note] if note else []), *found["lines"]]}


def _source(data: Any) -> str | None:
    return None if data is None else source_of(data)


def chosen_start(
    recipe: str | Path | None, options: Mapping[str, Any]
) -> tuple[str | Path | None, dict[str, Any], str]:
    """``--from auto`` as the network it stands for, with a sentence that says which.

    Where none can be had, the sentence says why, and the run is the one that it would be without a start.
    """
    if options.get("start") == NONE:
        return recipe, {**options, "start": None}, ""
    if options.get("start") != AUTO or options.get("method") not in (None, TAILOR):
        return recipe, dict(options), ""
    if options.get("weights") is not None:
        raise TailorError(f"--weights '{options['weights']}' goes with a named network, not with --from auto.")
    found, note = _at_hand(options.get("image_size"), (options.get("limits") or {}).get("max_params"))
    if found is not None:
        return recipe, {**options, "start": found.source}, note
    left_out = " and for one size only" if options.get("front") else ""
    recipe = None if recipe is not None and str(recipe) == TAILOR else recipe
    note = f"{note.rstrip('.')}; so the run goes on from scratch{left_out}."
    return recipe, {**options, "start": None, "method": None, "front": None}, note


def _at_hand(side: int | None, limit: Size) -> tuple[Pretrained | None, str]:
    """The best fitting pretrained network for images of that side, and a sentence about it."""
    side = side or USUAL_SIDE
    return first_at_hand((side, side), None if limit is None else units.parse(limit, "params"))


@dataclass(frozen=True)
class Choice:
    """A run that could be begun, and the sentence that says what was chosen for the user."""

    config: Config
    note: str = ""
    by_default: str = ""  # the pretrained network that nobody asked for; another run follows where it cannot be used


def _choices(recipe: str | Path | None, options: Mapping[str, Any], rest: Mapping[str, Any]) -> list[Choice]:
    """The run that was asked for; for photos without a word about the start one from a pretrained network first."""
    settings = overrides(rest.get("settings", ()))
    table = settings.get("start") or {}
    unsaid = not any(options.get(k) for k in ("start", "weights", "method")) and not table and "method" not in settings
    recipe, asked, note = chosen_start(recipe, options)
    if recipe is None:
        own = str(asked.get("data") or "digits") != "digits"
    else:
        own = str(recipe) == OWN_IMAGES
    plain = {**asked, "front": None} if unsaid and own else asked
    config = recipe_for(recipe, **plain, **rest)
    if not (unsaid and own) or rest.get("tiny") or not default_start.suits_pretrained(config):
        return [Choice(config if plain is asked else recipe_for(recipe, **asked, **rest), note)]
    size = config.data.image_size
    found, note = _at_hand(size if isinstance(size, int) else None, config.limits.get("max_params"))
    if found is None:
        return [Choice(recipe_for(recipe, **asked, **rest), f"{note.rstrip('.')}; so the run goes on from scratch.")]
    budget = asked.get("budget") or config.time
    begun = recipe_for(None, **{**asked, "start": found.source, "budget": budget}, **rest)
    note = f"{note.rstrip('.')}, as these are photos; {default_start.OTHERWISE}."
    scratch = [] if asked.get("front") else [Choice(config)]
    return [Choice(begun, note, found.source), *scratch]


def _first_that_works(choices: Sequence[Choice], attempt: Callable[[Choice], T]) -> tuple[T, str]:
    """What an attempt at the first choice gives, or at the next where that is refused; and the sentence to say."""
    first, *others = choices
    if not others:
        return attempt(first), first.note
    try:
        return attempt(first), first.note
    except TailorError as error:
        return attempt(others[0]), default_start.why_not(first.by_default, error)


@contextlib.contextmanager
def _rehearsal(plan: Plan, mode: Mode | None) -> Iterator[Session]:
    """A session whose folder is gone afterwards, to measure speeds before a run has a folder."""
    with (
        TemporaryDirectory() as folder,
        contextlib.closing(make_progress(mode)) as progress,
        Run.create(Path(folder) / "plan", to_toml(plan.config), _info(plan)) as record,
    ):
        yield Session(plan, record, progress)


def recipe_for(
    recipe: str | Path | None = None,
    *,
    data: str | Path | None = None,
    start: str | Path | None = None,
    weights: str | Path | None = None,
    front: Front = None,
    limits: Mapping[str, Size] | None = None,
    method: str | None = None,
    baseline: str | Sequence[str] | None = None,
    prefer: str | None = None,
    image_size: int | None = None,
    budget: Size = None,
    seed: int | None = None,
    settings: Changes = (),
    tiny: bool = False,
) -> Config:
    """The config of a run: a recipe (or the one that suits the data), then the options, then the settings."""
    source = None if data is None else str(data)
    begins = start_options(start, weights, front, method)
    if recipe is None:
        usual = DEFAULT_RECIPE if source in (None, "digits") else OWN_IMAGES
        recipe = TAILOR if begins.get("method") == TAILOR else usual
    recipe = str(recipe)
    base = read_recipe(recipe)
    options: dict[str, Any] = {
        "data": {k: v for k, v in (("source", source), ("image_size", image_size)) if v is not None},
        "limits": {k: str(v) if k == "table" else v for k, v in (limits or {}).items() if v is not None},
        **begins,
        **{k: v for k, v in {"prefer": prefer, "seed": seed}.items() if v is not None},
        **_budget(budget),
    }
    if bounds_of(options["limits"]):  # limits given by hand replace the recipe's
        own = base.get("limits", {})
        base = {**base, "limits": {k: v for k, v in own.items() if k in MEASURING} if isinstance(own, dict) else own}
    changes = overrides(settings)
    if baseline:
        changes["baseline"] = _with_peers({**base, **options, **changes}, baseline)
    base = _with_whole_epochs(base, options)
    full = merged(merged(for_searcher(base, changes), options), changes)
    if "tailor" in begins and full.get("method") != TAILOR:
        shown = ", ".join(map(str, begins["tailor"]["front"]))
        raise TailorError(f"Several sizes ({shown}) are for a pretrained start; give it as --from timm:NAME.")
    if tiny:
        # Images of one's own come by --data, by --set or by a recipe of one's own.
        path = Path(recipe)
        packaged = path.stem in recipe_names() and (recipe == path.stem or path.parent.name == "recipes")
        own = any(map(_brings_images, (options, changes) if packaged else (full,)))
        # What was asked for by hand stays; a limit only where the space follows it, as a shrunk one could not.
        keep = ("data", "limits") if options["limits"] and full.get("space", "auto") == "auto" else ("data",)
        full = merged(merged(tiny_form(full, own_data=own), {k: options[k] for k in keep}), changes)
    begun = full.get("start")
    if isinstance(begun, Mapping) and begun.get("network") == NONE:
        full = {**full, "start": {k: v for k, v in begun.items() if k != "network"}}
    return configure(full)


def start_options(
    start: str | Path | None = None,
    weights: str | Path | None = None,
    front: Front = None,
    method: str | None = None,
) -> dict[str, Any]:
    """The recipe keys of ``--from``, ``--weights``, ``--front`` and ``--method``: a start is tailored unless told."""
    sizes = [word.strip() for word in front.split(",") if word.strip()] if isinstance(front, str) else front
    begins = {k: str(v) for k, v in (("network", start), ("weights", weights)) if v is not None}
    method = TAILOR if method is None and start is not None else method
    return {
        **({"start": begins} if begins else {}),
        **({"tailor": {"front": list(sizes)}} if sizes else {}),
        **({} if method is None else {"method": method}),
    }


def _budget(budget: Size) -> dict[str, Any]:
    """A budget of time, or of epochs: of the final training, which all other lengths follow."""
    if budget is None:
        return {}
    epochs = re.fullmatch(r"\s*(\d+)\s*epochs?\s*", str(budget))
    return {"time": budget} if epochs is None else {"time": None, "train": {"epochs": int(epochs[1])}}


def _with_whole_epochs(base: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Under a budget of epochs: those of a whole pretrained network follow the final training's."""
    asked, own = options.get("train"), configure(base)
    if asked is None or TAILOR not in (options.get("method"), own.method):
        return dict(base)
    factor = asked["epochs"] / own.final.train.epochs
    return merged(base, {"tailor": {"epochs": max(1, round(factor * own.tailor.epochs))}})


def _with_peers(recipe: Mapping[str, Any], baseline: str | Sequence[str]) -> list[Any]:
    """Models of timm beside what the recipe trains anyway."""
    usual = METHOD_DEFAULTS.get(str(recipe.get("method")), {}).get("baseline", True)
    before = recipe.get("baseline", usual)
    return [
        *(before if isinstance(before, list) else [before]),
        *([baseline] if isinstance(baseline, str) else baseline),
    ]


def _brings_images(part: Mapping[str, Any]) -> bool:
    data = part.get("data")
    return isinstance(data, Mapping) and data.get("source", "digits") != "digits"


def finetune(
    network: str | Path,
    *,
    data: Any,
    image_size: int | None = None,
    preset: str = "default",
    windows: Literal["scale", "keep"] | None = None,
    beside: bool = False,
    seed: int | None = None,
    settings: Changes = (),
    tiny: bool = False,
    out: str | Path | None = None,
    callbacks: Callbacks = (),
    progress: Mode | None = None,
) -> Result:
    """Train a finished network on: other images, other classes, another resolution; writes a run of its own.

    With ``beside`` a linear probe on the frozen network and the same network from scratch are trained beside it.
    """
    options = (source_of(data), image_size, preset, windows, seed, settings, tiny, beside)
    called = callbacks_of(callbacks)
    return _led(lambda: _begin([Choice(finetune_recipe(network, *options))], out, progress, called))


def finetune_recipe(
    network: str | Path,
    data: str | Path,
    image_size: int | None = None,
    preset_name: str = "default",
    windows: str | None = None,
    seed: int | None = None,
    settings: Changes = (),
    tiny: bool = False,
    beside: bool = False,
) -> Config:
    """The config of a fine-tuning: the preset, then the options, then the settings."""
    base = preset(preset_name).recipe()
    if tiny:
        base.pop("data", None)  # a paper's 384 px take more than seconds
    options: dict[str, Any] = {
        "method": "finetune",
        "start": {
            "network": str(network),
            **({"windows": windows} if windows else {}),
            **({"beside": True} if beside else {}),
        },
        "data": {"source": str(data), **({"image_size": image_size} if image_size is not None else {})},
        **({"seed": seed} if seed is not None else {}),
    }
    changes = overrides(settings)
    full = merged(merged(base, options), changes)
    if tiny:
        # There is one training, [train]: without a table of its own the last one is the same.
        full = merged({k: v for k, v in tiny_form(full, own_data=True).items() if k != "final"}, changes)
    return configure(full)


# -- begin, resume, work ----------------------------------------------------------------------------------------------


class Ready(NamedTuple):
    """A run that was checked: its plan, its folder, and with a budget of time what that buys and how long it took."""

    plan: Plan
    folder: Path
    ahead: dict[str, Any] | None
    seconds: float


def _led(work: Callable[[], Result]) -> Result:
    """Do the work, or as another process of the same torchrun follow the one that does."""
    with ranks.joined():
        if ranks.is_writer():
            result = work()
            team.dismiss(result.folder, result)
            return result
        with preserved_state():
            done = follow(prepare)
        return Result(done.folder, done.facts)


def _begun_before(out: str | Path | None) -> Path | None:
    """The folder of the run that this torchrun began before it lost a process and started all again."""
    if ranks.launch() is None:
        return None
    for folder in [Path(out)] if out is not None else sorted(Path("runs").glob("*")):
        record, missing = Run.salvage(folder)
        with record:
            ours = not missing and record.info.get("launch") == ranks.launch()
            if ours and (ranks.restarted() or not record.finished):
                return folder
    return None


def _begin(
    choices: Sequence[Choice], out: str | Path | None, progress: Mode | None, called: Sequence[Callback]
) -> Result:
    """Check, make the folder, work; torch and the random generators are left as they were.

    A note on what was chosen for the user is kept in info.json, and said.
    """
    begun = _begun_before(out)
    if begun is not None:
        return _resume(begun, None, progress, called)
    with preserved_state(), stoppable():
        ready, note = _first_that_works(choices, lambda choice: _checked(choice, out, progress))
        plan = ready.plan
        info = {**_info(plan), **({"note": note} if note else {})}
        made = Run.create(ready.folder, to_toml(plan.config), info, plan.data.split_record())
        with made as record, guard.to_go_on_with(record):
            keep_copy(plan.config.data.source, record.folder)
            if ready.ahead is not None:
                record.finish("plan", ready.ahead)
                record.spend("plan", ready.seconds)
            copy_start(plan.start, plan.config, record)
            keep_table(plan.clock, record)
            return _work(plan, record, progress, called)


def _checked(choice: Choice, out: str | Path | None, progress: Mode | None) -> Ready:
    """Everything that can be refused before there is a folder; a budget that is too short among it."""
    plan = prepare(choice.config)
    folder = Path(out) if out is not None else guard.free_folder(plan.config.method, plan.config.data.source)
    Run.require_free(folder)
    ahead, begin, seconds = None, time.monotonic(), plan.config.seconds()
    if seconds is not None:
        with _rehearsal(plan, progress) as session:
            ahead = _plan_time(session, seconds)
    if choice.by_default:
        default_start.require_epochs(ahead)
    return Ready(plan, folder, ahead, time.monotonic() - begin)


def _plan_time(session: Session, seconds: float) -> dict[str, Any]:
    """The plan of a run with a budget of time; one that is too short is refused."""
    if session.config.method == TAILOR:
        return tailor_plan.plan_time(session, seconds)
    return schedule.plan_time(session, session.plan.entries, seconds)


def _info(plan: Plan) -> dict[str, Any]:
    """What info.json holds."""
    data, start = plan.data, plan.start
    return {
        **guard.run_info(data, plan.config.seed),
        "method": plan.config.method,
        **({} if ranks.launch() is None else {"launch": ranks.launch()}),
        **({} if data.trunk is None else {"trunk": data.trunk.facts}),
        **({} if start is None else {"start": {"network": plan.config.start.network, "sha256": start.checksum}}),
    }


def resume(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    callbacks: Callbacks = (),
    progress: Mode | None = None,
) -> guard.Result:
    """Go on with an unfinished run; a finished one just gives its result.

    ``data`` says where the run's images lie now; they must be the same images. ``callbacks`` are told what is new.
    """
    if downstream.task_of(folder):
        return downstream.resume(folder, data=data, callbacks=callbacks, progress=progress)
    called = callbacks_of(callbacks)
    return _led(lambda: _resume(folder, data, progress, called))


def _resume(folder: str | Path, data: str | Path | None, progress: Mode | None, called: Sequence[Callback]) -> Result:
    from tailorvit.report import write_report

    place = Path(folder)
    if (begun := study_in(place)) is not None:
        options: dict[str, Any] = {"what": begun["what"], "data": data, "out": place}
        return study(run_studied(place, begun), **options, callbacks=called, progress=progress)
    with Run.open(place) as record, preserved_state(), stoppable(), guard.to_go_on_with(record):
        if record.finished:
            if not (place / "report.html").exists():  # killed between the two
                write_report(place)
            found: Result = Result.finished(record)
            return found
        _require_same_method(record)
        config = _stored_config(record, data)
        splits = record.read_json("splits")
        start = read_start(config, place)
        copy_start(start, config, record)
        plan = prepare(as_begun(config, place), splits, start)
        keep_table(plan.clock, record)
        require_same_trunk(plan.data, record.info)
        if splits is None:
            record.write_json("splits", plan.data.split_record())
        if data is not None:
            guard.note_moved(plan.data, record)
        record.event("resume", "the run goes on")
        return _work(plan, record, progress, called)


def _stored_config(record: Run, data: str | Path | None) -> Config:
    """The config of a run from its recipe, with the place where its images lie now."""
    versions_then = record.info.get("versions")
    versions_then = versions_then if isinstance(versions_then, dict) else {}
    written_by = str(versions_then.get("tailorvit", "an older version"))
    config = configure(modernised(parse_recipe(record.recipe, str(record.folder / "recipe.toml")), written_by))
    source = str(data) if data is not None else source_of_run(config.data.source, record.info, record.folder)
    return replace(config, data=replace(config.data, source=source))


def _require_same_method(record: Run) -> None:
    """What one method has stored would mean something else to another."""
    begun, found = record.info.get("method"), parse_recipe(record.recipe, "recipe.toml").get("method", "s4")
    if begun is not None and begun != found:
        raise TailorError(f"'{record.folder}' began with method '{begun}', but its recipe.toml says '{found}'.")


def _work(plan: Plan, record: Run, mode: Mode | None, called: Sequence[Callback]) -> Result:
    """Run the method, write result and report."""
    with _at_work(plan, record, mode, called) as session:
        facts = run_method(team.begin(session))
        facts = _with_changes(session, facts)
        record.write_json("result", facts)
        guard.report_on(session)
        result = Result(record.folder, facts)
        record.hooks.tell("run_ends", result)
        return result


@contextlib.contextmanager
def _at_work(plan: Plan, record: Run, mode: Mode | None, called: Sequence[Callback]) -> Iterator[Session]:
    """A session for a piece of work; what ends it is stored, and said with how to go on."""
    import torch

    progress = make_progress(mode)
    session = Session(plan, record, progress)
    called = with_tensorboard(called) if plan.config.tensorboard else called
    with contextlib.closing(progress), guard.callbacks_told(session, called), guard.failures_told(record):
        torch.set_num_threads(plan.config.threads)
        with guard.memory_notices(session):
            _open_session(session)
            yield session


def _with_changes(session: Session, facts: dict[str, Any]) -> dict[str, Any]:
    """The result with a doubt where images changed while the run was going."""
    session.note_skipped()
    sentences = [event["text"] for event in session.run.events(CHANGED)]
    return {**facts, "doubts": [*facts.get("doubts", ()), *sentences]} if sentences else facts


def run_method(session: Session) -> dict[str, Any]:
    """The run's method; where the family is open, a contest chooses it first and the method works on its shape."""
    method = METHODS[session.config.method]
    if method.name == "contest" or not session.plan.entries:
        return method.run(session)
    session, winner, facts = after_contest(session)
    space = auto_space(winner.entry.family, dict(winner.entry.settings), session.limits, **session.measuring)
    return {**method.run(session.for_space(space)), **facts}


def _open_session(session: Session) -> None:
    """Say what the run is about and what is odd about its data; compute a trunk's features."""
    data = session.data
    session.note_skipped()
    session.progress.say(_opening(session))
    if note := session.run.info.get("note"):
        session.log_once("start", note)
    for sentence in data.notes:
        session.log_once("data", sentence)
    say_clock(session)
    if hint := several_gpus(session.device):
        session.log_once("device", hint)
    if data.trunk is not None:
        with session.timed("trunk"):
            data.prepare(
                lambda text: session.log("cache", text),
                lambda split, at, of: session.progress.step(f"trunk, {split} split", at, of, {}),
            )


def _opening(session: Session) -> str:
    """The first line of a run; class names are in it because they show a wrong layout of folders."""
    data, space, meter = session.data, session.space, session.meter
    names = f"{', '.join(data.classes[:4])}{', ...' if len(data.classes) > 4 else ''}"
    high, wide = data.preprocessing["image_size"]
    count = "one architecture" if space.count() == 1 else f"{space.count():.3g} architectures"
    trunk = "" if data.trunk is None else f", on the frozen trunk {data.trunk.source}"
    n = data.counts
    return (
        f"{session.config.method} on {data.source}: {len(data.classes)} classes ({names}), {n['train']} training / "
        f"{n['search']} search / {n['test']} test images at {high}x{wide} px{trunk}; {count}, the largest with "
        f"{units.show(meter.most('params', space))} parameters; {meter.limits.describe()}."
    )


# -- study ------------------------------------------------------------------------------------------------------------


class Study(Result):
    """What study.json holds, as a mapping and as attributes, and the folder of the study."""

    def summary(self) -> list[str]:
        """Its tables in text."""
        return [*studies.lines(self._facts), f"  folder {self.folder}"]


def study(
    run: str | Path,
    *,
    what: studies.What = "all",
    count: int | None = None,
    epochs: int | None = None,
    data: str | Path | None = None,
    out: str | Path | None = None,
    callbacks: Callbacks = (),
    progress: Mode | None = None,
) -> Study:
    """Retrain the best network of each space of a finished run, and compare inherited, tuned and retrained networks.

    The study has a folder of its own, RUN/study unless ``out`` names another; called again it goes on. The run stays
    as it is, but for its report, which shows the study in RUN/study. ``data`` says where the run's images lie now.
    """
    if ranks.world() > 1:
        raise TailorError("A study is the work of one process; start it without torchrun.")
    called, place = callbacks_of(callbacks), Path(run)
    folder = place / studies.STUDY if out is None else Path(out)
    with Run.open(place, lock=False) as parent:
        studies.require_studied(parent)
        settings = study_settings(folder, parent, what, count, epochs)
        begun = open_study(folder, parent, settings, lambda: _study_plan(parent, data), _info)
        with preserved_state(), stoppable(), begun as (record, plan):
            if plan is None:
                facts = dict(record.read_json(studies.STUDY) or {})
            else:
                with guard.to_go_on_with(record), _at_work(plan, record, progress, called) as session:
                    facts = studies.study(session, parent, settings)
                    record.hooks.tell("run_ends", Study(folder, facts))
    if folder.resolve() == place.resolve() / studies.STUDY:
        _report_on(place)
    return Study(folder, facts)


def _study_plan(parent: Run, data: str | Path | None) -> Plan:
    """The plan of a run as it was, with its splits; what only a run needs, such as its peers, is left out."""
    splits = parent.read_json("splits")
    if not isinstance(splits, dict):
        raise TailorError(f"'{parent.folder}' has lost its splits.json, so its test images are not known.")
    config = _stored_config(parent, data)
    config = replace(config, baseline=False, start=replace(config.start, supernet=""))
    plan = prepare(config, splits)
    require_same_trunk(plan.data, parent.info)
    return plan


def _report_on(folder: Path) -> None:
    """Write the page of a run anew; the study is safe by now, so a page that fails costs only itself."""
    from tailorvit.report import write_report

    try:
        write_report(folder)
    except Exception as error:
        warnings.warn(f"report.html could not be written ({type(error).__name__}: {error})", stacklevel=2)
