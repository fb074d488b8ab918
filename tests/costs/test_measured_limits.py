"""Limits that are measured: few questions find the largest that keeps them, on the device the run is for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tailorvit import units
from tailorvit.api import recipe_for
from tailorvit.config import configure
from tailorvit.costs import Limits, Meter
from tailorvit.costs import meter as meter_module
from tailorvit.costs.measure import Latency, measure_latency
from tailorvit.costs.meter import growing, largest_fitting, largest_measured
from tailorvit.errors import InfeasibleError
from tailorvit.methods import prepare as prepare_module
from tailorvit.methods.finish import baseline_arch
from tailorvit.methods.first_space import auto_space, default_limit
from tailorvit.methods.prepare import prepare, threads_for

SETTINGS = {"classes": 10, "channels": 3, "image_size": (32, 32), "patch": 4, "head_dim": 32, "reach": 7}


@pytest.fixture
def clock(monkeypatch):
    """Latency as a line over the parameters of what is built; every measurement is listed with its device."""
    calls = []

    def measured(model, shape, batch, device, **_):
        calls.append(device)
        seconds = sum(p.numel() for p in model.parameters()) * 1e-8
        return Latency(seconds, seconds, seconds, batch, device, 1, 5)

    monkeypatch.setattr(meter_module, "measure_latency", measured)
    return calls


@pytest.mark.parametrize("most", [0, 1, 2, 7, 100, 299, 300])
def test_few_questions_find_the_last_that_fits(most):
    calls = []

    def fits(value):
        calls.append(value)
        return value < most

    found = largest_measured([*reversed(range(300))], fits, float)
    assert found == (most - 1 if most else None)
    assert len(calls) == len(set(calls)) <= 23


def test_a_little_beyond_one_that_was_refused_is_asked_too():
    assert largest_measured(range(20), lambda v: v < 9 or v == 11, float) == 11
    assert largest_measured(range(20), lambda v: v < 9 or v == 12, float) == 8, "three more, not four"
    assert largest_measured([], lambda v: True, float) is None


def test_growing_candidates_end_after_so_many_misses():
    calls = []
    found = [*growing(iter(range(10_000)), lambda v: calls.append(v) or v < 5 or v == 20, patience=24)]
    assert found == [0, 1, 2, 3, 4, 20] and calls[-1] == 44
    assert largest_fitting(range(100), lambda v: v < 9, lambda v: v % 7) == 6


def test_a_space_for_a_latency_takes_few_measurements_on_the_runs_device(clock):
    limits = Limits.of(max_latency="10ms")
    space = auto_space("vit", SETTINGS, limits, device="meta")
    assert set(clock) == {"meta"} and len(clock) < 40
    meter = Meter.for_space(space)
    assert 0.7 * 10e-3 < meter.cost("params", space.largest()) * 1e-8 <= 0.95 * 10e-3, "with room for the clock"
    before = len(clock)
    baseline = baseline_arch(space, Meter.for_space(space, limits, device="meta"))
    assert 0.7 * 10e-3 < meter.cost("params", baseline) * 1e-8 <= 10e-3 and len(clock) - before < 40


def test_counted_limits_are_kept_beside_measured_ones(clock):
    limits = Limits.of(max_latency="1s", max_params="1M")
    space = auto_space("vit", SETTINGS, limits)
    assert 5e5 < Meter.for_space(space).most("params", space) < 1e6
    baseline = baseline_arch(space, Meter.for_space(space, limits))
    assert 5e5 < Meter.for_space(space).cost("params", baseline) <= 1e6


def test_a_slow_network_is_timed_in_few_passes():
    class Slow(torch.nn.Module):
        def forward(self, x):
            torch.manual_seed(0)
            return x

    assert measure_latency(Slow(), (3, 8, 8), runs=30, seconds=0.0).runs == 5
    assert measure_latency(Slow(), (3, 8, 8), runs=8).runs == 8


def test_threads_stay_as_latencies_were_measured(clock):
    space = auto_space("vit", SETTINGS, Limits.of(max_params="60k"))
    config = {"limits": {"max_params": "60k"}, "train": {"batch": 1}}
    assert threads_for(configure(config), space) == 1
    config["limits"] = {"max_params": "60k", "max_latency": "1s"}
    assert threads_for(configure(config), space) == torch.get_num_threads()


def test_a_run_measures_on_its_own_device_before_it_begins(clock, monkeypatch):
    monkeypatch.setattr("tailorvit.memory.DEVICES", ("cpu", "meta"))  # a device that is everywhere
    config = recipe_for(None, limits={"max_latency": "100us"}, tiny=True, settings=["device=meta"])
    plan = prepare(config)
    assert plan.device == "meta" and clock and set(clock) == {"meta"}
    assert Meter.for_space(plan.space).most("params", plan.space) * 1e-8 <= 0.95e-4


def test_time_and_memory_are_bounds_and_no_order_to_fill_them(tmp_path):
    """Without a limit that is counted, the images say how large a network may be."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "few.npz", x=rng.integers(0, 255, (60, 8, 8), dtype=np.uint8), y=np.arange(60) % 3)
    options = {"data": str(tmp_path / "few.npz"), "settings": ["device=cpu"]}
    plan = prepare(recipe_for(None, limits={"max_memory": "512MiB"}, **options))
    top = units.parse(default_limit(plan.data.counts["train"]), "params")
    assert plan.limits.to_dict()["params"]["max"] == top
    assert Meter.for_space(plan.space).most("params", plan.space) < 2 * top
    free = prepare(recipe_for(None, limits={"max_memory": "512MiB", "max_params": "300k"}, **options))
    assert free.limits.to_dict()["params"]["max"] == 300_000, "the limit set by hand stays"


def test_a_space_made_for_a_latency_is_not_refused_by_a_second_measurement(monkeypatch):
    """The clock of a busy machine may say twice as much a moment later."""
    calls = []

    def busier(model, shape, batch, device, **_):
        calls.append(device)
        seconds = sum(p.numel() for p in model.parameters()) * (1e-8 if made == [] else 1e-6)
        return Latency(seconds, seconds, seconds, batch, device, 1, 5)

    made, auto = [], prepare_module.initial_space

    def noted(*args):
        made.append(auto(*args))
        return made[0]

    monkeypatch.setattr(meter_module, "measure_latency", busier)
    monkeypatch.setattr(prepare_module, "initial_space", noted)
    found = prepare(recipe_for(None, limits={"max_latency": "100us"}, tiny=True, settings=["device=cpu"])).space
    assert found == made[0] and calls
    with pytest.raises(InfeasibleError):
        settings = {"device": "cpu", "space": "vit-8px"}
        prepare(recipe_for("s4-digits", limits={"max_latency": "1us", "max_params": "60k"}, settings=settings))
