"""A predictor of accuracy from an architecture's shape (and proxies, if any), with an error bar.

Two ways to make one. ``Predictor.fit`` learns a few dozen accuracies of one task, in their own points. ``pooled``
learns from whole tables what helps at equal size, in standard deviations, for networks nobody trained; the one that
comes with the package (``default``) was made so from the three reference tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.proxies.agreement import taus
from tailorvit.proxies.features import NAMES, Floats, matrix
from tailorvit.proxies.models import KINDS, Kind, Line, Process, fit_process, laplacian, model_of
from tailorvit.proxies.tables import Row, Table, counters
from tailorvit.rng import generator
from tailorvit.stats import kendall

BAND = 0.05
PENALTIES = (0.03, 0.1, 0.3, 1.0)  # against the mean square of a feature's differences, in its units
USUAL = 0.1  # where tables are too few to choose by
LEAST = 8  # accuracies to fit on: fewer than features leave nothing to choose by
_CLIP = 3.0  # standard deviations: one failed training of a table must not decide the fit


@dataclass(frozen=True, eq=False)  # arrays have no single truth to compare
class Predictor:
    """Features of an architecture to a mean and a standard deviation."""

    model: Line | Process
    names: tuple[str, ...] = NAMES  # features, then proxies
    logs: tuple[str, ...] = ()  # proxies taken as logarithms
    fixed: Mapping[str, Any] | None = None  # settings all rows of the fit shared
    facts: Mapping[str, Any] = field(default_factory=dict)  # how it was made and how well it did on what it never saw

    @property
    def proxies(self) -> tuple[str, ...]:
        """Proxies it needs besides the architecture."""
        return self.names[len(NAMES) :]

    @classmethod
    def fit(
        cls,
        rows: Sequence[Row | tuple[Arch, Mapping[str, Any]]],
        accuracies: Sequence[float],
        proxies: Mapping[str, Sequence[float]] | None = None,
        kinds: Sequence[Kind] = KINDS,
    ) -> Predictor:
        """Learn the accuracies of one task; ridge or Gaussian process, whichever errs less on rows left out."""
        every = [Row(*row) for row in rows]
        y = np.asarray(accuracies, dtype=np.float64)
        if len(every) != len(y) or len(y) < LEAST:
            raise TailorError(
                f"A predictor needs one accuracy per architecture, at least {LEAST}; got {len(y)} for {len(every)}."
            )
        if not np.isfinite(y).all():
            raise TailorError(f"Accuracy {int(np.flatnonzero(~np.isfinite(y))[0]) + 1} of the fit is not finite.")
        values = {k: np.asarray(v, dtype=np.float64) for k, v in (proxies or {}).items()}
        logs = tuple(k for k, v in values.items() if (v > 0).all())
        x = _inputs(every, values, tuple(values), logs)
        model = fit_process(x, y, kinds)
        mean, _ = model.left_out()
        params = [float(c.params(r.arch)) for c, r in zip(counters(every), every)]
        gaps = model.spread * (model.answers - mean)
        facts = {
            "rows": len(y),
            "kind": model.kind,
            "left_out_error": float(np.sqrt((gaps**2).mean())),  # points, root mean square
            "constant_error": float(y.std() * len(y) / (len(y) - 1)),  # of answering the mean of the others
            "left_out_tau": kendall(mean.tolist(), y.tolist()),
            "params_tau": kendall(params, y.tolist()),
        }
        shared = all(dict(r.fixed) == dict(every[0].fixed) for r in every)
        return cls(model, (*NAMES, *values), logs, dict(every[0].fixed) if shared else None, facts)

    def predict(
        self,
        archs: Sequence[Arch],
        fixed: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        proxies: Mapping[str, Sequence[float]] | None = None,
    ) -> tuple[Floats, Floats]:
        """(means, standard deviations); ``fixed`` is one set of settings for all or one each, by default the fit's."""
        settings = fixed if fixed is not None else self.fixed or {}
        each = [settings] * len(archs) if isinstance(settings, Mapping) else list(settings)
        for name in self.proxies:
            if name not in (proxies or {}):
                raise TailorError(f"The predictor was fitted with the proxy '{name}' and needs its values.")
        values = {k: np.asarray((proxies or {})[k], dtype=np.float64) for k in self.proxies}
        if not archs:
            return np.zeros(0), np.zeros(0)
        rows = [Row(a, f) for a, f in zip(archs, each, strict=True)]
        return self.model.predict(_inputs(rows, values, self.proxies, self.logs))

    @property
    def helps(self) -> bool:
        """Whether it beat both a constant answer and #params on what it never saw; say so when it did not."""
        tau, rival = self.facts.get("left_out_tau"), self.facts.get("params_tau")
        if "left_out_error" not in self.facts:
            return True
        better = self.facts["left_out_error"] < self.facts["constant_error"]
        return better and tau is not None and tau > max(rival or 0.0, 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rest = {"names": list(self.names), "logs": list(self.logs), "fixed": self.fixed and dict(self.fixed)}
        return {"format": 1, **self.model.to_dict(), **rest, "facts": dict(self.facts)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Predictor:
        """Read :meth:`to_dict`'s form."""
        if data.get("format") != 1 or tuple(data.get("names", ()))[: len(NAMES)] != NAMES:
            raise TailorError("The predictor was written by another version of TailorViT; fit it again.")
        outer = ("format", "names", "logs", "fixed", "facts")
        model = model_of({k: v for k, v in data.items() if k not in outer})
        return cls(model, tuple(data["names"]), tuple(data["logs"]), data["fixed"], data["facts"])

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        lines = ",\n".join(f" {json.dumps(k)}: {json.dumps(v, default=list)}" for k, v in self.to_dict().items())
        path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Predictor:
        """Read what :meth:`save` wrote."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise TailorError(f"There is no predictor '{path}'.") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TailorError(f"'{path}' is no predictor: {error}.") from None


def _inputs(rows: Sequence[Row], values: Mapping[str, Floats], names: Sequence[str], logs: Sequence[str]) -> Floats:
    shape = matrix(counters(rows), [r.arch for r in rows])
    for name in names:
        if len(values[name]) != len(rows) or not np.isfinite(values[name]).all():
            raise TailorError(f"The predictor needs one finite value of '{name}' per architecture.")
        if name in logs and (values[name] <= 0).any():
            raise TailorError(f"'{name}' was above zero for every architecture of the fit and is not here.")
    return np.column_stack([shape, *(np.log(values[n]) if n in logs else values[n] for n in names)])


@cache
def default() -> Predictor:
    """The predictor that comes with the package."""
    text = (resources.files("tailorvit.proxies") / "predictor.json").read_text(encoding="utf-8")
    return Predictor.from_dict(json.loads(text))


# -- what helps at equal size, from whole tables -----------------------------------------------------------------------


class _Moments(NamedTuple):
    """What a table says: sums over pairs of like size, and over all rows how accuracy and features go with size."""

    squares: Floats  # mean products of feature differences
    products: Floats  # mean products with differences of the accuracies, which have mean square 1
    slope: float  # of the accuracies on the size, over all rows
    carry: Floats  # of the features on the size, over all rows


def _moments(x: Floats, table: Table, band: float, counts: Floats) -> _Moments | None:
    """None where no two rows of like size differ in accuracy."""
    graph = laplacian(table.params, band, counts)
    pairs = max(float(np.trace(graph)) / 2, 1.0)
    known = []
    for truth in table.targets.values():
        middle = np.median(truth)
        spread = 1.4826 * float(np.median(np.abs(truth - middle))) or float(truth.std()) or 1.0
        y = np.clip((truth - middle) / spread, -_CLIP, _CLIP)
        size = float(y @ graph @ y) / pairs
        if size > 0:
            known.append(y / np.sqrt(size))
    if not known:
        return None
    mean = np.mean(known, axis=0)
    off = counts * (x[:, 0] - (counts @ x[:, 0]) / counts.sum())
    down = float(off @ x[:, 0]) or np.inf
    return _Moments(x.T @ graph @ x / pairs, x.T @ graph @ mean / pairs, float(off @ mean) / down, off @ x / down)


def _solve(parts: Sequence[_Moments], penalty: float) -> Floats:
    """Ridge weights of several tables, each counting the same, however many rows it has.

    Pairs of like size say little about size itself: its weight is the slope over all rows that the shape leaves over.
    """
    squares, products = np.mean([p.squares for p in parts], axis=0), np.mean([p.products for p in parts], axis=0)
    weights: Floats = np.linalg.solve(squares + penalty * np.eye(len(products)), products)
    weights[0] = np.mean([p.slope - p.carry[1:] @ weights[1:] for p in parts])
    return weights


def pooled(
    tables: Sequence[Table],
    band: float = BAND,
    penalty: float | None = None,
    bootstrap: int = 100,
    seed: int = 0,
) -> Predictor:
    """What goes with accuracy among pairs of like size, over all accuracies of all tables.

    Without ``penalty``, three or more tables choose it: the one that ranks best on tables left out.
    """
    inputs = [matrix(counters(t.rows), [r.arch for r in t.rows]) for t in tables]
    found = [_moments(x, t, band, np.ones(len(x))) for x, t in zip(inputs, tables)]
    for moments, table in zip(found, tables):
        if moments is None:
            raise TailorError(f"No two rows of '{table.name}' differ in accuracy but by at most {band:.0%} in size.")
    known = [m for m in found if m is not None]
    scores = {}
    if penalty is None and len(tables) >= 3:
        for p in PENALTIES:
            folds = [_solve([m for k, m in enumerate(known) if k != i], p) for i in range(len(tables))]
            scores[p] = float(np.mean([_band_tau(x @ w, t, band) for x, w, t in zip(inputs, folds, tables)]))
    chosen = penalty if penalty is not None else max(scores, key=scores.__getitem__) if scores else USUAL
    weights = _solve(known, chosen)
    rng, drawn = generator(seed, "pooled"), []
    for _ in range(bootstrap):  # tables are drawn too: what only one of them says is uncertain
        parts = []
        for k in rng.integers(0, len(tables), len(tables)):
            n = len(inputs[k])
            counts = np.bincount(rng.integers(0, n, n), minlength=n).astype(np.float64)
            parts.append(_moments(inputs[k], tables[k], band, counts))
        drawn.append(_solve([p for p in parts if p is not None] or known, chosen))
    covariance = np.cov(np.array(drawn).T) if bootstrap > 1 else np.zeros((len(weights), len(weights)))
    # Differences have mean square 1; what the weights leave of it is the noise of two rows.
    left = np.mean([1 - 2 * weights @ m.products + weights @ m.squares @ weights for m in known])
    facts = {
        "tables": {t.name: len(t.rows) for t in tables},
        "targets": sorted({k for t in tables for k in t.targets}),
        "band": band,
        "penalty": chosen,
        "left_out_band_tau": {f"{p:g}": round(s, 4) for p, s in scores.items()},
        "unit": "standard deviations of the difference between two networks of like size",
    }
    centre = np.mean([x.mean(0) for x in inputs], axis=0)
    return Predictor(Line(centre, weights, covariance, float(np.sqrt(max(float(left), 0.0) / 2))), facts=facts)


def _band_tau(score: Floats, table: Table, band: float) -> float:
    """Mean over the table's accuracies of tau among pairs of like size."""
    ones = np.ones((1, len(score)))
    found = [float(taus(score, truth, table.params, band, ones)[0]) for truth in table.targets.values()]
    return float(np.nan_to_num(found).mean())
