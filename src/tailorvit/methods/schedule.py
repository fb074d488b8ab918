"""A budget of time: measure a step of everyone in the contest, and plan contest and final training to fit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tailorvit import units
from tailorvit.data.augment import LADDER
from tailorvit.errors import TailorError
from tailorvit.methods.contest import AUTO, HAND, KEPT, RATES, SHARES, Entry, Standing, contest_training
from tailorvit.rng import seed_everything
from tailorvit.train import Fixed, Sink
from tailorvit.train.loop import Trainer

if TYPE_CHECKING:
    from tailorvit.methods.session import Session

DEFAULTS = {"cuda": 600.0, "cpu": 1200.0}  # seconds for a run on one's own images
RESERVE = 0.06  # of the time, for tests, the analysis of the network and the report
LEAST, MOST = 5, 300  # final epochs
FINAL = 2  # trainings at full length: by the augmentation chosen and by the next stronger one
RUNGS = 3  # of the ladder of augmentations: where the climb usually ends
TOO_LONG = 1.2  # times the budget: a run that would take longer is refused
ENOUGH = 30  # final epochs; while there are fewer, slow entries are left out
FEWEST, SLOW = 3, 2.0  # entries that stay in any case, and how much slower than the usual one a slow one is
WARM, TIMED, PATIENCE = 3, 30, 2.0  # steps before the clock starts, steps timed, seconds after which fewer will do


def measure(session: Session, entry: Entry) -> dict[str, float]:
    """Seconds of an epoch, seconds before the first one, and bytes of device memory, from a few steps of training."""
    own = session.for_space(entry.space)
    settings = contest_training(own.config.final.train, entry, 1)
    seed_everything(own.seed, "init", "plain")
    cuda = torch.device(own.device).type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    begin = time.monotonic()
    batches = own.train_batches(settings, "contest-0")
    model = own.build(entry.arch, settings.drop_path)
    trainer = Trainer(model, batches, Fixed(), settings, 0, Sink(), None, own.device)
    started, steps = begin, 0
    for batch in batches.iterate(0, WARM + TIMED):
        trainer.step(batch)
        steps += 1
        if steps == WARM:
            _wait(cuda)
            started = time.monotonic()
        elif steps > WARM + 2 and time.monotonic() - started > PATIENCE:
            break
    _wait(cuda)
    step = (time.monotonic() - started) / (steps - WARM)
    if trainer.graphs is not None:
        trainer.graphs.close()
    memory = float(torch.cuda.max_memory_allocated()) if cuda else 0.0
    setup = max(0.0, started - begin - WARM * step)
    return {"epoch": step * batches.steps_per_epoch, "setup": setup, "memory": memory}


def _wait(cuda: bool) -> None:
    """Until the device has done what it was given."""
    if cuda:
        torch.cuda.synchronize()


def predicted(paces: Sequence[dict[str, float]], epochs: int, trainings: int) -> float:
    """Seconds of a whole run with these entries and that many final epochs.

    Who will survive is not known, so later rounds count as the slower ones of the entries.
    """
    each, setup = (float(np.quantile([p[k] for p in paces], 0.67)) for k in ("epoch", "setup"))
    length = {what: max(1, round(share * epochs)) for what, share in SHARES.items()}
    total = sum(p["setup"] + length["family"] * p["epoch"] for p in paces)
    shapes, rates = 2 * KEPT["family"], (len(RATES) - 1) * KEPT["shape"]  # newcomers of a round
    total += (KEPT["family"] + shapes) * (setup + length["shape"] * each) + shapes * length["family"] * each
    total += (KEPT["shape"] + rates) * (setup + length["learning rate"] * each)
    total += RUNGS * (setup + length["augmentation"] * each)
    return total + trainings * (setup + epochs * each)


def plan_time(session: Session, entries: Sequence[Entry], seconds: float) -> dict[str, Any]:
    """Who takes part and how many epochs the final training has, so that the run takes about that long."""
    paces = []
    for done, entry in enumerate(entries, 1):
        paces.append(measure(session, entry))
        session.progress.step("measuring", done, len(entries), {})
    order = sorted(range(len(entries)), key=lambda i: paces[i]["epoch"])
    budget, trainings = (1 - RESERVE) * seconds - sum(session.run.seconds().values()), FINAL + len(session.config.peers)
    while True:
        inside = [paces[i] for i in order]
        fitting = [e for e in range(LEAST, MOST + 1) if predicted(inside, e, trainings) <= budget]
        epochs = max(fitting, default=LEAST)
        slowest, usual = paces[order[-1]]["epoch"], float(np.median([p["epoch"] for p in inside]))
        if epochs >= ENOUGH or len(order) <= FEWEST or slowest < SLOW * usual:
            break
        order.pop()
    if (least := predicted(inside, epochs, trainings) / (1 - RESERVE)) > TOO_LONG * seconds:
        raise TailorError(
            f"A budget of {duration(seconds)} is too short: the shortest run on these images takes about "
            f"{duration(least)}. Give more time, smaller images (--image-size) or one family (--set family=vit)."
        )
    return {
        "epochs": epochs,
        "seconds": predicted(inside, epochs, trainings),
        "memory": max(p["memory"] for p in paces),
        "entries": [{"label": e.label, **p, "inside": i in order} for i, (e, p) in enumerate(zip(entries, paces))],
    }


def final_epochs(session: Session, winner: Standing, seconds: float) -> int:
    """Epochs of the final training in the time that is left, at the winner's pace in its last round."""
    last = winner.rounds[-1]
    left = (1 - RESERVE) * seconds - sum(session.run.seconds().values())
    trainings = 1 + len(session.config.peers) + int(session.config.hand_designed and winner.entry.shape != HAND)
    trainings += int(session.config.final.train.augment == AUTO and winner.entry.augment != LADDER[-1])
    return int(np.clip(left / trainings / max(last["seconds"] / last["epochs"], 1e-9), LEAST, MOST))


