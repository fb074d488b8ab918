"""Checkpoints inside epochs: by time, after a signal; what is resumed from them ends the same to the bit."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from train_toys import SPACE, BadOnce, Store, Toys, plain, same, settings, supernet, weights

from tailorvit import named_space
from tailorvit.errors import TailorError, out_of_memory
from tailorvit.families import family
from tailorvit.rng import seed_everything
from tailorvit.train import RULES, Evaluator, Fixed, SinglePath, Teacher, accuracy, hits, train
from tailorvit.train import loop as loop_module
from tailorvit.train.memory import MemoryNotice, reason
from tailorvit.train.stopping import Stopped, asked, stoppable

OFTEN = 1e-9  # seconds between checkpoints: every step, where they may take any share of the time


@pytest.fixture(autouse=True)
def any_share(monkeypatch):
    monkeypatch.setattr(loop_module, "CHECKPOINT_SHARE", float("inf"))


def hybrid():
    """A small network with batch norms."""
    seed_everything(7, "toy")
    space = named_space("hybrid-8px").with_settings(classes=3)
    house = family("hybrid")
    return house.build(house.settings(dict(space.settings)), space.smallest())


class Wide(Toys):
    """The toys as 8 px images."""

    def at(self, step):
        batch = super().at(step)
        return batch._replace(x=batch.x.repeat(1, 1, 2, 2))


def teacher():
    network = plain()
    return Teacher(network.eval(), 0.5)


CASES = {
    "plain": (lambda: plain(), Toys, lambda: Fixed(), None),
    "single_path": (lambda: supernet(0.3), Toys, lambda: RULES["single_path"](SPACE), None),
    "sandwich": (lambda: supernet(0.3), Toys, lambda: RULES["sandwich"](SPACE), None),
    "taught": (lambda: supernet(0.3), Toys, lambda: RULES["single_path"](SPACE), teacher),
    "batch norms": (hybrid, Wide, lambda: Fixed(), None),
}


def state(model):
    return {n: t.clone() for n, t in model.state_dict().items()}


@pytest.mark.parametrize("case", CASES)
def test_resumed_inside_an_epoch_it_is_the_same_to_the_bit(case):
    build, toys, rule, taught = CASES[case]
    options = settings(epochs=2, checkpoint_seconds=OFTEN)

    def go(store):
        model = build()
        trained = train(model, toys(3), rule(), options, 5, store, teacher=taught and taught())
        return model, trained

    whole = Store()
    model, trained = go(whole)
    assert {m["step"] for _, m in whole.saved} == {1, 2, 3, 4, 5, 6}
    for checkpoint in whole.saved[:-1]:
        later = Store(checkpoint)
        torch.manual_seed(99)
        again, retrained = go(later)
        assert same(state(again), state(model)), checkpoint[1]["step"]
        assert retrained == trained
        assert same(later.checkpoint[0], whole.checkpoint[0]) and later.checkpoint[1] == whole.checkpoint[1]
        told = [(e, f["loss"], f["accuracy"]) for e, f in later.epochs]
        assert told == [(e, f["loss"], f["accuracy"]) for e, f in whole.epochs][-len(told) :], "sums of the epoch too"


def test_epochs_shorter_than_the_interval_are_not_interrupted(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(loop_module.time, "monotonic", lambda: clock[0])

    def saved(step_seconds, interval, epochs=4):
        clock[0] = 0.0
        store = Store()
        store.progress = lambda *_: clock.__setitem__(0, clock[0] + step_seconds)
        train(plain(), Toys(4), Fixed(), settings(epochs=epochs, checkpoint_seconds=interval), 0, store)
        return [m["step"] for _, m in store.saved]

    assert saved(1.0, 6.0) == [8, 16], "at the ends of epochs only"
    inside = saved(2.0, 3.0)
    assert inside[:2] == [3, 6] and max(b - a for a, b in pairwise(inside)) <= 3
    assert saved(2.0, 0) == [4, 8, 12, 16], "0: every epoch, none inside"


def test_slow_writes_are_spaced(monkeypatch):
    clock, store = [0.0], Store()
    monkeypatch.setattr(loop_module, "CHECKPOINT_SHARE", 0.1)
    monkeypatch.setattr(loop_module.time, "monotonic", lambda: clock[0])
    store.progress = lambda *_: clock.__setitem__(0, clock[0] + 1.0)
    save = store.save

    def slow(tensors, meta):
        clock[0] += 5.0
        save(tensors, meta)

    store.save = slow
    train(plain(), Toys(100), Fixed(), settings(epochs=1, checkpoint_seconds=2.0), 0, store)
    assert len(store.saved) == 3, "after 3 steps, 51 more, and at the end"


def test_a_roll_back_after_a_resume_inside_an_epoch(monkeypatch):
    """It returns to the start of the epoch, not to where the training was resumed."""
    monkeypatch.setattr(loop_module, "PATIENCE", 2)
    ends = []
    whole = Store()
    for checkpoint in (None, 5, 6, 7):
        store = whole if checkpoint is None else Store(next(c for c in whole.saved if c[1]["step"] == checkpoint))
        model, toys = supernet(0.2), BadOnce(bad={6, 7})
        toys.requested += range(checkpoint or 0)  # before it was resumed
        options = settings(checkpoint_seconds=OFTEN)
        trained = train(model, toys, SinglePath(SPACE), options, 0, store)
        assert trained.rollbacks == 1 and toys.requested[-8:] == [*range(4, 12)]
        ends.append((weights(model), trained))
    assert all(same(w, ends[0][0]) and t == ends[0][1] for w, t in ends)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", [2, 4, 6, 12])
def test_a_signal_ends_a_training_after_a_checkpoint(number, at):
    model = supernet(0.2)
    train(model, Toys(), SinglePath(SPACE), settings(), 0)
    cut, store = supernet(0.2), Store()
    options = settings(checkpoint_seconds=3600)
    store.progress = lambda step, *_: os.kill(os.getpid(), number) if step == at else None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(Stopped) as stop, stoppable():
        train(cut, Toys(), SinglePath(SPACE), options, 0, store)
    assert stop.value.code == 128 + number and not asked()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert store.checkpoint[1]["step"] in (at, at + 1)
    resumed = supernet(0.2)
    train(resumed, Toys(), SinglePath(SPACE), options, 0, Store(store.checkpoint))
    assert same(weights(resumed), weights(model))


def test_a_second_signal_ends_at_once():
    store, seen = Store(), []

    def twice(step, *_):
        seen.append(step)
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    store.progress = twice
    with pytest.raises(Stopped), stoppable():
        train(plain(), Toys(), Fixed(), settings(checkpoint_seconds=3600), 0, store)
    assert seen == [1, 2] and store.checkpoint is None


def test_outside_a_training_a_signal_ends_at_once():
    with pytest.raises(Stopped) as stop, stoppable():
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("not reached")
    assert stop.value.who == "by the system (SIGTERM)"


def test_handlers_of_others_and_threads_are_left_alone():
    mine = lambda *_: None  # noqa: E731
    before = signal.signal(signal.SIGTERM, mine)
    try:
        with stoppable():
            assert signal.getsignal(signal.SIGTERM) is mine
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    seen = []

    def work():
        with stoppable():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_readers_that_a_signal_ended_are_no_error():
    """A signal to all processes of a group ends the workers that read images; torch then raises RuntimeError."""

    class Readers(Toys):
        def at(self, step):
            if step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")
            return super().at(step)

    with pytest.raises(Stopped), stoppable():
        train(plain(), Readers(), Fixed(), settings(), 0)
    with pytest.raises(RuntimeError, match="mine"), stoppable():
        train(plain(), Toys(), Fixed(), settings(), 0, evaluate=lambda: (_ for _ in ()).throw(RuntimeError("mine")))


# -- out of memory ----------------------------------------------------------------------------------------------------


class Small:
    """A memory that holds so many images: networks with more at a time are refused, by the allocator's own words."""

    def __init__(self, model, images: int, error=None) -> None:
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")
        self.images, self.calls = images, []
        model.register_forward_pre_hook(self)

    def __call__(self, model, inputs):
        self.calls.append(len(inputs[0]))
        if len(inputs[0]) > self.images:
            raise self.error


