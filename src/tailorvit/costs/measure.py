"""Latency and peak memory of a plain network, measured on a device."""

from __future__ import annotations

import math
import statistics
import subprocess
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn


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
) -> Latency:
    """Time forward passes of random images; the model is left in evaluation mode on the device.

    After ``seconds`` have passed, five timed passes are enough.
    """
    model = model.to(device).eval()
    x = torch.rand(batch, *shape, device=device)
    cuda = torch.device(device).type == "cuda"
    times, begun = list[float](), time.perf_counter()
    with torch.inference_mode():
        for i in range(warmup + runs):
            if len(times) >= 5 and time.perf_counter() - begun > seconds:
                break
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            model(x)
            if cuda:
                torch.cuda.synchronize()
            if i >= warmup:
                times.append(time.perf_counter() - start)
    low, median, high = statistics.quantiles(times, n=4)
    return Latency(median, low, high, batch, device, torch.get_num_threads(), len(times))


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
