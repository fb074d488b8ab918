"""A latency table of another host: read, checked, and fitted, so that every architecture of its space has a latency.

``tailorvit latency-kit`` writes the networks, its ``measure.py`` the table. The fit is that of the latency predictor:
a ridge regression on counted features. Its error is measured on rows it did not see, each row once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tailorvit.arch import Arch
from tailorvit.costs.count import Counter
from tailorvit.costs.latency_predictor import LatencyPredictor, fit
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES
from tailorvit.rng import generator
from tailorvit.space import Space
from tailorvit.stats import kendall
from tailorvit.texts import read_table, shown

FORMAT = "tailorvit-latency-table 1"
LEAST, FOLDS = 10, 5  # rows of a table; parts, each of which is predicted from the others
FREE = ("classes",)  # settings in which a run may differ: a wider head is counted
POOR = 0.2  # median error from which a run warns


@dataclass(frozen=True)
class TableFit:
    """How well the fit predicts rows it did not see; shares of the measured latency."""

    rows: int
    folds: int
    median_error: float
    worst_error: float
    tau: float | None  # Kendall's; None where all latencies are equal
    constant_error: float  # the median error of always answering the other rows' median
    noise: float | None  # the table's own: the middle row's half distance of its quartiles

    @property
    def poor(self) -> bool:
        """Whether a run should warn: a large error, or one no smaller than that of a constant answer."""
        return self.median_error > POOR or 0 < self.constant_error <= self.median_error

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def describe(self) -> str:
        """In words."""
        tau = "undefined" if self.tau is None else f"{self.tau:.2f}"
        return (
            f"on rows the fit did not see the median error is {100 * self.median_error:.1f} %, the worst "
            f"{100 * self.worst_error:.1f} %, Kendall's tau {tau} (always answering the median: "
            f"{100 * self.constant_error:.1f} %)"
        )


@dataclass(frozen=True, eq=False)  # arrays have no single truth value to compare
class LatencyTable:
    """The rows of a table with the space they are of, and the fit."""

    name: str
    space: Space
    archs: tuple[Arch, ...]
    seconds: tuple[float, ...]
    facts: Mapping[str, Any]  # the file as it was read: it goes into the run folder
    predictor: LatencyPredictor
    quality: TableFit

    @property
    def host(self) -> str:
        """What the table was measured on, in a few words."""
        host = self.facts.get("host")
        host = host if isinstance(host, Mapping) else {}
        words = [host.get("name"), host.get("processor") or host.get("machine")]
        return shown(", ".join(str(word)[:60] for word in words if word) or "an unnamed host")

    @property
    def runtime(self) -> dict[str, Any]:
        """With what it was measured."""
        return {"runtime": "onnxruntime", **{key: self.facts.get(key) for key in ("provider", "threads")}}

    def require(self, counter: Counter) -> None:
        """Refuse networks of another family or other shared settings: their latency cannot follow from the table."""
        if counter.family.name != self.space.family:
            raise TailorError(
                f"The latency table '{self.name}' is of {self.space.family} networks, and this run has "
                f"{counter.family.name} ones: measure a kit of the space that is searched."
            )
        own, theirs = self.predictor.counter.shared.to_dict(), counter.shared.to_dict()
        for key in own:
            if key not in FREE and own[key] != theirs.get(key):
                raise TailorError(
                    f"The latency table '{self.name}' is of networks with {key} {own[key]}, and this run's have "
                    f"{theirs.get(key)}: measure a kit of the space that is searched."
                )

    def predict(self, counter: Counter, arch: Arch) -> float:
        """Seconds of an architecture on the table's host."""
        return replace(self.predictor, counter=counter)(arch)

    def beyond(self, arch: Arch) -> list[str]:
        """The dimensions in which an architecture lies outside what was measured; MACs among them."""
        found = []
        for key, value in arch.items():
            known = [v for a in self.archs if key in a for v in _values(a[key])]
            own = _values(value)
            if not known or (own and (min(own) < min(known) or max(own) > max(known))):
                found.append(key)
        counter = self.predictor.counter
        macs = [counter.macs(a) for a in self.archs]
        return [*found, *(["MACs"] if not min(macs) <= counter.macs(arch) <= max(macs) else [])]

    def to_dict(self) -> dict[str, Any]:
        """What result.json says of it."""
        return {"name": self.name, "host": self.host, **self.quality.to_dict()}


