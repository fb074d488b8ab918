"""S4: move the space along the accuracy gradient to a neighbour that stays under the size limit, a few times.

Each step trains (or is given) an evaluator for the space, estimates one slope per dimension, lists the legal
neighbours, and takes the one whose direction has the largest cosine with the slopes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tailorvit import units
from tailorvit.costs.meter import Meter
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.seek.directions import TIE, Floats, Ints, agreement, best, cosines
from tailorvit.seek.moves import Move, SizedBy, movable, moves, next_stride, over, size_metric, size_of, too_small
from tailorvit.seek.plane import estimate_plane
from tailorvit.seek.slopes import POINTS, Accuracies, Scale, Slope, estimate
from tailorvit.seek.survey import Survey
from tailorvit.space import Space

MAX_REPAIRS = 50
MAX_STRIDE = 8  # steps of one move: depth 4 to 12 in one, which is as far as a slope of three choices can tell


@dataclass(frozen=True)
class S4Settings:
    """The choices the paper leaves open, with recommended defaults."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    iterations: int = 3
    pairs: int = 40
    adaptive: bool = False  # stop drawing pairs once the choice is clear
    confidence: float = 0.9  # how often redrawn slopes must agree for a choice to be clear
    slope_units: Literal["step", "raw", "range"] = "step"
    blocks: Literal["all", "one"] = "all"
    on_violation: Literal["repair", "error", "ignore"] = "repair"
    repair: Literal["size", "slope"] = "size"
    nonpositive: Literal["drop", "strict"] = "drop"
    stop_at: float = 0.0  # stop when the best cosine is not above this; the paper's literal rule is below zero only
    revisit: Literal["stop", "next"] = "next"
    warm_start: bool = False  # the next supernet inherits overlapping weights and trains shorter
    warm_share: float = 0.5  # share of the epochs a warm-started supernet trains
    dims: tuple[str, ...] = ()  # the dimensions that move; none named: all
    stride: Literal["single", "adaptive"] = "single"  # adaptive: twice as far while the direction repeats
    sized_by: SizedBy = "largest"  # the member that must stay under the limit; "middle" leaves members on both sides
    significance: float = 0.0  # a slope within this many standard errors of zero counts as none
    per_size: bool = False  # slopes of what accuracy is beyond the line over the logarithm of the size
    momentum: float = (
        0.0  # share of the slopes of the steps before that stays: supernets err more than their pairs tell
    )
    design: Literal["pairs", "plane", "survey"] = "pairs"  # who is asked for slopes: see seek/plane.py, seek/survey.py
    survey: int = 24  # members of a survey
    reach: int = 3  # steps beyond both ends of the space that a survey goes
    anchors: int = 0  # members trained by themselves at the first step, to correct the slopes of supernets
    anchor_share: float = 0.5  # share of final.train.epochs an anchor trains

    def __post_init__(self) -> None:
        for name, low, high in (
            ("iterations", 0, 100),
            ("pairs", 2, 10_000),
            ("confidence", 0.5, 1),
            ("warm_share", 0, 1),
            ("significance", 0, 100),
            ("momentum", 0, 0.95),
            ("survey", 6, 10_000),
            ("reach", 1, 100),
            ("anchors", 0, 1000),
            ("anchor_share", 0, 10),
        ):
            if not low <= getattr(self, name) <= high:
                raise TailorError(f"s4.{name} must lie between {low} and {high}, not {getattr(self, name)}.")
        if self.design != "pairs" and self.blocks == "one":
            raise TailorError(
                f"s4.design = '{self.design}' compares members whose blocks are alike: s4.blocks must be 'all'."
            )


