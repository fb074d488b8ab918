"""A search by scores without training: candidates under the limits and within a band of sizes, best first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailorvit import units
from tailorvit.arch import Arch
from tailorvit.costs.limits import Limits, Metric
from tailorvit.costs.meter import Meter
from tailorvit.methods.finish import finish
from tailorvit.methods.session import Session
from tailorvit.methods.untrained import Untrained, Values, facts, problems, require_some, settled
from tailorvit.proxies import Scored
from tailorvit.proxies.settings import UntrainedSettings
from tailorvit.rng import derive, generator
from tailorvit.search import Candidate, Trial, searcher
from tailorvit.search.draw import Legal, draw, first_draw
from tailorvit.space import Space
from tailorvit.stats import kendall

STAGE = "score"
GROUP = 50  # members drawn at a time
WORST = -1e30  # the fitness of what has no score: finite, as a searcher may take differences


@dataclass(frozen=True)
class Found:
    """The scored architectures, best first, and what to tell of the search."""

    trials: list[Trial]  # their accuracy is the score: searchers and sorting know no other merit
    facts: dict[str, Any]


def search_untrained(session: Session, space: Space, settings: UntrainedSettings, stage: str = STAGE) -> Found:
    """Score many members of a space within the limits and a band of sizes; each is stored as a trial of the stage."""
    meter = banded(session, space, settings.band)
    meter.require_feasible(space)
    untrained = Untrained(session, space, settings)
    with session.timed(stage):
        candidates = _evolved if settings.evolution else _drawn
        asked = candidates(session, space, meter, untrained, stage)
        rows, values = settled([untrained.known(stage)[c.arch] for c, _ in asked], settings)
        again = [untrained.row(c, r, v, g) for (c, g), r, v in zip(asked, rows, values, strict=True)]
        session.run.record_trials(stage, again)  # scores that rank within a set are known only now
    require_some(rows, values, settings.label)
    _tell(session, settings, rows, values, stage)
    trials = [
        session.trial(c, v, g) for (c, g), v in zip(asked, values, strict=True) if v is not None
    ]  # what has no score never wins
    told = {**facts(settings), **_control(session, rows, values, stage), "limits": meter.limits.to_dict()}
    return Found(trials, {**told, "evolution": settings.evolution})


def finish_untrained(session: Session, found: Found) -> dict[str, Any]:
    """Train the best by score; the result says which figures are scores, since none is an accuracy before training."""
    result = finish(session, found.trials, None)
    score = {t.arch: t.accuracy for t in found.trials}

    def told(row: Mapping[str, Any], key: str) -> dict[str, Any]:
        return {**row, key: None, "score": score[Arch.from_dict(row["arch"])]}

    return {
        **result,
        "search_accuracy": None,
        "score": score[Arch.from_dict(result["arch"])],
        "candidates": [told(row, "search_accuracy") for row in result["candidates"]],
        "front": [told(row, "accuracy") for row in result["front"]],
        "proxy": found.facts,
    }


# -- candidates -------------------------------------------------------------------------------------------------------


Asked = list[tuple[Candidate, int]]  # with the generation


def _drawn(session: Session, space: Space, meter: Meter, untrained: Untrained, stage: str) -> Asked:
    """Different members drawn evenly, as many as asked for or found."""
    kept = session.run.result(f"{stage} draw")
    if kept is None:
        drawn = members(space, meter.fits, generator(session.seed, stage), untrained.settings.candidates)
        kept = [a.to_json() for a in drawn]
        session.run.finish(f"{stage} draw", kept)  # a tight band takes long to draw from
    asked = [Candidate(Arch.from_json(text)) for text in kept]
    untrained.score(stage, asked)
    return [(c, 0) for c in asked]


def members(space: Space, legal: Legal, rng: np.random.Generator, n: int) -> list[Arch]:
    """Up to ``n`` different legal members; fewer once less than one draw in a thousand finds another.

    To exhaust a band that holds 1,090 of 200,000 members would otherwise take two million draws, some minutes.
    """
    found = first_draw(space, legal, rng, min(GROUP, n))
    full = len(found) == GROUP
    while full and len(found) < n:
        wanted = min(GROUP, n - len(found))
        more = draw(space, legal, rng, wanted, set(found))
        found, full = [*found, *more], len(more) == wanted
    return found


def _evolved(session: Session, space: Space, meter: Meter, untrained: Untrained, stage: str) -> Asked:
    """What the recipe's searcher asks for, with the score as fitness, up to the budget."""
    entry = searcher(str(session.config.search.get("name", "evolution")))
    seed = derive(session.seed, stage) % 2**31
    mind = entry.factory(space, meter.fits, seed, session.config.search_settings())
    asked: Asked = []
    while group := mind.ask():
        if asked and len(asked) + len(group) > untrained.settings.candidates:
            break
        generation = mind.generation
        _, values = settled(untrained.score(stage, group, generation), untrained.settings)
        mind.tell([session.trial(c, WORST if v is None else v, generation) for c, v in zip(group, values, strict=True)])
        asked += [(c, generation) for c in group]
    return asked


