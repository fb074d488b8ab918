"""What gpu.py measures with: guarded measurements whose rows are written as they come, and steps timed in passes."""

from __future__ import annotations

import gc
import json
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.costs import Counter
from tailorvit.families import family, named_space
from tailorvit.rng import seed_everything
from tailorvit.space import Space
from tailorvit.train import SinglePath, TrainSettings

SEED = 0
WARM, TIMED = 40, 24  # steps; the warm-up meets every width and depth of the timed ones, each of which is a recording
# How relative position is executed in each variant: "auto" takes our own kernel where there is one.
VARIANTS = {
    "graphs": "auto",
    "compiled": "auto",
    "eager, own kernel": "auto",
    "eager": "fused",
    "released formula": "dense",
}
COMPILED = ("graphs", "compiled")
CURVES = ("width", "depth", "candidates", "batch", "tokens")  # of the section growth
PRINTED = ("img_s", "ms", "peak_gib", "tflops", "compile_s", "largest", "slope", "busy_share_unprofiled", "seconds")
Row = dict[str, Any]
Call = Callable[..., Tensor]
Step = Callable[[int, Arch | None], Any]
Images = list[tuple[Tensor, Tensor]]


class Work(NamedTuple):
    """One line of the main table."""

    what: str
    kind: str
    size: int
    patch: int
    batch: int


WORKS = (
    Work("training, batch 128", "training", 224, 16, 128),
    Work("training, batch 512", "training", 224, 16, 512),
    Work("evaluation, batch 512", "evaluation", 224, 16, 512),
    Work("32 px, patch 4, training, batch 1024", "training", 32, 4, 1024),
)


class TooSlow(BaseException):
    """A measurement was over its limit. Not an Exception, because compilers catch those and go on another way."""


