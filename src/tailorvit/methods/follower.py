"""A process of a torchrun that is not the writer: it does what the writer's messages ask for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tailorvit import ranks
from tailorvit.errors import TailorError
from tailorvit.methods.session import Plan, Session
from tailorvit.methods.team import Begin, Done, Spread, Together, ToldRule, require_all, train_stream
from tailorvit.progress import Progress
from tailorvit.runs import Run
from tailorvit.train import Sink


def follow(prepare: Callable[..., Plan]) -> Done:
    """Do what the writer asks for, until the run has ended."""
    try:
        with contextlib.ExitStack() as held:
            session: Session | None = None
            while not isinstance(message := ranks.broadcast(), Done):
                if isinstance(message, Begin):
                    session = _begun(message, prepare, held)
                    continue
                assert session is not None
                here = session.for_space(message.space, message.config)
                if isinstance(message, Together):
                    model, rule, settings, stream, teacher = message.arguments
                    rule = rule or ToldRule(None)
                    train_stream(here, model, rule, settings, stream, Sink(), None, teacher, share=True)
                else:
                    _work_through(here, message)
            return message
    except ranks.LostError:
        raise
    except (TailorError, OSError) as error:
        raise TailorError(f"Process {ranks.rank() + 1} of {ranks.world()}: {error}") from error


def _begun(message: Begin, prepare: Callable[..., Plan], held: contextlib.ExitStack) -> Session:
    """The same plan as the writer's, with a run folder of one's own that nobody keeps."""
    import torch

    try:
        plan = prepare(message.config, message.splits, message.start)
        torch.set_num_threads(plan.config.threads)
        plan.data.prepare()
        folder = Path(held.enter_context(TemporaryDirectory(prefix="tailorvit-")))
        run = held.enter_context(Run.create(folder / "run", "", {}))
        session = Session(plan, run, Progress())
        session.search_batches()
    except (TailorError, OSError) as error:
        require_all(str(error))
        raise
    require_all(None)
    return session


def _work_through(session: Session, message: Spread) -> None:
    """Take items while there are any; leave results and rows for the writer."""
    queue, work = ranks.Queue(len(message.items)), message.work(session, *message.shared)
    while (mine := queue.take()) is not None:
        result = work(*message.items[mine])
        queue.put(mine, (session.run.drained(), result))
