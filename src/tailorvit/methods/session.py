"""A session: one run's data, space, limits and folder, and the pieces of work every method is made of.

Every piece is a named stage whose result is stored, and every evaluation is stored as a trial. So a killed run goes on
by simply running again: finished stages answer from the folder, known trials are not evaluated twice, and a training
continues from its checkpoint. Nothing depends on what was in memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.config import Config
from tailorvit.costs.limits import Limits
from tailorvit.costs.meter import Meter
from tailorvit.data import Data
from tailorvit.data.batches import resident_limit
from tailorvit.errors import TailorError
from tailorvit.families import family
from tailorvit.methods.given import given_supernet
from tailorvit.progress import Progress
from tailorvit.rng import derive, generator, seed_everything
from tailorvit.runs import Run
from tailorvit.search import Candidate, Trial, run_search, searcher
from tailorvit.search.base import Evaluate
from tailorvit.seek.slopes import Accuracies
from tailorvit.space import Space
from tailorvit.train import RULES, Evaluator, Rule, Sink, TrainSettings, accuracy, train
from tailorvit.train.loop import inherit, shortened

KEEP = 1 << 30  # bytes of a split kept as floats


class RunSink(Sink):
    """A training's checkpoints, epochs and events, in the run folder and on the screen."""

    def __init__(self, session: Session, stage: str) -> None:
        self.session, self.stage = session, stage
        self._board = session.board(stage)

    def save(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Keep the state."""
        self.session.run.save_checkpoint(self.stage, tensors, meta)

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The state kept last."""
        return self.session.run.load_checkpoint(self.stage)

    def epoch(self, epoch: int, facts: Mapping[str, Any]) -> None:
        """Into the database, and to TensorBoard when asked."""
        self.session.run.record_epoch(self.stage, epoch, **facts)
        if self._board is not None:
            for name, value in facts.items():
                self._board.add_scalar(name, value, epoch)

    def event(self, kind: str, text: str) -> None:
        """Into the log."""
        self.session.tell(kind, f"{self.stage}: {text}")

    def progress(self, step: int, total: int, facts: Mapping[str, Any]) -> None:
        """On the screen."""
        self.session.progress.step(self.stage, step, total, facts)

    def close(self) -> None:
        """End TensorBoard's writer, which keeps a thread."""
        if self._board is not None:
            self._board.close()


@dataclass(frozen=True)
class _Stream:
    """A split as batches, from the data anew each time."""

    data: Data
    split: str
    batch: int
    device: str

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.data.eval_batches(self.split, self.batch, self.device))


