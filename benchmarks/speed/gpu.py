"""What is fast on a GPU, and against what: supernet training and evaluation, plain networks, growth, precision.

    python benchmarks/speed/gpu.py --out benchmarks/speed/results/gpu-DATE.jsonl    # about five minutes on an H200
    python benchmarks/speed/gpu.py --device cpu --quick                             # that it runs, not how fast
    python benchmarks/speed/gpu.py table [FILE ...]      # the tables of these rows; without files those of the page

Every row is written as soon as it is there. A measurement that fails or takes too long leaves a row that says so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler prints too much
# Some virtual machines promise AMX tiles and then refuse the instruction; only --device cpu meets it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill
from gpu_steps import (
    COMPILED,
    CURVES,
    SEED,
    TIMED,
    VARIANTS,
    WARM,
    WORKS,
    Bench,
    Call,
    Images,
    LeftOut,
    Row,
    Runner,
    Work,
    architectures,
    clock,
    compiled_call,
    evaluating,
    graphs,
    inputs,
    peak,
    random_images,
    recorded_calls,
    sizes,
    timed,
    training,
    vit_space,
)
from gpu_tables import everything, slope, summary, tables
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.costs import Counter
from tailorvit.data import Batch
from tailorvit.families import family, named_arch, named_space
from tailorvit.rng import generator, seed_everything
from tailorvit.space import Space
from tailorvit.train import SinglePath, TrainSettings, train

HERE = Path(__file__).parent

# -- the main table ---------------------------------------------------------------------------------------------------


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
    """Every line in every variant, with the same architectures; the quickest variants first."""
    ceilings(bench)
    for line in WORKS:
        for variant in bench.variants:
            bench.measure("table", line.what, variant, lambda w=line, v=variant: one_line(bench, w, v))


def one_line(bench: Bench, line: Work, variant: str) -> Row:
    """Time one line; training also measures its peak memory, on one set of images."""
    space, batch = vit_space(bench, line.size, line.patch), 8 if bench.quick else line.batch
    model, call = bench.supernet(space, variant)
    warm, archs = architectures(space, bench.quick)
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


# -- the training loop ------------------------------------------------------------------------------------------------


class Ready:
    """Batches that lie on the device already; the clock is read before the first and after the last timed step."""

    def __init__(self, bench: Bench, batches: Images, warm: int, timed_steps: int) -> None:
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

    Compiled without recordings it would slice every width, a graph for each of 27 shapes: nobody should use that.
    """
    for line in (w for w in WORKS if w.kind == "training"):
        for variant in (v for v in ("graphs", "eager, own kernel") if v in bench.variants):
            bench.measure("loop", line.what, variant, lambda w=line, v=variant: looped(bench, w, v))


def looped(bench: Bench, line: Work, variant: str) -> Row:
    """As many steps of ``train`` as the table times, with its default clipping."""
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


# -- where the time goes ----------------------------------------------------------------------------------------------

ELEMENTWISE = "norm and elementwise"
# The first that matches a kernel's name. Inductor names its pointwise and reduction kernels after all they replace,
# attention and copies too; fused attention and fused optimisers have cutlass and elementwise in theirs; ours are
# called _forward, _queries, _keys and _tables (relative_kernel.py). On a CPU the names are torch's operators.
KINDS = (
    (ELEMENTWISE, r"^triton_(poi|per|red|for)_"),
    ("attention", r"^_(forward|queries|keys|tables)$|flash|fmha|sdpa|attn|attention|attend"),
    ("optimiser", r"multi_tensor_apply|adam"),
    (
        "matrix products",
        r"gemm|nvjet|cutlass|cublas|xmma|splitk|gemv|triton_tem|triton_mm|_conv|convol|aten::(add|b|baddb)?mm\b",
    ),
    ("copies", r"memcpy|memset|copy|catarray|aten::cat\b|gather|scatter|index|transpose|aten::to\b|fill|nchw|nhwc"),
    (ELEMENTWISE, r"triton_|elementwise|norm|gamma|reduce|softmax|gelu|aten::(add|mul|div|sum|mean|sub|erf)"),
)
PROFILED = 3  # steps


