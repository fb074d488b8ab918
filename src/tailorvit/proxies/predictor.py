"""A predictor of accuracy from an architecture's shape (and proxies, if any), with an error bar.

There are two ways to fit one. ``Predictor.fit`` learns from a few dozen accuracies of one task and answers in points of
accuracy. ``pooled`` learns from whole tables what helps at equal size and answers in standard deviations; it is meant
for networks of other tasks. The predictor that comes with the package (``default``) was pooled from the three reference
tables.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tailorvit.arch import Arch
from tailorvit.costs import Counter
from tailorvit.errors import TailorError
from tailorvit.proxies.base import Refused
from tailorvit.proxies.tables import Row, Table, counters
from tailorvit.rng import generator
from tailorvit.stats import Floats, band_taus, kendall

BAND = 0.05  # pairs of similar size differ by at most this share of their parameters
PENALTIES = (0.03, 0.1, 0.3, 1.0)  # of pooled, relative to the mean square of a feature's differences
DEFAULT_PENALTY = 0.1  # where there are too few tables to choose one
LEAST = 8  # accuracies to fit on
_CLIP = 3.0  # standard deviations: one failed training of a table must not decide the fit


# -- features ---------------------------------------------------------------------------------------------------------
#
# Logarithms and ratios, which mean the same for any family and any size. A model that is linear in them can be fitted
# on small networks of one family and used for larger ones and for other families; absolute widths would not carry over.


class Feature(NamedTuple):
    """One number of an architecture; ``unit`` is the step that counts as one, the same for every table."""

    name: str
    unit: float
    meaning: str


FEATURES = (
    Feature("size", 0.05, "log of the parameters"),
    Feature("blocks", 0.1, "log of the number of blocks: at equal size, deep and narrow against shallow and wide"),
    Feature("intensity", 0.1, "log of MACs per parameter: how many parameters act on many tokens"),
    Feature("attention", 0.1, "log of attention's parameters over the MLPs'"),
    Feature("qkv_trend", 0.1, "slope over the depth of log(QKV width / embedding)"),
    Feature("mlp_trend", 0.1, "slope over the depth of log(hidden width / embedding)"),
    Feature("width_trend", 0.5, "slope over the depth of log(embedding): 0 for a ViT, large for a pyramid"),
)
FEATURE_NAMES = tuple(f.name for f in FEATURES)
_UNITS = np.array([f.unit for f in FEATURES])


def shape_features(blocks: Sequence[Mapping[str, Any]], params: int, macs: int) -> Floats:
    """The features of one architecture, in their units, from its blocks (``Family.outline``) and its counts."""
    embed, qkv, hidden = (_column(blocks, key) for key in ("embed", "qkv", "hidden"))
    found = (
        np.log(params),
        np.log(len(blocks)),
        np.log(macs / params),
        np.log(2 * (embed * qkv).sum() / (embed * hidden).sum()),  # four matrices against two
        _trend(qkv / embed),
        _trend(hidden / embed),
        _trend(embed),
    )
    # Rounded: the last digits of a slope of equal numbers would rank architectures that are the same.
    rounded: Floats = np.round(np.array(found) / _UNITS, 9)
    return rounded


def _column(blocks: Sequence[Mapping[str, Any]], key: str) -> Floats:
    if not all((block.get(key) or 0) > 0 for block in blocks):
        raise Refused(f"The predictor needs the width '{key}' of every block, which this architecture does not have.")
    return np.array([float(block[key]) for block in blocks])


def _trend(values: Floats) -> float:
    """Least-squares slope of the logarithm from the first block (0) to the last (1)."""
    if len(values) < 2:
        return 0.0
    place = (np.arange(len(values)) + 0.5) / len(values) - 0.5
    logs = np.log(values)
    return float((place * (logs - logs.mean())).sum() / (place**2).sum())


def feature_matrix(counters: Sequence[Counter], archs: Sequence[Arch]) -> Floats:
    """One row of features per architecture."""
    rows = [shape_features(c.family.outline(c.shared, a), *c.both(a)) for c, a in zip(counters, archs, strict=True)]
    return np.array(rows).reshape(len(archs), len(FEATURES))


# -- models -----------------------------------------------------------------------------------------------------------

Kind = Literal["ridge", "gp"]
KINDS: tuple[Kind, ...] = ("ridge", "gp")
_NOISES = tuple(10.0**k for k in (-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5))  # noise variance relative to the signal's
_LENGTHS = (1.0, 2.0, 4.0)  # length scales, in standard deviations of a feature times the root of their number


@dataclass(frozen=True, eq=False)
class LinearModel:
    """weights . (x - centre), with the weights' covariance and the noise of one accuracy."""

    centre: Floats
    weights: Floats
    covariance: Floats
    noise: float

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Means and standard deviations."""
        off = x - self.centre
        spread = np.einsum("ij,jk,ik->i", off, self.covariance, off)
        return off @ self.weights, np.sqrt(np.maximum(spread, 0) + self.noise**2)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = {k: np.round(getattr(self, k), 6).tolist() for k in ("centre", "weights", "covariance")}
        return {"model": "line", **rows, "noise": round(self.noise, 6)}


@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """A Gaussian process on scaled rows: with a linear kernel it is ridge regression, a radial one adds curvature."""

    centre: Floats
    scale: Floats
    rows: Floats  # scaled
    answers: Floats  # standardised
    level: float  # mean of the accuracies before standardising
    spread: float  # their standard deviation
    kind: Kind
    noise: float  # variance
    length: float
    error: float  # factor on the variances that makes them fit the leave-one-out errors

    def _kernel(self, a: Floats, b: Floats) -> Floats:
        linear: Floats = a @ b.T / a.shape[1]
        if self.kind == "ridge":
            return linear
        gaps = ((a[:, None] - b[None]) ** 2).sum(-1)
        radial: Floats = linear + np.exp(-gaps / (2 * self.length**2 * a.shape[1]))
        return radial

    def _inverse(self) -> Floats:
        inside = self._kernel(self.rows, self.rows)
        return np.asarray(np.linalg.inv(inside + self.noise * np.eye(len(inside))), dtype=np.float64)

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Means and standard deviations, in points of accuracy."""
        scaled = (x - self.centre) / self.scale
        inverse, across = self._inverse(), self._kernel(scaled, self.rows)
        own = (scaled**2).sum(1) / scaled.shape[1] + (self.kind == "gp")
        variance = own - np.einsum("ij,jk,ik->i", across, inverse, across) + self.noise
        mean = self.level + self.spread * (across @ inverse @ self.answers)
        return mean, self.spread * np.sqrt(np.maximum(variance, 1e-12) * self.error)

    def left_out(self) -> tuple[Floats, Floats]:
        """Leave-one-out: for every row the prediction of a fit without it and its variance, standardised."""
        inverse = self._inverse()
        variance = 1 / np.diag(inverse)
        return self.answers - inverse @ self.answers * variance, variance

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = {k: getattr(self, k).tolist() for k in ("centre", "scale", "rows", "answers")}
        numbers = {k: getattr(self, k) for k in ("level", "spread", "kind", "noise", "length", "error")}
        return {"model": "process", **rows, **numbers}


