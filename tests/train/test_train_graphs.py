"""Recorded steps do what the loop's own steps do; on a CPU the recordings are the work itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from train_toys import SPACE as TOY_SPACE
from train_toys import Store, Toys
from train_toys import plain as toy_plain
from train_toys import settings as toy_settings
from train_toys import supernet as toy_supernet

from tailorvit.families import family, with_fixed
from tailorvit.families.vit.compiled import compiled_block
from tailorvit.rng import seed_everything
from tailorvit.train import Fixed, train
from tailorvit.train import loop as loop_module
from tailorvit.train.graphs import GraphCalls, GraphSteps, can_replay
from tailorvit.train.loop import _State, _step
from tailorvit.train.rules import Sandwich, SinglePath
from tailorvit.train.settings import TrainSettings

VIT = family("vit")
SPACE = VIT.spaces["vit-8px"]


class Batch(NamedTuple):
    x: Tensor
    y: Tensor
    target: Tensor


def batch(seed: int = 0, size: int = 6) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (size,), generator=rng)
    frame = VIT.frame(dict(SPACE.fixed))
    return Batch(torch.randn(size, frame.channels, *frame.image_size, generator=rng), y, F.one_hot(y, 10).float())


def network(kind: str) -> nn.Module:
    seed_everything(0, "init")
    if kind == "plain":
        return VIT.build(VIT.frame(dict(SPACE.fixed)), SPACE.largest())
    return VIT.supernet(SPACE)


def both(kind: str, settings: TrainSettings, archs: Any, steps: int = 4, bad: int | None = None) -> tuple[Any, Any]:
    """(weights, averages, figures) after the loop's steps and after recorded ones."""
    out = []
    for recorded in (False, True):
        model = network(kind).train()
        state, figures = _State(model, settings), []
        graphs = GraphSteps(model, model, state.optimizer, state.ema, settings, "cpu") if recorded else None
        for step in range(steps):
            now, drawn = batch(step), archs(step)
            if step == bad:
                now = now._replace(x=now.x * float("nan"))
            if graphs is None:
                figures.append(_step(model, model, now, drawn, state, settings, 1e-3, "cpu"))
            else:
                graphs.prepare(now, drawn)
                loss, correct, norm = graphs.step(drawn, 1e-3).read()
                fine = np.isfinite(loss) and np.isfinite(norm)
                figures.append((loss, int(correct) // len(drawn)) if fine else (None, 0))
        out.append((dict(model.named_parameters()), state.ema, figures))
    return out[0], out[1]


def close(first: Any, second: Any, tolerance: float = 2e-5) -> None:
    for name, tensor in first[0].items():
        torch.testing.assert_close(second[0][name], tensor, rtol=tolerance, atol=tolerance)
    for name, tensor in (first[1] or {}).items():
        torch.testing.assert_close(second[1][name], tensor, rtol=tolerance, atol=tolerance)
    for (a, hits), (b, also) in zip(first[2], second[2], strict=True):
        assert hits == also
        assert (a is None) == (b is None)
        assert a is None or a == pytest.approx(b, rel=1e-4)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_plain_network_learns_the_same(clip: float) -> None:
    close(*both("plain", TrainSettings(clip=clip, ema=0.9), lambda _: (None,)))


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_supernet_learns_the_same(clip: float) -> None:
    rule = SinglePath(SPACE)
    close(*both("supernet", TrainSettings(clip=clip), lambda step: rule.archs_at(3, step)))


@pytest.mark.parametrize("distill", [False, True])
def test_a_sandwich_learns_the_same(distill: bool) -> None:
    rule, settings = Sandwich(SPACE), TrainSettings(rule="sandwich", distill=distill)
    close(*both("supernet", settings, lambda step: rule.archs_at(3, step), steps=3))


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    rule = SinglePath(SPACE)
    first, second = both("supernet", TrainSettings(ema=0.9), lambda step: rule.archs_at(3, step), bad=2)
    assert second[2][2] == (None, 0)
    assert all(torch.isfinite(t).all() for t in second[0].values())
    close(first, second)


def test_sixteen_bit_weights_give_the_gradients_autocast_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # its bf16 dies on some virtual machines
    close(*both("plain", TrainSettings(precision="bf16", clip=0), lambda _: (None,), steps=2), tolerance=1e-5)


def test_members_of_a_group_answer_as_they_do_sliced() -> None:
    model, rng = network("supernet").eval(), np.random.default_rng(1)
    call, x = GraphCalls(model, bf16=False), batch().x
    for arch in (SPACE.largest(), SPACE.smallest(), *(SPACE.sample(rng) for _ in range(6))):
        torch.testing.assert_close(call(x, arch), model(x, arch), rtol=1e-5, atol=1e-5)
    assert len(call.recorder.graphs) <= 9  # widths by depths, not one for each architecture


@pytest.mark.parametrize("qkv", ["aligned", "official"])
@pytest.mark.parametrize("blocks", ["their own", "compiled"])
def test_members_of_a_group_learn_as_they_do_sliced(monkeypatch: pytest.MonkeyPatch, qkv: str, blocks: str) -> None:
    """With biases that are not zero, as they are at first: the released layout cuts them by the heads in use."""
    monkeypatch.setattr(torch, "compile", lambda work, **_: work)
    space = with_fixed(SPACE, qkv=qkv)
    seed_everything(0, "init")
    model = VIT.supernet(space).train()
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    shared, now, rng = compiled_block(False) if blocks == "compiled" else None, batch(), np.random.default_rng(2)
    for arch in (space.smallest(), *(space.sample(rng) for _ in range(3))):
        found = []
        for grouped in (False, True):
            for block in model.blocks:  # type: ignore[union-attr]
                block.compiled = shared if grouped else None
            logits = model.grouped(now.x, model.group(arch), model.switches(arch)) if grouped else model(now.x, arch)
            grads = torch.autograd.grad(F.cross_entropy(logits, now.y), [*model.parameters()], allow_unused=True)
            found.append([logits, *(torch.zeros(1) if g is None else g for g in grads)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one.expand_as(other), other.expand_as(one), rtol=1e-4, atol=1e-6)


def test_what_cannot_be_recorded_is_not() -> None:
    model = network("supernet")

    def asked(device: str = "cuda", batch_norms: bool = False, **changes: Any) -> bool:
        settings = TrainSettings(**changes)
        return can_replay(model, settings, _State(model, settings).optimizer, device, batch_norms)

    assert asked()
    assert not asked("cpu")
    assert not asked(batch_norms=True)
    for name, value in {"graphs": False, "freeze": "slice", "optimizer": "sgd"}.items():
        assert not asked(**{name: value})
    assert can_replay(network("plain"), TrainSettings(), _State(model, TrainSettings()).optimizer, "cuda", False)
    swin = family("swin")
    other = swin.supernet(swin.shrink(next(iter(swin.spaces.values()))))
    assert not can_replay(other, TrainSettings(), _State(other, TrainSettings()).optimizer, "cuda", False)


def fitted(monkeypatch: pytest.MonkeyPatch, recorded: bool, kind: str = "supernet", **toys: Any) -> Any:
    """A whole training with the loop's steps or with recorded ones: (answers, what came of it, its sink)."""
    monkeypatch.setattr(loop_module, "can_replay", lambda *_: recorded)
    model, sink = (toy_supernet() if kind == "supernet" else toy_plain()), Store()
    rule = SinglePath(TOY_SPACE) if kind == "supernet" else Fixed()
    done = train(model, Toys(**toys), rule, toy_settings(epochs=4, patience=2), 0, sink)
    with torch.no_grad():
        return model(Toys().at(99).x), done, sink


@pytest.mark.parametrize("kind", ["supernet", "plain"])
def test_the_loop_tells_the_same_of_recorded_steps(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Figures come one step late, but every step is told and every epoch ends with all of its own."""
    (first, done, sink), (second, also, late) = (fitted(monkeypatch, r, kind) for r in (False, True))
    torch.testing.assert_close(second, first, rtol=1e-2, atol=1e-3)
    assert (also.steps, also.skipped, also.rollbacks) == (done.steps, 0, 0)
    assert [e for e, _ in late.epochs] == [e for e, _ in sink.epochs] == [1, 2, 3, 4]
    assert [s for s, _ in late.steps] == [s for s, _ in sink.steps]
    for (_, facts), (_, told) in zip(sink.epochs, late.epochs, strict=True):
        assert told["loss"] == pytest.approx(facts["loss"], rel=1e-3)
        assert told["accuracy"] == pytest.approx(facts["accuracy"])


def test_steps_that_are_not_finite_are_skipped_and_rolled_back_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bad step is skipped; two in a row return to the last good epoch with half the rate, a step later here."""
    (_, done, _), (second, also, late) = (fitted(monkeypatch, r, bad=(2,)) for r in (False, True))
    assert (also.skipped, also.rollbacks) == (done.skipped, done.rollbacks) == (1, 0)
    assert torch.isfinite(second).all()
    assert [kind for kind, _ in late.events] == ["skip"]
    monkeypatch.setattr(Toys, "at", once_bad(Toys.at, {5, 6}))
    answers, also, late = fitted(monkeypatch, True)
    assert also.rollbacks == 1 and also.steps == 16
    assert torch.isfinite(answers).all()
    assert [kind for kind, _ in late.events] == ["skip", "skip", "rollback"]


def once_bad(at: Any, steps: set[int]) -> Any:
    """Batches that are spoilt the first time they are asked for only, as bad hardware would."""
    left = set(steps)

    def spoilt(self: Any, step: int) -> Any:
        found = at(self, step)
        if step in left:
            left.remove(step)
            found = found._replace(x=found.x * float("nan"))
        return found

    return spoilt
