"""The last part of every method: from trials to a finished network, its test accuracy, and the baseline beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from tailorvit.analysis import analyse
from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.export import Card, save_network
from tailorvit.methods import prefilter
from tailorvit.methods.plan import hand_designed
from tailorvit.methods.session import Session, Supernet
from tailorvit.search.base import Trial, merit
from tailorvit.search.pareto import non_dominated
from tailorvit.train import TrainSettings, accuracy


def finish(
    session: Session, trials: Sequence[Trial], net: Supernet | None, start: nn.Module | None = None
) -> dict[str, Any]:
    """Finish the best architectures, choose by the search split, then open the test split for the final figures.

    ``start`` is the network whose weights the last training began with, where there is no supernet.
    """
    best = sorted(trials, key=merit)[: session.config.final.candidates]
    finished = [
        (t, _network(session, t.arch, net, f"final-{i}" if len(best) > 1 else "final", start))
        for i, t in enumerate(best)
    ]
    scored = [(accuracy(model, session.search_batches(), session.device), t, model) for t, model in finished]
    after, chosen, model = max(scored, key=lambda row: row[0])  # first wins ties: the better one in the search
    rival_arch = hand_designed(session.space, session.meter) if session.config.baseline else None
    if session.config.baseline and rival_arch is None:
        session.tell_once(
            "baseline", f"No hand-designed {session.space.family} keeps {session.limits.describe()}: there is no rival."
        )
    rival = session.plain(rival_arch, _rival_training(session, net), "baseline") if rival_arch else None

    known = len(session.data.skipped)
    session.data.unseal_test("final figures")
    late = session.data.skipped[known:]
    if late:
        text = f"{len(late)} unreadable test image(s) were skipped, the first: {late[0][0]}."
        session.tell("skipped", text, files=[{"path": path, "reason": why} for path, why in late])
    test = session.batches("test")
    tested = [accuracy(each, test, session.device) for _, _, each in scored]  # after the choice, which it cannot touch
    costs = session.meter.costs(chosen.arch)
    result = {
        "method": session.config.method,
        "arch": chosen.arch.to_dict(),
        **{k: v if k in ("latency", "memory") else int(v) for k, v in costs.items()},
        "limits": session.limits.to_dict(),
        "search_accuracy": chosen.accuracy,
        "final_search_accuracy": after,
        "test_accuracy": next(figure for row, figure in zip(scored, tested) if row[2] is model),
        "candidates": [
            _candidate(session, t, after_it, figure, each is model)
            for (after_it, t, each), figure in zip(scored, tested)
        ],
        "baseline": _rival(session, rival_arch, rival, test),
        "final": session.config.final.how if net is not None else "retrain",
        "fixed": {k: list(v) if isinstance(v, tuple) else v for k, v in session.space.fixed},
        "parts": [row._asdict() for row in session.meter.counter.parts(chosen.arch)],
        "blocks": session.family.outline(session.meter.counter.frame, chosen.arch),
        "spaces": _path(session),
        "front": _front(session, trials),
        "trials": len(session.run.trials()),
        "data": {
            "source": session.data.source,
            "counts": session.data.counts,
            "classes": len(session.data.classes),
            "skipped": len(session.data.skipped),
        },
        "seed": session.seed,
        **({} if net is None else prefilter.facts(session, trials)),
        **({} if session.data.trunk is None else {"trunk": session.data.trunk.facts}),
    }
    facts = {k: result[k] for k in ("method", "params", "macs", "test_accuracy", "seed")}
    card = Card(chosen.arch, dict(session.space.fixed), session.data.classes, session.data.preprocessing, facts)
    save_network(session.run.folder / "network", session.data.with_trunk(model), card)
    _analyse(session, model)
    return {**result, "seconds": session.run.seconds()}


def _candidate(session: Session, trial: Trial, after: float, test: float, chosen: bool) -> dict[str, Any]:
    params, macs = session.meter.counter.both(trial.arch)
    return {
        "arch": trial.arch.to_dict(),
        "params": params,
        "macs": macs,
        "search_accuracy": trial.accuracy,
        "final_search_accuracy": after,
        "test_accuracy": test,
        "chosen": chosen,
    }


def _analyse(session: Session, model: nn.Module) -> None:
    """What the report shows of the network. A picture that fails must not cost a run its result."""
    settings, batch = session.config.analysis, session.config.evaluate.batch
    with session.timed("analysis"):
        try:
            views = analyse(session.family, model, session.data, session.device, settings, batch)
            session.run.write_json("analysis", views)
        except (TailorError, RuntimeError, OSError, ValueError) as error:
            session.tell("warning", f"analysis: the report will lack its views of the network ({error})")


def _network(
    session: Session, arch: Arch, net: Supernet | None, stage: str, start: nn.Module | None = None
) -> nn.Module:
    """Inherit, fine-tune or retrain; without a supernet there is nothing to inherit."""
    how, settings = session.config.final.how, session.config.final.train
    if net is None or how == "retrain":
        return session.plain(arch, settings, stage, start)
    inherited = session.family.extract(net.model(), arch)
    if how == "inherit":
        return inherited.eval()
    # Anew, for the drop path of the last training: an extracted network has the supernet's.
    tuned = session.family.build(session.family.frame(dict(session.space.fixed)), arch, settings.drop_path)
    tuned.load_state_dict(inherited.state_dict())
    return session.plain(arch, settings, stage, tuned)


def _rival_training(session: Session, net: Supernet | None) -> TrainSettings:
    """The final recipe; for as many epochs as the found network's weights have seen, where it inherited some."""
    final = session.config.final
    inherited = net.epochs if net is not None and final.how != "retrain" else 0
    own = final.train.epochs if final.how != "inherit" or net is None else 0
    return replace(final.train, epochs=own + inherited)


def _rival(session: Session, arch: Arch | None, model: nn.Module | None, test: Any) -> dict[str, Any] | None:
    if arch is None or model is None:
        return None
    params, macs = session.meter.counter.both(arch)
    figure = accuracy(model, test, session.device)
    epochs = session.run.epochs("baseline")[-1]["epoch"]
    return {"arch": arch.to_dict(), "params": params, "macs": macs, "test_accuracy": figure, "epochs": epochs}


def _path(session: Session) -> list[dict[str, Any]]:
    rows = []
    for row in session.run.spaces():
        dims = {d.key: list(d.choices) for d in row["space"].dims}
        rows.append(
            {
                "t": row.get("step", row["t"]),
                "repair": row.get("repair", False),
                "dims": dims,
                "largest": session.meter.largest(row["space"]),
            }
        )
    return rows


def _front(session: Session, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """The trials no other beats in both accuracy and the cost in question."""
    import numpy as np

    name = str(session.config.search.get("cost", "params"))
    points = np.array([[-t.accuracy, t.cost(name)] for t in trials])
    front = sorted((t for t, keep in zip(trials, non_dominated(points)) if keep), key=lambda t: t.cost(name))
    return [{"arch": t.arch.to_dict(), "accuracy": t.accuracy, "cost": name, "value": t.cost(name)} for t in front]
