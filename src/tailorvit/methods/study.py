"""A study of a finished run: what its spaces and its sub-networks are worth once their networks are trained anew.

``spaces`` is Table 4 of S4: the best network of every iteration's space, retrained. ``networks`` is Figure 5 of S3:
networks drawn from the last space with inherited, tuned and retrained weights, and how well the three agree. Its work
lies in a folder of its own; the run is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np
from torch import nn

from tailorvit import units
from tailorvit.arch import Arch
from tailorvit.costs.meter import Meter
from tailorvit.errors import InfeasibleError, TailorError, unknown
from tailorvit.methods.finish import baseline_training, inherited_network, percent, tuning_start
from tailorvit.methods.session import Batches, Session, Supernet
from tailorvit.methods.stages import load_weights
from tailorvit.proxies.ranking import estimate, resamples
from tailorvit.rng import generator, seed_everything
from tailorvit.runs import Run
from tailorvit.search import Candidate, Trial, merit
from tailorvit.search.base import first_draw
from tailorvit.space import Space
from tailorvit.stats import band_taus, wilson
from tailorvit.train import Fixed, TrainSettings, hits
from tailorvit.train.loop import shortened

STUDY = "study"  # the folder in a run, its file in that folder, and what info.json there calls its method
METHODS = ("s4", "s3", "autoformer", "bignas", "hat")  # those that search in a supernet
What = Literal["spaces", "networks", "all"]
COUNT = 10  # networks, as in S3's figure
TUNED = 0.1  # of the epochs and of the learning rate of a retraining: no paper says how short is short
STREAM = "study"  # all trainings of a study see the same batches
REDRAWS = 2000  # of the networks, for the intervals of tau
STORED = ("slopes", "et", "edf")  # stages whose accuracies stand in for a search where a space had no supernet
WAYS = ("inherited", "tuned", "retrained")


@dataclass(frozen=True)
class StudySettings:
    """What is studied. Count and epochs stay as a study began with them."""

    what: What = "all"
    count: int = COUNT
    epochs: int | None = None  # of a retraining; None: those of the run's baseline

    def __post_init__(self) -> None:
        if self.what not in get_args(What):
            raise unknown("part of a study", self.what, get_args(What))
        if not 2 <= self.count <= 1000:
            raise TailorError(f"A study compares 2 to 1000 networks, not {self.count}.")
        if self.epochs is not None and self.epochs < 1:
            raise TailorError(f"A retraining takes at least one epoch, not {self.epochs}.")

    @property
    def spaces(self) -> bool:
        """Whether the spaces are studied."""
        return self.what != "networks"

    @property
    def networks(self) -> bool:
        """Whether networks of the last space are."""
        return self.what != "spaces"

    @property
    def parts(self) -> set[str]:
        """The parts of study.json that were asked for."""
        return {"spaces", "networks"} if self.what == "all" else {self.what}


def require_studied(run: Run) -> None:
    """Refuse, before anything is read or made, a run that has no result or no supernet."""
    if not run.finished:
        raise TailorError(f"'{run.folder}' is not a finished run; a study begins where a run has ended.")
    result = run.read_json("result")
    result = result if isinstance(result, dict) else {}
    method = run.info.get("method") or result.get("method")
    if method not in METHODS:
        raise TailorError(
            f"'{run.folder}' is a run of method '{method}', which searches in no supernet; a study is for runs of "
            f"{', '.join(METHODS)}."
        )
    if "contest" in result:
        raise TailorError(
            f"'{run.folder}' began with a contest of families; a study is for runs whose recipe names the family."
        )
    if "proxy" in result:
        raise TailorError(f"'{run.folder}' was searched by a score; a study is for runs with a supernet.")


# -- the run that is studied ------------------------------------------------------------------------------------------


class KeptSupernet(Supernet):
    """A supernet of the run that is studied, with the weights it kept."""

    def __init__(self, session: Session, space: Space, t: int, before: KeptSupernet | None, parent: Run) -> None:
        super().__init__(session, space, f"supernet-{t}", before)
        self.t, self.parent = t, parent

    @cached_property
    def kept(self) -> bool:
        """Whether the run still has its weights."""
        found = self.parent.load_checkpoint(self.stage)
        return found is not None and bool(found[1].get("done"))

    def require(self) -> None:
        """Refuse to go on without the weights."""
        if not self.kept:
            raise TailorError(
                f"The weights of '{self.stage}' are gone from '{self.parent.folder}'; without them no network inherits."
            )

    def _train(self) -> nn.Module:
        self.require()
        found = self.parent.load_checkpoint(self.stage)
        assert found is not None
        model = self.session.family.supernet(self.space, self.settings.drop_path)
        load_weights(model, found[0])
        return model.to(self.session.device).eval()


@dataclass(frozen=True)
class Studied:
    """The run that is studied, with the session of the study."""

    session: Session
    parent: Run
    supernets: tuple[KeptSupernet, ...]  # of the iterations that it counts, in order
    spaces: tuple[tuple[int, Space], ...]  # of all iterations, also of those that S3 took back
    retraining: TrainSettings

    @property
    def last(self) -> KeptSupernet:
        """The supernet that the run searched."""
        return self.supernets[-1]

    @cached_property
    def test(self) -> Batches:
        """The test split, opened when something is first judged: by then what depends on a choice is trained."""
        self.session.data.unseal_test("figures of a study")
        self.session.note_skipped()
        return self.session.batches("test")


def read_studied(session: Session, parent: Run, settings: StudySettings) -> Studied:
    """The spaces of a run with their supernets, in a session that knows what the run has measured."""
    rows = [(int(row.get("step", row["t"])), row["space"]) for row in parent.spaces()]
    if not rows:
        raise TailorError(f"'{parent.folder}' has no space in its database, so there is nothing to study.")
    spaces = dict(rows)  # a repaired space replaces the first one of its step
    t, space = rows[-1]  # S3 may have gone back
    session = session.for_space(space)
    known, own = parent.measured, session.run

    def recall(metric: str, arch: Arch) -> float | None:
        found = own.measured(metric, arch)
        return known(metric, arch) if found is None else found

    session.meter = Meter.for_space(
        space, session.limits, device=session.device, recall=recall, record=own.record_measured
    )
    moves = session.config.s3 if session.config.method == "s3" else session.config.s4
    warm = session.config.method in ("s3", "s4") and moves.warm_start and session.config.seek.by_supernet
    supernets: list[KeptSupernet] = []
    for step in sorted(spaces):
        before = supernets[-1] if warm and supernets and supernets[-1].t == step - 1 else None
        supernets.append(KeptSupernet(session, spaces[step], step, before, parent))
    counted = tuple(s for s in supernets if s.t <= t)
    usual = baseline_training(session, counted[-1])
    retraining = usual if settings.epochs is None else shortened(usual, settings.epochs / usual.epochs)
    return Studied(session, parent, counted, tuple(sorted(spaces.items())), replace(retraining, compile=False))


def tuning(retraining: TrainSettings) -> TrainSettings:
    """A short training of weights that are good already: fewer epochs, a lower rate, no warm-up."""
    lr = TUNED * retraining.lr
    return replace(shortened(retraining, TUNED), lr=lr, min_lr=min(retraining.min_lr, lr), warmup=0.0)


# -- the study --------------------------------------------------------------------------------------------------------


def study(session: Session, parent: Run, settings: StudySettings) -> dict[str, Any]:
    """Do the study; what is done already answers from its folder. Returns the facts of study.json."""
    studied = read_studied(session, parent, settings)
    run = session.run
    facts: dict[str, Any] = {
        "method": session.config.method,
        "limits": session.limits.to_dict(),
        "seed": session.seed,
        "epochs": studied.retraining.epochs,
        "tuned_epochs": tuning(studied.retraining).epochs,
        "data": {"source": session.data.source, "counts": session.data.counts},
    }
    if settings.networks:
        studied.last.require()
    if settings.spaces:
        facts["spaces"] = study_spaces(studied)
        run.write_json(STUDY, {**facts, "seconds": run.seconds()})
    if settings.networks:
        facts["networks"] = study_networks(studied, settings.count)
        facts["agreement"] = agreement(facts["networks"], session.seed)
    facts["seconds"] = run.seconds()
    run.write_json(STUDY, facts)
    return facts


def study_spaces(studied: Studied) -> list[dict[str, Any]]:
    """A row per space: its best network, retrained. The test split is opened when all of them are trained."""
    session, rows, stages = studied.session, list[dict[str, Any]](), dict[Arch, str]()
    for t, space in studied.spaces:
        row: dict[str, Any] = {"t": t, "searched": t == studied.last.t}
        try:
            best, how = best_of(studied, t, space)
        except InfeasibleError as error:
            best, how = None, str(error)
        if best is None:
            session.log_once("study", f"Space {t}: {how}")
            rows.append({**row, "problem": how})
            continue
        # Spaces overlap: an architecture that is the best of two of them is trained once.
        stage = stages.setdefault(best.arch, f"space-{t}")
        train(session, best.arch, studied.retraining, stage)
        row |= {"how": how, "stage": stage, "inherited": best.accuracy, **about(session, best.arch)}
        rows.append(row)
    for row in rows:
        if "stage" in row:
            stage = row.pop("stage")
            row["retrained"] = judged(studied, stage, trained(session, Arch.from_dict(row["arch"]), stage))
    return rows


def best_of(studied: Studied, t: int, space: Space) -> tuple[Trial | None, str]:
    """The best network of a space within the limits by its inherited accuracy, and how it was found."""
    session, parent = studied.session, studied.parent
    session.meter.require_feasible(space)

    def stored(stages: Sequence[str]) -> list[Trial]:
        rows = [row for stage in stages for row in parent.trials(stage) if row["accuracy"] is not None]
        fitting = [row for row in rows if session.meter.fits(row["arch"])]
        return [session.trial(Candidate(row["arch"], "stored"), row["accuracy"], 0) for row in fitting]

    supernet = next((s for s in studied.supernets if s.t == t), None)
    if t == studied.last.t and (trials := stored(["search"])):
        return min(trials, key=merit), f"the run's search of {len(trials):,} networks"
    if supernet is not None and supernet.kept:
        trials = session.search(space, lambda c, n: supernet.score(f"search-{t}", c, n), f"search-{t}")
        return min(trials, key=merit), f"a search of {len(trials):,} networks like the run's"
    if trials := stored([f"{kind}-{t}" for kind in STORED]):
        return min(trials, key=merit), f"the best of {len(trials):,} networks that the run evaluated"
    return None, "The run has neither a supernet of this space nor accuracies of its networks within the limits."


def study_networks(studied: Studied, count: int) -> list[dict[str, Any]]:
    """A row per network of the last space: its accuracy with inherited, tuned and retrained weights."""
    session, last = studied.session, studied.last
    archs = first_draw(last.space, session.meter.fits, generator(session.seed, STUDY), count)
    if len(archs) < 2:
        raise TailorError(f"Only one network of the last space was found within {session.limits.describe()}.")
    if len(archs) < count:
        session.log_once("study", f"The last space has only {len(archs)} networks within the limits, not {count}.")
    short, drop = tuning(studied.retraining), studied.retraining.drop_path
    for i, arch in enumerate(archs):
        if session.run.result(f"tuned-{i}") is None:
            train(session, arch, short, f"tuned-{i}", tuning_start(session, last, arch, drop))
        train(session, arch, studied.retraining, f"retrained-{i}")

    def inherited(arch: Arch, stage: str) -> Callable[[], nn.Module]:
        return lambda: inherited_network(session, last, arch, stage).to(session.device)

    rows = []
    for i, arch in enumerate(archs):
        row: dict[str, Any] = {"name": f"network {i + 1}", **about(session, arch)}
        row["inherited"] = judged(studied, f"inherited-{i}", inherited(arch, f"inherited-{i}"))
        for way in WAYS[1:]:
            row[way] = judged(studied, f"{way}-{i}", trained(session, arch, f"{way}-{i}"))
        rows.append(row)
    return rows


def agreement(rows: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Kendall's tau between each two ways, by the test images, with its 95 % bootstrap interval over the networks."""
    samples, size = resamples(len(rows), REDRAWS, seed), np.ones(len(rows))
    found = []
    for first, second in combinations(WAYS, 2):
        a, b = (np.array([row[way]["test_accuracy"] for row in rows], dtype=np.float64) for way in (first, second))
        tau = estimate(band_taus(a, b, size, None, samples))
        gain = float((b - a).mean())
        found.append(
            {"first": first, "second": second, "tau": tau.value, "low": tau.low, "high": tau.high, "gain": gain}
        )
    return found


