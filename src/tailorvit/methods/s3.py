"""S3: shift the space a few times by its E-T errors, search the last one that fits, train what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tailorvit.arch import Arch, Value
from tailorvit.methods.finish import finish
from tailorvit.methods.s4 import RunBook
from tailorvit.methods.session import Session, Supernet
from tailorvit.rng import generator
from tailorvit.search import Candidate
from tailorvit.seek.s3 import Book, Decision, seek
from tailorvit.seek.slopes import Accuracies
from tailorvit.space import Dim, Space


class S3Book(Book):
    """Keeps every space, fit and decision in the run folder."""

    def __init__(self, session: Session) -> None:
        self.session, self._spaces = session, RunBook(session)

    def space(self, t: int, space: Space) -> None:
        """A space was reached, or gone back to."""
        self._spaces.space(t, space, False)

    def decided(self, decision: Decision) -> None:
        """A decision was made; told once, also when a resumed run makes it again."""
        run = self.session.run
        for fit in decision.slopes:
            run.record_slope(decision.t, fit.dim, fit.to_dict())
        run.record_decision(decision.t, decision.to_dict())
        lines = [*(("warning", text) for text in decision.warnings), ("decision", decision.sentence)]
        for kind, text in lines:
            if text not in {e["text"] for e in run.events(kind)}:
                self.session.tell(kind, text)


def really(session: Session) -> Any:
    """Which choices are the same network: a window beyond the map is cut to it, so the outlines are equal."""
    outline, frame = session.family.outline, session.meter.counter.frame

    def same(space: Space, dim: Dim) -> Sequence[Value]:
        top, first = space.largest(), dict[str, Value]()
        rng = generator(0, "same")  # for the blocks of a greater depth; the largest has them all
        for v in dim.choices:
            first.setdefault(repr(outline(frame, space.with_value(top, dim.key, v, rng))), v)
        return [first[repr(outline(frame, space.with_value(top, dim.key, v, rng)))] for v in dim.choices]

    return same


def s3(session: Session) -> dict[str, Any]:
    """Run S3 end to end."""
    settings, nets = session.config.s3, dict[int, Supernet]()
    work = _sharing(session, settings.warm_share)

    def net_at(space: Space, t: int) -> Supernet:
        if t not in nets:
            before = nets.pop(t - 1, None)
            nets[t] = work.supernet(space, t, before if settings.warm_start else None)
        return nets[t]

    def evaluator(space: Space, t: int) -> Accuracies:
        net = net_at(space, t)
        net.spread(t)
        return _accuracies(net, f"et-{t}")

    enough = int(getattr(session.config.search_settings(), "population", 1))
    book = S3Book(session)
    found = seek(session.space, session.meter, evaluator, settings, session.seed, book, really(session), enough)
    session.meter.require_feasible(found.space)
    if found.backtracks:
        nets.clear()  # weights come back from the folder; the line of supernets tells how long they were trained
        for t, space in enumerate(found.path[: found.t + 1]):
            net_at(space, t)
    net = net_at(found.space, found.t)
    net.model()  # trained here, so that its time is not counted as the search's
    net.spread(found.t)
    trials = session.search(found.space, lambda candidates, generation: net.score("search", candidates, generation))
    return {**finish(session, trials, net), "backtracks": found.backtracks}


def _sharing(session: Session, share: float) -> Session:
    """The same session with S3's share of the epochs for warm-started supernets."""
    config = replace(session.config, s4=replace(session.config.s4, warm_share=share))
    args = (session.run, session.data, session.space, session.limits, session.device, session.progress)
    return Session(config, *args)


def _accuracies(net: Supernet, stage: str) -> Accuracies:
    """Accuracies of members, stored under a stage."""
    run = net.session.run

    def ask(archs: Sequence[Arch]) -> list[float]:
        if any(run.accuracy(stage, a) is None for a in archs):
            net.model()  # trained here, so that its time is not counted as this stage's
        with net.session.timed(stage):
            return [t.accuracy for t in net.score(stage, [Candidate(a, "et") for a in archs])]

    return ask
