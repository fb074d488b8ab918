"""What stands beside a tailored network where ``start.beside`` asks for it: other ways to a network of that size.

Uniform slimming keeps all blocks and the whole stream, and of every block the same share of heads and hidden units,
those with the largest weights. It has the same teacher, epochs and limits. From scratch: the shape found, with fresh
weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from tailorvit.arch import Arch
from tailorvit.costs.meter import Meter
from tailorvit.families import family
from tailorvit.families.network import PlainNetwork
from tailorvit.families.tailoring import tailoring_of
from tailorvit.methods.finetune import SCRATCH
from tailorvit.methods.importance import importance
from tailorvit.methods.peers import Peer
from tailorvit.methods.tailor import filled, fitting_share
from tailorvit.rng import seed_everything
from tailorvit.space import Space
from tailorvit.train import Teacher, TrainSettings

if TYPE_CHECKING:
    from tailorvit.methods.session import Session

SLIMMED = "uniform-slimming"
SCRATCH_LR = (
    1e-3  # fresh weights need a higher rate than tuned ones; as in benchmarks/pretrained, not chosen by a study
)


def slimmed_shape(session: Session, whole: PlainNetwork) -> tuple[Space, Meter, Arch | None]:
    """The largest shape of uniform slimming that keeps the limits, in a space of the network as it is."""
    how = tailoring_of(whole)
    space = how.space(how.whole(whole), whole.shared.to_dict())
    meter = Meter.for_space(space, session.limits, device=session.device, clock=session.clock)
    arch = fitting_share(space, meter, {"heads": 1.0, "hidden": 1.0})
    return space, meter, arch if arch is None or meter.limits.measured else filled(space, arch, meter)


def slimmed(session: Session, whole: PlainNetwork, settings: TrainSettings, teacher: Teacher) -> list[Peer]:
    """The whole network slimmed by the size of its weights and taught by itself; none where nothing fits."""
    space, meter, arch = slimmed_shape(session, whole)
    if arch is None:
        session.log_once("beside", "All blocks of the whole network with one head each break the limits: not slimmed.")
        return []
    how, record = tailoring_of(whole), family(space.family)
    supernet = record.supernet(space, 0.0)
    how.fill(supernet, how.reordered(whole, importance(whole, [], "magnitude").orders(channels=False)).cpu())
    start = record.build(record.settings(dict(space.settings)), arch, settings.drop_path)
    start.load_state_dict(record.extract(supernet, arch).state_dict())
    model = session.plain(arch, settings, f"peer-{SLIMMED}", start, teacher)
    costs = {**meter.facts(arch), "over": None}
    return [Peer(SLIMMED, costs, settings.epochs, model, session.search_accuracy(model))]


def from_scratch(session: Session, arch: Arch, settings: TrainSettings) -> Peer:
    """The shape found with fresh weights, which nobody teaches."""
    fresh = replace(settings, lr=SCRATCH_LR, min_lr=settings.min_lr * SCRATCH_LR / settings.lr)
    model = session.plain(arch, fresh, f"peer-{SCRATCH}", fresh_network(session, arch, settings.drop_path))
    costs = {**session.meter.facts(arch), "over": None}
    return Peer(SCRATCH, costs, fresh.epochs, model, session.search_accuracy(model))


def fresh_network(session: Session, arch: Arch, drop_path: float) -> nn.Module:
    """With weights that start as those of networks that are trained from scratch."""
    seed_everything(session.seed, "init", "plain")
    settings = session.family.settings({**dict(session.space.settings), "init": "scaled"})
    return session.family.build(settings, arch, drop_path)