ERRORS = {
    "cuda": None,
    "host": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 6400 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "python": MemoryError(),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("rule", ["single_path", "sandwich"])
def test_too_large_a_step_goes_on_in_parts(rule, error):
    options = settings(rule=rule, optimizer="sgd", distill=rule == "sandwich")
    ends = []
    for images in (99, 3):
        model, store = supernet(), Store()
        memory = Small(model, images, ERRORS[error])
        train(model, Toys(), RULES[rule](SPACE), options, 0, store)
        ends.append(weights(model))
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name], tensor, rtol=1e-4, atol=1e-6)
    kinds = [k for k, _ in store.events]
    assert kinds == ["memory", "memory"], "8, 4, then 2 at a time; and not again in every step"
    text = store.events[1][1]
    assert text.startswith("out of memory with 4 images at a time (") and "go on with 2 at a time" in text
    assert "batch norm" not in text and memory.calls.count(8) == 1
    assert store.saved[0][1]["step"] == 1 and store.checkpoint[1]["parts"] == 4


@pytest.mark.parametrize("options", [{}, {"freeze": "slice"}], ids=str)
def test_a_resumed_training_takes_the_same_parts(options):
    options = settings(**options)
    model, whole = supernet(0.3), Store()
    Small(model, 4)
    train(model, Toys(), SinglePath(SPACE), options, 0, whole)
    for checkpoint in whole.saved:
        resumed, later = supernet(0.3), Store(checkpoint)
        train(resumed, Toys(), SinglePath(SPACE), options, 0, later)  # there is enough memory now
        assert same(weights(resumed), weights(model)), checkpoint[1]["step"]
        assert "memory" not in [k for k, _ in later.events]


