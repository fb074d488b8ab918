"""Judges of a moving space: who says how good its architectures are.

The supernet of the space (as in the papers), a short training of every architecture by itself, or a score of the
untrained network. Every figure is stored in the run folder under ``STAGE-t``, so a resumed run asks for none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tailorvit.arch import Arch
from tailorvit.costs.meter import Meter
from tailorvit.errors import TailorError, unknown
from tailorvit.methods.team import spread
from tailorvit.rng import derive, generator, seed_everything
from tailorvit.search import Candidate
from tailorvit.seek.slopes import POINTS, Accuracies, Floats, Scale
from tailorvit.space import Space
from tailorvit.train import Fixed, Sink, TrainSettings, train
from tailorvit.train.loop import shortened

if TYPE_CHECKING:
    from tailorvit.methods.session import Session, Supernets
    from tailorvit.methods.untrained import UntrainedSettings

SUPERNET, TRAINING = "supernet", "training"  # judges that give accuracies; all others are scores
SCALE_SAMPLES = 200  # architectures of a space that set the scale of its scores
NO_SCORE = 1.0  # standard deviations by which an architecture without a score is worse than the worst with one
Judge = Callable[[Space, int], Accuracies]


@dataclass(frozen=True)
class SeekSettings:
    """[seek]: who judges the architectures of a space while S4 or S3 moves it."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    evaluator: str = SUPERNET  # training, or a proxy's name
    train_epochs: int = 4  # of each architecture, where training judges

    def __post_init__(self) -> None:
        from tailorvit.proxies import PROXIES

        if self.evaluator not in (SUPERNET, TRAINING) and self.evaluator not in PROXIES:
            raise unknown("seek.evaluator", self.evaluator, (SUPERNET, TRAINING, *PROXIES))
        if self.train_epochs < 1:
            raise TailorError(f"seek.train_epochs must be at least 1, not {self.train_epochs}.")
        if self.by_score and PROXIES[self.evaluator].together is not None:
            raise TailorError(
                f"seek.evaluator '{self.evaluator}' only ranks candidates within one set, so it gives no slopes; "
                "name a score that stands by itself, such as dss."
            )

    @property
    def by_supernet(self) -> bool:
        """Whether every space has its supernet."""
        return self.evaluator == SUPERNET

    @property
    def by_training(self) -> bool:
        """Whether architectures are trained by themselves."""
        return self.evaluator == TRAINING

    @property
    def by_score(self) -> bool:
        """Whether a score judges, so that nothing is trained while the space moves."""
        return not self.by_supernet and not self.by_training

    def scoring(self, base: UntrainedSettings) -> UntrainedSettings:
        """The settings of a search by the same score; the others are those of [proxy]."""
        return replace(base, name=self.evaluator)


def judge(session: Session, supernets: Supernets, stage: str, source: str) -> Judge:
    """The recipe's judge: ``judge(space, t)`` gives the accuracies of architectures in the space of step t."""
    if session.config.seek.by_score:
        return _by_score(session, stage, source)
    if session.config.seek.by_training:
        return _by_training(session, stage, source)

    def by_supernet(space: Space, t: int) -> Accuracies:
        supernet = supernets.at(space, t)
        supernet.sample_errors(t)
        return supernet.accuracies(f"{stage}-{t}", source)

    return by_supernet


def scale_of(session: Session) -> Scale:
    """Points of accuracy where something is trained; standard deviations over a space's architectures with a score."""
    seek = session.config.seek
    return Scale(f"standard deviations of {seek.evaluator}", 0.0) if seek.by_score else POINTS


def meter_of(session: Session) -> Meter:
    """The run's meter; with a score it has a lower limit, or the space could shrink to nothing."""
    from tailorvit.methods.untrained import size_band

    config = session.config
    return size_band(session, session.space, config.proxy.band, moving=True) if config.seek.by_score else session.meter


def finish_by_score(session: Session, space: Space) -> dict[str, Any]:
    """Search the last space by the score that moved it, and train the best."""
    from tailorvit.methods.untrained import finish_untrained, search_untrained

    settings = session.config.seek.scoring(session.config.proxy)
    return finish_untrained(session, search_untrained(session, space, settings, "search"))


def judge_facts(session: Session) -> dict[str, Any]:
    """For result.json: who judged the spaces; nothing where it was their supernets, as in the papers."""
    seek, s4 = session.config.seek, session.config.s4
    if seek.by_supernet:
        return {}
    if seek.by_score:
        return {"seek": {"evaluator": seek.evaluator, "samples": SCALE_SAMPLES}}
    survey = {"reach": s4.reach} if session.config.method == "s4" and s4.survey else {}
    return {"seek": {"evaluator": seek.evaluator, "epochs": seek.train_epochs, **survey}}


# -- by training ------------------------------------------------------------------------------------------------------

STREAM = "member"  # batches and random draws derive from this name in every step of a run


class _EventSink(Sink):
    """Logs what went wrong; keeps no checkpoint, because a killed run loses a few epochs of one network at most."""

    def __init__(self, session: Session, stage: str) -> None:
        self.session, self.stage = session, stage

    def event(self, kind: str, text: str) -> None:
        """Into the log."""
        self.session.log(kind, f"{self.stage}: {text}")


