"""Which architectures a training step uses: pure functions of (seed, step), so ranks agree and resume is exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tailorvit.arch import Arch
from tailorvit.rng import generator
from tailorvit.space import Space


class Rule(Protocol):
    """A training rule."""

    def archs_at(self, seed: int, step: int) -> tuple[Arch | None, ...]:
        """The architectures whose gradients one step sums; None is a plain network's only one."""


def draw(space: Space, rng: np.random.Generator, alike: float) -> Arch:
    """A random member; with probability ``alike`` one whose blocks are all alike.

    Drawn block by block, a member with one value everywhere hardly ever comes (3^-12 for three choices and 12 blocks),
    yet that is what slopes of a dimension compare. Such members then answer with weights that never met them.
    """
    member = space.sample(rng)
    if alike and rng.random() < alike:
        for dim in space.dims:
            if dim.scope == "block":
                member = space.with_value(member, dim.key, dim.choices[int(rng.integers(len(dim.choices)))], rng)
    return member


@dataclass(frozen=True)
class SinglePath:
    """AutoFormer and S4: one random member a step."""

    space: Space
    alike: float = 0.0

    def archs_at(self, seed: int, step: int) -> tuple[Arch, ...]:
        """One draw."""
        return (draw(self.space, generator(seed, "rule", step), self.alike),)


@dataclass(frozen=True)
class Sandwich:
    """S3: largest, smallest and two independent draws a step, on the same batch."""

    space: Space
    alike: float = 0.0
    middle: int = 2

    def archs_at(self, seed: int, step: int) -> tuple[Arch, ...]:
        """Largest first."""
        rng = generator(seed, "rule", step)
        return (
            self.space.largest(),
            self.space.smallest(),
            *(draw(self.space, rng, self.alike) for _ in range(self.middle)),
        )


@dataclass(frozen=True)
class Fixed:
    """One architecture always: a plain network."""

    arch: Arch | None = None

    def archs_at(self, seed: int, step: int) -> tuple[Arch | None, ...]:
        """The same every step."""
        return (self.arch,)


RULES: Mapping[str, Callable[..., Rule]] = {"single_path": SinglePath, "sandwich": Sandwich}