def kind_of(name: str) -> str:
    """What a kernel does, from its name."""
    low = name.lower()
    return next((k for k, pattern in KINDS if re.search(pattern, low)), "other")


def busy(spans: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """(time in which at least one span runs, time from the first start to the last end)."""
    ordered = sorted(spans)
    covered, last = 0.0, -math.inf
    for start, end in ordered:
        covered += max(0.0, end - max(start, last))
        last = max(last, end)
    return covered, last - ordered[0][0] if ordered else 0.0


def shares(kernels: Sequence[tuple[str, float]]) -> Row:
    """Shares by kind and the kernels that take most, from (name, microseconds)."""
    total = sum(t for _, t in kernels) or 1.0
    kinds: dict[str, float] = defaultdict(float)
    names: dict[str, list[float]] = defaultdict(list)
    for name, spent in kernels:
        kinds[kind_of(name)] += spent
        names[name].append(spent)
    most = sorted(names.items(), key=lambda item: -sum(item[1]))[:12]
    return {
        "device_ms_a_step": total / 1e3 / PROFILED,
        "kernels_a_step": len(kernels) / PROFILED,
        "shares": {k: v / total for k, v in sorted(kinds.items(), key=lambda item: -item[1])},
        "top": [
            {"kernel": n[:110], "kind": kind_of(n), "share": sum(t) / total, "calls_a_step": len(t) / PROFILED}
            for n, t in most
        ],
    }


def profile(bench: Bench) -> None:
    """The path that is used: recorded and compiled; the eager one where nothing can be recorded."""
    for batch in (512, 128):
        used = "graphs" if bench.device.type == "cuda" else "eager"
        bench.measure("profile", f"training, batch {batch}", used, lambda b=batch, v=used: profiled(bench, b, v))


def profiled(bench: Bench, batch: int, variant: str) -> Row:
    """Profile after a warm-up on the architectures that are then run."""
    space, batch = vit_space(bench), 8 if bench.quick else batch
    model, call = bench.supernet(space, variant)
    warm, archs = architectures(space, bench.quick)
    chosen = (archs * PROFILED)[:PROFILED]
    runner = training(bench, model, call, inputs(bench, space, batch), variant)
    step = runner.step
    clock(bench, step, [*warm[:3], *chosen])
    plain = clock(bench, step, chosen)
    on = [torch.profiler.ProfilerActivity.CPU]
    cuda = bench.device.type == "cuda"
    if cuda:
        on.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=on) as trace:
        traced = clock(bench, step, chosen)
    runner.close()
    row: Row = {"batch": batch, "ms": 1e3 * plain / PROFILED, "ms_profiled": 1e3 * traced / PROFILED}
    if not cuda:
        return row | shares([(e.name, e.self_cpu_time_total) for e in trace.events()])
    events = [e for e in trace.events() if is_kernel(e)]
    row |= shares([(e.name, e.time_range.elapsed_us()) for e in events])
    covered, whole = busy([(e.time_range.start, e.time_range.end) for e in events])
    # Against the unprofiled time as well: tracing slows the host, so the first share is too low where launches limit.
    return row | {"busy_share": covered / whole, "busy_share_unprofiled": min(1.0, covered / 1e6 / plain)}


def is_kernel(event: Any) -> bool:
    """Whether an event is work of the device: its timeline also holds spans named by the host, which cover kernels."""
    if event.device_type != torch.autograd.DeviceType.CUDA or getattr(event, "is_user_annotation", False):
        return False
    return not re.match(r"ProfilerStep|Optimizer\.|## |Torch-Compiled|CompiledFunction", event.name)


# -- precision --------------------------------------------------------------------------------------------------------

