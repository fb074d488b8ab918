"""Mistakes a person can mend: one sentence that names the value and the choices."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TailorError(Exception):
    """A user's mistake. The command line prints it as one sentence and leaves with code 2."""


class InfeasibleError(TailorError):
    """No architecture of the space meets the limits."""


def unknown(kind: str, name: object, choices: Iterable[str]) -> TailorError:
    """The error for a name nobody knows: lists the known ones and points at the nearest."""
    known = sorted(choices)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return TailorError(f"Unknown {kind} '{name}'.{hint} Known: {', '.join(known)}.")


# What allocators say: torch's for CUDA and for the host, and the libraries that allocate on their own.
_NO_MEMORY = (
    "OutOfMemoryError",
    "CUDA out of memory",
    "MPS backend out of memory",
    "CUDA error: out of memory",
    "can't allocate memory",
    "not enough memory",
    "ALLOC_FAILED",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, that of the host or of a device; torch itself is not needed to tell."""
    if isinstance(error, TailorError | OSError):
        return False
    text = f"{type(error).__name__}: {error}"
    return isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)
