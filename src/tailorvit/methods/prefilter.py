"""The pre-filter of an evolution in a run: what it thinks of children, stored, and whether that was worth anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tailorvit.arch import Arch
from tailorvit.methods.session import Session
from tailorvit.proxies.predictor import Predictor
from tailorvit.search import Candidate, Trial
from tailorvit.search.evolution import FITTED, Liking
from tailorvit.space import Space
from tailorvit.stats import kendall

STAGE = "prefilter"


def liking(session: Session, space: Space, name: str) -> Liking:
    """Scores of children, larger is better; each is stored, and what has none comes last."""
    if name == FITTED:
        return _fitted(session, dict(space.fixed))
    from tailorvit.methods.untrained import UntrainedScores, values_of  # it ends with finish, which imports this file

    untrained = UntrainedScores(session, space, name)

    def like(archs: Sequence[Arch]) -> list[float]:
        rows = untrained.score(STAGE, [Candidate(a, "child") for a in archs])
        return [-math.inf if v is None else v for v in values_of(rows, name)]

    return like


def _learned(first: Sequence[tuple[Arch, float]], fixed: Mapping[str, Any]) -> Predictor:
    return Predictor.fit([(arch, fixed) for arch, _ in first], [accuracy for _, accuracy in first])


def _fitted(session: Session, fixed: Mapping[str, Any]) -> Liking:
    """A predictor of this search's own accuracies, fitted once, on the first population.

    That population is stored before the first child is bred, so a resumed search fits the same and goes on alike.
    """
    run = session.run

    @cache
    def model() -> Predictor:
        first = [(t["arch"], float(t["accuracy"])) for t in run.trials("search") if t["generation"] == 0]
        return _learned(first, fixed)

    def like(archs: Sequence[Arch]) -> list[float]:
        known = {t["arch"] for t in run.trials(STAGE)}
        means, errors = (list(map(float, found)) for found in model().predict(archs, fixed))
        rows = [
            {
                **vars(session.trial(Candidate(arch, "child"), 0.0, 0)),
                "accuracy": None,
                "score": mean,
                "proxy": FITTED,
                "scores": {FITTED: mean},
                "parts": {FITTED: {"error": error}},
                "problems": {},
            }
            for arch, mean, error in zip(archs, means, errors, strict=True)
            if arch not in known
        ]
        run.record_trials(STAGE, rows)
        return means

    return like


def facts(session: Session, trials: Sequence[Trial]) -> dict[str, Any]:
    """For result.json: how its answers and the accuracies agree; nothing where there was no filter.

    The first population is not filtered, so its correlation is that of an even sample; later ones were chosen by it.
    A fitted filter has seen the first population: there the correlation is that of answers about rows left out.
    """
    name = str(getattr(session.config.search_settings(), "prefilter", ""))
    known = {t["arch"]: t["score"] for t in session.run.trials(STAGE) if t["score"] is not None} if name else {}
    if not known:
        return {}
    first = [t for t in trials if t.arch in known and t.generation == 0]
    others = [t for t in trials if t.arch in known and (name != FITTED or t.generation)]
    told: dict[str, Any] = {"tau": kendall([known[t.arch] for t in others], [t.accuracy for t in others])}
    if name == FITTED:
        model = _learned([(t.arch, t.accuracy) for t in first], dict(session.space.fixed))
        told |= {"tau_first": model.facts["left_out_tau"], "fit": dict(model.facts)}
    else:
        told["tau_first"] = kendall([known[t.arch] for t in first], [t.accuracy for t in first])
    tau, count = told["tau_first"], len(first)
    # The standard deviation of tau between rankings that have nothing to do with each other.
    chance = math.sqrt(2 * (2 * count + 5) / (9 * count * (count - 1))) if count > 1 else None
    told["helps"] = tau is not None and chance is not None and tau > 2 * chance
    ask = int(session.config.search_settings().ask)
    return {STAGE: {"name": name, "ask": ask, "asked": len(known), "evaluated": len(trials), **told, "chance": chance}}
