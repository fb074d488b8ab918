"""Latency predicted from counted features: a ridge regression on measured architectures.

HAT (ACL 2020) fits a small network to 2,000 measurements. Latency is nearly a sum over layers, so a linear model of
counted features needs about a hundred, has no random initialisation, and is the same for the same measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tailorvit.arch import Arch
from tailorvit.costs.count import Counter
from tailorvit.costs.limits import Metric
from tailorvit.costs.meter import Meter
from tailorvit.errors import TailorError
from tailorvit.stats import Floats, spearman

PENALTIES = tuple(10.0**k for k in range(-6, 3))  # the one with the smallest leave-one-out error is used
LEAST = 4  # measurements to fit and to check with, together


@dataclass(frozen=True)
class FitQuality:
    """How well predictions agree with held-out measurements."""

    samples: int
    held_out: int
    mape: float  # mean absolute error in percent of the measured latency
    worst: float  # the largest such error
    rank: float | None  # Spearman's correlation; None where all latencies are equal
    constant_mape: float  # the same error of always predicting the mean, for comparison

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, eq=False)  # arrays have no single truth value to compare
class LatencyPredictor:
    """Seconds per pass, as a linear function of scaled features."""

    counter: Counter
    mean: Floats
    scale: Floats
    weights: Floats  # one per feature, then the constant
    floor: float  # a linear function may fall below zero; no prediction is smaller than this

    def __call__(self, arch: Arch) -> float:
        """Predicted seconds."""
        row = (features(self.counter, arch) - self.mean) / self.scale
        return max(float(row @ self.weights[:-1] + self.weights[-1]), self.floor)


def features(counter: Counter, arch: Arch) -> Floats:
    """Parameters, MACs, number of segments, and every dimension's value (the sum of a list of values)."""
    params, macs = counter.both(arch)
    values = [float(sum(v)) if isinstance(v, tuple) else float(v) for v in arch.values()]
    return np.array([params, macs, len(counter.family.segments(arch)), *values], dtype=np.float64)


def fit(counter: Counter, archs: Sequence[Arch], seconds: Sequence[float]) -> LatencyPredictor:
    """The ridge regression on relative errors, its penalty chosen by leave-one-out."""
    x, y = np.stack([features(counter, a) for a in archs]), np.asarray(seconds, dtype=np.float64)
    mean, spread = x.mean(0), x.std(0)
    scale = np.where(spread > 0, spread, 1.0)
    # Rows divided by their latency: errors count in percent, so fast networks weigh as much as slow ones.
    rows = np.column_stack([(x - mean) / scale, np.ones(len(x))]) / y[:, None]
    _, weights = min((_ridge(rows, penalty) for penalty in PENALTIES), key=lambda found: found[0])
    return LatencyPredictor(counter, mean, scale, weights, float(y.min()) / 10)


def _ridge(rows: Floats, penalty: float) -> tuple[float, Floats]:
    """(leave-one-out error, weights) of rows @ weights = 1; the constant in the last column is not penalised."""
    penalised = np.ones(rows.shape[1])
    penalised[-1] = 0.0
    # Penalties are relative to the rows' size, so that seconds and milliseconds give the same fit.
    size = float((rows[:, -1] ** 2).sum())
    inverse = np.linalg.pinv(rows.T @ rows + penalty * size * np.diag(penalised), hermitian=True) @ rows.T
    weights: Floats = inverse @ np.ones(len(rows))
    lever = np.einsum("ij,ji->i", rows, inverse)
    left_out = (1.0 - rows @ weights) / np.maximum(1.0 - lever, 1e-6)
    return float((left_out**2).mean()), weights


def fit_and_check(
    counter: Counter, archs: Sequence[Arch], seconds: Sequence[float], held_out: int
) -> tuple[LatencyPredictor, FitQuality]:
    """Fit on all but the last ``held_out`` and measure the error on those; of a short list at most half is held out."""
    if len(archs) < LEAST:
        raise TailorError(f"A latency predictor needs at least {LEAST} different architectures, not {len(archs)}.")
    held = min(held_out, len(archs) // 2)
    model = fit(counter, archs[:-held], seconds[:-held])
    truth = np.asarray(seconds[-held:])
    predicted = np.array([model(arch) for arch in archs[-held:]])
    errors = 100 * np.abs(predicted - truth) / truth
    constant = 100 * np.abs(np.mean(seconds[:-held]) - truth) / truth
    return model, FitQuality(
        samples=len(archs) - held,
        held_out=held,
        mape=float(errors.mean()),
        worst=float(errors.max()),
        rank=spearman(predicted.tolist(), truth.tolist()),
        constant_mape=float(constant.mean()),
    )


class PredictedMeter(Meter):
    """A meter with predicted latency, so that a search may ask for thousands. Predictions are not recorded."""

    def __init__(self, *meter: Any, predictor: LatencyPredictor, **rest: Any) -> None:
        super().__init__(*meter, **rest)
        self.predictor = predictor
        self._predicted: dict[Arch, float] = {}

    def cost(self, metric: Metric, arch: Arch) -> float:
        """The meter's cost, but latency is predicted."""
        if metric != "latency":
            return super().cost(metric, arch)
        if arch not in self._predicted:
            self._predicted[arch] = self.predictor(arch)
        return self._predicted[arch]