class Session:
    """The pieces of work: train a supernet, score sub-networks, search, train a plain network, test it."""

    def __init__(
        self, config: Config, run: Run, data: Data, space: Space, limits: Limits, device: str, progress: Progress
    ) -> None:
        self.config, self.run, self.data, self.space = config, run, data, space
        self.limits, self.device, self.progress = limits, device, progress
        self.seed = config.seed
        self.family = family(space.family)
        self.meter = Meter.for_space(space, limits, device=device, recall=run.measured, record=run.record_measured)
        self._search_batches: Iterable[tuple[Tensor, Tensor]] | None = None

    # -- telling ----------------------------------------------------------------------------------------------------

    def tell(self, kind: str, text: str, **data: Any) -> None:
        """Log an event and show it."""
        self.run.event(kind, text, **data)
        self.progress.say(text)

    def tell_once(self, kind: str, text: str, **data: Any) -> None:
        """As :meth:`tell`, but not again when a resumed run works out the same."""
        if text not in {e["text"] for e in self.run.events(kind)}:
            self.tell(kind, text, **data)

    def board(self, stage: str) -> Any:
        """A TensorBoard writer for a stage, or None."""
        if not self.config.tensorboard:
            return None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise TailorError("tensorboard = true needs the package: pip install 'tailorvit[tensorboard]'.") from None
        return SummaryWriter(str(self.run.folder / "tensorboard" / stage))

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of a piece of work to its stage, also when it is interrupted."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.run.spend(stage, time.monotonic() - start)

    # -- data -------------------------------------------------------------------------------------------------------

    def batches(self, split: str) -> Iterable[tuple[Tensor, Tensor]]:
        """A split to go through any number of times: kept whole where it is small, read anew each time where not."""
        high, wide = self.data.image_size
        stream = _Stream(self.data, split, self.config.evaluate.batch, self.device)
        if 4 * self.data.counts[split] * self.data.channels * high * wide >= KEEP:
            return stream
        plain = self.data.eval_batches(split, self.config.evaluate.batch)  # no second copy as uint8 beside the floats
        on_host = self.data.placement(split, self.device) == "host"
        return list(plain) if on_host else [(x.to(self.device), y) for x, y in plain]

    def search_batches(self) -> Iterable[tuple[Tensor, Tensor]]:
        """The search split."""
        if self._search_batches is None:
            self._search_batches = self.batches("search")
        return self._search_batches

    def train_batches(self, settings: TrainSettings, stage: str) -> Any:
        """Training batches, whose order belongs to the stage's seed."""
        seed = derive(self.seed, stage, "data") % 2**31
        where = self.data.placement("train", self.device)
        if where != "host":
            size = self.data.split_bytes("train") / 2**20
            how = "streamed to" if where == "streamed" else "kept on"
            most = resident_limit(self.device) / 2**30
            text = f"training images are {how} {self.device} as bytes ({size:.0f} MiB; up to {most:.0f} GiB are kept)"
            self.tell_once("data", text)
        augment = self.data.augment(settings.augment)
        return self.data.train_batches(settings.batch, seed, augment, self.device)

    # -- training ---------------------------------------------------------------------------------------------------

    def fit(self, model: nn.Module, rule: Rule, settings: TrainSettings, stage: str, evaluate: Any = None) -> nn.Module:
        """Train a network under a rule, once: a finished stage gives its weights back."""
        if self.kept(model, stage):
            return model.to(self.device).eval()
        if self.run.result(stage) is not None:
            self.tell("warning", f"{stage}: its weights are gone, so it is trained again")
        with self.timed(stage):
            batches = self.train_batches(settings, stage)
            seed = derive(self.seed, stage, "train") % 2**31
            with closing(RunSink(self, stage)) as sink:
                trained = train(model, batches, rule, settings, seed, sink, evaluate, self.device)
            # The checkpoint keeps what the stage is for: weights (the average, where one was kept), no optimiser.
            done = {"loss": trained.loss, "skipped": trained.skipped, "rollbacks": trained.rollbacks}
            self.keep(model, stage, done)
        self.run.finish(stage, done)
        return model

    def kept(self, model: nn.Module, stage: str) -> bool:
        """Give a finished stage's weights back; False where there are none."""
        kept = self.run.load_checkpoint(stage)
        if kept is None or not kept[1].get("done"):
            return False
        _load_weights(model, kept[0])
        self.run.finish(stage, kept[1]["done"])
        return True

    def keep(self, model: nn.Module, stage: str, done: Mapping[str, Any]) -> None:
        """Store a stage's weights for good, with the facts it ends with."""
        weights = {f"model/{n}": t for n, t in model.state_dict().items()}
        self.run.save_checkpoint(stage, weights, {"done": dict(done)})

    def plain(self, arch: Arch, settings: TrainSettings, stage: str, start: nn.Module | None = None) -> nn.Module:
        """Train one plain network, from scratch or from given weights."""
        from tailorvit.train import Fixed

        seed_everything(self.seed, "init", "plain")  # found and hand-designed networks start from the same stream
        model = start or self.family.build(self.family.frame(dict(self.space.fixed)), arch, settings.drop_path)

        def look() -> dict[str, float]:
            return {"search_accuracy": accuracy(model, self.search_batches(), self.device)}

        return self.fit(model, Fixed(), settings, stage, look)

    def supernet(self, space: Space, t: int, before: Supernet | None = None, share: float = 1.0) -> Supernet:
        """The supernet of step t; trained when something first needs it, for a share of the epochs after another."""
        return Supernet(self, space, f"supernet-{t}", before, share)

    # -- search -----------------------------------------------------------------------------------------------------

    def trial(self, candidate: Candidate, percent: float, generation: int) -> Trial:
        """A candidate with its accuracy and costs."""
        costs = self.meter.costs(candidate.arch)
        params, macs = int(costs.pop("params")), int(costs.pop("macs"))
        return Trial(
            candidate.arch, percent, params, macs, candidate.source, generation, tuple(candidate.parents), costs
        )

    def search(self, space: Space, score: Evaluate, stage: str = "search") -> list[Trial]:
        """Search a space under the limits, with accuracies from ``score``."""
        entry, settings = searcher(str(self.config.search.get("name", "evolution"))), self.config.search_settings()
        seed, name = derive(self.seed, stage) % 2**31, str(getattr(settings, "prefilter", ""))
        with self.timed(stage):
            if not name:
                return run_search(entry.factory(space, self.meter.fits, seed, settings), score)
            from tailorvit.methods.prefilter import liking

            like = liking(self, space, name)
            trials = run_search(entry.factory(space, self.meter.fits, seed, settings, like), score)
            like([t.arch for t in trials])  # of those never filtered, too, to tell what it knew
            return trials


