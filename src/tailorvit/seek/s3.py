"""S3: shift every dimension of a space along the fitted line of its E-T errors, a few times.

Each step draws architectures in which one dimension has one value, takes the E-T error of every such subspace, fits a
line per dimension, and shifts all dimensions at once. Limits come in at the end: where the last space holds no network
within them, the search goes back along its path. Errors are in percent: with fractions every slope would lie under the
threshold of 0.4. Nothing here knows a network, data or a disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from tailorvit import units
from tailorvit.arch import Arch, Value
from tailorvit.costs.meter import Meter
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.rng import derive, generator
from tailorvit.seek.slopes import POINTS, Accuracies, Floats, Scale
from tailorvit.space import Dim, Space

Quantise = Literal["trunc", "floor"]
EDGE = 1e-9  # a quotient this close under a whole number is that number; float error is some 1e-15
REDRAWS = 200  # bootstrap samples for the error of a slope
TRIES = 50  # draws for every architecture wanted


@dataclass(frozen=True)
class S3Settings:
    """The choices the paper leaves open, with recommended defaults."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    updates: int = 2  # the paper's figures show steps 0, 1, 2
    samples: int = 200  # architectures per subspace; the paper does not say
    top: int = 50
    quantise: Quantise = "trunc"  # the paper writes floor, which grows a space on any noise below zero
    tau: float = 0.4  # percent points of error per choice that make one step
    max_shift: int | None = None  # steps
    warm_start: bool = False  # the next supernet inherits overlapping weights and trains half as long

    def __post_init__(self) -> None:
        bounds = {"updates": (0, 100), "samples": (2, 100_000), "top": (1, 100_000), "tau": (1e-6, 100)}
        for name, (low, high) in {**bounds, "max_shift": (1, 1000)}.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise TailorError(f"s3.{name} must lie between {low} and {high}, not {value}.")


# -- arithmetic on arrays ---------------------------------------------------------------------------------------------


class Quality(NamedTuple):
    """S3's quality of a space: mean error (Q_e), mean error of the best (Q_t), and the mean of both (Q)."""

    mean: float
    best: float
    both: float


def quality(errors: Floats, top: int) -> Quality:
    """The E-T error of sampled architectures; Q_t is over the ``top`` lowest errors, or over all if fewer."""
    ordered = np.sort(errors)
    mean, best = float(ordered.mean()), float(ordered[: max(top, 1)].mean())
    return Quality(mean, best, (mean + best) / 2)


def fit_line(x: Floats, y: Floats) -> tuple[float, float]:
    """(slope, offset) of the least-squares line; level where all x are the same."""
    away = x - x.mean()
    spread = float(away @ away)
    slope = float(away @ (y - y.mean())) / spread if spread > 0 else 0.0
    return slope, float(y.mean()) - slope * float(x.mean())


def quantise(quotient: float, how: Quantise) -> int:
    """A quotient as whole steps: down (the paper), or towards zero, with no step inside one threshold of zero."""
    if how == "floor":
        return math.floor(quotient + EDGE)
    steps = math.floor(abs(quotient) + EDGE)
    return steps if quotient > 0 else -steps


def slope_error(errors: Sequence[Floats], x: Floats, top: int, seed: int = 0) -> float:
    """Standard error of the line's slope, by drawing the architectures again with replacement.

    Choices share their draws: architecture j of every choice comes from the same base, so most of its luck is common.
    """
    rng = np.random.default_rng(seed)
    slopes = np.empty(REDRAWS)
    for i in range(REDRAWS):
        places = rng.random(max(map(len, errors)))
        redrawn = [quality(e[(places[: len(e)] * len(e)).astype(np.int64)], top).both for e in errors]
        slopes[i] = fit_line(x, np.array(redrawn))[0]
    return float(slopes.std(ddof=1))


# -- subspaces --------------------------------------------------------------------------------------------------------

Distinct = Callable[[Space, Dim], Sequence[Value]]  # for every choice of a dimension, the first equivalent choice


def all_distinct(_space: Space, dim: Dim) -> Sequence[Value]:
    """Every choice is a network of its own; a family that cuts windows to its feature map says otherwise."""
    return dim.choices


