"""HAT: a search under a latency limit, with latency predicted from architectures measured on this device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tailorvit import units
from tailorvit.arch import Arch
from tailorvit.costs.limits import Limits
from tailorvit.costs.meter import Meter
from tailorvit.costs.predictor import Fit, PredictedMeter, Predictor, fitted
from tailorvit.errors import InfeasibleError
from tailorvit.methods.finish import finish
from tailorvit.methods.s4 import RunBook
from tailorvit.methods.session import Session, sample
from tailorvit.rng import generator
from tailorvit.search.base import Trial, merit


def hat(session: Session) -> dict[str, Any]:
    """Run HAT end to end: measure and fit, train one supernet, search by prediction, measure what was found."""
    RunBook(session).space(0, session.space, False)
    predictor, quality, typical, noise = _predictor(session)
    limits = latency_limit(session.limits, typical)
    session, quick = _beside(session, limits), _beside(session, limits, predictor)
    _tell(session, quality, limits, noise)
    quick.meter.require_feasible(session.space)
    net = quick.supernet(session.space, 0)
    net.model()  # trained here, so that its time is not counted as the search's
    net.spread(0)
    trials = quick.search(session.space, lambda candidates, generation: net.score("search", candidates, generation))
    kept = confirmed(session, trials)
    result = finish(session, kept, net)
    found = next(t for t in kept if t.arch.to_dict() == result["arch"])
    facts = {
        **quality.to_dict(),
        "noise": noise,
        "device": session.device,
        "limit": limits.high("latency"),
        "predicted": found.costs["latency"],
        "measured": session.meter.cost("latency", found.arch),
        "refused": len(trials) - len(kept),
    }
    return {**result, "latency_predictor": facts}


def _predictor(session: Session) -> tuple[Predictor, Fit, float, float | None]:
    """Measure members drawn evenly, fit, and judge on those held out.

    With the latency the settings call typical, and by how many percent measuring again differs.
    """
    settings = session.config.hat
    archs = sample(session.space, settings.samples + settings.held_out, generator(session.seed, "latency"))
    with session.timed("latency"):
        rounds = np.array([_round(session, archs, r) for r in range(settings.rounds)])
    seconds = np.median(rounds, 0).tolist()
    for arch, value in zip(archs, seconds, strict=True):  # what the run calls this network's latency from here on
        if session.run.measured("latency", arch) is None:
            session.run.record_measured("latency", arch, value)
    predictor, quality = fitted(session.meter.counter, archs, seconds, settings.held_out)
    noise = 100 * float(np.mean(np.abs(rounds[1] - rounds[0]) / rounds[0])) if settings.rounds > 1 else None
    return predictor, quality, float(np.quantile(seconds, settings.quantile)), noise


def _round(session: Session, archs: Sequence[Arch], number: int) -> list[float]:
    """Every architecture's latency once. All are measured before any is measured again, so that a busy minute of the
    machine spoils one figure of some and not all figures of one; every figure is kept, so a resumed run sees the same.
    """
    run, stage, seconds = session.run, f"latency {number + 1}", list[float]()
    meter = Meter.for_space(
        session.space,
        device=session.device,
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


def _beside(session: Session, limits: Limits, predictor: Predictor | None = None) -> Session:
    """The same run under other limits, its latency measured or predicted."""
    s = session
    other = Session(s.config, s.run, s.data, s.space, limits, s.device, s.progress)
    if predictor is not None:
        run = {"device": s.device, "recall": s.run.measured, "record": s.run.record_measured}
        other.meter = PredictedMeter.for_space(s.space, limits, predictor=predictor, **run)
    return other


def _tell(session: Session, quality: Fit, limits: Limits, noise: float | None) -> None:
    """State the predictor's error."""
    rank = "undefined" if quality.rank is None else f"{quality.rank:.3f}"
    again = "" if noise is None else f" Measuring again differs by {noise:.1f} %."
    text = (
        f"Latency on {session.device}: predicted from {quality.samples} measured architectures; on {quality.held_out} "
        f"others the mean error is {quality.mape:.1f} % (always saying the mean: {quality.constant_mape:.1f} %), the "
        f"largest {quality.worst:.1f} %, the rank correlation {rank}.{again} Searching under {limits.describe()}."
    )
    session.tell_once("predictor", text, **quality.to_dict())


def confirmed(session: Session, trials: Sequence[Trial]) -> list[Trial]:
    """The trials less those that break a limit when measured, as far down as the finish will take them."""
    found = session.run.result("confirm")
    if found is None:
        found = _confirm(session, trials)
        session.run.finish("confirm", found)
    for metric, text, value in found["measured"]:
        session.run.record_measured(metric, Arch.from_json(text), value)
    refused = set(found["refused"])
    return [t for t in trials if t.arch.to_json() not in refused]


def _confirm(session: Session, trials: Sequence[Trial]) -> dict[str, Any]:
    """Measure the best. Figures are kept once some keep the limits: a resumed run goes by them, and one that found a
    machine too busy may look again.
    """
    measured: list[tuple[str, str, float]] = []
    meter = Meter.for_space(
        session.space,
        session.limits,
        device=session.device,
        recall=session.run.measured,
        record=lambda metric, arch, value: measured.append((metric, arch.to_json(), value)),
    )
    refused, kept = list[str](), 0
    for trial in sorted(trials, key=merit):
        if kept == session.config.final.candidates:
            break
        broken = meter.problem(trial.arch)
        if broken is None:
            kept += 1
        else:
            refused.append(trial.arch.to_json())
            text = f"A candidate was predicted to keep the limits and does not: measured {broken}."
            session.tell_once("predictor", text)
    if not kept:
        least = min(meter.cost("latency", t.arch) for t in trials)
        raise InfeasibleError(
            f"None of {len(trials)} networks predicted to keep {session.limits.describe()} keeps it when measured: "
            f"the fastest takes {units.show(least, 'latency')}. Resume when the machine is idle, or raise the limit."
        )
    return {"measured": measured, "refused": refused}
