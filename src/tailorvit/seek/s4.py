"""S4: move a space along the accuracy gradient to a neighbouring space that stays under the size limit, a few times.

Each step estimates one slope per dimension (``slopes.py``, or ``survey.py``), lists the legal neighbours, and takes the
one whose direction has the largest cosine with the slopes. Nothing here knows a network, data or a disk: accuracies
come from a function, costs from a ``Meter``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tailorvit import units
from tailorvit.arch import Arch
from tailorvit.costs.meter import Meter
from tailorvit.errors import InfeasibleError, TailorError, unknown
from tailorvit.seek.slopes import POINTS, Accuracies, Floats, Scale, Slope, estimate
from tailorvit.seek.survey import Survey
from tailorvit.space import Space

Ints = NDArray[np.int64]
SlopeUnits = Literal["step", "raw"]
SizedBy = Literal["largest", "middle"]

MAX_DIMS = 10  # 59,048 neighbours, each counted once a step
MAX_REPAIRS = 50
CONFIDENCE = 0.9  # a choice is clear when this share of redrawn slopes picks the same neighbour
REDRAWS = 400  # of the slopes within their errors
TINY = 1e-12
TIE = 1e-9  # cosines closer than this are equal; float error is some 1e-16


@dataclass(frozen=True)
class S4Settings:
    """The choices the paper leaves open, with recommended defaults."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    iterations: int = 3
    pairs: int = 40
    adaptive: bool = False  # stop drawing pairs once the choice is clear
    slope_units: SlopeUnits = "step"  # the paper writes raw: points per unit of a dimension
    # How a first space over the limit comes under it: by the fewest steps, before any training or knowing the slopes.
    repair: Literal["steps", "slope", "size"] = "steps"  # "size", the largest legal neighbour, is for runs before 0.3
    warm_start: bool = False  # the next supernet inherits overlapping weights and trains half as long
    dims: tuple[str, ...] = ()  # the dimensions that move; all when empty
    sized_by: SizedBy = "largest"  # the architecture that must stay under the limit; "middle" leaves some on both sides
    survey: int = 0  # architectures trained by themselves to estimate the slopes; 0 compares pairs instead
    reach: int = 3  # steps beyond both ends of the space that a survey goes

    def __post_init__(self) -> None:
        bounds = {"iterations": (0, 100), "pairs": (2, 10_000), "survey": (0, 10_000), "reach": (1, 100)}
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise TailorError(f"s4.{name} must lie between {low} and {high}, not {getattr(self, name)}.")


# -- directions: arithmetic on arrays ---------------------------------------------------------------------------------


def neighbours(n: int) -> Ints:
    """All 3^n - 1 directions in {-1, 0, 1}^n except standing still, in lexicographic order."""
    every = np.array(list(itertools.product((-1, 0, 1), repeat=n)), dtype=np.int64)
    return every[np.any(every != 0, axis=1)]


def cosines(directions: Ints, slopes: Floats) -> Floats:
    """Cosine of each direction with the slopes; zero slopes give zero."""
    length = np.linalg.norm(slopes)
    if length < TINY:
        return np.zeros(len(directions))
    result: Floats = directions @ slopes / (np.linalg.norm(directions, axis=1) * length)
    return result


def best_first(directions: Ints, slopes: Floats, gains: Floats, sizes: Sequence[float]) -> list[int]:
    """Direction indices from best to worst: cosine, then predicted gain, then smaller size, then lexicographic."""
    cosine = cosines(directions, slopes)
    # Rounding to the tie width makes near-equal cosines compare equal, so that the later rules decide.
    keys = [
        (-round(cosine[i] / TIE), -round(gains[i] / TIE), sizes[i], tuple(directions[i].tolist()))
        for i in range(len(directions))
    ]
    return sorted(range(len(directions)), key=keys.__getitem__)


def unconstrained(slopes: Floats) -> tuple[int, ...]:
    """The direction with the largest cosine among all, in closed form.

    For m non-zero entries the best support is the m largest |z|, and its cosine grows with their sum over sqrt(m).
    """
    order = np.argsort(-np.abs(slopes), kind="stable")
    sums = np.cumsum(np.abs(slopes[order])) / np.sqrt(np.arange(1, len(slopes) + 1))
    support = order[: int(np.argmax(sums)) + 1]
    direction = np.zeros(len(slopes), dtype=np.int64)
    direction[support] = np.sign(slopes[support]).astype(np.int64)
    return tuple(direction.tolist())


def agreement(directions: Ints, slopes: Floats, errors: Floats, choice: int) -> float:
    """How often the same direction would win if the slopes were measured anew: slopes redrawn within their errors."""
    rng = np.random.default_rng(0)
    redrawn = rng.normal(slopes, errors, size=(REDRAWS, len(slopes)))
    lengths = np.linalg.norm(redrawn, axis=1, keepdims=True)
    unit_directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    winners = np.argmax((redrawn / np.maximum(lengths, TINY)) @ unit_directions.T, axis=1)
    return float(np.mean(winners == choice))


