"""A search by scores without training: architectures within limits and a band of sizes are scored, the best trained.

Each score is stored as a trial without an accuracy, so none is computed twice. TF-TAS searches this way, and so do S4
and S3 where a proxy evaluates their spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from tailorvit import ranks, units
from tailorvit.arch import Arch
from tailorvit.costs.limits import Limits, Metric
from tailorvit.costs.meter import Meter
from tailorvit.errors import TailorError
from tailorvit.methods import Method
from tailorvit.methods.finish import finish
from tailorvit.methods.session import Session, SpaceRecord
from tailorvit.methods.team import spread
from tailorvit.proxies import PROXIES, ProxySettings, Scored
from tailorvit.proxies.score import Scorer, rescored
from tailorvit.rng import derive, generator
from tailorvit.search import SEARCHERS, Candidate, Trial
from tailorvit.search.base import Legal, draw, first_draw
from tailorvit.space import Space
from tailorvit.stats import kendall

STAGE = "score"
CHUNK = 50  # architectures between two writes: a killed run loses no more than these
PART = 5  # architectures that one process scores before it asks for more
GROUP = 50  # architectures sampled at a time
WORST = -1e30  # the fitness of an architecture without a score: finite, as a searcher may take differences

Values = list[float | None]  # one per architecture, larger is better; None where there is no score


@dataclass(frozen=True)
class UntrainedSettings:
    """[proxy]: a search by a score without training: which score, how many architectures, of which sizes."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    name: str = "dss"  # the proxy
    candidates: int = 2000  # architectures scored at most; the released code scores 8,000
    evolution: bool = False  # let the recipe's searcher propose them, with the score as fitness, instead of sampling
    band: float = 0.2  # with an upper limit on size and no lower one: score only sizes at most this share below it

    def __post_init__(self) -> None:
        chosen = PROXIES[self.name]  # an unknown name is an error that lists the known ones
        if self.candidates < 1:
            raise TailorError(f"proxy.candidates must be at least 1, not {self.candidates}.")
        if not 0 < self.band <= 1:
            raise TailorError(f"proxy.band must lie above 0 and up to 1 (no band), not {self.band:g}.")
        if self.evolution and chosen.together is not None:
            raise TailorError(
                f"proxy.evolution needs a score that stands by itself: {self.name} ranks candidates within one set, "
                "and the set changes with every generation."
            )


# -- stored scores ----------------------------------------------------------------------------------------------------


class UntrainedScores:
    """Scores of a space's architectures, computed when first asked for and stored with the run.

    They depend on the run's seed, the space and the architecture, not on what else was scored or when.
    """

    def __init__(self, session: Session, space: Space, name: str) -> None:
        self.session, self.space, self.name = session, space, name
        self._scorer: Scorer | None = None
        self._known: dict[str, dict[Arch, Scored]] = {}

    def score(self, stage: str, candidates: Sequence[Candidate], generation: int = 0) -> list[Scored]:
        """Scores in the order given; those not stored under the stage are computed and stored."""
        run, known = self.session.run, self.known(stage)
        missing = list({c.arch: c for c in candidates if c.arch not in known}.values())
        for at in range(0, len(missing), CHUNK):
            group = missing[at : at + CHUNK]
            rows = self._rows([c.arch for c in group])
            run.record_trials(stage, [self.trial(c, r, generation) for c, r in zip(group, rows, strict=True)])
            known.update({r.arch: r for r in rows})
            self.session.progress.step(stage, at + len(group), len(missing), {})
        return [known[c.arch] for c in candidates]

    def known(self, stage: str) -> dict[Arch, Scored]:
        """The scores stored under a stage."""
        if stage not in self._known:
            self._known[stage] = {
                t["arch"]: Scored(t["arch"], t["params"], t["macs"], t["scores"], t["parts"], t["problems"])
                for t in self.session.run.trials(stage)
                if self.name in t["scores"]
            }
        return self._known[stage]

    def trial(self, candidate: Candidate, scored: Scored, generation: int) -> dict[str, Any]:
        """A trial as the run folder stores it: a score, and no accuracy, since nothing was trained."""
        row = vars(self.session.trial(candidate, 0.0, generation))
        facts = {k: v for k, v in scored.to_dict().items() if k in ("scores", "parts", "problems")}
        return {**row, "accuracy": None, "score": scored.value(self.name), "proxy": self.name, **facts}

    def _rows(self, archs: Sequence[Arch]) -> list[Scored]:
        """Scores computed by all processes of the run."""
        parts = [(archs[at : at + PART],) for at in range(0, len(archs), PART)]
        rows: list[Scored] = []

        def done(_: int, found: list[Scored]) -> None:
            rows.extend(found)

        spread(self.session, lambda part: self._ready()(part), scorer_of, (self.space, self.name), parts, done)
        return rescored(rows)  # some scores rank within a set, and the parts were sets of their own

    def _ready(self) -> Scorer:
        if self._scorer is None:
            s, seed = self.session, derive(self.session.seed, "untrained") % 2**31
            images = _images(s, PROXIES[self.name].batch) if PROXIES[self.name].needs == "images" else None
            settings = ProxySettings((self.name,))
            self._scorer = Scorer(self.space, settings=settings, seed=seed, device=s.device, images=images)
        return self._scorer


