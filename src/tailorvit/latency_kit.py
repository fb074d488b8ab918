"""A latency kit: networks of a space as ONNX files with a script that measures them on another host.

The host needs Python, numpy and onnxruntime. Weights are random: they do not change the time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailorvit import __version__, units
from tailorvit.arch import Arch
from tailorvit.config import parse_recipe
from tailorvit.costs import Counter, measure_on_host
from tailorvit.costs.latency_table import LEAST
from tailorvit.costs.runtime import lacking
from tailorvit.costs.traced import traced
from tailorvit.errors import TailorError
from tailorvit.families import with_settings
from tailorvit.lookup import read_space
from tailorvit.rng import generator, preserved_state, seed_everything
from tailorvit.runs import Run
from tailorvit.runs.atomic import write_bytes
from tailorvit.space import Space

USUAL, MOST = 40, 1000  # networks of a kit
README = """A latency kit of TailorViT: {count} networks of one space, {size} in all. Their weights are random.

1. Copy this folder to the machine whose latency counts. It needs Python 3.9 or newer, numpy and onnxruntime.
2. There, with nothing else running:  python measure.py
   It takes some {minutes} minutes at most. python measure.py --help names the number of threads and other options.
3. Copy table.json back:  tailorvit run --latency-table table.json --max-latency 20ms ...
"""


def latency_kit(
    source: str | Path,
    out: str | Path,
    *,
    n: int = USUAL,
    classes: int | None = None,
    image_size: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Write the kit of a space (by name or TOML file) or of a run's space; returns what the manifest holds."""
    if not LEAST <= n <= MOST:
        raise TailorError(f"A latency kit has {LEAST} to {MOST} networks, not {n}.")
    if missing := lacking():
        raise TailorError(f"A latency kit needs {', '.join(missing)}: pip install 'tailorvit[export]'.")
    space = _space_of(source)
    space = with_settings(space, classes=classes, image_size=image_size)
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TailorError(f"'{folder}' is there already and not empty; name a new folder.")
    archs = drawn(space, n, seed)
    if len(archs) < LEAST:
        raise TailorError(f"The space has {len(archs)} architectures; a latency kit needs at least {LEAST}.")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "networks").mkdir()
    entries = []
    for number, arch in enumerate(archs):
        entries.append(_write_network(folder, f"networks/{number:03d}.onnx", space, arch))
        if progress is not None:
            progress(number + 1, len(archs))
    shared = Counter(space.family, dict(space.settings)).shared
    manifest = {
        "format": measure_on_host.KIT,
        "tailorvit": __version__,
        "weights": "random",
        "space": space.to_dict(),
        "shape": [1, int(shared.channels), *map(int, shared.image_size)],
        "networks": entries,
    }
    shutil.copyfile(measure_on_host.__file__, folder / "measure.py")
    size = sum((folder / entry["file"]).stat().st_size for entry in entries)
    minutes = max(1, round(measure_on_host.ROUNDS * len(entries) * 1.5 / 60))
    text = README.format(count=len(entries), size=units.show(size, "memory"), minutes=minutes)
    write_bytes(folder / "README.txt", text.encode())
    write_bytes(folder / "manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())  # last: the kit is whole
    return {"folder": str(folder), "bytes": size, **manifest}


def drawn(space: Space, n: int, seed: int) -> list[Arch]:
    """The smallest and the largest architecture and others between, all different."""
    ends = [space.smallest(), space.largest()]
    others = space.sample_distinct(n, generator(seed, "latency kit"))
    return list(dict.fromkeys([*ends, *others]))[:n]


def _space_of(source: str | Path) -> Space:
    """A run's space where the source is a run's folder, else the space of that name or file."""
    place = Path(source)
    if not (place / "recipe.toml").is_file():
        return read_space(str(source))
    run, missing = Run.salvage(place)
    with run:
        rows = [] if missing else run.spaces()
        recipe = parse_recipe(run.recipe, str(place / "recipe.toml"))
    if rows:
        space: Space = rows[-1]["space"]
        return space
    written = recipe.get("space")
    if not isinstance(written, dict) or "dims" not in written:
        raise TailorError(
            f"The run '{place}' has no space of its own, as where a contest alone decides: name a space instead."
        )
    return Space.from_dict(written)


def _write_network(folder: Path, name: str, space: Space, arch: Arch) -> dict[str, Any]:
    counter = Counter(space.family, dict(space.settings))
    shared = counter.shared
    with preserved_state():
        seed_everything(0, "latency kit")
        model = counter.family.build(shared, arch)
    params, macs = counter.both(arch)
    high, wide = shared.image_size
    write_bytes(folder / name, traced(model, (int(shared.channels), int(high), int(wide))))
    return {"file": name, "arch": arch.to_dict(), "params": params, "macs": macs}
