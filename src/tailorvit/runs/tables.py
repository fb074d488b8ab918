"""The tables of a run: stages, events, trials, spaces, slopes, decisions, epochs, measurements."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tailorvit.arch import Arch
from tailorvit.callbacks import Hooks
from tailorvit.runs.atomic import dumps
from tailorvit.runs.database import Database
from tailorvit.space import Space
from tailorvit.texts import parse_json

_MOVED = {
    "stages": "stage, result",
    "seconds": "stage, seconds",
    "events": "kind, text, data",
    "epochs": "stage, epoch, facts",
}
_COLUMNS = ("accuracy", "params", "macs", "source", "generation", "seconds")


def now() -> str:
    """The current time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _scalar(value: Any) -> Any:
    """A numpy or torch scalar as Python's own."""
    return value.item() if hasattr(value, "item") else value


def _upsert(table: str, keys: str, values: str) -> str:
    """An INSERT that updates the values of an existing row with the same keys; the row keeps its place."""
    names = [*keys.split(), *values.split()]
    change = ", ".join(f"{v}=excluded.{v}" for v in values.split())
    marks = ", ".join("?" * len(names))
    return (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})"
        f" ON CONFLICT ({', '.join(keys.split())}) DO UPDATE SET {change}"
    )


class Tables:
    """The tables of one run. Repeated work updates its row, which keeps its place."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.hooks = Hooks()  # told of what is stored for the first time

    def _all(self, what: str, where: str = "", *values: Any) -> list[tuple[Any, ...]]:
        return self._database.read(f"SELECT {what} {where} ORDER BY id", values)

    # -- stages: named pieces of work done once -----------------------------------------------------------------------

    def result(self, stage: str) -> Any | None:
        """The result of a finished stage; None while it is not finished."""
        rows = self._all("result FROM stages", "WHERE stage=?", stage)
        return parse_json(rows[0][0]) if rows else None

    def finish(self, stage: str, result: Any) -> None:
        """Mark a stage as finished and store its result."""
        self._database.write(_upsert("stages", "stage", "result time"), [(stage, dumps(result), now())])

    def spend(self, stage: str, seconds: float) -> None:
        """Add working time to a stage, over all resumes."""
        statement = (
            "INSERT INTO seconds (stage, seconds) VALUES (?, ?)"
            " ON CONFLICT (stage) DO UPDATE SET seconds = seconds.seconds + excluded.seconds"
        )
        self._database.write(statement, [(stage, float(seconds))])

    def seconds(self) -> dict[str, float]:
        """Working time per stage."""
        return dict(self._all("stage, seconds FROM seconds"))

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Events, oldest first: time, kind, text, data."""
        where = ("WHERE kind=?", kind) if kind is not None else ()
        rows = self._all("time, kind, text, data FROM events", *where)
        return [{"time": t, "kind": k, "text": x, "data": parse_json(d)} for t, k, x, d in rows]

    # -- trials -------------------------------------------------------------------------------------------------------

    def record_trials(self, stage: str, trials: Sequence[Mapping[str, Any]]) -> None:
        """Store evaluated architectures in one transaction; one row per stage and architecture."""
        rows = []
        fresh = self._fresh(stage, trials) if self.hooks else []
        for trial in trials:
            extra = {k: v for k, v in trial.items() if k not in ("arch", "parents", "costs", *_COLUMNS)}
            parents, costs = list(trial.get("parents") or ()), dict(trial.get("costs") or {})
            plain = [_scalar(trial.get(c)) for c in _COLUMNS]
            rows.append((stage, trial["arch"].to_json(), *plain, dumps(parents), dumps(costs), dumps(extra)))
        self._database.write(_upsert("trials", "stage arch", f"{' '.join(_COLUMNS)} parents costs extra"), rows)
        for facts in fresh:
            self.hooks.tell("trial", stage, facts)

    def _fresh(self, stage: str, trials: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Those of the trials that are not stored yet, as callbacks are told of them."""
        count = self._database.read("SELECT COUNT(*) FROM trials WHERE stage=?", (stage,))[0][0]
        new = [t for t in {t["arch"]: t for t in trials}.values() if not self._known("trials", stage, t["arch"])]
        return [{**copy.deepcopy(dict(t)), "number": count + i} for i, t in enumerate(new, 1)]

    def _known(self, table: str, stage: str, key: Arch | int) -> bool:
        """Whether a stage has the row of an architecture or of an epoch."""
        column, value = ("arch", key.to_json()) if isinstance(key, Arch) else ("epoch", key)
        return bool(self._all(f"id FROM {table}", f"WHERE stage=? AND {column}=?", stage, value))

    def trials(self, stage: str | None = None) -> list[dict[str, Any]]:
        """Evaluated architectures in the order of evaluation."""
        where = ("WHERE stage=?", stage) if stage is not None else ()
        rows = self._all(f"stage, arch, {', '.join(_COLUMNS)}, parents, costs, extra FROM trials", *where)
        return [
            {
                **parse_json(extra),
                "stage": name,
                "arch": Arch.from_json(arch),
                **dict(zip(_COLUMNS, plain, strict=True)),
                "parents": [Arch.from_dict(p) for p in parse_json(parents)],
                "costs": parse_json(costs),
            }
            for name, arch, *plain, parents, costs, extra in rows
        ]

    def trial_count(self) -> int:
        """How many trials are stored, of all stages."""
        return int(self._database.read("SELECT COUNT(*) FROM trials")[0][0])

    def accuracy(self, stage: str, arch: Arch) -> float | None:
        """The stored accuracy of an architecture in a stage."""
        rows = self._all("accuracy FROM trials", "WHERE stage=? AND arch=?", stage, arch.to_json())
        return rows[0][0] if rows else None

    # -- to another run folder ----------------------------------------------------------------------------------------

    def take_rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Stages, seconds, events and epochs as plain rows; they are gone afterwards."""
        found = {}
        for table, columns in _MOVED.items():
            found[table] = self._all(f"{columns} FROM {table}")
            self._database.write(f"DELETE FROM {table}", [()])
        return found

    # -- search of the space ------------------------------------------------------------------------------------------

    def record_space(self, t: int, space: Space, **facts: Any) -> None:
        """Store the space of step t."""
        self._database.write(_upsert("spaces", "t", "space facts"), [(int(t), dumps(space), dumps(facts))])

    def spaces(self) -> list[dict[str, Any]]:
        """Spaces in order: t, space and their facts."""
        rows = self._all("t, space, facts FROM spaces")
        return [{**parse_json(f), "t": t, "space": Space.from_dict(parse_json(s))} for t, s, f in rows]

    def record_slope(self, t: int, dim: str, facts: Mapping[str, Any]) -> None:
        """Store the slope of one dimension at step t."""
        self._database.write(_upsert("slopes", "t dim", "facts"), [(int(t), dim, dumps(dict(facts)))])

    def slopes(self, t: int | None = None) -> list[dict[str, Any]]:
        """Slopes with t and dim, of one step or of all steps."""
        where = ("WHERE t=?", int(t)) if t is not None else ()
        return [{**parse_json(f), "t": s, "dim": d} for s, d, f in self._all("t, dim, facts FROM slopes", *where)]

    def record_decision(self, t: int, facts: Mapping[str, Any]) -> None:
        """Store the move of the space at step t, and its reason."""
        fresh = bool(self.hooks) and not self._all("id FROM decisions", "WHERE t=?", int(t))
        self._database.write(_upsert("decisions", "t", "facts"), [(int(t), dumps(dict(facts)))])
        if fresh:
            self.hooks.tell("decision", int(t), parse_json(dumps(dict(facts))))

    def decisions(self) -> list[dict[str, Any]]:
        """Decisions in order, with t."""
        return [{**parse_json(f), "t": t} for t, f in self._all("t, facts FROM decisions")]

    # -- training and measuring ---------------------------------------------------------------------------------------

    def record_epoch(self, stage: str, epoch: int, **facts: Any) -> None:
        """Store the numbers of one epoch."""
        fresh = bool(self.hooks) and not self._known("epochs", stage, int(epoch))
        self._database.write(_upsert("epochs", "stage epoch", "facts"), [(stage, int(epoch), dumps(facts))])
        if fresh:
            self.hooks.tell("epoch_ends", stage, int(epoch), dict(facts))

    def epochs(self, stage: str | None = None) -> list[dict[str, Any]]:
        """Epochs with stage and epoch, of one stage or of all stages."""
        where = ("WHERE stage=?", stage) if stage is not None else ()
        rows = self._all("stage, epoch, facts FROM epochs", *where)
        return [{**parse_json(f), "stage": s, "epoch": e} for s, e, f in rows]

    def measured(self, metric: str, arch: Arch) -> float | None:
        """A stored measurement, so that each architecture is measured once."""
        rows = self._all("value FROM measured", "WHERE metric=? AND arch=?", metric, arch.to_json())
        return rows[0][0] if rows else None

    def record_measured(self, metric: str, arch: Arch, value: float) -> None:
        """Store a measured cost."""
        self._database.write(_upsert("measured", "metric arch", "value"), [(metric, arch.to_json(), float(value))])