@dataclass(frozen=True)
class Decision:
    """What one step decided, from which table, in one sentence."""

    t: int
    kind: Literal["move", "stop", "repair"]
    gamma: dict[str, int]
    reason: str
    sentence: str
    slopes: tuple[Slope, ...]
    legal: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the slopes are stored by themselves."""
        return {
            "t": self.t,
            "kind": self.kind,
            "stop": self.kind == "stop",
            "gamma": self.gamma,
            "reason": self.reason,
            "sentence": self.sentence,
            "legal": list(self.legal),
        }


def scaled(slopes: Sequence[Slope], space: Space, how: Literal["step", "raw", "range"]) -> tuple[Floats, Floats]:
    """Slopes and their errors in the chosen unit: per space step, per unit, or over the whole range."""
    factor = {
        "raw": [1.0] * len(slopes),
        "step": [float(s.shift) for s in slopes],
        "range": [float(space[s.dim].high) - float(space[s.dim].low) for s in slopes],
    }[how]
    z, error = np.array([s.z for s in slopes]), np.array([s.se for s in slopes])
    return z * factor, error * factor


def judged(slopes: Sequence[Slope], significance: float) -> list[Slope]:
    """The slopes with those that may be noise at zero."""
    return [replace(s, z=0.0) if abs(s.z) <= significance * s.se else s for s in slopes] if significance else [*slopes]


def blended(slopes: Sequence[Slope], before: Sequence[Slope] | None, share: float) -> list[Slope]:
    """The slopes with a share of those of the steps before; errors as of independent supernets."""
    if before is None or not share:
        return [*slopes]
    found = []
    for now, old in zip(slopes, before, strict=True):
        z = (1 - share) * now.z + share * old.z
        found.append(replace(now, z=z, se=math.hypot((1 - share) * now.se, share * old.se), carried=z - now.z))
    return found


def rank(options: Sequence[Move], slopes: Sequence[Slope], space: Space, how: Any) -> tuple[list[int], Floats, Floats]:
    """(order from best to worst, cosines, predicted gains in points) of the options."""
    directions: Ints = np.array([m.gamma for m in options], dtype=np.int64).reshape(len(options), len(slopes))
    gains: Floats = directions @ np.array([s.z_step for s in slopes])
    z, _ = scaled(slopes, space, how)
    return best(directions, z, gains, [m.size for m in options]), cosines(directions, z), gains


def _goal(scale: Scale) -> str:
    return "accuracy" if scale == POINTS else "scores"


def _words(space: Space, move: Move) -> str:
    return space.difference(move.space)


def decide(
    space: Space,
    slopes: Sequence[Slope],
    options: Sequence[Move],
    settings: S4Settings,
    t: int,
    visited: set[Space],
    metric: str,
    scale: Scale = POINTS,
) -> tuple[Decision, Move | None]:
    """Choose among the legal neighbours, or stop, and say why."""
    clear = judged(slopes, settings.significance)
    z, _ = scaled(clear, space, settings.slope_units)
    order, cos, gains = rank(options, clear, space, settings.slope_units)
    _, raw, _ = rank(options, clear, space, "raw")
    _, per_step, _ = rank(options, clear, space, "step")
    table = tuple(
        {
            "gamma": list(options[i].gamma),
            "size": options[i].size,
            "cosine": float(cos[i]),
            "cos_raw": float(raw[i]),
            "cos_step": float(per_step[i]),
            "gain": float(gains[i]),
        }
        for i in order
    )

    def stop(reason: str, sentence: str) -> tuple[Decision, None]:
        return Decision(t, "stop", {}, reason, sentence, tuple(slopes), table), None

    if not options:
        return stop("no legal neighbour", f"Step {t}: the space stays, since no neighbouring space fits the limit.")
    if float(np.linalg.norm(z)) < 1e-12:
        return stop("no evidence", f"Step {t}: the space stays, since no dimension shows any effect on {_goal(scale)}.")
    for i in order:
        if cos[i] <= settings.stop_at + TIE:  # rounding must not decide
            return stop(
                "no promising neighbour",
                f"Step {t}: the space stays; of {len(options)} legal neighbours the best new one has cosine "
                f"{cos[i]:.2f} with the slopes, so none promises higher {_goal(scale)}.",
            )
        move = options[i]
        if move.space in visited:
            if settings.revisit == "stop":
                return stop("visited before", f"Step {t}: the best neighbour was visited before, so the space stays.")
            continue
        sentence = (
            f"Step {t}: moved {_words(space, move)}; of {len(options)} legal neighbours this one has the largest "
            f"cosine {cos[i]:.2f} with the slopes, a predicted gain of {gains[i]:+.2f} {scale.unit}, and its "
            f"{settings.sized_by} member has {metric} {units.show(move.size, metric)}."
        )
        gamma = dict(zip(space.keys, move.gamma, strict=True))
        return Decision(t, "move", gamma, "largest cosine", sentence, tuple(slopes), table), move
    return stop("visited before", f"Step {t}: every promising neighbour was visited before, so the space stays.")


def options_at(space: Space, meter: Meter, settings: S4Settings, legal: bool = True, stride: int = 1) -> list[Move]:
    """The neighbours of a space as the settings ask for them."""
    return moves(space, meter, settings.nonpositive, legal, settings.dims, settings.sized_by, stride)


def repair_move(
    space: Space, meter: Meter, settings: S4Settings, slopes: Sequence[Slope] | None, metric: str | None = None
) -> Move:
    """One move of a space whose largest member breaks a limit: into the legal set if possible, else towards it.

    ``metric`` is the cost that breaks it; the first with an upper limit where none is named.
    """
    options, blind = options_at(space, meter, settings), slopes is None or not any(s.z for s in slopes)
    if not options:
        metric = metric or size_metric(meter)
        here = size_of(space, meter, metric, settings.sized_by)
        every = options_at(space, meter, settings, False)
        options = [replace(m, size=size_of(m.space, meter, metric, settings.sized_by)) for m in every]
        options = [m for m in options if m.size < here]
        if not options:
            raise InfeasibleError(
                f"The space cannot shrink any further and its {settings.sized_by} member still breaks "
                f"{meter.limits.describe()}."
            )
        if blind:
            return min(options, key=lambda m: (m.size, m.gamma))
    if slopes is None or blind:
        return max(options, key=lambda m: (m.size, m.gamma))  # keep as much capacity as possible
    return options[rank(options, slopes, space, settings.slope_units)[0][0]]


Correct = Callable[[Space, int, list[Slope]], list[Slope]]


class Book:
    """Where a seek writes its steps; the run folder's book stores them, this one forgets."""

    def space(self, t: int, space: Space, repaired: bool) -> None:
        """A space was reached."""

    def decided(self, decision: Decision) -> None:
        """A decision was made."""


