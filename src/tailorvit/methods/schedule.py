"""A budget of time: measure a step of everyone in the contest, and plan contest and final training to fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from tailorvit import units
from tailorvit.errors import TailorError
from tailorvit.methods.contest import CUTS, SHARES, Entry, Standing, contest_training
from tailorvit.rng import seed_everything
from tailorvit.train import Fixed, Rule, Sink, Teacher, TrainSettings
from tailorvit.train.loop import Trainer

if TYPE_CHECKING:
    from tailorvit.methods.session import Session

DEFAULTS = {"cuda": 600.0, "cpu": 1200.0}  # seconds for a run on one's own images
RESERVE = 0.06  # of the time, for tests, the analysis of the network and the report
LEAST, MOST = 5, 300  # final epochs
RATES_TRIED, STEPS_CLIMBED = 3, 2  # trainings of the last two rounds, where the climb ends as it usually does
TUNING = RATES_TRIED * SHARES["learning rate"] + STEPS_CLIMBED * SHARES["augmentation"]  # in final trainings
TOO_LONG = 1.2  # times the budget: a run that would take longer is refused
ROUNDING = 1e-6  # five epochs in the time of five are five
STEPS = 400  # lengths of the final training that a plan tries
WARM, TIMED, PATIENCE = 3, 30, 2.0  # steps before the clock starts, steps timed, seconds after which fewer will do


class TooShortError(TailorError):
    """A budget of time that not even the shortest run keeps."""


def measure(session: Session, entry: Entry) -> dict[str, float]:
    """Seconds of an epoch, seconds before the first one, and bytes of device memory, from a few steps of training."""
    own = session.for_space(entry.space)
    settings = contest_training(own.config.final.train, entry, 1)
    seed_everything(own.seed, "init", "plain")
    return pace(own, lambda: own.build(entry.arch, settings.drop_path), settings, "contest-0")


def pace(
    session: Session,
    build: Callable[[], nn.Module],
    settings: TrainSettings,
    stream: str,
    rule: Rule | None = None,
    teacher: Teacher | None = None,
) -> dict[str, float]:
    """The same of any training."""
    cuda = torch.device(session.device).type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    begin = time.monotonic()
    batches = session.train_batches(settings, stream)
    trainer = Trainer(build(), batches, rule or Fixed(), settings, 0, Sink(), None, session.device, teacher)
    first, started, warm, steps = time.monotonic(), begin, 0, 0
    for batch in batches.iterate(0, WARM + TIMED):
        trainer.step(batch)
        steps += 1
        if not warm and (steps == WARM or (not cuda and time.monotonic() - first > PATIENCE)):
            wait(cuda)
            started, warm = time.monotonic(), steps
        elif warm and steps > warm + 2 and time.monotonic() - started > PATIENCE:
            break
    wait(cuda)
    step = (time.monotonic() - started) / (steps - warm)
    if trainer.graphs is not None:
        trainer.graphs.close()
    memory = float(torch.cuda.max_memory_allocated()) if cuda else 0.0
    setup = max(0.0, started - begin - warm * step)
    return {"epoch": step * batches.steps_per_epoch, "setup": setup, "memory": memory}


def wait(cuda: bool) -> None:
    """Until the device has done what it was given."""
    if cuda:
        torch.cuda.synchronize()


def predicted(paces: Sequence[dict[str, float]], epochs: Sequence[int], trainings: int) -> float:
    """Seconds of a whole run with these entries, each with its own number of final epochs.

    Who will lead is not known, so later rounds count as they would with the slowest leader. Libraries load a network's
    kernels when it is measured, so later trainings begin as quickly as the quickest of the measured ones.
    """
    setup, entries = min(pace["setup"] for pace in paces), _entries(len(paces))
    first = next((what for what in CUTS if entries[what]), None)  # in which everyone trains
    rest = {what: count for what, count in entries.items() if what != first}
    together, later = 0.0, []
    for pace, full in zip(paces, epochs, strict=True):
        each = {what: max(1, round(share * full)) for what, share in SHARES.items()}
        together += 0.0 if first is None else setup + each[first] * pace["epoch"]
        seen = sum(count * each[what] for what, count in rest.items()) + trainings * full
        later.append((sum(rest.values()) + trainings) * setup + seen * pace["epoch"])
    return together + max(later)


def _entries(count: int) -> dict[str, int]:
    """How many take part in each round of a contest that so many enter."""
    found = {}
    for what, kept in CUTS.items():
        found[what] = count if count > kept else 0
        count = min(count, kept)
    return {**found, "learning rate": RATES_TRIED, "augmentation": STEPS_CLIMBED}


def plan_time(session: Session, entries: Sequence[Entry], seconds: float) -> dict[str, Any]:
    """Who takes part and how many epochs each has, so that all get the same time and the run takes about that long."""
    paces, begin = [], time.monotonic()
    for done, entry in enumerate(entries, 1):
        paces.append(measure(session, entry))
        session.progress.step("measuring", done, len(entries), {})
    trainings = 1 + len(session.config.peers)
    spent = sum(session.run.seconds().values()) + time.monotonic() - begin  # measuring takes a minute on a CPU
    budget = (1 - RESERVE) * seconds - spent
    fastest, slowest = (f(p["epoch"] for p in paces) for f in (min, max))
    chosen = _inside(paces, LEAST * fastest)
    for final in np.geomspace(LEAST * fastest, MOST * slowest, STEPS):
        inside = _inside(paces, float(final))
        if _time(paces, inside, trainings) <= budget:
            chosen = inside
    expected = _time(paces, chosen, trainings)
    require_time(seconds, expected + spent, "one family (--set family=vit)")
    rows = [
        {"label": e.label, **pace, "epochs": chosen.get(i, 0), "inside": i in chosen}
        for i, (e, pace) in enumerate(zip(entries, paces, strict=True))
    ]
    return {"seconds": expected, "memory": max(p["memory"] for p in paces), "entries": rows}


def require_time(seconds: float, expected: float, advice: str) -> None:
    """Refuse a budget that the shortest run does not keep by far."""
    if (least := expected / (1 - RESERVE)) > TOO_LONG * seconds:
        raise TooShortError(
            f"A budget of {duration(seconds)} is too short: the shortest run on these images takes about "
            f"{duration(least)}. Give more time, smaller images (--image-size) or {advice}."
        )


def _inside(paces: Sequence[dict[str, float]], final: float) -> dict[int, int]:
    """The entries that reach the least number of final epochs in that many seconds, with their epochs."""
    lengths = (min(MOST, int(final / pace["epoch"] + ROUNDING)) for pace in paces)
    return {i: n for i, n in enumerate(lengths) if n >= LEAST}


def _time(paces: Sequence[dict[str, float]], inside: dict[int, int], trainings: int) -> float:
    return predicted([paces[i] for i in inside], list(inside.values()), trainings)


def final_epochs(session: Session, standing: Standing, seconds: float, before: float = 0.0) -> int:
    """Epochs of the final training in the time that is left, at an entry's pace in its last round.

    Rounds with ``before`` times as many epochs come first.
    """
    paces = [leg["seconds"] / leg["epochs"] for leg in standing.rounds if leg["seconds"]]
    left = (1 - RESERVE) * seconds - sum(session.run.seconds().values())
    trainings = 1 + len(session.config.peers) + before
    return int(np.clip(left / trainings / max(paces[-1], 1e-9), LEAST, MOST))


def duration(seconds: float) -> str:
    """In words."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} minutes"