COMPARED = 20  # architectures
OUTPUTS, GRADIENTS = 512, 128  # batches of the main table, so that its compiled graphs serve here too


def relative(out: Tensor, reference: Tensor) -> float:
    """|out - reference| / |reference| over all entries, in float64; nan or inf where one of them is not finite."""
    out, reference = out.double(), reference.double()
    return float((out - reference).norm() / reference.norm())


@contextmanager
def full_float32() -> Iterator[None]:
    """Full float32 products: by default torch lets convolutions use tf32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@contextmanager
def with_noise(models: Sequence[nn.Module]) -> Iterator[None]:
    """The same noise on every parameter: a fresh network's zeros would hide differences. Removed at the end."""
    before = [[p.detach().clone() for p in m.parameters()] for m in models]
    try:
        for model in models:
            rng = torch.Generator(next(model.parameters()).device).manual_seed(SEED)
            for p in model.parameters():
                p.data.add_(torch.randn(p.shape, device=p.device, generator=rng), alpha=0.02)
        yield
    finally:
        for model, weights in zip(models, before, strict=True):
            for p, w in zip(model.parameters(), weights, strict=True):
                p.data.copy_(w)


def precision(bench: Bench) -> None:
    """Relative differences over random architectures: the largest and the mean."""
    space = vit_space(bench)
    rng = generator(SEED, "gpu", "precision")
    count = 1 if bench.quick else COMPARED - 2
    archs = [space.largest(), space.smallest(), *(space.sample(rng) for _ in range(count))]
    for what in ("float32: extracted = sliced", "bfloat16 against float32"):
        bench.measure("precision", f"answers, {what}", "eager", lambda w=what: outputs(bench, space, archs, w, "eager"))
    few = archs[:1] if bench.quick else archs[:5]
    what = "gradients, bfloat16 against float32"
    bench.measure("precision", what, "eager", lambda: gradients(bench, space, few, "eager"))
    for variant in COMPILED:
        for what in ("bfloat16 against float32", "float32: the same as sliced"):
            work = lambda w=what, v=variant: outputs(bench, space, archs, w, v)  # noqa: E731
            bench.measure("precision", f"answers, {what}", variant, work)
    what = "gradients, bfloat16 against float32"
    bench.measure("precision", what, "compiled", lambda: gradients(bench, space, few, "compiled"))


def outputs(bench: Bench, space: Space, archs: Sequence[Arch], what: str, variant: str) -> Row:
    """Logits of one execution against float32 slices of the same weights."""
    plain, _ = bench.supernet(space, "eager")
    x = inputs(bench, space, 4 if bench.quick else OUTPUTS)[0][0]
    models, half = [plain], what.startswith("bfloat16")
    if variant in COMPILED:
        model, call = bench.supernet(space, variant)
        models.append(model)
        if variant == "graphs":
            call = recorded_calls(bench, model, half)
    elif "extracted" in what:
        call = lambda x, arch: family(space.family).extract(plain, arch).to(bench.device).eval()(x)  # noqa: E731
    else:
        call = plain
    differences = []
    same_weights(models)
    with full_float32(), with_noise(models):
        for m in models:
            m.eval()
        for arch in archs:
            with torch.no_grad():
                reference = plain(x, arch)
                with bench.cast(half):
                    differences.append(relative(call(x, arch), reference))
    return difference_row(differences)


def gradients(bench: Bench, space: Space, archs: Sequence[Arch], variant: str) -> Row:
    """All gradients as one vector."""
    from tailorvit.train.loop import soft_cross_entropy

    plain, _ = bench.supernet(space, "eager")
    model, call = bench.supernet(space, variant)
    x, target = inputs(bench, space, 4 if bench.quick else GRADIENTS)[0]
    differences = []
    models = [plain] if model is plain else [plain, model]
    same_weights(models)
    with full_float32(), with_noise(models):
        for arch in archs:
            found = []
            for network, way, cast in ((plain, plain, False), (model, call, True)):
                network.train()
                network.zero_grad(set_to_none=True)
                with bench.cast(cast):
                    logits = way(x, arch)
                soft_cross_entropy(logits, target).backward()
                grads = {n: p.grad.flatten().clone() for n, p in network.named_parameters() if p.grad is not None}
                network.zero_grad(set_to_none=True)
                found.append(grads)
            if found[0].keys() != found[1].keys():
                raise ValueError(f"gradients reach other parameters: {sorted(found[0].keys() ^ found[1].keys())[:3]}")
            reference, out = (torch.cat([g[n] for n in found[0]]) for g in found)
            differences.append(relative(out, reference))
    return difference_row(differences)


