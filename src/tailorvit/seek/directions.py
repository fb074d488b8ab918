"""S4's arithmetic on arrays: neighbour directions, cosines with the slopes, and which direction wins."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TINY = 1e-12
TIE = 1e-9  # cosines closer than this are equal; float error is some 1e-16


def neighbours(n: int) -> Ints:
    """All 3^n - 1 directions in {-1, 0, 1}^n except standing still, in lexicographic order."""
    every = np.array(list(itertools.product((-1, 0, 1), repeat=n)), dtype=np.int64)
    return every[np.any(every != 0, axis=1)]


def cosines(directions: Ints, slopes: Floats) -> Floats:
    """Cosine of each direction with the slopes; zero slopes give zero."""
    length = np.linalg.norm(slopes)
    if length < TINY:
        return np.zeros(len(directions))
    result: Floats = directions @ slopes / (np.linalg.norm(directions, axis=1) * length)
    return result


def best(directions: Ints, slopes: Floats, gains: Floats, sizes: Sequence[float]) -> list[int]:
    """Direction indices from best to worst: cosine, then predicted gain, then smaller size, then lexicographic."""
    cos = cosines(directions, slopes)
    # Rounding to the tie width makes near-equal cosines compare equal, so that the later rules decide.
    keys = [
        (-round(cos[i] / TIE), -round(gains[i] / TIE), sizes[i], tuple(directions[i].tolist()))
        for i in range(len(directions))
    ]
    return sorted(range(len(directions)), key=keys.__getitem__)


def unconstrained(slopes: Floats) -> tuple[int, ...]:
    """The direction with the largest cosine among all, in closed form.

    For m non-zero entries the best support is the m largest |z|, and its cosine grows with their sum over sqrt(m).
    """
    order = np.argsort(-np.abs(slopes), kind="stable")
    sums = np.cumsum(np.abs(slopes[order])) / np.sqrt(np.arange(1, len(slopes) + 1))
    take = order[: int(np.argmax(sums)) + 1]
    direction = np.zeros(len(slopes), dtype=np.int64)
    direction[take] = np.sign(slopes[take]).astype(np.int64)
    return tuple(direction.tolist())


def agreement(directions: Ints, slopes: Floats, errors: Floats, pick: int, draws: int = 400, seed: int = 0) -> float:
    """How often the pick would win again if the slopes were measured anew: slopes redrawn within their errors."""
    rng = np.random.default_rng(seed)
    again = rng.normal(slopes, errors, size=(draws, len(slopes)))
    lengths = np.linalg.norm(again, axis=1, keepdims=True)
    scores = (again / np.maximum(lengths, TINY)) @ (directions / np.linalg.norm(directions, axis=1, keepdims=True)).T
    return float(np.mean(np.argmax(scores, axis=1) == pick))
