"""Facts: a run folder read into plain records; what is missing or damaged becomes a sentence."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tailorvit.errors import TailorError
from tailorvit.report.records import (
    Decision,
    Direction,
    Epoch,
    Event,
    Facts,
    Fit,
    Slope,
    SpaceStep,
    Trial,
    moves,
    real,
    reals,
    rows,
    table,
    whole,
)
from tailorvit.runs import Run
from tailorvit.runs.database import Database

__all__ = [
    "Decision",
    "Direction",
    "Epoch",
    "Event",
    "Facts",
    "Fit",
    "Slope",
    "SpaceStep",
    "Trial",
    "collect",
    "moves",
    "real",
    "reals",
    "rows",
    "table",
    "whole",
]
T = TypeVar("T")
_DAMAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
_WATCHED = ("search_accuracy", "largest", "smallest")


class _Reader:
    """The tables of run.db row by row, so that one damaged row costs only itself."""

    def __init__(self, folder: Path, missing: list[str]) -> None:
        self._database = Database(folder / "run.db", readonly=True)
        self._there, self._missing = (folder / "run.db").is_file(), missing

    def ask(self, name: str, columns: str, make: Callable[..., T]) -> tuple[T, ...]:
        """Every row of a table through ``make``, in the order they came."""
        if not self._there:  # told once, by the folder
            return ()
        try:
            found = self._database.read(f"SELECT {columns} FROM {name} ORDER BY id")
        except TailorError as error:
            self._missing.append(str(error))
            return ()
        kept: list[T] = []
        for row in found:
            try:
                kept.append(make(*row))
            except _DAMAGE:
                continue
        lost = len(found) - len(kept)
        if lost:
            rows_are = "One row is" if lost == 1 else f"{lost:,} rows are"
            self._missing.append(f"{rows_are} damaged in the table {name} of run.db and left out.")
        return tuple(kept)

    def close(self) -> None:
        self._database.close()


def collect(folder: Path) -> Facts:
    """Read a run folder, finished or not, whole or not. A folder with nothing of a run in it is an error."""
    folder = Path(folder)
    run, absent = Run.salvage(folder)
    if not any((folder / name).exists() for name in ("info.json", "recipe.toml", "run.db")):
        raise TailorError(f"'{folder}' is not a run folder: {absent[0]}")
    missing = list(absent)
    with run:
        finished, result = run.finished, table(_json(folder / "result.json"))
        recipe, info = run.recipe, run.info
    if not finished:
        there = (folder / "result.json").exists()
        missing.append("The file result.json is damaged." if there else "The run has not finished: no result yet.")
    settings = _settings(recipe)
    if recipe.strip() and not settings:
        missing.append("The file recipe.toml is damaged.")
    reader = _Reader(folder, missing)
    try:
        spaces = reader.ask("spaces", "t, space, facts", _space)
        spaces = spaces or tuple(_told_space(table(s)) for s in rows(result.get("spaces")))
        keys = tuple(spaces[0].dims) if spaces else ()
        spent = reader.ask("seconds", "stage, seconds", lambda stage, seconds: (str(stage), real(seconds)))
        return Facts(
            folder=folder.resolve().name,
            finished=finished,
            recipe=recipe,
            settings=settings,
            info=info,
            result=result,
            analysis=_analysis(folder, result, missing),
            spaces=spaces,
            slopes=reader.ask("slopes", "t, dim, facts", _slope),
            decisions=reader.ask("decisions", "t, facts", lambda t, facts: _decision(t, facts, keys)),
            trials=reader.ask(
                "trials", "stage, arch, accuracy, params, macs, source, generation, parents, costs, extra", _trial
            ),
            epochs=reader.ask("epochs", "stage, epoch, facts", _epoch),
            events=reader.ask("events", "time, kind, text", lambda *words: Event(*map(str, words))),
            seconds={k: v for k, v in spent if v is not None},
            missing=tuple(dict.fromkeys(missing)),  # last: the questions above add to it
        )
    finally:
        reader.close()


def _json(path: Path) -> Any:
    """A file's content, or None when it is missing or damaged."""
    try:
        return json.loads(path.read_text("utf-8", "surrogateescape"))
    except (OSError, *_DAMAGE):
        return None