def pinned(
    space: Space, dim: Dim, choices: Sequence[Value], n: int, rng: np.random.Generator
) -> dict[Value, list[Arch]]:
    """``n`` different architectures per choice, all blocks of a block dimension at it; fewer where there are no more.

    One random architecture is set to every choice in turn, so that choices are compared on the same rest; a depth cuts
    one common list of blocks. Setting a tied dimension would move its partners, so there each choice draws by itself.
    """
    found: dict[Value, dict[Arch, None]] = {v: {} for v in choices}
    subspaces = {v: space.pin(dim.key, v) for v in choices}
    wanted = {v: min(n, subspaces[v].count()) for v in choices}
    tied = any(dim.key in pair for pair in space.multiples)
    for _ in range(TRIES * n):
        if all(len(found[v]) >= wanted[v] for v in choices):
            break
        base = space.sample(rng) if tied else space.with_value(space.sample(rng), dim.key, dim.high, rng)
        for v in choices:
            arch = subspaces[v].sample(rng) if tied else space.with_value(base, dim.key, v, rng)
            if len(found[v]) < wanted[v]:
                found[v][arch] = None
    return {v: list(archs) for v, archs in found.items()}


def draw_subspaces(
    space: Space, n: int, seed: int, t: int, distinct: Distinct = all_distinct
) -> dict[str, dict[Value, list[Arch]]]:
    """Architectures per dimension and choice, for every dimension with at least two distinct choices."""
    found = {}
    for i, dim in enumerate(space.dims):
        choices = list(dict.fromkeys(distinct(space, dim)))
        if len(choices) > 1:
            found[dim.key] = pinned(space, dim, choices, n, generator(seed, "et", t, i))
    return found


# -- lines and shifts -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """One dimension at one step: E-T error per choice, the line through them, the shift that followed."""

    dim: str
    choices: tuple[Value, ...]  # choices that give the same network count once
    counts: tuple[int, ...]  # architectures behind each choice
    means: tuple[float | None, ...]  # Q_e
    bests: tuple[float | None, ...]  # Q_t
    errors: tuple[float | None, ...]  # Q
    w: float  # slope: points of error per choice
    b: float
    se: float | None
    line: tuple[float, float] | None  # slope and offset, for drawing; None where there is nothing to fit
    floor: int  # what each rule makes of w / tau; choices move by minus this
    trunc: int
    k: int  # the shift that followed, in steps; positive is up
    after: tuple[Value, ...]
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the keys a report draws from."""
        facts = asdict(self)
        line = facts.pop("line")
        return {**facts, "kind": "et", "fit": None if line is None else list(line)}


def shifted(dim: Dim, k: int) -> tuple[Dim, str]:
    """A dimension moved by k steps, and a note where the rules changed that.

    Choices at or under zero go, for good as in the paper. Where none would be left the old ones stay; a depth moves
    only as far as leaves two choices, and not over its maximum.
    """
    if dim.name == "depth" and len(dim.choices) > 1:
        for steps in range(k, 1) if k < 0 else range(k, -1, -1):
            remaining = [c for c in dim.choices if c + steps * dim.shift >= dim.minimum]
            over = dim.maximum is not None and dim.high + steps * dim.shift > dim.maximum
            if len(remaining) > 1 and not over:
                words = f"moves by {steps:+d}" if steps else "stays"
                why = "to keep two choices" if k < 0 else f"as its maximum is {dim.maximum}"
                note = "" if steps == k else f"{dim.key} {words} instead of moving by {k:+d}, {why}"
                return dim.only(*dim.moved(steps).choices) if steps else dim, note
    try:
        moved = dim.only(*dim.moved(k).choices) if k else dim
    except TailorError:
        return dim, f"{dim.key} stays, because a shift by {k:+d} would leave no choice"
    lost = len(dim.choices) - len(moved.choices)
    return moved, f"{dim.key} loses {lost} choice{'s' if lost > 1 else ''} under {dim.minimum}" if lost else ""


def fit(dim: Dim, errors: Mapping[Value, Floats], settings: S3Settings, seed: int = 0) -> Fit:
    """The line through the E-T errors of one dimension and its shift; fewer than two points give no shift."""
    choices = tuple(errors)
    found = {v: quality(e, settings.top) for v, e in errors.items() if len(e)}
    x: Floats = np.array([choices.index(v) for v in found], dtype=np.float64)
    y: Floats = np.array([q.both for q in found.values()])
    fitted = len(found) > 1
    w, b = fit_line(x, y) if fitted else (0.0, float(y.mean()) if len(y) else 0.0)
    se = slope_error([errors[v] for v in found], x, settings.top, seed) if fitted else None
    steps = {"floor": quantise(w / settings.tau, "floor"), "trunc": quantise(w / settings.tau, "trunc")}
    k = -steps[settings.quantise]
    if settings.max_shift is not None and abs(k) > settings.max_shift:
        k = int(math.copysign(settings.max_shift, k))
    moved, note = shifted(dim, k)
    return Fit(
        dim.key,
        choices,
        tuple(len(e) for e in errors.values()),
        tuple(found[v].mean if v in found else None for v in choices),
        tuple(found[v].best if v in found else None for v in choices),
        tuple(found[v].both if v in found else None for v in choices),
        w,
        b,
        se,
        (w, b) if fitted else None,
        steps["floor"],
        steps["trunc"],
        _steps_between(dim, moved),
        moved.choices,
        note,
    )


def _steps_between(old: Dim, new: Dim) -> int:
    """By how many steps the largest choice moved; the smallest may have been dropped."""
    return round((float(new.high) - float(old.high)) / float(old.shift))


def fits(
    space: Space,
    accuracies: Accuracies,
    settings: S3Settings,
    seed: int,
    t: int,
    distinct: Distinct = all_distinct,
    scale: Scale = POINTS,
) -> list[Fit]:
    """The fits of all dimensions of a space, from one call of the evaluator."""
    drawn = draw_subspaces(space, settings.samples, seed, t, distinct)
    flat = list(dict.fromkeys(a for subspaces in drawn.values() for archs in subspaces.values() for a in archs))
    error = {a: scale.full - p for a, p in zip(flat, accuracies(flat), strict=True)}
    found = []
    for dim in space.dims:
        subspaces = drawn.get(dim.key) or {v: [] for v in dict.fromkeys(distinct(space, dim))}
        errors = {v: np.array([error[a] for a in archs], dtype=np.float64) for v, archs in subspaces.items()}
        found.append(fit(dim, errors, settings, derive(seed, "bootstrap", t, dim.key) % 2**31))
    return found


# -- decisions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decision:
    """What one step decided, from which fits, and one sentence for people."""

    t: int
    kind: Literal["move", "stop", "backtrack"]
    gamma: dict[str, int]
    reason: str
    sentence: str
    slopes: tuple[Fit, ...] = ()
    warnings: tuple[str, ...] = ()
    backtracks: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the fits are stored by themselves."""
        rest = {k: v for k, v in vars(self).items() if k not in ("slopes", "warnings")}
        return {**rest, "stop": self.kind == "stop", "warnings": list(self.warnings), "legal": []}


