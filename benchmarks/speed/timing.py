"""gpu.py: steps of training and evaluation, plain or recorded, and how they are timed over fixed architectures."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from speed.bench import SEED, TIMED, WARM, Bench, Call, LeftOut, Row, Step
from tailorvit.arch import Arch
from tailorvit.costs.count import Counter
from tailorvit.families import family, named_space
from tailorvit.space import Space
from tailorvit.train import SinglePath, TrainSettings
from tailorvit.train.loop import soft_cross_entropy
from tailorvit.train.optim import make_optimizer

# -- what is run ------------------------------------------------------------------------------------------------------


def vit_space(bench: Bench, size: int = 224, patch: int = 16) -> Space:
    """AutoFormer-S for an image size; the space for 8 px digits when only trying the script."""
    if bench.quick:
        return named_space("vit-8px", image_size=(8 if size >= 224 else 4,) * 2)
    return named_space("autoformer-s", image_size=(size, size), patch=patch, classes=1000)


def draws(space: Space, quick: bool) -> tuple[list[Arch], list[Arch]]:
    """(warm-up, timed): the members a training with this seed draws, the warm-up with both ends of the space."""
    rule, warm, timed = SinglePath(space), 2 if quick else WARM, 2 if quick else TIMED
    drawn = [rule.archs_at(SEED, step)[0] for step in range(warm + timed)]
    return [space.largest(), space.smallest(), *drawn[:warm]], drawn[warm:]


def sizes(space: Space, archs: Sequence[Arch]) -> Row:
    """Means over architectures, by the package's own exact counts."""
    counter = Counter(space.family, dict(space.fixed))
    both = [counter.both(a) for a in archs]
    return {
        "params_m": statistics.mean(p for p, _ in both) / 1e6,
        "gmacs": statistics.mean(m for _, m in both) / 1e9,
    }


def inputs(bench: Bench, space: Space, batch: int) -> list[tuple[Tensor, Tensor]]:
    """Random images and soft targets on the device: two sets, so that no step finds its images in the cache."""
    frame = family(space.family).frame(dict(space.fixed))
    return random_images(bench, batch, frame.channels, frame.image_size, frame.classes)


def random_images(
    bench: Bench, batch: int, channels: int, size: tuple[int, int], classes: int
) -> list[tuple[Tensor, Tensor]]:
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
    """A step to be timed, how many graphs it has made so far, and how it gives its memory back."""

    step: Step
    made: Callable[[], int]
    close: Callable[[], None] = lambda: None


def graphs() -> int:
    """How many graphs were compiled so far in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def training(
    bench: Bench, model: nn.Module, call: Call, batches: list[tuple[Tensor, Tensor]], variant: str = ""
) -> Runner:
    """Forward, backward and AdamW; ``batches`` may be shortened while it is in use."""
    settings = TrainSettings(lr=1e-4, precision="bf16", clip=0)
    optimizer = make_optimizer(model, settings)
    model.train()
    if variant == "graphs":
        return _recorded_training(bench, model, call, batches, optimizer, settings)
    if variant == "released formula":  # torch's AdamW as it comes
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
    batches: list[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    settings: TrainSettings,
) -> Runner:
    """The steps of the training loop as CUDA graphs, without the loop."""
    from tailorvit.train.graphs import GraphSteps

    _needs_groups(bench, model)
    steps = GraphSteps(model, call, optimizer, None, settings, str(bench.device))
    labels = [target.argmax(-1) for _, target in batches]

    def step(i: int, arch: Arch | None) -> Tensor:
        k = i % len(batches)
        steps.prepare((batches[k][0], labels[k], batches[k][1]), (arch,))
        steps.step((arch,), settings.lr)
        return steps.figures[0]

    return Runner(step, lambda: graphs() + len(steps.recorder.graphs), steps.close)


def _needs_groups(bench: Bench, model: nn.Module) -> None:
    if bench.device.type != "cuda":
        raise LeftOut("CUDA graphs need a GPU")
    if not hasattr(model, "grouped"):
        raise LeftOut(f"{type(model).__name__} has no groups to record")


def recorded_calls(bench: Bench, model: nn.Module, half: bool) -> Any:
    """Answers as CUDA graphs."""
    from tailorvit.train.graphs import GraphCalls

    _needs_groups(bench, model)
    return GraphCalls(model, half)


def evaluating(
    bench: Bench, model: nn.Module, call: Call, batches: list[tuple[Tensor, Tensor]], variant: str = ""
) -> Runner:
    """Right answers, as an evaluation counts them."""
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

    A pass in which something was compiled or recorded is counted as warm-up, three times at most: the row then says so.
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
