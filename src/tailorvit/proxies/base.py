"""What a proxy is: one record a file, the task it is given, and the scores that come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.proxies.norms import WeightNorms

Reading = Literal["fixed", "paper", "official"]
READINGS: tuple[Reading, ...] = ("fixed", "paper", "official")


@dataclass(frozen=True)
class ProxySettings:
    """Which scores to compute, and how."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    names: tuple[str, ...] = ("dss",)
    reading: Reading = "fixed"  # of dss: our repair, the paper's words, or what the released code does
    inits: int = 1  # initialisations to average over; 3 to 5 for ranking studies
    batch: int | None = None  # images at a time; None: what suits the proxy
    image_size: int | None = None  # pixels a side; None: the space's own
    noise: bool = False  # snip and grasp: noise and random labels where no images are given

    def __post_init__(self) -> None:
        if not self.names:
            raise TailorError("Name at least one proxy, for example dss.")
        if self.reading not in READINGS:
            raise TailorError(f"The reading of dss is '{self.reading}'; it must be one of {', '.join(READINGS)}.")
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
    """One untrained network to score. A proxy leaves it as it was: weights, buffers, grads, mode and random state."""

    arch: Arch
    family: str
    frame: Any  # the family's shared settings
    params: int
    macs: int
    network: Callable[[], nn.Module]  # the plain network; made when a proxy first asks for it
    seed: int  # of this initialisation; all the proxy's own draws come from it
    reading: Reading = "fixed"
    batch: int = 1
    labelled: Labelled | None = None  # real images, where the caller has some
    norms: WeightNorms = field(default_factory=WeightNorms)


Measure = Callable[[Task], dict[str, float]]  # "score" and its parts
Together = Callable[[Sequence[Mapping[str, float]]], list[float]]


@dataclass(frozen=True)
class Proxy:
    """The entry record of a proxy."""

    name: str
    summary: str
    paper: str
    higher: bool  # whether larger is better
    cost: Literal["counted", "forward", "backward"]  # what it needs of the network
    needs: Literal["nothing", "ones", "noise", "images"]  # its input
    measure: Measure
    batch: int = 1  # images at a time unless the settings say otherwise
    together: Together | None = None  # scores from the parts of a whole candidate set, where one alone says nothing


class Refused(TailorError):
    """A network this proxy says nothing about: one sentence, kept with the architecture."""


@dataclass(frozen=True)
class Scored:
    """One architecture and what the proxies say; a score is None where it is not finite or was refused."""

    arch: Arch
    params: int
    macs: int
    scores: Mapping[str, float | None] = field(hash=False)
    parts: Mapping[str, Mapping[str, float]] = field(hash=False)
    problems: Mapping[str, str] = field(hash=False)  # per proxy without a score, a sentence

    def rank_value(self, name: str) -> float:
        """The score turned so that larger is better; what has none comes last."""
        from tailorvit.proxies import proxy

        score = self.scores[name]
        if score is None:
            return float("-inf")
        return score if proxy(name).higher else -score

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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Scored:
        """Read :meth:`to_dict`'s form."""
        return cls(**{**data, "arch": Arch.from_dict(data["arch"])})