def same_weights(models: Sequence[nn.Module]) -> None:
    """Earlier sections have trained the copies apart: all get the first one's weights."""
    for model in models[1:]:
        for p, q in zip(model.parameters(), models[0].parameters(), strict=True):
            p.data.copy_(q.data)


def difference_row(differences: Sequence[float]) -> Row:
    """The largest and the mean difference."""
    if not all(math.isfinite(d) for d in differences):
        raise FloatingPointError(f"{sum(not math.isfinite(d) for d in differences)} answers were not finite")
    return {"largest": max(differences), "mean": sum(differences) / len(differences), "archs": len(differences)}


# -- input ------------------------------------------------------------------------------------------------------------


def input_kept(bench: Bench) -> None:
    """The input pipeline alone, as pipeline.py measures it; the tables compare it with training."""
    cases = ((32, (64,)),) if bench.quick else ((32, (512, 1024)), (224, (128, 512)))
    seconds, count = (0.1, {32: 300}) if bench.quick else (1.0, None)

    def work(side: int, batches: tuple[int, ...]) -> Row:
        import pipeline

        return {"rows": pipeline.kept(bench.device, seconds, tuple((side, batch) for batch in batches), count)}

    for side, batches in cases:
        bench.measure("input", f"kept on the device, {side} px", "", lambda s=side, b=batches: work(s, b))
    input_files(bench)


def input_files(bench: Bench) -> None:
    """The part of the input pipeline that reads JPEG files."""
    seconds, files, batch, side = (0.1, 60, 64, 32) if bench.quick else (1.0, 2000, 128, 224)

    def work() -> Row:
        import pipeline

        return {"rows": pipeline.from_files(bench.device, seconds, files, batch, side)}

    bench.measure("input", f"from files, {side} px", "", work)


# -- growth -----------------------------------------------------------------------------------------------------------

SIZES = (96, 160, 224, 288, 384)  # 36, 100, 196, 324 and 576 patches of 16 pixels
WIDTHS = (192, 256, 320, 384, 448)  # the space has the last three; a supernet runs narrower ones too, uncompiled here
DEPTHS = (2, 4, 8, 12, 14)
BATCH, BATCHES = 128, (32, 128, 512)  # 128: of the main table, whose compiled graphs serve here too
CANDIDATES = (1, 4, 16, 64)
SCORED_ON = (2, 512)  # batches, images each


def middle(space: Space, **genes: Any) -> Arch:
    """The architecture with the middle choice everywhere, some genes set; block genes are equal in every block."""
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
            points = [point(bench, space, middle(space, embed=w), variant, BATCH, "width", w) for w in widths]
            add_slope(bench, "step against width", variant, points)
        if "depth" in bench.curves:
            points = [point(bench, space, middle(space, depth=d), variant, BATCH, "depth", d) for d in depths]
            add_slope(bench, "step against depth", variant, points)
    if "candidates" in bench.curves:
        candidates(bench, space)
    used = variants[0]  # batches and tokens only as they are used: every size is compiled anew
    if "batch" in bench.curves:
        points = [point(bench, space, middle(space), used, b, "batch", b) for b in batches]
        add_slope(bench, "step against batch", used, points)
    points = []
    for size in () if "tokens" not in bench.curves else SIZES[:2] if bench.quick else SIZES:
        there = vit_space(bench, size) if not bench.quick else vit_space(bench, 224 if size > 96 else 96)
        tokens = family(there.family).settings(dict(there.settings)).tokens
        points.append(point(bench, there, middle(there), used, BATCH, "tokens", tokens))
    add_slope(bench, "step against tokens", used, points)


