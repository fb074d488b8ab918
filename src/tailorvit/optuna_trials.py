"""Trials of runs as studies of optuna, for its dashboard and its plots."""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailorvit.arch import Arch
from tailorvit.errors import TailorError, unknown
from tailorvit.runs import Run
from tailorvit.space import Space
from tailorvit.texts import parse_toml

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

Row = Mapping[str, Any]  # a stored trial


def write_trials(folders: Iterable[str | Path], to: str, out: str | Path | None) -> list[str]:
    """The command ``compare RUN ... --to optuna --out FILE``: what was written, in lines."""
    if to != "optuna":
        raise unknown("format of trials", to, ["optuna"])
    if out is None:
        raise TailorError("--to optuna needs a file to write: --out trials.db.")
    studies = write_optuna(folders, out)
    lines = [f"  {name}: {count} trials" for name, count in studies.items()]
    return [f"Wrote {out}; open it with: optuna-dashboard sqlite:///{Path(out).as_posix()}", *lines]


class _Unhurried(sqlite3.Connection):
    """Leaves the time of writing to the system: ten commits a trial would take a run of thousands many minutes."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.execute("PRAGMA synchronous=OFF")  # nobody sees the file before it is whole


def write_optuna(folders: Iterable[str | Path], out: str | Path) -> dict[str, int]:
    """Write the trials of runs into a new SQLite file of optuna: a study for every stage of a run, named RUN/STAGE.

    Answers with the number of trials of each study. A gene is a parameter; a gene that differs between blocks is one
    for each block. Accuracy (or a score) is maximised; with NSGA-II the cost it searched by is minimised beside it.
    Parameters, MACs, further costs, where a trial came from and its generation are user attributes.
    """
    try:
        import optuna
    except ImportError:
        raise TailorError("Trials for optuna need the package optuna: pip install 'tailorvit[optuna]'.") from None

    out, places = Path(out), [Path(folder) for folder in folders]
    if out.exists():
        raise TailorError(f"'{out}' is there already; name a new file.")
    found = _studies(places)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{temporary.resolve().as_posix()}"
        storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"factory": _Unhurried}})
        try:
            for name, (rows, cost, choices) in found.items():
                _write(storage, name, rows, cost, choices)
        finally:
            storage.remove_session()
            storage.engine.dispose()
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(out)
    except OSError as error:
        raise TailorError(f"Cannot write '{out}': {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)
    return {name: len(rows) for name, (rows, _, _) in found.items()}


def _studies(folders: Sequence[Path]) -> dict[str, tuple[list[Row], str, dict[str, set[Any]]]]:
    """By the name of the study: trials, the cost they were searched by (empty: none), and values of each gene."""
    found: dict[str, tuple[list[Row], str, dict[str, set[Any]]]] = {}
    for folder in folders:
        with Run.open(folder, lock=False) as run:
            stages: dict[str, list[Row]] = {}
            for trial in run.trials():
                stages.setdefault(trial["stage"], []).append(trial)
            if not stages:
                raise TailorError(f"'{folder}' has no trials: nothing was searched in it.")
            search = parse_toml(run.recipe).get("search", {})
            spaces = run.spaces()
        name = folder.resolve().name
        if any(known.startswith(f"{name}/") for known in found):
            name = str(folder.resolve())
        for stage, rows in stages.items():
            choices: dict[str, set[Any]] = {}
            archs = [row["arch"] for row in rows]
            for arch in archs:
                for gene, value in genes(arch).items():
                    choices.setdefault(gene, set()).add(value)
            if (space := _space_of(stage, archs, spaces)) is not None:
                for gene in choices.keys() - {"family"}:
                    choices[gene] |= set(space[gene.partition(" ")[0]].choices)
            if len(choices["family"]) == 1:  # the same for all: no parameter
                del choices["family"]
            by_cost = stage == "search" and search.get("name") == "nsga2"
            found[f"{name}/{stage}"] = (rows, str(search.get("cost", "params")) if by_cost else "", choices)
    return found


def _space_of(stage: str, archs: Sequence[Arch], spaces: Sequence[Row]) -> Space | None:
    """The space that a stage's architectures come from: of its step, else the last one that has all of them."""
    number = stage.rpartition("-")[2]
    newest_first = spaces[::-1]
    ordered = sorted(newest_first, key=lambda row: str(row.get("step")) != number)
    return next((row["space"] for row in ordered if all(map(row["space"].contains, archs))), None)


def genes(arch: Arch) -> dict[str, Any]:
    """The genes one by one, those of blocks as ``heads block 1``."""
    found: dict[str, Any] = {"family": arch.family}
    for key in arch:
        value = arch[key]
        if isinstance(value, tuple):
            found |= {f"{key} block {i}": v for i, v in enumerate(value, 1)}
        else:
            found[key] = value
    return found


def _distribution(values: set[Any]) -> BaseDistribution:
    """Numbers with equal gaps as a range, which plots draw as an axis; all else as choices."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    ordered = sorted(values, key=lambda v: (isinstance(v, str), v))
    if not all(isinstance(v, int | float) for v in ordered):
        return CategoricalDistribution(ordered)
    exact = [Fraction(str(v)) for v in ordered]
    gaps = {b - a for a, b in pairwise(exact)}
    if len(gaps) > 1:
        return CategoricalDistribution(ordered)
    step = gaps.pop() if gaps else Fraction(1)
    if all(isinstance(v, int) for v in ordered):
        return IntDistribution(ordered[0], ordered[-1], step=int(step))
    return FloatDistribution(float(ordered[0]), float(ordered[-1]), step=float(step))


def _write(storage: BaseStorage, name: str, rows: Sequence[Row], cost: str, choices: Mapping[str, set[Any]]) -> None:
    """One study."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a line for every study is not for our screen
    try:
        best = optuna.study.StudyDirection
        directions = [best.MAXIMIZE, *([best.MINIMIZE] if cost else [])]
        study = optuna.create_study(storage=storage, study_name=name, directions=directions)
    finally:
        optuna.logging.set_verbosity(level)
    scored = all(row["accuracy"] is None for row in rows)
    study.set_user_attr("values", ["score" if scored else "accuracy", *([cost] if cost else [])])
    distributions = {gene: _distribution(values) for gene, values in choices.items()}
    study.add_trials([_trial(row, cost, distributions) for row in rows])


def _trial(row: Row, cost: str, distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
    """One trial; without a finite value it counts as failed."""
    from optuna.trial import TrialState, create_trial

    costs = {"params": row["params"], "macs": row["macs"], **row["costs"]}
    goal = row["accuracy"] if row["accuracy"] is not None else row.get("score")
    values = [goal, *([costs.get(cost)] if cost else [])]
    known = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    whole = len(known) == len(values)
    params = {gene: value for gene, value in genes(row["arch"]).items() if gene in distributions}
    about = {"source": row["source"], "generation": row["generation"], "arch": row["arch"].to_dict()}
    return create_trial(
        state=TrialState.COMPLETE if whole else TrialState.FAIL,
        values=known if whole else None,
        params=params,
        distributions={gene: distributions[gene] for gene in params},
        user_attrs={k: v for k, v in {**costs, **about}.items() if v is not None},
    )
