"""The training loop: gradients, non-finite steps, precision, resuming."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from train_toys import SPACE, BadOnce, Store, Toys, gradients, no_onednn, plain, same, settings, supernet, weights

from tailorvit.errors import TailorError
from tailorvit.train import RULES, Fixed, Sandwich, SinglePath, train
from tailorvit.train import loop as loop_module
from tailorvit.train.loop import inherit, shortened, soft_cross_entropy

ARCHS = Sandwich(SPACE).archs_at(0, 3)


def test_it_learns():
    model = supernet()
    sink = Store()
    trained = train(model, Toys(), SinglePath(SPACE), settings(epochs=12), 0, sink)
    assert trained.steps == 48 and trained.skipped == trained.rollbacks == 0
    losses = [facts["loss"] for _, facts in sink.epochs]
    assert losses[-1] < 0.5 < losses[0]
    assert [e for e, _ in sink.epochs] == list(range(1, 13))
    assert [s for s, _ in sink.steps] == list(range(1, 49))
    assert trained.loss == sink.steps[-1][1]["loss"]
    assert not model.training


def test_same_seed_same_weights():
    ends = []
    for seed in (1, 1, 2):
        model = supernet(0.2)
        torch.manual_seed(len(ends))  # the global generators' state before must not matter
        train(model, Toys(), SinglePath(SPACE), settings(epochs=1), seed)
        ends.append(weights(model))
    assert same(ends[0], ends[1]) and not same(ends[0], ends[2])


@pytest.mark.parametrize("clip", [0.0, 1e6])
def test_sandwich_gradient_is_the_sum_or_the_mean_of_single_ones(clip):
    options, batch = settings(clip=clip), Toys().at(0)
    together = gradients(supernet(), ARCHS, options, batch)
    singles = [gradients(supernet(), (a,), options, batch) for a in ARCHS]
    for name in together:
        total = sum(s[name] for s in singles)
        expected = total / len(ARCHS) if clip or name == "loss" else total
        assert torch.allclose(together[name], expected, atol=1e-6, rtol=1e-4), name


def test_clipping_bounds_the_gradient():
    options = settings(clip=1e-3)
    found = gradients(supernet(), (SPACE.largest(),), options, Toys().at(0))
    found.pop("loss")
    norm = torch.cat([g.flatten() for g in found.values()]).norm()
    assert float(norm) == pytest.approx(1e-3, rel=1e-3)


def test_soft_targets():
    logits, target = torch.randn(5, 3), torch.softmax(torch.randn(5, 3), -1)
    expected = torch.nn.functional.cross_entropy(logits, target)
    assert torch.allclose(soft_cross_entropy(logits, target), expected)


def test_bf16_runs_on_a_cpu_and_keeps_weights_in_fp32():
    ends = []
    for precision in ("fp32", "bf16"):
        model = supernet()
        with no_onednn():
            trained = train(model, Toys(), SinglePath(SPACE), settings(epochs=8, precision=precision), 0)
        assert all(p.dtype == torch.float32 for p in model.parameters())
        ends.append((trained.loss, weights(model)))
    (full, a), (half, b) = ends
    assert math.isfinite(half) and half < 0.7 and abs(full - half) < 0.3
    assert not same(a, b)


# -- steps that are not finite ----------------------------------------------------------------------------------------


def test_a_non_finite_step_is_skipped():
    good, bad = supernet(), supernet()
    sink, seen = Store(), []
    sink.progress = lambda step, *_: seen.append(weights(bad))
    trained = train(bad, Toys(bad={5}), SinglePath(SPACE), settings(), 0, sink)
    train(good, Toys(), SinglePath(SPACE), settings(), 0)
    assert trained.skipped == 1 and trained.rollbacks == 0 and trained.steps == 12
    assert same(seen[4], seen[5]) and not same(seen[5], seen[6]), "step 5 changed nothing"
    assert [k for k, _ in sink.events] == ["skip"] and "step 5" in sink.events[0][1]
    assert all(p.isfinite().all() for p in bad.parameters())
    assert not same(weights(good), weights(bad))


@pytest.mark.parametrize("freeze", ["none", "slice"])
def test_a_non_finite_gradient_alone_is_skipped(freeze):
    """The loss is finite, the gradient is not."""
    model = supernet()
    toys = Toys()
    seen, sink = [], Store()
    sink.progress = lambda *_: seen.append(weights(model))
    handle = model.head.weight.register_hook(lambda g: g * math.inf if len(seen) == 2 else g)
    trained = train(model, toys, SinglePath(SPACE), settings(epochs=2, freeze=freeze), 0, sink)
    handle.remove()
    assert trained.skipped == 1
    assert same(seen[1], seen[2]) and not same(seen[2], seen[3])


def test_several_in_a_row_roll_back_with_half_the_learning_rate(monkeypatch):
    monkeypatch.setattr(loop_module, "PATIENCE", 3)
    model, toys, sink = supernet(), BadOnce(bad={6, 7, 8}), Store()
    options = settings(warmup=0)
    trained = train(model, toys, SinglePath(SPACE), options, 0, sink)
    assert (trained.steps, trained.skipped, trained.rollbacks) == (12, 3, 1)
    assert toys.requested == [*range(9), *range(4, 12)], "back to the last good epoch"
    kinds = [k for k, _ in sink.events]
    assert kinds == ["skip"] * 3 + ["rollback"]
    assert "step 4" in sink.events[-1][1] and "0.5" in sink.events[-1][1]
    rates = [facts["lr"] for _, facts in sink.steps]
    # The bad step that triggers the return reports no progress.
    assert rates[:8] == pytest.approx([options.lr_at(s, 4) for s in range(8)])
    assert rates[8:] == pytest.approx([options.lr_at(s, 4) / 2 for s in range(4, 12)])
    assert [e for e, _ in sink.epochs] == [1, 2, 2, 3], "the epoch that ended amid skipped steps is reported again"
    assert sink.checkpoint[1]["scale"] == 0.5


def test_a_roll_back_restores_weights_and_moments(monkeypatch):
    """A training that rolled back equals one resumed from the same epoch with half the learning rate."""
    monkeypatch.setattr(loop_module, "PATIENCE", 2)
    rolled, sink = supernet(), Store()
    train(rolled, BadOnce(bad={5, 6}), SinglePath(SPACE), settings(), 0, sink)
    assert "rollback" in [k for k, _ in sink.events]
    first, store = supernet(), Store(stop_at=5)
    with pytest.raises(KeyboardInterrupt):
        train(first, Toys(), SinglePath(SPACE), settings(), 0, store)
    tensors, meta = store.checkpoint
    assert meta["step"] == 4
    other = supernet()
    train(other, Toys(), SinglePath(SPACE), settings(), 0, Store((tensors, {**meta, "scale": 0.5})))
    assert same(weights(rolled), weights(other))


def test_a_training_that_stays_non_finite_gives_up_with_advice(monkeypatch):
    monkeypatch.setattr(loop_module, "PATIENCE", 2)
    monkeypatch.setattr(loop_module, "MAX_ROLLBACKS", 3)
    model, sink = supernet(), Store()
    with pytest.raises(TailorError, match=r"gave up.*after 3 returns.*lower train\.lr than 0\.01.*fp32"):
        train(model, Toys(bad=range(2, 10**6)), SinglePath(SPACE), settings(epochs=50), 0, sink)
    texts = [t for k, t in sink.events if k == "rollback"]
    assert len(texts) == 3 and "0.5" in texts[0] and "0.25" in texts[1] and "0.125" in texts[2]
    assert all(p.isfinite().all() for p in model.parameters())


def test_an_epoch_that_ends_amid_skipped_steps_is_no_good_state(monkeypatch):
    """Steps 3 and 4 are bad, and the epoch ends between them."""
    monkeypatch.setattr(loop_module, "PATIENCE", 2)
    toys, sink = BadOnce(bad={3, 4}), Store()
    train(supernet(), toys, SinglePath(SPACE), settings(), 0, sink)
    assert toys.requested == [*range(5), *range(12)], "all the way back to the start"
    assert all(meta["in_row"] == 0 for _, meta in sink.saved)


# -- resuming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("options", [{"freeze": "slice"}, {"freeze": "tensor"}, {"clip": 0.0}], ids=str)
def test_resume_from_any_epoch_is_bit_identical(rule, options):
    options = settings(epochs=3, rule=rule, **options)
    toys, policy = Toys(steps_per_epoch=3), RULES[rule](SPACE)
    model = supernet(0.3)
    sink = Store()
    whole = train(model, toys, policy, options, 5, sink)
    assert [m["step"] for _, m in sink.saved] == [3, 6, 9]
    for stop in (2, 3, 4, 7, 8):
        cut, store = supernet(0.3), Store(stop_at=stop)
        with pytest.raises(KeyboardInterrupt):
            train(cut, toys, policy, options, 5, store)
        resumed, later = supernet(0.3), Store(store.checkpoint)
        torch.manual_seed(99)
        trained = train(resumed, toys, policy, options, 5, later)
        assert same(weights(resumed), weights(model)), stop
        assert (trained.steps, trained.loss) == (whole.steps, whole.loss)
        assert [k for k, _ in later.events] == (["resume"] if store.checkpoint else [])
        assert same(later.checkpoint[0], sink.checkpoint[0]) and later.checkpoint[1] == sink.checkpoint[1]


def test_resume_of_a_finished_training_does_nothing():
    model, sink = supernet(), Store()
    trained = train(model, Toys(), SinglePath(SPACE), settings(), 0, sink)
    resumed, toys, later = supernet(), Toys(), Store(sink.checkpoint)
    repeated = train(resumed, toys, SinglePath(SPACE), settings(), 0, later)
    assert same(weights(resumed), weights(model)) and toys.requested == [] and later.events == []
    assert repeated == trained, "also its last loss"


def test_a_plain_network_resumes_too():
    model, sink = plain(), Store()
    train(model, Toys(), Fixed(), settings(), 0, sink)
    for checkpoint in sink.saved:
        resumed = plain()
        train(resumed, Toys(), Fixed(), settings(), 0, Store(checkpoint))
        assert same(weights(resumed), weights(model))


def test_checkpoints_are_spaced_and_the_last_is_always_saved():
    sink = Store()
    train(supernet(), Toys(), SinglePath(SPACE), settings(checkpoint_seconds=3600), 0, sink)
    assert [m["step"] for _, m in sink.saved] == [12]


def test_a_checkpoint_of_another_space_is_refused():
    sink = Store()
    train(supernet(), Toys(), SinglePath(SPACE), settings(epochs=1), 0, sink)
    for other in (SPACE.shift({"embed": 1}), SPACE.shift({"depth": 1}), SPACE.with_settings(relative=False)):
        with pytest.raises(TailorError, match="belongs to another space or network"):
            train(supernet(space=other), Toys(), SinglePath(other), settings(), 0, Store(sink.checkpoint))
    with pytest.raises(TailorError, match="belongs to another space or network"):
        train(plain(), Toys(), Fixed(), settings(), 0, Store(sink.checkpoint))


# -- starting from other weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, -1])
def test_inherit_copies_the_overlapping_prefix_only(steps):
    wide = SPACE.shift({"embed": 1, "depth": 1})
    small, large = (SPACE, wide) if steps > 0 else (wide, SPACE)
    source, target = supernet(space=small), supernet(space=large)
    with torch.no_grad():
        for p in source.parameters():
            p.fill_(5.0)
    before = weights(target)
    count = inherit(target, source)
    theirs = dict(source.named_parameters())
    shared = 0
    for name, mine in target.named_parameters():
        expected = before[name].clone()
        if name in theirs:
            expected[tuple(slice(min(a, b)) for a, b in zip(mine.shape, theirs[name].shape))] = 5.0
            shared += 1
        assert torch.equal(mine.detach(), expected), name
    assert count == shared > 0
    assert all((p == 5.0).all() for p in source.parameters()), "the source is only read"


def test_shortened():
    s = settings(epochs=10, warmup=2.0)
    half = shortened(s, 0.5)
    assert (half.epochs, half.warmup, half.lr) == (5, 1.0, s.lr)
    assert shortened(s, 0.0).epochs == 1


def test_blocks_of_a_plain_vit_run_compiled_in_training_only(monkeypatch):
    made, used = [], []

    def stand_in(function, **how):
        made.append(how)
        return lambda *args, **more: used.append(model.training) or function(*args, **more)

    monkeypatch.setattr(loop_module.torch, "compile", stand_in)
    ends = []
    for compile in (False, True):
        model = plain()
        look = lambda: model.eval()(Toys().at(0).x) is None or {}  # noqa: E731, B023
        train(model, Toys(), Fixed(), settings(epochs=1, compile=compile), 0, evaluate=look)
        ends.append(dict(model.named_parameters()))
    assert made == [{"dynamic": False}] * len(model.blocks)
    assert used == [True] * len(model.blocks) * Toys().steps_per_epoch
    assert same(*ends)


def test_blocks_of_a_supernet_share_one_compiled_function(monkeypatch):
    made, used = [], []

    def stand_in(function, **how):
        made.append(how)
        return lambda *args: used.append(args[0].shape[-1]) or function(*args)

    monkeypatch.setattr(loop_module.torch, "compile", stand_in)
    ends = []
    for compile in (False, True):
        model = supernet()
        # Not AdamW: where a gradient is nothing but rounding, as that of K's bias, it takes whole steps by its sign.
        train(model, Toys(), SinglePath(SPACE), settings(epochs=1, compile=compile, optimizer="sgd"), 0)
        ends.append(dict(model.named_parameters()))
    assert made == [{"dynamic": False, "fullgraph": True}]
    choices = next(d.choices for d in SPACE.dims if d.key == "embed")
    assert used and set(used) <= set(choices)  # sliced: called with the widths of the architectures
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("stop_at", [None, 2])
def test_partial_sums_stay_in_32_bits_while_training_only(before, stop_at):
    """It is a switch of the whole process: a training leaves it as it was, also when it is interrupted."""
    switches, sink, during = torch.backends.cuda.matmul, Store(stop_at=stop_at), []
    found = switches.allow_bf16_reduced_precision_reduction
    look = lambda: during.append(switches.allow_bf16_reduced_precision_reduction) or {}  # noqa: E731
    try:
        switches.allow_bf16_reduced_precision_reduction = before
        with nullcontext() if stop_at is None else pytest.raises(KeyboardInterrupt):
            train(supernet(), Toys(), SinglePath(SPACE), settings(epochs=1), 0, sink, evaluate=look)
        assert switches.allow_bf16_reduced_precision_reduction == before
    finally:
        switches.allow_bf16_reduced_precision_reduction = found
    assert during == ([False] if stop_at is None else [])