def apply_shifts(space: Space, found: Sequence[Fit]) -> tuple[Space, list[Fit]]:
    """The space after all shifts, and the fits with what became of them; tied dimensions may refuse to move."""
    try:
        after = replace(space, dims=tuple(space[f.dim].only(*f.after) for f in found))
    except TailorError:
        tied = {key for pair in space.multiples for key in pair}
        found = [
            replace(f, k=0, after=space[f.dim].choices, note=f"{f.dim} stays, as its partners have no multiples there")
            if f.dim in tied and f.k
            else f
            for f in found
        ]
        after = replace(space, dims=tuple(space[f.dim].only(*f.after) for f in found))
    return after, [replace(f, after=after[f.dim].choices) for f in found]


def decide(
    space: Space, found: Sequence[Fit], settings: S3Settings, t: int, scale: Scale = POINTS
) -> tuple[Decision, Space]:
    """Shift all dimensions at once, or stop where none moves, and say why."""
    lost = "of E-T error" if scale == POINTS else "lost"
    after, found = apply_shifts(space, found)
    differing = [f"{f.dim} ({f.w:+.2f}: floor {-f.floor:+d}, trunc {-f.trunc:+d})" for f in found if f.floor != f.trunc]
    warnings: tuple[str, ...] = ()
    if differing:
        warnings = (f"Step {t}: floor and trunc differ on {', '.join(differing)}; {settings.quantise} was used.",)
    notes = "".join(f"; {f.note}" for f in found if f.note)

    def stop(reason: str, sentence: str) -> tuple[Decision, Space]:
        still = {f.dim: 0 for f in found}
        return Decision(
            t, "stop", still, reason, f"Step {t}: the space stays{sentence}.", tuple(found), warnings
        ), space

    if all(f.line is None for f in found):
        return stop("no evidence", ", because no dimension has two choices to compare")
    if after == space:
        top = max(found, key=lambda f: abs(f.w))
        steepest = f"the steepest slope is {top.dim} with {top.w:+.2f} {scale.unit} {lost} a choice"
        return stop("settled", f"; {steepest}, with tau {settings.tau:g}{notes}")
    slopes = ", ".join(f"{f.dim} {f.w:+.2f}" for f in found if after[f.dim].choices != space[f.dim].choices)
    why = f"{scale.unit} {lost} a choice: {slopes}, with tau {settings.tau:g}"
    sentence = f"Step {t}: moved {space.difference(after)}; {why}{notes}."
    gamma = {f.dim: f.k for f in found}
    return Decision(t, "move", gamma, "slopes of the E-T error", sentence, tuple(found), warnings), after


