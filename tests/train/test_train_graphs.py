"""Recorded steps equal eager ones (on a CPU a recording is the work itself), and the buffers they use."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from train_toys import SPACE as TOY_SPACE
from train_toys import BadOnce, Store, Toys, trainer
from train_toys import plain as toy_plain
from train_toys import settings as toy_settings
from train_toys import supernet as toy_supernet

from tailorvit.families import family, with_settings
from tailorvit.families.vit.compiled import compiled_block
from tailorvit.rng import seed_everything
from tailorvit.train import Fixed, train
from tailorvit.train import loop as loop_module
from tailorvit.train.graphs import ALIGN, FlatBuffer, GraphCalls, GraphSteps, HalfWeights, can_record
from tailorvit.train.optim import make_optimizer
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
    shared = VIT.settings(dict(SPACE.settings))
    return Batch(torch.randn(size, shared.channels, *shared.image_size, generator=rng), y, F.one_hot(y, 10).float())


def network(kind: str) -> nn.Module:
    seed_everything(0, "init")
    if kind == "plain":
        return VIT.build(VIT.settings(dict(SPACE.settings)), SPACE.largest())
    return VIT.supernet(SPACE)


def both(kind: str, settings: TrainSettings, archs: Any, steps: int = 4, bad: int | None = None) -> tuple[Any, Any]:
    """(weights, figures) after eager steps and after recorded ones."""
    out = []
    for recorded in (False, True):
        model = network(kind).train()
        eager, figures = trainer(model, settings), []
        graphs = GraphSteps(model, model, eager.state.optimizer, settings, "cpu") if recorded else None
        for step in range(steps):
            now, chosen = batch(step), archs(step)
            if step == bad:
                now = now._replace(x=now.x * float("nan"))
            if graphs is None:
                figures.append(eager.eager_step(now, chosen, 1e-3))
            else:
                graphs.prepare(now, chosen)
                loss, correct, norm = graphs.step(chosen, 1e-3).read()
                finite = np.isfinite(loss) and np.isfinite(norm)
                figures.append((loss, int(correct) // len(chosen)) if finite else (None, 0))
        out.append((dict(model.named_parameters()), figures))
    return out[0], out[1]


def close(first: Any, second: Any, tolerance: float = 2e-5) -> None:
    for name, tensor in first[0].items():
        torch.testing.assert_close(second[0][name], tensor, rtol=tolerance, atol=tolerance)
    for (a, hits), (b, also) in zip(first[1], second[1], strict=True):
        assert hits == also
        assert (a is None) == (b is None)
        assert a is None or a == pytest.approx(b, rel=1e-4)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_plain_network_learns_the_same(clip: float) -> None:
    close(*both("plain", TrainSettings(clip=clip), lambda _: (None,)))


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
    first, second = both("supernet", TrainSettings(), lambda step: rule.archs_at(3, step), bad=2)
    assert second[1][2] == (None, 0)
    assert all(torch.isfinite(t).all() for t in second[0].values())
    close(first, second)


def test_sixteen_bit_weights_give_the_gradients_autocast_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # its bf16 dies on some virtual machines
    close(*both("plain", TrainSettings(precision="bf16", clip=0), lambda _: (None,), steps=2), tolerance=1e-5)


def test_architectures_of_a_group_give_the_outputs_of_slices() -> None:
    model, rng = network("supernet").eval(), np.random.default_rng(1)
    call, x = GraphCalls(model, bf16=False), batch().x
    for arch in (SPACE.largest(), SPACE.smallest(), *(SPACE.sample(rng) for _ in range(6))):
        torch.testing.assert_close(call(x, arch), model(x, arch), rtol=1e-5, atol=1e-5)
    assert len(call.recorder.graphs) <= 9  # widths by depths, not one for each architecture


@pytest.mark.parametrize("qkv", ["aligned", "official"])
@pytest.mark.parametrize("blocks", ["their own", "compiled"])
def test_architectures_of_a_group_have_the_gradients_of_slices(
    monkeypatch: pytest.MonkeyPatch, qkv: str, blocks: str
) -> None:
    """With biases that are not zero, since the released layout cuts them by the heads in use."""
    monkeypatch.setattr(torch, "compile", lambda work, **_: work)
    space = with_settings(SPACE, qkv=qkv)
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

    def recorded(model: nn.Module, device: str = "cuda", **changes: Any) -> bool:
        settings = TrainSettings(**changes)
        return can_record(model, settings, make_optimizer(model, settings), device)

    assert recorded(model)
    assert not recorded(model, "cpu")
    for name, value in {"graphs": False, "freeze": "slice", "optimizer": "sgd"}.items():
        assert not recorded(model, **{name: value})
    assert recorded(network("plain"))
    assert recorded(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))  # whatever it is, it is tried
    swin = family("swin")
    assert not recorded(swin.supernet(swin.shrink(next(iter(swin.spaces.values())))))  # other shapes in every step


def fitted(monkeypatch: pytest.MonkeyPatch, recorded: bool, kind: str = "supernet", toys: Any = None) -> Any:
    """A whole training with eager or with recorded steps: (logits, how it went, its sink)."""
    monkeypatch.setattr(loop_module, "can_record", lambda *_: recorded)
    monkeypatch.setattr(loop_module, "PATIENCE", 2)
    model, sink = (toy_supernet() if kind == "supernet" else toy_plain()), Store()
    rule = SinglePath(TOY_SPACE) if kind == "supernet" else Fixed()
    done = train(model, toys or Toys(), rule, toy_settings(epochs=4), 0, sink)
    with torch.no_grad():
        return model(Toys().at(99).x), done, sink


@pytest.mark.parametrize("kind", ["supernet", "plain"])
def test_the_loop_reports_the_same_of_recorded_steps(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Figures come one step late, but every step is reported and every epoch ends with all of its own."""
    (first, done, sink), (second, also, late) = (fitted(monkeypatch, r, kind) for r in (False, True))
    torch.testing.assert_close(second, first, rtol=1e-2, atol=1e-3)
    assert (also.steps, also.skipped, also.rollbacks) == (done.steps, 0, 0)
    assert [e for e, _ in late.epochs] == [e for e, _ in sink.epochs] == [1, 2, 3, 4]
    assert [s for s, _ in late.steps] == [s for s, _ in sink.steps]
    for (_, facts), (_, other) in zip(sink.epochs, late.epochs, strict=True):
        assert other["loss"] == pytest.approx(facts["loss"], rel=1e-3)
        assert other["accuracy"] == pytest.approx(facts["accuracy"])