def seek(
    space: Space,
    meter: Meter,
    evaluator: Callable[[Space, int], Accuracies],
    settings: S4Settings,
    seed: int,
    book: Book | None = None,
    scale: Scale = POINTS,
    correct: Correct | None = None,
) -> tuple[Space, int, list[Decision]]:
    """Run S4; returns the last space, its step number, and every decision. ``evaluator(space, t)`` gives accuracies.

    Repairs come before step 0 (by size) or use step slopes (by slope); they do not count as iterations. ``correct``
    may mend the slopes of a space by what it knows better than the evaluator.
    """
    walk = _Walk(space, meter, evaluator, settings, seed, book or Book(), scale, correct)
    walk.repair()
    walk.move()
    return walk.space, walk.t, walk.decisions


class _Walk:
    """One run of S4: where the space is, where it was, what was decided, what is known of slopes."""

    def __init__(
        self,
        space: Space,
        meter: Meter,
        evaluator: Callable[[Space, int], Accuracies],
        settings: S4Settings,
        seed: int,
        book: Book,
        scale: Scale,
        correct: Correct | None,
    ) -> None:
        self.meter, self.evaluator, self.settings, self.seed = meter, evaluator, settings, seed
        self.book, self.scale, self.correct = book, scale, correct
        self.decisions, self.visited = list[Decision](), set[Space]()
        self.metric, self.stride = size_metric(meter), 1
        self.known: list[Slope] | None = None  # slopes of the steps before
        self.survey = Survey(meter, settings.survey, settings.reach, seed)
        self._arrive(space, 0)

    def _arrive(self, space: Space, t: int, repaired: bool = False) -> None:
        self.space, self.t = space, t
        self.visited.add(space)
        self.book.space(t, space, repaired)

    def _note(self, decision: Decision) -> None:
        self.decisions.append(decision)
        self.book.decided(decision)

    # -- slopes -----------------------------------------------------------------------------------------------------

    def _mended(self, found: Sequence[Slope]) -> list[Slope]:
        """Slopes corrected, and with a share of those before."""
        right = found if self.correct is None else self.correct(self.space, self.t, [*found])
        return blended(right, self.known, self.settings.momentum)

    def _enough(self, found: Sequence[Slope]) -> bool:
        slopes = judged(self._mended(found), self.settings.significance)
        return _clear(self.space, slopes, self.meter, self.settings, self.stride)

    def slopes(self) -> list[Slope]:
        """The slopes of the space where it is; the next ones take a share of them."""
        space, t, settings, metric = self.space, self.t, self.settings, self.metric
        accuracies, enough = self.evaluator(space, t), self._enough if settings.adaptive else None
        keys = movable(space, settings.dims)
        # Where the space has yet to grow, what size gives is part of what counts.
        beyond = settings.per_size and not too_small(space, self.meter, settings.sized_by)
        size = (lambda a: self.meter.cost(metric, a)) if beyond else None  # type: ignore[arg-type]
        if settings.design == "survey":
            found = self.survey.slopes(space, t, accuracies, keys, size)
        elif settings.design == "plane":
            found = estimate_plane(space, accuracies, settings.pairs, self.seed, t, enough, keys, size)
        else:
            found = estimate(
                space, accuracies, settings.pairs, self.seed, t, settings.blocks, enough, keys=keys, size=size
            )
        self.known = self._mended(found)
        return self.known

    # -- steps ------------------------------------------------------------------------------------------------------

    def repair(self) -> None:
        """Bring a first space over a limit under it."""
        meter, settings, by = self.meter, self.settings, self.settings.sized_by
        for n in range(1, MAX_REPAIRS + 2):
            broken = None if settings.on_violation == "ignore" else over(self.space, meter, by)
            if broken is None:
                return
            top = units.show(size_of(self.space, meter, broken, by), broken)
            if settings.on_violation == "error":
                raise InfeasibleError(
                    f"The first space's {by} member has {broken} {top}, over {meter.limits.describe()}."
                )
            if n > MAX_REPAIRS:
                raise InfeasibleError(
                    f"{MAX_REPAIRS} repair moves did not bring the space under {meter.limits.describe()}."
                )
            found = self.slopes() if settings.repair == "slope" else None
            clear = None if found is None else judged(found, settings.significance)
            move = repair_move(self.space, meter, settings, clear, broken)
            gamma = dict(zip(self.space.keys, move.gamma, strict=True))
            left = units.show(size_of(move.space, meter, broken, by), broken)
            sentence = (
                f"Repair {n}: the {by} member has {broken} {top}, over the limit; "
                f"moved {_words(self.space, move)}, so that it has {left}."
            )
            at, later = (-n, self.t) if found is None else (self.t, self.t + 1)
            self._note(Decision(at, "repair", gamma, "over the limit", sentence, tuple(found or ()), ()))
            self._arrive(move.space, later, True)

    def move(self) -> None:
        """Go where the slopes point, a few times or until nothing is promising."""
        settings, before = self.settings, None
        for _ in range(settings.iterations):
            slopes = self.slopes()
            while True:
                options = options_at(self.space, self.meter, settings, stride=self.stride)
                decision, chosen = decide(
                    self.space, slopes, options, settings, self.t, self.visited, self.metric, self.scale
                )
                if chosen is not None or self.stride == 1:
                    break
                self.stride //= 2  # the same slopes may promise something nearer
            self._note(decision)
            if chosen is None:
                return
            if settings.stride == "adaptive" and before is not None:
                self.stride = next_stride(self.stride, before, chosen.gamma, MAX_STRIDE)
            before = chosen.gamma
            self._arrive(chosen.space, self.t + 1)


def _clear(space: Space, slopes: Sequence[Slope], meter: Meter, settings: S4Settings, stride: int) -> bool:
    """Whether redrawing the slopes within their errors would nearly always pick the same neighbour."""
    options = options_at(space, meter, settings, stride=stride)
    if not options:
        return True
    z, error = scaled(slopes, space, settings.slope_units)
    order, _, _ = rank(options, slopes, space, settings.slope_units)
    directions: Ints = np.array([m.gamma for m in options], dtype=np.int64)
    return agreement(directions, z, error, order[0]) >= settings.confidence
