"""Latency and peak memory of a plain network, measured on a device."""

from __future__ import annotations

import math
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from tailorvit.costs.runtime import ONNX, Runtime
from tailorvit.costs.traced import onnx_call, traced


@dataclass(frozen=True)
class Latency:
    """Seconds per batch: the median and the quartiles, with the conditions of the measurement."""

    median: float
    low: float
    high: float
    batch: int
    device: str
    threads: int
    runs: int
    runtime: str = "torch"
    provider: str | None = None  # of onnxruntime

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def measure_latency(
    model: nn.Module,
    shape: tuple[int, int, int],
    batch: int = 1,
    device: str = "cpu",
    runs: int = 30,
    warmup: int = 5,
    seconds: float = math.inf,
    runtime: Runtime = Runtime(),  # noqa: B008 - a value
) -> Latency:
    """Time forward passes of random images; the model is left in evaluation mode.

    After ``seconds`` have passed, five timed passes are enough; writing the network for onnxruntime does not count.
    """
    threads = runtime.threads_used
    if runtime.name == ONNX:
        call = onnx_call(traced(model, shape, batch), shape, batch, runtime.provider, threads)
        times = _timed(call, runs, warmup, seconds)
    else:
        times = _timed_in_torch(model, torch.rand(batch, *shape, device=device), device, threads, runs, warmup, seconds)
    low, median, high = statistics.quantiles(times, n=4)
    return Latency(median, low, high, batch, device, threads, len(times), runtime.name, runtime.provider or None)


def _timed_in_torch(
    model: nn.Module, x: torch.Tensor, device: str, threads: int, runs: int, warmup: int, seconds: float
) -> list[float]:
    model, cuda, before = model.to(device).eval(), torch.device(device).type == "cuda", torch.get_num_threads()

    def call() -> None:
        model(x)
        if cuda:
            torch.cuda.synchronize()

    try:
        if threads != before:
            torch.set_num_threads(threads)
        with torch.inference_mode():
            return _timed(call, runs, warmup, seconds)
    finally:
        if threads != before:
            torch.set_num_threads(before)


def _timed(call: Callable[[], Any], runs: int, warmup: int, seconds: float) -> list[float]:
    """Seconds of every pass after the warm-up."""
    times, begun = list[float](), time.perf_counter()
    for i in range(warmup + runs):
        if len(times) >= 5 and time.perf_counter() - begun > seconds:
            break
        start = time.perf_counter()
        call()
        if i >= warmup:
            times.append(time.perf_counter() - start)
    return times


def measure_memory(model: nn.Module, shape: tuple[int, int, int], batch: int = 1, device: str = "cpu") -> int:
    """Peak bytes of weights and activations in one evaluation pass.

    On a GPU this is the allocator's own peak. On a CPU it is the peak of live tensors. The resident size would vary
    from run to run, so a limit on it would not be decided the same way twice.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        model = model.to(device).eval()
        with torch.inference_mode():
            model(torch.rand(batch, *shape, device=device))
        return torch.cuda.max_memory_allocated() - base
    return _live_peak(model.eval(), torch.rand(batch, *shape))


def _live_peak(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes of weights and input, plus the peak of bytes allocated during a pass."""
    from torch.profiler import ProfilerActivity, profile

    with torch.inference_mode():
        model(x)  # caches made by a first call are not counted
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
            model(x)
    live = peak = 0
    results = trace.profiler.kineto_results
    for event in sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    held = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in [*model.parameters(), *model.buffers()]
    }
    return sum(held.values()) + x.untyped_storage().nbytes() + peak


def cpu_name() -> str:
    """The processor, as the system names it."""
    try:
        text = subprocess.run(["lscpu"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return next(
        (line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("Model name")), "unknown"
    )