# -- the loop ---------------------------------------------------------------------------------------------------------


class Journal:
    """Hears what S3 does; a run's journal stores it, this one forgets it."""

    def space_reached(self, t: int, space: Space) -> None:
        """A space was reached, or returned to."""

    def decided(self, decision: Decision) -> None:
        """A decision was made."""


@dataclass(frozen=True)
class Path:
    """Where S3 went: the spaces it passed, the step whose space is to be searched, every decision."""

    spaces: tuple[Space, ...]
    t: int
    decisions: tuple[Decision, ...]

    @property
    def space(self) -> Space:
        """The space to search."""
        return self.spaces[self.t]

    @property
    def backtracks(self) -> int:
        """How many updates were taken back."""
        return len(self.spaces) - 1 - self.t


def count_within(space: Space, meter: Meter, enough: int) -> int:
    """How many different architectures keep the limits, counted up to ``enough``; 0 where the smallest is too large."""
    if not all(high is None or meter.least(metric, space) <= high for metric, _, high in meter.limits):
        return 0
    if not meter.limits:
        return min(enough, space.count())
    rng, found = generator(0, "within"), {a for a in meter.corners(space) if meter.fits(a)}
    # Measured costs take a second each.
    for _ in range(TRIES * enough if set(meter.limits.metrics) <= {"params", "macs"} else 2 * enough):
        if len(found) >= min(enough, space.count()):
            break
        arch = space.sample(rng)
        if arch not in found and meter.fits(arch):
            found.add(arch)
    return len(found)


def last_feasible(spaces: Sequence[Space], meter: Meter, enough: int) -> int:
    """The last step whose space holds enough architectures within the limits; if none does, the one with most."""
    counts = {}
    for t in range(len(spaces) - 1, -1, -1):
        counts[t] = count_within(spaces[t], meter, enough)
        if counts[t] >= min(enough, spaces[t].count()):
            return t
    best = max(counts, key=lambda t: (counts[t], t))
    if not counts[best]:
        raise InfeasibleError(
            f"None of the {len(spaces)} spaces S3 passed holds an architecture with {meter.limits.describe()}."
        )
    return best


def shift_space(
    space: Space,
    meter: Meter,
    evaluator: Callable[[Space, int], Accuracies],
    settings: S3Settings,
    seed: int,
    journal: Journal | None = None,
    distinct: Distinct = all_distinct,
    enough: int = 1,
    scale: Scale = POINTS,
) -> Path:
    """Run S3; ``evaluator(space, t)`` gives accuracies, ``enough`` is how many networks a search of the space needs."""
    journal, spaces, decisions = journal or Journal(), [space], list[Decision]()
    journal.space_reached(0, space)
    for t in range(settings.updates):
        found = fits(spaces[-1], evaluator(spaces[-1], t), settings, seed, t, distinct, scale)
        decision, after = decide(spaces[-1], found, settings, t, scale)
        warnings = (*_too_few(settings, found, t), *decision.warnings)
        decisions.append(replace(decision, warnings=warnings))
        journal.decided(decisions[-1])
        if decision.kind == "stop":
            break
        spaces.append(after)
        journal.space_reached(t + 1, after)
    t = last_feasible(spaces, meter, enough)
    if t < len(spaces) - 1:
        decisions.append(_backtrack(spaces, t, meter, len(decisions)))
        journal.decided(decisions[-1])
        journal.space_reached(t, spaces[t])
    return Path(tuple(spaces), t, tuple(decisions))


def _too_few(settings: S3Settings, found: Sequence[Fit], t: int) -> tuple[str, ...]:
    """Say where so few architectures were drawn that the best are all of them."""
    if settings.samples <= settings.top:
        text = f"s3.samples {settings.samples} is not above s3.top {settings.top}, so Q_t equals Q_e."
        return (text,) if t == 0 else ()
    few = [f.dim for f in found if f.line is not None and max(f.counts) <= settings.top]
    if not few:
        return ()
    return (f"Step {t}: no choice of {', '.join(few)} has over {settings.top} architectures, so its Q_t equals Q_e.",)


def _backtrack(spaces: Sequence[Space], t: int, meter: Meter, number: int) -> Decision:
    count = len(spaces) - 1 - t
    least = ", ".join(f"{m} {units.show(meter.least(m, spaces[-1]), m)}" for m in meter.limits.metrics)
    sentence = (
        f"Step {number}: went back {count} update{'s' if count > 1 else ''} to the space of step {t}, the last with "
        f"enough architectures within {meter.limits.describe()}; the smallest of step {len(spaces) - 1} has {least}."
    )
    return Decision(number, "backtrack", {}, "over the limits", sentence, backtracks=count)
