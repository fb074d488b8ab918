"""gpu.py, growth: step time against tokens, width, depth and batch; evaluation time against candidates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from speed.bench import COMPILED, Bench, Row
from speed.timing import draws, inputs, recorded_calls, timed, training, vit_space
from tailorvit.arch import Arch
from tailorvit.families import family
from tailorvit.space import Space
from tailorvit.train import Evaluator

SIZES = (96, 160, 224, 288, 384)  # 36, 100, 196, 324 and 576 patches of 16 pixels
WIDTHS = (192, 256, 320, 384, 448)  # the space has the last three; a supernet runs narrower ones too, uncompiled here
BATCH = 128  # of the main table, whose compiled graphs serve here too
DEPTHS = (2, 4, 8, 12, 14)
BATCHES = (32, 128, 512)
CANDIDATES = (1, 4, 16, 64)
TOGETHER = 16  # architectures in one masked pass
IMAGES = (2, 512)  # batches, images each


def slope(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """The exponent of y against x: a straight line through the logarithms."""
    if len(set(xs)) < 2:
        return None
    return float(np.polyfit(np.log(xs), np.log(ys), 1)[0])


def middle(space: Space, **genes: Any) -> Arch:
    """The member with the middle choice everywhere, some genes set; block genes are the same in every block."""
    values = {d.name: d.choices[len(d.choices) // 2] for d in space.dims} | genes
    depth = int(values.pop("depth"))
    blocks = {d.name for d in space.dims if d.scope == "block"}
    every = {k: (v,) * depth if k in blocks else v for k, v in values.items()}
    return Arch(space.family, depth=depth, **every)


def growth(bench: Bench) -> None:
    """Curves that need few new graphs first, tokens last; every point is a row, and the slope is one at the end."""
    space = vit_space(bench)
    variants = ("graphs" if bench.device.type == "cuda" else "compiled", "eager, own kernel")
    depths = [d for d in DEPTHS if d <= space.largest().one("depth")]
    batches = (4, 8) if bench.quick else BATCHES
    for variant in variants:
        if "width" in bench.curves:
            widths = WIDTHS if not (bench.quick or variant in COMPILED) else space["embed"].choices
            points = [_point(bench, space, middle(space, embed=w), variant, BATCH, "width", w) for w in widths]
            _slope(bench, "width", variant, points)
        if "depth" in bench.curves:
            points = [_point(bench, space, middle(space, depth=d), variant, BATCH, "depth", d) for d in depths]
            _slope(bench, "depth", variant, points)
    if "candidates" in bench.curves:
        candidates(bench, space)
    used = variants[0]  # batches and tokens only as they are used: every size is compiled anew
    if "batch" in bench.curves:
        points = [_point(bench, space, middle(space), used, b, "batch", b) for b in batches]
        _slope(bench, "batch", used, points)
    points = []
    for size in () if "tokens" not in bench.curves else SIZES[:2] if bench.quick else SIZES:
        there = vit_space(bench, size) if not bench.quick else vit_space(bench, 224 if size > 96 else 96)
        tokens = family(there.family).frame(dict(there.fixed)).tokens
        points.append(_point(bench, there, middle(there), used, BATCH, "tokens", tokens))
    _slope(bench, "tokens", used, points)


def _point(bench: Bench, space: Space, arch: Arch, variant: str, batch: int, curve: str, x: float) -> Row:
    batch = batch if not bench.quick or curve == "batch" else 4

    def work() -> Row:
        model, call = bench.supernet(space, variant)
        runner = training(bench, model, call, inputs(bench, space, batch), variant)
        many = 2 if bench.quick else 8
        row = timed(bench, runner, [arch] * 3, [arch] * many, batch, seconds=min(0.5, bench.seconds))
        runner.close()
        return row

    return bench.measure("growth", f"step against {curve}", variant, work, x=x)


def _slope(bench: Bench, curve: str, variant: str, points: Sequence[Row]) -> None:
    kept = [(p["x"], p["ms"]) for p in points if "ms" in p]
    xs, ys = [x for x, _ in kept], [y for _, y in kept]
    if kept:
        bench.add({"section": "growth", "what": f"step against {curve}", "variant": variant, "points": kept,
                   "slope": slope(xs, ys)})  # fmt: skip


# -- evaluation -------------------------------------------------------------------------------------------------------


def candidates(bench: Bench, space: Space) -> None:
    """Seconds to evaluate some architectures on 1,024 images, in four ways."""
    counts = (1, 2) if bench.quick else CANDIDATES
    number, each = (1, 4) if bench.quick else IMAGES
    made = (inputs(bench, space, each) * number)[:number]
    data = [(x, t.argmax(-1)) for x, t in made]
    _, drawn = draws(space, bench.quick)
    archs = list(dict.fromkeys([*drawn, *(space.smallest(), space.largest()), *_more(space, max(counts))]))
    for how in (
        "graphs, one by one",
        "eager, one by one",
        "eager, masked together",
        "eager, extracted",
    ):
        points = []
        for n in counts:
            row = bench.measure(
                "growth",
                "evaluation against candidates",
                how,
                lambda n=n, h=how: _evaluated(bench, space, data, archs[:n], h),
                x=n,
            )
            points.append(row)
        kept = [(p["x"], p["ms"]) for p in points if "ms" in p]
        if kept:
            bench.add({"section": "growth", "what": "evaluation against candidates", "variant": how, "points": kept,
                       "slope": slope([x for x, _ in kept], [y for _, y in kept])})  # fmt: skip


def _more(space: Space, count: int) -> list[Arch]:
    from tailorvit.rng import generator

    rng = generator(0, "gpu", "candidates")
    return [space.sample(rng) for _ in range(2 * count)]


def _evaluated(bench: Bench, space: Space, data: list[Any], archs: list[Arch], how: str) -> Row:
    variant = "graphs" if how.startswith("graphs") else "eager, own kernel"
    model, call = bench.supernet(space, variant)
    model.eval()
    call = recorded_calls(bench, model, True) if variant == "graphs" else call

    def one_by_one(way: Any, some: list[Arch]) -> None:
        with torch.no_grad(), bench.cast():
            for arch in some:
                network = way(arch)
                hits = sum((network(x).argmax(-1) == y).sum() for x, y in data)
                hits.item()

    def work(some: list[Arch]) -> None:
        if how.endswith("together"):
            Evaluator(model, data, str(bench.device), min(TOGETHER, max(2, len(archs))), bf16=True)(some)
        elif how.endswith("extracted"):
            one_by_one(lambda arch: family(space.family).extract(model, arch, share=True).to(bench.device).eval(), some)
        else:
            one_by_one(lambda arch: lambda x: call(x, arch), some)

    work(archs if how.startswith(COMPILED) else archs[:TOGETHER] if how.endswith("together") else archs[:2])
    bench.sync()
    start, passes = time.perf_counter(), 0
    while not passes or time.perf_counter() - start < min(0.5, bench.seconds):
        work(archs)
        bench.sync()
        passes += 1
    seconds = (time.perf_counter() - start) / passes
    images = sum(len(y) for _, y in data) * len(archs)
    return {"ms": 1e3 * seconds, "images": images, "img_s": images / seconds, "passes": passes}
