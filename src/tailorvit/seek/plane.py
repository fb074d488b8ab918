"""Slopes of all dimensions at once: opposite members of a space, and a plane through what they score.

A pair that differs in one dimension tells nothing about the others. Members that differ in all of them, each with its
opposite, tell about every dimension at the same cost: with four dimensions the errors are half as large. That is worth
most where a figure is dear and noisy, as a member's own training is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tailorvit.arch import Arch
from tailorvit.rng import generator
from tailorvit.seek.directions import Floats
from tailorvit.seek.slopes import Accuracies, Size, Slope, per_log_size
from tailorvit.space import Dim, Space

Opposites = tuple[Arch, Arch]


def draw_opposites(space: Space, dims: Sequence[Dim], rng: np.random.Generator) -> Opposites:
    """A member whose blocks are alike with a random choice of each of these dimensions, and its mirror image.

    Not the middle choice: that is its own mirror image and tells nothing.
    """
    sides_of = {d.key: [i for i in range(len(d.choices)) if 2 * i != len(d.choices) - 1] for d in dims}
    places = {k: int(rng.choice(some)) for k, some in sides_of.items()}
    member = space.sample(rng)
    sides = []
    for mirrored in (False, True):
        arch = member
        for d in sorted(dims, key=lambda d: d.scope == "block"):  # depth first: it decides how many blocks there are
            place = len(d.choices) - 1 - places[d.key] if mirrored else places[d.key]
            arch = space.with_value(arch, d.key, d.choices[place], rng)
        sides.append(arch)
    return sides[0], sides[1]


def value_of(arch: Arch, dim: Dim) -> float:
    """The one value all blocks have."""
    return float(arch.many(dim.key)[0] if dim.scope == "block" else arch.one(dim.key))


def least_squares(rows: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Coefficients and their standard errors, infinite while the coefficients can follow every value."""
    found: Floats = np.linalg.lstsq(rows, values, rcond=None)[0].astype(np.float64)
    rest, freedom = values - rows @ found, len(values) - rows.shape[1]
    errors: Floats = np.full(rows.shape[1], math.inf)
    if freedom > 0 and np.linalg.matrix_rank(rows) == rows.shape[1]:
        errors = np.asarray(np.sqrt(float(rest @ rest) / freedom * np.diag(np.linalg.inv(rows.T @ rows))), np.float64)
    return found, errors


def fit(space: Space, dims: Sequence[Dim], drawn: Sequence[Opposites], scores: Sequence[float]) -> list[Slope]:
    """Least squares over half differences of opposites, so that what both share drops out; zero for other dimensions.

    Errors come from what the plane leaves; they are infinite while it can still follow every point.
    """
    away: Floats = np.array([[(value_of(a, d) - value_of(b, d)) / 2 for d in dims] for a, b in drawn])
    first, second = np.array(scores[::2]), np.array(scores[1::2])
    half: Floats = (first - second) / 2
    z, errors = least_squares(away, half)
    found = {}
    for i, d in enumerate(dims):
        sides = [(value_of(a, d), value_of(b, d), p, q) for (a, b), p, q in zip(drawn, first, second, strict=True)]
        seen = tuple((u, v, float(p), float(q)) for u, v, p, q in sides if u != v)
        found[d.key] = Slope(d.key, float(z[i]), float(errors[i]), d.shift, seen)
    return [found.get(d.key, Slope(d.key, 0.0, 0.0, d.shift, ())) for d in space.dims]


def estimate_plane(
    space: Space,
    accuracies: Accuracies,
    pairs: int,
    seed: int,
    step: int,
    enough: Callable[[Sequence[Slope]], bool] | None = None,
    keys: Sequence[str] | None = None,
    size: Size | None = None,
    round_size: int = 10,
) -> list[Slope]:
    """Slopes from as many members as ``pairs`` pairs a dimension would have; otherwise as ``slopes.estimate``."""
    asked = space.keys if keys is None else keys
    dims = [d for d in space.dims if len(d.choices) > 1 and d.key in asked]
    if not dims:
        return [Slope(d.key, 0.0, 0.0, d.shift, ()) for d in space.dims]
    drawn: list[Opposites] = []
    while True:
        have = len(drawn) // len(dims)
        want = min(pairs, have + round_size) if enough else pairs
        more = range(len(drawn), want * len(dims))
        drawn += [draw_opposites(space, dims, generator(seed, "plane", step, j)) for j in more]
        flat = [arch for both in drawn for arch in both]
        answers = accuracies(flat)
        rate = per_log_size(flat, answers, size) if size else 0.0
        left = [a - rate * math.log(size(arch)) for a, arch in zip(answers, flat, strict=True)] if size else answers
        slopes = fit(space, dims, drawn, left)
        if size:
            slopes = [replace(s, per_log_size=rate) if s.pairs else s for s in slopes]
        if want >= pairs or enough is None or enough(slopes):
            return slopes
