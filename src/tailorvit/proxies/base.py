"""What a proxy is: its record, the task it measures, the settings of the commands, and the scores that come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.errors import TailorError


@dataclass(frozen=True)
class ProxySettings:
    """How ``tailorvit score`` and ``tailorvit rank`` compute scores."""

    names: tuple[str, ...] = ("dss",)
    inits: int = 1  # initialisations to average over; 3 to 5 for ranking studies
    batch: int | None = None  # images in a batch; None: the proxy's own default
    image_size: int | None = None  # pixels a side; None: the space's own
    noise: bool = False  # proxies that need images get noise and random labels where there are no images

    def __post_init__(self) -> None:
        if not self.names:
            raise TailorError("Name at least one proxy, for example dss.")
        for name in ("inits", "batch", "image_size"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise TailorError(f"The proxy setting '{name}' must be a positive whole number, not {value}.")


class Labelled(NamedTuple):
    """A mini-batch: images (B, C, H, W) and their class numbers (B)."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Task:
    """One untrained network to score.

    A proxy leaves the network unchanged: weights, buffers, gradients, mode and random state.
    """

    arch: Arch
    family: str
    shared: Any  # the family's shared settings
    params: int
    macs: int
    network: Callable[[], nn.Module]  # the plain network; built when a proxy first asks for it
    seed: int  # of this initialisation; all the proxy's own random numbers come from it
    batch: int = 1
    labelled: Labelled | None = None  # real images, where the caller has some
    cache: dict[str, Any] = field(default_factory=dict)  # shared by all architectures of one initialisation


Measure = Callable[[Task], dict[str, float]]  # "score" and its parts
Together = Callable[[Sequence[Mapping[str, float]]], list[float]]


@dataclass(frozen=True)
class Proxy:
    """The entry record of a proxy. A proxy from outside the package is such a record."""

    name: str
    summary: str
    paper: str
    higher: bool  # whether a larger score is better
    cost: Literal["counted", "forward", "backward"]  # what it needs of the network
    needs: Literal["nothing", "ones", "noise", "images"]  # its input
    measure: Measure
    batch: int = 1  # images in a batch unless the settings say otherwise
    together: Together | None = None  # scores from the parts of all candidates, for a proxy that only ranks a set
    least_batch: int = 1  # 2 for a proxy that compares images
    experimental: bool = False


class Refused(TailorError):
    """A network for which this proxy has no meaningful score; the sentence is stored with the architecture."""


@dataclass(frozen=True)
class Scored:
    """One architecture with its scores; a score is None where it is not finite or was refused."""

    arch: Arch
    params: int
    macs: int
    scores: Mapping[str, float | None] = field(hash=False)
    parts: Mapping[str, Mapping[str, float]] = field(hash=False)
    problems: Mapping[str, str] = field(hash=False)  # one sentence for every proxy without a score

    def value(self, name: str) -> float | None:
        """The score with its sign turned so that larger is better."""
        from tailorvit.proxies import proxy

        score = self.scores[name]
        return score if score is None or proxy(name).higher else -score

    def rank_value(self, name: str) -> float:
        """As :meth:`value`, for sorting: an architecture without a score comes last."""
        value = self.value(name)
        return float("-inf") if value is None else value

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "arch": self.arch.to_dict(),
            "params": self.params,
            "macs": self.macs,
            "scores": dict(self.scores),
            "parts": {k: dict(v) for k, v in self.parts.items()},
            "problems": dict(self.problems),
        }