class LeftOut(Exception):
    """There is nothing to measure, and why."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Break off what takes longer, so that one endless compilation does not cost the other sections."""

    def ring(*_: Any) -> None:
        raise TooSlow(f"over {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)  # repeated, in case the first one is caught on the way
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class Bench:
    """One run of the script: its settings, its rows so far, and the networks that several sections use."""

    device: torch.device
    quick: bool = False
    seconds: float = 4.0  # repeat a timed pass until this much
    minutes: float = 5.0  # start nothing later than this
    limit: float = 90.0  # break a measurement off, its compilation included
    compile: bool = True
    out: Path | None = None
    variants: tuple[str, ...] = tuple(VARIANTS)  # of the table, the loop and windowed networks
    curves: tuple[str, ...] = CURVES
    rows: list[Row] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    networks: dict[Any, tuple[nn.Module, Call]] = field(default_factory=dict)

    def add(self, row: Row) -> Row:
        """Keep a row, and write it at once: a killed run leaves what it had."""
        self.rows.append(row)
        if self.out is not None:
            with self.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        name = ", ".join(str(row[k]) for k in ("section", "what", "variant", "x") if row.get(k))
        figures = [f"{k} {v:.4g}" for k, v in row.items() if isinstance(v, float) and k in PRINTED]
        why = [str(row[k]) for k in ("error", "skipped") if k in row]
        print(f"[{time.perf_counter() - self.started:6.1f} s] {name}: {', '.join(figures + why)}", flush=True)
        return row

    def measure(self, section: str, what: str, variant: str, work: Callable[[], Row], **more: Any) -> Row:
        """One row: what ``work`` returns, or its error, or why it was left out."""
        row: Row = {"section": section, "what": what, "variant": variant, **more}
        start = time.perf_counter()
        if start - self.started > 60 * self.minutes:
            row["skipped"] = f"the {self.minutes:g} minutes were over"
        elif variant.startswith(COMPILED) and not self.compile:
            row["skipped"] = "--no-compile"
        else:
            try:
                with within(min(self.limit, max(20.0, 60 * self.minutes - start + self.started))):
                    row |= work()
            except LeftOut as reason:
                row["skipped"] = str(reason)
            except (Exception, TooSlow) as error:  # whatever it is, the other rows must come
                place = traceback.extract_tb(error.__traceback__)[-1]
                text = str(error).strip().splitlines() or [""]
                row["error"] = f"{type(error).__name__}: {text[0][:300]} ({Path(place.filename).name}:{place.lineno})"
            self.tidy()
        row["took"] = time.perf_counter() - start
        return self.add(row)

    def tidy(self) -> None:
        """Free what a measurement left: gradients and cached blocks would count as the next one's memory."""
        for model, _ in self.networks.values():
            model.zero_grad(set_to_none=True)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def sync(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def cast(self, on: bool = True) -> torch.autocast:
        """bfloat16 as in training."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on)

    def supernet(self, space: Space, variant: str) -> tuple[nn.Module, Call]:
        """The supernet of a space and how to call it, made once; every variant has its own copy of equal weights."""
        if (space, variant) not in self.networks:
            seed_everything(SEED, "gpu")
            model = family(space.family).supernet(space, execution=VARIANTS[variant]).to(self.device)
            self.networks[space, variant] = (model, compiled_call(model) if variant in COMPILED else model)
        return self.networks[space, variant]

    def other_bytes(self, mine: nn.Module) -> int:
        """What networks kept for other measurements hold."""
        others = (model for model, _ in self.networks.values() if model is not mine)
        return sum(t.numel() * t.element_size() for model in others for t in [*model.parameters(), *model.buffers()])


def compiled_call(model: nn.Module) -> Call:
    """The package's compiled path."""
    from tailorvit.train.compiled import compiled

    call: Call = compiled(model, evaluation=True)
    if call is model:
        raise LeftOut(f"{type(model).__name__} is not compiled")
    return call


# -- what is run ------------------------------------------------------------------------------------------------------


def vit_space(bench: Bench, size: int = 224, patch: int = 16) -> Space:
    """AutoFormer-S for an image size; the space for 8 px digits when only trying the script."""
    if bench.quick:
        return named_space("vit-8px", image_size=(8 if size >= 224 else 4,) * 2)
    return named_space("autoformer-s", image_size=(size, size), patch=patch, classes=1000)


def architectures(space: Space, quick: bool) -> tuple[list[Arch], list[Arch]]:
    """(warm-up, timed): those a training with this seed draws; the warm-up has both ends of the space too."""
    rule, warm, timed = SinglePath(space), 2 if quick else WARM, 2 if quick else TIMED
    drawn = [rule.archs_at(SEED, step)[0] for step in range(warm + timed)]
    return [space.largest(), space.smallest(), *drawn[:warm]], drawn[warm:]


def sizes(space: Space, archs: Sequence[Arch]) -> Row:
    """Means over architectures, by the package's own exact counts."""
    counter = Counter(space.family, dict(space.settings))
    both = [counter.both(a) for a in archs]
    return {
        "params_m": statistics.mean(p for p, _ in both) / 1e6,
        "gmacs": statistics.mean(m for _, m in both) / 1e9,
    }


def inputs(bench: Bench, space: Space, batch: int) -> Images:
    """Random images and soft targets on the device: two sets, so that no step finds its images in the cache."""
    shared = family(space.family).settings(dict(space.settings))
    return random_images(bench, batch, shared.channels, shared.image_size, shared.classes)


def random_images(bench: Bench, batch: int, channels: int, size: tuple[int, int], classes: int) -> Images:
    """The same for any network."""
    rng = torch.Generator(bench.device).manual_seed(SEED)
    made = []
    for _ in range(2):
        x = torch.randn(batch, channels, *size, device=bench.device, generator=rng)
        y = torch.randint(classes, (batch,), device=bench.device, generator=rng)
        made.append((x, torch.nn.functional.one_hot(y, classes).float() * 0.9 + 0.1 / classes))
    return made


@dataclass(frozen=True)
class Runner:
    """A step to be timed, how many graphs it has made so far, and how it frees its memory."""

    step: Step
    made: Callable[[], int]
    close: Callable[[], None] = lambda: None


def graphs() -> int:
    """How many graphs were compiled so far in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def training(bench: Bench, model: nn.Module, call: Call, batches: Images, variant: str = "") -> Runner:
    """Forward, backward and AdamW; ``batches`` may be shortened while it is in use."""
    from tailorvit.train.loop import soft_cross_entropy
    from tailorvit.train.optim import make_optimizer

    settings = TrainSettings(lr=1e-4, precision="bf16", clip=0)
    optimizer = make_optimizer(model, settings)
    model.train()
    if variant == "graphs":
        return _recorded_training(bench, model, call, batches, optimizer, settings)
    if variant == "released formula":  # torch's AdamW with its defaults
        groups = [{k: g[k] for k in ("params", "weight_decay")} for g in optimizer.param_groups]
        optimizer = torch.optim.AdamW(groups, lr=settings.lr)

    def step(i: int, arch: Arch | None) -> Tensor:
        x, target = batches[i % len(batches)]
        optimizer.zero_grad(set_to_none=True)
        with bench.cast():
            logits = call(x) if arch is None else call(x, arch)
        loss = soft_cross_entropy(logits, target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Runner(step, graphs)


def _recorded_training(
    bench: Bench,
    model: nn.Module,
    call: Call,
    batches: Images,
    optimizer: torch.optim.Optimizer,
    settings: TrainSettings,
) -> Runner:
    """The steps of the training loop as CUDA graphs, without the loop."""
    from tailorvit.train.graphs import GraphSteps

    _needs_fixed_shapes(bench, model)
    steps = GraphSteps(model, call, optimizer, settings, str(bench.device))
    labels = [target.argmax(-1) for _, target in batches]

    def step(i: int, arch: Arch | None) -> Tensor:
        k = i % len(batches)
        steps.prepare((batches[k][0], labels[k], batches[k][1]), (arch,))
        steps.step((arch,), settings.lr)
        return steps.figures[0]

    return Runner(step, lambda: graphs() + len(steps.recorder.graphs), steps.close)


def _needs_fixed_shapes(bench: Bench, model: nn.Module) -> None:
    if bench.device.type != "cuda":
        raise LeftOut("CUDA graphs need a GPU")
    if hasattr(model, "slices") and not hasattr(model, "grouped"):
        raise LeftOut(f"{type(model).__name__} has no groups to record")


def recorded_calls(bench: Bench, model: nn.Module, half: bool) -> Any:
    """Outputs as CUDA graphs."""
    from tailorvit.train.graphs import GraphCalls

    _needs_fixed_shapes(bench, model)
    return GraphCalls(model, half)


def evaluating(bench: Bench, model: nn.Module, call: Call, batches: Images, variant: str = "") -> Runner:
    """Right predictions, as an evaluation counts them."""
    model.eval()
    labels = [target.argmax(-1) for _, target in batches]
    made: Callable[[], int] = graphs
    if variant == "graphs":
        call = recorded = recorded_calls(bench, model, True)
        made = lambda: graphs() + len(recorded.recorder.graphs)  # noqa: E731

    @torch.no_grad()
    def step(i: int, arch: Arch | None) -> Tensor:
        x, y = batches[i % len(batches)][0], labels[i % len(labels)]
        with bench.cast():
            logits = call(x) if arch is None else call(x, arch)
        return (logits.argmax(-1) == y).sum()

    return Runner(step, made)


# -- timing -----------------------------------------------------------------------------------------------------------


def clock(bench: Bench, step: Step, archs: Sequence[Arch | None]) -> float:
    """Seconds for one step per architecture, the device's work included."""
    bench.sync()
    start = time.perf_counter()
    for i, arch in enumerate(archs):
        step(i, arch)
    bench.sync()
    return time.perf_counter() - start


def timed(
    bench: Bench,
    runner: Runner,
    warm: Sequence[Arch | None],
    archs: Sequence[Arch | None],
    batch: int,
    seconds: float = -1,
) -> Row:
    """Images a second over a fixed sequence of architectures: the median of whole passes.

    A pass in which something was compiled or recorded counts as warm-up, three times at most: the row then says so.
    """
    step, made = runner.step, runner.made
    first_graphs, budget = made(), bench.seconds if seconds < 0 else seconds
    warming, warmed = clock(bench, step, warm), len(warm)
    passes: list[float] = []
    redone = 0
    while not passes or (sum(passes) < budget and len(passes) < 50):
        before = made()
        spent = clock(bench, step, archs)
        if made() > before and redone < 3:
            redone, warming, warmed = redone + 1, warming + spent, warmed + len(archs)
        else:
            passes.append(spent)
    if not bool(torch.isfinite(step(0, archs[0]))):
        raise FloatingPointError("the loss was not finite")
    each = statistics.median(passes) / len(archs)
    return {
        "batch": batch,
        "img_s": batch / each,
        "img_s_low": batch * len(archs) / max(passes),
        "img_s_high": batch * len(archs) / min(passes),
        "ms": 1e3 * each,
        "passes": len(passes),
        "steps": len(archs),
        "compile_s": max(0.0, warming - warmed * each),
        "graphs": made() - first_graphs,
        "passes_that_compiled": redone,
    }


def peak(bench: Bench, model: nn.Module, step: Step, archs: Sequence[Arch]) -> float | None:
    """GiB the allocator had handed out at most, without the networks kept for other measurements."""
    if bench.device.type != "cuda":
        return None
    bench.sync()
    torch.cuda.reset_peak_memory_stats(bench.device)
    clock(bench, step, archs)
    return (torch.cuda.max_memory_allocated(bench.device) - bench.other_bytes(model)) / 2**30
