"""The runtime of latency limits: what auto means, what onnxruntime times, what a run stores and a resumed one keeps."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import tailorvit
from tailorvit.api import recipe_for
from tailorvit.config import configure, parse_recipe
from tailorvit.costs import Meter, Runtime, measure_latency
from tailorvit.costs import meter as meter_module
from tailorvit.costs import runtime as runtime_module
from tailorvit.costs.runtime import LatencySettings, chosen_runtime
from tailorvit.costs.traced import onnx_call, traced
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, named_space
from tailorvit.methods.latency import as_begun, with_clock
from tailorvit.methods.stages import StageSink
from tailorvit.runs import Run

CPU = "CPUExecutionProvider"
ONNX = Runtime("onnxruntime", CPU, 1)
QUICK = ["train.epochs=1", "final.train.epochs=1", "train.batch=200", "baseline=false", "train.checkpoint_seconds=0"]


def plain(family: str) -> tuple[torch.nn.Module, tuple[int, int, int]]:
    """The smallest network of a family's 8 px space."""
    space = named_space(f"{family}-8px")
    counter = Meter.for_space(space).counter
    shared = counter.shared
    return counter.family.build(shared, space.smallest()), (shared.channels, *shared.image_size)


# -- the choice -------------------------------------------------------------------------------------------------------


def test_auto_is_onnxruntime_on_a_cpu_where_it_is_installed(monkeypatch):
    assert chosen_runtime(LatencySettings(), "cpu", 2) == Runtime("onnxruntime", CPU, 2)
    assert chosen_runtime(LatencySettings(threads=3), "cpu", 2).threads == 3
    assert chosen_runtime(LatencySettings(), "meta") == Runtime(), "elsewhere torch"
    assert chosen_runtime(LatencySettings(provider=CPU), "meta").name == "onnxruntime", "who names a provider means it"
    monkeypatch.setattr(runtime_module, "find_spec", lambda name: None)
    assert chosen_runtime(LatencySettings(), "cpu") == Runtime()
    with pytest.raises(TailorError, match=r"needs onnx, onnxscript, onnxruntime: pip install 'tailorvit\[export\]'"):
        chosen_runtime(LatencySettings("onnxruntime"), "cpu")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"runtime": "tensorrt"}, "Unknown runtime 'tensorrt'"),
        ({"runtime": 3}, "limits.runtime must be text, not 3"),
        ({"threads": -1}, "limits.threads must be 0"),
        ({"threads": 1.5}, "limits.threads must be a whole number, not '1.5'"),
        ({"threads": "two"}, "limits.threads must be a whole number, not 'two'"),
        ({"runtime": "torch", "provider": CPU}, "is one of onnxruntime"),
        ({"table": "t.json"}, "needs a limit on latency"),
        ({"runtimes": "torch"}, "Unknown limit 'runtimes'"),
    ],
)
def test_mistakes_in_the_table_limits_are_one_sentence(limits, words):
    with pytest.raises(TailorError) as found:
        configure({"limits": limits})
    assert words in str(found.value) and "\n" not in str(found.value)


def test_an_unknown_provider_names_those_there_are():
    with pytest.raises(TailorError, match=r"no provider 'NpuProvider' here; it has .*CPUExecutionProvider"):
        chosen_runtime(LatencySettings(provider="NpuProvider"), "cpu")


