"""The official Q-K-V layout keeps the contract of a family: executions agree, gradients stay inside, training works."""

from __future__ import annotations

import pytest
import torch

from tailorvit.costs import Counter
from tailorvit.elastic.slicing import Width, prefix, thirds
from tailorvit.errors import TailorError
from tailorvit.families import family, named_space, with_settings
from tailorvit.rng import generator
from tailorvit.train import TrainSettings
from tailorvit.train.optim import make_optimizer

SPACE = with_settings(named_space("vit-8px"), qkv="official")
COUNT = Counter("vit", dict(SPACE.settings))


@pytest.fixture
def model():
    torch.manual_seed(0)
    net = family("vit").supernet(SPACE).eval()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return net


def archs(n):
    rng = generator(0, "official")
    return [SPACE.smallest(), SPACE.largest(), *(SPACE.sample(rng) for _ in range(n))]


def images():
    return torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def test_thirds_by_hand():
    flat = torch.arange(12.0)
    assert thirds(flat, Width(2)).tolist() == [0, 1, 2, 3, 4, 5]
    switched = thirds(flat, Width(4, reads=torch.tensor([1.0, 1.0, 0.0, 0.0])))
    assert switched.shape == (12,)
    assert switched.view(3, 4)[:, :2].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert thirds(flat, Width(4, reads=torch.ones(4))).tolist() == flat.tolist()


@torch.no_grad()
def test_sliced_grouped_and_extracted_agree(model):
    x, outputs = images(), []
    for arch in archs(18):
        sliced, plain = model(x, arch), family("vit").extract(model, arch).eval()
        for other in (model.grouped(x, model.group(arch), model.switches(arch)), plain(x)):
            torch.testing.assert_close(other, sliced, atol=1e-5, rtol=1e-5)
        assert sum(p.numel() for p in plain.parameters()) == COUNT.params(arch)
        outputs.append(sliced)
    assert torch.stack(outputs).std(0).max() > 1e-2


@torch.no_grad()
def test_the_bias_is_shared_unaligned(model):
    """With q channels in use, entries q to 2q are the keys', which no softmax feels, and 2q to 3q the values'."""
    x, small, large = images(), SPACE.smallest(), SPACE.largest()
    q = 16 * int(small.many("heads")[0])
    bias = model.blocks[0].attn.qkv_bias
    assert bias.shape == (3 * 16 * 4,) and q == 32

    def felt(at):
        before = [model(x, arch) for arch in (small, large)]
        bias[at] += 1
        return [bool((model(x, arch) - old).abs().max() > 1e-4) for arch, old in zip((small, large), before)]

    assert felt(slice(0, q)) == [True, True]  # queries of both
    assert felt(slice(q, 2 * q)) == [False, True]  # keys of the small one, queries of the large one
    assert felt(slice(2 * q, 3 * q)) == [True, False]  # values of the small one, keys of the large one
    assert felt(slice(4 * q, 6 * q)) == [False, True]  # values of the large one


def test_gradients_reach_only_the_slice(model):
    for arch in archs(2):
        model.zero_grad(set_to_none=True)
        model(images(), arch).square().sum().backward()
        used = model.slices(arch)
        for name, p in model.named_parameters():
            inside = torch.zeros_like(p, dtype=torch.bool)
            if name in used:
                prefix(inside, *used[name])[...] = True
                assert p.grad[inside].any(), name
            assert p.grad is None or not p.grad[~inside].any(), name


@pytest.mark.parametrize("freeze", ["none", "slice"])
def test_it_trains(model, freeze):
    model.train()
    settings = TrainSettings(lr=1e-2, freeze=freeze)
    optimizer = make_optimizer(model, settings)
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    x, y, losses = images(), torch.tensor([1, 2]), []
    arch = SPACE.smallest()
    before = model.blocks[0].attn.qkv_bias.detach().clone()
    for _ in range(5):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x, arch), y)
        loss.backward()
        if freeze == "slice":
            optimizer.use(model, model.slices(arch))
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    used, moved = 3 * 16 * int(arch.many("heads")[0]), model.blocks[0].attn.qkv_bias.detach() != before
    assert moved[:used].any() and not moved[used:].any()


def test_an_unknown_layout_is_refused():
    with pytest.raises(TailorError, match="'qkv' must be aligned or official, not 'mixed'"):
        with_settings(SPACE, qkv="mixed")
