"""A session: one run's plan and folder, and the pieces of work every method is made of.

Every piece is a named stage whose result is stored, and every evaluation is stored as a trial. So a killed run goes on
by simply running again: finished stages answer from the folder, known trials are not evaluated twice, and a training
continues from its checkpoint. Nothing depends on what was in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tailorvit import ranks
from tailorvit.arch import Arch
from tailorvit.costs.clock import Clock
from tailorvit.costs.limits import Limits
from tailorvit.costs.meter import Meter
from tailorvit.data import Data
from tailorvit.data.batches import resident_limit
from tailorvit.errors import TailorError
from tailorvit.families import family
from tailorvit.methods.released import load_released
from tailorvit.methods.stages import Stages
from tailorvit.methods.team import spread, train_stream, train_together
from tailorvit.progress import Progress
from tailorvit.rng import derive, generator, seed_everything
from tailorvit.runs import Run
from tailorvit.search import SEARCHERS, Candidate, Trial, run_search
from tailorvit.search.base import Evaluate
from tailorvit.seek import s3 as seek_s3
from tailorvit.seek import s4 as seek_s4
from tailorvit.seek.slopes import Accuracies
from tailorvit.space import Space
from tailorvit.train import Evaluator, Fixed, Rule, Sink, Teacher, TrainSettings, accuracy, rule_for
from tailorvit.train.loop import Trained, inherit, shortened

if TYPE_CHECKING:
    from tailorvit.config import Config
    from tailorvit.methods.contest import Entry
    from tailorvit.methods.finetune import StartingNetwork
    from tailorvit.methods.tailor import PretrainedStart

Batches = Iterable[tuple[Tensor, Tensor]]
KEPT_BYTES = 1 << 30  # a split up to this size stays in memory as floats
SKIPPED = "skipped.json"  # images left out, each with the reason
CHANGED = "changed"  # the kind of event that says which images changed while a run was going
NAMED = 20  # of them in the log
WARM_SHARE = 0.5  # of the epochs: a supernet that inherits the weights of the one before it trains this long


@dataclass(frozen=True)
class Plan:
    """Everything a run consists of, checked before anything is trained."""

    config: Config  # resolved: what was chosen for the user is written down
    data: Data
    space: Space
    limits: Limits
    device: str
    start: StartingNetwork | PretrainedStart | None = None  # of methods finetune and tailor
    entries: tuple[Entry, ...] = ()  # who takes part in a contest
    shared: bool = False  # the work is shared with the other processes of a torchrun
    clock: Clock = field(default_factory=Clock)  # how latency is known


class Session(Stages):
    """The pieces of work: train a supernet, score sub-networks, search, train a plain network."""

    def __init__(self, plan: Plan, run: Run, progress: Progress) -> None:
        super().__init__(run, progress, plan.config.seed, plan.device)
        self.plan, self.config, self.data, self.space = plan, plan.config, plan.data, plan.space
        self.limits = plan.limits
        self.family = family(plan.space.family)
        self.clock = plan.clock
        self.meter = Meter.for_space(plan.space, plan.limits, **self.measuring)
        self.shared = plan.shared
        self._search_batches: Batches | None = None

    @property
    def measuring(self) -> dict[str, Any]:
        """How a meter of this run measures: where, by which clock, and every measurement once."""
        run = self.run
        return {
            "device": self.device,
            "clock": self.clock,
            "recall": run.measured,
            "record": run.record_measured,
        }

    def sharing(self, shared: bool) -> Session:
        """The same run, its work shared with other processes or not; images on the device are shared."""
        other = Session(replace(self.plan, shared=shared), self.run, self.progress)
        other.meter = self.meter
        other._search_batches = self.search_batches()
        return other

    def for_space(self, space: Space, config: Config | None = None) -> Session:
        """The same run in another space; images on the device are shared."""
        other = Session(replace(self.plan, space=space, config=config or self.config), self.run, self.progress)
        other._search_batches = self.search_batches()
        return other

    # -- data ---------------------------------------------------------------------------------------------------------

    def failed(self) -> int:
        """How many images could not be read so far."""
        return len(self.data.failed)

    def note_skipped(self) -> None:
        """List the images left out or replaced in a file of the run; the log names the first of them."""
        if sentence := self.data.changed():
            self.log_once(CHANGED, sentence)
        rows = [{"path": p, "reason": r} for p, r in dict([*self.data.skipped, *self.data.failed]).items()]
        if not rows or self.run.read_json(SKIPPED) == rows:
            return
        self.run.write_json(SKIPPED, rows)
        names = ", ".join(f"{row['path']} ({row['reason']})" for row in rows[:NAMED])
        more = f" and {len(rows) - NAMED} more" if rows[NAMED:] else ""
        text = f"{len(rows)} unreadable image(s) were skipped: {names}{more}; {SKIPPED} lists them."
        self.log_once("skipped", text, files=rows[:NAMED])

    def batches(self, split: str) -> Batches:
        """A split to go through any number of times: kept in memory where it is small, else read each time."""
        high, wide = self.data.image_size
        size = self.config.evaluate.batch
        if 4 * self.data.counts[split] * self.data.channels * high * wide >= KEPT_BYTES:
            return _Stream(lambda: self.data.eval_batches(split, size, self.device))
        plain = self.data.eval_batches(split, size)  # no second copy as uint8 beside the floats
        on_host = self.data.placement(split, self.device) == "host"
        return list(plain) if on_host else [(x.to(self.device), y) for x, y in plain]

    def search_batches(self) -> Batches:
        """The search split."""
        if self._search_batches is None:
            self._search_batches = self.batches("search")
        return self._search_batches

    def search_accuracy(self, model: nn.Module) -> float:
        """Percent on the search split."""
        return accuracy(model, self.search_batches(), self.device)

    def train_batches(self, settings: TrainSettings, stream: str) -> Any:
        """Training batches, whose order belongs to the name of a stream."""
        seed = derive(self.seed, stream, "data") % 2**31
        where = self.data.placement("train", self.device)
        if where != "host":
            size = self.data.split_bytes("train") / 2**20
            how = "streamed to" if where == "streamed" else "kept on"
            limit = resident_limit(self.device) / 2**30
            self.log_once(
                "data", f"Training images are {how} {self.device} as bytes ({size:.0f} MiB; limit {limit:.0f} GiB)."
            )
        augment = self.data.augment(settings.augment)
        batches = self.data.train_batches(settings.batch, seed, augment, self.device)
        return batches.balanced() if settings.class_weights == "balanced" else batches

    # -- training -----------------------------------------------------------------------------------------------------

    def fit(
        self,
        model: nn.Module,
        rule: Rule,
        settings: TrainSettings,
        stage: str,
        evaluate: Any = None,
        stream: str | None = None,
        teacher: Teacher | None = None,
    ) -> nn.Module:
        """Train a network under a rule, once: a finished stage gives its weights back.

        Batches and random draws belong to the stage, or to a stream that several stages share.
        """
        training = train_together if self.shared else train_stream

        def work(sink: Sink) -> Trained:
            return training(self, model, rule, settings, stream or stage, sink, evaluate, teacher)

        return self.trained(model, stage, work)

    def build(self, arch: Arch, drop_path: float = 0.0) -> nn.Module:
        """The plain network of an architecture, freshly initialised."""
        return self.family.build(self.family.settings(dict(self.space.settings)), arch, drop_path)

    def plain(
        self,
        arch: Arch,
        settings: TrainSettings,
        stage: str,
        weights: nn.Module | None = None,
        teacher: Teacher | None = None,
    ) -> nn.Module:
        """Train one plain network, from scratch or on from a network that has weights."""
        seed_everything(self.seed, "init", "plain")  # found network and baseline start from the same stream
        model = weights or self.build(arch, settings.drop_path)

        def accuracies() -> dict[str, float]:
            return {"search_accuracy": self.search_accuracy(model)}

        return self.fit(model, Fixed(), settings, stage, accuracies, teacher=teacher)

    def supernet(
        self, space: Space, t: int, before: Supernet | None = None, teacher: Teacher | None = None
    ) -> Supernet:
        """The supernet of step t, trained when something first needs it."""
        return Supernet(self, space, f"supernet-{t}", before, teacher)

    # -- search -------------------------------------------------------------------------------------------------------

    def trial(self, candidate: Candidate, percent: float, generation: int) -> Trial:
        """A candidate with its accuracy and costs."""
        costs = self.meter.costs(candidate.arch)
        params, macs = int(costs.pop("params")), int(costs.pop("macs"))
        return Trial(
            candidate.arch, percent, params, macs, candidate.source, generation, tuple(candidate.parents), costs
        )

    def search(self, space: Space, evaluate: Evaluate, stage: str = "search") -> list[Trial]:
        """Search a space under the limits."""
        method, settings = SEARCHERS[self.config.searcher], self.config.search_settings()
        with self.timed(stage):
            searcher = method.factory(space, self.meter.fits, derive(self.seed, stage) % 2**31, settings)
            return run_search(searcher, evaluate)


class Supernet:
    """A space's supernet and the accuracies of its sub-networks; trains or loads itself when a figure is missing."""

    def __init__(
        self,
        session: Session,
        space: Space,
        stage: str,
        before: Supernet | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        self.session, self.space, self.stage, self.before, self.teacher = session, space, stage, before, teacher
        settings = session.config.train
        self.settings = settings if before is None else shortened(settings, WARM_SHARE)
        # As in training; on a CPU accuracies are always measured in full precision.
        self.bf16 = settings.precision == "bf16" and torch.device(session.device).type == "cuda"
        self.epochs: int = self.settings.epochs + (before.epochs if before else 0)  # that its weights have seen
        self._evaluator: Evaluator | None = None

    def model(self) -> nn.Module:
        """The trained supernet."""
        return self._ready().model

    def network(self, arch: Arch) -> nn.Module:
        """The plain network of an architecture, with its part of the weights."""
        return self.session.family.extract(self.model(), arch)

    def _ready(self) -> Evaluator:
        if self._evaluator is None:
            session = self.session
            seed_everything(session.seed, "init", self.stage)
            model = load_released(session, self.space, self.stage) if session.config.start.supernet else self._train()
            self._evaluator = self._evaluate(model)
            self.before = None
        return self._evaluator

    def _evaluate(self, model: nn.Module) -> Evaluator:
        return Evaluator(model, self.session.search_batches(), self.session.device, self.bf16)

    def _train(self) -> nn.Module:
        session, settings = self.session, self.settings
        model = session.family.supernet(self.space, settings.drop_path)
        if self.before is not None and session.run.load_checkpoint(self.stage) is None:
            inherit(model, self.before.model())
        evaluator = self._evaluate(model)
        watched = {"largest": self.space.largest(), "smallest": self.space.smallest()}

        def accuracies() -> dict[str, float]:
            evaluator.known.clear()
            return dict(zip(watched, evaluator(list(watched.values())), strict=True))

        rule = rule_for(settings, self.space)
        return session.fit(model, rule, settings, self.stage, accuracies, teacher=self.teacher)

    def score(self, stage: str, candidates: Sequence[Candidate], generation: int = 0) -> list[Trial]:
        """Trials on the search split, stored under a stage; what is stored already is not evaluated again."""
        session, run = self.session, self.session.run
        known = {c.arch: run.accuracy(stage, c.arch) for c in candidates}
        todo = list({c.arch: c for c in candidates if known[c.arch] is None}.values())

        def record(i: int, percent: float) -> None:
            known[todo[i].arch] = percent
            run.record_trials(stage, [vars(session.trial(todo[i], percent, generation))])
            session.progress.step(stage, i + 1, len(todo), {})

        if todo:
            model = self.model()
            known_there = session.shared and ranks.kept().get("sent") is model
            shared = (None if known_there else model, self.bf16)
            here, items = partial(percent_of, self._ready()), [(c.arch,) for c in todo]
            if spread(session, here, judge_parts, shared, items, record, model):
                ranks.kept()["sent"] = model
        return [session.trial(c, float(known[c.arch] or 0.0), generation) for c in candidates]

    def sample_errors(self, t: int) -> None:
        """Evaluate architectures drawn at random: the error distribution of the space, for the report."""
        stage, count = f"edf-{t}", self.session.config.analysis.samples
        drawn = self.space.sample_distinct(count, generator(self.session.seed, stage))
        if any(self.session.run.accuracy(stage, arch) is None for arch in drawn):
            self._ready()  # trained here, so that its time does not count as this stage's
            with self.session.timed(stage):
                self.score(stage, [Candidate(arch, "sample") for arch in drawn])

    def accuracies(self, stage: str, source: str) -> Accuracies:
        """A function that gives accuracies of architectures, stored under a stage."""

        def evaluate(archs: Sequence[Arch]) -> list[float]:
            if any(self.session.run.accuracy(stage, a) is None for a in archs):
                self._ready()
            with self.session.timed(stage):
                return [t.accuracy for t in self.score(stage, [Candidate(a, source) for a in archs])]

        return evaluate

    def search(self, t: int) -> list[Trial]:
        """Train, sample the errors of the space of step t, and search it."""
        self.model()  # trained here, so that its time does not count as the search's
        self.sample_errors(t)
        return self.session.search(self.space, lambda candidates, n: self.score("search", candidates, n))


def percent_of(evaluator: Evaluator, arch: Arch) -> float:
    """The accuracy of a sub-network, evaluated anew: only the run folder decides what is known."""
    evaluator.known.clear()
    return evaluator([arch])[0]


def judge_parts(session: Session, model: nn.Module | None, bf16: bool) -> Callable[[Arch], float]:
    """What gives accuracies of a supernet's parts in another process; without a model, of the one sent before."""
    if model is not None:
        ranks.kept()["evaluator"] = Evaluator(model, session.search_batches(), session.device, bf16)
    return partial(percent_of, ranks.kept()["evaluator"])


class Supernets:
    """The supernets of the steps, one in memory at a time; with ``warm_start`` each inherits from the one before."""

    def __init__(self, session: Session, warm_start: bool) -> None:
        self.session, self.warm_start = session, warm_start
        self._newest: tuple[int, Supernet] | None = None

    def at(self, space: Space, t: int) -> Supernet:
        """The supernet of step t in its space; to be asked for in the order of the steps."""
        if self._newest is None or self._newest[0] != t:
            warm = self._newest if self.warm_start else None
            before = warm[1] if warm is not None and warm[0] == t - 1 else None
            self._newest = (t, self.session.supernet(space, t, before))
        return self._newest[1]


# -- what goes into the run folder ------------------------------------------------------------------------------------


class SpaceRecord:
    """Stores the spaces of a run in the order they are reached."""

    def __init__(self, session: Session) -> None:
        self.session, self._count = session, 0

    def space_reached(self, t: int, space: Space, repaired: bool = False) -> None:
        """A space was reached."""
        facts = {"step": t, "repair": repaired, "largest": self.session.meter.largest(space)}
        self.session.run.record_space(self._count, space, **facts, count_log10=math.log10(space.count()))
        self._count += 1


class S4Journal(SpaceRecord, seek_s4.Journal):
    """Stores every space, slope and decision of S4, and knows those of the run so far."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._before = {row["t"]: row["space"] for row in session.run.spaces()}
        self._decisions = {row["t"]: row for row in session.run.decisions()}
        self._here: Space | None = None

    def space_reached(self, t: int, space: Space, repaired: bool = False) -> None:
        """A space was reached."""
        super().space_reached(t, space, repaired)
        self._here = space

    def followed(self, t: int) -> Space | None:
        """Where the decision of step t led; its bounds are today's where a run before 0.3 did not store them."""
        if t not in self._decisions or self._here is None:
            return None
        if self._decisions[t].get("stop"):
            return self._here
        stored: Space | None = self._before.get(self._count)
        if stored is None:
            return None
        try:
            ours = self._here.shift(self._decisions[t]["gamma"])
        except TailorError:
            return stored
        same = all(stored[key].choices == ours[key].choices for key in stored.keys)
        return ours if same else stored

    def decided(self, decision: seek_s4.Decision) -> None:
        """A decision was made; shown once, also when a resumed run makes it a second time."""
        _store_decision(self.session, decision)


class S3Journal(SpaceRecord, seek_s3.Journal):
    """Stores every space, fit and decision of S3."""

    def decided(self, decision: seek_s3.Decision) -> None:
        """A decision was made; shown once, also when a resumed run makes it a second time."""
        for text in decision.warnings:
            self.session.log_once("warning", text)
        _store_decision(self.session, decision)


def _store_decision(session: Session, decision: seek_s3.Decision | seek_s4.Decision) -> None:
    for slope in decision.slopes:
        session.run.record_slope(decision.t, slope.dim, slope.to_dict())
    session.run.record_decision(decision.t, decision.to_dict())
    session.log_once("decision", decision.sentence)


@dataclass(frozen=True)
class _Stream:
    """A split that is read from the data each time it is iterated."""

    read: Callable[[], Iterable[tuple[Tensor, Tensor]]]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.read())