# -- a plan to look at ------------------------------------------------------------------------------------------------


def planned(session: Session) -> dict[str, Any]:
    """What a run would do: who takes part, how long each round is, the time, memory and disk it takes."""
    config, entries = session.config, session.plan.entries
    if not entries:
        raise TailorError(
            f"--plan knows the contest (method contest, or family auto) and method tailor, not method "
            f"'{config.method}'."
        )
    seconds = config.seconds()
    if seconds is None:
        rows = [{**measure(session, e), "epochs": config.final.train.epochs, "inside": True} for e in entries]
        expected = predicted(rows, [config.final.train.epochs] * len(rows), 1 + len(config.peers))
    else:
        found = plan_time(session, entries, seconds)
        rows, expected = found["entries"], found["seconds"]
    expected /= 1 - RESERVE
    inside = [row["inside"] for row in rows]
    params = [session.for_space(e.space).meter.counter.both(e.arch) for e in entries]
    # Weights and the optimiser's two moments, of those that go on.
    disk = 3 * 4 * max(p for p, _ in params) * (max(CUTS.values()) + 2)
    lines = [
        heading(session),
        f"Contest of {sum(inside)} entries, then the final training of the winner:",
    ]
    width = max(len(e.label) for e in entries)
    for entry, row, (size, macs), there in zip(entries, rows, params, inside, strict=True):
        note = f"{row['epochs']} final epochs" if there else "left out: too slow"
        lines.append(
            f"  {entry.label:<{width}}  {units.show(size):>6} parameters  {units.show(macs):>6} MACs  "
            f"{row['epoch']:7.2f} s an epoch  {note}"
        )
    for what, share in SHARES.items():
        lines.append(f"  round '{what}': {100 * share:.0f} % of the final epochs each")
    memory = max(row["memory"] for row in rows)
    lines.append(in_all(expected, disk, memory))
    return {"seconds": expected, "disk": disk, "memory": memory, "entries": rows, "lines": lines}


def heading(session: Session) -> str:
    """The first line of a plan: the images, the limits, the device."""
    data = session.data
    return (
        f"{data.source}: {data.counts['train']} training / {data.counts['search']} search / {data.counts['test']} test "
        f"images at {data.image_size[0]}x{data.image_size[1]} px, {session.limits.describe()}, on {session.device}."
    )


def in_all(seconds: float, disk: float, memory: float) -> str:
    """The last line of a plan."""
    device = f", {units.show(memory, 'memory')} of GPU memory" if memory else ""
    return f"About {duration(seconds)}, {units.show(disk, 'memory')} of disk{device}. Nothing was trained."