def scorer_of(session: Session, space: Space, name: str) -> Callable[[Sequence[Arch]], list[Scored]]:
    """What scores architectures of a space in another process; the last one is kept."""
    held = ranks.kept()
    if held.get("scored") != (space, name):
        held["scored"], held["scorer"] = (space, name), UntrainedScores(session, space, name)._ready()
    scorer: Scorer = held["scorer"]
    return scorer


def _images(session: Session, batch: int) -> tuple[Tensor, Tensor]:
    """Training images in random order, without augmentation."""
    seed = derive(session.seed, "untrained", "images") % 2**31
    first = session.data.train_batches(batch, seed, session.data.augment("none")).at(0)
    return first.x, first.y


def values_of(rows: Sequence[Scored], name: str) -> Values:
    """One proxy's scores, with the sign turned so that larger is better."""
    return [r.value(name) for r in rows]


def missing_scores(rows: Sequence[Scored], values: Values) -> str | None:
    """A sentence about architectures without a score: how many, and why the first has none."""
    without = [r for r, v in zip(rows, values, strict=True) if v is None]
    if not without:
        return None
    why = next((text for r in without for text in r.problems.values()), "no reason given.")
    return f"{len(without):,} of {len(rows):,} architectures have no score and cannot be chosen; the first: {why}"


def require_scores(rows: Sequence[Scored], values: Values, name: str) -> None:
    """Raise where no architecture has a score."""
    if all(v is None for v in values):
        why = next((text for r in rows for text in r.problems.values()), "there was none to score.")
        raise TailorError(f"None of {len(rows):,} architectures has a score by {name}: {why}")


# -- the search -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UntrainedSearch:
    """The scored architectures, best first, and facts about the search for result.json."""

    trials: list[Trial]  # their accuracy is the score: searchers and sorting know nothing else
    facts: dict[str, Any]


Proposed = list[tuple[Candidate, int]]  # with the generation


def search_untrained(
    session: Session, space: Space, settings: UntrainedSettings, stage: str = STAGE
) -> UntrainedSearch:
    """Score many architectures of a space within the limits and a band of sizes; each is a trial of the stage."""
    meter = size_band(session, space, settings.band)
    meter.require_feasible(space)
    scores = UntrainedScores(session, space, settings.name)
    with session.timed(stage):
        propose = _evolve if settings.evolution else _sample
        proposed = propose(session, space, meter, scores, settings, stage)
        rows = rescored([scores.known(stage)[c.arch] for c, _ in proposed])
        # Stored again: scores that rank within a set are final only now.
        session.run.record_trials(stage, [scores.trial(c, r, g) for (c, g), r in zip(proposed, rows, strict=True)])
    values = values_of(rows, settings.name)
    require_scores(rows, values, settings.name)
    _log(session, settings, rows, values, stage)
    trials = [session.trial(c, v, g) for (c, g), v in zip(proposed, values, strict=True) if v is not None]
    facts = {"names": [settings.name], **_statistics(session, rows, values, stage), "limits": meter.limits.to_dict()}
    return UntrainedSearch(trials, {**facts, "evolution": settings.evolution})


def finish_untrained(session: Session, found: UntrainedSearch) -> dict[str, Any]:
    """Train the best by score; in the result, scores stand under ``score`` and accuracies of the search are None."""
    result = finish(session, found.trials, None)
    score = {t.arch: t.accuracy for t in found.trials}

    def with_score(row: Mapping[str, Any], key: str) -> dict[str, Any]:
        return {**row, key: None, "score": score.get(Arch.from_dict(row["arch"]))}  # the baseline has none

    return {
        **result,
        "search_accuracy": None,
        "score": score.get(Arch.from_dict(result["arch"])),
        "candidates": [with_score(row, "search_accuracy") for row in result["candidates"]],
        "front": [with_score(row, "accuracy") for row in result["front"]],
        "proxy": found.facts,
    }


