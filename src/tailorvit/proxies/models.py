"""The arithmetic of predictors: a line with an error bar, and a Gaussian process chosen by leaving one out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = Literal["ridge", "gp"]
KINDS: tuple[Kind, ...] = ("ridge", "gp")
_NOISES = tuple(10.0**k for k in (-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5))  # variance of the noise against the signal's
_LENGTHS = (1.0, 2.0, 4.0)  # in standard deviations of a feature, times the root of their number


@dataclass(frozen=True, eq=False)
class Line:
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
class Process:
    """A Gaussian process on scaled rows: a linear kernel alone is ridge regression, with a radial one it bends."""

    centre: Floats
    scale: Floats
    rows: Floats  # scaled
    answers: Floats  # standardised
    level: float  # mean and standard deviation of the accuracies as they were
    spread: float
    kind: Kind
    noise: float  # variance
    length: float
    error: float  # what the variances are multiplied by, so that answers left out lie where they should

    def _kernel(self, a: Floats, b: Floats) -> Floats:
        flat: Floats = a @ b.T / a.shape[1]
        if self.kind == "ridge":
            return flat
        gaps = ((a[:, None] - b[None]) ** 2).sum(-1)
        bent: Floats = flat + np.exp(-gaps / (2 * self.length**2 * a.shape[1]))
        return bent

    def _inverse(self) -> Floats:
        inside = self._kernel(self.rows, self.rows)
        return np.asarray(np.linalg.inv(inside + self.noise * np.eye(len(inside))), dtype=np.float64)

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Means and standard deviations, in the accuracies' own points."""
        scaled = (x - self.centre) / self.scale
        inverse, across = self._inverse(), self._kernel(scaled, self.rows)
        own = (scaled**2).sum(1) / scaled.shape[1] + (self.kind == "gp")
        variance = own - np.einsum("ij,jk,ik->i", across, inverse, across) + self.noise
        mean = self.level + self.spread * (across @ inverse @ self.answers)
        return mean, self.spread * np.sqrt(np.maximum(variance, 1e-12) * self.error)

    def left_out(self) -> tuple[Floats, Floats]:
        """(answer of the process without the row, its variance) for every row, standardised; in closed form."""
        inverse = self._inverse()
        variance = 1 / np.diag(inverse)
        return self.answers - inverse @ self.answers * variance, variance

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = {k: getattr(self, k).tolist() for k in ("centre", "scale", "rows", "answers")}
        numbers = {k: getattr(self, k) for k in ("level", "spread", "kind", "noise", "length", "error")}
        return {"model": "process", **rows, **numbers}


def model_of(data: Mapping[str, Any]) -> Line | Process:
    """Read either model's plain data."""
    facts: dict[str, Any] = {
        k: np.array(v, dtype=np.float64) if isinstance(v, list) else v for k, v in data.items() if k != "model"
    }
    return Line(**facts) if data["model"] == "line" else Process(**facts)


def fit_process(x: Floats, y: Floats, kinds: Sequence[Kind] = KINDS) -> Process:
    """The kernel, length and noise with the least error on rows left out."""
    level, spread = float(y.mean()), float(y.std()) or 1.0
    sd = x.std(0)
    scale = np.where(sd > 1e-9, sd, 1.0)
    facts = (x.mean(0), scale, (x - x.mean(0)) / scale, (y - level) / spread, level, spread)
    best, least = None, np.inf
    for kind in kinds:
        for noise, length in itertools.product(_NOISES, _LENGTHS if kind == "gp" else (1.0,)):
            model = Process(*facts, kind, noise, length, 1.0)
            mean, variance = model.left_out()
            gaps = (model.answers - mean) ** 2
            # A tenth of a percent for the simpler one, which is tried first: equal is not better.
            if gaps.mean() < 0.999 * least:
                best, least = Process(*facts, kind, noise, length, float((gaps / variance).mean())), float(gaps.mean())
    assert best is not None
    return best


def laplacian(params: Floats, band: float, counts: Floats) -> Floats:
    """x' L x sums the squared differences of x over pairs of like size; a row counted k times stands for k rows."""
    logs = np.log(params)
    near = (np.abs(logs[:, None] - logs[None]) <= np.log1p(band) + 1e-12) * counts[:, None] * counts[None]
    np.fill_diagonal(near, 0.0)
    found: Floats = np.diag(near.sum(1)) - near
    return found
