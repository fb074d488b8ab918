"""HAT and BigNAS as methods: what they measure, what they train, what a resumed run goes by."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
from types import SimpleNamespace

import pytest

import tailorvit
from tailorvit.arch import Arch
from tailorvit.config import configure, parse_recipe, read_recipe
from tailorvit.costs import Limits, Meter
from tailorvit.costs import meter as meter_module
from tailorvit.costs.latency_predictor import LatencyPredictor
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.families import named_space
from tailorvit.methods.hat import HatSettings, latency_limit
from tailorvit.methods.stages import StageSink
from tailorvit.rng import generator
from tailorvit.runs import Run
from tailorvit.space import Space
from tailorvit.train import loop as loop_module

QUICK = ["train.epochs=1", "final.train.epochs=1", "train.batch=200", "baseline=false", "train.checkpoint_seconds=0"]


def go(folder, *sets, recipe="hat-digits"):
    return tailorvit.run(recipe, out=folder, tiny=True, settings=[*QUICK, *sets], progress="quiet", seed=2)


def facts(folder) -> dict:
    found = json.loads((folder / "result.json").read_text())
    found.pop("seconds")
    return found


def state(folder) -> dict:
    with Run.open(folder, lock=False) as run:
        messages = [e["text"] for e in run.events("predictor")]
        trials = run.trials()
    weights = (folder / "network" / "network.safetensors").read_bytes()
    return {"facts": facts(folder), "trials": trials, "messages": messages, "weights": weights}


@pytest.fixture
def clock(monkeypatch):
    """A device whose latency is a tenth of a microsecond a parameter; returns how often it was read."""
    reads = []

    def measure(model, shape, batch, device, **_):
        reads.append(sum(p.numel() for p in model.parameters()))
        return type("Latency", (), {"median": 1e-7 * reads[-1]})

    monkeypatch.setattr(meter_module, "measure_latency", measure)
    return reads


# -- HAT --------------------------------------------------------------------------------------------------------------


def test_the_search_goes_by_predictions_and_ends_with_a_measurement(tmp_path, clock):
    result = go(tmp_path / "run")
    found, limit = result["latency_predictor"], result["limits"]["latency"]["max"]
    assert found["limit"] == limit and sorted(clock)[0] * 1e-7 < limit < sorted(clock)[-1] * 1e-7
    assert found["samples"] == 12 and found["held_out"] == 4 and found["noise"] == 0
    assert found["mape"] < 1 and found["rank"] > 0.99 < found["constant_mape"], "the features explain this device"
    assert result["latency"] == found["measured"] == 1e-7 * result["params"] <= limit
    assert found["predicted"] == pytest.approx(found["measured"], rel=0.02) and found["predicted"] <= limit
    assert result["final"] == "retrain"
    with Run.open(tmp_path / "run", lock=False) as run:
        searched = run.trials("search")
        (message,) = [e for e in run.events("predictor") if "mean error" in e["text"]]
        assert {e["stage"] for e in run.epochs()} == {"supernet-0", "final"} and run.seconds()["latency"] > 0
        measured = [run.measured("latency", t["arch"]) for t in searched]
    assert all(t["costs"]["latency"] <= limit for t in searched)
    assert None in measured, "most of what is searched is never timed"
    assert message["data"]["mape"] == found["mape"] and "rank correlation" in message["text"]
    assert len(clock) <= 2 * 16 + 1 + found["refused"]


def test_the_median_of_the_rounds_counts_and_noise_is_a_share_of_the_latency(monkeypatch):
    """The second round takes a tenth longer than the first, in the third the machine is busy."""
    space, stored = named_space("vit-8px"), {}
    meter, hat = Meter.for_space(space), importlib.import_module("tailorvit.methods.hat")
    factors = (1.0, 1.1, 5.0)
    monkeypatch.setattr(
        hat,
        "_measure_round",
        lambda _, archs, number: [1e-8 * factors[number] * meter.cost("params", a) for a in archs],
    )
    run = SimpleNamespace(
        measured=lambda _, arch: stored.get(arch), record_measured=lambda _, arch, value: stored.update({arch: value})
    )
    config = SimpleNamespace(hat=HatSettings(samples=12, held_out=4, rounds=3))
    session = SimpleNamespace(
        config=config, space=space, seed=0, run=run, meter=meter, timed=lambda _: contextlib.nullcontext()
    )
    noise = hat._fit_predictor(session)[-1]
    assert noise == pytest.approx(10) and len(stored) == 16
    assert all(seconds == pytest.approx(1.1e-8 * meter.cost("params", arch)) for arch, seconds in stored.items())


def test_a_limit_in_the_recipe_comes_first(tmp_path, clock):
    result = go(tmp_path / "run", "limits.max_latency=9e-3", "space=vit-8px", "limits.max_params=1M")
    assert result["limits"]["latency"] == {"min": None, "max": 9e-3} and result["latency"] <= 9e-3
    assert result["latency_predictor"]["limit"] == 9e-3


def stopped(monkeypatch, stage, at=1):
    """Interrupt the run in a stage's progress."""
    context = monkeypatch.context()
    patch = context.__enter__()
    if stage.startswith("latency"):
        inner = meter_module.measure_latency
        left = itertools.count()

        def measure(*args, **more):
            if next(left) == at:
                raise KeyboardInterrupt
            return inner(*args, **more)

        patch.setattr(meter_module, "measure_latency", measure)
    else:

        def progress(self, *_):
            if self.stage == stage:
                raise KeyboardInterrupt

        patch.setattr(StageSink, "progress", progress)
    return context


