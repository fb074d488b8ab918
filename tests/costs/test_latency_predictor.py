"""The latency predictor: exact where latency is a sum over layers, its error stated, the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from tailorvit.costs import Limits
from tailorvit.costs.count import Counter
from tailorvit.costs.latency_predictor import PredictedMeter, features, fit, fit_and_check
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.families import FAMILIES, named_space
from tailorvit.rng import generator
from tailorvit.space import Space


def archs_of(space: Space, count: int) -> list:
    rng = generator(0, "members")
    return list(dict.fromkeys(space.sample(rng) for _ in range(count)))


SPACE = named_space("vit-8px")
COUNTER = Counter("vit", dict(SPACE.settings))
ARCHS = archs_of(SPACE, 120)


def clock(arch, noise: float = 0.0) -> float:
    """A device: a start, a price per block and per MAC, and noise that belongs to the arch."""
    factor = 1 + noise * generator(1, arch.to_json()).standard_normal()
    return (2e-4 + 1e-4 * float(arch.one("depth")) + 1e-10 * COUNTER.macs(arch)) * factor


def test_a_linear_device_is_learnt_exactly():
    model, found = fit_and_check(COUNTER, ARCHS, [clock(a) for a in ARCHS], 30)
    assert (found.samples, found.held_out) == (len(ARCHS) - 30, 30)
    assert found.mape < 0.1 and found.worst < 0.5 and found.rank == pytest.approx(1.0, abs=1e-3)
    assert found.constant_mape > 10
    for arch in (SPACE.smallest(), SPACE.largest()):
        assert model(arch) == pytest.approx(clock(arch), rel=0.02), "also at the ends"


def test_noise_is_averaged_and_stated():
    _, found = fit_and_check(COUNTER, ARCHS, [clock(a, 0.1) for a in ARCHS], 30)
    assert 4 < found.mape < 14, "a tenth of noise cannot be predicted, and is not hidden"
    true = [clock(a) for a in ARCHS]
    model = fit(COUNTER, ARCHS, [clock(a, 0.1) for a in ARCHS])
    assert np.mean([abs(model(a) - t) / t for a, t in zip(ARCHS, true)]) < 0.05


def test_the_error_is_that_of_architectures_never_fit_and_check():
    """Held-out figures that lie must show as an error, and must not touch the fit."""
    seconds = [clock(a) for a in ARCHS]
    good, _ = fit_and_check(COUNTER, ARCHS, seconds, 20)
    lying, found = fit_and_check(COUNTER, ARCHS, [*seconds[:-20], *(2 * s for s in seconds[-20:])], 20)
    assert found.mape == pytest.approx(50, abs=0.5)
    assert np.array_equal(good.weights, lying.weights)


def test_the_same_measurements_give_the_same_predictor():
    seconds = [clock(a, 0.1) for a in ARCHS]
    one, two = (fit_and_check(Counter("vit", dict(SPACE.settings)), ARCHS, seconds, 30) for _ in range(2))
    assert one[1] == two[1] and all(one[0](a) == two[0](a) for a in ARCHS)


def test_units_do_not_matter():
    seconds = [clock(a, 0.1) for a in ARCHS]
    slow = fit(COUNTER, ARCHS, [1e3 * s for s in seconds])
    fast = fit(COUNTER, ARCHS, seconds)
    assert all(slow(a) == pytest.approx(1e3 * fast(a), rel=1e-6) for a in ARCHS)


def test_predictions_stay_above_zero():
    small = sorted(ARCHS, key=COUNTER.macs)
    model = fit(COUNTER, small[60:], [(COUNTER.macs(a) - COUNTER.macs(small[59])) * 1e-9 for a in small[60:]])
    assert all(model(a) > 0 for a in small)


def test_alike_latencies_have_no_ranks():
    _, found = fit_and_check(COUNTER, ARCHS, [1e-3] * len(ARCHS), 30)
    assert found.rank is None and found.mape < 1e-6


@pytest.mark.parametrize("name", sorted(n for f in FAMILIES.values() for n in f.spaces))
def test_features_have_one_shape_in_every_family(name):
    space = named_space(name)
    counter = Counter(space.family, dict(space.settings))
    rows = np.stack([features(counter, a) for a in archs_of(space, 20)])
    assert np.isfinite(rows).all() and rows.shape[1] == 3 + len(space.largest())


def test_short_lists():
    seconds = [clock(a) for a in ARCHS[:5]]
    _, found = fit_and_check(COUNTER, ARCHS[:5], seconds, 30)
    assert (found.samples, found.held_out) == (3, 2)
    with pytest.raises(TailorError, match="at least 4 different architectures, not 3"):
        fit_and_check(COUNTER, ARCHS[:3], seconds[:3], 2)


def test_a_meter_that_predicts_measures_nothing(monkeypatch):
    monkeypatch.setattr(PredictedMeter, "_measure", lambda *_: pytest.fail("measured"))
    model, stored = fit(COUNTER, ARCHS, [clock(a) for a in ARCHS]), []
    limit = float(np.median([clock(a) for a in ARCHS]))
    meter = PredictedMeter.for_space(
        SPACE,
        Limits.of(max_latency=limit, max_params="1G"),
        predictor=model,
        recall=lambda *_: stored.append("recalled"),
        record=lambda *_: stored.append("recorded"),
    )
    assert 0.2 < np.mean([meter.fits(a) for a in ARCHS]) < 0.8
    costs = meter.costs(SPACE.largest())
    assert costs["latency"] == model(SPACE.largest()) and costs["params"] == COUNTER.params(SPACE.largest())
    assert stored == [], "a prediction is no measurement"
    tight = PredictedMeter.for_space(SPACE, Limits.of(max_latency="1us"), predictor=model)
    with pytest.raises(InfeasibleError, match=r"latency <= 0\.001 ms"):
        tight.require_feasible(SPACE)
