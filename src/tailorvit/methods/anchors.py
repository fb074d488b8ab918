"""Anchors: a few members of S4's first space trained by themselves, to correct what its supernet says of the others.

A short supernet flatters members that learn quickly, shallow ones above all (docs/log.md, 6). An anchor's gap is its
own accuracy less the inherited one; the slope of the gaps over a dimension is the supernet's bias there, and is added
to S4's slope. Anchors stand at the corners of the space, half of them at the upper end of each dimension, so that few
of them tell all dimensions apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.methods.session import Session, Supernets
from tailorvit.proxies.settings import SUPERNET
from tailorvit.rng import generator
from tailorvit.search import Candidate
from tailorvit.seek.directions import Floats
from tailorvit.seek.moves import movable
from tailorvit.seek.s4 import Correct
from tailorvit.seek.slopes import Slope
from tailorvit.space import Space
from tailorvit.train import accuracy
from tailorvit.train.loop import shortened

DESIGNS = 300  # random designs tried for the one that tells dimensions apart best
RIDGE = 1.0  # in anchors: with eight of them a bias counts eight ninths of what it seems, with two two thirds


def design(count: int, dims: int, seed: int = 0) -> Floats:
    """Corners as rows of -1 and 1, those of random ones with the largest determinant (D-optimal), none twice if so."""
    rng, most, found = generator(seed, "anchors"), -math.inf, np.ones((count, dims))
    for _ in range(DESIGNS):
        x = rng.choice([-1.0, 1.0], size=(count, dims))
        with_offset = np.hstack([np.ones((count, 1)), x])
        worth = float(np.linalg.slogdet(with_offset.T @ with_offset + 1e-3 * np.eye(dims + 1))[1])
        if worth > most:
            most, found = worth, x
    return found


def corner(space: Space, keys: Sequence[str], signs: Sequence[float]) -> Arch:
    """The member at a corner: the lowest or highest choice of each dimension named, the middle one of the others."""
    arch, rng = space.largest(), generator(0, "corner")
    for dim in space.dims:
        middle = dim.choices[(len(dim.choices) - 1) // 2]
        value = middle if dim.key not in keys else dim.high if signs[list(keys).index(dim.key)] > 0 else dim.low
        arch = space.with_value(arch, dim.key, value, rng)
    return arch


def biases(signs: Floats, gaps: Floats) -> tuple[Floats, Floats]:
    """(half the gap between both ends, its standard error) per dimension, by ridge regression on the corners."""
    x, y = signs - signs.mean(axis=0), gaps - gaps.mean()
    inverse = np.linalg.inv(x.T @ x + RIDGE * np.eye(x.shape[1]))
    found: Floats = inverse @ x.T @ y
    left = y - x @ found
    freedom = max(1.0, len(y) - 1 - float(np.trace(x @ inverse @ x.T)))
    errors: Floats = np.sqrt(np.diag(inverse @ x.T @ x @ inverse) * float(left @ left) / freedom)
    return found, errors


def anchored(session: Session, nets: Supernets) -> Correct:
    """The correction of S4's slopes; anchors are trained when the first slopes are there, and serve all steps."""
    settings = session.config.s4
    judge = session.config.seek.evaluator
    if judge != SUPERNET:
        raise TailorError(f"s4.anchors correct the slopes of supernets; leave them at 0 where '{judge}' judges.")
    known: dict[str, tuple[float, float]] = {}  # points per unit of the dimension, and the error

    def measure(space: Space, t: int) -> None:
        keys = [k for k in movable(space, settings.dims) if len(space[k].choices) > 1]
        signs = design(settings.anchors, len(keys), session.seed)
        archs = [corner(space, keys, row) for row in signs]
        inherited = [trial.accuracy for trial in nets.at(space, t).score("anchors", [Candidate(a) for a in archs])]
        own = []
        for i, arch in enumerate(archs):
            train = shortened(session.config.final.train, settings.anchor_share)
            model = session.plain(arch, train, f"anchor-{archs.index(arch) if arch in archs[:i] else i}")
            own.append(accuracy(model, session.search_batches(), session.device))
        gaps: Floats = np.array(own) - np.array(inherited)
        found, errors = biases(signs, gaps)
        for k, key in enumerate(keys):
            reach = (float(space[key].high) - float(space[key].low)) / 2
            known[key] = (float(found[k]) / reach, float(errors[k]) / reach)
        steps = ", ".join(f"{key} {known[key][0] * float(space[key].shift):+.2f}" for key in keys)
        session.tell_once(
            "anchors",
            f"{len(archs)} anchors: their own accuracy less the inherited one grows by {steps} points a step; "
            "slopes are corrected by that.",
            archs=[a.to_dict() for a in archs],
            inherited=inherited,
            own=own,
        )

    def correct(space: Space, t: int, slopes: list[Slope]) -> list[Slope]:
        if not known:
            measure(space, t)
        return [
            replace(s, z=s.z + known[s.dim][0], se=math.hypot(s.se, known[s.dim][1]), added=s.added + known[s.dim][0])
            if s.dim in known and s.pairs
            else s
            for s in slopes
        ]

    return correct