def banded(session: Session, space: Space, band: float, seeking: bool = False) -> Meter:
    """The run's meter with a lower limit where only an upper one is set, since most scores grow with size.

    While a space moves, the same limit keeps it from shrinking by scores that are read beyond size.
    """
    limits, counted = session.limits, ("params", "macs")
    sized = [row for row in limits if row[0] in counted]
    if any(low is not None for _, low, _ in sized) or band >= 1:
        return session.meter
    bound = next(((metric, high) for metric, _, high in sized if high is not None), None)
    if bound is None:
        session.tell_once(
            "warning",
            "No limit on parameters or MACs is set: most scores grow with size, so the largest networks will win.",
        )
        return session.meter
    metric, high = bound
    top = min(high, session.meter.most(metric, space))
    low = (1 - band) * top
    sizes = f"{metric} from {units.show(low, metric)} to {units.show(top, metric)}"
    text = f"Only networks with {sizes} are scored (proxy.band {band:g}): over all sizes a score mostly ranks by size."
    if seeking:
        text = f"The space moves only where it holds networks with {sizes} (proxy.band {band:g})."
    session.tell_once("band", text)
    rows: tuple[tuple[Metric, float | None, float | None], ...] = tuple(
        (m, low if m == metric else lower, upper) for m, lower, upper in limits
    )
    run = session.run
    return Meter.for_space(space, Limits(rows), device=session.device, recall=run.measured, record=run.record_measured)


# -- telling ----------------------------------------------------------------------------------------------------------


def _tell(session: Session, settings: UntrainedSettings, rows: Sequence[Scored], values: Values, stage: str) -> None:
    lost = problems(rows, values)
    if lost:
        session.tell_once("warning", lost)
    wanted = settings.candidates
    if not settings.evolution and len(rows) < wanted:
        session.tell_once("warning", f"{stage}: only {len(rows):,} different networks within the limits were found.")
    best = max(v for v in values if v is not None)
    text = f"{stage}: {len(rows):,} untrained networks scored by {settings.label}; the best has {best:.5g}."
    session.tell_once("score", text)


def _control(session: Session, rows: Sequence[Scored], values: Values, stage: str) -> dict[str, Any]:
    """How many, how fast, and how much of the ranking is size alone (Kendall's tau-b with the parameters)."""
    there = [
        (v, float(session.meter.counter.params(r.arch))) for r, v in zip(rows, values, strict=True) if v is not None
    ]
    seconds = session.run.seconds().get(stage, 0.0)
    return {
        "scored": len(rows),
        "without_score": len(rows) - len(there),
        "tau_params": kendall([v for v, _ in there], [p for _, p in there]),
        "seconds": seconds,
        "per_second": len(rows) / seconds if seconds > 0 else None,
    }