@pytest.mark.parametrize(("stage", "at"), [("latency", 5), ("latency", 20), ("supernet-0", 0), ("final", 0)])
def test_interrupted_anywhere_it_ends_the_same(tmp_path, clock, monkeypatch, stage, at):
    go(tmp_path / "whole")
    context = stopped(monkeypatch, stage, at)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut")
    context.__exit__(None, None, None)
    tailorvit.resume(tmp_path / "cut", progress="quiet")
    assert state(tmp_path / "cut") == state(tmp_path / "whole")


def test_a_clock_that_never_says_the_same_twice_is_read_once(tmp_path, monkeypatch):
    reads = itertools.count(1)

    def measure(model, *_, **__):
        factor = 1 + 0.01 * (next(reads) % 7)
        return type("Latency", (), {"median": 1e-7 * factor * sum(p.numel() for p in model.parameters())})

    monkeypatch.setattr(meter_module, "measure_latency", measure)
    context = stopped(monkeypatch, "final")
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "run")
    context.__exit__(None, None, None)
    with Run.open(tmp_path / "run", lock=False) as run:
        trials, messages, confirmed = run.trials(), run.events("predictor"), run.result("confirm")
    before = next(reads)
    result = tailorvit.resume(tmp_path / "run", progress="quiet")
    assert next(reads) == before + 1, "nothing is measured again"
    assert result["latency_predictor"]["noise"] > 0
    with Run.open(tmp_path / "run", lock=False) as run:
        assert (run.trials(), run.events("predictor"), run.result("confirm")) == (trials, messages, confirmed)


def test_a_candidate_that_breaks_the_limit_when_measured_is_refused(tmp_path, clock, monkeypatch):
    """The predictor says yes to everything; only the clock knows."""
    monkeypatch.setattr(LatencyPredictor, "__call__", lambda self, arch: 1e-6)
    result = go(tmp_path / "run", "search.generations=4")
    limit = result["limits"]["latency"]["max"]
    assert result["latency"] <= limit and result["latency_predictor"]["predicted"] == 1e-6
    with Run.open(tmp_path / "run", lock=False) as run:
        best = sorted(run.trials("search"), key=lambda t: (-t["accuracy"], t["params"], t["macs"]))
        refused = [Arch.from_json(t) for t in run.result("confirm")["refused"]]
        messages = [e["text"] for e in run.events("predictor") if "does not" in e["text"]]
    assert len(refused) == result["latency_predictor"]["refused"] > 0 < len(messages)
    assert [t["arch"] for t in best][: len(refused) + 1] == [*refused, Arch.from_dict(result["arch"])]


def test_a_machine_gone_slow_is_an_error_and_may_recover(tmp_path, clock, monkeypatch):
    inner, slow = meter_module.measure_latency, [1]

    def measure(*args, **more):
        return type("Latency", (), {"median": inner(*args, **more).median * (100 if len(clock) > 34 and slow else 1)})

    monkeypatch.setattr(meter_module, "measure_latency", measure)
    monkeypatch.setattr(Space, "sample_distinct", lambda space, count, rng: _far(space, count))
    with pytest.raises(InfeasibleError, match=r"when measured: the fastest takes .* ms\. Resume when .* idle"):
        go(tmp_path / "run", "limits.max_latency=0.007", "space=vit-8px", "limits.max_params=1M")
    slow.clear()
    assert tailorvit.resume(tmp_path / "run", progress="quiet")["latency"] <= 7e-3


