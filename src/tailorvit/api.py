"""The calls behind the commands that work: run a recipe, resume a run, fine-tune a network."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from tailorvit import units
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
from tailorvit.data.sources import absolute_path, source_of_run
from tailorvit.errors import TailorError
from tailorvit.lookup import versions
from tailorvit.methods import METHODS
from tailorvit.methods.contest import after_contest
from tailorvit.methods.finetune import copy_start, preset, read_start
from tailorvit.methods.first_space import auto_space
from tailorvit.methods.prepare import prepare
from tailorvit.methods.schedule import plan_time, planned
from tailorvit.methods.session import Plan, Session
from tailorvit.methods.trunk import require_same_trunk
from tailorvit.progress import Mode, make_progress
from tailorvit.rng import preserved_state
from tailorvit.runs import Run
from tailorvit.tiny import tiny as tiny_form

DEFAULT_RECIPE = "s4-digits"
TAILOR = "tailor"  # the method, and its recipe, for a pretrained start
AUTO, USUAL_SIDE = "auto", 224  # --from auto, and the side in pixels that it takes images to have
Size = str | int | float | None  # of a limit: "5M", "12ms", or a plain number
Front = str | Sequence[str | int] | None  # sizes: "2M,4M" or ["2M", 4_000_000]
Changes = Sequence[str] | Mapping[str, Any]  # of recipe keys: ["train.epochs=50"] or {"train.epochs": 50}


class Result(Mapping[str, Any]):
    """A finished run: what result.json holds, as a mapping and as attributes, and the run's folder."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder, self._facts = folder, dict(facts)

    def __getitem__(self, key: str) -> Any:
        return self._facts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._facts:
            raise AttributeError(f"the result has no '{name}'; it has {', '.join(self.__dict__.get('_facts', ()))}")
        return self._facts[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._facts]

    def __repr__(self) -> str:
        return "\n".join(self.summary())

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
            lines.append(f"  {metric} {units.show(self[metric], metric)}{limit}")
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
            lines.append(f"  {skipped} image(s) could not be read and were left out; log.txt names the first")
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


# -- run --------------------------------------------------------------------------------------------------------------


