"""Records: what a report may know of a run, as frozen values, and careful readings of doubtful data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tailorvit.proxies.settings import TRAINED

_MOST = 10**100
Status = Literal["finished", "running", "failed", "interrupted"]


@dataclass(frozen=True)
class SpaceStep:
    """One space visited. ``t`` counts spaces; ``step`` is the step of the method, which a repair shares."""

    t: int
    dims: Mapping[str, tuple[float, ...]]
    params: float | None
    macs: float | None
    count_log10: float | None
    repair: bool
    step: int = 0

    @property
    def label(self) -> str:
        """Its name on an axis: the step, with an r for a space reached by repair."""
        return f"{self.step}r" if self.repair else str(self.step)


@dataclass(frozen=True)
class Fit:
    """S3's slope of one dimension: E-T error in percent per choice, the line through it, the shift that followed."""

    choices: tuple[float, ...]
    errors: tuple[float | None, ...]
    slope: float | None
    offset: float | None
    shift: int | None


@dataclass(frozen=True)
class Slope:
    """What one more step along a dimension is worth, in points of accuracy, with its standard error."""

    t: int
    dim: str
    z_step: float | None
    se_step: float | None
    pairs: int | None
    z: float | None = None
    se: float | None = None
    fit: Fit | None = None
    carried: float | None = None  # what slopes of earlier steps added to z


@dataclass(frozen=True)
class Direction:
    """A legal move and how well it follows the slopes."""

    gamma: str
    size: float | None
    cosine: float | None
    gain: float | None


@dataclass(frozen=True)
class Decision:
    """Where the space went, and why."""

    t: int
    gamma: str
    sentence: str
    stop: bool
    legal: tuple[Direction, ...]


@dataclass(frozen=True)
class Trial:
    """One evaluated architecture; a training-free one has a score where others have an accuracy."""

    stage: str
    accuracy: float | None
    params: float | None
    macs: float | None
    source: str
    generation: int | None
    arch: Mapping[str, Any]
    parents: tuple[Mapping[str, Any], ...] = ()
    costs: Mapping[str, float] = field(default_factory=dict)
    score: float | None = None
    proxy: str = ""

    @property
    def merit(self) -> float | None:
        """What the search went by."""
        return self.score if self.accuracy is None else self.accuracy

    def cost(self, name: str) -> float | None:
        """A cost by name."""
        return {"params": self.params, "macs": self.macs}.get(name, self.costs.get(name))


@dataclass(frozen=True)
class Epoch:
    """The figures of one epoch."""

    stage: str
    epoch: int
    loss: float | None
    accuracy: float | None
    lr: float | None
    speed: float | None
    watched: Mapping[str, float] = field(default_factory=dict)  # search_accuracy, largest, smallest


@dataclass(frozen=True)
class Event:
    """Something that happened."""

    time: str
    kind: str
    text: str


@dataclass(frozen=True)
class Facts:
    """Everything the report tells."""

    folder: str
    finished: bool
    missing: tuple[str, ...] = ()
    recipe: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    analysis: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    spaces: tuple[SpaceStep, ...] = ()
    slopes: tuple[Slope, ...] = ()
    decisions: tuple[Decision, ...] = ()
    trials: tuple[Trial, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    events: tuple[Event, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # the recipe, parsed

    @property
    def blocks(self) -> tuple[Mapping[str, Any], ...]:
        """The rows of the chosen network's blocks."""
        return tuple(map(table, rows(self.result.get("blocks"))))

    @property
    def candidates(self) -> tuple[Mapping[str, Any], ...]:
        """The candidates that were finished, the chosen one among them."""
        return tuple(map(table, rows(self.result.get("candidates"))))

    @property
    def method(self) -> str:
        """The method by name, from the result or else from the recipe; empty when neither tells."""
        name = self.result.get("method") or self.settings.get("method")
        return name if isinstance(name, str) else ""

    @property
    def given(self) -> bool:
        """Whether the network was given, so that nothing was searched."""
        return self.method in ("fixed", "finetune")

    @property
    def scale(self) -> str:
        """What slopes count in: points of accuracy, or standard deviations of a score that needs no training."""
        seek = self.settings.get("seek")
        name = seek.get("evaluator") if isinstance(seek, Mapping) else None
        free = isinstance(name, str) and name not in TRAINED and self.method in ("s4", "s3")
        return f"standard deviations of {name}" if free else "points of accuracy"

    @property
    def status(self) -> Status:
        """How the run stands, as far as a folder can tell; one killed without a word reads as running."""
        if self.finished:
            return "finished"
        last = next((e.kind for e in reversed(self.events) if e.kind in ("failed", "interrupted", "resume")), "")
        return "failed" if last == "failed" else "interrupted" if last == "interrupted" else "running"


def real(value: Any) -> float | None:
    """A finite number, or None for anything else; beyond 1e100 it is damage, and ranges would overflow."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -_MOST <= value <= _MOST else None


def whole(value: Any) -> int | None:
    """A whole number, or None."""
    number = real(value)
    return None if number is None else int(number)


def table(value: Any) -> Mapping[str, Any]:
    """A mapping, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def rows(value: Any) -> list[Any]:
    """A list, or an empty one."""
    return list(value) if isinstance(value, list | tuple) else []


def reals(value: Any) -> tuple[float, ...]:
    """The finite numbers of a list."""
    return tuple(v for item in rows(value) if (v := real(item)) is not None)


def moves(gamma: Any, keys: Sequence[str] = ()) -> str:
    """A direction in words, ``depth -1, embed +1``; a list goes by the order of the dimensions."""
    if isinstance(gamma, list | tuple):
        known = keys if len(keys) == len(gamma) else [f"dimension {i}" for i in range(1, len(gamma) + 1)]
        gamma = dict(zip(known, gamma, strict=True))
    told = table(gamma)
    order = [*(k for k in keys if k in told), *(k for k in told if k not in keys)]
    steps = [f"{k} {step:+d}" for k in order if (step := whole(told[k]))]
    return ", ".join(steps) or "no move"
