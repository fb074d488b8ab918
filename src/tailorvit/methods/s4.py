"""S4: move the space a few times, search the last one, train what was found."""

from __future__ import annotations

import math
from typing import Any

from tailorvit import units
from tailorvit.methods.anchors import anchored
from tailorvit.methods.evaluators import evaluator, finish_by_score, meter_of, scale_of, seek_facts
from tailorvit.methods.finish import finish
from tailorvit.methods.session import Session, Supernets
from tailorvit.seek.moves import size_metric, size_of
from tailorvit.seek.s4 import Book, Decision, options_at, seek
from tailorvit.space import Space


class RunBook(Book):
    """Keeps every space, slope and decision in the run folder."""

    def __init__(self, session: Session) -> None:
        self.session, self._count = session, 0

    def space(self, t: int, space: Space, repaired: bool) -> None:
        """A space was reached."""
        facts = {"step": t, "repair": repaired, "largest": self.session.meter.largest(space)}
        self.session.run.record_space(self._count, space, **facts, count_log10=math.log10(space.count()))
        self._count += 1

    def decided(self, decision: Decision) -> None:
        """A decision was made; told once, also when a resumed run makes it again."""
        run = self.session.run
        for slope in decision.slopes:
            run.record_slope(decision.t, slope.dim, slope.to_dict())
        run.record_decision(decision.t, decision.to_dict())
        self.session.tell_once("decision", decision.sentence)


def tell_idle_limit(session: Session) -> None:
    """Say so where a counted limit lies over the space and all its neighbours: S4 then moves as if there were none."""
    meter, space, settings = session.meter, session.space, session.config.s4
    metric = size_metric(meter)
    high = meter.limits.high(metric) if metric in ("params", "macs") else None  # type: ignore[arg-type]
    if high is None or not settings.iterations:
        return
    near = max((m.size for m in options_at(space, meter, settings, False)), default=0.0)
    most = size_of(space, meter, metric, settings.sized_by)
    if max(near, most) < high:
        session.tell_once(
            "warning",
            f"The limit of {units.show(high, metric)} {metric} holds nothing back at first: the "
            f"{settings.sized_by} member of the space has {units.show(most, metric)}, that of its largest neighbour "
            f"{units.show(near, metric)}.",
        )


def s4(session: Session) -> dict[str, Any]:
    """Run S4 end to end."""
    settings = session.config.s4
    tell_idle_limit(session)
    slow = session.limits.measured
    if slow and settings.iterations:
        session.tell_once(
            "measuring",
            f"Neighbouring spaces are measured for their {' and '.join(slow)} at every step, which takes a while.",
        )
    nets = Supernets(session, settings.warm_start, settings.warm_share)

    ask, scale = evaluator(session, lambda: nets, "slopes", "pair"), scale_of(session)
    correct = anchored(session, nets) if settings.anchors else None
    space, t, _ = seek(session.space, meter_of(session), ask, settings, session.seed, RunBook(session), scale, correct)
    session.meter.require_feasible(space)
    found = finish_by_score(session, space)
    if found is not None:
        return {**found, **seek_facts(session)}
    net = nets.at(space, t)
    net.model()  # trained here, so that its time is not counted as the search's
    net.spread(t)
    trials = session.search(space, lambda candidates, generation: net.score("search", candidates, generation))
    return {**finish(session, trials, net), **seek_facts(session)}
