"""Members of a moving space judged by a short training of their own: from scratch, or on from a supernet's weights.

Inherited accuracy also says how long each part of a supernet was trained; here both sides of a pair are trained alike.
All members start from the same random stream and see the same batches, so that a pair differs in its architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from tailorvit.arch import Arch
from tailorvit.methods.session import Session, Supernets
from tailorvit.proxies.settings import TUNED
from tailorvit.rng import derive, seed_everything
from tailorvit.search import Candidate
from tailorvit.seek.slopes import Accuracies
from tailorvit.space import Space
from tailorvit.train import Fixed, Sink, TrainSettings, accuracy, train
from tailorvit.train.loop import shortened

STREAM = "member"  # what order of batches and random draws derive from, in every step of a run


class MemberSink(Sink):
    """Tells what went wrong; keeps no checkpoint, since a killed run loses a few epochs of one member at most."""

    def __init__(self, session: Session, stage: str) -> None:
        self.session, self.stage = session, stage

    def event(self, kind: str, text: str) -> None:
        """Into the log."""
        self.session.tell(kind, f"{self.stage}: a member: {text}")


def member_training(train: TrainSettings, epochs: int) -> TrainSettings:
    """[train] for one plain network and that many epochs, the warm-up shortened alike; without what supernets need.

    Not compiled: on an H200 blocks ran 1.15 times as fast compiled, which a few epochs do not pay back for every shape.
    """
    short = shortened(train, epochs / train.epochs)
    return replace(short, rule="single_path", distill=False, reg_largest_only=False, freeze="none", compile=False)


def own_accuracy(
    session: Session, arch: Arch, settings: TrainSettings, stage: str, start: nn.Module | None = None
) -> float:
    """Percent on the search split after the member's own training, from scratch or from given weights."""
    seed_everything(session.seed, "init", "plain")
    model = start or session.family.build(session.family.frame(dict(session.space.fixed)), arch, settings.drop_path)
    batches, seed = session.train_batches(settings, STREAM), derive(session.seed, STREAM, "train") % 2**31
    train(model, batches, Fixed(), settings, seed, MemberSink(session, stage), None, session.device)
    return accuracy(model, session.search_batches(), session.device)


def by_training(
    session: Session, nets: Callable[[], Supernets], stage: str, source: str
) -> Callable[[Space, int], Accuracies]:
    """Figures of members of the space of step t after their own training; each is stored as soon as it is known."""
    seek = session.config.seek
    settings = member_training(session.config.train, seek.member_epochs)

    def ask(space: Space, t: int) -> Accuracies:
        name, run = f"{stage}-{t}", session.run
        net = nets().at(space, t) if seek.evaluator == TUNED else None
        if net is not None:
            net.spread(t)

        def figures(archs: Sequence[Arch]) -> list[float]:
            known = {a: run.accuracy(name, a) for a in archs}
            todo = [a for a, percent in known.items() if percent is None]
            whose = "on from the supernet's weights" if net is not None else "from scratch"
            session.tell_once(
                "seek", f"{name}: {len(known)} members are trained {whose}, {seek.member_epochs} epoch(s) each"
            )
            if todo and net is not None:
                net.model()  # trained here, so that its time is not counted as the slopes'
            with session.timed(name):
                for done, arch in enumerate(todo, 1):
                    start = None if net is None else session.family.extract(net.model(), arch)
                    percent = own_accuracy(session, arch, settings, name, start)
                    run.record_trials(name, [vars(session.trial(Candidate(arch, source), percent, 0))])
                    known[arch] = percent
                    session.progress.step(name, done, len(todo), {})
            return [float(known[a] or 0.0) for a in archs]

        return figures

    return ask
