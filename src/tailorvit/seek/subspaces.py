"""Subspaces of a space in which one dimension has one value, as lists of members to score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from tailorvit.arch import Arch, Value
from tailorvit.rng import generator
from tailorvit.space import Dim, Space

TRIES = 50  # draws per member wanted, before a choice counts as having no more within the limits
Same = Callable[[Space, Dim], Sequence[Value]]  # for every choice of a dimension the choice it really is
Legal = Callable[[Arch], bool]
Groups = dict[str, dict[Value, list[Arch]]]  # members per dimension and choice


def as_they_are(_space: Space, dim: Dim) -> Sequence[Value]:
    """Every choice is itself; a family that clips windows to its map says otherwise."""
    return dim.choices


def pinned(
    space: Space, dim: Dim, choices: Sequence[Value], n: int, rng: np.random.Generator, legal: Legal
) -> dict[Value, list[Arch]]:
    """``n`` different members per choice, all blocks of a block dimension at it; fewer where there are no more.

    One random member is set to every choice in turn, so that choices are compared on the same rest; a depth cuts one
    common list of blocks. Setting a tied dimension would move its partners, so there each choice draws by itself.
    """
    found: dict[Value, dict[Arch, None]] = {v: {} for v in choices}
    inside = {v: space.pin(dim.key, v) for v in choices}
    wanted = {v: min(n, inside[v].count()) for v in choices}
    tied = any(dim.key in pair for pair in space.multiples)
    for _ in range(TRIES * n):
        if all(len(found[v]) >= wanted[v] for v in choices):
            break
        base = space.sample(rng) if tied else space.with_value(space.sample(rng), dim.key, dim.high, rng)
        for v in choices:
            arch = inside[v].sample(rng) if tied else space.with_value(base, dim.key, v, rng)
            if len(found[v]) < wanted[v] and arch not in found[v] and legal(arch):
                found[v][arch] = None
    return {v: list(archs) for v, archs in found.items()}


def majority(dim: Dim, arch: Arch) -> Value:
    """The value an architecture counts for: its most frequent one over the blocks, of several the nearest to the mean.

    The mean alone would put nearly all deep networks into the middle choice.
    """
    gene = arch[dim.key]
    if not isinstance(gene, tuple):
        return gene
    middle = fmean(gene)
    return min(sorted(set(gene)), key=lambda v: (-gene.count(v), abs(v - middle)))


def pins(space: Space, n: int, seed: int, t: int, legal: Legal, same: Same) -> Groups:
    """The pinned subspaces of every dimension with at least two different choices: the exact meaning of S3's Q."""
    groups: Groups = {}
    for i, dim in enumerate(space.dims):
        choices = list(dict.fromkeys(same(space, dim)))
        if len(choices) > 1:
            groups[dim.key] = pinned(space, dim, choices, n, generator(seed, "et", t, i), legal)
    return groups


def buckets(space: Space, n: int, seed: int, t: int, legal: Legal, same: Same) -> Groups:
    """The same ``n`` members put into the choices of every dimension: far fewer evaluations, less exact."""
    rng, members = generator(seed, "et", t), dict[Arch, None]()
    for _ in range(TRIES * n):
        if len(members) >= min(n, space.count()):
            break
        arch = space.sample(rng)
        if legal(arch):
            members[arch] = None
    groups: Groups = {}
    for dim in space.dims:
        really = dict(zip(dim.choices, same(space, dim), strict=True))
        groups[dim.key] = {v: [] for v in really.values()}
        for arch in members:
            groups[dim.key][really[majority(dim, arch)]].append(arch)
    return groups