def point(bench: Bench, space: Space, arch: Arch, variant: str, batch: int, curve: str, x: float) -> Row:
    """One point of a curve of step times."""
    batch = batch if not bench.quick or curve == "batch" else 4

    def work() -> Row:
        model, call = bench.supernet(space, variant)
        runner = training(bench, model, call, inputs(bench, space, batch), variant)
        many = 2 if bench.quick else 8
        row = timed(bench, runner, [arch] * 3, [arch] * many, batch, seconds=min(0.5, bench.seconds))
        runner.close()
        return row

    return bench.measure("growth", f"step against {curve}", variant, work, x=x)


def add_slope(bench: Bench, what: str, variant: str, points: Sequence[Row]) -> None:
    """The row that sums a curve up."""
    known = [(p["x"], p["ms"]) for p in points if "ms" in p]
    if known:
        row = {"section": "growth", "what": what, "variant": variant, "points": known}
        bench.add({**row, "slope": slope([x for x, _ in known], [y for _, y in known])})


def candidates(bench: Bench, space: Space) -> None:
    """Seconds to evaluate some architectures on 1,024 images, in three ways."""
    counts = (1, 2) if bench.quick else CANDIDATES
    batches, images = (1, 4) if bench.quick else SCORED_ON
    data = [(x, t.argmax(-1)) for x, t in (inputs(bench, space, images) * batches)[:batches]]
    _, drawn = architectures(space, bench.quick)
    rng = generator(0, "gpu", "candidates")
    more = [space.sample(rng) for _ in range(2 * max(counts))]
    archs = list(dict.fromkeys([*drawn, space.smallest(), space.largest(), *more]))
    what = "evaluation against candidates"
    for how in ("graphs, one by one", "eager, one by one", "eager, extracted"):
        points = []
        for n in counts:
            work = lambda n=n, h=how: evaluated(bench, space, data, archs[:n], h)  # noqa: E731
            points.append(bench.measure("growth", what, how, work, x=n))
        add_slope(bench, what, how, points)


def evaluated(bench: Bench, space: Space, data: list[Any], archs: list[Arch], how: str) -> Row:
    """The time to evaluate some architectures one after the other."""
    variant = "graphs" if how.startswith("graphs") else "eager, own kernel"
    model, call = bench.supernet(space, variant)
    model.eval()
    call = recorded_calls(bench, model, True) if variant == "graphs" else call

    def network(arch: Arch) -> Callable[[Tensor], Tensor]:
        if how.endswith("extracted"):
            return family(space.family).extract(model, arch, share=True).to(bench.device).eval()
        return lambda x: call(x, arch)

    def work(some: list[Arch]) -> None:
        with torch.no_grad(), bench.cast():
            for arch in some:
                one = network(arch)
                sum((one(x).argmax(-1) == y).sum() for x, y in data).item()

    work(archs if how.startswith(COMPILED) else archs[:2])
    bench.sync()
    start, passes = time.perf_counter(), 0
    while not passes or time.perf_counter() - start < min(0.5, bench.seconds):
        work(archs)
        bench.sync()
        passes += 1
    seconds = (time.perf_counter() - start) / passes
    images = sum(len(y) for _, y in data) * len(archs)
    return {"ms": 1e3 * seconds, "images": images, "img_s": images / seconds, "passes": passes}


# -- windowed networks ------------------------------------------------------------------------------------------------

SWIN_T = "swin_tiny_patch4_window7_224"
SMALL = {"img_size": 32, "embed_dim": 16, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2), "window_size": 2}


def swin_t_gmacs() -> float:
    """MACs of Swin-T by our own count of the same network."""
    named = named_arch("swin-t")
    return Counter("swin", named.settings).macs(named.arch) / 1e9


