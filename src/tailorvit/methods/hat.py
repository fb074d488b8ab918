"""HAT: a search under a latency limit, with latency predicted from architectures measured on this device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tailorvit import units
from tailorvit.arch import Arch
from tailorvit.costs.latency_predictor import FitQuality, LatencyPredictor, PredictedMeter, fit_and_check
from tailorvit.costs.limits import Limits
from tailorvit.costs.meter import Meter
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.methods import Method
from tailorvit.methods.finish import candidates_wanted, finish
from tailorvit.methods.session import Session, SpaceRecord
from tailorvit.rng import generator
from tailorvit.search import Trial, merit


@dataclass(frozen=True)
class HatSettings:
    """The recipe table [hat]: what is measured on the device before anything is trained."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    samples: int = 120  # architectures measured to fit the predictor; the paper measures 2,000
    held_out: int = 30  # architectures measured in addition, to estimate its error
    rounds: int = 3  # all of them are measured this many times, one round after the other; the median counts

    def __post_init__(self) -> None:
        for name, low, high in (("samples", 2, 100_000), ("held_out", 2, 100_000), ("rounds", 1, 100)):
            if not low <= getattr(self, name) <= high:
                raise TailorError(f"hat.{name} must lie between {low} and {high}, not {getattr(self, name)}.")


def hat(session: Session) -> dict[str, Any]:
    """Run HAT end to end: measure and fit, train one supernet, search by prediction, measure the best."""
    SpaceRecord(session).space_reached(0, session.space)
    predictor, quality, typical, noise = _fit_predictor(session)
    limits = latency_limit(session.limits, typical)
    session, predicted = _with_limits(session, limits), _with_limits(session, limits, predictor)
    _log_quality(session, quality, limits, noise)
    predicted.meter.require_feasible(session.space)
    supernet = predicted.supernet(session.space, 0)
    trials = supernet.search(0)
    confirmed = confirm(session, trials)
    result = finish(session, confirmed, supernet)
    delivered = Arch.from_dict(result["arch"])
    facts = {
        **quality.to_dict(),
        "noise": noise,
        "device": session.device,
        "limit": limits.high("latency"),
        "predicted": predicted.meter.cost("latency", delivered),
        "measured": session.meter.cost("latency", delivered),
        "refused": len(trials) - len(confirmed),
    }
    return {**result, "latency_predictor": facts}


def _fit_predictor(session: Session) -> tuple[LatencyPredictor, FitQuality, float, float | None]:
    """Measure sampled architectures, fit, and check on those held out.

    Also returns the median latency, and by how many percent a second measurement differs from the first.
    """
    settings = session.config.hat
    archs = session.space.sample_distinct(settings.samples + settings.held_out, generator(session.seed, "latency"))
    with session.timed("latency"):
        rounds = np.array([_measure_round(session, archs, r) for r in range(settings.rounds)])
    seconds = np.median(rounds, 0).tolist()
    for arch, value in zip(archs, seconds, strict=True):  # the run uses this latency from here on
        if session.run.measured("latency", arch) is None:
            session.run.record_measured("latency", arch, value)
    predictor, quality = fit_and_check(session.meter.counter, archs, seconds, settings.held_out)
    noise = 100 * float(np.mean(np.abs(rounds[1] - rounds[0]) / rounds[0])) if settings.rounds > 1 else None
    return predictor, quality, float(np.median(seconds)), noise


def _measure_round(session: Session, archs: Sequence[Arch], number: int) -> list[float]:
    """Every architecture's latency once.

    All are measured once before any is measured again, so that a busy minute of the machine spoils one measurement of
    some and not all measurements of one. Every measurement is stored, so a resumed run sees the same.
    """
    run, stage, seconds = session.run, f"latency {number + 1}", list[float]()
    meter = Meter.for_space(
        session.space,
        device=session.device,
        clock=session.clock,
        recall=lambda _, arch: run.measured(stage, arch),
        record=lambda _, arch, value: run.record_measured(stage, arch, value),
    )
    for arch in archs:
        seconds.append(meter.cost("latency", arch))
        session.progress.step(stage, len(seconds), len(archs), {})
    return seconds


def latency_limit(limits: Limits, typical: float) -> Limits:
    """The limits with an upper one on latency: the recipe's, or else what is typical of the space on this device."""
    if limits.high("latency") is not None:
        return limits
    low = next((floor for metric, floor, _ in limits if metric == "latency"), None)
    return Limits((*(row for row in limits if row[0] != "latency"), ("latency", low, typical)))


def _with_limits(session: Session, limits: Limits, predictor: LatencyPredictor | None = None) -> Session:
    """The same run under other limits, with latency measured or predicted."""
    s = session
    other = Session(replace(s.plan, limits=limits), s.run, s.progress)
    if predictor is not None:
        other.meter = PredictedMeter.for_space(s.space, limits, predictor=predictor, **s.measuring)
    return other


def _log_quality(session: Session, quality: FitQuality, limits: Limits, noise: float | None) -> None:
    """State the predictor's error."""
    rank = "undefined" if quality.rank is None else f"{quality.rank:.3f}"
    repeated = "" if noise is None else f" A second measurement differs by {noise:.1f} %."
    text = (
        f"Latency on {session.device}: predicted from {quality.samples} measured architectures; on {quality.held_out} "
        f"others the mean error is {quality.mape:.1f} % (always predicting the mean: {quality.constant_mape:.1f} %), "
        f"the largest {quality.worst:.1f} %, the rank correlation {rank}.{repeated} "
        f"Searching under {limits.describe()}."
    )
    session.log_once("predictor", text, **quality.to_dict())


def confirm(session: Session, trials: Sequence[Trial]) -> list[Trial]:
    """The trials without those of the best that break a limit when measured."""
    found = session.run.result("confirm")
    if found is None:
        found = _measure_best(session, trials)
        session.run.finish("confirm", found)
    for metric, text, value in found["measured"]:
        session.run.record_measured(metric, Arch.from_json(text), value)
    refused = set(found["refused"])
    return [t for t in trials if t.arch.to_json() not in refused]


def _measure_best(session: Session, trials: Sequence[Trial]) -> dict[str, Any]:
    """Measure from the best downward until as many as the final training takes keep the limits.

    The measurements are stored only if some network keeps the limits: a resumed run uses them, and a run on a machine
    that was too busy may measure again.
    """
    measured: list[tuple[str, str, float]] = []
    meter = Meter.for_space(
        session.space,
        session.limits,
        device=session.device,
        clock=session.clock,
        recall=session.run.measured,
        record=lambda metric, arch, value: measured.append((metric, arch.to_json(), value)),
    )
    refused, count, wanted = list[str](), 0, candidates_wanted(session)
    for trial in sorted(trials, key=merit):
        if count == wanted:
            break
        broken = meter.problem(trial.arch)
        if broken is None:
            count += 1
        else:
            refused.append(trial.arch.to_json())
            text = f"A candidate was predicted to keep the limits and does not: measured {broken}."
            session.log_once("predictor", text)
    if not count:
        least = min(meter.cost("latency", t.arch) for t in trials)
        raise InfeasibleError(
            f"None of {len(trials)} networks predicted to keep {session.limits.describe()} keeps it when measured: "
            f"the fastest takes {units.show(least, 'latency')}. Resume when the machine is idle, or raise the limit."
        )
    return {"measured": measured, "refused": refused}


METHOD = Method("hat", "a search under a latency limit, predicted from measurements on this device (HAT)", hat)