def read_model(data: Mapping[str, Any]) -> LinearModel | GaussianProcess:
    """Read either model's plain data."""
    facts: dict[str, Any] = {
        k: np.array(v, dtype=np.float64) if isinstance(v, list) else v for k, v in data.items() if k != "model"
    }
    return LinearModel(**facts) if data["model"] == "line" else GaussianProcess(**facts)


def fit_process(x: Floats, y: Floats, kinds: Sequence[Kind] = KINDS) -> GaussianProcess:
    """The kernel, length and noise with the smallest leave-one-out error."""
    level, spread = float(y.mean()), float(y.std()) or 1.0
    sd = x.std(0)
    scale = np.where(sd > 1e-9, sd, 1.0)
    facts = (x.mean(0), scale, (x - x.mean(0)) / scale, (y - level) / spread, level, spread)
    best, least = None, np.inf
    for kind in kinds:
        for noise, length in itertools.product(_NOISES, _LENGTHS if kind == "gp" else (1.0,)):
            model = GaussianProcess(*facts, kind, noise, length, 1.0)
            mean, variance = model.left_out()
            gaps = (model.answers - mean) ** 2
            # The simpler kernel is tried first; another must be better by a tenth of a percent.
            if gaps.mean() < 0.999 * least:
                error = float((gaps / variance).mean())
                best, least = GaussianProcess(*facts, kind, noise, length, error), float(gaps.mean())
    assert best is not None
    return best


