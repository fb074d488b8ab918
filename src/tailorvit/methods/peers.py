"""Peers: models of timm, trained in a run by the same recipe; they stand beside its networks and are not delivered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tailorvit import units
from tailorvit.analysis import metrics, tested
from tailorvit.costs.measure import measure_latency, measure_memory
from tailorvit.costs.meter import SLOW
from tailorvit.data import Data
from tailorvit.errors import TailorError
from tailorvit.rng import seed_everything
from tailorvit.stats import paired_difference
from tailorvit.train import Fixed, TrainSettings

if TYPE_CHECKING:
    from tailorvit.methods.session import Batches, Session

PREFIX = "timm:"


@dataclass(frozen=True, eq=False)
class Peer:
    """A trained peer; without a model where its training failed."""

    name: str
    costs: dict[str, Any]
    epochs: int
    model: nn.Module | None
    search_accuracy: float | None
    problem: str | None = None
    stage: str = ""  # of its training


# -- before the run ---------------------------------------------------------------------------------------------------


def check_peers(names: Sequence[str], data: Data) -> None:
    """Refuse, before anything is trained, models that timm does not have or that cannot take the images."""
    if names and data.trunk is not None:
        raise TailorError(f"'{names[0]}' takes images, and this run trains on the features of a trunk: leave it out.")
    for name in names:
        counted(name, build_peer(name, data), data)


def build_peer(name: str, data: Data, drop_path: float = 0.0) -> nn.Module:
    """The model with fresh weights, for these images and classes; image size and drop path where it takes them."""
    high, wide = data.image_size
    options: dict[str, Any] = {"img_size": high if high == wide else (high, wide), "drop_path_rate": drop_path}
    try:
        model: nn.Module = timm_model(
            name, options, pretrained=False, num_classes=len(data.classes), in_chans=data.channels
        )
        return model
    except TailorError:
        raise
    except Exception as error:  # models refuse sizes in many ways
        raise _cannot_take(name, data, error) from None


def require_known(name: str) -> str:
    """The name without its prefix; one that timm does not have is refused with the nearest."""
    import timm

    bare = name.removeprefix(PREFIX)
    if not timm.is_model(bare):
        near = get_close_matches(bare, timm.list_models(), n=3, cutoff=0.5)
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        raise TailorError(f"timm has no model '{bare}'{hint}.")
    return bare


def timm_model(name: str, optional: Mapping[str, Any], **options: Any) -> nn.Module:
    """A model of timm; options that its kind does not take are left out."""
    import timm

    bare = require_known(name)
    while True:
        try:
            model: nn.Module = timm.create_model(bare, **options, **optional)
            return model
        except TypeError as error:
            refused = [k for k in optional if f"'{k}'" in str(error)]
            if not refused:
                raise
            optional = {k: v for k, v in optional.items() if k not in refused}


def counted(name: str, model: nn.Module, data: Data) -> dict[str, int]:
    """Parameters and MACs of one image, by torch's counter on a forward pass."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    params = sum(p.numel() for p in model.parameters())
    model = model.requires_grad_(False).eval()  # the counter fails on weights with gradients that enter a module
    x = torch.zeros(1, data.channels, *data.image_size)
    try:
        # Of a fused attention the counter sees nothing on a CPU.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            out = model(x)
    except Exception as error:
        raise _cannot_take(name, data, error) from None
    if tuple(out.shape) != (1, len(data.classes)):
        raise TailorError(f"{name} gives the shape {tuple(out.shape)} and no class scores.")
    return {"params": params, "macs": counter.get_total_flops() // 2}


def _cannot_take(name: str, data: Data, error: Exception) -> TailorError:
    high, wide = data.image_size
    why = (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__
    return TailorError(f"{name} cannot take images of {high}x{wide} px with {data.channels} channel(s): {why}.")


# -- in the run -------------------------------------------------------------------------------------------------------


def train_peers(session: Session, settings: TrainSettings) -> list[Peer]:
    """Every peer of the recipe, trained. One that fails is told and costs the run nothing else."""
    peers = []
    settings = replace(settings, compile=False)  # not every model compiles, and it changes no result
    for name in session.config.peers:
        bare = name.removeprefix(PREFIX)
        stage = f"peer-{bare}"
        costs = _costs(session, name, stage)
        if costs["over"]:
            session.log_once("peer", f"timm's {bare} is over the limit ({costs['over']}); it is trained all the same.")
        seed_everything(session.seed, "init", stage)
        model = build_peer(name, session.data, settings.drop_path)
        try:
            accuracy = _fit(session, model, settings, stage)
            peers.append(Peer(name, costs, settings.epochs, model, accuracy, stage=stage))
        except (TailorError, RuntimeError) as error:
            problem = (str(error).splitlines() or [type(error).__name__])[0]
            session.log_once("warning", f"timm's {bare} could not be trained ({problem}).")
            peers.append(Peer(name, costs, settings.epochs, None, None, problem))
    return peers


def _fit(session: Session, model: nn.Module, settings: TrainSettings, stage: str) -> float:
    session.fit(model, Fixed(), settings, stage, lambda: {"search_accuracy": session.search_accuracy(model)})
    return session.search_accuracy(model)


def _costs(session: Session, name: str, stage: str) -> dict[str, Any]:
    """Costs as limited for the run's own networks, and the first upper limit they break; measured once."""
    known = session.run.result(f"{stage} costs")
    if known is None:
        model, data = build_peer(name, session.data), session.data
        costs: dict[str, float] = dict(counted(name, model, data))
        shape = (data.channels, *data.image_size)
        if "latency" in session.limits.metrics and (latency := _latency(session, name, model, shape)) is not None:
            costs["latency"] = latency
        if "memory" in session.limits.metrics:
            costs["memory"] = float(measure_memory(model, shape, 1, session.device))
        over = [
            f"{metric} {units.show(costs[metric], metric)} > {units.show(high, metric)}"
            for metric, _, high in session.limits
            if high is not None and metric in costs and costs[metric] > high
        ]
        known = {**costs, "over": over[0] if over else None}
        session.run.finish(f"{stage} costs", known)
    return dict(known)


def _latency(session: Session, name: str, model: nn.Module, shape: tuple[int, int, int]) -> float | None:
    """Seconds by the run's clock; None where it cannot say, which is told."""
    bare = name.removeprefix(PREFIX)
    if session.clock.table is not None:
        session.log_once("peer", f"The latency of timm's {bare} on the host of the table is not known.")
        return None
    runtime = session.clock.runtime
    try:
        return measure_latency(model, shape, 1, session.device, seconds=SLOW, runtime=runtime).median
    except TailorError as error:
        session.log_once("warning", f"The latency of timm's {bare} could not be measured: {error}")
        return None


def peer_facts(
    session: Session, peers: Sequence[Peer], test: Batches, delivered: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    """Rows of result.json; ``gap`` is the peer less the delivered network on the same test images, in points."""
    rows, seconds = [], session.run.seconds()
    for peer in peers:
        row: dict[str, Any] = {"name": peer.name, **peer.costs, "epochs": peer.epochs}
        row |= {"final_search_accuracy": peer.search_accuracy, "test_accuracy": None, "gap": None}
        if peer.model is not None:
            found = tested(peer.model, test, session.device)
            correct = found.truth == found.predicted
            gap = paired_difference(correct, delivered)
            row["test_accuracy"] = 100 * int(correct.sum()) / max(len(correct), 1)
            row |= {"metrics": metrics(found, len(session.data.classes)), **session.kept(peer.stage)}
            row["gap"] = {**gap._asdict(), "clear": gap.clear}
        else:
            row["problem"] = peer.problem
        rows.append({**row, "seconds": seconds.get(peer.stage or f"peer-{peer.name.removeprefix(PREFIX)}")})
    return rows