def timm_gmacs(x: Tensor, **options: Any) -> float:
    """GMACs of timm's network for one image by torch's counter, which sees fused attention on the meta device only."""
    import timm
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = timm.create_model(SWIN_T, pretrained=False, **options).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x.to("meta"))
    return float(counter.get_total_flops()) / 2e9


def windowed_space(bench: Bench) -> Space:
    """The four-stage space of S3."""
    return named_space("windowed-8px") if bench.quick else named_space("s3", classes=1000)


def nearest(space: Space, gmacs: float) -> Arch:
    """An architecture of about these MACs: the nearest of both ends and of 200 samples."""
    counter, rng = Counter(space.family, dict(space.settings)), generator(SEED, "gpu", "nearest")
    archs = [space.smallest(), space.largest(), *(space.sample(rng) for _ in range(200))]
    return min(archs, key=lambda a: abs(counter.macs(a) / 1e9 - gmacs))


def windowed(bench: Bench) -> None:
    """What is quick to start comes first; the compiled supernet, with most graphs to make, last."""
    lines = [("training, batch 128", 128), ("training, batch 256", 256), ("evaluation, batch 256", 256)]
    cases: list[tuple[str, Callable[[str, int], Row]]] = [
        ("eager, timm Swin-T", lambda what, batch: timm_swin(bench, what, batch, False)),
        ("eager, drawn", lambda what, batch: supernet(bench, what, batch, "eager", True)),
        ("eager, one of Swin-T's MACs", lambda what, batch: supernet(bench, what, batch, "eager", False)),
        ("eager, the same extracted", lambda what, batch: extracted(bench, what, batch, "eager")),
        ("compiled, timm Swin-T", lambda what, batch: timm_swin(bench, what, batch, True)),
        ("compiled, one of Swin-T's MACs", lambda what, batch: supernet(bench, what, batch, "compiled", False)),
        ("compiled, the same extracted", lambda what, batch: extracted(bench, what, batch, "compiled")),
        ("compiled, drawn", lambda what, batch: supernet(bench, what, batch, "compiled", True)),
    ]
    for variant, work in cases:
        if variant.partition(",")[0] not in bench.variants:
            continue
        for what, batch in lines:
            row = bench.measure(
                "windowed", what, variant, lambda k=work, w=what, b=batch: with_rate(k(w, 8 if bench.quick else b))
            )
            if ("error" in row or "skipped" in row) and variant.startswith("compiled"):
                break  # what cannot be compiled, or not in time, at one batch cannot at the next


def with_rate(row: Row) -> Row:
    """Images times MACs a second, so that networks of other sizes compare."""
    return row | {"tmacs_s": row["img_s"] * row["gmacs"] / 1e3}


def runner_of(bench: Bench, what: str, model: nn.Module, call: Call, batches: Images) -> Runner:
    """Evaluation or training, by the first word of a line."""
    return (evaluating if what.startswith("evaluation") else training)(bench, model, call, batches)


def supernet(bench: Bench, what: str, batch: int, variant: str, drawn: bool) -> Row:
    """The supernet sliced: random sub-networks, or one of Swin-T's MACs."""
    space = windowed_space(bench)
    model, call = bench.supernet(space, variant)
    warm, archs = architectures(space, bench.quick)
    archs = archs[:12]  # twice the MACs of AutoFormer-S on average
    if not drawn:
        one = nearest(space, swin_t_gmacs())
        warm, archs = [one] * 3, [one] * len(archs)
    runner = runner_of(bench, what, model, call, inputs(bench, space, batch))
    warm = warm if variant == "compiled" else warm[:4]
    return sizes(space, archs) | timed(bench, runner, warm, archs, batch, seconds=bench.seconds / 2)