def _values(value: Any) -> tuple[float, ...]:
    return tuple(value) if isinstance(value, tuple) else (value,)


def read_latency_table(path: str | Path) -> LatencyTable:
    """A table.json, fitted; every mistake in it is one sentence."""
    place = Path(path)
    if place.suffix == ".csv":
        raise TailorError(f"'{place}' is for spreadsheets; give the table.json that lies beside it.")
    try:
        facts = read_table(place)
    except FileNotFoundError:
        raise TailorError(f"There is no latency table '{place}'.") from None
    except (OSError, ValueError) as error:
        raise TailorError(f"The latency table '{place}' cannot be read: {error}.") from None
    if facts.get("format") != FORMAT:
        raise TailorError(f"'{place}' is no latency table: measure.py of a latency kit writes one, as table.json.")
    return fitted(facts, place.name)


def fitted(facts: Mapping[str, Any], name: str) -> LatencyTable:
    """The table of a file's content."""
    try:
        space = Space.from_dict(facts["space"])
        counter = Counter(space.family, dict(space.settings))
        read = FAMILIES[space.family].arch
        rows = {read(row["arch"]): _row_seconds(row) for row in facts["rows"]}
    except TailorError as error:
        raise TailorError(f"The latency table '{name}' cannot be used: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise TailorError(f"The latency table '{name}' is damaged ({type(error).__name__}: {error}).") from None
    if len(rows) < LEAST:
        raise TailorError(f"A latency table needs at least {LEAST} different networks; '{name}' has {len(rows)}.")
    archs, seconds = tuple(rows), tuple(rows.values())
    quality = replace(checked_fit(counter, archs, seconds), noise=_noise(facts["rows"]))
    return LatencyTable(name, space, archs, seconds, dict(facts), fit(counter, archs, seconds), quality)


def _row_seconds(row: Mapping[str, Any]) -> float:
    value = row["median_ms"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise TailorError(f"median_ms must be a number above 0, not {value!r}.")
    return float(value) / 1000


def _noise(rows: Sequence[Mapping[str, Any]]) -> float | None:
    try:
        spreads = [(row["high_ms"] - row["low_ms"]) / 2 / row["median_ms"] for row in rows]
    except (LookupError, TypeError):
        return None
    return float(statistics.median(spreads))


def checked_fit(counter: Counter, archs: Sequence[Arch], seconds: Sequence[float], folds: int = FOLDS) -> TableFit:
    """Every row predicted from a fit on the rows of the other folds, which are drawn the same way every time."""
    truth = np.asarray(seconds, dtype=np.float64)
    order = generator(0, "latency folds").permutation(len(truth))
    predicted, constant = np.empty(len(truth)), np.empty(len(truth))
    for part in range(folds):
        held = order[part::folds]
        rest = [i for i in range(len(truth)) if i not in set(held.tolist())]
        model = fit(counter, [archs[i] for i in rest], truth[rest].tolist())
        predicted[held] = [model(archs[i]) for i in held]
        constant[held] = np.median(truth[rest])
    errors = np.abs(predicted - truth) / truth
    return TableFit(
        rows=len(truth),
        folds=folds,
        median_error=float(np.median(errors)),
        worst_error=float(errors.max()),
        tau=kendall(predicted.tolist(), truth.tolist()),
        constant_error=float(np.median(np.abs(constant - truth) / truth)),
        noise=None,
    )
