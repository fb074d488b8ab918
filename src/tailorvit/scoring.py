"""Scores of one untrained architecture, or of many architectures of a space: the work of ``tailorvit score``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tailorvit.arch import Arch
from tailorvit.costs import Counter, Limits, Meter
from tailorvit.costs.need import step_bytes
from tailorvit.data import open_data
from tailorvit.errors import TailorError, unknown
from tailorvit.families import FAMILIES, family, with_settings
from tailorvit.families.base import around
from tailorvit.lookup import read_arch, read_space
from tailorvit.memory import require_memory, usable_device
from tailorvit.proxies import ProxySettings, Scored, proxy
from tailorvit.proxies.score import Scorer, ScorerPool, rescored
from tailorvit.rng import generator
from tailorvit.search.base import first_draw
from tailorvit.space import Space

CHUNK = 20  # architectures between two calls of ``progress``


def score(
    name: str,
    settings: ProxySettings,
    *,
    n: int = 100,
    limits: Mapping[str, str | float | None] | None = None,
    seed: int = 0,
    classes: int | None = None,
    data: str | None = None,
    device: str = "cpu",
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Scores of an architecture, or of ``n`` different architectures of a space within the limits, best first."""
    if n < 1:
        raise TailorError(f"Score at least one architecture, not {n}.")
    if seed < 0:
        raise TailorError(f"The seed must be at least 0, not {seed}.")
    device = usable_device(device)
    proxies = [proxy(p) for p in settings.names]
    for p in proxies:
        if settings.batch is not None and settings.batch < p.least_batch:
            raise TailorError(f"{p.name} needs a batch of at least {p.least_batch}, not {settings.batch}.")
    space, arch = _space_of(name)
    space = with_settings(space, classes=classes, image_size=settings.image_size)
    images = None
    if data is not None:
        shared, images = _images(data, space, settings.batch or 64, seed)
        space = with_settings(space, **shared)
    elif not settings.noise and any(p.needs == "images" for p in proxies):
        wanted = ", ".join(p.name for p in proxies if p.needs == "images")
        raise TailorError(f"{wanted} needs images and labels: add --data SOURCE, or --noise for random ones.")
    arguments: dict[str, Any] = {
        "space": space,
        "settings": settings,
        "seed": seed,
        "device": device,
        "images": images,
    }
    meter = Meter.for_space(space, Limits.of(**(limits or {})))
    archs = [arch] if arch is not None else first_draw(space, meter.fits, generator(seed, "score"), n)
    counter, images_a_batch = Counter(space.family, dict(space.settings)), settings.batch or 1
    need = step_bytes(counter, arch or space.smallest(), images_a_batch, training=False)
    require_memory(need, f"Scoring with batches of {images_a_batch:,} images", "take a smaller --image-size or --batch")
    rows: list[Scored] = []
    with contextlib.ExitStack() as stack:
        scorer: Scorer | ScorerPool = (
            Scorer(**arguments) if workers == 1 else stack.enter_context(ScorerPool(workers, **arguments))
        )
        for at in range(0, len(archs), CHUNK * workers):
            rows += scorer(archs[at : at + CHUNK * workers])
            progress(len(rows), len(archs))
    rows = sorted(rescored(rows), key=lambda r: -r.rank_value(settings.names[0]))
    shared = {k: list(v) if isinstance(v, tuple) else v for k, v in space.settings}
    return {
        "name": name,
        "family": space.family,
        "settings": shared,
        "fixed": shared,  # the name of the key until 0.1
        "proxies": [{"name": p.name, "higher": p.higher, "summary": p.summary} for p in proxies],
        "inits": settings.inits,
        "seed": seed,
        "data": data,
        "asked": n if arch is None else 1,
        "rows": [r.to_dict() for r in rows],
    }


def _space_of(name: str) -> tuple[Space, Arch | None]:
    """A space by name or TOML file; or an architecture with the smallest space around it."""
    spaces = {n: s for f in FAMILIES.working() for n, s in f.spaces.items()}
    if name in spaces or name.endswith(".toml"):
        return read_space(name), None
    archs = {n for f in FAMILIES.working() for n in f.archs}
    if name not in archs and not name.endswith(".json"):
        raise unknown("architecture or space", name, {*archs, *spaces})
    arch, shared = read_arch(name)
    return Space(arch.family, around(arch), tuple(shared.items())), arch


def _images(source: str, space: Space, batch: int, seed: int) -> tuple[dict[str, Any], tuple[Tensor, Tensor]]:
    """A batch of training images, spread over the classes, and the settings that follow from them."""
    if family(space.family).plain.takes_features:
        raise TailorError(f"A {space.family} is scored on noise in place of trunk features: leave --data out.")
    size = family(space.family).settings(dict(space.settings)).image_size
    data = open_data(source, seed=seed, image_size=size, limit=batch)
    return {"classes": len(data.classes), "channels": data.channels}, next(data.eval_batches("train", batch))


def lines(facts: Mapping[str, Any], top: int = 10) -> Sequence[str]:
    """The best rows as text, and every problem once."""
    names, rows = [p["name"] for p in facts["proxies"]], facts["rows"]
    found = [f"{facts['name']} ({facts['family']}): {len(rows)} architectures, best {names[0]} first"]
    for row in rows[:top]:
        values = "  ".join(f"{n} {'-' if row['scores'][n] is None else format(row['scores'][n], '.6g')}" for n in names)
        genes = ", ".join(f"{k} {v}" for k, v in row["arch"].items() if k != "family")
        found.append(f"  {values}  {row['params']:,} parameters  {genes}")
    problems: dict[str, int] = {}
    for row in rows:
        for sentence in row["problems"].values():
            problems[sentence] = problems.get(sentence, 0) + 1
    return [*found, *(f"  {count} without a score: {sentence}" for sentence, count in problems.items())]
