"""Facts: a run folder as plain records; what is missing or damaged becomes a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tailorvit.errors import TailorError
from tailorvit.runs import Run

T = TypeVar("T")


@dataclass(frozen=True)
class SpaceStep:
    """The space of one step."""

    t: int
    dims: Mapping[str, tuple[float, ...]]
    params: float | None
    macs: float | None
    count_log10: float | None
    repair: bool


@dataclass(frozen=True)
class Slope:
    """What one more step along a dimension is worth, in points of accuracy, with its standard error."""

    t: int
    dim: str
    z_step: float | None
    se_step: float | None
    pairs: int | None


@dataclass(frozen=True)
class Direction:
    """A legal move and how well it follows the slopes."""

    gamma: str
    size: float | None
    cosine: float | None
    gain: float | None


@dataclass(frozen=True)
class Decision:
    """Where the space went, and why."""

    t: int
    gamma: str
    sentence: str
    stop: bool
    legal: tuple[Direction, ...]


@dataclass(frozen=True)
class Trial:
    """One evaluated architecture."""

    stage: str
    accuracy: float | None
    params: float | None
    macs: float | None
    source: str
    generation: int | None
    arch: Mapping[str, Any]


@dataclass(frozen=True)
class Epoch:
    """The figures of one epoch."""

    stage: str
    epoch: int
    loss: float | None
    accuracy: float | None
    lr: float | None
    speed: float | None


@dataclass(frozen=True)
class Event:
    """Something that happened."""

    time: str
    kind: str
    text: str


@dataclass(frozen=True)
class Facts:
    """Everything the report tells."""

    folder: str
    finished: bool
    missing: tuple[str, ...] = ()
    recipe: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    spaces: tuple[SpaceStep, ...] = ()
    slopes: tuple[Slope, ...] = ()
    decisions: tuple[Decision, ...] = ()
    trials: tuple[Trial, ...] = ()
    epochs: tuple[Epoch, ...] = ()
    events: tuple[Event, ...] = ()


def real(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond any float
        return None


def whole(value: Any) -> int | None:
    """A whole number, or None."""
    number = real(value)
    return None if number is None else int(number)


def table(value: Any) -> Mapping[str, Any]:
    """A mapping, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def rows(value: Any) -> list[Any]:
    """A list, or an empty one."""
    return list(value) if isinstance(value, list | tuple) else []


def moves(gamma: Any) -> str:
    """A direction in words: ``depth -1, embed +1``."""
    steps = [f"{k} {whole(v):+d}" for k, v in table(gamma).items() if whole(v)]
    return ", ".join(steps) or "no move"


def collect(folder: Path) -> Facts:
    """Read a run folder, finished or not, whole or not. A folder with nothing of a run in it is an error."""
    folder = Path(folder)
    run, absent = Run.salvage(folder)
    if not any((folder / name).exists() for name in ("info.json", "recipe.toml", "run.db")):
        raise TailorError(f"'{folder}' is not a run folder: {absent[0]}")
    missing = list(absent)

    def ask(question: Callable[[], list[T]]) -> tuple[T, ...]:
        try:
            return tuple(question())
        except (TailorError, ValueError, TypeError, KeyError, AttributeError) as error:
            sentence = str(error) if isinstance(error, TailorError) else f"A row of run.db is damaged ({error})."
            if "run.db is missing." not in absent:
                missing.append(sentence)
            return ()

    with run:
        result = table(run.read_json("result"))
        if not run.finished:
            there = (folder / "result.json").exists()
            missing.append("The file result.json is damaged." if there else "The run has not finished: no result yet.")
        spaces = ask(lambda: [_space(s) for s in run.spaces()]) or ask(
            lambda: [_told_space(table(s)) for s in rows(result.get("spaces"))]
        )
        spent = ask(lambda: list(run.seconds().items()))
        return Facts(
            folder=folder.resolve().name,
            finished=run.finished,
            recipe=run.recipe,
            info=run.info,
            result=result,
            spaces=spaces,
            slopes=ask(lambda: [_slope(s) for s in run.slopes()]),
            decisions=ask(lambda: [_decision(d) for d in run.decisions()]),
            trials=ask(lambda: [_trial(t) for t in run.trials()]),
            epochs=ask(lambda: [_epoch(e) for e in run.epochs()]),
            events=ask(lambda: [Event(str(e["time"]), str(e["kind"]), str(e["text"])) for e in run.events()]),
            seconds={k: s for k, v in spent if (s := real(v)) is not None},
            missing=tuple(dict.fromkeys(missing)),  # last: the questions above add to it
        )


def _space(row: Mapping[str, Any]) -> SpaceStep:
    largest = table(row.get("largest"))
    return SpaceStep(
        row["t"],
        {d.key: tuple(float(c) for c in d.choices) for d in row["space"].dims},
        real(largest.get("params")),
        real(largest.get("macs")),
        real(row.get("count_log10")),
        row.get("repair") is True,
    )


def _told_space(row: Mapping[str, Any]) -> SpaceStep:
    """A space as result.json tells it, for a run whose database is lost."""
    dims = {
        k: tuple(c for v in rows(choices) if (c := real(v)) is not None)
        for k, choices in table(row.get("dims")).items()
    }
    largest = table(row.get("largest"))
    return SpaceStep(
        whole(row.get("t")) or 0, dims, real(largest.get("params")), real(largest.get("macs")), None, False
    )


def _slope(row: Mapping[str, Any]) -> Slope:
    z, se, z_step = real(row.get("z")), real(row.get("se")), real(row.get("z_step"))
    # se belongs to z, accuracy per unit of the dimension; the same factor takes both to accuracy per step.
    se_step = se * abs(z_step / z) if z and z_step is not None and se is not None else None
    pairs = row.get("pairs")
    return Slope(row["t"], row["dim"], z_step, se_step, len(pairs) if isinstance(pairs, list) else whole(pairs))


def _decision(row: Mapping[str, Any]) -> Decision:
    legal = tuple(
        Direction(moves(d.get("gamma")), real(d.get("size")), real(d.get("cosine")), real(d.get("gain")))
        for d in map(table, rows(row.get("legal")))
    )
    sentence = str(row.get("sentence") or row.get("reason") or "")
    return Decision(row["t"], moves(row.get("gamma")), sentence, row.get("stop") is True, legal)


def _trial(row: Mapping[str, Any]) -> Trial:
    return Trial(
        str(row["stage"]),
        real(row["accuracy"]),
        real(row["params"]),
        real(row["macs"]),
        str(row["source"] or ""),
        whole(row["generation"]),
        row["arch"].to_dict(),
    )


def _epoch(row: Mapping[str, Any]) -> Epoch:
    loss, accuracy, lr, speed = (real(row.get(k)) for k in ("loss", "accuracy", "lr", "images_per_second"))
    return Epoch(str(row["stage"]), int(row["epoch"]), loss, accuracy, lr, speed)
