"""A budget of time for method tailor: measure its trainings, and share the time out among them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from tailorvit import units
from tailorvit.arch import Arch
from tailorvit.costs.limits import Limits
from tailorvit.costs.meter import Meter
from tailorvit.families import family
from tailorvit.families.tailoring import tailoring_of
from tailorvit.methods.contest import WARMUP
from tailorvit.methods.finish import candidates_wanted
from tailorvit.methods.peers import PREFIX, build_peer
from tailorvit.methods.schedule import RESERVE, ROUNDING, STEPS, duration, heading, in_all, pace, require_time, wait
from tailorvit.methods.tailor import (
    BLOCK_BATCHES,
    FEATURES,
    MEMBERS,
    ORDER_BATCH,
    ORDER_IMAGES,
    SHARE,
    SHORT,
    NearLimits,
    PretrainedStart,
    even_shapes,
    front_sizes,
    near_limits,
    whole_blocks,
)
from tailorvit.methods.tailor_beside import fresh_network, slimmed_shape
from tailorvit.rng import seed_everything
from tailorvit.train import Fixed, Rule, Teacher, TrainSettings

if TYPE_CHECKING:
    from tailorvit.config import Config
    from tailorvit.families.network import PlainNetwork
    from tailorvit.methods.session import Session

LONGEST = 3.0  # times the recipe's epochs: more time than that is left over
ORDER_PASSES = 6  # forward passes that the principal components and Taylor's criterion cost
REFIT_PASSES = 2  # forward passes of the whole network that refitting a cut one costs, its own included
ADVICE = "fewer sizes (--front)"


@dataclass(frozen=True)
class Piece:
    """A piece of work that a run does so many times: a training, or work of a fixed length."""

    label: str
    seconds: float  # apart from its epochs
    epochs: float = 0.0  # of the recipe; 0 where it is no training
    epoch: float = 0.0  # seconds of one
    check: float = 0.0  # seconds of an evaluation on the search images, of which a training has some ten
    times: int = 1
    params: int = 0
    macs: int = 0
    memory: float = 0.0  # of the device, in bytes
    late: bool = True  # after the whole network is tuned and ordered

    def length(self, factor: float) -> int:
        """Epochs, where the recipe's are taken so many times."""
        return scaled_epochs(self.epochs, factor) if self.epochs else 0

    def lasts(self, factor: float) -> float:
        """Seconds."""
        epochs = self.length(factor)
        every = max(epochs // 10, 1)
        checks = -(-epochs // every)
        return self.times * (self.seconds + epochs * self.epoch + checks * self.check)


def scaled_epochs(epochs: float, factor: float) -> int:
    """So many times the recipe's epochs, at least one."""
    return max(1, int(factor * epochs + ROUNDING))


def whole_time(pieces: Sequence[Piece], factor: float) -> float:
    """Seconds of all of them."""
    return sum(piece.lasts(factor) for piece in pieces)


def longest(pieces: Sequence[Piece], budget: float) -> float:
    """The factor on all epochs that uses a budget; 0, one epoch each, where no more fits."""
    least = 1 / max(max(piece.epochs for piece in pieces), 1.0)
    factors = (float(f) for f in np.geomspace(least, LONGEST, STEPS))
    return max((f for f in factors if whole_time(pieces, f) <= budget), default=0.0)


# -- measuring --------------------------------------------------------------------------------------------------------


def measured_pieces(session: Session) -> list[Piece]:
    """All the work of a run, from a few steps of every training, its speed on the run's device included."""
    return _Measuring(session).pieces()


class _Measuring:
    """The networks of a run before there are any: the whole one as it comes, and cuts with fresh weights."""

    def __init__(self, session: Session) -> None:
        start = session.plan.start
        assert isinstance(start, PretrainedStart)  # the run was prepared with it
        self.session, self.start, self.config = session, start, session.config
        self.final = session.config.final.train
        self.network = self.whole()
        self.teacher = Teacher(self.network, SHARE, FEATURES)
        self.kernels: list[float] = []  # set-up times; libraries load their kernels in the first, which a run does once

    def whole(self) -> PlainNetwork:
        """The whole network, in evaluation mode until it is trained."""
        made = self.start.network(self.session.data, self.session.seed, self.final.drop_path)
        made.to(self.session.device).eval()
        return made

    def pieces(self) -> list[Piece]:
        """In the order of the run."""
        session, config = self.session, self.config
        whole = tailoring_of(self.network).whole(self.network)
        found = [
            self._training("whole network", whole, config.tailor.epochs, self.whole, None, late=False),
            Piece("order of its parts", self._ordering(), late=False),
        ]
        sizes = front_sizes(session)
        inherited = 0
        if config.tailor.search == "shapes":
            found.append(Piece("refitting what is cut", self._refitting(), times=1 + len(sizes)))
        if config.tailor.search == "supernet":
            found.append(self._supernet(near_limits(session, sizes)))
            inherited = config.train.epochs
        begin = time.monotonic()
        shapes = self._shapes(session.limits)
        if session.limits.measured and config.tailor.search == "shapes":
            looked = Piece("latency and memory of shapes", time.monotonic() - begin)  # the run asks once more
            short = self._cut("shapes, trained for a while", shapes[0], SHORT * self.final.epochs)
            found += [looked, replace(short, times=len(shapes))]
        if config.hand_designed:
            found += self._first_blocks(self.final.epochs + inherited)
        if config.start.beside:
            found += self._beside(shapes[0], self.final.epochs + inherited)
        candidates = candidates_wanted(session) if session.limits.measured or inherited else 1
        several = candidates if inherited else min(candidates, len(shapes))
        found.append(replace(self._cut("final training", shapes[0], self.final.epochs), times=several))
        for size in sizes:
            shape = self._shapes(Limits.of(max_params=size))[0]
            found.append(self._cut(f"final training, at most {units.show(size)}", shape, self.final.epochs))
        found += [self._peer(name, self.final.epochs + inherited) for name in config.peers]
        if inherited:
            found.append(self._search(shapes[0], 1 + len(sizes)))
        # Libraries load a network's kernels when it is measured; later trainings begin as quickly as the quickest.
        quickest = min(self.kernels)
        return [replace(piece, seconds=quickest) if piece.epoch else piece for piece in found]

    def _training(
        self,
        label: str,
        arch: Arch,
        epochs: float,
        build: Callable[[], nn.Module],
        teacher: Teacher | None,
        rule: Rule | None = None,
        settings: TrainSettings | None = None,
        late: bool = True,
    ) -> Piece:
        session = self.session
        seed_everything(session.seed, "init", "plain")
        made: list[nn.Module] = []

        def built() -> nn.Module:
            made.append(build())
            return made[0]

        took = pace(session, built, replace(settings or self.final, compile=False), "plan", rule or Fixed(), teacher)
        session.progress.step("measuring", len(self.kernels) + 1, len(self.kernels) + 1, {})
        self.kernels.append(took["setup"])
        look = 0.0
        if rule is None:
            look = self._seconds_of_an_image(made[0]) * session.data.counts["search"]
        params, macs = session.meter.counter.both(arch)
        return Piece(
            label,
            took["setup"],
            epochs,
            took["epoch"],
            look,
            params=params,
            macs=macs,
            memory=took["memory"],
            late=late,
        )

    def _cut(self, label: str, arch: Arch, epochs: float) -> Piece:
        return self._training(label, arch, epochs, lambda: self.session.build(arch, self.final.drop_path), self.teacher)

    def _shapes(self, limits: Limits) -> list[Arch]:
        """Even shapes under these limits, most work first; a member of the supernet without one."""
        session = self.session
        if limits is session.limits:
            meter = session.meter
        else:
            meter = Meter.for_space(session.space, limits, device=session.device, clock=session.clock)
        shapes = even_shapes(session.space, meter)
        if not shapes:
            shapes = list(near_limits(session, []).archs_at(session.seed, 0)[:1])
        return sorted(shapes, key=lambda arch: -meter.counter.macs(arch))

    def _first_blocks(self, epochs: int) -> list[Piece]:
        how = tailoring_of(self.network)
        if how.first is None:
            return []
        cuts = (whole_blocks(self.network, depth) for depth in range(len(how.parts(self.network).blocks), 0, -1))
        arch = next((arch for arch in cuts if self.session.meter.fits(arch)), None)
        return [] if arch is None else [self._cut("first blocks", arch, epochs)]

    def _beside(self, arch: Arch, epochs: int) -> list[Piece]:
        space, meter, slim = slimmed_shape(self.session, self.network)
        record, drop = family(space.family), self.final.drop_path
        found = []
        if slim is not None:
            taught = self._training(
                "uniform slimming",
                arch,
                epochs,
                lambda: record.build(record.settings(dict(space.settings)), slim, drop),
                self.teacher,
            )
            params, macs = meter.counter.both(slim)
            found.append(replace(taught, params=params, macs=macs))
        fresh = self._training("from scratch", arch, epochs, lambda: fresh_network(self.session, arch, drop), None)
        return [*found, fresh]

    def _peer(self, name: str, epochs: int) -> Piece:
        session = self.session
        whole = session.space.largest()
        made = build_peer(name, session.data)
        params = sum(p.numel() for p in made.parameters())
        found = self._training(f"timm's {name.removeprefix(PREFIX)}", whole, epochs, lambda: made, None)
        return replace(found, params=params, macs=0)

    # -- what is no plain training ------------------------------------------------------------------------------------

    def _supernet(self, rule: NearLimits) -> Piece:
        session, settings = self.session, self.config.train

        def build() -> nn.Module:
            return session.family.supernet(session.space, settings.drop_path)

        drawn = rule.archs_at(session.seed, 0)[0]
        found = self._training("supernet", drawn, settings.epochs, build, self.teacher, rule, settings)
        whole = self._seconds_of_an_image(self.network) * session.data.counts["search"]
        return replace(found, check=MEMBERS * whole)  # the largest and another one are watched

    def _search(self, arch: Arch, searches: int) -> Piece:
        """Members evaluated on the search images, for the limits and for every other size."""
        settings = self.config.search_settings()
        count = getattr(settings, "population", 0) * (1 + getattr(settings, "generations", 0))
        count = getattr(settings, "budget", count) or 1
        each = self._seconds_of_an_image(self.session.build(arch)) * self.session.data.counts["search"]
        return Piece("search in the supernet", searches * count * each)

    def _refitting(self) -> float:
        """Seconds to refit one cut network: a pass of the whole network, and what sums and its own pass take."""
        images = min(self.session.data.counts["train"], ORDER_IMAGES)
        return REFIT_PASSES * images * self._seconds_of_an_image(self.network)

    def _ordering(self) -> float:
        """Seconds to order the parts: blocks are tried one by one, which is half the square of their number."""
        depth = len(tailoring_of(self.network).parts(self.network).blocks)
        size = min(ORDER_BATCH, self.session.data.counts["train"])
        batches = min(self.session.data.counts["train"] // size, -(-ORDER_IMAGES // size))
        greedy = sum(k * (k - 1) for k in range(2, depth + 1)) / depth
        image = self._seconds_of_an_image(self.network)
        kind, half = torch.device(self.session.device).type, self.final.precision == "bf16"
        with torch.autocast(kind, torch.bfloat16, enabled=half):
            ranked = self._seconds_of_an_image(self.network)
        rest = ORDER_PASSES * batches * size + self.session.data.counts["search"]
        return ranked * greedy * min(BLOCK_BATCHES, batches) * size + image * rest

    @torch.no_grad()
    def _seconds_of_an_image(self, model: nn.Module) -> float:
        """In evaluation."""
        x, _ = next(iter(self.session.search_batches()))
        x, cuda = x[:ORDER_BATCH].to(self.session.device), torch.device(self.session.device).type == "cuda"
        model.to(self.session.device).eval()
        model(x if cuda else x[:1])
        wait(cuda)
        begin = time.monotonic()
        model(x)
        wait(cuda)
        return (time.monotonic() - begin) / len(x)


# -- the plan ---------------------------------------------------------------------------------------------------------


def plan_time(session: Session, seconds: float) -> dict[str, Any]:
    """How many epochs every training has, so that the run takes about that long; at most three times the recipe's."""
    begin = time.monotonic()
    pieces = measured_pieces(session)
    spent = sum(session.run.seconds().values()) + time.monotonic() - begin
    factor = longest(pieces, (1 - RESERVE) * seconds - spent)
    expected = whole_time(pieces, factor)
    require_time(seconds, expected + spent, ADVICE)
    return _facts(session.config, pieces, factor, max(0.0, seconds - (expected + spent) / (1 - RESERVE)))


def _facts(config: Config, pieces: Sequence[Piece], factor: float, left: float) -> dict[str, Any]:
    full = factor >= LONGEST * (1 - ROUNDING)
    return {
        "seconds": whole_time(pieces, factor),
        "memory": max(piece.memory for piece in pieces),
        "factor": factor,
        "whole_epochs": scaled_epochs(config.tailor.epochs, factor),
        "final_epochs": scaled_epochs(config.final.train.epochs, factor),
        "left": left if full else 0.0,
        "pieces": [{**asdict(piece), "planned": piece.length(factor)} for piece in pieces],
    }


def pieces_of(plan: Mapping[str, Any]) -> list[Piece]:
    """The pieces of a stored plan."""
    return [Piece(**{k: v for k, v in row.items() if k != "planned"}) for row in plan["pieces"]]


def begin_in_time(session: Session) -> tuple[Session, dict[str, Any] | None]:
    """The run with the epochs of its plan, and the plan; as it is, where there is no budget of time."""
    run, seconds = session.run, session.config.seconds()
    if seconds is None:
        return session, None
    session.progress.ends_at = time.monotonic() + seconds - sum(run.seconds().values())
    plan = run.result("plan")
    if plan is None:  # killed between its folder and its plan
        with session.timed("plan"):
            plan = plan_time(session, seconds)
        run.finish("plan", plan)
    session.progress.ends_at -= plan["left"]
    epochs = f"{plan['whole_epochs']} epochs for the whole network, {plan['final_epochs']} for what is left of it"
    session.log_once("plan", f"Plan: {epochs}, about {duration(plan['seconds'])}.{_left_over(plan)}")
    factor = float(plan["factor"])
    return session.for_space(session.space, scaled(session.config, factor, factor)), plan


def go_on_in_time(session: Session, recipe: Config, plan: Mapping[str, Any] | None) -> Session:
    """Once the whole network is tuned and ordered: the epochs of the rest in the time that is left, settled once.

    Where the whole network took longer than planned, the rest is taken to do so too.
    """
    seconds = recipe.seconds()
    if seconds is None or plan is None:
        return session
    known = session.run.result("plan-final")
    if known is None:
        spent = session.run.seconds()
        pieces = pieces_of(plan)
        early, late = ([p for p in pieces if p.late is side] for side in (False, True))
        took = sum(spent.get(stage, 0.0) for stage in ("whole", "ordered"))
        slower = max(1.0, took / max(whole_time(early, float(plan["factor"])), ROUNDING))
        left = (1 - RESERVE) * seconds - sum(spent.values())
        known = {"factor": longest(late, left / slower)}
        session.run.finish("plan-final", known)
    after = scaled(recipe, float(plan["factor"]), float(known["factor"]))
    epochs = after.final.train.epochs
    if epochs != session.config.final.train.epochs:
        session.log_once("plan", f"The time that is left is enough for final trainings of {epochs} epochs.")
    return session.for_space(session.space, after)


def scaled(config: Config, whole: float, rest: float) -> Config:
    """The recipe with so many times its epochs, for the whole network and for the rest; warm-ups are no longer."""

    def length(settings: TrainSettings) -> TrainSettings:
        epochs = scaled_epochs(settings.epochs, rest)
        return replace(settings, epochs=epochs, warmup=min(settings.warmup, WARMUP * epochs))

    final = replace(config.final, train=length(config.final.train))
    tailor = replace(config.tailor, epochs=scaled_epochs(config.tailor.epochs, whole))
    return replace(config, train=length(config.train), final=final, tailor=tailor)


def _left_over(plan: Mapping[str, Any]) -> str:
    if plan["left"] < 1:
        return ""
    return (
        f" That is {LONGEST:g} times the recipe, the most a plan gives, so {duration(plan['left'])} of the budget are "
        f"left over."
    )


# -- a plan to look at ------------------------------------------------------------------------------------------------


def planned(session: Session) -> dict[str, Any]:
    """What a run would do: its pieces of work, with epochs, time, memory and disk."""
    config, seconds = session.config, session.config.seconds()
    if seconds is None:
        plan = _facts(config, measured_pieces(session), 1.0, 0.0)
    else:
        plan = plan_time(session, seconds)
    factor, pieces = float(plan["factor"]), pieces_of(plan)
    expected = plan["seconds"] / (1 - RESERVE)
    lines = [heading(session), f"{config.start.network} is tuned whole, ordered and cut:"]
    width = max(len(piece.label) for piece in pieces)
    for piece in pieces:
        lines.append(f"  {piece.label:<{width}}  {_row(piece, factor)}")
    disk = _disk(pieces)
    lines.append(in_all(expected, disk, plan["memory"]) + _left_over(plan))
    return {**plan, "seconds": expected, "disk": disk, "lines": lines}


def _row(piece: Piece, factor: float) -> str:
    lasts = duration(piece.lasts(factor))
    if not piece.epochs:
        return f"{'':>17}  {lasts:>13}"
    often = f", {piece.times} times" if piece.times > 1 else ""
    size = f"{units.show(piece.params):>6} parameters"
    return f"{size}  {lasts:>13}  {piece.epoch:7.2f} s an epoch  {piece.length(factor)} epochs{often}"


def _disk(pieces: Sequence[Piece]) -> float:
    """Bytes: the weights of every stage, and of every network delivered; the start and what is in work besides."""
    weights = [4 * piece.params * piece.times for piece in pieces if piece.epochs]
    largest = max(weights)
    start, ordered, moments = largest, largest, 2 * largest
    return 2 * sum(weights) + start + ordered + moments