# -- pieces -----------------------------------------------------------------------------------------------------------


def about(session: Session, arch: Arch) -> dict[str, Any]:
    """An architecture with its costs."""
    costs = session.meter.costs(arch)
    return {"arch": arch.to_dict(), **{k: v if k in ("latency", "memory") else int(v) for k, v in costs.items()}}


def train(
    session: Session, arch: Arch, settings: TrainSettings, stage: str, weights: nn.Module | None = None
) -> nn.Module:
    """Train a network as a stage, from scratch or on from its weights; all see the same batches."""
    seed_everything(session.seed, "init", "plain")
    model = weights or session.build(arch, settings.drop_path)
    session.fit(
        model, Fixed(), settings, stage, lambda: {"search_accuracy": session.search_accuracy(model)}, stream=STREAM
    )
    session.require_weights(stage)
    return model


def trained(session: Session, arch: Arch, stage: str) -> Callable[[], nn.Module]:
    """What gives the network of a finished stage."""

    def read() -> nn.Module:
        model = session.build(arch)
        session.read_weights(model, stage)
        return model.to(session.device).eval()

    return read


def judged(studied: Studied, stage: str, network: Callable[[], nn.Module]) -> dict[str, Any]:
    """The accuracies of a network on the search and the test images, computed once; this opens the test split."""
    session, name = studied.session, f"judged {stage}"
    known = session.run.result(name)
    if known is None:
        model = network()
        correct = hits(model, studied.test, session.device)
        low, high = wilson(int(correct.sum()), len(correct))
        known = {
            "search_accuracy": percent(hits(model, session.search_batches(), session.device)),
            "test_accuracy": percent(correct),
            "low": 100 * low,
            "high": 100 * high,
        }
        session.run.finish(name, known)
    return dict(known)