def test_a_roll_back_keeps_the_parts(monkeypatch):
    monkeypatch.setattr(loop_module, "PATIENCE", 2)
    model, store = supernet(), Store()
    Small(model, 4)
    train(model, BadOnce(bad={1, 2}), SinglePath(SPACE), settings(), 0, store)
    assert [k for k, _ in store.events] == ["memory", "skip", "skip", "rollback"]
    assert store.checkpoint[1]["parts"] == 2


def test_batch_norms_are_told_and_need_two_images():
    model, store = hybrid(), Store()
    before = state(model)
    Small(model, 4)
    train(model, Wide(2), Fixed(), settings(epochs=1), 0, store)
    assert "batch norms now see 4 images at a time, so results may differ" in store.events[0][1]
    assert not same(state(model), before)
    model = hybrid()
    Small(model, 1)
    with pytest.raises(TailorError, match="of 2 images, the least that batch norm can use"):
        train(model, Wide(2), Fixed(), settings(epochs=1), 0)


def test_where_not_even_one_image_fits():
    model, store = supernet(), Store()
    Small(model, 0)
    with pytest.raises(TailorError, match=r"Out of memory in a training step of 1 image, the least there is \(Tried"):
        train(model, Toys(), SinglePath(SPACE), settings(), 0, store)
    assert [k for k, _ in store.events] == ["memory"] * 3


def test_other_errors_stay_what_they_are():
    model = supernet()
    Small(model, 4, RuntimeError("size mismatch"))
    with pytest.raises(RuntimeError, match="size mismatch"):
        train(model, Toys(), SinglePath(SPACE), settings(), 0)


def test_what_allocators_say_is_understood():
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 52)
    assert out_of_memory(refused.value) and reason(refused.value).startswith("can't allocate memory: you tried")
    with pytest.raises(MemoryError) as refused:
        np.empty(1 << 52)
    assert out_of_memory(refused.value) and reason(refused.value).startswith("Unable to allocate")
    assert out_of_memory(MemoryError()) and reason(MemoryError()) == "MemoryError"
    assert not out_of_memory(TailorError("CUDA out of memory")) and not out_of_memory(RuntimeError("size mismatch"))


@pytest.mark.parametrize("images", [1, 3, 8])
def test_evaluations_take_fewer_images_at_a_time(images):
    model, toys = supernet().eval(), Toys(batch=8)
    batches = [(b.x, b.y) for b in map(toys.at, range(3))]
    archs = [SPACE.largest(), SPACE.smallest()]
    wanted = [accuracy(model, batches), *Evaluator(model, batches)(archs)]
    right = hits(model, batches)
    memory = Small(model, images)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert [accuracy(model, batches), *Evaluator(model, batches)(archs)] == wanted
        assert (hits(model, batches) == right).all()
    texts = [str(w.message) for w in told if issubclass(w.category, MemoryNotice)]
    assert bool(texts) == (images < 8) and all(t.startswith("Out of memory with ") for t in texts)
    assert memory.calls.count(8) <= (3 if images < 8 else 99), "learnt once an evaluation"


def test_an_evaluation_of_which_no_image_fits():
    model, batch = supernet(), Toys().at(0)
    Small(model, 0)
    with pytest.raises(TailorError, match="Out of memory in an evaluation of one image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accuracy(model, [(batch.x, batch.y)])
