"""Which architectures a training step uses: pure functions of (seed, step), so that resuming is exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tailorvit.arch import Arch
from tailorvit.rng import generator
from tailorvit.space import Space
from tailorvit.train.settings import TrainSettings


class Rule(Protocol):
    """A training rule."""

    def archs_at(self, seed: int, step: int) -> tuple[Arch | None, ...]:
        """The architectures whose gradients one step sums; None stands for a plain network."""


@dataclass(frozen=True)
class SinglePath:
    """AutoFormer and S4: one random architecture a step; with more paths one for each of as many parts of a batch."""

    space: Space
    paths: int = 1

    def archs_at(self, seed: int, step: int) -> tuple[Arch, ...]:
        """One random architecture for each path."""
        rng = generator(seed, "rule", step)
        return tuple(self.space.sample(rng) for _ in range(self.paths))


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


def paths_of_rule(rule: Rule) -> int:
    """Into how many parts a batch is cut, each for an architecture of its own; 1: every architecture sees all of it."""
    return rule.paths if isinstance(rule, SinglePath) else 1


def rule_for(settings: TrainSettings, space: Space) -> Rule:
    """The rule that the settings of a supernet's training ask for."""
    return SinglePath(space, settings.paths) if settings.rule == "single_path" else RULES[settings.rule](space)
