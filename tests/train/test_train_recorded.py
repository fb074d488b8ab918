"""Plain networks of every kind, recorded: the same weights as eager steps, and a way out where that cannot be.

On a CPU a recording is the work itself; rehearsals are the same as on a GPU.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from recorded_networks import CATCHES, NAMES, OURS, Network, RemembersOnce, Small, network
from torch import Tensor, nn
from train_toys import BadOnce, Store, Toys, no_onednn, settings, trainer

from tailorvit.rng import seed_everything
from tailorvit.train import Fixed, train
from tailorvit.train import loop as loop_module
from tailorvit.train.graphs import GraphSteps, HalfWeights, NotRecorded, Recorder, rehearsal
from tailorvit.train.optim import batch_statistics, make_optimizer
from tailorvit.train.settings import TrainSettings

STEPS = 5
LR = 2**-10  # the same number in 32 and in 64 bits, so that nothing is rounded differently


def state(model: nn.Module) -> dict[str, Tensor]:
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


def learnt(
    net: Network, options: TrainSettings, recorded: bool, bad: int | None = None
) -> tuple[dict[str, Tensor], list[float | None]]:
    """Weights and statistics after some steps, and their losses."""
    model, losses = net.model.train(), []
    one = trainer(model, options)
    graphs = GraphSteps(model, model, one.state.optimizer, options, "cpu") if recorded else None
    for step in range(STEPS):
        now = net.batch(step)
        if step == bad:
            now = now._replace(x=now.x * float("inf"))
        if graphs is not None:
            graphs.prepare(now, (None,))
        seed_everything(0, "step", step)
        if graphs is None:
            losses.append(one.eager_step(now, (None,), LR)[0])
        else:
            loss, _, norm = graphs.step((None,), LR).read()
            losses.append(loss if np.isfinite(loss) and np.isfinite(norm) else None)
    return state(model), losses


def same(name: str, options: TrainSettings, drop_path: float = 0.0, bad: int | None = None) -> dict[str, Tensor]:
    """Eager and recorded steps end with the same bits, which are returned."""
    with no_onednn():
        (first, losses), (second, also) = (learnt(network(name, drop_path), options, r, bad) for r in (False, True))
    start = state(network(name, drop_path).model)
    assert [a is None for a in also] == [step == bad for step in range(STEPS)]
    assert [a is None for a in losses] == [a is None for a in also]
    assert [a for a in also if a is not None] == pytest.approx([a for a in losses if a is not None], rel=1e-6)
    assert [n for n, t in first.items() if not torch.equal(second[n], t)] == []
    moved = [n for n in first if not torch.equal(first[n], start[n])]
    assert len(moved) > len(first) / 2  # or there would be nothing to compare
    return second


@pytest.mark.parametrize("drop_path", [0.0, 0.3])
@pytest.mark.parametrize("name", NAMES)
def test_every_network_learns_the_same_recorded(name: str, drop_path: float) -> None:
    same(name, TrainSettings(), drop_path)


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_early_blocks_have_their_own_rate_recorded_too(name: str) -> None:
    # A power of two, as the rate is: recorded rates are float32, eager ones are not.
    same(name, TrainSettings(layer_decay=0.5))


@pytest.mark.parametrize("drop_path", [0.0, 0.3])
@pytest.mark.parametrize("name", NAMES)
def test_every_network_learns_the_same_recorded_in_16_bits(name: str, drop_path: float) -> None:
    same(name, TrainSettings(precision="bf16", clip=0), drop_path)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["pit", "swin", "shunted", "hybrid", "mobilevit_xxs"])
def test_a_step_that_is_not_finite_changes_no_weight_and_no_statistic(name: str, precision: Any) -> None:
    """Batch norms have seen the images by then: what they remember is taken back, their count of batches too."""
    ends = same(name, TrainSettings(precision=precision), bad=2)
    counts = [int(t) for n, t in ends.items() if n.endswith("tracked")]
    assert set(counts) <= {STEPS - 1}
    assert bool(counts) == (name in ("shunted", "hybrid", "mobilevit_xxs"))


@pytest.mark.parametrize("name", ["shunted", "hybrid", "mobilevit_xxs"])
def test_recording_changes_nothing(name: str) -> None:
    net, options = network(name, 0.3), TrainSettings()
    before = state(net.model)
    graphs = GraphSteps(net.model.train(), net.model, make_optimizer(net.model, options), options, "cpu")
    graphs.prepare(net.batch(0), (None,))
    assert all(torch.equal(before[n], t) for n, t in state(net.model).items())
    graphs.step((None,), 1e-3)
    assert not any(torch.equal(before[n], t) for n, t in state(net.model).items() if "running" in n)


@pytest.mark.parametrize("name", NAMES)
def test_no_network_meets_the_host_in_a_step(name: str) -> None:
    """On a device without memory: whatever is made on the host stands out, in the forward and the backward pass."""
    net, meta = network(name, 0.1), torch.device("meta")
    model = net.model.to(meta).train()
    x = net.batch(0).x.to(meta)
    # Ours make all tensors where they belong; others may leave that to the device in use.
    with rehearsal(meta), torch.device("cpu" if name in OURS else "meta"):
        torch.autograd.grad(model(x).sum(), list(model.parameters()), allow_unused=True)


def test_a_tensor_made_on_the_host_is_noticed() -> None:
    with pytest.raises(NotRecorded, match="between cpu and meta"), rehearsal(torch.device("meta")):
        torch.zeros(2, device="cpu").to("meta")
    with rehearsal(torch.device("meta")):
        torch.zeros(2, device="meta") * torch.tensor(2.0, device="cpu")  # one number goes with the launch
        torch.zeros(2, device="cpu").sum().item()  # of no concern to the device


def test_masks_that_write_one_value_can_be_recorded() -> None:
    x = torch.randn(4, 4)
    with rehearsal(torch.device("cpu")):
        x[x > 0] = 0.0
        x[torch.tensor([0, 1])] += 1
    assert (x[2:] <= 0).all()
    with pytest.raises(NotRecorded, match="index_put"), rehearsal(torch.device("cpu")):
        x[torch.ones(4, dtype=torch.bool)] = torch.ones(4, 4)


# -- networks that cannot be recorded ---------------------------------------------------------------------------------


def fitted(monkeypatch: pytest.MonkeyPatch, model: nn.Module, recorded: bool, toys: Any = None, **ways: Any) -> Any:
    """A whole training that may record: (weights and statistics, its sink)."""
    monkeypatch.setattr(loop_module, "can_record", lambda *_: recorded)
    monkeypatch.setattr(loop_module, "PATIENCE", 2)
    sink = Store()
    with no_onednn():
        constant = {"epochs": 3, "lr": 2**-7, "warmup": 0.0, "schedule": "constant"}  # as LR above
        train(model, toys or Toys(), Fixed(), settings(**constant, **ways), 0, sink)
    return state(model), sink


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", CATCHES)
def test_what_cannot_be_recorded_runs_eagerly_as_if_never_tried(
    monkeypatch: pytest.MonkeyPatch, kind: type[Small], precision: str
) -> None:
    """To the bit: weights, moments, statistics and random draws are those of a training that records nothing."""
    (eager, _), (tried, sink) = (fitted(monkeypatch, kind(), r, precision=precision) for r in (False, True))
    assert all(torch.equal(eager[n], t) for n, t in tried.items())
    ((event, text),) = sink.events
    assert event == "graphs" and CATCHES[kind] in text and "eagerly" in text
    assert sink.checkpoint is not None
    moments = {n for n in sink.checkpoint[0] if n.startswith("optim/")}
    assert "optim/fc.weight/exp_avg" in moments


@pytest.mark.parametrize("kind", [Small, RemembersOnce])
def test_what_can_be_recorded_is(monkeypatch: pytest.MonkeyPatch, kind: type[Small]) -> None:
    replayed = []
    real = GraphSteps.step
    monkeypatch.setattr(GraphSteps, "step", lambda self, *a: replayed.append(1) or real(self, *a))
    _, sink = fitted(monkeypatch, kind(), True)
    assert sink.events == [] and len(replayed) == 12


def test_it_is_tried_once_even_after_a_roll_back(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sink = fitted(monkeypatch, next(iter(CATCHES))(), True, BadOnce(bad={5, 6}))
    assert [kind for kind, _ in sink.events] == ["graphs", "skip", "skip", "rollback"]


def test_batch_norms_roll_back_when_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [fitted(monkeypatch, Small(), r, BadOnce(bad={5, 6})) for r in (False, True)]
    for _, sink in ends:
        assert [kind for kind, _ in sink.events] == ["skip", "skip", "rollback"]
    assert all(torch.equal(ends[1][0][n], t) for n, t in ends[0][0].items())


def test_a_mistake_of_the_network_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Small):
        def catch(self, x: Tensor) -> Tensor:
            raise KeyError("no such layer")

    with pytest.raises(KeyError, match="no such layer"):
        fitted(monkeypatch, Wrong(), True)


def test_a_recording_that_fails_late_leaves_the_state_of_that_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a supernet's would for which memory runs out at its second group."""
    eager, _ = fitted(monkeypatch, Small(), False)
    real, calls = GraphSteps.prepare, []

    def prepare(self: GraphSteps, *given: Any) -> None:
        calls.append(1)
        if len(calls) == 4:
            raise NotRecorded("out of memory")
        real(self, *given)

    monkeypatch.setattr(GraphSteps, "prepare", prepare)
    mixed, sink = fitted(monkeypatch, Small(), True)
    assert all(torch.equal(mixed[n], t) for n, t in eager.items())
    assert [kind for kind, _ in sink.events] == ["graphs"] and len(sink.steps) == 12