def extracted(bench: Bench, what: str, batch: int, variant: str) -> Row:
    """That one sub-network as a plain network."""
    space = windowed_space(bench)
    key = (space, f"extracted, {variant}")
    arch = nearest(space, swin_t_gmacs())
    if key not in bench.networks:
        model = family(space.family).extract(bench.supernet(space, "eager")[0], arch).to(bench.device)
        bench.networks[key] = (model, compiled_call(model) if variant == "compiled" else model)
    return sizes(space, [arch]) | plain_row(bench, what, batch, *bench.networks[key], inputs(bench, space, batch))


def timm_swin(bench: Bench, what: str, batch: int, compile_it: bool) -> Row:
    """timm's own Swin-T, eager or through torch.compile."""
    import timm

    options = SMALL if bench.quick else {}
    key = ("timm", compile_it)
    if key not in bench.networks:
        seed_everything(SEED, "gpu")
        model = timm.create_model(SWIN_T, pretrained=False, **options).to(bench.device)
        bench.networks[key] = (model, torch.compile(model) if compile_it else model)
    model, call = bench.networks[key]
    batches = random_images(bench, batch, 3, (32, 32) if bench.quick else (224, 224), 1000)
    params = sum(p.numel() for p in model.parameters()) / 1e6
    row = {"params_m": params, "gmacs": timm_gmacs(batches[0][0][:1], **options)}
    return row | plain_row(bench, what, batch, model, call, batches)


def plain_row(bench: Bench, what: str, batch: int, model: nn.Module, call: Call, batches: Images) -> Row:
    """The times of a network that takes no architecture."""
    runner = runner_of(bench, what, model, call, batches)
    return timed(bench, runner, [None] * 4, [None] * (2 if bench.quick else 20), batch, seconds=bench.seconds / 2)


# -- plain networks of every family ------------------------------------------------------------------------------------

FAMILIES = ("vit", "pit", "swin", "windowed", "shunted")
PEERS = ("mobilevit_xxs", "edgenext_xx_small")  # of timm, of about the same size
LIMIT = 1_500_000  # parameters
CLASSES = 10


def families(bench: Bench) -> None:
    """A training step of each family's hand-designed network at the limit, and of timm's peers, eager and recorded."""
    sides, batches = ((32,), (4,)) if bench.quick else ((32, 96), (128, 512))
    for name in ("shunted", "edgenext_xx_small") if bench.quick else (*FAMILIES, *PEERS):
        for side in sides:
            for batch in batches:
                for variant in (v for v in ("eager", "graphs") if v in bench.variants):
                    what = f"{name}, {side} px, batch {batch}"
                    work = lambda n=name, s=side, b=batch, v=variant: family_row(bench, n, s, b, v)  # noqa: E731
                    bench.measure("families", what, variant, work, name=name, side=side, batch=batch)


def family_row(bench: Bench, name: str, side: int, batch: int, variant: str) -> Row:
    """Images a second of one network, made anew; without drop path and without clipping."""
    seed_everything(SEED, "gpu")
    model = (peer(name) if name in PEERS else hand_designed(name, side, bench.quick)).to(bench.device)
    runner = training(bench, model, model, random_images(bench, batch, 3, (side, side), CLASSES), variant)
    steps = 2 if bench.quick else 20
    row = timed(bench, runner, [None] * 4, [None] * steps, batch, seconds=min(1.0, bench.seconds))
    runner.close()
    return row | {"params_m": sum(p.numel() for p in model.parameters()) / 1e6}


def hand_designed(name: str, side: int, quick: bool) -> nn.Module:
    """The largest of a family's hand-designed networks under the limit, for photos of that side."""
    entry, limit = family(name), LIMIT / 10 if quick else LIMIT
    size = (side, side)
    settings = {"image_size": size, "channels": 3, "classes": CLASSES, **entry.settle(size, limit)}
    counter = Counter(name, settings)
    fitting = (arch for arch in entry.baseline(settings) if counter.params(arch) <= limit)
    return entry.build(entry.settings(settings), max(fitting, key=counter.params))