class Supernet:
    """A space's supernet and the accuracies of its members; trains or loads itself only when a figure is missing."""

    def __init__(
        self, session: Session, space: Space, stage: str, before: Supernet | None = None, share: float = 1.0
    ) -> None:
        self.session, self.space, self.stage, self.before = session, space, stage, before
        own = session.config.train
        self.settings = own if before is None else shortened(own, share)
        # As in training; on a CPU accuracies keep being measured in full precision.
        self.bf16 = own.precision == "bf16" and torch.device(session.device).type == "cuda"
        self.epochs: int = self.settings.epochs + (before.epochs if before else 0)  # seen by its weights
        self._evaluator: Evaluator | None = None

    def model(self) -> nn.Module:
        """The trained supernet."""
        return self._ready().model

    def _ready(self) -> Evaluator:
        if self._evaluator is None:
            session, settings = self.session, self.settings
            together = session.config.evaluate.together
            seed_everything(session.seed, "init", self.stage)
            if session.config.start.supernet:
                model = given_supernet(session, self.space, self.stage)
                self._evaluator = Evaluator(model, session.search_batches(), session.device, together, self.bf16)
                return self._evaluator
            model = session.family.supernet(self.space, settings.drop_path)
            if self.before is not None and session.run.load_checkpoint(self.stage) is None:
                inherit(model, self.before.model())
            look = Evaluator(model, session.search_batches(), session.device, bf16=self.bf16)
            watched = {"largest": self.space.largest(), "smallest": self.space.smallest()}

            def figures() -> dict[str, float]:
                look.known.clear()
                return dict(zip(watched, look(list(watched.values())), strict=True))

            session.fit(model, RULES[settings.rule](self.space, settings.alike), settings, self.stage, figures)
            self._evaluator = Evaluator(model, session.search_batches(), session.device, together, self.bf16)
            self.before = None
        return self._evaluator

    def score(self, stage: str, candidates: Sequence[Candidate], generation: int = 0) -> list[Trial]:
        """Trials on the search split, stored under a stage; what is stored already is not evaluated again."""
        session, run = self.session, self.session.run
        known = {c.arch: run.accuracy(stage, c.arch) for c in candidates}
        todo = list({c.arch: c for c in candidates if known[c.arch] is None}.values())
        together = session.config.evaluate.together
        for i in range(0, len(todo), together):
            group, evaluator = todo[i : i + together], self._ready()
            evaluator.known.clear()  # only the folder decides what is known, so a resumed run makes the same passes
            percents = evaluator([c.arch for c in group])
            known.update({c.arch: p for c, p in zip(group, percents, strict=True)})
            run.record_trials(stage, [vars(session.trial(c, float(p), generation)) for c, p in zip(group, percents)])
            session.progress.step(stage, i + len(group), len(todo), {})
        return [session.trial(c, float(known[c.arch] or 0.0), generation) for c in candidates]

    def spread(self, t: int) -> None:
        """Evaluate members drawn at random: the error distribution of the space, for the report."""
        stage, count = f"edf-{t}", self.session.config.analysis.samples
        drawn = sample(self.space, count, generator(self.session.seed, stage))
        if any(self.session.run.accuracy(stage, arch) is None for arch in drawn):
            self._ready()  # trained here, so that its time is not counted as this stage's
            with self.session.timed(stage):
                self.score(stage, [Candidate(arch, "sample") for arch in drawn])

    def accuracies(self, stage: str, source: str = "pair") -> Accuracies:
        """Accuracies of members, stored under a stage: pairs for slopes, samples for E-T errors."""

        def ask(archs: Sequence[Arch]) -> list[float]:
            self._ready() if any(self.session.run.accuracy(stage, a) is None for a in archs) else None
            with self.session.timed(stage):
                return [t.accuracy for t in self.score(stage, [Candidate(a, source) for a in archs])]

        return ask


class Supernets:
    """The supernets of the steps, one in memory at a time; each inherits from the one before it where asked."""

    def __init__(self, session: Session, warm_start: bool, warm_share: float) -> None:
        self.session, self.warm_start, self.warm_share = session, warm_start, warm_share
        self._newest: tuple[int, Supernet] | None = None

    def at(self, space: Space, t: int) -> Supernet:
        """The supernet of step t in its space; asked for in the order of the steps."""
        if self._newest is None or self._newest[0] != t:
            warm = self._newest if self.warm_start else None
            before = warm[1] if warm is not None and warm[0] == t - 1 else None
            self._newest = (t, self.session.supernet(space, t, before, self.warm_share))
        return self._newest[1]


def sample(space: Space, count: int, rng: Any) -> list[Arch]:
    """Different members of a space, drawn evenly; fewer where the space is nearly exhausted."""
    drawn: dict[Arch, None] = {}
    for _ in range(4 * count):
        if len(drawn) == count:
            break
        drawn[space.sample(rng)] = None
    return list(drawn)


@torch.no_grad()
def _load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    named = model.state_dict()  # batch statistics included
    state = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
    if {k: tuple(v.shape) for k, v in state.items()} != {k: tuple(v.shape) for k, v in named.items()}:
        raise TailorError("A checkpoint of this run belongs to another space or network: names or shapes differ.")
    for name, tensor in named.items():
        tensor.copy_(state[name])