def _sample(
    session: Session, space: Space, meter: Meter, scores: UntrainedScores, settings: UntrainedSettings, stage: str
) -> Proposed:
    """Different architectures, sampled uniformly."""
    stored = session.run.result(f"{stage} draw")
    if stored is None:
        archs = sample_different(space, meter.fits, generator(session.seed, stage), settings.candidates)
        stored = [a.to_json() for a in archs]
        session.run.finish(f"{stage} draw", stored)  # sampling from a tight band takes long
    candidates = [Candidate(Arch.from_json(text)) for text in stored]
    scores.score(stage, candidates)
    return [(c, 0) for c in candidates]


def sample_different(space: Space, legal: Legal, rng: np.random.Generator, n: int) -> list[Arch]:
    """Up to ``n`` different legal architectures; fewer once less than one sample in a thousand is new.

    To find all of a band that holds 1,090 of 200,000 architectures would take two million samples, some minutes.
    """
    found = dict.fromkeys(first_draw(space, legal, rng, min(GROUP, n)))
    full = len(found) == GROUP
    while full and len(found) < n:
        wanted = min(GROUP, n - len(found))
        more = draw(space, legal, rng, wanted, found)
        found.update(dict.fromkeys(more))
        full = len(more) == wanted
    return list(found)


def _evolve(
    session: Session, space: Space, meter: Meter, scores: UntrainedScores, settings: UntrainedSettings, stage: str
) -> Proposed:
    """What the recipe's searcher proposes, with the score as fitness."""
    entry = SEARCHERS[session.config.searcher]
    seed = derive(session.seed, stage) % 2**31
    search = entry.factory(space, meter.fits, seed, session.config.search_settings())
    proposed: Proposed = []
    while group := search.ask():
        if proposed and len(proposed) + len(group) > settings.candidates:
            break
        generation = search.generation
        values = values_of(scores.score(stage, group, generation), settings.name)
        search.tell(
            [session.trial(c, WORST if v is None else v, generation) for c, v in zip(group, values, strict=True)]
        )
        proposed += [(c, generation) for c in group]
    return proposed


def size_band(session: Session, space: Space, band: float, moving: bool = False) -> Meter:
    """The run's meter with a lower limit where only an upper one is set, since most scores grow with size.

    While a space moves (``seeking``), the same limit keeps it from shrinking.
    """
    limits, counted = session.limits, ("params", "macs")
    sized = [row for row in limits if row[0] in counted]
    if any(low is not None for _, low, _ in sized) or band >= 1:
        return session.meter
    bound = next(((metric, high) for metric, _, high in sized if high is not None), None)
    if bound is None:
        session.log_once(
            "warning",
            "No limit on parameters or MACs is set: most scores grow with size, so the largest networks will win.",
        )
        return session.meter
    metric, high = bound
    top = min(high, session.meter.most(metric, space))
    low = (1 - band) * top
    sizes = f"{metric} from {units.show(low, metric)} to {units.show(top, metric)}"
    text = f"Only networks with {sizes} are scored (proxy.band {band:g}): over all sizes a score mostly ranks by size."
    if moving:
        text = f"The space moves only where it holds networks with {sizes} (proxy.band {band:g})."
    session.log_once("band", text)
    rows: tuple[tuple[Metric, float | None, float | None], ...] = tuple(
        (m, low if m == metric else lower, upper) for m, lower, upper in limits
    )
    return Meter.for_space(space, Limits(rows), **session.measuring)


def _log(session: Session, settings: UntrainedSettings, rows: Sequence[Scored], values: Values, stage: str) -> None:
    warning = missing_scores(rows, values)
    if warning:
        session.log_once("warning", warning)
    if not settings.evolution and len(rows) < settings.candidates:
        session.log_once("warning", f"{stage}: only {len(rows):,} different networks within the limits were found.")
    best = max(v for v in values if v is not None)
    text = f"{stage}: {len(rows):,} untrained networks scored by {settings.name}; the best has {best:.5g}."
    session.log_once("score", text)


def _statistics(session: Session, rows: Sequence[Scored], values: Values, stage: str) -> dict[str, Any]:
    """How many, how fast, and how much of the ranking is size alone (Kendall's tau-b with the parameters)."""
    scored = [
        (v, float(session.meter.counter.params(r.arch))) for r, v in zip(rows, values, strict=True) if v is not None
    ]
    seconds = session.run.seconds().get(stage, 0.0)
    return {
        "scored": len(rows),
        "without_score": len(rows) - len(scored),
        "tau_params": kendall([v for v, _ in scored], [p for _, p in scored]),
        "seconds": seconds,
        "per_second": len(rows) / seconds if seconds > 0 else None,
    }


def tftas(session: Session) -> dict[str, Any]:
    """Run TF-TAS end to end."""
    SpaceRecord(session).space_reached(0, session.space)
    return finish_untrained(session, search_untrained(session, session.space, session.config.proxy))


METHOD = Method("tf-tas", "score untrained networks under the limits, train the best of them (TF-TAS)", tftas)
