"""S3: shift the space a few times by its E-T errors, search the last one that fits, train what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailorvit.arch import Value
from tailorvit.methods import Method
from tailorvit.methods.finish import finish
from tailorvit.methods.judges import finish_by_score, judge, judge_facts, meter_of, scale_of
from tailorvit.methods.session import S3Journal, Session, Supernets
from tailorvit.rng import generator
from tailorvit.seek.s3 import Distinct, shift_space
from tailorvit.space import Dim, Space


def s3(session: Session) -> dict[str, Any]:
    """Run S3 end to end."""
    settings = session.config.s3
    supernets = Supernets(session, settings.warm_start)
    path = shift_space(
        session.space,
        meter_of(session),
        judge(session, supernets, "et", "et"),
        settings,
        session.seed,
        S3Journal(session),
        distinct_choices(session),
        int(getattr(session.config.search_settings(), "population", 1)),
        scale_of(session),
    )
    session.meter.require_feasible(path.space)
    facts = {"backtracks": path.backtracks, **judge_facts(session)}
    if session.config.seek.by_score:
        return {**finish_by_score(session, path.space), **facts}
    if path.backtracks and session.config.seek.by_supernet:
        # The weights come back from the folder; the sequence says how many epochs they have seen.
        supernets = Supernets(session, settings.warm_start)
        for t, space in enumerate(path.spaces[: path.t]):
            supernets.at(space, t)
    supernet = supernets.at(path.space, path.t)
    return {**finish(session, supernet.search(path.t), supernet), **facts}


def distinct_choices(session: Session) -> Distinct:
    """Which choices give the same network: a window beyond the feature map is cut to it, so the outlines are equal."""
    outline, settings = session.family.outline, session.meter.counter.shared

    def distinct(space: Space, dim: Dim) -> Sequence[Value]:
        largest, first = space.largest(), dict[str, Value]()
        rng = generator(0, "same")  # for the blocks of a greater depth; the largest has them all
        outlines = [repr(outline(settings, space.with_value(largest, dim.key, v, rng))) for v in dim.choices]
        for choice, text in zip(dim.choices, outlines, strict=True):
            first.setdefault(text, choice)
        return [first[text] for text in outlines]

    return distinct


METHOD = Method("s3", "shift the space by the error of its subspaces, then search it (S3)", s3)
