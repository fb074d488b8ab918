"""S3: shift every dimension of a space along the fitted line of its E-T errors, a few times.

Each step trains (or is given) an evaluator for the space, takes the E-T error of the subspaces in which one dimension
has one value, fits a line per dimension, and shifts all dimensions at once. Limits come in at the end: where the last
space holds no network within them, the search goes back along its path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from tailorvit import units
from tailorvit.arch import Value
from tailorvit.costs.meter import Meter
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.rng import derive, generator
from tailorvit.seek.directions import Floats
from tailorvit.seek.quality import line, quality, quantise, slope_error
from tailorvit.seek.slopes import POINTS, Accuracies, Scale
from tailorvit.seek.subspaces import TRIES, Legal, Same, as_they_are, buckets, pins
from tailorvit.space import Dim, Space


@dataclass(frozen=True)
class S3Settings:
    """The choices the paper leaves open, with recommended defaults."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    updates: int = 2  # the paper's figures show steps 0, 1, 2
    samples: int = 200  # members drawn per subspace (pin) or in all (bucket); the paper does not say
    top: int = 50
    scale_top: bool = False  # top counts in 1,000 samples, as in the paper's figure
    estimator: Literal["pin", "bucket"] = "pin"
    slope_units: Literal["index", "gamma", "raw"] = "index"
    quantise: Literal["trunc", "floor"] = "trunc"
    tau: float = 0.4  # percent points of error per unit
    max_shift: int | None = None
    significance: float = 0.0  # a slope within this many standard errors of zero moves nothing
    limited: bool = False  # draw only members within the limits
    backtrack: bool = True
    max_log10: float | None = None  # the paper's bound on the number of architectures
    warm_start: bool = False  # the next supernet inherits overlapping weights and trains shorter
    warm_share: float = 0.5  # share of the epochs a warm-started supernet trains

    def __post_init__(self) -> None:
        for name, low, high in (
            ("updates", 0, 100),
            ("samples", 2, 100_000),
            ("top", 1, 100_000),
            ("tau", 1e-6, 100),
            ("max_shift", 1, 1000),
            ("significance", 0, 100),
            ("max_log10", 0, 1e6),
            ("warm_share", 0, 1),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise TailorError(f"s3.{name} must lie between {low} and {high}, not {value}.")

    @property
    def best(self) -> int:
        """How many of the lowest errors make Q_t."""
        return max(1, self.top * self.samples // 1000) if self.scale_top else self.top


@dataclass(frozen=True)
class Fit:
    """One dimension at one step: E-T error per choice, the line through them, the shift that followed."""

    dim: str
    choices: tuple[Value, ...]  # choices that are the same network count once
    counts: tuple[int, ...]  # members behind each
    means: tuple[float | None, ...]  # Q_e
    bests: tuple[float | None, ...]  # Q_t
    errors: tuple[float | None, ...]  # Q
    w: float  # slope in the settings' units
    b: float
    se: float | None
    by_index: tuple[float, float] | None  # the line over the place of a choice, for drawing
    floor: int  # what each rule makes of w / tau; choices move by minus this
    trunc: int
    k: int  # the shift that followed, in steps; positive is up
    after: tuple[Value, ...]
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the keys a report draws from."""
        facts = asdict(self)
        fit = facts.pop("by_index")
        return {**facts, "kind": "et", "fit": None if fit is None else list(fit)}


@dataclass(frozen=True)
class Decision:
    """What one step decided, from which fits, in one sentence."""

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


# -- lines and shifts -------------------------------------------------------------------------------------------------


def shifted(dim: Dim, k: int) -> tuple[Dim, str]:
    """A dimension moved by k steps, and a note where the rules changed that.

    Choices at or under zero go. Where none would be left the old ones stay; a depth moves only as far as leaves two
    choices, and not over its maximum.
    """
    if dim.name == "depth" and len(dim.choices) > 1:
        for steps in range(k, 1) if k < 0 else range(k, -1, -1):
            kept = [c for c in dim.choices if c + steps * dim.shift >= dim.minimum]
            over = dim.maximum is not None and dim.high + steps * dim.shift > dim.maximum
            if len(kept) > 1 and not over:
                words = f"moves by {steps:+d}" if steps else "stays"
                why = "to keep two choices" if k < 0 else f"as {dim.maximum} is the most"
                note = "" if steps == k else f"{dim.key} {words} instead of moving by {k:+d}, {why}"
                return dim.moved(steps) if steps else dim, note
    try:
        moved = dim.moved(k) if k else dim
    except TailorError:
        return dim, f"{dim.key} stays, since a shift by {k:+d} would leave no choice"
    lost = len(dim.choices) - len(moved.choices)
    return moved, f"{dim.key} loses {lost} choice{'s' if lost > 1 else ''} under {dim.minimum}" if lost else ""


def fit(dim: Dim, errors: Mapping[Value, Floats], settings: S3Settings, seed: int = 0) -> Fit:
    """The line through the E-T errors of one dimension and its shift; fewer than two points ask for none."""
    choices = tuple(errors)
    found = {v: quality(e, settings.best) for v, e in errors.items() if len(e)}
    places: Floats = np.array([choices.index(v) for v in found], dtype=np.float64)
    values: Floats = np.array(list(found), dtype=np.float64)
    x = {"index": places, "raw": values, "gamma": values / float(dim.shift)}[settings.slope_units]
    y: Floats = np.array([q.both for q in found.values()])
    enough = len(found) > 1
    w, b = line(x, y) if enough else (0.0, float(y.mean()) if len(y) else 0.0)
    se = slope_error([errors[v] for v in found], x, settings.best, seed=seed) if enough else None
    steps = {"floor": quantise(w / settings.tau, "floor"), "trunc": quantise(w / settings.tau, "trunc")}
    k, note = -steps[settings.quantise], ""
    if k and se is not None and abs(w) <= settings.significance * se:
        k, note = 0, f"{dim.key} stays, its slope {w:+.2f} lies within {settings.significance:g} standard errors"
    if settings.max_shift is not None and abs(k) > settings.max_shift:
        k = int(math.copysign(settings.max_shift, k))
    moved, rule = shifted(dim, k)
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
        line(places, y) if enough else None,
        steps["floor"],
        steps["trunc"],
        _steps(dim, moved),
        moved.choices,
        note or rule,
    )


def _steps(old: Dim, new: Dim) -> int:
    """By how many steps the largest choice moved; the smallest may have been dropped."""
    return round((float(new.high) - float(old.high)) / float(old.shift))


def fits(
    space: Space,
    accuracies: Accuracies,
    settings: S3Settings,
    seed: int,
    t: int,
    legal: Legal = lambda _: True,
    same: Same = as_they_are,
    scale: Scale = POINTS,
) -> list[Fit]:
    """The fits of all dimensions of a space, from one question to the evaluator."""
    drawn = {"pin": pins, "bucket": buckets}[settings.estimator](space, settings.samples, seed, t, legal, same)
    flat = list(dict.fromkeys(a for groups in drawn.values() for archs in groups.values() for a in archs))
    error = {a: scale.full - p for a, p in zip(flat, accuracies(flat), strict=True)}
    found = []
    for dim in space.dims:
        groups = drawn.get(dim.key) or {v: [] for v in dict.fromkeys(same(space, dim))}
        errors = {v: np.array([error[a] for a in archs], dtype=np.float64) for v, archs in groups.items()}
        found.append(fit(dim, errors, settings, derive(seed, "bootstrap", t, dim.key) % 2**31))
    return found


def _moved(space: Space, found: Sequence[Fit]) -> tuple[Space, list[Fit]]:
    """The space after all shifts, and the fits with what became of them; dimensions tied to each other may refuse."""
    try:
        now = replace(space, dims=tuple(replace(space[f.dim], choices=f.after) for f in found))
    except TailorError:
        tied = {key for pair in space.multiples for key in pair}
        found = [
            replace(f, k=0, after=space[f.dim].choices, note=f"{f.dim} stays, as its partners have no multiples there")
            if f.dim in tied and f.k
            else f
            for f in found
        ]
        now = replace(space, dims=tuple(replace(space[f.dim], choices=f.after) for f in found))
    return now, [replace(f, after=now[f.dim].choices) for f in found]


def decide(
    space: Space, found: Sequence[Fit], settings: S3Settings, t: int, scale: Scale = POINTS
) -> tuple[Decision, Space]:
    """Shift all dimensions at once, or stop where none moves, and say why."""
    unit = {"index": "choice", "gamma": "step", "raw": "unit"}[settings.slope_units]
    lost = ("of error", "of E-T error") if scale == POINTS else ("lost", "lost")
    now, found = _moved(space, found)
    gamma = {f.dim: f.k for f in found}
    apart = [f"{f.dim} ({f.w:+.2f}: floor {-f.floor:+d}, trunc {-f.trunc:+d})" for f in found if f.floor != f.trunc]
    warnings = []
    if apart:
        warnings.append(f"Step {t}: floor and trunc differ on {', '.join(apart)}; {settings.quantise} was used.")
    notes = "".join(f"; {f.note}" for f in found if f.note)

    def stop(reason: str, words: str) -> tuple[Decision, Space]:
        still = dict.fromkeys(gamma, 0)
        return Decision(
            t, "stop", still, reason, f"Step {t}: the space stays{words}.", tuple(found), (*warnings,)
        ), space

    if all(f.by_index is None for f in found):
        return stop("no evidence", ", since no dimension has two choices to compare")
    if now == space:
        top = max(found, key=lambda f: abs(f.w))
        steepest = f"the steepest slope is that of {top.dim}, {top.w:+.2f} {scale.unit} {lost[0]} a {unit}"
        words = f"; {steepest}, with tau {settings.tau:g}"
        return stop("settled", words + notes)
    size = math.log10(now.count())
    if settings.max_log10 is not None and size > settings.max_log10:
        words = f", since the next one would hold 10^{size:.1f} architectures, over 10^{settings.max_log10:g}"
        return stop("too many architectures", words)
    slopes = ", ".join(f"{f.dim} {f.w:+.2f}" for f in found if now[f.dim].choices != space[f.dim].choices)
    why = f"{scale.unit} {lost[1]} a {unit}: {slopes}, with tau {settings.tau:g}"
    sentence = f"Step {t}: moved {space.difference(now)}; {why}{notes}."
    return Decision(t, "move", gamma, "slopes of the E-T error", sentence, tuple(found), (*warnings,)), now


# -- the loop ---------------------------------------------------------------------------------------------------------


class Book:
    """Where a seek writes its steps; the run folder's book stores them, this one forgets."""

    def space(self, t: int, space: Space) -> None:
        """A space was reached, or gone back to."""

    def decided(self, decision: Decision) -> None:
        """A decision was made."""


@dataclass(frozen=True)
class Found:
    """Where S3 ended: the spaces it passed, the step whose space is to be searched, every decision."""

    path: tuple[Space, ...]
    t: int
    decisions: tuple[Decision, ...]

    @property
    def space(self) -> Space:
        """The space to search."""
        return self.path[self.t]

    @property
    def backtracks(self) -> int:
        """How many updates were taken back."""
        return len(self.path) - 1 - self.t


def within(space: Space, meter: Meter, enough: int) -> int:
    """How many different members keep the limits, counted up to ``enough``; 0 where the smallest is too large."""
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


def go_back(path: Sequence[Space], meter: Meter, enough: int) -> int:
    """The last step whose space holds enough members within the limits; if none does, the one that holds most."""
    counts = {}
    for t in range(len(path) - 1, -1, -1):
        counts[t] = within(path[t], meter, enough)
        if counts[t] >= min(enough, path[t].count()):
            return t
    best = max(counts, key=lambda t: (counts[t], t))
    if not counts[best]:
        raise InfeasibleError(
            f"None of the {len(path)} spaces S3 passed holds an architecture with {meter.limits.describe()}."
        )
    return best


def seek(
    space: Space,
    meter: Meter,
    evaluator: Callable[[Space, int], Accuracies],
    settings: S3Settings,
    seed: int,
    book: Book | None = None,
    same: Same = as_they_are,
    enough: int = 1,
    scale: Scale = POINTS,
) -> Found:
    """Run S3; ``evaluator(space, t)`` gives accuracies, ``enough`` is how many networks a search of the space needs."""
    book, path, decisions = book or Book(), [space], list[Decision]()
    legal = meter.fits if settings.limited else lambda _: True
    size = math.log10(space.count())
    if settings.max_log10 is not None and size > settings.max_log10:
        raise TailorError(
            f"The first space holds 10^{size:.1f} architectures, over s3.max_log10 {settings.max_log10:g}."
        )
    book.space(0, space)
    few: tuple[str, ...] = ()
    if settings.samples <= settings.best:
        few = (f"s3.samples {settings.samples} is not above {settings.best}, so the best are all and Q_t equals Q_e.",)
    for t in range(settings.updates):
        found = fits(path[-1], evaluator(path[-1], t), settings, seed, t, legal, same, scale)
        decision, after = decide(path[-1], found, settings, t, scale)
        told = few if t == 0 else ()
        if not few and (all_best := [f.dim for f in found if max(f.counts) <= settings.best]):
            names = ", ".join(all_best)
            told = (f"Step {t}: no choice of {names} has over {settings.best} members, so its Q_t equals Q_e.",)
        decisions.append(replace(decision, warnings=(*told, *decision.warnings)))
        book.decided(decisions[-1])
        if decision.kind == "stop":
            break
        path.append(after)
        book.space(t + 1, after)
    t = go_back(path, meter, enough) if settings.backtrack else len(path) - 1
    if t < len(path) - 1:
        decisions.append(_went_back(path, t, meter, len(decisions)))
        book.decided(decisions[-1])
        book.space(t, path[t])
    return Found(tuple(path), t, tuple(decisions))


def _went_back(path: Sequence[Space], t: int, meter: Meter, number: int) -> Decision:
    count = len(path) - 1 - t
    least = ", ".join(f"{m} {units.show(meter.least(m, path[-1]), m)}" for m in meter.limits.metrics)
    sentence = (
        f"Step {number}: went back {count} update{'s' if count > 1 else ''} to the space of step {t}, the last "
        f"with enough architectures within {meter.limits.describe()}; the smallest of step {len(path) - 1} has {least}."
    )
    return Decision(number, "backtrack", {}, "over the limits", sentence, backtracks=count)
