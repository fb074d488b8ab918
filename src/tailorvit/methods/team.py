"""The work of a run on all processes of a torchrun: one training together, or many items among them.

The writer runs the method as a process alone does. Where there is work to share it sends the others a message; they
wait for messages, and know nothing of the method. So no decision is taken twice, and none can differ.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from tailorvit import ranks
from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.rng import derive
from tailorvit.space import Space
from tailorvit.train import Rule, Sink, Teacher, TrainSettings, train
from tailorvit.train.compiled import uncompiled
from tailorvit.train.loop import Trained
from tailorvit.train.rules import paths_of_rule
from tailorvit.train.share import Share, cannot_share

if TYPE_CHECKING:
    from tailorvit.config import Config
    from tailorvit.methods.session import Session


@dataclass(frozen=True)
class Begin:
    """A run begins: what another process needs to prepare it as the writer did."""

    config: Config
    splits: dict[str, Any]
    start: Any


@dataclass(frozen=True)
class Together:
    """A training in which all take part."""

    space: Space
    config: Config
    arguments: tuple[Any, ...]  # of train_stream: network, rule (None: told step by step), settings, stream, teacher


@dataclass(frozen=True)
class Spread:
    """Items, each of which one process works on."""

    space: Space
    config: Config
    work: Callable[..., Callable[..., Any]]  # (session, *shared) gives what is called with an item
    shared: tuple[Any, ...]
    items: tuple[Any, ...]


@dataclass(frozen=True)
class Done:
    """The run has ended with this result."""

    folder: Path
    facts: dict[str, Any] = field(default_factory=dict)


# -- the writer -----------------------------------------------------------------------------------------------------


def begin(session: Session) -> Session:
    """The session of a run whose work is shared; with one process, the session itself."""
    if ranks.world() == 1:
        return session
    plan = session.plan
    ranks.broadcast(Begin(plan.config, plan.data.split_record(), plan.start))
    require_all(None)
    session.log_once("ranks", f"{ranks.world()} processes share the work of this run.")
    return session.sharing(True)


def require_all(problem: str | None) -> None:
    """Refuse the run in all processes where one of them cannot take part."""
    for number, found in enumerate(ranks.gather(problem)):
        if found is not None:
            raise TailorError(f"Process {number + 1} of {ranks.world()} cannot take part: {found}")


def train_together(
    session: Session,
    model: nn.Module,
    rule: Rule,
    settings: TrainSettings,
    stream: str,
    sink: Sink,
    evaluate: Any,
    teacher: Teacher | None,
) -> Trained:
    """Train a network on all processes, or here alone where that is not possible."""
    batch = min(settings.batch, session.data.counts["train"])
    reason = cannot_share(batch, paths_of_rule(rule), settings.accumulate) or None
    told = rule if _can_be_sent(rule) is None else ToldRule(rule)
    sent = None if isinstance(told, ToldRule) else rule
    if reason is None:
        reason = _send(model, Together(session.space, session.config, (model, sent, settings, stream, teacher)))
    if reason is not None:
        session.log_once("ranks", f"{stream} is trained by one process: {reason}.")
        return train_stream(session, model, rule, settings, stream, sink, evaluate, teacher)
    return train_stream(session, model, told, settings, stream, sink, evaluate, teacher, share=True)


class ToldRule:
    """A rule that only the writer has: it tells the others the architectures of every step."""

    def __init__(self, rule: Rule | None) -> None:
        self.rule = rule

    def archs_at(self, seed: int, step: int) -> tuple[Arch | None, ...]:
        """The architectures of a step; all processes ask at the same time."""
        archs: tuple[Arch | None, ...] = ranks.broadcast(self.rule.archs_at(seed, step) if self.rule else None)
        return archs


def _can_be_sent(value: Any) -> Exception | None:
    """Why a value cannot be sent to another process; None where it can."""
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return error
    return None


def _send(model: nn.Module | None, message: Any) -> str | None:
    """Send a message, which may hold a network; where that is not possible nothing was sent, and why."""
    with nullcontext() if model is None else uncompiled(model):
        try:
            ranks.broadcast(message)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            return f"the network cannot be sent to the others ({error})"
    return None


def spread(
    session: Session,
    mine: Callable[..., Any],
    theirs: Callable[..., Callable[..., Any]],
    shared: tuple[Any, ...],
    items: Sequence[tuple[Any, ...]],
    done: Callable[[int, Any], None],
    model: nn.Module | None = None,
) -> bool:
    """Every item by whoever is free: ``mine(*item)`` here, ``theirs(session, *shared)(*item)`` in the others.

    ``done(i, result)`` is called in the order of items. What another process wrote into its own run folder is moved to
    this one's before. ``model`` is a network among the shared. Returns whether others took part.
    """
    reason = None
    if session.shared and len(items) > 1:
        reason = _send(model, Spread(session.space, session.config, theirs, shared, tuple(items)))
        if reason is not None:
            session.log_once("ranks", f"One process works where many could: {reason}.")
    if not session.shared or len(items) < 2 or reason is not None:
        for i, item in enumerate(items):
            done(i, mine(*item))
        return False
    queue, ready, reported = ranks.Queue(len(items)), dict[int, tuple[Any, Any]](), 0

    def report(wait: bool) -> None:
        """Results that are there, as long as none before them is missing."""
        nonlocal reported
        while reported < len(items):
            if reported not in ready:
                there, found = queue.get(reported, wait)
                if not there:
                    return
                ready[reported] = found
            written, result = ready.pop(reported)
            if written is not None:
                session.run.absorb(written)
            done(reported, result)
            reported += 1

    while (own := queue.take()) is not None:
        ready[own] = (None, mine(*items[own]))
        report(wait=False)
    report(wait=True)
    return True


def dismiss(folder: Path, facts: Mapping[str, Any]) -> None:
    """Tell the others that the run has ended."""
    if ranks.world() > 1:
        ranks.broadcast(Done(folder, dict(facts)))


# -- all ------------------------------------------------------------------------------------------------------------


def train_stream(
    session: Session,
    model: nn.Module,
    rule: Rule,
    settings: TrainSettings,
    stream: str,
    sink: Sink,
    evaluate: Any,
    teacher: Teacher | None,
    share: bool = False,
) -> Trained:
    """Train on the batches, and with the random draws, that belong to the name of a stream."""
    batches = session.train_batches(settings, stream)
    seed = derive(session.seed, stream, "train") % 2**31
    part = Share(model, batches.batch, settings.compile, session.device) if share else None
    if part is not None:
        batches.only(part.places)
    return train(model, batches, rule, settings, seed, sink, evaluate, session.device, teacher, part)
