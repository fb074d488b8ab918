"""The last part of every method: finish the best candidates, train the baseline, open the test split, write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from torch import nn

from tailorvit.analysis import analyse
from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.export import Card, save_network
from tailorvit.methods.first_space import baseline_arch
from tailorvit.methods.session import Session, Supernet
from tailorvit.search import Trial, merit
from tailorvit.search.pareto import non_dominated
from tailorvit.train import TrainSettings, accuracy

__all__ = ["FinalSettings", "Finished", "baseline_arch", "baseline_training", "finish"]


@dataclass(frozen=True)
class FinalSettings:
    """[final]: what becomes of the architecture found: keep its inherited weights, tune them, or train it anew."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    how: Literal["inherit", "finetune", "retrain"] = "retrain"
    candidates: int = 1  # finish this many of the best found and keep the one best on the search split
    train: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise TailorError(f"final.candidates must be at least 1, not {self.candidates}.")


@dataclass(frozen=True, eq=False)
class Finished:
    """A candidate with its trained network."""

    trial: Trial
    model: nn.Module
    search_accuracy: float


def finish(
    session: Session, trials: Sequence[Trial], supernet: Supernet | None, start: nn.Module | None = None
) -> dict[str, Any]:
    """Finish the best architectures, choose by the search split, then open the test split for the final figures.

    ``start`` is the network whose weights the last training began with, where there is no supernet. Returns the facts
    of result.json.
    """
    finished = _finish_best(session, trials, supernet, start)
    chosen = max(finished, key=lambda f: f.search_accuracy)  # the first wins a tie: it was better in the search
    baseline = _train_baseline(session, supernet)
    _open_test_split(session)
    test = session.batches("test")
    tested = {id(f): accuracy(f.model, test, session.device) for f in finished}
    costs = session.meter.costs(chosen.trial.arch)
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in session.space.settings}
    result = {
        "method": session.config.method,
        "arch": chosen.trial.arch.to_dict(),
        **{k: v if k in ("latency", "memory") else int(v) for k, v in costs.items()},
        "limits": session.limits.to_dict(),
        "search_accuracy": chosen.trial.accuracy,
        "final_search_accuracy": chosen.search_accuracy,
        "test_accuracy": tested[id(chosen)],
        "candidates": [_candidate_facts(session, f, tested[id(f)], f is chosen) for f in finished],
        "baseline": None if baseline is None else _baseline_facts(session, *baseline, test),
        "final": session.config.final.how if supernet is not None else "retrain",
        "settings": settings,
        "fixed": settings,  # the name of the key until 0.1
        "parts": [row._asdict() for row in session.meter.counter.parts(chosen.trial.arch)],
        "blocks": session.family.outline(session.meter.counter.shared, chosen.trial.arch),
        "spaces": _spaces(session),
        "front": _front(session, trials),
        "trials": len(session.run.trials()),
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
    card = Card(
        chosen.trial.arch, dict(session.space.settings), session.data.classes, session.data.preprocessing, facts
    )
    save_network(session.run.folder / "network", session.data.with_trunk(chosen.model), card)
    _analyse(session, chosen.model)
    return {**result, "seconds": session.run.seconds()}


# -- networks ---------------------------------------------------------------------------------------------------------


def _finish_best(
    session: Session, trials: Sequence[Trial], supernet: Supernet | None, start: nn.Module | None
) -> list[Finished]:
    """The best candidates with their final weights."""
    best = sorted(trials, key=merit)[: session.config.final.candidates]
    finished = []
    for i, trial in enumerate(best):
        stage = f"final-{i}" if len(best) > 1 else "final"
        model = _final_network(session, trial.arch, supernet, stage, start)
        finished.append(Finished(trial, model, session.search_accuracy(model)))
    return finished


def _final_network(
    session: Session, arch: Arch, supernet: Supernet | None, stage: str, start: nn.Module | None
) -> nn.Module:
    """Inherit, fine-tune or retrain; without a supernet there is nothing to inherit."""
    how, settings = session.config.final.how, session.config.final.train
    if supernet is None or how == "retrain":
        return session.plain(arch, settings, stage, start)
    inherited = session.family.extract(supernet.model(), arch)
    if how == "inherit":
        return inherited.eval()
    # Built anew, for the drop path of the last training: an extracted network has the supernet's.
    tuned = session.build(arch, settings.drop_path)
    tuned.load_state_dict(inherited.state_dict())
    return session.plain(arch, settings, stage, tuned)


def _train_baseline(session: Session, supernet: Supernet | None) -> tuple[Arch, nn.Module] | None:
    """The baseline, trained; None where it is switched off or none keeps the limits."""
    if not session.config.baseline:
        return None
    arch = baseline_arch(session.space, session.meter)
    if arch is None:
        session.log_once(
            "baseline",
            f"There is no baseline: no hand-designed {session.space.family} keeps {session.limits.describe()}.",
        )
        return None
    return arch, session.plain(arch, baseline_training(session, supernet), "baseline")


def baseline_training(session: Session, supernet: Supernet | None) -> TrainSettings:
    """The final training, for as many epochs as the found network's weights have seen, inherited ones included."""
    final = session.config.final
    inherited = supernet.epochs if supernet is not None and final.how != "retrain" else 0
    own = final.train.epochs if final.how != "inherit" or supernet is None else 0
    return replace(final.train, epochs=own + inherited)


def _open_test_split(session: Session) -> None:
    """Open the test split, after the choice; say which of its images cannot be read."""
    before = len(session.data.skipped)
    session.data.unseal_test("final figures")
    late = session.data.skipped[before:]
    if late:
        text = f"{len(late)} unreadable test image(s) were skipped, the first: {late[0][0]}."
        session.log("skipped", text, files=[{"path": path, "reason": why} for path, why in late])


# -- facts of result.json ---------------------------------------------------------------------------------------------


def _candidate_facts(session: Session, finished: Finished, test: float, chosen: bool) -> dict[str, Any]:
    params, macs = session.meter.counter.both(finished.trial.arch)
    return {
        "arch": finished.trial.arch.to_dict(),
        "params": params,
        "macs": macs,
        "search_accuracy": finished.trial.accuracy,
        "final_search_accuracy": finished.search_accuracy,
        "test_accuracy": test,
        "chosen": chosen,
    }


def _baseline_facts(session: Session, arch: Arch, model: nn.Module, test: Any) -> dict[str, Any]:
    params, macs = session.meter.counter.both(arch)
    percent = accuracy(model, test, session.device)
    epochs = session.run.epochs("baseline")[-1]["epoch"]
    return {"arch": arch.to_dict(), "params": params, "macs": macs, "test_accuracy": percent, "epochs": epochs}


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


def _analyse(session: Session, model: nn.Module) -> None:
    """What the report shows of the network. A picture that fails must not cost a run its result."""
    settings, batch = session.config.analysis, session.config.evaluate.batch
    with session.timed("analysis"):
        try:
            facts = analyse(session.family, model, session.data, session.device, settings, batch)
            session.run.write_json("analysis", facts)
        except (TailorError, RuntimeError, OSError, ValueError) as error:
            session.log("warning", f"The report will lack its pictures of the network ({error}).")