def test_steps_that_are_not_finite_are_skipped_and_rolled_back_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bad step is skipped; two in a row return to the last good epoch, a step later than eager ones do."""
    (_, done, _), (second, also, late) = (fitted(monkeypatch, r, toys=Toys(bad=(2,))) for r in (False, True))
    assert (also.skipped, also.rollbacks) == (done.skipped, done.rollbacks) == (1, 0)
    assert torch.isfinite(second).all()
    assert [kind for kind, _ in late.events] == ["skip"]
    logits, also, late = fitted(monkeypatch, True, toys=BadOnce(bad={5, 6}))
    assert also.rollbacks == 1 and also.steps == 16
    assert torch.isfinite(logits).all()
    assert [kind for kind, _ in late.events] == ["skip", "skip", "rollback"]


# -- many small tensors in one buffer ---------------------------------------------------------------------------------

SHAPES = [(3, 5), (ALIGN,), (), (2, 1, 7), (130,)]


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16])
def test_parts_hold_the_tensors_cast_and_begin_at_round_places(source: torch.dtype, target: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(shape).to(source) for shape in SHAPES]
    buffer = FlatBuffer(tensors, target)
    buffer.fill([t.t() if t.dim() == 2 else t for t in [tensors[0].t().contiguous(), *tensors[1:]]])  # not contiguous
    for part, tensor in zip(buffer.parts, tensors, strict=True):
        assert part.dtype == target and part.shape == tensor.shape and part.is_contiguous()
        assert torch.equal(part, tensor.to(target))
        assert part.storage_offset() % ALIGN == 0 and part._base is None
    rest = torch.ones(len(buffer.whole), dtype=torch.bool)
    for part in buffer.parts:
        rest[part.storage_offset() : part.storage_offset() + part.numel()] = False
    assert not buffer.whole[rest].any()  # between the parts nothing is left behind


def test_writing_to_a_part_writes_to_the_buffer() -> None:
    buffer = FlatBuffer([torch.zeros(3), torch.zeros(2)], torch.float32)
    buffer.parts[1].fill_(7)
    assert buffer.whole.sum() == 14 and buffer.whole[ALIGN] == 7


def test_no_tensors_make_an_empty_buffer() -> None:
    buffer = FlatBuffer([], torch.float32)
    buffer.fill([])
    assert buffer.whole.numel() == 0 and buffer.parts == []


def test_copies_follow_weights_and_gradients_come_back_in_the_networks_order() -> None:
    vit = family("vit")
    space = vit.spaces["vit-8px"]
    model = vit.build(vit.settings(dict(space.settings)), space.smallest())
    half = HalfWeights(model)
    named = dict(model.named_parameters())
    assert "blocks.0.mlp.fc1.weight" in half.copies and "blocks.0.norm1.weight" not in half.copies
    with torch.no_grad():
        named["blocks.0.mlp.fc1.weight"].fill_(1.0039)  # no 16-bit number
    half.refresh()
    for name, copy in half.copies.items():
        assert torch.equal(copy, named[name].bfloat16())
    found: list[torch.Tensor | None] = [torch.full_like(u, k % 7 + 1) for k, u in enumerate(half.leaves)]
    found[0] = None
    half.set_gradients(found)
    by_name = dict(zip(half.order, found, strict=True))
    for (name, parameter), mine in zip(named.items(), half.gradients, strict=True):
        given = by_name[name]
        wanted = torch.zeros_like(parameter) if given is None else given.float()
        assert mine.dtype == torch.float32 and torch.equal(mine, wanted)
