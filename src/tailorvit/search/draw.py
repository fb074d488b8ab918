"""Random members that keep the limits: bounded, without repeats, and a clear error where there are none."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from tailorvit.arch import Arch
from tailorvit.errors import InfeasibleError
from tailorvit.space import Space

Legal = Callable[[Arch], bool]
TRIES = 1000  # draws per architecture wanted


def draw(space: Space, legal: Legal, rng: np.random.Generator, n: int, seen: Collection[Arch]) -> list[Arch]:
    """Up to ``n`` different legal members outside ``seen``; fewer where a thousand draws for each find no more."""
    found: dict[Arch, None] = {}
    refused: set[Arch] = set()
    everything = space.count()
    for _ in range(TRIES * n):
        # In a small space every member is soon found, seen or refused: stop there instead of using up the draws.
        if len(found) == n or len(found) + len(refused) + len(seen) >= everything:
            break
        arch = space.sample(rng)
        if arch in found or arch in refused or arch in seen:
            continue
        if legal(arch):
            found[arch] = None
        else:
            refused.add(arch)
    return list(found)


def first_draw(space: Space, legal: Legal, rng: np.random.Generator, n: int) -> list[Arch]:
    """As :func:`draw`, for the start of a search: an error when no legal member is found at all."""
    # A tight limit may leave only the ends of the space, which sampling never meets.
    found = draw(space, legal, rng, n, ()) or [a for a in (*space.ends(False), *space.ends()) if legal(a)][:n]
    if not found:
        tries = min(TRIES * n, space.count())
        raise InfeasibleError(f"None of {tries} architectures drawn from the space keeps the limits.")
    return found
