"""Tests that need a CUDA device; skipped without one, as in CI. On a GPU machine: `pytest tests/test_on_gpu.py`."""

from __future__ import annotations

import gc
import sys
import threading
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.arch import Arch
from tailorvit.data import augment_preset
from tailorvit.data.batches import DeviceBatches, SplitReader, StreamBatches
from tailorvit.families import family
from tailorvit.families.vit import compiled as blocks
from tailorvit.families.vit.relative import Places, Tables, attend, attend_packed
from tailorvit.rng import seed_everything
from tailorvit.train import Evaluator, Fixed, Sandwich, SinglePath, Teacher, TrainSettings, train
from tailorvit.train.compiled import compiled
from tailorvit.train.graphs import GraphSteps, NotRecorded, Recorder
from tailorvit.train.loop import Trainer
from tailorvit.train.optim import float32_sums, make_optimizer, soft_cross_entropy

sys.path.insert(0, str(Path(__file__).parent / "train"))
from recorded_networks import CATCHES, NAMES, Network, RemembersOnce, Small, network
from train_toys import Store

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
VIT = family("vit")
SPACE = VIT.spaces["vit-32px"]


class Images:
    """Learnable batches on the device."""

    def __init__(self, channels: int = 3, size: tuple[int, int] = (32, 32), batch: int = 64) -> None:
        self.channels, self.size, self.batch, self.steps_per_epoch = channels, size, batch, 6

    def iterate(self, start: int, stop: int) -> Any:
        from tailorvit.data import Batch

        for step in range(start, stop):
            rng = torch.Generator().manual_seed(step)
            y = torch.randint(0, 10, (self.batch,), generator=rng)
            x = torch.randn(self.batch, self.channels, *self.size, generator=rng) + y.view(-1, 1, 1, 1) / 5
            yield Batch(x.cuda(), y.cuda(), F.one_hot(y, 10).float().cuda())


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


@pytest.mark.parametrize(
    ("grid", "reach", "dim"), [((14, 14), 14, 64), ((8, 8), 7, 32), ((4, 4), 14, 16), ((6, 9), 10, 128)]
)
@pytest.mark.parametrize("dead", [0, 1])
def test_the_kernel_equals_the_dense_formula_and_itself(grid: tuple[int, int], reach: int, dim: int, dead: int) -> None:
    """bfloat16 against float32, then five times over: a difference between two runs would be a race."""
    torch.manual_seed(0)
    heads, tokens = 3, grid[0] * grid[1] + 1
    qkv = torch.randn(4, tokens, 3, heads, dim, device="cuda", dtype=torch.bfloat16).requires_grad_()
    tables = Tables(*(torch.randn(2 * reach + 2, dim, device="cuda").mul(0.3).requires_grad_() for _ in range(4)))
    places = Places(grid, reach, dim).cuda()
    exact = qkv.detach().float().requires_grad_()
    q, k, v = exact.permute(2, 0, 3, 1, 4).unbind(0)
    alive = torch.ones(heads, dim, device="cuda")
    alive[heads - dead :] = 0
    alive = alive.flatten()
    wanted = attend(q, k, v, tables, places, dim**-0.5, "dense").transpose(1, 2).flatten(2) * alive
    pull = torch.randn_like(wanted) * alive  # a head that is not read gets no gradient either
    slopes = torch.autograd.grad(wanted, [exact, *tables], pull)
    runs = []
    for _ in range(5):
        out = attend_packed(qkv, tables, places, dim**-0.5, "kernel", alive if dead else None)
        runs.append([out, *torch.autograd.grad(out, [qkv, *tables], pull.bfloat16())])
    for found, right in zip(runs[0], [wanted, *slopes], strict=True):
        assert relative(found, right) < 1e-2
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0], strict=True))


