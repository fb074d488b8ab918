"""The pre-filter of an evolution in a run: what it thinks of children, stored, and whether that was worth anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tailorvit.arch import Arch
from tailorvit.methods.session import Session
from tailorvit.methods.untrained import Untrained, combined
from tailorvit.search import Candidate, Trial
from tailorvit.space import Space
from tailorvit.stats import kendall

STAGE = "prefilter"


def liking(session: Session, space: Space, name: str) -> Callable[[Sequence[Arch]], list[float]]:
    """Scores of children, larger is better; each is stored, and what has none comes last."""
    untrained = Untrained(session, space, replace(session.config.proxy, names=(name,), combine="single"))

    def like(archs: Sequence[Arch]) -> list[float]:
        rows = untrained.score(STAGE, [Candidate(a, "child") for a in archs])
        return [-math.inf if v is None else v for v in combined(rows, untrained.settings)]

    return like


def facts(session: Session, trials: Sequence[Trial]) -> dict[str, Any]:
    """For result.json: how its answers and the accuracies agree; nothing where there was no filter.

    The first population is not filtered, so its correlation is that of an even sample; later ones were chosen by it.
    """
    name = str(getattr(session.config.search_settings(), "prefilter", ""))
    known = {t["arch"]: t["score"] for t in session.run.trials(STAGE) if t["score"] is not None} if name else {}
    if not known:
        return {}
    found = {
        "tau": [t for t in trials if t.arch in known],
        "tau_first": [t for t in trials if t.arch in known and t.generation == 0],
    }
    told: dict[str, Any] = {k: kendall([known[t.arch] for t in v], [t.accuracy for t in v]) for k, v in found.items()}
    first, count = told["tau_first"], len(found["tau_first"])
    # The standard deviation of tau between rankings that have nothing to do with each other.
    chance = math.sqrt(2 * (2 * count + 5) / (9 * count * (count - 1))) if count > 1 else None
    told["helps"] = first is not None and chance is not None and first > 2 * chance
    ask = int(session.config.search_settings().ask)
    return {STAGE: {"name": name, "ask": ask, "asked": len(known), "evaluated": len(trials), **told, "chance": chance}}
