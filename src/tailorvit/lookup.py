"""Looking things up: what an architecture costs, what a space holds, what runs there are, what this machine offers."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tailorvit import __version__, units
from tailorvit.arch import Arch
from tailorvit.costs import Counter, Limits, Meter
from tailorvit.costs.need import step_bytes
from tailorvit.errors import TailorError
from tailorvit.families import family, named_arch, named_space, with_settings
from tailorvit.memory import require_memory
from tailorvit.rng import generator
from tailorvit.space import Space
from tailorvit.texts import read_json, read_table, read_toml


def read_arch(name: str) -> tuple[Arch, dict[str, Any]]:
    """A named architecture, an ARCH.json or a finished run's folder, with the shared settings it comes with."""
    path = Path(name)
    if (path / "result.json").is_file():  # a finished run
        path = path / "result.json"
    if path.suffix != ".json" and not path.is_file():
        named = named_arch(name)
        return named.arch, dict(named.settings)
    try:
        data = read_json(path)
    except FileNotFoundError:
        raise TailorError(f"There is no architecture file '{name}'.") from None
    except (OSError, ValueError) as error:
        raise TailorError(f"'{name}' is not readable JSON: {error}.") from None
    if not isinstance(data, dict):
        raise TailorError(f"'{name}' must hold one architecture as a JSON object.")
    settings = data.get("settings", data.get("fixed", {}))  # "fixed" until 0.1
    genes = data["arch"] if isinstance(data.get("arch"), dict) else data
    if not isinstance(settings, dict):
        raise TailorError(f"'settings' in '{name}' must be an object of shared settings, not {settings!r}.")
    genes = {k: v for k, v in genes.items() if k not in ("settings", "fixed")}
    return family(str(genes.get("family", "vit"))).arch(genes), dict(settings)


