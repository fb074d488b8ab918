"""The runtime that latency is measured in, and what a recipe's table [limits] says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from typing import Any

import torch

from tailorvit.errors import TailorError, unknown

AUTO, TORCH, ONNX = "auto", "torch", "onnxruntime"
RUNTIMES = (AUTO, TORCH, ONNX)
NEEDS = ("onnx", "onnxscript", "onnxruntime")  # packages of the extra "export"
CPU_PROVIDER, GPU_PROVIDER = "CPUExecutionProvider", "CUDAExecutionProvider"
MOST_THREADS = 1024


@dataclass(frozen=True)
class Runtime:
    """What runs a network while it is timed."""

    name: str = TORCH
    provider: str = ""  # of onnxruntime
    threads: int = 0  # on a CPU; 0: as many as torch has

    @property
    def threads_used(self) -> int:
        """A number also where torch decides."""
        return self.threads or torch.get_num_threads()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the threads as they are now."""
        return {"runtime": self.name, "provider": self.provider or None, "threads": self.threads_used}

    def describe(self) -> str:
        """In words: ``onnxruntime (CPUExecutionProvider, 2 threads)``."""
        count = self.threads_used
        provider = f"{self.provider}, " if self.provider else ""
        return f"{self.name} ({provider}{count} thread{'' if count == 1 else 's'})"


@dataclass(frozen=True)
class LatencySettings:
    """The keys of [limits] that are no bounds: how latency is known."""

    runtime: str = AUTO
    provider: str = AUTO  # of onnxruntime
    threads: int = 0  # 0: the run's
    table: str = ""  # table.json of a latency kit: search for the host it was measured on

    def __post_init__(self) -> None:
        if self.runtime not in RUNTIMES:
            raise unknown("runtime", self.runtime, RUNTIMES)
        if not 0 <= self.threads <= MOST_THREADS:
            raise TailorError(f"limits.threads must be 0 (the run's) to {MOST_THREADS}, not {self.threads}.")
        if self.runtime == TORCH and self.provider not in (AUTO, ""):
            raise TailorError(f"limits.provider '{self.provider}' is one of onnxruntime, and limits.runtime is torch.")


MEASURING = tuple(f.name for f in fields(LatencySettings))


def bounds_of(limits: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds among the keys of [limits]."""
    return {k: v for k, v in limits.items() if k not in MEASURING}


def latency_settings(limits: Mapping[str, Any]) -> LatencySettings:
    """The other keys, checked."""
    given = {k: v for k, v in limits.items() if k in MEASURING}
    threads = given.get("threads", 0)
    if isinstance(threads, bool) or not isinstance(threads, int | float) or threads != int(threads):
        raise TailorError(f"limits.threads must be a whole number, not '{threads}'.")
    for key in ("runtime", "provider", "table"):
        if not isinstance(given.get(key, ""), str):
            raise TailorError(f"limits.{key} must be text, not {given[key]}.")
    return LatencySettings(**{**given, "threads": int(threads)})


def lacking() -> list[str]:
    """The packages that measuring in onnxruntime needs and this machine does not have."""
    return [name for name in NEEDS if find_spec(name) is None]


def chosen_runtime(settings: LatencySettings, device: str, threads: int = 0) -> Runtime:
    """The runtime that the settings mean on this machine; ``threads`` are the run's.

    ``auto`` is onnxruntime on a CPU, where networks mostly end there, and torch elsewhere: nobody has yet compared the
    two on a GPU here.
    """
    name, count = settings.runtime, settings.threads or threads
    on_cpu = torch.device(device).type == "cpu"
    if name == AUTO:
        asked = settings.provider != AUTO
        name = ONNX if asked or (on_cpu and not lacking()) else TORCH
    if name == TORCH:
        return Runtime(TORCH, "", count)
    if missing := lacking():
        raise TailorError(
            f"Measuring latency in onnxruntime needs {', '.join(missing)}: pip install 'tailorvit[export]', or set "
            "limits.runtime to torch."
        )
    import onnxruntime

    there = onnxruntime.get_available_providers()
    provider = (CPU_PROVIDER if on_cpu else GPU_PROVIDER) if settings.provider == AUTO else settings.provider
    if provider not in there:
        raise TailorError(f"onnxruntime has no provider '{provider}' here; it has {', '.join(there)}.")
    return Runtime(ONNX, provider, count)


def settled(settings: LatencySettings, runtime: Runtime) -> dict[str, Any]:
    """The keys of [limits] as a run stores them: what ``auto`` chose is written down."""
    found = {**asdict(settings), "runtime": runtime.name, "provider": runtime.provider or AUTO}
    return {k: v for k, v in found.items() if v != getattr(LatencySettings, k)}
