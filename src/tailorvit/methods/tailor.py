"""Tailor a pretrained network: fine-tune it whole, order its parts, search what to keep, and teach what is left.

The whole network is tuned to the images and becomes the teacher. Its heads and hidden units are put in the order of
their importance, its stream is turned to its principal components (its channels are ordered where it cannot be turned)
and its blocks are ranked, so that every prefix keeps what matters. The network so ordered is the largest member of a
supernet. A member at the limit whose blocks are all alike is cut out, refitted block after block to follow the whole
one, and trained to the end with the whole one as its teacher. It has all blocks where the limits are on size; where
they are on latency or memory, which deep networks use up sooner, short trainings choose among deep and shallow ones.
Instead of that the supernet can be trained as a whole and searched (``tailor.search = "supernet"``).
What is special to ViTs or to Swins stands in their families' ``Tailoring``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tailorvit import units
from tailorvit.analysis import tested
from tailorvit.arch import Arch
from tailorvit.checkpoints.pretrained import Pretrained
from tailorvit.checkpoints.starts import open_pretrained
from tailorvit.costs.limits import Limits, Metric
from tailorvit.costs.meter import Meter
from tailorvit.data import Data
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.export import Card, save_network
from tailorvit.families import family
from tailorvit.families.network import PlainNetwork
from tailorvit.families.resize import resized_settings
from tailorvit.families.tailoring import tailoring_of
from tailorvit.methods import Method
from tailorvit.methods.finetune import COPY, normalise_by
from tailorvit.methods.first_space import largest_of_row
from tailorvit.methods.importance import block_order, importance
from tailorvit.methods.peers import Peer
from tailorvit.methods.session import Session, SpaceRecord, Supernet
from tailorvit.rng import generator, seed_everything
from tailorvit.search import Candidate, Trial, merit
from tailorvit.space import Dim, Space
from tailorvit.train import Fixed, Teacher, TrainSettings, hits

if TYPE_CHECKING:
    from tailorvit.config import Config
    from tailorvit.families.network import Sides
    from tailorvit.methods.finish import Finished

ORDER_IMAGES, ORDER_BATCH = 512, 64  # training images on which parts are ranked
BLOCK_BATCHES = 3  # of these, on which blocks are: twelve of them need 77 passes, two minutes on a CPU with all images
SHARE, FEATURES = 0.5, 8.0  # of the teacher's outputs in the target; weight of its tokens (benchmarks/pretrained)
DEPTHS, SHAPES = (1, 5 / 6, 2 / 3, 1 / 2, 1 / 3, 1 / 4), 4  # shares of the blocks; as many as fit, up to so many
NARROWER = {"embed": 1.0, "heads": 1.7, "hidden": 2.2}  # powers of one share: hidden units are given up first
SHARES = 64  # steps of it that are tried
LOWEST = 0.01  # of the whole network's learning rate, at the end of its training
SHORT, WARMUP = 1 / 3, 0.2  # of the final epochs: a shape's trial; of its epochs: the warm-up at most
MEMBERS = 2  # members of the supernet that a step trains
WINDOW = 0.6  # members between this share of a limit and the limit are trained
TRIES = 400  # draws for a member within a window, of which some ten per cent are
SOME_SIDE = 64  # pixels; up to it there is a side that suits, whatever the network
LATER = 1.2  # a latency limit in MACs, widened: time does not follow MACs closely


# -- the start --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PretrainedStart:
    """The pretrained network of a run, and what it becomes for the run's images."""

    pretrained: Pretrained

    @cached_property
    def checksum(self) -> str:
        """Of its weights."""
        digest = hashlib.sha256(repr(self.pretrained.settings).encode())
        for name, tensor in sorted(self.pretrained.state.items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def fitting_size(self, sides: Sides) -> Sides:
        """The nearest image size that suits the network well."""
        settings, side = self.pretrained.settings, self.pretrained.tailoring.side
        high, wide = settings.image_size
        return side(settings, sides[0], high), side(settings, sides[1], wide)

    def require_size(self, sides: Sides) -> None:
        """Refuse images that cannot be cut to patches and maps, with the nearest size that can."""
        blank = self.pretrained.blank()

        def nearest(side: int) -> int:
            return min((s for s in range(1, 2 * side + SOME_SIDE) if blank.suits(s)), key=lambda s: (abs(s - side), s))

        if not all(map(blank.suits, sides)):
            near, shown = "x".join(map(str, dict.fromkeys(map(nearest, sides)))), "x".join(map(str, sides))
            raise TailorError(
                f"'{self.pretrained.source}' reads {blank.size_rule()}, which {shown} px do not suit: "
                f"use --image-size {near}."
            )

    def normalise(self, data: Data) -> None:
        """Normalise images as the network has always seen them."""
        normalise_by(data, tuple(self.pretrained.mean), tuple(self.pretrained.std))

    def space(self, data: Data) -> Space:
        """What can be kept of it, with the settings that the network has once it is ordered."""
        pretrained, (high, wide) = self.pretrained, data.image_size
        given = {"image_size": (high, wide), "channels": data.channels, "classes": len(data.classes)}
        resized = resized_settings(pretrained.blank(), (high, wide), len(data.classes), data.channels)
        arch, settings = pretrained.family.resettle(
            pretrained.arch, {**pretrained.settings.to_dict(), **given}, resized
        )
        turned = pretrained.tailoring.turned_settings(arch, pretrained.settings)
        return pretrained.tailoring.space(arch, {**settings, **turned})

    def network(self, data: Data, seed: int, drop_path: float = 0.0) -> PlainNetwork:
        """The whole network for the run's images and classes, with a new head."""
        high, wide = data.image_size
        return self.pretrained.network((high, wide), len(data.classes), data.channels, seed, drop_path)


def tailored_space(arch: Arch, settings: Mapping[str, Any]) -> Space:
    """What can be kept of a whole network: blocks, heads one by one, channels and hidden units in even steps."""
    how = family(arch.family).tailoring
    assert how is not None  # of a pretrained network
    return how.space(arch, settings)


def read_pretrained(config: Config, run: Path | None = None) -> PretrainedStart:
    """The start of method tailor: the run's own copy where there is one."""
    if run is not None and Pretrained.kept_in(run / COPY):
        return PretrainedStart(Pretrained.load(run / COPY))
    if not config.start.network:
        raise TailorError("Method 'tailor' needs a pretrained network: --from timm:NAME, hf:NAME, open_clip:NAME/TAG.")
    if config.start.network == "auto":  # it may end in a run from scratch, which a recipe for this method is not
        raise TailorError("start.network of a recipe cannot be 'auto': name a network, or give --from auto.")
    return PretrainedStart(open_pretrained(config.start.network, config.start.weights or None))


# -- the ordered network ----------------------------------------------------------------------------------------------


def ordered(
    whole: PlainNetwork, batches: Sequence[tuple[Tensor, Tensor]], bf16: bool = False
) -> tuple[PlainNetwork, list[int]]:
    """The same function with its parts in the order of their importance, and its blocks, the most important first.

    Heads and hidden units by Taylor's criterion, streams by their principal components where the network allows it.
    Blocks, which take most of the time, may be ranked in bf16.
    """
    how, kind = tailoring_of(whole), next(whole.parameters()).device.type
    with torch.autocast(kind, torch.bfloat16, enabled=bf16):
        blocks = block_order(whole, batches[:BLOCK_BATCHES])
    turned = how.turned(whole, [x for x, _ in batches])
    model = whole if turned is None else turned
    return how.reordered(model, importance(model, batches, "taylor").orders(channels=turned is None)), blocks


def fill(supernet: nn.Module, network: PlainNetwork) -> None:
    """Put the ordered network into a supernet as its largest member."""
    tailoring_of(network).fill(supernet, network)


def first_blocks(network: PlainNetwork, depth: int, drop_path: float = 0.0) -> PlainNetwork:
    """Its first blocks with the head behind them: what people do by hand."""
    arch = whole_blocks(network, depth)
    made = family(arch.family).build(network.shared, arch, drop_path)
    assert isinstance(made, PlainNetwork)
    wanted = made.state_dict()
    made.load_state_dict({k: v for k, v in network.state_dict().items() if k in wanted})
    return made


def whole_blocks(network: PlainNetwork, depth: int) -> Arch:
    """The architecture of so many of its first blocks."""
    first = tailoring_of(network).first
    assert first is not None  # asked only where first blocks are a rival
    return first(network, depth)


# -- even shapes ------------------------------------------------------------------------------------------------------


def even_shapes(space: Space, meter: Meter) -> list[Arch]:
    """Networks at the limits whose blocks are all alike, from all blocks and narrow to few blocks and wide.

    Where there are several stages, the blocks of each are alike, and every stage keeps the same share.
    """
    found: dict[Arch, None] = {}
    for part in DEPTHS:
        arch = fitting_share(space, meter, NARROWER, part)
        if arch is not None and len(found) < SHAPES:
            found[arch if meter.limits.measured else filled(space, arch, meter)] = None
    return list(found)


def fitting_share(space: Space, meter: Meter, powers: Mapping[str, float], depth: float = 1.0) -> Arch | None:
    """The largest even network within the limits by one share, to a power in each dimension; others stay whole."""
    whole = {"embed": 1.0, "depth": depth}
    shares = ({gene: (i / SHARES) ** power for gene, power in powers.items()} for i in range(1, SHARES + 1))
    shapes = list(dict.fromkeys(_even(space, {**whole, **share}) for share in shares))
    return largest_of_row(iter(shapes), meter, Meter(space.family, dict(space.settings), meter.limits.counted()))


def _even(space: Space, shares: Mapping[str, float]) -> Arch:
    """The network with the nearest choice to a share of the whole in every dimension."""

    def nearest(dim: Dim) -> int:
        wanted = shares[dim.name] * dim.high
        return int(min(dim.choices, key=lambda choice: (abs(choice - wanted), choice)))

    return family(space.family).arch({dim.key: nearest(dim) for dim in space.dims})


def required_shapes(space: Space, meter: Meter) -> list[Arch]:
    """The same; an error where there are none, as between an upper and a lower limit that lie close together."""
    shapes = even_shapes(space, meter)
    if not shapes:
        raise InfeasibleError(
            f"No network whose blocks are alike keeps {meter.limits.describe()}; "
            f"--set tailor.search=supernet looks among those whose blocks differ."
        )
    return shapes


def filled(space: Space, arch: Arch, meter: Meter) -> Arch:
    """With more hidden units, as far as the limits allow; all stages go up together."""
    hidden = [dim for dim in space.dims if dim.name == "hidden"]
    while any(max(arch.many(dim.key)) < dim.high for dim in hidden):
        wider = arch
        for dim in hidden:
            values = arch.many(dim.key)
            more = min((c for c in dim.choices if c > max(values)), default=dim.high)
            wider = wider.replace(**{dim.key: (more,) * len(values)})
        if not meter.fits(wider):
            break
        arch = wider
    return arch


# -- the supernet -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class NearLimits:
    """Training rule: random members that lie a little under a limit; with several limits each in turn."""

    space: Space
    meter: Meter
    tops: tuple[tuple[Metric, float], ...]  # a counted cost and its limit
    members: int = MEMBERS

    def archs_at(self, seed: int, step: int) -> tuple[Arch, ...]:
        """As many as a step trains."""
        rng = generator(seed, "rule", step)
        return tuple(
            self._draw(rng, *self.tops[(step * self.members + i) % len(self.tops)]) for i in range(self.members)
        )

    def _draw(self, rng: Any, metric: Metric, top: float) -> Arch:
        nearest, gap = self.space.smallest(), math.inf
        for _ in range(TRIES):
            arch = self.space.sample(rng)
            cost = self.meter.cost(metric, arch)
            if WINDOW * top <= cost <= top:
                return arch
            if abs(cost - top) < gap:
                nearest, gap = arch, abs(cost - top)
        return nearest


def counted_top(meter: Meter, space: Space) -> tuple[Metric, float]:
    """The upper limit that members are drawn by: of a counted cost, or a measured one turned into MACs.

    Never more than the whole network has, near which members are drawn where a limit leaves room for all of it.
    """
    for metric, _, high in meter.limits.counted():
        if high is not None:
            return metric, min(high, meter.most(metric, space))
    largest = space.largest()
    macs = meter.cost("macs", largest)
    shares = [high / meter.cost(metric, largest) for metric, _, high in meter.limits if high is not None]
    return "macs", macs * min([1.0, *(LATER * share for share in shares)])


def near_limits(session: Session, sizes: Sequence[float]) -> NearLimits:
    """The rule for a run's limits and the other sizes it is asked for."""
    most = session.meter.most("params", session.space)
    tops = (counted_top(session.meter, session.space), *(("params", min(size, most)) for size in sizes))
    return NearLimits(session.space, session.meter, tuple(dict.fromkeys(tops)))


class TailoredSupernet(Supernet):
    """The supernet of an ordered network, as it is or trained near the limits with the teacher's help."""

    def __init__(self, session: Session, network: PlainNetwork, rule: NearLimits | None, teacher: Teacher) -> None:
        super().__init__(session, session.space, "supernet-0", None, teacher)
        self.whole, self.rule = network, rule
        self.epochs = 0 if rule is None else self.epochs
        self._refitted: tuple[Arch, nn.Module] | None = None

    def network(self, arch: Arch) -> nn.Module:
        """A member as it was trained; cut from the ordered network, it is refitted to follow that one."""
        if self.rule is not None:
            return super().network(arch)
        if self._refitted is None or self._refitted[0] != arch:
            made = super().network(arch).to(self.session.device)
            order = [int(b) for b in dict(self.space.settings)["order"]]
            images = [x for x, _ in _some(self.session, self.settings)]
            with self.session.timed("refit"):
                tailoring_of(self.whole).refit(made, self.whole, order, images)
            self._refitted = arch, made
        return self._refitted[1]

    def _train(self) -> nn.Module:
        session, settings = self.session, self.settings
        model = session.family.supernet(self.space, settings.drop_path)
        fill(model, self.whole)
        if self.rule is None:
            return model.to(session.device).eval()
        evaluator = self._evaluate(model)
        watched = {"largest": self.space.largest(), "drawn": self.rule.archs_at(session.seed, 0)[0]}

        def accuracies() -> dict[str, float]:
            evaluator.known.clear()
            return dict(zip(watched, evaluator(list(watched.values())), strict=True))

        return session.fit(model, self.rule, settings, self.stage, accuracies, teacher=self.teacher)

    def found(self, session: Session, name: str = "") -> list[Trial]:
        """Networks within a session's limits with their accuracies: members searched, or shapes trained for a while."""
        if self.rule is None:
            return self._shapes(session, name)
        self.model()  # trained here, so that its time does not count as the search's
        stage = f"search-{name}" if name else "search"
        return session.search(self.space, lambda asked, n: self.score("search", asked, n), stage)

    def _shapes(self, session: Session, name: str) -> list[Trial]:
        """Even shapes, each trained for a while; stored as they end.

        Under limits on size the deepest was the best, by 0.9 points at 6M and 5.1 at 3M (benchmarks/pretrained): there
        nothing is tried.
        """
        shapes, final, trials = required_shapes(self.space, session.meter), session.config.final.train, []
        if not session.limits.measured:
            untrained = session.search_accuracy(self.network(shapes[0]).eval())
            return [session.trial(Candidate(shapes[0], "even"), untrained, 0)]
        epochs = max(1, round(SHORT * final.epochs))
        settings = replace(final.ending_last(), epochs=epochs, warmup=min(final.warmup, WARMUP * epochs))
        for i, arch in enumerate(shapes):
            stage = f"shape-{name}-{i}" if name else f"shape-{i}"
            known = session.run.result(f"{stage} accuracy")
            if known is None:
                start = session.build(arch, settings.drop_path)
                start.load_state_dict(self.network(arch).state_dict())
                model = session.plain(arch, settings, stage, start, self.teacher)
                known = {"accuracy": session.search_accuracy(model)}
                session.run.record_trials(stage, [vars(session.trial(Candidate(arch, "even"), known["accuracy"], 0))])
                session.run.finish(f"{stage} accuracy", known)
            session.run.drop_checkpoint(stage)
            trials.append(session.trial(Candidate(arch, "even"), float(known["accuracy"]), 0))
            session.progress.step("shapes", i + 1, len(shapes), {"accuracy": trials[-1].accuracy})
        return trials


# -- the method -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Whole:
    """The whole network, fine-tuned and ordered: the teacher."""

    tuned: PlainNetwork  # as it was fine-tuned
    network: PlainNetwork  # the same, ordered
    blocks: tuple[int, ...]
    facts: Mapping[str, Any]


def tailor(session: Session) -> dict[str, Any]:
    """Fine-tune the whole, order it, find what to keep and train it with the teacher, for every limit."""
    from tailorvit.methods.finish import baseline_training, finish
    from tailorvit.methods.small_data import doubts
    from tailorvit.methods.tailor_beside import from_scratch, slimmed
    from tailorvit.methods.tailor_plan import begin_in_time, go_on_in_time

    recipe, unsure = session.config, doubts(session.data)
    for sentence in unsure:
        session.log_once("data", sentence)
    session, plan = begin_in_time(session)
    whole = _whole(session)
    session = go_on_in_time(session.for_space(session.space.with_settings(order=whole.blocks)), recipe, plan)
    SpaceRecord(session).space_reached(0, session.space)
    teacher = Teacher(whole.network, SHARE, FEATURES)
    sizes = front_sizes(session)
    rule = near_limits(session, sizes) if session.config.tailor.search == "supernet" else None
    supernet = TailoredSupernet(session, whole.network, rule, teacher)
    trials = supernet.found(session)
    beside = [_whole_peer(session, whole)]
    settings = baseline_training(session, supernet)
    rivals = _first_blocks(session, whole, settings, teacher)
    if session.config.start.beside:
        beside += slimmed(session, whole.tuned, settings, replace(teacher, network=whole.tuned))
        beside.append(from_scratch(session, min(trials, key=merit).arch, settings))
    front = [_of_size(session, supernet, size, teacher) for size in sizes]
    result = finish(session, trials, supernet, others=rivals, teacher=teacher, beside=beside)
    return {
        **result,
        "doubts": unsure,
        "whole": dict(whole.facts),
        "sizes": [_sized_facts(session, f) for f in front],
        **({} if plan is None else {"plan": {**plan, "final_epochs": session.config.final.train.epochs}}),
    }


def _whole(session: Session) -> Whole:
    """The whole network, fine-tuned; then the same ordered. Both are stages of the run."""
    start, config = session.plan.start, session.config
    assert isinstance(start, PretrainedStart)  # the run was prepared with it
    own = config.tailor
    settings = replace(
        config.final.train, epochs=own.epochs, lr=own.lr, min_lr=LOWEST * own.lr, layer_decay=own.layer_decay
    )
    tuned = start.network(session.data, session.seed, settings.drop_path)
    session.log_once("start", _opening(session, start))
    if session.meter.fits(session.space.largest()):
        session.log_once("start", "The whole network keeps the limits, so nothing needs to be cut.")
    seed_everything(session.seed, "init", "plain")
    session.fit(tuned, Fixed(), settings, "whole", lambda: {"search_accuracy": session.search_accuracy(tuned)})
    stage = "ordered"
    facts = session.run.result(stage)
    if facts is None:
        with session.timed(stage):
            batches = list(_some(session, settings))
            network, blocks = ordered(tuned, batches, settings.precision == "bf16")
            correct = hits(tuned, session.search_batches(), session.device)
            facts = {"blocks": blocks, "search_accuracy": 100 * float(correct.mean())}
            session.save_stage(network, stage, facts)
            session.require_weights(stage)
        session.run.finish(stage, facts)
    else:
        network = _empty_ordered(session, tuned)
        session.read_weights(network, stage)
    shared = sum(p.numel() for p in tuned.parameters())
    known = {"network": config.start.network, "sha256": start.checksum, "params": shared, **facts}
    tuned, network = (model.to(session.device).eval() for model in (tuned, network))
    return Whole(tuned, network, tuple(int(b) for b in facts["blocks"]), known)


def _empty_ordered(session: Session, tuned: PlainNetwork) -> PlainNetwork:
    """The ordered network's shape, its weights still to be read."""
    shared = session.family.settings(dict(session.space.settings))
    made = session.family.build(shared, tailoring_of(tuned).whole(tuned))
    assert isinstance(made, PlainNetwork)
    return made


def _some(session: Session, settings: TrainSettings) -> Iterator[tuple[Tensor, Tensor]]:
    """Training images as they are, in the order of a stream of their own."""
    settings = replace(settings, augment="none", batch=min(ORDER_BATCH, session.data.counts["train"]))
    batches = session.train_batches(settings, "order")
    count = min(batches.steps_per_epoch, -(-ORDER_IMAGES // settings.batch))
    for batch in islice(batches.iterate(0, count), count):
        yield batch.x.to(session.device), batch.y.to(session.device)


def _opening(session: Session, start: PretrainedStart) -> str:
    before, (high, wide) = start.pretrained.settings.image_size, session.data.image_size
    arch = start.pretrained.arch
    depths, widths = ([str(v) for k, v in arch.items() if k.startswith(gene)] for gene in ("depth", "embed"))
    return (
        f"Start: {start.pretrained.source}, {'-'.join(depths)} blocks of {'-'.join(widths)} channels, "
        f"{before[0]}x{before[1]} to {high}x{wide} px; it gets a new head for {len(session.data.classes)} classes."
    )


def _whole_peer(session: Session, whole: Whole) -> Peer:
    """The whole network beside the others: what the limit costs."""
    arch = tailoring_of(whole.network).whole(whole.network)
    known = {**session.meter.facts(arch), "over": session.limits.breaks(session.meter.costs(arch))}
    epochs = session.config.tailor.epochs
    return Peer(
        "whole network, fine-tuned", known, epochs, whole.network, whole.facts["search_accuracy"], stage="whole"
    )


def _first_blocks(session: Session, whole: Whole, settings: TrainSettings, teacher: Teacher) -> list[Finished]:
    """The first blocks that keep the limits, taught as long as the network found; none where not one does."""
    from tailorvit.methods.finish import Finished

    if not session.config.hand_designed:
        return []
    if tailoring_of(whole.network).first is None:
        session.log_once("baseline", "The first blocks of this network are no network of their own, so none compete.")
        return []
    fitting = [d for d in range(1, len(whole.blocks) + 1) if session.meter.fits(whole_blocks(whole.network, d))]
    if not fitting:
        session.log_once("baseline", "Not one whole block keeps the limits, so there are no first blocks beside.")
        return []
    arch = whole_blocks(whole.network, fitting[-1])
    cut = first_blocks(whole.network, fitting[-1], settings.drop_path)
    model = session.plain(arch, settings, "baseline", cut, teacher)
    correct = hits(model, session.search_batches(), session.device)
    return [Finished("first blocks", arch, None, model, correct, settings.augment, "baseline")]


# -- several sizes ----------------------------------------------------------------------------------------------------


def require_cuts(config: Config, space: Space, meter: Meter) -> None:
    """Refuse, before anything is trained, limits and sizes of --front that nothing keeps which the method would try."""
    if config.method == "tailor" and config.tailor.search == "shapes" and not meter.limits.measured:
        required_shapes(space, meter)
    for size in config.tailor.front:
        least = meter.least("params", space)
        if units.parse(size, "params") < least:
            raise InfeasibleError(
                f"--front {size} is too small: the smallest network of the space has {units.show(least)} parameters."
            )


def front_sizes(session: Session) -> list[float]:
    """The sizes of --front, without one that is the run's own limit; those that are written alike are one."""
    own = session.limits.high("params")
    sizes = (float(units.parse(size, "params")) for size in session.config.tailor.front)
    return sorted({units.show(size): size for size in sizes if size != own}.values())


@dataclass(frozen=True, eq=False)
class Sized:
    """The network of one size of the front."""

    size: float
    trial: Trial
    model: nn.Module
    search_accuracy: float


def _of_size(session: Session, supernet: TailoredSupernet, size: float, teacher: Teacher) -> Sized:
    """Search again under another size, in the same supernet, and train what is found."""
    from tailorvit.methods.finish import final_network

    name = units.show(size)
    limited = Limits.of(max_params=size)
    own = Session(replace(session.plan, limits=limited), session.run, session.progress)
    own._search_batches = session.search_batches()
    best = min(supernet.found(own, name), key=merit)
    model = final_network(own, best.arch, supernet, f"final-{name}", None, teacher)
    return Sized(size, best, model, own.search_accuracy(model))


def _sized_facts(session: Session, found: Sized) -> dict[str, Any]:
    """A row of result.json; the network is stored in the run folder. The test split is open by now."""
    from tailorvit.methods.finish import test_facts

    name = units.show(found.size)
    predictions = tested(found.model, session.batches("test"), session.device)
    params, macs = session.meter.counter.both(found.trial.arch)
    facts = {
        "size": found.size,
        "arch": found.trial.arch.to_dict(),
        "params": params,
        "macs": macs,
        "inherited_accuracy": found.trial.accuracy,
        "final_search_accuracy": found.search_accuracy,
        **test_facts(session, predictions),
        **session.kept(f"final-{name}"),
        "folder": f"front/{name}",
    }
    data = session.data
    shown = {"method": "tailor", **{k: facts[k] for k in ("params", "macs", "test_accuracy")}, "seed": session.seed}
    card = Card(found.trial.arch, dict(session.space.settings), data.classes, data.preprocessing, shown)
    save_network(session.run.folder / "front" / name, found.model, card)
    return facts


METHOD = Method("tailor", "cut a pretrained network to the limits and teach what is left", tailor)