def _far(space, count):
    """Wide architectures, so that none of them is found again under a tight limit."""
    archs = {space.sample(generator(i, "far")) for i in range(1000)}
    return sorted(archs, key=lambda a: (-a.one("embed"), -a.one("depth"), a.to_json()))[:count]


def test_limits_with_a_typical_latency():
    assert latency_limit(Limits.of(max_latency="3ms"), 1.0) == Limits.of(max_latency="3ms")
    assert latency_limit(Limits(), 2e-3) == Limits.of(max_latency=2e-3)
    both = latency_limit(Limits.of(max_params="1M", min_latency="1ms"), 2e-3)
    assert both.to_dict() == Limits.of(max_params="1M", min_latency="1ms", max_latency=2e-3).to_dict()


@pytest.mark.parametrize(("key", "value"), [("samples", 1), ("held_out", 1), ("rounds", 0)])
def test_settings_are_checked(key, value):
    with pytest.raises(TailorError, match=rf"hat\.{key} must lie between .*, not {value}\.$"):
        HatSettings(**{key: value})


# -- BigNAS -----------------------------------------------------------------------------------------------------------


def test_the_method_brings_its_training():
    config = configure({"method": "bignas"})
    assert (config.train.rule, config.train.distill, config.train.reg_largest_only) == ("sandwich", True, True)
    assert config.final.how == "inherit"
    own = configure({"method": "bignas", "train": {"distill": False, "epochs": 7}, "final": {"how": "retrain"}})
    assert not own.train.distill and own.train.reg_largest_only and own.train.epochs == 7
    assert own.final.how == "retrain" and own.final.train.epochs == 7
    for other in ("s4", "autoformer", "hat", "fixed"):
        train = configure({"method": other}).train
        assert (train.rule, train.distill, train.reg_largest_only) == ("single_path", False, False)
    with pytest.raises(TailorError, match=r"train\.distill needs"):
        configure({"method": "bignas", "train": {"rule": "single_path"}})


def test_the_recipes_say_what_the_methods_do():
    for name in ("bignas", "hat"):
        recipe = read_recipe(f"{name}-digits")
        assert recipe["method"] == name
        assert configure(recipe) == configure({**recipe, "method": name})
    assert (
        configure(read_recipe("bignas-digits")).train
        == configure(
            {**read_recipe("bignas-digits"), "train": {**_without(read_recipe("bignas-digits")["train"])}}
        ).train
    )


def _without(train: dict) -> dict:
    """The recipe's training without the keys the method brings."""
    return {k: v for k, v in train.items() if k not in ("rule", "distill", "reg_largest_only")}


@pytest.mark.parametrize("how", ["inherit", "retrain"])
def test_bignas_end_to_end(tmp_path, monkeypatch, how):
    spared, inner = [], loop_module.without_drop_path
    monkeypatch.setattr(loop_module, "without_drop_path", lambda model: spared.append(model) or inner(model))
    result = go(tmp_path / "run", f"final.how={how}", recipe="bignas-digits")
    assert result["method"] == "bignas" and result["final"] == how
    recipe = configure(parse_recipe((tmp_path / "run" / "recipe.toml").read_text(), "recipe"))
    assert recipe.train.distill and recipe.train.reg_largest_only and recipe.train.rule == "sandwich"
    with Run.open(tmp_path / "run", lock=False) as run:
        steps = 2  # 400 images in batches of 200
        assert len(spared) == 3 * steps, "three of the four, in the supernet's steps only"
        assert {e["stage"] for e in run.epochs()} == {"supernet-0"} | ({"final"} if how == "retrain" else set())


def test_bignas_interrupted_ends_the_same(tmp_path, monkeypatch):
    sets = ["train.epochs=2", "train.drop_path=0.3"]
    go(tmp_path / "whole", *sets, recipe="bignas-digits")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

        def progress(self, step, *_):
            if step == 3:
                raise KeyboardInterrupt

        patch.setattr(StageSink, "progress", progress)
        go(tmp_path / "cut", *sets, recipe="bignas-digits")
    tailorvit.resume(tmp_path / "cut", progress="quiet")
    assert state(tmp_path / "cut") == state(tmp_path / "whole")
