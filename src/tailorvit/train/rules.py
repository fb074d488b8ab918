"""Which architectures a training step uses: pure functions of (seed, step), so that resuming is exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tailorvit.arch import Arch
from tailorvit.rng import generator
from tailorvit.space import Space


class Rule(Protocol):
    """A training rule."""

    def archs_at(self, seed: int, step: int) -> tuple[Arch | None, ...]:
        """The architectures whose gradients one step sums; None stands for a plain network."""


@dataclass(frozen=True)
class SinglePath:
    """AutoFormer and S4: one random architecture a step."""

    space: Space

    def archs_at(self, seed: int, step: int) -> tuple[Arch, ...]:
        """One random architecture."""
        return (self.space.sample(generator(seed, "rule", step)),)


@dataclass(frozen=True)
class Sandwich:
    """S3 and BigNAS: the largest, the smallest and two random architectures a step, on the same batch."""

    space: Space
    middle: int = 2

    def archs_at(self, seed: int, step: int) -> tuple[Arch, ...]:
        """The largest first."""
        rng = generator(seed, "rule", step)
        return (self.space.largest(), self.space.smallest(), *(self.space.sample(rng) for _ in range(self.middle)))


@dataclass(frozen=True)
class Fixed:
    """The same architecture every step: a plain network."""

    arch: Arch | None = None

    def archs_at(self, seed: int, step: int) -> tuple[Arch | None, ...]:
        """The same every step."""
        return (self.arch,)


RULES: Mapping[str, Callable[..., Rule]] = {"single_path": SinglePath, "sandwich": Sandwich}
