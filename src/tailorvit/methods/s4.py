"""S4: move the space a few times, search the last one, train what was found."""

from __future__ import annotations

import math
from typing import Any

from tailorvit.methods.finish import finish
from tailorvit.methods.session import Session, Supernets
from tailorvit.seek.s4 import Book, Decision, seek
from tailorvit.seek.slopes import Accuracies
from tailorvit.space import Space


class RunBook(Book):
    """Keeps every space, slope and decision in the run folder."""

    def __init__(self, session: Session) -> None:
        self.session, self._count = session, 0

    def space(self, t: int, space: Space, repaired: bool) -> None:
        """A space was reached."""
        params, macs = self.session.meter.counter.both(space.largest())
        facts = {"step": t, "repair": repaired, "largest": {"params": params, "macs": macs}}
        self.session.run.record_space(self._count, space, **facts, count_log10=math.log10(space.count()))
        self._count += 1

    def decided(self, decision: Decision) -> None:
        """A decision was made; told once, also when a resumed run makes it again."""
        run = self.session.run
        for slope in decision.slopes:
            run.record_slope(decision.t, slope.dim, slope.to_dict())
        run.record_decision(decision.t, decision.to_dict())
        self.session.tell_once("decision", decision.sentence)


def s4(session: Session) -> dict[str, Any]:
    """Run S4 end to end."""
    settings = session.config.s4
    nets = Supernets(session, settings.warm_start, settings.warm_share)

    def evaluator(space: Space, t: int) -> Accuracies:
        net = nets.at(space, t)
        net.spread(t)
        return net.accuracies(f"slopes-{t}")

    space, t, _ = seek(session.space, session.meter, evaluator, settings, session.seed, RunBook(session))
    session.meter.require_feasible(space)
    net = nets.at(space, t)
    net.model()  # trained here, so that its time is not counted as the search's
    net.spread(t)
    trials = session.search(space, lambda candidates, generation: net.score("search", candidates, generation))
    return finish(session, trials, net)