class FakeCuda:
    """Stands in for torch.cuda: remembers what was called; a capture fails as torch's does, and leaves its stream."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.stream_in_use, self.state = "main", "capturing"
        self.default_generators = [self]

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **_: self.calls.append((name, *given))

    def current_stream(self) -> Any:
        return SimpleNamespace(name=self.stream_in_use, wait_stream=lambda _: None)

    def Stream(self) -> Any:
        return SimpleNamespace(name="side", wait_stream=lambda _: None)

    def stream(self, _: Any) -> Any:
        return nullcontext()

    def graph_pool_handle(self) -> tuple[int, int]:
        return (0, 7)

    def current_device(self) -> int:
        return 0

    def set_stream(self, stream: Any) -> None:
        self.stream_in_use = stream.name

    def clone_state(self) -> str:
        return "a copy that is not capturing"

    def graphsafe_set_state(self, state: str) -> None:
        self.state = state

    @contextmanager
    def graph(self, *_: Any, **__: Any) -> Any:
        self.stream_in_use = "capture"
        try:
            yield
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.mark.parametrize("ended_by_torch", [False, True])
def test_after_a_failed_capture_stream_memory_and_generator_are_mended(
    monkeypatch: pytest.MonkeyPatch, ended_by_torch: bool
) -> None:
    cuda, runs = FakeCuda(), []

    def end(*given: Any) -> None:
        cuda.calls.append(("end", *given))
        if ended_by_torch:
            raise RuntimeError("not recording")

    def work() -> None:
        runs.append(1)
        if len(runs) == 2:
            raise ValueError("the cause\nand more")

    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *given: cuda.calls.append(("release", *given)))
    recorder = Recorder(torch.device("cuda"))
    with pytest.raises(NotRecorded, match=r"^ValueError: the cause$"):
        recorder.record("work", work)
    assert cuda.stream_in_use == "main" and cuda.state == "a copy that is not capturing"
    assert ("end", 0, (0, 7)) in cuda.calls
    assert (("release", 0, (0, 7)) in cuda.calls) == (not ended_by_torch)
    assert recorder.graphs == {} and recorder.pool is None


def test_a_closed_recording_leaves_the_optimiser_as_it_was() -> None:
    model, options = Small(), TrainSettings()
    optimizer = make_optimizer(model, options)
    before = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    graphs = GraphSteps(model, model, optimizer, options, "cpu")
    assert optimizer.found_inf is graphs.not_finite  # type: ignore[attr-defined]
    graphs.close()
    assert [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups] == before
    assert not hasattr(optimizer, "found_inf") and all(p.grad is None for p in model.parameters())


# -- 16-bit weights ---------------------------------------------------------------------------------------------------


def test_norms_and_statistics_stay_in_float32() -> None:
    model = network("mobilevit_xxs").model.train()
    half = HalfWeights(model)
    kinds = {n: type(m) for n, m in model.named_modules()}
    for name in half.copies:
        assert issubclass(kinds[name.rpartition(".")[0]], nn.Linear | nn.Conv2d)
    norms = [n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d | nn.LayerNorm)]
    assert len(norms) > 20 and not any(f"{n}.weight" in half.copies for n in norms)
    with no_onednn(), torch.autocast("cpu", torch.bfloat16):
        half.refresh()
        half(network("mobilevit_xxs").batch(0).x)
    kept = batch_statistics(model)
    assert kept and all(t.dtype in (torch.float32, torch.int64) for t in kept)


class Standardised(nn.Conv2d):
    """Computes with its weight before it is cast."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight, self.bias)


