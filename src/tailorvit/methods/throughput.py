"""How many images a second the finished networks of a run take on its device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tailorvit.costs.measure import measure_latency

if TYPE_CHECKING:
    from tailorvit.methods.session import Session

STAGE = "throughput"
MOST = {"cuda": 256, "cpu": 64}  # images a batch
PASS = 0.25  # seconds that a batch of the slowest network may take: the batch is smaller where it would take longer
SECONDS = 0.5  # for a network, where five passes take no longer


def throughputs(session: Session, models: Mapping[str, nn.Module | None]) -> dict[str, dict[str, Any]]:
    """Facts of result.json by name: images a second, with device, threads and the batch, the same for all networks.

    Measured once, in float32 and eager PyTorch: a resumed run reports what it first saw. With a trunk it is the
    decoder's. A measurement that fails costs the run nothing else.
    """
    if not session.config.evaluate.throughput:
        return {}
    known = session.run.result(STAGE)
    there = {name: model for name, model in models.items() if model is not None}
    if known is None or set(known) != set(there):
        with session.timed(STAGE):
            try:
                known = measured(there, _image(session), session.device)
            except (RuntimeError, MemoryError) as error:
                session.log_once("warning", f"Images a second could not be measured ({error}).")
                known = {}
        session.run.finish(STAGE, known)
    return {name: {"throughput": dict(row)} for name, row in known.items()}


def measured(models: Mapping[str, nn.Module], image: Tensor, device: str) -> dict[str, dict[str, Any]]:
    """The throughput of every network at a batch that suits the slowest."""
    most, batch = MOST.get(torch.device(device).type, MOST["cpu"]), 1
    # Doubled, as a GPU takes no longer for many images than for one until it is busy.
    while batch < most and 2 * max(_seconds(model, image, batch, device) for model in models.values()) <= PASS:
        batch *= 2
    shape = (int(image.shape[1]), int(image.shape[2]), int(image.shape[3]))
    found = {}
    for name, model in models.items():
        took = measure_latency(model, shape, batch, device, warmup=2, seconds=SECONDS)
        facts = {"batch": batch, "device": device, "threads": took.threads}
        found[name] = {"images_per_second": batch / took.median, **facts}
    return found


def _image(session: Session) -> Tensor:
    """One image as the networks take it."""
    x: Tensor = next(iter(session.search_batches()))[0]
    return x[:1]


@torch.inference_mode()
def _seconds(model: nn.Module, image: Tensor, batch: int, device: str) -> float:
    """The time of a batch, after a first pass that libraries and caches need."""
    x = image.to(device).expand(batch, -1, -1, -1).contiguous()
    model = model.to(device).eval()
    took = 0.0
    for _ in range(2):
        begin = time.perf_counter()
        model(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        took = time.perf_counter() - begin
    return took
