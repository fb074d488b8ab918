"""A teacher in a training: a finished network whose outputs, and tokens if wanted, the student learns beside labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.train.optim import soft_cross_entropy
from tailorvit.train.settings import TrainSettings


class Lesson(NamedTuple):
    """What a teacher says about one batch, as constants: all architectures of a step learn the same."""

    target: Tensor  # with a temperature of 1 the labels and the teacher's outputs mixed, else the labels
    soft: Tensor | None  # the teacher's outputs at another temperature
    tokens: Tensor | None


class Told(NamedTuple):
    """What a network gives whose tokens are compared."""

    logits: Tensor
    tokens: Tensor | None


@dataclass(frozen=True, eq=False)  # networks have no single truth to compare
class Teacher:
    """A network that teaches: it gets no gradients, and no checkpoint of the student holds it."""

    network: nn.Module
    share: float = 0.5  # of its outputs in the target, the rest are the labels
    features: float = 0.0  # weight of the difference between the student's normalised tokens and its own
    temperature: float = 1.0  # of its outputs; other than 1 they are a loss of their own (Hinton et al., 2015)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise TailorError(f"A teacher's share must be between 0 and 1, not {self.share}.")
        if not (math.isfinite(self.features) and self.features >= 0):
            raise TailorError(f"The weight of a teacher's features must be at least 0, not {self.features}.")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise TailorError(f"A teacher's temperature must be above 0, not {self.temperature}.")

    def check(self, student: nn.Module, settings: TrainSettings) -> None:
        """Refuse what cannot be taught, before the first step."""
        if settings.distill:
            raise TailorError("train.distill makes the largest network the teacher: set it to false to use another.")
        for role, network in (("student", student), ("teacher", self.network)):
            if self.features and not all(hasattr(network, name) for name in ("forward_features", "forward_head")):
                raise TailorError(
                    f"The {role} {type(network).__name__} has no forward_features and forward_head, "
                    f"which a teacher's features of {self.features} need; 0 teaches by its outputs alone."
                )

    @torch.no_grad()
    def lesson(self, x: Tensor, target: Tensor) -> Lesson:
        """What it says about these images, whose labels are the target."""
        logits, tokens = told(Telling(self.network)(x) if self.features else self.network(x))
        if logits.shape != target.shape:
            raise TailorError(
                f"The teacher's outputs have the shape {tuple(logits.shape)}, "
                f"but the labels of this data have {tuple(target.shape)}."
            )
        soft = (logits.float() / self.temperature).softmax(-1)
        if self.temperature != 1:
            return Lesson(target, soft, tokens)
        return Lesson((1 - self.share) * target + self.share * soft, None, tokens)

    def loss(self, logits: Tensor, tokens: Tensor | None, lesson: Lesson) -> Tensor:
        """The student's loss, in float32."""
        loss = soft_cross_entropy(logits, lesson.target)
        if lesson.soft is not None:
            # The square keeps the gradient's size: it falls with the square of the temperature.
            taught = self.temperature**2 * soft_cross_entropy(logits.float() / self.temperature, lesson.soft)
            loss = (1 - self.share) * loss + self.share * taught
        if tokens is not None and lesson.tokens is not None:
            loss = loss + self.features * token_difference(tokens, lesson.tokens)
        return loss


def token_difference(mine: Tensor, theirs: Tensor) -> Tensor:
    """Mean squared difference of tokens (B, N, d) or of a map (B, H, W, d), relative to their mean square.

    It is 1 where mine are all zero.

    A narrower network is compared with their first channels, which are the important ones where a stream is ordered.
    """
    if mine.dim() not in (3, 4) or mine.shape[:-1] != theirs.shape[:-1] or mine.shape[-1] > theirs.shape[-1]:
        raise TailorError(
            f"The student's tokens {tuple(mine.shape)} cannot be compared with the teacher's {tuple(theirs.shape)}: "
            "both need as many images and tokens (or rows and columns), and the student no more channels."
        )
    own = theirs[..., : mine.shape[-1]].float()
    return (mine.float() - own).square().mean() / own.square().mean().clamp_min(torch.finfo(torch.float32).eps)


class Telling(nn.Module):
    """A network that tells its normalised tokens beside its logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network: Any = network

    def forward(self, x: Tensor, arch: Arch | None = None) -> Told:
        """Logits (B, classes), and tokens (B, N, d) or a map (B, H, W, d)."""
        given = () if arch is None else (arch,)
        tokens: Tensor = self.network.forward_features(x, *given)
        return Told(self.network.forward_head(tokens, *given), tokens)


def told(out: Any) -> Told:
    """Logits and tokens of what a network gave; only :class:`Telling` gives tokens."""
    return out if isinstance(out, Told) else Told(out, None)


@contextmanager
def in_evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module has the mode it had."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