def test_layers_that_compute_with_their_weights_keep_them() -> None:
    model = nn.Sequential(Standardised(1, 4, 3), nn.Conv2d(4, 4, 1, bias=False), nn.Flatten(), nn.Linear(16, 3))
    half = HalfWeights(model)
    assert list(half.copies) == ["1.weight", "3.weight", "3.bias"]
    assert list(HalfWeights(nn.Linear(3, 2)).copies) == ["weight", "bias"]
    assert HalfWeights(nn.LayerNorm(3)).copies == {}


def test_a_weight_read_from_outside_its_layer_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Borrows(Small):
        def __init__(self) -> None:
            super().__init__()
            self.borrowed = [self.fc.weight]  # no copy can take the place of this one

        def catch(self, x: Tensor) -> Tensor:
            return x * self.borrowed[0].mean()

    (eager, _), (tried, sink) = (fitted(monkeypatch, Borrows(), r, precision="bf16") for r in (False, True))
    assert all(torch.equal(eager[n], t) for n, t in tried.items())
    assert "outside its layer" in sink.events[0][1]


class SharedLayer(Small):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(8, 8, 1)
        self.again: nn.Module = self.mix

    def catch(self, x: Tensor) -> Tensor:
        out: Tensor = self.again(self.mix(x))
        return out


class SharedWeight(SharedLayer):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Conv2d(8, 8, 1)
        self.again.weight = self.mix.weight


class SharedWithOther(SharedLayer):
    """A layer's weight that another kind of module uses, which autocast leaves in 32 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.again = Scale(self.mix.weight)


class Scale(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.mean()


@pytest.mark.parametrize("kind", [SharedLayer, SharedWeight, SharedWithOther])
def test_weights_with_two_places_learn_from_both(monkeypatch: pytest.MonkeyPatch, kind: type[Small]) -> None:
    (eager, _), (recorded, sink) = (fitted(monkeypatch, kind(), r, precision="bf16") for r in (False, True))
    assert sink.events == [] and {t.dtype for t in recorded.values()} == {torch.float32, torch.int64}
    assert all(torch.equal(recorded[n], t) for n, t in eager.items())
    copies = HalfWeights(kind()).copies
    assert ("mix.weight" in copies) == (kind is not SharedWithOther)
