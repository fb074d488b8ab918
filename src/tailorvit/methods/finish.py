"""The last part of every method: finish the best candidates and the baseline, choose, open the test split, write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tailorvit.analysis import Predictions, analyse, metrics, tested
from tailorvit.arch import Arch
from tailorvit.costs.meter import Meter
from tailorvit.errors import TailorError
from tailorvit.export import Card, save_network
from tailorvit.methods.choice import Contender, choose
from tailorvit.methods.first_space import baseline_arch
from tailorvit.methods.peers import Peer, peer_facts, train_peers
from tailorvit.methods.session import Session, Supernet
from tailorvit.methods.throughput import throughputs
from tailorvit.search import Trial, merit
from tailorvit.search.pareto import non_dominated
from tailorvit.train import Teacher, TrainSettings, hits
from tailorvit.train.statistics import measured, shared_statistics

__all__ = ["FinalSettings", "Finished", "baseline_arch", "baseline_training", "finish"]

Answers = NDArray[np.bool_]  # whether each image of a split is classified correctly
FEW_IMAGES = 500  # of the search split; with fewer, several candidates are finished: one image is 0.2 points and more
SEVERAL = 3
STATISTICS = 20  # batches on which an inherited network's batch statistics are measured


@dataclass(frozen=True)
class FinalSettings:
    """[final]: what becomes of the architectures found: keep their inherited weights, tune them, or train them anew."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    how: Literal["inherit", "finetune", "retrain"] = "retrain"
    candidates: int = 0  # finish this many of the best found; 0: one, or up to three where search images are few
    train: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self) -> None:
        if self.candidates < 0:
            raise TailorError(f"final.candidates must be 0 (choose by the data) or more, not {self.candidates}.")


@dataclass(frozen=True, eq=False)
class Finished:
    """A network with its final weights: one found by the search, or the baseline, which has no trial."""

    name: str
    arch: Arch
    trial: Trial | None
    model: nn.Module
    correct: Answers  # on the search images
    augment: str  # in its last training
    stage: str = ""  # of its last training

    @property
    def search_accuracy(self) -> float:
        """Percent, after the last training."""
        return percent(self.correct)


def percent(correct: Answers) -> float:
    """Accuracy from answers."""
    return 100 * int(correct.sum()) / max(len(correct), 1)


def finish(
    session: Session,
    trials: Sequence[Trial],
    supernet: Supernet | None,
    start: nn.Module | None = None,
    *,
    given: bool = False,
    others: Sequence[Finished] = (),
    teacher: Teacher | None = None,
    beside: Sequence[Peer] = (),
) -> dict[str, Any]:
    """Finish the best architectures, choose by the search split, then open the test split for the final figures.

    The baseline competes, except with an architecture that was ``given``. ``start`` is the network whose weights the
    last training began with, where there is no supernet. ``others`` are trained already and compete; those ``beside``
    are shown only. A ``teacher`` helps in the last training, and then its first blocks stand for the baseline.
    Returns the facts of result.json.
    """
    found = [*_finish_best(session, trials, supernet, start, teacher), *others]
    baseline = _train_baseline(session, supernet) if teacher is None else None
    finished = found if given or baseline is None else [*found, baseline]
    peers = [*beside, *train_peers(session, baseline_training(session, supernet))]
    choice = _choose(session, finished)
    chosen = next(f for f in finished if f.name == choice["chosen"])
    _open_test_split(session)
    test = session.batches("test")
    every = found if baseline is None else [*found, baseline]
    found_there = {f.name: tested(f.model, test, session.device) for f in every}
    figures = {name: test_facts(session, predictions) for name, predictions in found_there.items()}
    mine = found_there[chosen.name]
    rows = peer_facts(session, peers, test, mine.truth == mine.predicted)
    speeds = throughputs(session, {**{f.name: f.model for f in every}, **{p.name: p.model for p in peers}})
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in session.space.settings}
    result = {
        "method": session.config.method,
        "arch": chosen.arch.to_dict(),
        **session.meter.facts(chosen.arch),
        "limits": session.limits.to_dict(),
        **({"latency_by": session.clock.facts(chosen.arch)} if "latency" in session.limits.metrics else {}),
        **{**choice, "chosen": "baseline" if chosen is baseline else "found"},
        "search_accuracy": None if chosen.trial is None else chosen.trial.accuracy,
        "final_search_accuracy": chosen.search_accuracy,
        **figures[chosen.name],
        **speeds.get(chosen.name, {}),
        **session.kept(chosen.stage),
        "candidates": [
            {**_candidate_facts(session, f, f is chosen), **figures[f.name], **speeds.get(f.name, {})} for f in finished
        ],
        "baseline": None
        if baseline is None
        else {**_baseline_facts(session, baseline, supernet), **figures["baseline"], **speeds.get("baseline", {})},
        "peers": [{**row, **speeds.get(row["name"], {})} for row in rows],
        "final": session.config.final.how if supernet is not None else "retrain",
        "settings": settings,
        "fixed": settings,  # the name of the key until 0.1
        "parts": [row._asdict() for row in session.meter.counter.parts(chosen.arch)],
        "blocks": session.family.outline(session.meter.counter.shared, chosen.arch),
        "spaces": _spaces(session),
        "front": _front(session, trials),
        "trials": session.run.trial_count(),
        "data": {
            "source": session.data.source,
            "counts": session.data.counts,
            "classes": len(session.data.classes),
            "skipped": len(session.data.skipped),
        },
        "seed": session.seed,
        **({} if session.data.trunk is None else {"trunk": session.data.trunk.facts}),
    }
    facts = {k: result[k] for k in ("method", "params", "macs", "test_accuracy", "seed")}
    card = Card(chosen.arch, dict(session.space.settings), session.data.classes, session.data.preprocessing, facts)
    save_network(session.run.folder / "network", session.data.with_trunk(chosen.model), card)
    _analyse(session, chosen.model, mine)
    return {**result, "seconds": session.run.seconds()}


