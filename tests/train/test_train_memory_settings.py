"""Steps in parts, fp16 with a scaled loss, and what ``auto`` chooses on devices that are not here."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from train_toys import SPACE, Store, Toys, gradients, no_onednn, plain, same, settings, supernet, weights

from tailorvit import memory
from tailorvit.errors import TailorError, out_of_memory
from tailorvit.memory import bf16_pays, half_precision, usable_device
from tailorvit.train import RULES, Fixed, SinglePath, train
from tailorvit.train import scaling as scaling_module
from tailorvit.train.graphs import GraphSteps
from tailorvit.train.scaling import LossScale

# -- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("rule", ["single_path", "sandwich"])
def test_parts_add_up_to_the_whole_batch(rule, parts):
    ends, sizes = [], set()
    for accumulate in (1, parts):
        model, store = supernet(), Store()
        model.register_forward_pre_hook(lambda _, given: sizes.add(len(given[0])))
        options = settings(rule=rule, distill=rule == "sandwich", optimizer="sgd", accumulate=accumulate)
        train(model, Toys(), RULES[rule](SPACE), options, 0, store)
        ends.append(weights(model))
    assert sizes == {8} | {-(-8 // parts), 8 // parts}
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name], tensor, rtol=1e-4, atol=1e-6)
    assert store.events == []


def test_a_resumed_training_takes_the_parts_it_was_told_to():
    options = settings(accumulate=2, precision="fp32")
    model, whole = supernet(0.3), Store()
    train(model, Toys(), SinglePath(SPACE), options, 0, whole)
    assert len(whole.saved) > 2 and whole.checkpoint[1]["parts"] == 2
    for checkpoint in whole.saved[:-1]:
        resumed = supernet(0.3)
        train(resumed, Toys(), SinglePath(SPACE), options, 0, Store(checkpoint))
        assert same(weights(resumed), weights(model))


@pytest.mark.parametrize(("accumulate", "batch"), [(0, 8), (-1, 8), (5, 8), (2, 3)])
def test_parts_that_cannot_be(accumulate, batch):
    with pytest.raises(TailorError, match=rf"train\.accumulate must be at least 1.*, not {accumulate}\."):
        settings(accumulate=accumulate, batch=batch)
    settings(accumulate=4, batch=8)
    settings(accumulate=4, batch=0)  # chosen later


# -- fp16 -------------------------------------------------------------------------------------------------------------


def in_fp16(store=None, options=None, batches=None, model=None):
    model, store = model or plain(), store or Store()
    with no_onednn():
        train(model, batches or Toys(), Fixed(), options or settings(precision="fp16"), 0, store)
    return model, store


def test_small_gradients_need_the_scale(monkeypatch):
    """A part of a batch that counts little has gradients that 16 bits cannot hold."""
    batch, found = Toys().at(0), {}
    tiny = batch._replace(target=batch.target * 1e-6)
    with no_onednn():
        for name, precision, first in (("fp32", "fp32", 1.0), ("scaled", "fp16", 2.0**16), ("plain", "fp16", 1.0)):
            monkeypatch.setattr(scaling_module, "FIRST", first)
            found[name] = gradients(plain(), [None], settings(precision=precision, clip=0), tiny)
    name = "blocks.0.mlp.fc1.weight"
    exact = found["fp32"][name]
    assert 0 < float(exact.abs().max()) < 2.0**-24, "under the smallest number of 16 bits"
    assert float((found["scaled"][name] - exact).norm() / exact.norm()) < 0.05
    assert float((found["plain"][name] - exact).norm() / exact.norm()) > 0.5


def test_too_large_a_scale_is_halved_and_no_step_is_lost(monkeypatch):
    end, calm = in_fp16()
    assert calm.checkpoint[1]["loss_scale"] == 2.0**16 and calm.checkpoint[1]["scale_held"] == 12
    monkeypatch.setattr(scaling_module, "FIRST", 2.0**40)
    other, store = in_fp16()
    assert store.events == [] and store.checkpoint[1]["skipped"] == 0
    assert 1 < store.checkpoint[1]["loss_scale"] < 2.0**40
    for name, tensor in weights(end).items():
        torch.testing.assert_close(weights(other)[name], tensor, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("first", [2.0**16, 2.0**40])
def test_a_resumed_training_goes_on_with_the_scale(monkeypatch, first):
    monkeypatch.setattr(scaling_module, "FIRST", first)
    monkeypatch.setattr(scaling_module, "GROW_AFTER", 5)
    model, whole = in_fp16()
    for checkpoint in whole.saved[:-1]:
        monkeypatch.setattr(scaling_module, "FIRST", 1.0)  # what a new training would begin with
        resumed, later = in_fp16(Store(checkpoint))
        assert same(weights(resumed), weights(model))
        assert later.checkpoint[1]["loss_scale"] == whole.checkpoint[1]["loss_scale"]


def test_a_broken_batch_is_skipped_and_leaves_the_scale():
    class Broken(Toys):
        """One target of step 2 is so large that only the gradients overflow, at any scale."""

        def at(self, step):
            batch = super().at(step)
            return batch._replace(target=batch.target * (1e30 if step == 2 else 1.0))

    for batches in (Broken(), Toys(bad={2})):
        _, store = in_fp16(batches=batches)
        assert [kind for kind, _ in store.events] == ["skip"]
        assert store.checkpoint[1]["loss_scale"] == 2.0**16 and store.checkpoint[1]["skipped"] == 1


def test_the_scale_grows_up_to_a_bound_and_only_in_fp16(monkeypatch):
    monkeypatch.setattr(scaling_module, "GROW_AFTER", 2)
    scale = LossScale(True)
    meta = scale.start()
    seen = []
    for _ in range(30):
        scale.good(meta)
        seen.append(scale.of(meta))
    assert seen[:4] == [2.0**16, 2.0**17, 2.0**17, 2.0**18] and seen[-1] == 2.0**24
    off = LossScale(False)
    assert off.start() == {} and off.of({}) == 1 and not off.halve({})
    _, store = in_fp16(options=settings(precision="fp32"))
    assert "loss_scale" not in store.checkpoint[1]


def test_fp16_steps_are_not_recorded(monkeypatch):
    from tailorvit.train import loop

    monkeypatch.setattr(loop, "can_record", lambda *_: True)
    monkeypatch.setattr(GraphSteps, "__init__", lambda *_: None)
    made = {p: loop.Trainer(plain(), Toys(), Fixed(), settings(precision=p), 0, Store()) for p in ("bf16", "fp16")}
    assert made["bf16"].graphs is not None and made["fp16"].graphs is None


# -- what auto chooses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuda", "apple", "device"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu"), (True, False, "cuda")],
)
def test_the_device_of_auto(monkeypatch, cuda, apple, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: apple)
    assert usable_device("auto") == device


def test_the_precision_of_auto(monkeypatch):
    import contextlib

    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    card = {"itself": True}
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or card["itself"]
    )
    assert half_precision("cuda:1") == "bf16"
    card["itself"] = False
    assert half_precision("cuda:1") == "fp16", "a card that only imitates it is slow"
    assert half_precision("mps") == "fp32"
    for pays, precision in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(memory, "bf16_pays", lambda pays=pays: pays)
        assert half_precision("cpu") == precision


@pytest.mark.parametrize(
    ("words", "trial", "pays"),
    [
        ("flags : fpu avx512_bf16", "print(2.5)", True),
        ("Features : asimd bf16", "print(2.5)", True),
        ("flags : fpu avx512_bf16", "print(1.05)", False),
        ("flags : fpu avx2", "print(2.5)", False),
        ("flags : amx_bf16", "import os, signal; print(2.5); os.kill(os.getpid(), signal.SIGILL)", False),
        ("flags : amx_bf16", "print('nan')", False),
        ("flags : amx_bf16", "print('no figure')", False),
        ("flags : amx_bf16", "import time; time.sleep(60)", False),
        (None, "print(2.5)", False),
    ],
)
def test_bf16_on_a_cpu_is_tried_before_it_is_used(tmp_path, monkeypatch, words, trial, pays):
    facts = tmp_path / "cpuinfo"
    if words is not None:
        facts.write_text(words)
    monkeypatch.setattr(memory, "_CPU", facts)
    monkeypatch.setattr(memory, "_TRIAL", trial)
    monkeypatch.setattr(memory, "TRIAL_SECONDS", 1.0 if "sleep" in trial else 30.0)
    assert bf16_pays.__wrapped__() is pays


def test_the_trial_of_bf16_runs_and_prints_a_figure():
    done = subprocess.run([sys.executable, "-c", memory._TRIAL], capture_output=True, text=True, check=False)
    assert done.returncode < 0 or float(done.stdout) > 0, done.stderr  # a signal is an answer too


def test_apples_words_for_no_memory():
    assert out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"))