def test_bounds_given_by_hand_replace_bounds_and_not_the_runtime(tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[limits]\nmax_params = "60k"\nruntime = "torch"\nthreads = 2\n')
    assert recipe_for(str(recipe), limits={"max_latency": "5ms"}).limits == {
        "runtime": "torch",
        "threads": 2,
        "max_latency": "5ms",
    }


# -- measuring --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["vit", "hybrid", "swin"])
def test_the_network_that_is_timed_is_the_network(family):
    """Also with batch norm: what is timed is the network in evaluation, however it was left."""
    model, shape = plain(family)
    with torch.no_grad():
        for tensor in model.buffers():
            if tensor.is_floating_point():
                tensor.add_(0.3)
    written = traced(model.train(), shape, 2)
    got = onnx_call(written, shape, 2, CPU, 1)()[0]
    x = torch.from_numpy(np.random.default_rng(0).random((2, *shape), dtype=np.float32))
    with torch.no_grad():
        assert np.allclose(got, model.eval()(x).numpy(), atol=1e-4)


def test_latency_in_onnxruntime_says_how_it_was_measured():
    model, shape = plain("vit")
    found = measure_latency(model, shape, runs=6, runtime=ONNX).to_dict()
    assert 0 < found["low"] <= found["median"] <= found["high"]
    assert {k: found[k] for k in ("runs", "threads", "runtime", "provider", "batch")} == {
        "runs": 6,
        "threads": 1,
        "runtime": "onnxruntime",
        "provider": CPU,
        "batch": 1,
    }


def test_torch_is_timed_with_its_threads_and_keeps_those_it_had():
    before, seen = torch.get_num_threads(), []

    class Seen(torch.nn.Module):
        def forward(self, x):
            seen.append(torch.get_num_threads())
            return x

    found = measure_latency(Seen(), (1, 4, 4), runs=2, runtime=Runtime(threads=before + 1))
    assert set(seen) == {before + 1} == {found.threads} and torch.get_num_threads() == before


def test_a_network_that_cannot_be_written_is_one_sentence(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no such operator\nand more")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(TailorError, match=r"cannot write this network for onnxruntime: no such operator$"):
        traced(torch.nn.Identity(), (1, 4, 4))


def test_where_tracing_fails_the_program_is_captured(monkeypatch):
    """Another exporter is the second way, not an error."""
    asked = []

    class Program:
        model_proto = type("Proto", (), {"SerializeToString": staticmethod(lambda: b"captured")})

    def export(*_, dynamo, **__):
        asked.append(dynamo)
        if not dynamo:
            raise RuntimeError("this operator cannot be traced")
        return Program

    monkeypatch.setattr(torch.onnx, "export", export)
    assert traced(torch.nn.Identity(), (1, 4, 4)) == b"captured" and asked == [False, True]


def test_a_meter_measures_by_its_clock(monkeypatch):
    asked = []

    def measure(model, shape, batch, device, runtime, **_):
        asked.append(runtime)
        return type("Latency", (), {"median": 1e-3})

    monkeypatch.setattr(meter_module, "measure_latency", measure)
    config, clock = with_clock(configure({"limits": {"max_latency": "5ms"}, "threads": 1}), "cpu")
    assert config.limits == {"max_latency": "5ms", "runtime": "onnxruntime", "provider": CPU}
    space = named_space("vit-8px")
    assert Meter.for_space(space, config.budget(), clock=clock).costs(space.smallest())["latency"] == 1e-3
    assert asked == [Runtime("onnxruntime", CPU, 1)]
    unlimited = configure({"limits": {"max_params": "5M"}})
    assert with_clock(unlimited, "cpu")[0] is unlimited


# -- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_from_before_there_was_a_choice_goes_on_in_torch(tmp_path):
    old = configure({"limits": {"max_latency": "5ms"}})
    assert with_clock(as_begun(old, tmp_path), "cpu")[1].runtime.name == "torch"
    new, _ = with_clock(old, "cpu")
    assert with_clock(as_begun(new, tmp_path), "cpu")[1].runtime.name == "onnxruntime"


def test_a_resumed_run_measures_nothing_again_and_in_the_same_runtime(tmp_path, monkeypatch):
    """A clock that never says the same twice, killed before the last training."""
    clock, runtimes = itertools.count(1), []

    def measure(model, shape, batch, device, runtime, **_):
        runtimes.append(runtime.name)
        return type("Latency", (), {"median": 1e-3 + 1e-9 * next(clock)})

    monkeypatch.setattr(meter_module, "measure_latency", measure)
    folder = tmp_path / "run"
    sets = [*QUICK, "limits.max_latency=5ms", "space=vit-8px", "method=autoformer", "limits.max_params=1M"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            StageSink,
            "progress",
            lambda self, *_: (_ for _ in ()).throw(KeyboardInterrupt) if self.stage == "final" else None,
        )
        tailorvit.run("s4-digits", out=folder, tiny=True, settings=sets, progress="quiet", seed=2)
    stored = parse_recipe((folder / "recipe.toml").read_text(), "recipe.toml")["limits"]
    assert stored["runtime"] == "onnxruntime" and stored["provider"] == CPU
    with Run.open(folder, lock=False) as run:
        before = run.trials()
    read = len(runtimes)
    result = tailorvit.resume(folder, progress="quiet")
    assert len(runtimes) == read and set(runtimes) == {"onnxruntime"}
    with Run.open(folder, lock=False) as run:
        assert run.trials() == before
        said = [event["text"] for event in run.events("latency")]
    assert len(said) == 1 and "in onnxruntime (CPUExecutionProvider" in said[0]
    assert result["latency_by"]["how"] == "measured" and result["latency_by"]["runtime"] == "onnxruntime"
    assert any("measured in onnxruntime" in line for line in result.summary())
    assert "measured in onnxruntime (CPUExecutionProvider" in (folder / "report.html").read_text(encoding="utf-8")


def test_cost_names_the_runtime(tmp_path):
    from tailorvit.lookup import cost

    assert FAMILIES["vit"].archs
    found = cost("deit-ti", image_size=32, classes=2, measure=True, runtime="torch")
    assert found["latency"]["runtime"] == "torch" and found["latency"]["provider"] is None
    with pytest.raises(TailorError, match="Unknown runtime 'jax'"):
        cost("deit-ti", measure=True, runtime="jax")
