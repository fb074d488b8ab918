"""gpu.py, where the time goes: device time of three training steps by kind of kernel, and how busy the device was."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from speed.bench import Bench, Row
from speed.timing import clock, draws, inputs, training, vit_space

ELEMENTWISE = "norm and elementwise"
# The first that matches a kernel's name. Inductor names its pointwise and reduction kernels after all they replace,
# attention and copies too; fused attention and fused optimisers have cutlass and elementwise in theirs; ours
# are called _forward, _queries, _keys and _tables (plain/relative_kernel.py). On a CPU the names are torch's operators.
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
STEPS = 3


def kind(name: str) -> str:
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


def grouped(kernels: Sequence[tuple[str, float]]) -> Row:
    """Shares by kind and the kernels that take most, from (name, microseconds)."""
    total = sum(t for _, t in kernels) or 1.0
    kinds: dict[str, float] = defaultdict(float)
    names: dict[str, list[float]] = defaultdict(list)
    for name, spent in kernels:
        kinds[kind(name)] += spent
        names[name].append(spent)
    most = sorted(names.items(), key=lambda item: -sum(item[1]))[:12]
    return {
        "device_ms_a_step": total / 1e3 / STEPS,
        "kernels_a_step": len(kernels) / STEPS,
        "shares": {k: v / total for k, v in sorted(kinds.items(), key=lambda item: -item[1])},
        "top": [
            {"kernel": n[:110], "kind": kind(n), "share": sum(t) / total, "calls_a_step": len(t) / STEPS}
            for n, t in most
        ],
    }


def profile(bench: Bench) -> None:
    """The path that is used: recorded and compiled; the eager one where nothing can be recorded."""
    for batch in (512, 128):
        used = "graphs" if bench.device.type == "cuda" else "eager"
        bench.measure("profile", f"training, batch {batch}", used, lambda b=batch, v=used: traced(bench, b, v))


def traced(bench: Bench, batch: int, variant: str) -> Row:
    """Profile after a warm-up on the architectures that are then run."""
    space, batch = vit_space(bench), 8 if bench.quick else batch
    model, call = bench.supernet(space, variant)
    warm, archs = draws(space, bench.quick)
    chosen = (archs * STEPS)[:STEPS]
    runner = training(bench, model, call, inputs(bench, space, batch), variant)
    step = runner.step
    clock(bench, step, [*warm[:3], *chosen])
    plain = clock(bench, step, chosen)
    on = [torch.profiler.ProfilerActivity.CPU]
    cuda = bench.device.type == "cuda"
    if cuda:
        on.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=on) as trace:
        profiled = clock(bench, step, chosen)
    runner.close()
    row: Row = {"batch": batch, "ms": 1e3 * plain / STEPS, "ms_profiled": 1e3 * profiled / STEPS}
    if not cuda:
        return row | grouped([(e.name, e.self_cpu_time_total) for e in trace.events()])
    events = [e for e in trace.events() if _is_kernel(e)]
    row |= grouped([(e.name, e.time_range.elapsed_us()) for e in events])
    covered, whole = busy([(e.time_range.start, e.time_range.end) for e in events])
    # Against the unprofiled time as well: tracing slows the host, so the first share is too low where launches limit.
    return row | {"busy_share": covered / whole, "busy_share_unprofiled": min(1.0, covered / 1e6 / plain)}


def _is_kernel(event: Any) -> bool:
    """Whether an event is work of the device: its timeline also holds spans named by the host, which cover kernels."""
    if event.device_type != torch.autograd.DeviceType.CUDA or getattr(event, "is_user_annotation", False):
        return False
    return not re.match(r"ProfilerStep|Optimizer\.|## |Torch-Compiled|CompiledFunction", event.name)