# -- the predictor ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)  # arrays have no single truth value to compare
class Predictor:
    """Features of an architecture to a mean and a standard deviation."""

    model: LinearModel | GaussianProcess
    names: tuple[str, ...] = FEATURE_NAMES  # features, then proxies
    logs: tuple[str, ...] = ()  # proxies taken as logarithms
    settings: Mapping[str, Any] | None = None  # shared settings of all rows of the fit, where they are the same
    facts: Mapping[str, Any] = field(default_factory=dict)  # how it was fitted and its error on rows left out

    @property
    def proxies(self) -> tuple[str, ...]:
        """Proxies it needs besides the architecture."""
        return self.names[len(FEATURE_NAMES) :]

    @classmethod
    def fit(
        cls,
        rows: Sequence[Row | tuple[Arch, Mapping[str, Any]]],
        accuracies: Sequence[float],
        proxies: Mapping[str, Sequence[float]] | None = None,
        kinds: Sequence[Kind] = KINDS,
    ) -> Predictor:
        """Learn the accuracies of one task, by ridge or Gaussian process: the one with less leave-one-out error."""
        table = [Row(*row) for row in rows]
        y = np.asarray(accuracies, dtype=np.float64)
        if len(table) != len(y) or len(y) < LEAST:
            raise TailorError(
                f"A predictor needs one accuracy per architecture, at least {LEAST}; got {len(y)} for {len(table)}."
            )
        if not np.isfinite(y).all():
            raise TailorError(f"Accuracy {int(np.flatnonzero(~np.isfinite(y))[0]) + 1} of the fit is not finite.")
        values = {k: np.asarray(v, dtype=np.float64) for k, v in (proxies or {}).items()}
        logs = tuple(k for k, v in values.items() if (v > 0).all())
        x = _inputs(table, values, tuple(values), logs)
        model = fit_process(x, y, kinds)
        mean, _ = model.left_out()
        params = [float(c.params(r.arch)) for c, r in zip(counters(table), table)]
        gaps = model.spread * (model.answers - mean)
        facts = {
            "rows": len(y),
            "kind": model.kind,
            "left_out_error": float(np.sqrt((gaps**2).mean())),  # points, root mean square
            "constant_error": float(y.std() * len(y) / (len(y) - 1)),  # of answering the mean of the others
            "left_out_tau": kendall(mean.tolist(), y.tolist()),
            "params_tau": kendall(params, y.tolist()),
        }
        shared = all(dict(r.settings) == dict(table[0].settings) for r in table)
        return cls(model, (*FEATURE_NAMES, *values), logs, dict(table[0].settings) if shared else None, facts)

    def predict(
        self,
        archs: Sequence[Arch],
        settings: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        proxies: Mapping[str, Sequence[float]] | None = None,
    ) -> tuple[Floats, Floats]:
        """Means and standard deviations; ``settings`` are those of all, or one set per architecture, else the fit's."""
        settings = settings if settings is not None else self.settings or {}
        per_arch = [settings] * len(archs) if isinstance(settings, Mapping) else list(settings)
        for name in self.proxies:
            if name not in (proxies or {}):
                raise TailorError(f"The predictor was fitted with the proxy '{name}' and needs its values.")
        values = {k: np.asarray((proxies or {})[k], dtype=np.float64) for k in self.proxies}
        if not archs:
            return np.zeros(0), np.zeros(0)
        rows = [Row(a, f) for a, f in zip(archs, per_arch, strict=True)]
        return self.model.predict(_inputs(rows, values, self.proxies, self.logs))

    @property
    def helps(self) -> bool:
        """Whether its leave-one-out predictions beat a constant answer and ranking by parameters."""
        if "left_out_error" not in self.facts:
            return True
        tau, by_size = self.facts.get("left_out_tau"), self.facts.get("params_tau")
        better = self.facts["left_out_error"] < self.facts["constant_error"]
        return better and tau is not None and tau > max(by_size or 0.0, 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rest = {"names": list(self.names), "logs": list(self.logs), "fixed": self.settings and dict(self.settings)}
        return {"format": 1, **self.model.to_dict(), **rest, "facts": dict(self.facts)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Predictor:
        """Read :meth:`to_dict`'s form."""
        if data.get("format") != 1 or tuple(data.get("names", ()))[: len(FEATURE_NAMES)] != FEATURE_NAMES:
            raise TailorError("The predictor was written by another version of TailorViT; fit it again.")
        outer = ("format", "names", "logs", "fixed", "facts")
        model = read_model({k: v for k, v in data.items() if k not in outer})
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
            raise TailorError(f"'{path}' is not a predictor: {error}.") from None


def _inputs(rows: Sequence[Row], values: Mapping[str, Floats], names: Sequence[str], logs: Sequence[str]) -> Floats:
    shape = feature_matrix(counters(rows), [r.arch for r in rows])
    for name in names:
        if len(values[name]) != len(rows) or not np.isfinite(values[name]).all():
            raise TailorError(f"The predictor needs one finite value of '{name}' per architecture.")
        if name in logs and (values[name] <= 0).any():
            raise TailorError(f"'{name}' must be above zero here, as it was for every architecture of the fit.")
    return np.column_stack([shape, *(np.log(values[n]) if n in logs else values[n] for n in names)])


@cache
def default() -> Predictor:
    """The predictor that comes with the package."""
    text = (resources.files("tailorvit.proxies") / "predictor.json").read_text(encoding="utf-8")
    return Predictor.from_dict(json.loads(text))


# -- fitted on whole tables: what helps at equal size -----------------------------------------------------------------


def pooled(
    tables: Sequence[Table],
    band: float = BAND,
    penalty: float | None = None,
    bootstrap: int = 100,
    seed: int = 0,
) -> Predictor:
    """Ridge regression on differences between pairs of similar size, over all accuracies of all tables.

    Without ``penalty``, three or more tables choose it: the one that ranks best on tables left out. Rows in which an
    accuracy is missing are not used.
    """
    tables = [table.complete() for table in tables]
    inputs = [feature_matrix(counters(t.rows), [r.arch for r in t.rows]) for t in tables]
    found = [_moments(x, t, band, np.ones(len(x))) if len(x) else None for x, t in zip(inputs, tables)]
    for moments, table in zip(found, tables):
        if moments is None:
            raise TailorError(f"No two rows of '{table.name}' within {band:.0%} in size differ in accuracy.")
    known = [m for m in found if m is not None]
    scores = {}
    if penalty is None and len(tables) >= 3:
        for p in PENALTIES:
            folds = [_solve([m for k, m in enumerate(known) if k != i], p) for i in range(len(tables))]
            scores[p] = float(np.mean([_band_tau(x @ w, t, band) for x, w, t in zip(inputs, folds, tables)]))
    chosen = penalty if penalty is not None else max(scores, key=scores.__getitem__) if scores else DEFAULT_PENALTY
    weights = _solve(known, chosen)
    rng, resampled = generator(seed, "pooled"), []
    for _ in range(bootstrap):  # tables are resampled too: what only one of them shows is uncertain
        parts = []
        for k in rng.integers(0, len(tables), len(tables)):
            n = len(inputs[k])
            counts = np.bincount(rng.integers(0, n, n), minlength=n).astype(np.float64)
            parts.append(_moments(inputs[k], tables[k], band, counts))
        resampled.append(_solve([p for p in parts if p is not None] or known, chosen))
    covariance = np.cov(np.array(resampled).T) if bootstrap > 1 else np.zeros((len(weights), len(weights)))
    # Differences have mean square 1; the part that the weights do not explain is the noise of two rows.
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
    return Predictor(LinearModel(centre, weights, covariance, float(np.sqrt(max(float(left), 0.0) / 2))), facts=facts)


class _Moments(NamedTuple):
    """Sums over a table's pairs of similar size, and over all rows the slopes of accuracy and features on size."""

    squares: Floats  # mean products of feature differences
    products: Floats  # mean products with differences of the accuracies, which have mean square 1
    slope: float  # of the accuracies on the size, over all rows
    feature_slopes: Floats  # of the features on the size, over all rows


def _moments(x: Floats, table: Table, band: float, counts: Floats) -> _Moments | None:
    """None where no two rows of similar size differ in accuracy."""
    graph = _laplacian(table.params, band, counts)
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
    scale = float(off @ x[:, 0]) or np.inf
    return _Moments(x.T @ graph @ x / pairs, x.T @ graph @ mean / pairs, float(off @ mean) / scale, off @ x / scale)


def _laplacian(params: Floats, band: float, counts: Floats) -> Floats:
    """x' L x sums the squared differences of x over pairs of similar size; a row counted k times is k rows."""
    logs = np.log(params)
    similar = (np.abs(logs[:, None] - logs[None]) <= np.log1p(band) + 1e-12) * counts[:, None] * counts[None]
    np.fill_diagonal(similar, 0.0)
    found: Floats = np.diag(similar.sum(1)) - similar
    return found


def _solve(parts: Sequence[_Moments], penalty: float) -> Floats:
    """Ridge weights of several tables, each counting the same however many rows it has.

    Pairs of similar size say little about size itself: its weight is the slope over all rows that the shape features
    do not explain.
    """
    squares, products = np.mean([p.squares for p in parts], axis=0), np.mean([p.products for p in parts], axis=0)
    weights: Floats = np.linalg.solve(squares + penalty * np.eye(len(products)), products)
    weights[0] = np.mean([p.slope - p.feature_slopes[1:] @ weights[1:] for p in parts])
    return weights


def _band_tau(score: Floats, table: Table, band: float) -> float:
    """Mean over the table's accuracies of tau among pairs of similar size."""
    ones = np.ones((1, len(score)))
    found = [float(band_taus(score, truth, table.params, band, ones)[0]) for truth in table.targets.values()]
    return float(np.nan_to_num(found).mean())
