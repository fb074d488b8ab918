"""Scores without training for one architecture or many of a space: what `tailorvit score` prints."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tailorvit.arch import Arch
from tailorvit.costs import Limits, Meter
from tailorvit.data import open_data
from tailorvit.errors import TailorError, unknown
from tailorvit.families import FAMILIES, family, with_fixed
from tailorvit.families.base import around
from tailorvit.lookup import read_arch, read_space
from tailorvit.proxies import ProxySettings, Scored, proxy
from tailorvit.proxies.score import Scorer, rescored
from tailorvit.proxies.workers import Workers
from tailorvit.rng import generator
from tailorvit.search.draw import first_draw
from tailorvit.space import Space

CHUNK = 20  # architectures between two words to whoever waits


def _subject(name: str) -> tuple[Space, Arch | None]:
    """A space by name or TOML file, or the smallest space around an architecture."""
    spaces = {n: s for f in FAMILIES.values() for n, s in f.spaces.items()}
    if name in spaces or name.endswith(".toml"):
        return read_space(name), None
    archs = {n for f in FAMILIES.values() for n in f.archs}
    if name not in archs and not name.endswith(".json"):
        raise unknown("architecture or space", name, {*archs, *spaces})
    arch, fixed = read_arch(name)
    return Space(arch.family, around(arch), tuple(fixed.items())), arch


def _images(source: str, space: Space, batch: int, seed: int) -> tuple[dict[str, Any], tuple[Tensor, Tensor]]:
    """A batch of training images, spread over the classes, and the settings that follow from them."""
    if space.family == "ladder":
        raise TailorError("A ladder is scored on noise in place of a trunk's taps: leave --data out.")
    size = family(space.family).frame(dict(space.fixed)).image_size
    data = open_data(source, seed=seed, image_size=size, limit=batch)
    return {"classes": len(data.classes), "channels": data.channels}, next(data.eval_batches("train", batch))


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
    look: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Scores of an architecture, or of ``n`` different members of a space within the limits, best first."""
    if n < 1:
        raise TailorError(f"Score at least one architecture, not {n}.")
    if settings.batch is not None and settings.batch < 2 and {"naswot", "te", "te_released"} & set(settings.names):
        raise TailorError(f"naswot and te compare images: the batch must be at least 2, not {settings.batch}.")
    needs = [proxy(p).needs for p in settings.names]
    space, arch = _subject(name)
    space = with_fixed(space, classes=classes, image_size=settings.image_size)
    images = None
    if data is not None:
        fixed, images = _images(data, space, settings.batch or 64, seed)
        space = with_fixed(space, **fixed)
    elif "images" in needs and not settings.noise:
        wanted = ", ".join(p for p, need in zip(settings.names, needs, strict=True) if need == "images")
        raise TailorError(f"{wanted} needs images and labels: add --data SOURCE, or --noise for random ones.")
    asked: dict[str, Any] = {"space": space, "settings": settings, "seed": seed, "device": device, "images": images}
    meter = Meter.for_space(space, Limits.of(**(limits or {})))
    archs = [arch] if arch is not None else first_draw(space, meter.fits, generator(seed, "score"), n)
    rows: list[Scored] = []
    with contextlib.ExitStack() as ends:
        scorer: Scorer | Workers = Scorer(**asked) if workers == 1 else ends.enter_context(Workers(workers, **asked))
        for at in range(0, len(archs), CHUNK * workers):
            rows += scorer(archs[at : at + CHUNK * workers])
            look(len(rows), len(archs))
    rows = sorted(rescored(rows), key=lambda r: -r.rank_value(settings.names[0]))
    return {
        "name": name,
        "family": space.family,
        "fixed": {k: list(v) if isinstance(v, tuple) else v for k, v in space.fixed},
        "proxies": [{"name": p, "higher": proxy(p).higher, "summary": proxy(p).summary} for p in settings.names],
        "reading": settings.reading,
        "inits": settings.inits,
        "seed": seed,
        "data": data,
        "asked": n if arch is None else 1,
        "rows": [r.to_dict() for r in rows],
    }


def lines(facts: Mapping[str, Any], top: int = 10) -> Sequence[str]:
    """The best rows as text, and every problem once."""
    names, rows = [p["name"] for p in facts["proxies"]], facts["rows"]
    told = [f"{facts['name']} ({facts['family']}): {len(rows)} architectures, best {names[0]} first"]
    for row in rows[:top]:
        values = "  ".join(f"{n} {'-' if row['scores'][n] is None else format(row['scores'][n], '.6g')}" for n in names)
        genes = ", ".join(f"{k} {v}" for k, v in row["arch"].items() if k != "family")
        told.append(f"  {values}  {row['params']:,} parameters  {genes}")
    problems: dict[str, int] = {}
    for row in rows:
        for sentence in row["problems"].values():
            problems[sentence] = problems.get(sentence, 0) + 1
    return [*told, *(f"  {count} without a score: {sentence}" for sentence, count in problems.items())]