# -- the choice -------------------------------------------------------------------------------------------------------


def _choose(session: Session, finished: Sequence[Finished]) -> dict[str, Any]:
    """Which network is delivered. A choice once made is kept: the test split is opened after it."""
    stored = session.run.result("choice")
    if stored is None:
        contenders = [Contender(f.name, budget_use(session.meter, f.arch), f.correct) for f in finished]
        limited = any(high is not None for _, _, high in session.limits)
        stored = choose(contenders, session.config.prefer, limited).to_dict()
        session.run.finish("choice", stored)
        if len(finished) > 1:
            session.run.event("choice", stored["why"])  # the last lines of the run say it
    return dict(stored)


def budget_use(meter: Meter, arch: Arch) -> float:
    """The mean share of the upper limits that an architecture uses; its parameters where there is none."""
    shares = [meter.cost(metric, arch) / high for metric, _, high in meter.limits if high]
    return sum(shares) / len(shares) if shares else float(meter.counter.params(arch))


# -- networks ---------------------------------------------------------------------------------------------------------


def candidates_wanted(session: Session) -> int:
    """How many of the best are finished: as many as the recipe says; several where the search images are few."""
    few = session.data.counts["search"] < FEW_IMAGES
    return session.config.final.candidates or (SEVERAL if few else 1)


def best_candidates(session: Session, trials: Sequence[Trial], by_images: bool) -> list[Trial]:
    """The trials to finish, best first.

    Where the data decides how many, and accuracies were counted on few search images (``by_images``), the best is
    joined by those within one standard error of it that use the budget most (or least, where small ones are preferred).
    """
    ranked, count = sorted(trials, key=merit), candidates_wanted(session)
    if session.config.final.candidates or count == 1 or not by_images:
        return ranked[:count]
    images = session.data.counts["search"]
    share = (ranked[0].accuracy / 100 * images + 0.5) / (images + 1)
    near = ranked[0].accuracy - 100 * math.sqrt(share * (1 - share) / images)
    sign = 1 if session.config.prefer == "small" else -1
    tied = sorted((t for t in ranked[1:] if t.accuracy >= near), key=lambda t: sign * budget_use(session.meter, t.arch))
    # A predicted latency may be wrong: what is trained keeps its limits as measured.
    fitting = (t for t in tied if not session.limits.measured or session.meter.fits(t.arch))
    return [ranked[0], *islice(fitting, count - 1)]


def _finish_best(
    session: Session,
    trials: Sequence[Trial],
    supernet: Supernet | None,
    start: nn.Module | None,
    teacher: Teacher | None,
) -> list[Finished]:
    """The best candidates with their final weights."""
    best, finished = best_candidates(session, trials, by_images=supernet is not None), []
    for i, trial in enumerate(best):
        stage, name = (f"final-{i}", f"found {i + 1}") if len(best) > 1 else ("final", "found")
        model = final_network(session, trial.arch, supernet, stage, start, teacher)
        correct = hits(model, session.search_batches(), session.device)
        augment = session.config.final.train.augment
        finished.append(Finished(name, trial.arch, trial, model, correct, augment, stage))
    return finished


def final_network(
    session: Session,
    arch: Arch,
    supernet: Supernet | None,
    stage: str,
    start: nn.Module | None,
    teacher: Teacher | None = None,
) -> nn.Module:
    """Inherit, fine-tune or retrain; without a supernet there is nothing to inherit."""
    how, settings = session.config.final.how, session.config.final.train
    if supernet is None or how == "retrain":
        return session.plain(arch, settings, stage, start, teacher)
    if how == "inherit":
        return inherited_network(session, supernet, arch, stage)
    return session.plain(arch, settings, stage, tuning_start(session, supernet, arch, settings.drop_path), teacher)