def _settings(recipe: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(recipe)
    except _DAMAGE:
        return {}


def _analysis(folder: Path, result: Mapping[str, Any], missing: list[str]) -> Mapping[str, Any]:
    """What analysis.json holds. Runs from before it existed have no ``blocks`` in their result: nothing is missed."""
    path = folder / "analysis.json"
    found = _json(path)
    if path.exists() and not isinstance(found, Mapping):
        missing.append("The file analysis.json is damaged: attention maps and mistakes are left out.")
    elif found is None and "blocks" in result:
        missing.append("The file analysis.json is missing: attention maps and mistakes are left out.")
    return table(found)


def _object(text: Any) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not a table")
    return value


def _space(t: Any, space: str, facts: str) -> SpaceStep:
    told, dims = _object(facts), table(_object(space).get("dims"))
    choices = {str(k): reals(table(d).get("choices")) for k, d in dims.items()}
    return _stepped(int(t), choices, told, told.get("step", t))


def _told_space(row: Mapping[str, Any]) -> SpaceStep:
    """A space as result.json tells it, for a run whose database is lost."""
    t = whole(row.get("t")) or 0
    return _stepped(t, {str(k): reals(choices) for k, choices in table(row.get("dims")).items()}, row, t)


def _stepped(t: int, dims: Mapping[str, tuple[float, ...]], told: Mapping[str, Any], step: Any) -> SpaceStep:
    largest, count = table(told.get("largest")), real(told.get("count_log10"))
    params, macs = real(largest.get("params")), real(largest.get("macs"))
    number = whole(step)
    return SpaceStep(t, dims, params, macs, count, told.get("repair") is True, t if number is None else number)


def _slope(t: Any, dim: Any, facts: str) -> Slope:
    row = _object(facts)
    if row.get("kind") == "et":
        line = [*map(real, rows(row.get("fit"))), None, None]
        errors = tuple(real(e) for e in rows(row.get("errors")))
        fit = Fit(reals(row.get("choices")), errors, line[0], line[1], whole(row.get("k")))
        return Slope(int(t), str(dim), None, None, None, fit=fit)
    z, se, z_step, se_step = (real(row.get(k)) for k in ("z", "se", "z_step", "se_step"))
    if se_step is None and z and z_step is not None and se is not None:
        se_step = se * abs(z_step / z)  # the same factor takes z and its error from a unit to a step
    pairs = row.get("pairs")
    count = len(pairs) if isinstance(pairs, list) else whole(pairs)
    return Slope(int(t), str(dim), z_step, se_step, count, z, se, carried=real(row.get("carried")))


def _decision(t: Any, facts: str, keys: Sequence[str]) -> Decision:
    row = _object(facts)
    legal = tuple(
        Direction(moves(d.get("gamma"), keys), real(d.get("size")), real(d.get("cosine")), real(d.get("gain")))
        for d in map(table, rows(row.get("legal")))
    )
    sentence = str(row.get("sentence") or row.get("reason") or "")
    return Decision(int(t), moves(row.get("gamma"), keys), sentence, row.get("stop") is True, legal)


def _trial(stage: Any, arch: str, accuracy: Any, params: Any, macs: Any, source: Any, *rest: Any) -> Trial:
    generation, parents, costs, extra = rest
    more = _object(extra) if extra != "{}" else {}
    return Trial(
        str(stage),
        real(accuracy),
        real(params),
        real(macs),
        str(source or ""),
        whole(generation),
        _object(arch),
        tuple(map(table, rows(json.loads(parents)))) if parents != "[]" else (),
        {str(k): v for k, c in _object(costs).items() if (v := real(c)) is not None} if costs != "{}" else {},
        real(more.get("score")),
        str(more.get("proxy") or ""),
    )


def _epoch(stage: Any, epoch: Any, facts: str) -> Epoch:
    row = _object(facts)
    loss, accuracy, lr, speed = (real(row.get(k)) for k in ("loss", "accuracy", "lr", "images_per_second"))
    watched = {k: v for k in _WATCHED if (v := real(row.get(k))) is not None}
    return Epoch(str(stage), int(epoch), loss, accuracy, lr, speed, watched)