def cost(
    name: str,
    *,
    classes: int | None = None,
    image_size: int | None = None,
    measure: bool = False,
    batch: int = 1,
    runtime: str = "auto",
) -> dict[str, Any]:
    """Exact parameters and MACs of a named architecture or an ARCH.json, per part; latency and memory on request."""
    arch, settings = read_arch(name)
    settings.update({k: v for k, v in (("classes", classes), ("image_size", image_size)) if v is not None})
    counter = Counter(arch.family, settings)
    params, macs = counter.both(arch)
    shared = counter.shared.to_dict()
    answer = {
        "name": name,
        "arch": arch.to_dict(),
        "settings": shared,
        "fixed": shared,  # the name of the key until 0.1
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
        from tailorvit.costs.runtime import LatencySettings, chosen_runtime

        timed_in = chosen_runtime(LatencySettings(runtime), "cpu")

        need = step_bytes(counter, arch, batch, training=False)
        require_memory(need, f"A batch of {batch:,} images", "measure a smaller batch or network")
        shape = (int(shared["channels"]), *shared["image_size"])
        model = counter.family.build(counter.shared, arch)
        answer["latency"] = measure_latency(model, shape, batch, runtime=timed_in).to_dict()
        answer["memory"] = measure_memory(model, shape, batch)
    return answer


def read_space(name: str) -> Space:
    """A named space, or one in a TOML file (a recipe's too)."""
    if not name.endswith(".toml"):
        return named_space(name)
    try:
        data = read_toml(Path(name))
    except (OSError, ValueError) as error:
        raise TailorError(f"Cannot read the space file '{name}': {error}.") from None
    space = Space.from_dict(data.get("space", data))
    family(space.family)
    return space


def space_info(
    name: str,
    *,
    classes: int | None = None,
    image_size: int | None = None,
    limits: Mapping[str, str | float | None] | None = None,
    samples: int = 2000,
) -> dict[str, Any]:
    """Dimensions, number of architectures, smallest, typical and largest cost, and the share within the limits."""
    space = with_settings(read_space(name), classes=classes, image_size=image_size)
    meter = Meter.for_space(space, Limits.of(**(limits or {})))
    rng = generator(0, "typical")
    drawn = [space.sample(rng) for _ in range(samples)]
    middle = sorted(drawn, key=meter.counter.params)[samples // 2]

    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in space.settings}

    def sized(arch: Any) -> dict[str, Any]:
        params, macs = meter.counter.both(arch)
        return {"params": params, "macs": macs, "arch": arch.to_dict()}

    return {
        "name": name,
        "family": space.family,
        "settings": settings,
        "fixed": settings,  # the name of the key until 0.1
        "dims": {d.key: d.to_dict() for d in space.dims},
        "count": space.count(),
        **(
            {"multiples": [list(p) for p in space.multiples], "untied": space.count(tied=False)}
            if space.multiples
            else {}
        ),
        "smallest": sized(meter.end("params", space, False)),
        "typical": sized(middle),
        "largest": sized(meter.end("params", space)),
        "limits": meter.limits.to_dict(),
        "fits": sum(map(meter.fits, drawn)) / samples,
        "samples": samples,
    }


def list_runs(folder: str | Path = "runs") -> list[dict[str, Any]]:
    """The run folders in a folder, oldest first: name, state, method, data, and what was found."""
    place = Path(folder)
    if not place.is_dir():
        raise TailorError(f"There is no folder '{place}'.")
    rows = [_run_row(path.parent) for path in place.glob("*/info.json")]
    return sorted(rows, key=lambda row: (str(row["started"]), row["name"]))


def _run_row(folder: Path) -> dict[str, Any]:
    info, result = (_read_json(folder / name) for name in ("info.json", "result.json"))
    recipe = _read_toml(folder / "recipe.toml")
    versions, data = (value if isinstance(value := info.get(key), dict) else {} for key in ("versions", "data"))
    found = {key: result.get(key) for key in ("params", "macs", "test_accuracy")}
    score, metric = result.get("test"), result.get("metric")
    if isinstance(score, dict) and isinstance(metric, str):  # of a task
        found["test_score"] = score.get(metric)
    return {
        "name": folder.name,
        "folder": str(folder),
        "state": "finished" if result else "unfinished",
        "started": info.get("started"),
        "version": versions.get("tailorvit"),
        "method": recipe.get("method") or recipe.get("task"),
        "data": data.get("source"),
        **{key: value if isinstance(value, int | float) else None for key, value in found.items()},
        **({"metric": metric} if "test_score" in found else {}),
    }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_table(path)
    except (OSError, ValueError):
        return {}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except (OSError, ValueError):
        return {}


def run_lines(folder: str | Path, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rows of :func:`list_runs` for people."""
    if not rows:
        return [f"There are no runs in '{folder}'."]
    width = max(len(row["name"]) for row in rows)
    lines = []
    for row in rows:
        score, unit = row["test_accuracy"], "%"
        if row.get("metric"):
            score, unit = row["test_score"], row["metric"]
        known = row["params"] is not None and score is not None
        found = f"{row['params']:>11,} parameters  {score:6.2f} {unit}" if known else "-"
        lines.append(f"{row['name']:<{width}}  {row['state']:<10}  {row['method'] or '?':<10}  {found}")
    return lines


# What each extra of pyproject.toml brings, for people who wonder why an export or a figure is refused.
EXTRAS = {
    "clip": ("open_clip_torch",),
    "coreml": ("coremltools", "timmx"),
    "executorch": ("executorch", "timmx"),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "figures": ("resvg-py",),
    "front": ("pymoo",),
    "hf": ("datasets", "transformers"),
    "openvino": ("openvino", "timmx"),
    "optuna": ("optuna",),
    "shards": ("pyarrow", "webdataset"),
    "tasks": ("pycocotools", "transformers"),
    "tensorboard": ("tensorboard",),
}


def version(package: str) -> str:
    """An installed package's version, or absent."""
    from importlib import metadata

    if package == "tailorvit":
        return __version__  # of the code that runs; another one may be installed
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def versions() -> dict[str, str]:
    """The versions a result depends on."""
    names = ("tailorvit", "torch", "torchvision", "timm", "numpy", "pydantic", "scikit-learn", "pymoo", "onnxruntime")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def doctor() -> list[dict[str, str]]:
    """What this machine offers: versions, device, threads, memory, extras; each row says ok, note or problem."""
    import shutil

    import torch

    rows = [{"what": n, "state": "ok" if v != "absent" else "note", "text": v} for n, v in versions().items()]
    for extra, packages in EXTRAS.items():
        lacking = [p for p in packages if version(p) == "absent"]
        found = ", ".join(f"{p} {version(p)}" for p in packages if p not in lacking)
        text = found if not lacking else f"{', '.join(lacking)} absent: pip install 'tailorvit[{extra}]'"
        rows.append({"what": f"extra {extra}", "state": "note" if lacking else "ok", "text": text})
    cuda, apple = torch.cuda.is_available(), torch.backends.mps.is_available()
    threads = f"{torch.get_num_threads()} CPU threads"
    text = torch.cuda.get_device_name() if cuda else f"Apple's GPU (mps); {threads}" if apple else f"no GPU; {threads}"
    rows.append({"what": "device", "state": "ok" if cuda or apple else "note", "text": text})
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
