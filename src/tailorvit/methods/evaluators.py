"""Who says how good the members of a moving space are: its supernet, their own training, or a score without any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailorvit.arch import Arch
from tailorvit.costs.meter import Meter
from tailorvit.methods.members import by_training
from tailorvit.methods.session import Session, Supernets, sample
from tailorvit.methods.untrained import (
    UntrainedScores,
    finish_untrained,
    meter_with_band,
    missing_scores,
    require_scores,
    search_untrained,
    values_of,
)
from tailorvit.rng import generator
from tailorvit.search import Candidate
from tailorvit.seek.slopes import POINTS, Accuracies, Scale
from tailorvit.space import Space

Floats = NDArray[np.float64]
LOST = 1.0  # standard deviations by which what has no score is worse than the worst that has one
Ask = Callable[[Space, int], Accuracies]


def scale_of(session: Session) -> Scale:
    """Points of accuracy where something is trained; standard deviations over the space's members with a score."""
    seek = session.config.seek
    return Scale(f"standard deviations of {seek.evaluator}", 0.0) if seek.free else POINTS


def evaluator(session: Session, nets: Callable[[], Supernets], stage: str, source: str) -> Ask:
    """Figures of members of the space of step t, stored under ``stage-t``; ``nets`` gives the line of supernets."""
    if session.config.seek.free:
        return _by_score(session, stage, source)
    if session.config.seek.member_epochs:
        return by_training(session, nets, stage, source)

    def ask(space: Space, t: int) -> Accuracies:
        net = nets().at(space, t)
        net.spread(t)
        return net.accuracies(f"{stage}-{t}", source)

    return ask


def meter_of(session: Session) -> Meter:
    """The run's meter; with a score it has a lower limit, or the space could shrink to nothing by what is not size."""
    config = session.config
    return meter_with_band(session, session.space, config.proxy.band, True) if config.seek.free else session.meter


def finish_by_score(session: Session, space: Space) -> dict[str, Any] | None:
    """Search the last space by the score that moved it, and finish; None where a supernet is to do the search."""
    seek = session.config.seek
    if not seek.free or seek.final == "supernet":
        return None
    return finish_untrained(session, search_untrained(session, space, seek.search(session.config.proxy), "search"))


def seek_facts(session: Session) -> dict[str, Any]:
    """For result.json: who judged the spaces; nothing where it was their supernets, as in the papers."""
    seek = session.config.seek
    if seek.member_epochs:
        s4 = session.config.s4
        survey = {"reach": s4.reach} if session.config.method == "s4" and s4.design == "survey" else {}
        return {"seek": {"evaluator": seek.evaluator, "epochs": seek.member_epochs, **survey}}
    if not seek.free:
        return {}
    kept = ("evaluator", "samples", "final")
    return {"seek": {**{k: getattr(seek, k) for k in kept}, "per_size": seek.beyond_size}}


# -- scores -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Yardstick:
    """Scores of a space's sample as a scale: z = (score - what its size leads to expect) / spread.

    Scores above zero are taken as logarithms: dss and its like are sums that grow as a power of the size. Without
    ``slope`` the expectation is the mean.
    """

    log: bool
    mean: float
    size: float  # mean of the log parameters
    slope: float
    spread: float

    @classmethod
    def of(cls, scores: Sequence[float], params: Sequence[float], beyond_size: bool) -> Yardstick:
        """From the scores and sizes of a sample; the line through them is least squares over the log parameters."""
        raw: Floats = np.array(scores, dtype=np.float64)
        log = bool((raw > 0).all())
        y, x = np.log(raw) if log else raw, np.log(np.array(params, dtype=np.float64))
        mean, size = float(y.mean()), float(x.mean())
        around = float(((x - size) ** 2).sum())
        slope = float(((x - size) * (y - mean)).sum()) / around if beyond_size and around > 0 else 0.0
        left = y - mean - slope * (x - size)
        spread = float(left.std())
        # What is left of a score that is size and nothing else is rounding; it must not be blown up to effects.
        spread = spread if spread > 1e-9 * max(float(np.abs(y).max()), 1e-30) else 0.0
        return cls(log, mean, size, slope, spread)

    def __call__(self, score: float | None, params: float) -> float | None:
        """Standard deviations above what is expected; None where there is no score, or no logarithm of it."""
        if score is None or (self.log and score <= 0):
            return None
        y = float(np.log(score)) if self.log else score
        return (y - self.mean - self.slope * (float(np.log(params)) - self.size)) / self.spread if self.spread else 0.0


def _by_score(session: Session, stage: str, source: str) -> Ask:
    seek = session.config.seek

    def ask(space: Space, t: int) -> Accuracies:
        untrained = UntrainedScores(session, space, seek.evaluator)
        counter = session.meter.counter
        yard: list[Yardstick] = []

        def measured() -> Yardstick:
            name = f"sample-{t}"
            drawn = sample(space, seek.samples, generator(session.seed, name))
            rows = untrained.score(name, [Candidate(a, "sample") for a in drawn])
            values = values_of(rows, seek.evaluator)
            require_scores(rows, values, seek.evaluator)
            lost = missing_scores(rows, values)
            if lost:
                session.tell_once("warning", f"{name}: {lost} They count as worse than any other.")
            known = [(v, counter.params(a)) for a, v in zip(drawn, values, strict=True) if v is not None]
            return Yardstick.of([v for v, _ in known], [p for _, p in known], seek.beyond_size)

        def figures(archs: Sequence[Arch]) -> list[float]:
            with session.timed(f"{stage}-{t}"):
                if not yard:
                    yard.append(measured())
                rows = untrained.score(f"{stage}-{t}", [Candidate(a, source) for a in archs])
                values = values_of(rows, seek.evaluator)
                found = [yard[0](v, counter.params(a)) for a, v in zip(archs, values, strict=True)]
                least = min((z for z in found if z is not None), default=0.0) - LOST
                return [least if z is None else z for z in found]

        return figures

    return ask
