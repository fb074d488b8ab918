"""The calls behind the commands: plan, run, resume, cost, space, list, report, predict, doctor."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tailorvit import units
from tailorvit.config import Config, configure, merged, overrides, parse_recipe, read_recipe, recipe_names, to_toml
from tailorvit.costs import Counter, Limits, Meter
from tailorvit.data import Data, open_data
from tailorvit.errors import TailorError, unknown
from tailorvit.families import FAMILIES, family, named_arch, named_space, with_fixed
from tailorvit.methods import METHODS, method
from tailorvit.methods.plan import (
    around,
    data_fixed,
    default_limit,
    fixed_arch,
    initial_space,
    require_feasible,
    threads_for,
    tiny,
    wanted_size,
)
from tailorvit.methods.session import Session
from tailorvit.progress import Mode, make_progress
from tailorvit.rng import generator
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


def recipe_for(
    recipe: str | None = None,
    *,
    data: str | None = None,
    limits: Mapping[str, str | float | None] | None = None,
    method: str | None = None,
    seed: int | None = None,
    image_size: int | None = None,
    sets: Sequence[str] = (),
    small: bool = False,
) -> Config:
    """The config of a run: a recipe (or the one that suits the data), then the options, then ``--set``."""
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
    full = merged(merged(base, options), overrides(sets))
    if small:
        # What was asked for by hand stays; a limit only where the space follows it, as a shrunk one could not.
        keep = ("data", "limits") if options["limits"] and full.get("space", "auto") == "auto" else ("data",)
        asked = {k: options[k] for k in keep}
        full = merged(merged(tiny(full, own_data=data is not None), asked), overrides(sets))
    return configure(full)


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


def prepare(config: Config, saved: dict[str, Any] | None = None) -> tuple[Config, Data, Space, Limits, str]:
    """Everything that can fail before training does: names, device, data, space and limits; returns them resolved."""
    method(config.method)
    family(config.family)
    device = _device(config.device)
    size = wanted_size(config)
    opened = open_data(
        config.data.source,
        seed=config.seed,
        image_size=size,
        search_share=config.data.search_share,
        test_share=config.data.test_share,
        saved=saved,
        cache_bytes=config.data.cache,
        limit=config.data.limit,
    )
    if config.method != "fixed" and config.space == "auto" and not any(high for _, _, high in config.budget()):
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
    else:
        space = initial_space(config, opened, limits)
    if saved is None:  # a resumed run was checked; measuring a latency again could refuse it
        require_feasible(config, space, Meter.for_space(space, limits, device=device))
    # From here on the recipe says what was chosen, so that a resumed run cannot choose otherwise.
    # The size a person asked for stays in the recipe; saved ones must be plain lists or numbers for TOML.
    config = replace(
        config,
        space=space.to_dict() if config.method != "fixed" else config.space,
        data=replace(config.data, image_size=(opened.image_size[0], opened.image_size[1])),
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
    config, data, space, limits, device = prepare(recipe_for(recipe, **options))
    folder = Path(out) if out is not None else _free_folder(config)
    info = {
        "command": command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": versions(),
        "seed": config.seed,
        "data": {"source": data.source, "fingerprint": data.fingerprint, "counts": data.counts},
    }
    with Run.create(folder, to_toml(config), info) as record:
        record.write_json("splits", data.split_record())
        return _work(config, record, data, space, limits, device, progress)


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
        saved = record.read_json("splits")
        config, data, space, limits, device = prepare(config, saved)
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
    before = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    session = Session(config, record, data, space, limits, device, progress)
    try:
        if data.skipped and not record.events("skipped"):
            names = [{"path": p, "reason": r} for p, r in data.skipped]
            text = f"{len(data.skipped)} unreadable image(s) were skipped, the first: {data.skipped[0][0]}."
            session.tell("skipped", text, files=names)
        session.progress.say(_opening(config, data, space, session.meter))
        facts = method(config.method).run(session)
        record.write_json("result", facts)
        write_report(record.folder)
        return Result(record.folder, facts)
    except KeyboardInterrupt:
        record.event("interrupted", "stopped by the user")
        raise KeyboardInterrupt(shlex.join(["tailorvit", "resume", str(record.folder)])) from None
    finally:
        torch.set_num_threads(before)
        progress.close()


def _opening(config: Config, data: Data, space: Space, meter: Meter) -> str:
    n = data.counts
    high, wide = data.image_size
    return (
        f"{config.method} on {data.source}: {len(data.classes)} classes, {n['train']} training / {n['search']} search "
        f"/ {n['test']} test images at {high}x{wide} px; {space.count():.3g} architectures, the largest with "
        f"{units.show(meter.cost('params', space.largest()))} parameters; {meter.limits.describe()}."
    )


def _free_folder(config: Config) -> Path:
    source = Path(config.data.source).name.replace(":", "-") or "data"
    number = 1
    while (folder := Path("runs") / f"{config.method}-{source}-{number}").exists():
        number += 1
    return folder


# -- looking things up ------------------------------------------------------------------------------------------------


def cost(
    name: str, *, classes: int | None = None, image_size: int | None = None, measure: bool = False, batch: int = 1
) -> dict[str, Any]:
    """Exact parameters and MACs of a named architecture or an ARCH.json, per part; latency and memory on request."""
    import json

    path = Path(name)
    fixed: dict[str, Any] = {}
    if path.suffix == ".json" or path.is_file():
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise TailorError(f"There is no architecture file '{name}'.") from None
        except (OSError, ValueError) as error:
            raise TailorError(f"'{name}' is not readable JSON: {error}.") from None
        if not isinstance(data, dict):
            raise TailorError(f"'{name}' must hold one architecture as a JSON object.")
        genes = data["arch"] if isinstance(data.get("arch"), dict) else {k: v for k, v in data.items() if k != "fixed"}
        if not isinstance(data.get("fixed", {}), dict):
            raise TailorError(f"'fixed' in '{name}' must be an object of shared settings, not {data['fixed']!r}.")
        fixed = dict(data.get("fixed", {}))
        arch = family(str(genes.get("family", "vit"))).arch(genes)
    else:
        named = named_arch(name)
        arch, fixed = named.arch, dict(named.fixed)
    fixed.update({k: v for k, v in (("classes", classes), ("image_size", image_size)) if v is not None})
    counter = Counter(arch.family, fixed)
    params, macs = counter.both(arch)
    frame = counter.frame.to_dict()
    answer = {
        "name": name,
        "arch": arch.to_dict(),
        "fixed": frame,
        "params": params,
        "macs": macs,
        "flops": 2 * macs,
        "parts": [row._asdict() for row in counter.parts(arch)],
        "readings": counter.readings(arch),
    }
    if measure:
        if batch < 1:
            raise TailorError(f"The batch to measure must be at least 1, not {batch}.")
        from tailorvit.costs import measure_latency, measure_memory

        shape = (int(frame["channels"]), *frame["image_size"])
        model = counter.family.build(counter.frame, arch)
        answer["latency"] = measure_latency(model, shape, batch).to_dict()
        answer["memory"] = measure_memory(model, shape, batch)
    return answer


def space_info(
    name: str,
    *,
    classes: int | None = None,
    image_size: int | None = None,
    limits: Mapping[str, str | float | None] | None = None,
    samples: int = 2000,
) -> dict[str, Any]:
    """Dimensions, number of architectures, smallest, typical and largest cost, and the share within the limits."""
    import tomllib

    if name.endswith(".toml"):
        try:
            data = tomllib.loads(Path(name).read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise TailorError(f"Cannot read the space file '{name}': {error}.") from None
        space = Space.from_dict(data.get("space", data))
        family(space.family)
        space = with_fixed(space, classes=classes, image_size=image_size)
    else:
        space = named_space(name, classes=classes, image_size=image_size)
    meter = Meter.for_space(space, Limits.of(**(limits or {})))
    rng = generator(0, "typical")
    drawn = [space.sample(rng) for _ in range(samples)]
    middle = sorted(drawn, key=meter.counter.params)[samples // 2]

    def sized(arch: Any) -> dict[str, Any]:
        params, macs = meter.counter.both(arch)
        return {"params": params, "macs": macs, "arch": arch.to_dict()}

    return {
        "name": name,
        "family": space.family,
        "fixed": {k: list(v) if isinstance(v, tuple) else v for k, v in space.fixed},
        "dims": {d.key: d.to_dict() for d in space.dims},
        "count": space.count(),
        "smallest": sized(space.smallest()),
        "typical": sized(middle),
        "largest": sized(space.largest()),
        "limits": meter.limits.to_dict(),
        "fits": sum(map(meter.fits, drawn)) / samples,
        "samples": samples,
    }


def listing(what: str) -> list[dict[str, Any]]:
    """Rows of one table: families, spaces, archs, methods, recipes or searchers."""
    from tailorvit.search import SEARCHERS

    tables: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "families": lambda: [{"name": f.name, "summary": f.summary, "paper": f.paper} for f in FAMILIES.values()],
        "spaces": lambda: [
            {"name": n, "family": f.name, "summary": _space_line(s)}
            for f in FAMILIES.values()
            for n, s in f.spaces.items()
        ],
        "archs": lambda: [
            {"name": n, "family": f.name, "summary": a.source, "params": Counter(f.name, a.fixed).params(a.arch)}
            for f in FAMILIES.values()
            for n, a in f.archs.items()
        ],
        "methods": lambda: [{"name": m.name, "summary": m.summary} for m in METHODS.values()],
        "searchers": lambda: [{"name": s.name, "summary": s.summary} for s in SEARCHERS.values()],
        "recipes": lambda: [{"name": n, "summary": _recipe_line(n)} for n in recipe_names()],
    }
    if what not in tables:
        raise unknown("list", what, tables)
    return tables[what]()


def _space_line(space: Space) -> str:
    return "; ".join(f"{d.key} {', '.join(map(str, d.choices))}" for d in space.dims)


def _recipe_line(name: str) -> str:
    from importlib import resources

    text = (resources.files("tailorvit.recipes") / f"{name}.toml").read_text(encoding="utf-8")
    return text.splitlines()[0].lstrip("# ").strip()


def versions() -> dict[str, str]:
    """The versions a result depends on."""
    from importlib import metadata

    names = ("tailorvit", "torch", "torchvision", "timm", "numpy", "pydantic", "scikit-learn", "pymoo")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def doctor() -> list[dict[str, str]]:
    """What this machine offers: versions, device, threads, memory, extras; each row says ok, note or problem."""
    import shutil

    import torch

    rows = [{"what": n, "state": "ok" if v != "absent" else "note", "text": v} for n, v in versions().items()]
    cuda = torch.cuda.is_available()
    text = torch.cuda.get_device_name() if cuda else f"no GPU; {torch.get_num_threads()} CPU threads"
    rows.append({"what": "device", "state": "ok" if cuda else "note", "text": text})
    free = shutil.disk_usage(Path.cwd()).free
    rows.append(
        {
            "what": "disk",
            "state": "ok" if free > 2**30 else "problem",
            "text": f"{units.show(free, 'memory')} free here",
        }
    )
    try:
        x = torch.rand(2, 4, 17, 32)
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
        rows.append({"what": "attention", "state": "ok", "text": "fused kernel runs"})
    except RuntimeError as error:
        rows.append({"what": "attention", "state": "problem", "text": str(error).splitlines()[0]})
    return rows
