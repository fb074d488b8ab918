"""Devices and their memory: what can be used, how much there is, and a refusal of what can never fit."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tailorvit import units
from tailorvit.errors import TailorError

DEVICES = ("cpu", "cuda", "mps", "xpu")
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 2 and 1


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
    """The precision ``auto`` means: 16 bits on a CUDA device, bf16 where the card itself has it; fp32 elsewhere."""
    import torch

    if torch.device(device).type != "cuda":
        return "fp32"
    with torch.cuda.device(device):
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


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