def scaled(slopes: Sequence[Slope], how: SlopeUnits) -> tuple[Floats, Floats]:
    """Slopes and their errors per space step, or per unit of the dimension."""
    factor = np.array([float(s.shift) if how == "step" else 1.0 for s in slopes])
    return np.array([s.z for s in slopes]) * factor, np.array([s.se for s in slopes]) * factor


# -- neighbours of a space --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """A neighbour: the direction that leads there, and the cost of the architecture that the space is sized by."""

    gamma: tuple[int, ...]
    space: Space = field(repr=False)
    size: float


def size_of(space: Space, meter: Meter, metric: str, by: SizedBy = "largest") -> float:
    """The cost of the largest architecture of a space, as in the paper, or of the middle one."""
    if by == "largest":
        return meter.most(metric, space)  # type: ignore[arg-type]
    return meter.cost(metric, space.middle())  # type: ignore[arg-type]


def broken_limit(space: Space, meter: Meter, by: SizedBy = "largest") -> str | None:
    """The first metric in which the space is not strictly under its upper limit."""
    limits = ((metric, high) for metric, _, high in meter.limits if high is not None)
    return next((metric for metric, high in limits if size_of(space, meter, metric, by) >= high), None)


def movable(space: Space, named: Sequence[str] = ()) -> tuple[str, ...]:
    """The dimensions that move: those named, or all; an error where their neighbours are too many to list."""
    for key in named:
        if key not in space.keys:
            raise unknown("dimension in s4.dims", key, space.keys)
    keys = tuple(key for key in space.keys if key in named) if named else space.keys
    if len(keys) > MAX_DIMS:
        raise TailorError(
            f"S4 compares all 3^n - 1 neighbours of a space, and this space has n = {len(keys)} dimensions. The most "
            f"is {MAX_DIMS}: name the dimensions that move in s4.dims, or use another method (s3, autoformer)."
        )
    return keys


def moves(
    space: Space, meter: Meter, legal: bool = True, dims: Sequence[str] = (), by: SizedBy = "largest"
) -> list[Move]:
    """The neighbours of a space; by default those strictly under every upper limit.

    A neighbour must also reach the lower limits, or be larger than the space as long as that is below them.
    """
    metric, found = meter.size_metric, list[Move]()
    here = {m: size_of(space, meter, m, by) for m, low, _ in meter.limits if low is not None}

    def within_limits(sizes: dict[str, float], moved: Space) -> bool:
        for m, low, high in meter.limits:  # counted costs come first, measured ones are slow
            if m not in sizes:
                sizes[m] = size_of(moved, meter, m, by)
            if (high is not None and sizes[m] >= high) or (low is not None and sizes[m] < low and sizes[m] <= here[m]):
                return False
        return True

    places = [space.keys.index(key) for key in movable(space, dims)]
    directions = np.zeros((3 ** len(places) - 1, len(space.dims)), dtype=np.int64)
    directions[:, places] = neighbours(len(places))
    for gamma in directions.tolist():
        try:
            moved = space.shift(dict(zip(space.keys, gamma, strict=True)))
            size = size_of(moved, meter, metric, by)
        except TailorError:
            continue  # a dimension would lose all its choices, or a width has no whole heads
        if not legal or within_limits({metric: size}, moved):
            found.append(Move(tuple(gamma), moved, size))
    return found


def moves_for(space: Space, meter: Meter, settings: S4Settings, legal: bool = True) -> list[Move]:
    """The neighbours of a space under the settings."""
    return moves(space, meter, legal, settings.dims, settings.sized_by)


def rank(options: Sequence[Move], slopes: Sequence[Slope], how: SlopeUnits) -> tuple[list[int], Floats, Floats]:
    """(order from best to worst, cosines, predicted gains in points) of the options."""
    directions: Ints = np.array([m.gamma for m in options], dtype=np.int64).reshape(len(options), len(slopes))
    gains: Floats = directions @ np.array([s.z_step for s in slopes])
    z, _ = scaled(slopes, how)
    return best_first(directions, z, gains, [m.size for m in options]), cosines(directions, z), gains


def is_clear(space: Space, slopes: Sequence[Slope], meter: Meter, settings: S4Settings) -> bool:
    """Whether slopes redrawn within their errors would nearly always pick the same neighbour."""
    options = moves_for(space, meter, settings)
    if not options:
        return True
    z, error = scaled(slopes, settings.slope_units)
    order, _, _ = rank(options, slopes, settings.slope_units)
    directions: Ints = np.array([m.gamma for m in options], dtype=np.int64)
    return agreement(directions, z, error, order[0]) >= CONFIDENCE