def run(
    recipe: str | Path | None = None,
    *,
    data: str | Path | None = None,
    start: str | Path | None = None,
    weights: str | Path | None = None,
    max_params: Size = None,
    min_params: Size = None,
    max_macs: Size = None,
    max_latency: Size = None,
    max_memory: Size = None,
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
    progress: Mode | None = None,
) -> Result:
    """Find, train and save a network for images and limits, in a new folder.

    The arguments are the options of ``tailorvit run``; ``settings`` changes recipe keys: ``{"train.epochs": 50}``.
    ``start`` is the pretrained network of ``--from``, such as ``timm:NAME``; ``from`` is a keyword in Python.
    Everything that can be checked is checked before the folder is made.
    """
    limits = {"max_params": max_params, "min_params": min_params, "max_macs": max_macs}
    limits |= {"max_latency": max_latency, "max_memory": max_memory}
    options: dict[str, Any] = {
        "data": data,
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
    recipe, options, note = chosen_start(recipe, options)
    return _begin(recipe_for(recipe, **options, seed=seed, settings=settings, tiny=tiny), out, progress, note)


def plan(recipe: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """What a run would do and how long it would take, with nothing trained or written; options as for :func:`run`."""
    limits = {k: options.pop(k) for k in list(options) if k.startswith(("max_", "min_"))}
    recipe, options, note = chosen_start(recipe, {**options, "limits": limits})
    with preserved_state():
        made = prepare(recipe_for(recipe, **options))
        with _rehearsal(made, "quiet") as session:
            found = planned(session)
    return {**found, "lines": [*([note] if note else []), *found["lines"]]}


def chosen_start(
    recipe: str | Path | None, options: Mapping[str, Any]
) -> tuple[str | Path | None, dict[str, Any], str]:
    """``--from auto`` as the network it stands for, with a sentence that says which.

    Where none can be had, the sentence says why, and the run is the one that it would be without a start.
    """
    if options.get("start") != AUTO or options.get("method") not in (None, TAILOR):
        return recipe, dict(options), ""
    if options.get("weights") is not None:
        raise TailorError(f"--weights '{options['weights']}' goes with a named network, not with --from auto.")
    side, limit = options.get("image_size") or USUAL_SIDE, (options.get("limits") or {}).get("max_params")
    found, note = first_at_hand((side, side), None if limit is None else units.parse(limit, "params"))
    if found is not None:
        return recipe, {**options, "start": found.source}, note
    left_out = " and for one size only" if options.get("front") else ""
    recipe = None if recipe is not None and str(recipe) == TAILOR else recipe
    note = f"{note.rstrip('.')}; so the run goes on from scratch{left_out}."
    return recipe, {**options, "start": None, "method": None, "front": None}, note


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
        usual = DEFAULT_RECIPE if source in (None, "digits") else "image-folder"
        recipe = TAILOR if begins.get("method") == TAILOR else usual
    recipe = str(recipe)
    base = read_recipe(recipe)
    options: dict[str, Any] = {
        "data": {k: v for k, v in (("source", source), ("image_size", image_size)) if v is not None},
        "limits": {k: v for k, v in (limits or {}).items() if v is not None},
        **begins,
        **{k: v for k, v in {"prefer": prefer, "seed": seed}.items() if v is not None},
        **_budget(budget),
    }
    if options["limits"]:
        base = {**base, "limits": {}}  # limits given by hand replace the recipe's
    changes = overrides(settings)
    if baseline:
        changes["baseline"] = _with_peers({**base, **options, **changes}, baseline)
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
    data: str | Path,
    image_size: int | None = None,
    preset: str = "default",
    windows: Literal["scale", "keep"] | None = None,
    seed: int | None = None,
    settings: Changes = (),
    tiny: bool = False,
    out: str | Path | None = None,
    progress: Mode | None = None,
) -> Result:
    """Train a finished network on: other images, other classes, another resolution; writes a run of its own."""
    config = finetune_recipe(network, data, image_size, preset, windows, seed, settings, tiny)
    return _begin(config, out, progress)


def finetune_recipe(
    network: str | Path,
    data: str | Path,
    image_size: int | None = None,
    preset_name: str = "default",
    windows: str | None = None,
    seed: int | None = None,
    settings: Changes = (),
    tiny: bool = False,
) -> Config:
    """The config of a fine-tuning: the preset, then the options, then the settings."""
    base = preset(preset_name).recipe()
    if tiny:
        base.pop("data", None)  # a paper's 384 px take more than seconds
    options: dict[str, Any] = {
        "method": "finetune",
        "start": {"network": str(network), **({"windows": windows} if windows else {})},
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


def _begin(config: Config, out: str | Path | None, progress: Mode | None, note: str = "") -> Result:
    """Check, make the folder, work; torch and the random generators are left as they were.

    A note on what was chosen for the user is kept in info.json, and said.
    """
    with preserved_state():
        plan = prepare(config)
        folder = Path(out) if out is not None else _free_folder(plan.config)
        Run.require_free(folder)
        ahead, begin, seconds = None, time.monotonic(), plan.config.seconds()
        if seconds is not None:  # a budget that is too short is refused here
            with _rehearsal(plan, progress) as session:
                ahead = plan_time(session, plan.entries, seconds)
        info = {**_info(plan), **({"note": note} if note else {})}
        with Run.create(folder, to_toml(plan.config), info) as record:
            record.write_json("splits", plan.data.split_record())
            if ahead is not None:
                record.finish("plan", ahead)
                record.spend("plan", time.monotonic() - begin)
            copy_start(plan.start, plan.config, record)
            return _work(plan, record, progress)


def _info(plan: Plan) -> dict[str, Any]:
    """What info.json holds."""
    data, start = plan.data, plan.start
    return {
        "command": _command(),
        "versions": versions(),
        "seed": plan.config.seed,
        "data": {
            "source": data.source,
            "path": absolute_path(data.source),
            "fingerprint": data.fingerprint,
            "counts": data.counts,
        },
        **({} if data.trunk is None else {"trunk": data.trunk.facts}),
        **({} if start is None else {"start": {"network": plan.config.start.network, "sha256": start.checksum}}),
    }


def _command() -> str:
    """What was typed, without the place of the program."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name  # python -m tailorvit
    return shlex.join([name, *sys.argv[1:]])


def _free_folder(config: Config) -> Path:
    source = Path(config.data.source).name.replace(":", "-") or "data"
    number = 1
    while (folder := Path("runs") / f"{config.method}-{source}-{number}").exists():
        number += 1
    return folder


def resume(folder: str | Path, *, progress: Mode | None = None) -> Result:
    """Go on with an unfinished run; a finished one just gives its result."""
    from tailorvit.report import write_report

    place = Path(folder)
    with Run.open(place) as record, preserved_state():
        if record.finished:
            if not (place / "report.html").exists():  # killed between the two
                write_report(place)
            facts = record.read_json("result")
            return Result(place, facts if isinstance(facts, dict) else {})
        written_by = str(record.info.get("versions", {}).get("tailorvit", "an older version"))
        config = configure(modernised(parse_recipe(record.recipe, str(place / "recipe.toml")), written_by))
        config = replace(config, data=replace(config.data, source=source_of_run(config.data.source, record.info)))
        splits = record.read_json("splits")
        start = read_start(config, place)
        copy_start(start, config, record)
        plan = prepare(config, splits, start)
        require_same_trunk(plan.data, record.info)
        if splits is None:
            record.write_json("splits", plan.data.split_record())
        record.event("resume", "the run goes on")
        return _work(plan, record, progress)


def _work(plan: Plan, record: Run, mode: Mode | None) -> Result:
    """Run the method, write result and report."""
    import torch

    from tailorvit.report import write_report

    progress = make_progress(mode)
    session = Session(plan, record, progress)
    try:
        torch.set_num_threads(plan.config.threads)
        _open_session(session)
        facts = run_method(session)
        record.write_json("result", facts)
        _report(session)
        return Result(record.folder, facts)
    except KeyboardInterrupt:
        record.event("interrupted", "stopped by the user")
        raise KeyboardInterrupt(shlex.join(["tailorvit", "resume", str(record.folder)])) from None
    except Exception as error:
        with contextlib.suppress(Exception):  # the first error is the one to show; a full disk would raise here too
            record.event("failed", str(error) if isinstance(error, TailorError) else f"{type(error).__name__}: {error}")
            write_report(record.folder)
        raise
    finally:
        progress.close()


def run_method(session: Session) -> dict[str, Any]:
    """The run's method; where the family is open, a contest chooses it first and the method works on its shape."""
    method = METHODS[session.config.method]
    if method.name == "contest" or not session.plan.entries:
        return method.run(session)
    session, winner, facts = after_contest(session)
    space = auto_space(winner.entry.family, dict(winner.entry.settings), session.limits, device=session.device)
    return {**method.run(session.for_space(space)), **facts}


def _open_session(session: Session) -> None:
    """Say what the run is about and what is odd about its data; compute a trunk's features."""
    data = session.data
    if data.skipped and not session.run.events("skipped"):
        names = [{"path": p, "reason": r} for p, r in data.skipped]
        text = f"{len(data.skipped)} unreadable image(s) were skipped, the first: {data.skipped[0][0]}."
        session.log("skipped", text, files=names)
    session.progress.say(_opening(session))
    if note := session.run.info.get("note"):
        session.log_once("start", note)
    for sentence in data.notes:
        session.log_once("data", sentence)
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


def _report(session: Session) -> None:
    """Write the page; the result is safe by now, so a page that fails is logged and does not fail the run."""
    from tailorvit.report import write_report

    try:
        write_report(session.run.folder)
    except Exception as error:
        session.log("warning", f"report.html could not be written ({type(error).__name__}: {error})")