# -- words ------------------------------------------------------------------------------------------------------------


def lines(facts: dict[str, Any]) -> list[str]:
    """The study in a few lines of text."""
    found = []
    if spaces := facts.get("spaces"):
        found.append(f"The best network of each space, retrained for {facts['epochs']} epoch(s)")
        found.append(f"  {'space':<6} {'parameters':>10} {'inherited':>10} {'retrained, test (95 % interval)':>33}")
        for row in spaces:
            if "problem" in row:
                found.append(f"  {row['t']:<6} {row['problem']}")
                continue
            end = _with_interval(row["retrained"])
            found.append(f"  {row['t']:<6} {units.show(row['params']):>10} {row['inherited']:>8.2f} % {end:>33}")
    if networks := facts.get("networks"):
        tuned = f"tuned for {facts['tuned_epochs']} epoch(s), retrained for {facts['epochs']}"
        found.append(f"{len(networks)} networks drawn from the last space: inherited, {tuned}; test accuracy")
        found.append(f"  {'network':<8} {'parameters':>10}" + "".join(f" {way:>10}" for way in WAYS))
        for i, row in enumerate(networks, 1):
            values = "".join(f" {row[way]['test_accuracy']:>8.2f} %" for way in WAYS)
            found.append(f"  {i:<8} {units.show(row['params']):>10}{values}")
    for row in facts.get("agreement", ()):
        tau = "none, as one side is all ties" if row["tau"] is None else f"{row['tau']:+.2f}"
        span = "" if row["low"] is None else f" (95 % interval {row['low']:+.2f} to {row['high']:+.2f})"
        found.append(f"  Kendall's tau, {row['first']} and {row['second']}: {tau}{span}")
    return found


def _with_interval(row: dict[str, Any]) -> str:
    return f"{row['test_accuracy']:.2f} % ({row['low']:.1f} to {row['high']:.1f})"