# -- decisions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decision:
    """What one step decided, the table it decided from, and one sentence for people."""

    t: int
    kind: Literal["move", "stop", "repair"]
    gamma: dict[str, int]
    reason: str
    sentence: str
    slopes: tuple[Slope, ...]
    legal: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the slopes are stored by themselves."""
        rest = {k: v for k, v in vars(self).items() if k not in ("slopes", "legal")}
        return {**rest, "stop": self.kind == "stop", "legal": list(self.legal)}


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
    goal = "accuracy" if scale == POINTS else "scores"
    order, cosine, gains = rank(options, slopes, settings.slope_units)
    _, raw, _ = rank(options, slopes, "raw")
    _, per_step, _ = rank(options, slopes, "step")
    table = tuple(
        {
            "gamma": list(options[i].gamma),
            "size": options[i].size,
            "cosine": float(cosine[i]),
            "cos_raw": float(raw[i]),
            "cos_step": float(per_step[i]),
            "gain": float(gains[i]),
        }
        for i in order
    )

    def stop(reason: str, sentence: str) -> tuple[Decision, None]:
        return Decision(t, "stop", {}, reason, f"Step {t}: the space stays. {sentence}", tuple(slopes), table), None

    if not options:
        return stop("no legal neighbour", "No neighbouring space fits the limits.")
    if float(np.linalg.norm(scaled(slopes, settings.slope_units)[0])) < TINY:
        return stop("no evidence", f"No dimension shows an effect on {goal}.")
    for i in order:
        move = options[i]
        if cosine[i] <= TIE:  # rounding must not decide
            return stop(
                "no promising neighbour",
                f"The best of {len(options)} legal neighbours has cosine {cosine[i]:.2f} with the slopes, so none "
                f"promises higher {goal}.",
            )
        if move.space in visited:
            continue
        sentence = (
            f"Step {t}: moved {space.difference(move.space)}. Of {len(options)} legal neighbours this one follows the "
            f"slopes best (cosine {cosine[i]:.2f}), with a predicted gain of {gains[i]:+.2f} {scale.unit}; its "
            f"{settings.sized_by} network has {metric} {units.show(move.size, metric)}."
        )
        gamma = dict(zip(space.keys, move.gamma, strict=True))
        return Decision(t, "move", gamma, "largest cosine", sentence, tuple(slopes), table), move
    return stop("visited before", "Every promising neighbour was visited before.")


def away(space: Space, arch: Arch) -> float:
    """How many steps an architecture lies outside a space, over all dimensions; zero inside. Blocks by their mean."""
    total = 0.0
    for dim in space.dims:
        values = arch.many(dim.key) if dim.scope == "block" else (arch.one(dim.key),)
        mean = sum(float(v) for v in values) / len(values)
        total += max(float(dim.low) - mean, mean - float(dim.high), 0.0) / float(dim.shift)
    return total


def repair_move(
    space: Space,
    meter: Meter,
    settings: S4Settings,
    slopes: Sequence[Slope] | None,
    metric: str | None = None,
    keep: Arch | None = None,
) -> Move:
    """One move of a space that breaks a limit: to the legal neighbour that undoes least, else towards the limit.

    Fewest steps first; then the highest predicted gain by the slopes; then as near as possible to ``keep``, the
    baseline; then the largest. Fewest steps never raise one dimension at the cost of another, which the largest
    neighbour does: on CIFAR-10 it gave width away for depth and heads (docs/log.md). ``metric`` is the cost that breaks
    a limit; by default the first with an upper limit.
    """
    options = moves_for(space, meter, settings)
    if options and settings.repair == "size":
        return max(options, key=lambda m: (m.size, m.gamma))
    if options:
        gains = rank(options, slopes, settings.slope_units)[2] if slopes else np.zeros(len(options))

        def order(i: int) -> tuple[Any, ...]:
            m = options[i]
            far = 0.0 if keep is None else away(m.space, keep)
            return sum(map(abs, m.gamma)), -round(gains[i] / TIE), round(far / TIE), -m.size, m.gamma

        return options[min(range(len(options)), key=order)]
    metric = metric or meter.size_metric
    here = size_of(space, meter, metric, settings.sized_by)
    every = moves_for(space, meter, settings, legal=False)
    options = [replace(m, size=size_of(m.space, meter, metric, settings.sized_by)) for m in every]
    options = [m for m in options if m.size < here]
    if not options:
        raise InfeasibleError(
            f"The space cannot shrink any further, and its {settings.sized_by} network still breaks "
            f"{meter.limits.describe()}."
        )
    if slopes and any(s.z for s in slopes):
        return options[rank(options, slopes, settings.slope_units)[0][0]]
    return min(options, key=lambda m: (m.size, m.gamma))


# -- the loop ---------------------------------------------------------------------------------------------------------


class Journal:
    """Hears what S4 does; a run's journal stores it, this one forgets it."""

    def space_reached(self, t: int, space: Space, repaired: bool) -> None:
        """A space was reached."""

    def decided(self, decision: Decision) -> None:
        """A decision was made."""

    def followed(self, t: int) -> Space | None:
        """Where the decision of step t (of repair -t) led in an earlier part of the same run; None where it is open.

        A stop leads to where the space is. A run goes on the way it went, also when a later version would decide
        otherwise.
        """
        return None