def duration(seconds: float) -> str:
    """In words."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} minutes"


# -- a plan to look at ------------------------------------------------------------------------------------------------


def planned(session: Session) -> dict[str, Any]:
    """What a run would do: who takes part, how long each round is, the time, memory and disk it takes."""
    config, entries = session.config, session.plan.entries
    if not entries:
        raise TailorError(f"--plan knows the contest (method contest, or family auto), not method '{config.method}'.")
    seconds = config.seconds()
    if seconds is None:
        rows = [measure(session, e) for e in entries]
        epochs, inside = config.final.train.epochs, [True] * len(entries)
        expected = predicted(rows, epochs, FINAL + len(session.config.peers)) / (1 - RESERVE)
    else:
        found = plan_time(session, entries, seconds)
        rows, inside = found["entries"], [row["inside"] for row in found["entries"]]
        epochs, expected = found["epochs"], found["seconds"] / (1 - RESERVE)
    params = [session.for_space(e.space).meter.counter.both(e.arch) for e in entries]
    # Weights and the optimiser's two moments, of those that go on.
    disk = 3 * 4 * max(p for p, _ in params) * (KEPT["family"] + 2)
    data = session.data
    lines = [
        f"{data.source}: {data.counts['train']} training / {data.counts['search']} search / {data.counts['test']} test "
        f"images at {data.image_size[0]}x{data.image_size[1]} px, {session.limits.describe()}, on {session.device}.",
        f"Contest of {sum(inside)} entries, then a final training of about {epochs} epochs:",
    ]
    width = max(len(e.label) for e in entries)
    for entry, row, (size, macs), there in zip(entries, rows, params, inside, strict=True):
        note = "" if there else "  left out: too slow"
        lines.append(
            f"  {entry.label:<{width}}  {units.show(size):>6} parameters  {units.show(macs):>6} MACs  "
            f"{row['epoch']:7.2f} s an epoch{note}"
        )
    for what, share in SHARES.items():
        lines.append(f"  round '{what}': {max(1, round(share * epochs))} epoch(s) each")
    memory = max(row["memory"] for row in rows)
    lines.append(
        f"About {duration(expected)}, {units.show(disk, 'memory')} of disk"
        + (f", {units.show(memory, 'memory')} of GPU memory" if memory else "")
        + ". Nothing was trained."
    )
    return {"epochs": epochs, "seconds": expected, "disk": disk, "memory": memory, "entries": rows, "lines": lines}