@pytest.mark.parametrize("half", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("switched", [False, True])
def test_weights_cut_in_one_launch_are_those_cut_one_by_one(
    half: torch.dtype, switched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit; recorded too, where a replay must read the current weights and masks."""
    torch.manual_seed(0)
    every = slice(None)
    cases = [
        ((112,), (slice(100),)),
        ((3, 4, 32, 112), (every, slice(3), every, slice(100))),
        ((3, 4, 32), (every, slice(3))),
        ((112, 128), (slice(100), slice(96))),
        ((448, 112), (slice(400), slice(100))),
        ((112, 448), (slice(100), slice(400))),
        ((30, 32), ()),
    ]
    weights = [torch.randn(s, device="cuda") for s, _ in cases]
    boxes, dtypes = [b for _, b in cases], [torch.float32, *[half] * 6]
    masks: list[Tensor | None] = [None] * 7
    if switched:
        masks[3], masks[5] = ((torch.arange(n, device="cuda") < m).float() for n, m in ((96, 64), (400, 333)))
    ends: dict[bool, list[Tensor]] = {}

    def work(fused: bool) -> None:
        monkeypatch.setattr(blocks, "FUSED_CUT", fused)
        # New leaves: autograd remembers on which stream a leaf was first used, and a recording has another.
        whole = [w.detach().requires_grad_() for w in weights]
        out = blocks.Cut.apply(boxes, dtypes, masks, *whole)
        assert (out[0].grad_fn.layout is not None) == fused
        pulls = [o.detach().sin() for o in out]
        ends[fused] = [*out, *torch.autograd.grad(out, whole, pulls)]

    def equal() -> bool:
        pairs = zip(ends[True], ends[False], strict=True)
        return all(a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in pairs)

    work(False)
    work(True)
    assert equal()
    recorder = Recorder(torch.device("cuda"))
    recorder.record("cut", lambda: work(True))
    with torch.no_grad():
        for w in weights:
            w.copy_(torch.randn_like(w))
        for mask in masks:
            if mask is not None:
                mask.copy_(mask.flip(0))
    recorder.replay("cut")
    work(False)
    assert equal()


def trained(model: nn.Module, rule: Any, images: Any, sink: Any = None, **ways: Any) -> dict[str, Tensor]:
    settings = TrainSettings(epochs=3, batch=64, warmup=1, **ways)
    train(model, images, rule, settings, 0, sink, device="cuda")
    return {n: p.detach().float().cpu() for n, p in model.named_parameters()}


def fresh(kind: str) -> tuple[nn.Module, Any]:
    seed_everything(0, "init")
    if kind == "supernet":
        return VIT.supernet(SPACE, 0.1), SinglePath(SPACE)
    return VIT.build(VIT.settings(dict(SPACE.settings)), SPACE.largest(), 0.1), Fixed()


@pytest.mark.parametrize("kind", ["supernet", "plain"])
def test_recorded_steps_learn_as_eager_ones_do(kind: str) -> None:
    """In float32 without drop path, whose random draws a recording orders differently."""
    ends = []
    for graphs in (False, True):
        model, rule = fresh(kind)
        for block in model.blocks:  # type: ignore[union-attr]
            if hasattr(block, "rate"):
                block.rate = 0.0
            else:
                block.drop_path.rate = 0.0
        trained(model, rule, Images(), graphs=graphs)
        x = next(Images().iterate(99, 100)).x
        with torch.no_grad():
            ends.append(model.eval()(x))
    assert relative(ends[1], ends[0]) < 2e-2


def recorded_gradients(model: nn.Module, batch: Any, arch: Arch | None, compile: bool) -> dict[str, Tensor]:
    """Of one recorded step in bfloat16, after a replay."""
    settings = TrainSettings(precision="bf16", clip=0, batch=len(batch.y))
    call = compiled(model) if compile else model
    steps = GraphSteps(model, call, make_optimizer(model, settings), settings, "cuda")
    steps.prepare((batch.x, batch.y, batch.target), (arch,))
    if arch is not None:
        steps.switches[0].copy_(model.switches(arch))  # type: ignore[operator]
    steps.recorder.replay(steps._key(0, arch))
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    return {n: g.detach().clone() for n, g in zip(names, steps.gradients, strict=True)}


def close(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """All gradients as one vector within 2 %; each parameter within a tenth of its norm or of a typical one."""
    vectors = [torch.cat([g[n].flatten() for n in wanted]) for g in (found, wanted)]
    assert relative(*vectors) < 2e-2
    typical = float(vectors[1].norm()) / len(vectors[1]) ** 0.5
    for name, right in wanted.items():
        scale = max(float(right.norm()), typical * right.numel() ** 0.5)
        assert float((found[name] - right).norm()) < 0.1 * scale, name


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize(("embed", "heads"), [(72, 4), (72, 3), (144, 4), (100, 3)])
def test_gradients_of_a_plain_network_in_16_bits_are_those_of_float32(embed: int, heads: int, compile: bool) -> None:
    """At a large batch, since libraries choose their kernels by the shape."""
    torch.manual_seed(0)
    arch = Arch("vit", depth=3, embed=embed, heads=[heads] * 3, mlp=[3.0] * 3)
    model = (
        VIT.build(VIT.settings({**dict(SPACE.settings), "head_dim": 32, "reach": 7, "patch": 4}), arch).cuda().train()
    )
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.05)
    batch = next(Images(batch=512).iterate(0, 1))
    twin = deepcopy(model)  # a recording must be the first to use a leaf: gradients flow on the stream of that use
    loss = soft_cross_entropy(twin(batch.x), batch.target)
    named = dict(twin.named_parameters())
    wanted = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    close(recorded_gradients(model, batch, None, compile), wanted)


@pytest.mark.parametrize("qkv", ["aligned", "official"])
@pytest.mark.parametrize("compile", [False, True])
def test_gradients_of_a_supernet_in_16_bits_are_those_of_float32_slices(compile: bool, qkv: str) -> None:
    torch.manual_seed(0)
    model = VIT.supernet(SPACE.with_settings(qkv=qkv)).cuda().train()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.05)
    batch = next(Images(batch=256).iterate(0, 1))
    twin = deepcopy(model)  # as above
    named = dict(twin.named_parameters())
    rng = np.random.default_rng(0)
    for arch in (SPACE.largest(), SPACE.smallest(), SPACE.sample(rng)):
        loss = soft_cross_entropy(twin(batch.x, arch), batch.target)
        grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        wanted = {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), grads, strict=True)}
        found = recorded_gradients(model, batch, arch, compile)
        close(found, wanted)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["supernet", "plain"])
def test_a_killed_training_resumes_to_the_same_weights(kind: str, precision: str) -> None:
    """To the bit, recorded, with drop path: the random draws of a step depend on (seed, step)."""
    whole = trained(*fresh(kind), Images(), Store(), precision=precision)
    model, rule = fresh(kind)
    store = Store(stop_at=12)
    settings = {"precision": precision, "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        trained(model, rule, Images(), store, **settings)
    resumed = trained(*fresh(kind), Images(), Store(store.checkpoint), **settings)
    assert all(torch.equal(resumed[n], t) for n, t in whole.items())


@pytest.mark.parametrize("name", ["pit", "swin", "windowed", "shunted", "hybrid", "vit"])
def test_every_family_trains_and_evaluates(name: str) -> None:
    entry = family(name)
    space = entry.shrink(next(iter(entry.spaces.values())))
    shared = entry.settings(dict(space.settings))
    images = Images(shared.channels, shared.image_size, 16)
    model = entry.supernet(space)
    trained(model, SinglePath(space), images, precision="bf16")
    batch = next(images.iterate(0, 1))
    rng = np.random.default_rng(0)
    archs = list({space.sample(rng) for _ in range(4)})
    figures = Evaluator(model, [(batch.x, batch.y)], "cuda", bf16=True)(archs)
    assert all(0 <= f <= 100 for f in figures)
    plain = entry.build(shared, space.largest())
    ends = trained(plain, Fixed(), images, precision="bf16")
    assert all(torch.isfinite(t).all() for t in ends.values())


# -- plain networks of every kind, recorded ---------------------------------------------------------------------------


class Ten:
    """Ten batches for a network, on the device; those of the steps in ``bad`` are not finite."""

    steps_per_epoch = 10

    def __init__(self, net: Network, bad: tuple[int, ...] = ()) -> None:
        self.net, self.bad = net, bad

    def iterate(self, start: int, stop: int) -> Any:
        for step in range(start, stop):
            batch = self.net.batch(step, 64, "cuda")
            yield batch._replace(x=batch.x * float("inf")) if step in self.bad else batch


def ten_steps(
    net: Network, bad: tuple[int, ...] = (), rule: Any = None, teacher: Teacher | None = None, **ways: Any
) -> tuple[Trainer, Store]:
    """A training of ten steps at a constant rate, after which the network is in evaluation mode."""
    sink = Store()
    settings = TrainSettings(epochs=1, batch=64, lr=2**-10, warmup=0.0, schedule="constant", **ways)
    with float32_sums():
        trainer = Trainer(net.model, Ten(net, bad), rule or Fixed(), settings, 0, sink, device="cuda", teacher=teacher)
        trainer.run()
    return trainer, sink


@torch.no_grad()
def answers(net: Network) -> Tensor:
    return net.model.cuda().eval()(net.batch(99, 64, "cuda").x)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_a_network_of_any_kind_is_recorded_and_learns_the_same(name: str, precision: str) -> None:
    """Without drop path, as above. With noise of 1 % on all gradients the answers differ by up to 0.8 %."""
    ends, statistics = [], []
    for graphs in (False, True):
        net = network(name)
        start = answers(net)
        trainer, sink = ten_steps(net, graphs=graphs, precision=precision)
        assert sink.events == []
        assert (trainer.graphs is not None) == graphs  # it was recorded, and stayed so
        ends.append(answers(net))
        statistics.append({n: t.clone() for n, t in net.model.state_dict().items() if "running" in n or "tracked" in n})
    assert relative(ends[0], start) > 0.5  # it has learnt something
    assert relative(ends[1], ends[0]) < (2e-2 if precision == "fp32" else 3e-2)
    for key, tensor in statistics[0].items():
        assert relative(statistics[1][key], tensor) < 3e-2, key
        assert not key.endswith("tracked") or int(statistics[1][key]) == 10


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("teaching", [{"share": 0.9}, {"temperature": 2.0}, {"features": 1.0}], ids=str)
@pytest.mark.parametrize("name", ["tailored", "tailored-swin"])
def test_a_teacher_is_recorded_and_teaches_the_same(name: str, teaching: Any, precision: str, compile: bool) -> None:
    """Its answers are of this step's images, not of those it was recorded with."""
    ends = []
    for graphs in (False, True):
        net, other = network(name), network(name).model
        with torch.no_grad():
            for p in other.parameters():
                p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
        start, teacher = answers(net), Teacher(other, **teaching)
        trainer, sink = ten_steps(net, teacher=teacher, graphs=graphs, precision=precision, compile=compile)
        assert sink.events == [] and (trainer.graphs is not None) == graphs
        ends.append(answers(net))
    assert relative(ends[0], start) > 0.2
    assert relative(ends[1], ends[0]) < 3e-2


def test_a_teacher_is_recorded_for_a_sandwich() -> None:
    ends, space = [], VIT.spaces["vit-8px"]
    for graphs in (False, True):
        seed_everything(1, "init")
        shared = VIT.settings(dict(space.settings))
        teacher = Teacher(VIT.build(shared, space.largest()), share=0.9)
        net = Network(VIT.supernet(space), (shared.channels, *shared.image_size))
        trainer, sink = ten_steps(net, rule=Sandwich(space), teacher=teacher, graphs=graphs)
        assert sink.events == [] and (trainer.graphs is not None) == graphs
        ends.append(answers(net))
    assert relative(ends[1], ends[0]) < 3e-2


@pytest.mark.parametrize("name", ["shunted", "hybrid", "mobilevit_xxs"])
def test_batch_norms_forget_a_recorded_step_that_is_not_finite(name: str) -> None:
    ends = []
    for graphs in (False, True):
        net = network(name)
        trainer, sink = ten_steps(net, bad=(3, 4), graphs=graphs)
        assert [kind for kind, _ in sink.events] == ["skip", "skip"]
        assert (trainer.graphs is not None) == graphs
        ends.append(answers(net))
        state = net.model.state_dict()
        assert all(torch.isfinite(t).all() for t in state.values())
        assert {int(t) for n, t in state.items() if n.endswith("tracked")} == {8}
    assert relative(ends[1], ends[0]) < 2e-2


# EdgeNeXt's branches begin with a factor of a millionth: dropping one changes nothing yet.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "edgenext_xx_small"])
def test_a_recorded_network_drops_paths_by_seed_and_step(name: str) -> None:
    """At a rate of zero only the draws can change a loss: they belong to the seed, not to the recording."""
    net, settings = network(name, 0.5), TrainSettings()
    model = net.model.cuda().train()
    steps = GraphSteps(model, model, make_optimizer(model, settings), settings, "cuda")
    losses = []
    for step in (0, 1, 2, 0):
        batch = net.batch(0, 64, "cuda")
        steps.prepare((batch.x, batch.y, batch.target), (None,))
        seed_everything(0, "step", step)
        losses.append(steps.step((None,), 0.0).read()[0])
    assert losses[3] == pytest.approx(losses[0], rel=1e-4)
    assert len({round(loss / losses[0], 4) for loss in losses}) > 1


class WaitsUnseen(Small):
    """Waits for the device in a way that no rehearsal sees: the recording itself fails."""

    def catch(self, x: Tensor) -> Tensor:
        x = F.dropout(x, 0.2, self.training)
        torch.cuda.synchronize()
        return x


class Drops(Small):
    def catch(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.2, self.training)


def small(kind: type[Small]) -> Network:
    """Of one channel and ten classes."""
    model = kind()
    model.fc = nn.Linear(8, 10)
    nn.init.constant_(model.fc.bias, 0.0)
    with torch.no_grad():
        model.fc.weight.copy_(torch.linspace(-0.5, 0.5, 80).view(10, 8))
    return Network(model, (1, 8, 8))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", [*CATCHES, WaitsUnseen])
def test_what_cannot_be_recorded_runs_eagerly(kind: type[Small], precision: str) -> None:
    """And leaves torch as it was: streams, random draws, memory, and the next recording."""
    ends = []
    for graphs in (False, True):
        net = small(kind)
        trainer, sink = ten_steps(net, graphs=graphs, precision=precision)
        assert trainer.graphs is None
        assert [event for event, _ in sink.events] == (["graphs"] if graphs else [])
        ends.append(answers(net))
    assert relative(ends[1], ends[0]) < 2e-2
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.manual_seed(3)
    first = torch.rand(5, device="cuda")
    torch.manual_seed(3)
    assert torch.equal(torch.rand(5, device="cuda"), first)
    for follower in (Drops, RemembersOnce):
        trainer, sink = ten_steps(small(follower), precision=precision)
        assert trainer.graphs is not None and sink.events == []
    torch.cuda.empty_cache()


def test_a_failed_recording_gives_its_memory_back() -> None:
    device = torch.device("cuda")

    def work() -> None:
        torch.randn(1 << 26, device="cuda").sin().sum()
        torch.cuda.synchronize()

    def reserved() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    before = reserved()
    for _ in range(3):
        with pytest.raises(NotRecorded):
            Recorder(device).record("work", work)
    assert reserved() - before < 1 << 28  # one of them takes as much


def test_a_compiled_network_is_recorded_too() -> None:
    ends = []
    for compile in (False, True):
        net = network("shunted")
        trainer, sink = ten_steps(net, compile=compile)
        assert trainer.graphs is not None and sink.events == []
        ends.append(answers(net))
    assert relative(ends[1], ends[0]) < 2e-2


def test_compiled_blocks_learn_the_same() -> None:
    ends = []
    for compile in (False, True):
        model, rule = fresh("supernet")
        for block in model.blocks:  # type: ignore[union-attr]
            block.rate = 0.0
        trained(model, rule, Images(), compile=compile)
        with torch.no_grad():
            ends.append(model.eval()(next(Images().iterate(99, 100)).x))
    assert relative(ends[1], ends[0]) < 2e-2


@pytest.mark.parametrize("preset", ["mild", "standard"])
def test_batches_made_several_at_once_are_those_made_one_by_one(preset: str) -> None:
    """To the bit, with resized crops, RandAugment, erasing and mixing: a resumed run joins other steps."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (600, 3, 72, 72), dtype=np.uint8))
    labels = (np.arange(600) % 10).astype(np.int64)
    source = SplitReader(lambda at: images[torch.from_numpy(at)], labels, 10, (64, 64), (0.5,) * 3, (0.25,) * 3, {})
    augment = augment_preset(preset, 64, "photos")
    kept = DeviceBatches(source, 64, 0, augment, images.cuda())
    streamed = StreamBatches(source, 64, 0, augment, (3, 72, 72), torch.device("cuda"))
    for batches in (kept, streamed):
        assert batches.at_once > 1
        for step, batch in enumerate(batches.iterate(3, 14, workers=0), 3):
            alone = kept.at(step)
            for one, other in ((batch.x, alone.x), (batch.y, alone.y), (batch.target, alone.target)):
                assert torch.equal(one, other)


def test_a_thread_that_pins_memory_does_not_break_a_recording() -> None:
    stop = threading.Event()

    def pin() -> None:
        while not stop.is_set():
            torch.empty(int(torch.randint(1, 1 << 22, ())), dtype=torch.uint8, pin_memory=True)

    beside = threading.Thread(target=pin)
    beside.start()
    try:
        model, rule = fresh("supernet")
        ends = trained(model, rule, Images(), precision="bf16")
    finally:
        stop.set()
        beside.join()
    assert all(torch.isfinite(t).all() for t in ends.values())
