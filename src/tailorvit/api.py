"""The calls behind the commands that work: plan a run, run it, go on with it."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tailorvit import units
from tailorvit.arch import Arch
from tailorvit.config import (
    Config,
    configure,
    for_searcher,
    merged,
    overrides,
    parse_recipe,
    read_recipe,
    recipe_names,
    to_toml,
)
from tailorvit.costs import Limits, Meter
from tailorvit.costs.limits import COUNTED
from tailorvit.data import Data, open_data
from tailorvit.data.sources import found_again, place_of
from tailorvit.errors import TailorError
from tailorvit.families import family, with_fixed
from tailorvit.lookup import versions
from tailorvit.methods import method
from tailorvit.methods.given import with_supernet
from tailorvit.methods.plan import (
    around,
    data_fixed,
    default_limit,
    fixed_arch,
    initial_space,
    require_feasible,
    threads_for,
    tiny,
    unsure,
    wanted_size,
)
from tailorvit.methods.session import Session
from tailorvit.methods.start import Start, earlier_splits, keep_start, open_start, transfer_recipe
from tailorvit.methods.trunk import behind, open_tower, require_same
from tailorvit.progress import Mode, make_progress
from tailorvit.runs import Run
from tailorvit.space import Space

DEFAULT_RECIPE = "s4-digits"


@dataclass(frozen=True)
class Result:
    """A finished run: its folder and what result.json holds."""

    folder: Path
    facts: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.facts[key]

    def summary(self) -> list[str]:
        """The run in a few lines: what was found, what it costs, what stands beside it, where it lies."""
        facts, before = self.facts, self.facts.get("start", {})
        genes = ", ".join(f"{k} {v}" for k, v in facts["arch"].items() if k != "family")
        size = f"{facts['params']:,} parameters, {units.show(facts['macs'])} MACs"
        lines = [f"{'Tuned' if before else 'Found'} {genes}", f"  {size}; test accuracy {facts['test_accuracy']:.2f} %"]
        for metric in (m for m in ("latency", "memory") if m in facts):
            top = facts["limits"].get(metric, {}).get("max")
            limit = "" if top is None else f" (limit {units.show(top, metric)})"
            lines.append(f"  {metric} {units.show(facts[metric], metric)}{limit}")
        if facts.get("trunk"):
            trunk = facts["trunk"]
            lines.append(f"  behind the frozen trunk {trunk['source']}: {trunk['params']:,} parameters, not counted")
        if "test_accuracy" in before:
            lines.append(f"  before fine-tuning, at this size: {before['test_accuracy']:.2f} %")
        if facts.get("baseline"):
            rival = facts["baseline"]
            lines.append(f"  hand-designed beside it: {rival['params']:,} parameters, {rival['test_accuracy']:.2f} %")
        if lost := facts["data"].get("skipped"):
            lines.append(f"  {lost} image(s) could not be read and were left out; log.txt names the first")
        return [*lines, f"  folder {self.folder}, report {self.folder / 'report.html'}"]


def recipe_for(
    recipe: str | None = None,
    *,
    data: str | Path | None = None,
    limits: Mapping[str, str | float | None] | None = None,
    method: str | None = None,
    seed: int | None = None,
    image_size: int | None = None,
    sets: Sequence[str] = (),
    small: bool = False,
) -> Config:
    """The config of a run: a recipe (or the one that suits the data), then the options, then ``--set``."""
    data = None if data is None else str(data)
    if recipe is None:
        recipe = DEFAULT_RECIPE if data in (None, "digits") else "image-folder"
    base = read_recipe(recipe)
    options: dict[str, Any] = {
        "data": {k: v for k, v in (("source", data), ("image_size", image_size)) if v is not None},
        "limits": {k: v for k, v in (limits or {}).items() if v is not None},
        **{k: v for k, v in (("method", method), ("seed", seed)) if v is not None},
    }
    if options["limits"]:
        base = {**base, "limits": {}}  # limits given by hand replace the recipe's
    changes = overrides(sets)
    full = merged(merged(for_searcher(base, changes), options), changes)
    if small:
        # Images of one's own come by --data, by --set or by a recipe of one's own.
        path = Path(recipe)
        packaged = path.stem in recipe_names() and (recipe == path.stem or path.parent.name == "recipes")
        own = any(map(_brings_images, (options, changes) if packaged else (full,)))
        # What was asked for by hand stays; a limit only where the space follows it, as a shrunk one could not.
        keep = ("data", "limits") if options["limits"] and full.get("space", "auto") == "auto" else ("data",)
        asked = {k: options[k] for k in keep}
        full = merged(merged(tiny(full, own_data=own), asked), changes)
    return configure(full)


def _brings_images(part: Mapping[str, Any]) -> bool:
    data = part.get("data")
    return isinstance(data, Mapping) and data.get("source", "digits") != "digits"


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise TailorError(f"Device '{name}' cannot be used here ({reason}); try --set device=cpu.") from None
    return name


def prepare(
    config: Config, saved: dict[str, Any] | None = None, start: Start | None = None
) -> tuple[Config, Data, Space, Limits, str]:
    """Everything that can fail before training does: names, device, data, space and limits; returns them resolved."""
    method(config.method)
    family(config.family)
    device = _device(config.device)
    start = start or open_start(config)
    tower = open_tower(config)
    usual = start.size if start is not None else tower.usual_size if tower is not None else None
    asked = wanted_size(config)
    size = usual if asked is None else asked
    opened = open_data(
        config.data.source,
        seed=config.seed,
        image_size=size,
        search_share=config.data.search_share,
        test_share=config.data.test_share,
        saved=saved,
        cache_bytes=config.data.cache,
        limit=config.data.limit,
        earlier=None if start is None else earlier_splits(config),
    )
    pixels = opened.image_size
    opened = behind(config, tower, opened, device)
    given: Arch | None = None  # the only architecture there is, where a finished network is tuned
    searched = config.method not in ("fixed", "finetune")
    if searched and config.space == "auto" and not any(high for m, _, high in config.budget() if m in COUNTED):
        # Memory and time are bounds: what they leave room for may be far more than the images can train.
        floor = next((low for metric, low, _ in config.budget() if metric == "params" and low), 0.0)
        top = max(units.parse(default_limit(opened.counts["train"]), "params"), 2 * floor)
        config = replace(config, limits={**config.limits, "max_params": top})
    for each in (config.train, config.final.train):
        opened.augment(each.augment)  # an unknown preset is found here
    limits = config.budget()
    if config.method == "fixed":
        arch, fixed = fixed_arch(config)
        base = Space(arch.family, around(arch), tuple(fixed.items()))
        space = with_fixed(base, **data_fixed(base if fixed else None, opened, limits, arch.family))
    elif start is not None:
        start.normalise(opened)
        given, space = start.space(opened)
    else:
        space = initial_space(config, opened, limits, device)
    space = with_supernet(config, opened, space, saved is not None)
    if not family(space.family).masked and (config.train.masked or config.evaluate.together > 1):
        raise TailorError(
            f"The {space.family} family runs sliced only: leave train.masked false and evaluate.together at 1."
        )
    if saved is None:  # a resumed run was checked; measuring a latency again could refuse it
        require_feasible(config, space, Meter.for_space(space, unsure(config, limits), device=device), given)
    # From here on the recipe says what was chosen, so that a resumed run cannot choose otherwise.
    # The size a person asked for stays in the recipe; saved ones must be plain lists or numbers for TOML.
    config = replace(
        config,
        space=space.to_dict() if searched else config.space,
        data=replace(config.data, image_size=(pixels[0], pixels[1])),
        device=device,
        threads=threads_for(config, space),
    )
    return config, opened, space, limits, device


def run(
    recipe: str | None = None,
    *,
    out: str | Path | None = None,
    progress: Mode | None = None,
    command: str | None = None,
    **options: Any,
) -> Result:
    """Run a recipe in a new folder; see :func:`recipe_for` for the options. Everything checkable is checked first."""
    return _begin(recipe_for(recipe, **options), out, progress, command)


def finetune(
    network: str | Path,
    *,
    data: str | Path,
    image_size: int | None = None,
    preset: str = "default",
    windows: Literal["scale", "keep"] | None = None,
    seed: int | None = None,
    sets: Sequence[str] = (),
    small: bool = False,
    out: str | Path | None = None,
    progress: Mode | None = None,
    command: str | None = None,
) -> Result:
    """Train a finished network on: other images, other classes, another resolution; writes a run of its own."""
    config = transfer_recipe(
        network,
        data=str(data),
        image_size=image_size,
        preset_name=preset,
        windows=windows,
        seed=seed,
        sets=sets,
        small=small,
    )
    return _begin(config, out, progress, command)


def _begin(config: Config, out: str | Path | None, progress: Mode | None, command: str | None) -> Result:
    """Check, make the folder, work."""
    start = open_start(config)
    config, data, space, limits, device = prepare(config, start=start)
    folder = Path(out) if out is not None else _free_folder(config)
    info = {
        "command": command or _command(),
        "versions": versions(),
        "seed": config.seed,
        "data": {
            "source": data.source,
            "path": place_of(data.source),
            "fingerprint": data.fingerprint,
            "counts": data.counts,
        },
        **({} if data.trunk is None else {"trunk": data.trunk.facts}),
        **({} if start is None else {"start": {"network": config.start.network, "sha256": start.checksum}}),
    }
    with Run.create(folder, to_toml(config), info) as record:
        record.write_json("splits", data.split_record())
        keep_start(start, config, record)
        return _work(config, record, data, space, limits, device, progress)


def _command() -> str:
    """What was typed, without the place of the program."""
    name = Path(sys.argv[0]).name
    return shlex.join(["tailorvit" if name == "__main__.py" else name, *sys.argv[1:]])


def resume(folder: str | Path, progress: Mode | None = None) -> Result:
    """Go on with an unfinished run; a finished one just gives its result."""
    from tailorvit.report import write_report

    place = Path(folder)
    with Run.open(place) as record:
        if record.finished:
            if not (place / "report.html").exists():  # killed between the two
                write_report(place)
            facts = record.read_json("result")
            return Result(place, facts if isinstance(facts, dict) else {})
        config = configure(parse_recipe(record.recipe, str(place / "recipe.toml")))
        config = replace(config, data=replace(config.data, source=found_again(config.data.source, record.info)))
        saved = record.read_json("splits")
        start = open_start(config, place)
        keep_start(start, config, record)
        config, data, space, limits, device = prepare(config, saved, start)
        require_same(data, record.info)
        if saved is None:
            record.write_json("splits", data.split_record())
        record.event("resume", "the run goes on")
        return _work(config, record, data, space, limits, device, progress)


def _work(
    config: Config, record: Run, data: Data, space: Space, limits: Limits, device: str, mode: Mode | None
) -> Result:
    import torch

    from tailorvit.report import write_report

    progress = make_progress(mode)
    session = Session(config, record, data, space, limits, device, progress)
    before = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        if data.skipped and not record.events("skipped"):
            names = [{"path": p, "reason": r} for p, r in data.skipped]
            text = f"{len(data.skipped)} unreadable image(s) were skipped, the first: {data.skipped[0][0]}."
            session.tell("skipped", text, files=names)
        session.progress.say(_opening(config, data, space, session.meter))
        for sentence in data.notes:
            session.tell_once("data", sentence)
        if data.trunk is not None:
            with session.timed("trunk"):
                data.ready(
                    lambda text: session.tell("cache", text),
                    lambda split, at, of: session.progress.step(f"trunk, {split} split", at, of, {}),
                )
        facts = method(config.method).run(session)
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
        torch.set_num_threads(before)
        progress.close()


def _report(session: Session) -> None:
    """Write the page; the result is safe by now, so a page that fails is told and no reason to fail the run."""
    from tailorvit.report import write_report

    try:
        write_report(session.run.folder)
    except Exception as error:
        session.tell("warning", f"report.html could not be written ({type(error).__name__}: {error})")


def _named(classes: Sequence[str]) -> str:
    """How many classes, with the first names: a wrong layout of folders shows in them."""
    return f"{len(classes)} classes ({', '.join(classes[:4])}{', ...' if len(classes) > 4 else ''})"


def _opening(config: Config, data: Data, space: Space, meter: Meter) -> str:
    n = data.counts
    high, wide = data.preprocessing["image_size"]
    members = "one architecture" if space.count() == 1 else f"{space.count():.3g} architectures"
    trunk = "" if data.trunk is None else f", behind the frozen trunk {data.trunk.source}"
    return (
        f"{config.method} on {data.source}: {_named(data.classes)}, {n['train']} training / {n['search']} search "
        f"/ {n['test']} test images at {high}x{wide} px{trunk}; {members}, the largest with "
        f"{units.show(meter.most('params', space))} parameters; {meter.limits.describe()}."
    )


def _free_folder(config: Config) -> Path:
    source = Path(config.data.source).name.replace(":", "-") or "data"
    number = 1
    while (folder := Path("runs") / f"{config.method}-{source}-{number}").exists():
        number += 1
    return folder