def inherited_network(session: Session, supernet: Supernet, arch: Arch, stage: str) -> nn.Module:
    """A part of a supernet as it is; batch statistics, which its training did not keep, are measured."""
    inherited = supernet.network(arch)
    if shared_statistics(supernet.model()):
        batches = session.train_batches(session.config.final.train, f"{stage} statistics").iterate(0, STATISTICS)
        measured(inherited, (batch.x.to(session.device) for batch in batches))
    return inherited.eval()


def tuning_start(session: Session, supernet: Supernet, arch: Arch, drop_path: float) -> nn.Module:
    """A part of a supernet to be trained on, built anew for its drop path: an extracted network has the supernet's."""
    tuned = session.build(arch, drop_path)
    tuned.load_state_dict(supernet.network(arch).state_dict())
    return tuned


def _train_baseline(session: Session, supernet: Supernet | None) -> Finished | None:
    """The baseline, trained; None where it is switched off or none keeps the limits."""
    if not session.config.hand_designed:
        return None
    arch = baseline_arch(session.space, session.meter)
    if arch is None:
        session.log_once(
            "baseline",
            f"There is no baseline: no hand-designed {session.space.family} keeps {session.limits.describe()}.",
        )
        return None
    model = session.plain(arch, baseline_training(session, supernet), "baseline")
    correct = hits(model, session.search_batches(), session.device)
    return Finished("baseline", arch, None, model, correct, session.config.final.train.augment, "baseline")


def baseline_training(session: Session, supernet: Supernet | None) -> TrainSettings:
    """The final training, for as many epochs as the found network's weights have seen, inherited ones included."""
    final = session.config.final
    inherited = supernet.epochs if supernet is not None and final.how != "retrain" else 0
    own = final.train.epochs if final.how != "inherit" or supernet is None else 0
    return replace(final.train, epochs=own + inherited)


def _open_test_split(session: Session) -> None:
    """Open the test split, after the choice; say which of its images cannot be read."""
    session.data.unseal_test("final figures")
    session.note_skipped()


# -- facts of result.json ---------------------------------------------------------------------------------------------


def test_facts(session: Session, predictions: Predictions) -> dict[str, Any]:
    """Accuracy on the test images, and the figures beside it."""
    correct = predictions.truth == predictions.predicted
    return {"test_accuracy": percent(correct), "metrics": metrics(predictions, len(session.data.classes))}


def _candidate_facts(session: Session, finished: Finished, chosen: bool) -> dict[str, Any]:
    return {
        "name": finished.name,
        "arch": finished.arch.to_dict(),
        **session.meter.facts(finished.arch),
        "augment": finished.augment,
        "search_accuracy": None if finished.trial is None else finished.trial.accuracy,
        "final_search_accuracy": finished.search_accuracy,
        "chosen": chosen,
        **session.kept(finished.stage),
    }


def _baseline_facts(session: Session, baseline: Finished, supernet: Supernet | None) -> dict[str, Any]:
    return {
        "arch": baseline.arch.to_dict(),
        **session.meter.facts(baseline.arch),
        "final_search_accuracy": baseline.search_accuracy,
        "epochs": baseline_training(session, supernet).epochs,
        **session.kept(baseline.stage),
    }


def _spaces(session: Session) -> list[dict[str, Any]]:
    """The path of the space."""
    return [
        {
            "t": row.get("step", row["t"]),
            "repair": row.get("repair", False),
            "dims": {d.key: list(d.choices) for d in row["space"].dims},
            "largest": session.meter.largest(row["space"]),
        }
        for row in session.run.spaces()
    ]


def _front(session: Session, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """The trials that no other exceeds in accuracy at the same or a lower cost."""
    name = str(session.config.search.get("cost", "params"))
    points = np.array([[-t.accuracy, t.cost(name)] for t in trials])
    front = sorted((t for t, keep in zip(trials, non_dominated(points)) if keep), key=lambda t: t.cost(name))
    return [{"arch": t.arch.to_dict(), "accuracy": t.accuracy, "cost": name, "value": t.cost(name)} for t in front]


def _analyse(session: Session, model: nn.Module, found: Predictions) -> None:
    """What the report shows of the network. A picture that fails must not cost a run its result."""
    settings, batch = session.config.analysis, session.config.evaluate.batch
    with session.timed("analysis"):
        try:
            facts = analyse(session.family, model, session.data, session.device, settings, batch, found)
            session.run.write_json("analysis", facts)
        except (TailorError, RuntimeError, OSError, ValueError) as error:
            session.log("warning", f"The report will lack its pictures of the network ({error}).")
