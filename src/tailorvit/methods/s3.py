"""S3: shift the space a few times by its E-T errors, search the last one that fits, train what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailorvit.arch import Value
from tailorvit.methods.evaluators import evaluator, finish_by_score, meter_of, scale_of, seek_facts
from tailorvit.methods.finish import finish
from tailorvit.methods.s4 import RunBook
from tailorvit.methods.session import Session, Supernets
from tailorvit.rng import generator
from tailorvit.seek.s3 import Book, Decision, seek
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
        for text in decision.warnings:
            self.session.tell_once("warning", text)
        self.session.tell_once("decision", decision.sentence)


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
    settings = session.config.s3

    def line() -> Supernets:
        return Supernets(session, settings.warm_start, settings.warm_share)

    nets = line()

    ask = evaluator(session, lambda: nets, "et", "et")
    enough = int(getattr(session.config.search_settings(), "population", 1))
    book = S3Book(session)
    same, scale = really(session), scale_of(session)
    found = seek(session.space, meter_of(session), ask, settings, session.seed, book, same, enough, scale)
    session.meter.require_feasible(found.space)
    result = finish_by_score(session, found.space)
    if result is not None:
        return {**result, "backtracks": found.backtracks, **seek_facts(session)}
    if found.backtracks and session.config.seek.in_every_space:
        nets = line()  # weights come back from the folder; the line tells how long they were trained
        for t, space in enumerate(found.path[: found.t]):
            nets.at(space, t)
    net = nets.at(found.space, found.t)
    net.model()  # trained here, so that its time is not counted as the search's
    net.spread(found.t)
    trials = session.search(found.space, lambda candidates, generation: net.score("search", candidates, generation))
    return {**finish(session, trials, net), "backtracks": found.backtracks, **seek_facts(session)}