def short_training(settings: TrainSettings, epochs: int) -> TrainSettings:
    """[train] for one plain network and that many epochs, the warm-up shortened alike.

    Not compiled: on an H200 blocks ran 1.15 times as fast compiled, which a few epochs do not pay back for every shape.
    """
    short = shortened(settings, epochs / settings.epochs).ending_last()
    return replace(short, rule="single_path", distill=False, reg_largest_only=False, freeze="none", compile=False)


def trained_accuracy(session: Session, arch: Arch, settings: TrainSettings, stage: str) -> float:
    """Percent on the search split after a training from scratch.

    All architectures start from the same random stream and see the same batches.
    """
    seed_everything(session.seed, "init", "plain")
    model = session.build(arch, settings.drop_path)
    batches, seed = session.train_batches(settings, STREAM), derive(session.seed, STREAM, "train") % 2**31
    train(model, batches, Fixed(), settings, seed, _EventSink(session, stage), None, session.device)
    return session.search_accuracy(model)


def _members(session: Session) -> Callable[[Arch, TrainSettings, str], float]:
    """What trains architectures in another process."""
    return partial(trained_accuracy, session)


def _by_training(session: Session, stage: str, source: str) -> Judge:
    epochs = session.config.seek.train_epochs
    settings = short_training(session.config.train, epochs)

    def judge(space: Space, t: int) -> Accuracies:
        name, run = f"{stage}-{t}", session.run

        def accuracies(archs: Sequence[Arch]) -> list[float]:
            known = {a: run.accuracy(name, a) for a in archs}
            todo = [a for a, percent in known.items() if percent is None]

            def record(i: int, percent: float) -> None:
                run.record_trials(name, [vars(session.trial(Candidate(todo[i], source), percent, 0))])
                known[todo[i]] = percent
                session.progress.step(name, i + 1, len(todo), {})

            session.log_once(
                "seek", f"{name}: {len(known)} architectures are trained from scratch, {epochs} epoch(s) each."
            )
            with session.timed(name):
                items = [(arch, settings, name) for arch in todo]
                spread(session, partial(trained_accuracy, session), _members, (), items, record)
            return [float(known[a] or 0.0) for a in archs]

        return accuracies

    return judge


# -- by a score -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreScale:
    """Scores as standard deviations: z = (score - what the size leads one to expect) / spread.

    Scores above zero are taken as logarithms: dss and similar scores are sums that grow as a power of the size.
    """

    log: bool
    mean: float
    size: float  # mean of the log parameters
    slope: float
    spread: float

    @classmethod
    def fit(cls, scores: Sequence[float], params: Sequence[float]) -> ScoreScale:
        """From a sample, as what is left beyond a least-squares line over the log parameters."""
        raw: Floats = np.array(scores, dtype=np.float64)
        log = bool((raw > 0).all())
        y, x = np.log(raw) if log else raw, np.log(np.array(params, dtype=np.float64))
        mean, size = float(y.mean()), float(x.mean())
        around = float(((x - size) ** 2).sum())
        slope = float(((x - size) * (y - mean)).sum()) / around if around > 0 else 0.0
        spread = float((y - mean - slope * (x - size)).std())
        # What is left of a score that is size and nothing else is rounding, which must not be scaled up to an effect.
        spread = spread if spread > 1e-9 * max(float(np.abs(y).max()), 1e-30) else 0.0
        return cls(log, mean, size, slope, spread)

    def __call__(self, score: float | None, params: float) -> float | None:
        """Standard deviations above the expectation; None where there is no score, or no logarithm of it."""
        if score is None or (self.log and score <= 0):
            return None
        y = float(np.log(score)) if self.log else score
        return (y - self.mean - self.slope * (float(np.log(params)) - self.size)) / self.spread if self.spread else 0.0


def _by_score(session: Session, stage: str, source: str) -> Judge:
    from tailorvit.methods.untrained import UntrainedScores, missing_scores, require_scores, values_of

    seek = session.config.seek
    params = session.meter.counter.params

    def judge(space: Space, t: int) -> Accuracies:
        untrained = UntrainedScores(session, space, seek.evaluator)
        scale: list[ScoreScale] = []

        def fit_scale() -> ScoreScale:
            name = f"sample-{t}"
            drawn = space.sample_distinct(SCALE_SAMPLES, generator(session.seed, name))
            rows = untrained.score(name, [Candidate(a, "sample") for a in drawn])
            values = values_of(rows, seek.evaluator)
            require_scores(rows, values, seek.evaluator)
            if text := missing_scores(rows, values):
                session.log_once("warning", f"{name}: {text} They count as worse than any other.")
            known = [(v, params(a)) for a, v in zip(drawn, values, strict=True) if v is not None]
            return ScoreScale.fit([v for v, _ in known], [p for _, p in known])

        def accuracies(archs: Sequence[Arch]) -> list[float]:
            with session.timed(f"{stage}-{t}"):
                if not scale:
                    scale.append(fit_scale())
                rows = untrained.score(f"{stage}-{t}", [Candidate(a, source) for a in archs])
                found = [scale[0](v, params(a)) for a, v in zip(archs, values_of(rows, seek.evaluator), strict=True)]
                lowest = min((z for z in found if z is not None), default=0.0) - NO_SCORE
                return [lowest if z is None else z for z in found]

        return accuracies

    return judge