def move_space(
    space: Space,
    meter: Meter,
    evaluator: Callable[[Space, int], Accuracies],
    settings: S4Settings,
    seed: int,
    journal: Journal | None = None,
    scale: Scale = POINTS,
    keep: Arch | None = None,
) -> tuple[Space, int, list[Decision]]:
    """Run S4; returns the last space, its step number, and the decisions. ``evaluator(space, t)`` gives accuracies.

    Repairs come before step 0 or use the slopes of a step (by slope); they do not count as iterations. Of equal ones
    they take the one that stays nearest to ``keep``.
    """
    walk = _Walk(space, meter, evaluator, settings, seed, journal or Journal(), scale, keep)
    walk.repair()
    walk.move()
    return walk.space, walk.t, walk.decisions


class _Walk:
    """One run of S4: where the space is, where it was, what was decided."""

    def __init__(
        self,
        space: Space,
        meter: Meter,
        evaluator: Callable[[Space, int], Accuracies],
        settings: S4Settings,
        seed: int,
        journal: Journal,
        scale: Scale,
        keep: Arch | None = None,
    ) -> None:
        self.keep = keep
        self.meter, self.evaluator, self.settings, self.seed = meter, evaluator, settings, seed
        self.journal, self.scale, self.metric = journal, scale, meter.size_metric
        self.decisions, self.visited = list[Decision](), set[Space]()
        survey = Survey(meter, self.metric, settings.survey, settings.reach, seed)
        self.survey = survey if settings.survey else None
        self._arrive(space, 0)

    def _arrive(self, space: Space, t: int, repaired: bool = False) -> None:
        self.space, self.t = space, t
        self.visited.add(space)
        self.journal.space_reached(t, space, repaired)

    def _record(self, decision: Decision) -> None:
        self.decisions.append(decision)
        self.journal.decided(decision)

    def slopes(self) -> list[Slope]:
        """The slopes of the current space."""
        space, t, settings = self.space, self.t, self.settings
        accuracies, keys = self.evaluator(space, t), movable(space, settings.dims)
        if self.survey is not None:
            return self.survey.slopes(space, t, accuracies, keys)

        def enough(found: Sequence[Slope]) -> bool:
            return is_clear(space, found, self.meter, settings)

        return estimate(space, accuracies, settings.pairs, self.seed, t, enough if settings.adaptive else None, keys)

    def repair(self) -> None:
        """Bring a first space that breaks a limit under it."""
        meter, settings, by = self.meter, self.settings, self.settings.sized_by
        for n in range(1, MAX_REPAIRS + 1):
            broken = broken_limit(self.space, meter, by)
            if broken is None:
                return
            slopes = self.slopes() if settings.repair == "slope" else None
            at, later = (-n, self.t) if slopes is None else (self.t, self.t + 1)
            known = self.journal.followed(at)
            if known is not None:
                self._arrive(known, later, True)
                continue
            move = repair_move(self.space, meter, settings, slopes, broken, self.keep)
            before, after = (units.show(size_of(s, meter, broken, by), broken) for s in (self.space, move.space))
            sentence = (
                f"Repair {n}: the {by} network has {broken} {before}, over the limit. Moved "
                f"{self.space.difference(move.space)}; now it has {after}."
            )
            gamma = dict(zip(self.space.keys, move.gamma, strict=True))
            self._record(Decision(at, "repair", gamma, "over the limit", sentence, tuple(slopes or ()), ()))
            self._arrive(move.space, later, True)
        if broken_limit(self.space, meter, by) is not None:
            raise InfeasibleError(
                f"{MAX_REPAIRS} repair moves did not bring the space under {meter.limits.describe()}."
            )

    def move(self) -> None:
        """Follow the slopes a few times, or until no neighbour is promising."""
        for _ in range(self.settings.iterations):
            slopes, known = self.slopes(), self.journal.followed(self.t)
            if known == self.space:
                return
            if known is not None:
                self._arrive(known, self.t + 1)
                continue
            options = moves_for(self.space, self.meter, self.settings)
            decision, chosen = decide(
                self.space, slopes, options, self.settings, self.t, self.visited, self.metric, self.scale
            )
            self._record(decision)
            if chosen is None:
                return
            self._arrive(chosen.space, self.t + 1)
