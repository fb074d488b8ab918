"""gpu.py, main table: AutoFormer-S training and evaluation in three executions; the loop's own cost; data beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from speed.bench import COMPILED, SEED, TIMED, WARM, Bench, LeftOut, Row
from speed.timing import draws, evaluating, graphs, inputs, peak, sizes, timed, training, vit_space
from tailorvit.data import Batch
from tailorvit.train import SinglePath, TrainSettings, train


class Work(NamedTuple):
    """One line of the table, with the figures of issue 6: released code, prototype, target, dream."""

    what: str
    kind: str
    size: int
    patch: int
    batch: int
    released: float
    prototype: float
    target: float
    dream: float


WORKS = (
    Work("training, batch 128", "training", 224, 16, 128, 795, 3471, 4500, 8000),
    Work("training, batch 512", "training", 224, 16, 512, 1634, 5144, 6500, 9500),
    Work("evaluation, batch 512", "evaluation", 224, 16, 512, 5810, 16159, 22000, 40000),
    Work("32 px, patch 4, training, batch 1024", "training", 32, 4, 1024, 6696, 15412, 22000, 40000),
)
MEMORY = Work("peak memory, training, batch 512, GiB", "memory", 224, 16, 512, 39.3, 25.3, 20, 12)


def ceilings(bench: Bench) -> None:
    """What the device can do at most: a large bfloat16 product and a large copy, on random numbers."""

    def work() -> Row:
        n = 256 if bench.quick else 8192
        a, b = (torch.randn(n, n, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
        big = torch.randn(n * n // 4, device=bench.device)
        into, rates = torch.empty_like(big), []
        for run, cost in ((lambda: torch.mm(a, b), 2 * n**3), (lambda: into.copy_(big), 2 * big.numel() * 4)):
            for _ in range(3):
                run()
            bench.sync()
            start, times = time.perf_counter(), 2 if bench.quick else 20
            for _ in range(times):
                run()
            bench.sync()
            rates.append(cost * times / (time.perf_counter() - start) / 1e12)
        return {"tflops": rates[0], "copy_tb_s": rates[1]}

    bench.measure("ceilings", f"bfloat16 product, copy on {bench.device.type}", "", work)


def table(bench: Bench) -> None:
    """Every line in every execution, with the same architectures; the quickest executions first."""
    ceilings(bench)
    for line in WORKS:
        for variant in bench.variants:
            bench.measure("table", line.what, variant, lambda w=line, v=variant: one(bench, w, v))


def one(bench: Bench, line: Work, variant: str) -> Row:
    """Time one line; training also tells its peak memory, on one set of images."""
    space, batch = vit_space(bench, line.size, line.patch), 8 if bench.quick else line.batch
    model, call = bench.supernet(space, variant)
    warm, archs = draws(space, bench.quick)
    warm = warm if variant in COMPILED else warm[:6]
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(bench.device)
    batches, row = inputs(bench, space, batch), sizes(space, archs)
    kind = evaluating if line.kind == "evaluation" else training
    runner = kind(bench, model, call, batches, variant)
    row |= timed(bench, runner, warm, archs, batch)
    if line.kind == "training" and bench.device.type == "cuda":
        spare = sum(t.nbytes for pair in batches[1:] for t in pair)
        del batches[1:]
        if variant == "graphs":
            row["peak_gib"] = recorded_peak(bench, model, spare)
        else:
            row["peak_drawn_gib"] = peak(bench, model, runner.step, archs)
            row["peak_gib"] = peak(bench, model, runner.step, [*archs[:2], space.largest()])
    runner.close()
    row["tflops"] = row["img_s"] * row["gmacs"] * 2 * (1 if line.kind == "evaluation" else 3) / 1e3
    return row


def recorded_peak(bench: Bench, model: nn.Module, spare: int) -> float:
    """GiB of a training in recordings: they hold on to their memory, so what stays reserved counts as well.

    The most since the networks were made, the warm-up and both ends of the space included.
    """
    bench.sync()
    torch.cuda.empty_cache()
    most = max(torch.cuda.max_memory_allocated(bench.device) - spare, torch.cuda.memory_reserved(bench.device))
    return (most - bench.other_bytes(model)) / 2**30


# -- the loop ---------------------------------------------------------------------------------------------------------


class Ready:
    """Batches that lie on the device already; the clock is read before the first and after the last timed step."""

    def __init__(self, bench: Bench, batches: list[Any], warm: int, timed_steps: int) -> None:
        self.bench, self.batches = bench, [Batch(x, t.argmax(-1), t) for x, t in batches]
        self.warm, self.stop = warm, warm + timed_steps
        self.steps_per_epoch = self.stop + 2  # the end of an epoch copies the state, which is no step's cost
        self.times: list[float] = []
        self.graphs: list[int] = []

    def iterate(self, start: int, stop: int) -> Iterator[Batch]:
        """Steps start..stop-1."""
        for step in range(start, stop):
            if step in (self.warm, self.stop):
                self.bench.sync()
                self.times.append(time.perf_counter())
                self.graphs.append(graphs())
            yield self.batches[step % len(self.batches)]


def loop(bench: Bench) -> None:
    """The package's own training loop against the bare steps: same space, same seed, so the same architectures.

    Compiled without recordings it would slice every width, a graph for each of 27 shapes: not what anyone should use.
    """
    for line in (w for w in WORKS if w.kind == "training"):
        for variant in (v for v in ("graphs", "eager, own kernel") if v in bench.variants):
            bench.measure("loop", line.what, variant, lambda w=line, v=variant: looped(bench, w, v))


def looped(bench: Bench, line: Work, variant: str) -> Row:
    """As many steps of ``train`` as the table times, clipping as it does unless told otherwise."""
    if variant == "graphs" and bench.device.type != "cuda":
        raise LeftOut("CUDA graphs need a GPU")
    space, batch = vit_space(bench, line.size, line.patch), 8 if bench.quick else line.batch
    model, _ = bench.supernet(space, variant)
    warm, steps = (2, 2) if bench.quick else (WARM, TIMED)
    ready = Ready(bench, inputs(bench, space, batch), warm, steps)
    ways = {"compile": variant in COMPILED, "graphs": variant == "graphs"}
    settings = TrainSettings(epochs=1, batch=batch, lr=1e-4, warmup=0, precision="bf16", **ways)
    done = train(model, ready, SinglePath(space), settings, SEED, device=str(bench.device))
    if done.skipped:
        raise FloatingPointError(f"{done.skipped} steps were not finite")
    seconds = ready.times[1] - ready.times[0]
    row = {"batch": batch, "steps": steps, "img_s": batch * steps / seconds, "ms": 1e3 * seconds / steps}
    return row | {"graphs": ready.graphs[1] - ready.graphs[0]}


# -- input ------------------------------------------------------------------------------------------------------------


def pipeline(bench: Bench) -> None:
    """The input pipeline alone, as benchmarks/pipeline.py measures it; the tables set it against training."""
    sizes_tried = ((32, (64,)),) if bench.quick else ((32, (512, 1024)), (224, (128, 512)))
    seconds, count = (0.1, {32: 300}) if bench.quick else (1.0, None)

    def work(side: int, batches: tuple[int, ...]) -> Row:
        from pipeline import measure

        cases = tuple((side, batch) for batch in batches)
        return {"rows": measure(str(bench.device), seconds, cases, count, host=False, files=0)}

    for side, batches in sizes_tried:
        bench.measure("input", f"kept on the device, {side} px", "", lambda s=side, b=batches: work(s, b))
    from_files(bench, host=True)


def from_files(bench: Bench, host: bool = False) -> None:
    """The part of the input pipeline that reads JPEG files; ``host`` adds augmentation on the CPU, which is slow."""
    seconds, files, batch, side = (0.1, 60, 64, 32) if bench.quick else (1.0, 2000, 128, 224)

    def work() -> Row:
        import pipeline

        return {"rows": pipeline.from_files(bench.device, seconds, files, batch, side, host)}

    bench.measure("input", f"from files, {side} px", "", work)