def peer(name: str) -> nn.Module:
    """timm's network of that name."""
    import timm

    made: nn.Module = timm.create_model(name, pretrained=False, num_classes=CLASSES)
    return made


# -- the command ------------------------------------------------------------------------------------------------------

# In order of importance, as the last ones may find no time left.
SECTIONS: dict[str, Callable[[Bench], None]] = {
    "table": table,
    "loop": loop,
    "profile": profile,
    "precision": precision,
    "input": input_kept,
    "growth": growth,
    "windowed": windowed,
    "families": families,
}
PARTS: dict[str, Callable[[Bench], None]] = {"files": input_files}  # part of a section, by itself


def facts(options: argparse.Namespace, device: torch.device) -> dict[str, object]:
    """The machine and the command."""
    cuda = device.type == "cuda"
    return {
        "section": "facts",
        "date": date.today().isoformat(),
        # Without the file: its path on that machine does not matter, and the tables name it.
        "command": re.sub(r" --out[ =]\S+", "", " ".join(["python benchmarks/speed/gpu.py", *sys.argv[1:]])),
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or "CPU",
        "device_memory_gib": torch.cuda.get_device_properties(device).total_memory / 2**30 if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "quick": options.quick,
    }


def chosen(what: str, words: Sequence[str], known: Iterable[str]) -> tuple[str, ...]:
    """Names given on the command line, checked."""
    for word in words:
        if word not in known:
            raise SystemExit(f"There is no {what} '{word}'; there are {'; '.join(known)}.")
    return tuple(words)


def run(options: argparse.Namespace) -> None:
    """Measure the chosen sections one after the other."""
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    known = SECTIONS | PARTS
    sections = chosen("section", options.only.split(",") if options.only else list(SECTIONS), known)
    variants = chosen("variant", options.variants.split("; ") if options.variants else list(VARIANTS), VARIANTS)
    curves = chosen("curve", options.curves.split(","), CURVES)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("")
    if options.compile:
        import torch._dynamo.config as dynamo

        # One process meets a dozen sizes here, a training one: past torch's limit of 8 it would quietly run uncompiled.
        dynamo.recompile_limit = max(dynamo.recompile_limit, 128)
        dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 2048)
    seconds = 0.01 if options.quick else options.seconds
    bench = Bench(
        device, options.quick, seconds, options.minutes, options.limit, options.compile, options.out, variants, curves
    )
    bench.add(facts(options, device))
    for name in sections:
        try:
            known[name](bench)
        except Exception as error:  # outside a measurement: still no reason to lose the other sections
            bench.add({"section": name, "what": "", "variant": "", "error": f"{type(error).__name__}: {error}"})
    bench.add({"section": "end", "seconds": time.perf_counter() - bench.started})
    print("\n" + everything(bench.rows))
    print("\n" + summary(bench.rows))


def main() -> None:
    """``gpu.py`` measures, ``gpu.py table`` prints or fills tables."""
    if sys.argv[1:2] == ["table"]:
        rows = [json.loads(line) for file in sys.argv[2:] for line in Path(file).read_text().splitlines()]
        if rows:
            print(everything(rows))
        else:
            fill(HERE / "README.md", tables())
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    parser.add_argument("--out", type=Path, help="where the rows go, one JSON object a line")
    parser.add_argument("--only", help=f"some of {','.join(SECTIONS | PARTS)}")
    parser.add_argument("--variants", help=f"of table, loop, windowed and families, some of '{'; '.join(VARIANTS)}'")
    parser.add_argument("--curves", default=",".join(CURVES), help="of growth, some of %(default)s")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to try this script")
    parser.add_argument("--seconds", type=float, default=4.0, help="time for one measurement (default 4)")
    parser.add_argument("--minutes", type=float, default=5.0, help="start no measurement later than this (default 5)")
    parser.add_argument("--limit", type=float, default=90.0, help="break a measurement off after so many seconds")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave the compiled variants out")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
