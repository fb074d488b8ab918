"""Scores of untrained networks in a run: each stored as a trial without an accuracy, so none is computed twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.methods.session import Session
from tailorvit.proxies import Scored, proxy
from tailorvit.proxies.agreement import rank_sum
from tailorvit.proxies.score import Scorer, rescored
from tailorvit.proxies.settings import UntrainedSettings
from tailorvit.rng import derive
from tailorvit.search import Candidate
from tailorvit.space import Space

CHUNK = 50  # architectures between two writes: a kill costs no more than these
BATCH = 64  # training images for scores that need some

Values = list[float | None]


class Untrained:
    """The members of a space and what the scores say of them; a supernet of random weights is made when first needed.

    Scores depend on the run's seed, the space and the architecture, not on what else was scored or when.
    """

    def __init__(self, session: Session, space: Space, settings: UntrainedSettings) -> None:
        self.session, self.space, self.settings = session, space, settings
        self._scorer: Scorer | None = None
        self._known: dict[str, dict[Arch, Scored]] = {}

    def score(self, stage: str, candidates: Sequence[Candidate], generation: int = 0) -> list[Scored]:
        """Scores in the order given; those not stored under the stage are computed and stored."""
        run, known = self.session.run, self.known(stage)
        todo = list({c.arch: c for c in candidates if c.arch not in known}.values())
        for at in range(0, len(todo), CHUNK):
            group = todo[at : at + CHUNK]
            rows = self._ready()([c.arch for c in group])
            values = combined(rows, self.settings)
            run.record_trials(
                stage, [self.row(c, r, v, generation) for c, r, v in zip(group, rows, values, strict=True)]
            )
            known.update({r.arch: r for r in rows})
            self.session.progress.step(stage, at + len(group), len(todo), {})
        return [known[c.arch] for c in candidates]

    def known(self, stage: str) -> dict[Arch, Scored]:
        """What is stored under a stage."""
        if stage not in self._known:
            self._known[stage] = {
                t["arch"]: Scored(t["arch"], t["params"], t["macs"], t["scores"], t["parts"], t["problems"])
                for t in self.session.run.trials(stage)
            }
        return self._known[stage]

    def row(self, candidate: Candidate, scored: Scored, value: float | None, generation: int) -> dict[str, Any]:
        """A trial as the run folder keeps it: no accuracy, since nothing was trained, and a score."""
        trial = vars(self.session.trial(candidate, 0.0, generation))
        told = {k: v for k, v in scored.to_dict().items() if k in ("scores", "parts", "problems")}
        return {**trial, "accuracy": None, "score": value, "proxy": self.settings.label, **told}

    def _ready(self) -> Scorer:
        if self._scorer is None:
            s, settings = self.session, self.settings
            seed = derive(s.seed, "untrained") % 2**31
            needs = any(proxy(n).needs == "images" for n in settings.names) and not settings.noise
            images = _images(s, settings) if needs else None
            self._scorer = Scorer(self.space, settings=settings, seed=seed, device=s.device, images=images)
        return self._scorer


def combined(rows: Sequence[Scored], settings: UntrainedSettings) -> Values:
    """One figure an architecture, larger is better: the first score, or the sum of ranks; None where there is none."""
    each = {n: [None if r.scores[n] is None else r.rank_value(n) for r in rows] for n in settings.names}
    return rank_sum(each) if settings.combine == "ranks" else each[settings.names[0]]


def settled(rows: Sequence[Scored], settings: UntrainedSettings) -> tuple[list[Scored], Values]:
    """Rows and figures over a whole candidate set: scores that only rank within a set are made anew over all of it."""
    whole = rescored(rows)
    return whole, combined(whole, settings)


def problems(rows: Sequence[Scored], values: Values) -> str | None:
    """What to tell about architectures without a figure: how many, and why the first has none."""
    lost = [r for r, v in zip(rows, values, strict=True) if v is None]
    if not lost:
        return None
    why = next((text for r in lost for text in r.problems.values()), "no reason given.")
    return f"{len(lost):,} of {len(rows):,} architectures have no score and cannot be chosen; the first: {why}"


def require_some(rows: Sequence[Scored], values: Values, label: str) -> None:
    """Raise where nothing has a score."""
    if all(v is None for v in values):
        why = next((text for r in rows for text in r.problems.values()), "there was none to score.")
        raise TailorError(f"None of {len(rows):,} architectures has a score by {label}: {why}")


def _images(session: Session, settings: UntrainedSettings) -> tuple[Tensor, Tensor]:
    """Training images in random order, as evaluation sees them."""
    seed = derive(session.seed, "untrained", "images") % 2**31
    batch = session.data.train_batches(settings.batch or BATCH, seed, session.data.augment("none")).at(0)
    x = batch.x
    size = settings.image_size
    if size is not None and tuple(x.shape[2:]) != (size, size):
        x = torch.nn.functional.interpolate(x, (size, size), mode="bilinear", antialias=True)
    return x, batch.y


def facts(settings: UntrainedSettings) -> Mapping[str, Any]:
    """The settings behind a score, for result.json."""
    kept = ("names", "reading", "inits", "image_size", "combine")
    return {k: list(v) if isinstance(v := getattr(settings, k), tuple) else v for k in kept}
