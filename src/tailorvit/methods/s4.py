"""S4: move the space a few times, search the last one, train what was found."""

from __future__ import annotations

from typing import Any

from tailorvit import units
from tailorvit.methods import Method
from tailorvit.methods.finish import finish
from tailorvit.methods.first_space import baseline_arch
from tailorvit.methods.judges import finish_by_score, judge, judge_facts, meter_of, scale_of
from tailorvit.methods.session import S4Journal, Session, Supernets
from tailorvit.seek.s4 import broken_limit, move_space, moves_for, size_of


def s4(session: Session) -> dict[str, Any]:
    """Run S4 end to end."""
    settings = session.config.s4
    _announce(session)
    supernets = Supernets(session, settings.warm_start)
    meter, space = meter_of(session), session.space
    broken = broken_limit(space, meter, settings.sized_by)
    space, t, _ = move_space(
        space,
        meter,
        judge(session, supernets, "slopes", "pair"),
        settings,
        session.seed,
        S4Journal(session),
        scale_of(session),
        None if broken is None else baseline_arch(space, session.meter),
    )
    session.meter.require_feasible(space)
    if session.config.seek.by_score:
        return {**finish_by_score(session, space), **judge_facts(session)}
    supernet = supernets.at(space, t)
    return {**finish(session, supernet.search(t), supernet), **judge_facts(session)}


def _announce(session: Session) -> None:
    """Say what is slow, and where a limit lies over the space and all its neighbours, so that it restricts nothing."""
    meter, space, settings = session.meter, session.space, session.config.s4
    if not settings.iterations:
        return
    if session.limits.measured:
        metrics = " and ".join(session.limits.measured)
        session.log_once(
            "measuring", f"S4 measures the {metrics} of all neighbouring spaces at every step: this is slow."
        )
    metric = meter.size_metric
    high = meter.limits.high(metric) if metric in ("params", "macs") else None
    if high is None:
        return
    here = size_of(space, meter, metric, settings.sized_by)
    largest = max((m.size for m in moves_for(space, meter, settings, legal=False)), default=0.0)
    if max(largest, here) < high:
        session.log_once(
            "warning",
            f"The limit of {units.show(high, metric)} {metric} restricts nothing at first: the {settings.sized_by} "
            f"network of the space has {units.show(here, metric)}, that of its largest neighbour "
            f"{units.show(largest, metric)}.",
        )


METHOD = Method("s4", "move the space along the accuracy gradient under the limit, then search it (S4)", s4)
