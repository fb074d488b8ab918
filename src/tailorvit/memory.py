"""Devices and their memory: what can be used, how much there is, and a refusal of what can never fit."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from tailorvit import units
from tailorvit.errors import TailorError

DEVICES = ("cpu", "cuda", "mps", "xpu")
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 2 and 1
_CPU, BF16_WORDS = Path("/proc/cpuinfo"), {"avx512_bf16", "amx_bf16", "bf16"}  # "bf16" on ARM
TRIAL_SECONDS, GAIN = 60.0, 1.2  # of the trial; how many times as fast bf16 must be
# A layer of a small transformer and one of a convolutional network; prints the time in fp32 over the time in bf16.
_TRIAL = """
import time, torch
from torch import nn
tokens = nn.Sequential(nn.Linear(192, 768), nn.GELU(), nn.Linear(768, 192))
maps = nn.Sequential(nn.Conv2d(96, 192, 1, bias=False), nn.BatchNorm2d(192), nn.GELU(), nn.Conv2d(192, 96, 1))
inputs = torch.randn(16, 64, 192), torch.randn(16, 96, 12, 12).to(memory_format=torch.channels_last)
times = {False: [], True: []}
for _ in range(6):
    for on, kept in times.items():
        begin = time.perf_counter()
        for part, x in zip((tokens, maps), inputs):
            with torch.autocast("cpu", torch.bfloat16, enabled=on):
                loss = part(x).float().square().mean()
            assert loss.isfinite()
            loss.backward()
        kept.append(time.perf_counter() - begin)
print(min(times[False]) / min(times[True]))
"""


def usable_device(name: str) -> str:
    """The device a run uses: for ``auto`` a GPU where there is one, also Apple's; an error for one that is unusable."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        if torch.device(name).type not in DEVICES:
            raise RuntimeError(f"it can be {', '.join(DEVICES)} or auto")
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise TailorError(f"Device '{name}' cannot be used here ({reason}); try --set device=cpu.") from None
    return name


def half_precision(device: str) -> str:
    """The precision ``auto`` means: 16 bits on a CUDA device, bf16 where the card itself has it.

    On a CPU bf16 where the processor has it and a trial shows that it pays; fp32 elsewhere.
    """
    import torch

    kind = torch.device(device).type
    if kind == "cpu":
        return "bf16" if bf16_pays() else "fp32"
    if kind != "cuda":
        return "fp32"
    with torch.cuda.device(device):
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


@cache
def bf16_pays() -> bool:
    """Whether this processor multiplies in bf16, and training steps then take less time than in fp32.

    A process of its own tries it: on some virtual machines the processor's bf16 instructions end the process.
    """
    try:
        words = set(_CPU.read_text(encoding="utf-8").split())
    except OSError:  # not Linux
        return False
    if not words & BF16_WORDS:
        return False
    try:
        done = subprocess.run([sys.executable, "-c", _TRIAL], capture_output=True, timeout=TRIAL_SECONDS, check=False)
        return done.returncode == 0 and float(done.stdout) > GAIN
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return False


def device_memory(device: str = "cpu") -> int | None:
    """Bytes of memory of a GPU, or those this process may use on the host; None where nothing says."""
    if device.partition(":")[0] == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[1])
    known: list[int] = []
    with contextlib.suppress(AttributeError, ValueError, OSError):
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for place in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            known.append(int(Path(place).read_text(encoding="ascii")))
    return min(known, default=None)


def require_memory(need: int, what: str, change: str, device: str = "cpu") -> None:
    """Refuse work that takes at least ``need`` bytes where the whole memory is smaller."""
    there = device_memory(device)
    if there is not None and need > there:
        shown, have = (units.show(value, "memory") for value in (need, there))
        raise TailorError(f"{what} needs at least {shown} of memory, and {device} has {have}: {change}.")
