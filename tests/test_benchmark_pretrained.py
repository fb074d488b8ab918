"""The rivals of the benchmark on pretrained networks: they keep the limit, and what is cut is cut everywhere."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import pytest
import torch

from tailorvit.errors import TailorError
from tailorvit.families.tailored.plain import PlainTailored, TailoredSettings

sys.path.append(str(Path(__file__).parents[1] / "benchmarks" / "pretrained"))

import pretrained
import rivals
import trainings

SHARED = TailoredSettings(image_size=(16, 16), patch=4, classes=5, head_dim=8)


@pytest.fixture
def whole():
    torch.manual_seed(0)
    model = PlainTailored(SHARED, 32, [4] * 6, [64] * 6).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape))
    return model


@pytest.fixture
def images():
    return torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def through(model, images, blocks):
    x = model.tokens(images)
    for b in blocks:
        x = model.blocks[b](x)
    return model.forward_head(model.norm(x))


@pytest.mark.parametrize(("rival", "kept"), [("first_blocks", [0, 1, 2]), ("every_other", [0, 2, 5])])
@torch.no_grad()
def test_blocks_are_left_out_whole(whole, images, rival, kept):
    limit = rivals.size(whole, range(3)) + 10
    small = getattr(rivals, rival)(whole, limit)
    assert rivals.count(small) == limit - 10
    torch.testing.assert_close(small(images), through(whole, images, kept))


@pytest.mark.parametrize("blocks", [6, 3])
def test_slimming_keeps_the_limit_and_the_shares_alike(whole, images, blocks):
    limit = 0.4 * rivals.count(whole)
    small = rivals.slimmed(whole, limit, blocks)
    assert len(small.blocks) == blocks
    assert 0.85 * limit < rivals.count(small) <= limit
    assert len({*small.shape["heads"]}) == len({*small.shape["hidden"]}) == 1
    assert abs(small.shape["heads"][0] / 4 - small.shape["hidden"][0] / 64) <= 0.25
    assert small(images).shape == (3, 5)


@torch.no_grad()
def test_slimming_gives_up_the_smallest_weights(whole, images):
    for block in whole.blocks:  # one head and half the hidden units do nothing
        block.attn.qkv.weight.view(3, 4, 8, 32)[:, 1] = 0
        block.attn.qkv.bias.view(3, 4, 8)[:, 1] = 0
        block.mlp.fc2.weight[:, ::2] = 0
    small = rivals.cut(
        rivals.reordered(whole, rivals.score(whole, [], "magnitude").orders(channels=False)), range(6), 3, 32
    )
    torch.testing.assert_close(small(images), whole(images), atol=1e-4, rtol=1e-4)


def test_a_fresh_start_has_the_shape_but_not_the_weights(whole):
    limit = rivals.size(whole, range(2))
    fresh, again, cut = (
        rivals.scratch(whole, limit, 1),
        rivals.scratch(whole, limit, 1),
        rivals.first_blocks(whole, limit),
    )
    assert fresh.shape == cut.shape
    assert torch.equal(fresh.blocks[0].mlp.fc1.weight, again.blocks[0].mlp.fc1.weight)
    assert not torch.equal(fresh.blocks[0].mlp.fc1.weight, cut.blocks[0].mlp.fc1.weight)


def test_a_limit_that_nothing_fits_is_named(whole):
    for rival in (rivals.first_blocks, rivals.every_other, rivals.slimmed, rivals.scratch):
        with pytest.raises(TailorError, match="more than the limit of 1,000"):
            rival(whole, 1000)


@torch.no_grad()
def test_the_whole_network_is_the_same_in_timm(whole, images):
    torch.testing.assert_close(rivals.as_timm(whole)(images), whole(images))


@pytest.mark.parametrize("isomorphic", [False, True])
@pytest.mark.parametrize("importance", ["magnitude", "taylor"])
def test_torch_pruning_keeps_the_limit_and_trains(whole, images, importance, isomorphic):
    pytest.importorskip("torch_pruning")
    limit, theirs = 0.5 * rivals.count(whole), rivals.as_timm(whole)
    before = copy.deepcopy(theirs.state_dict())
    batches = [(images, torch.tensor([0, 1, 2]))]
    small = rivals.torch_pruned(theirs, images[:1], limit, importance, batches, isomorphic)
    assert 0.75 * limit < rivals.count(small) <= limit
    small(images).sum().backward()
    assert all(p.grad is not None for p in small.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in theirs.state_dict().items())


@torch.no_grad()
def test_torch_pruning_cuts_the_same_channels_everywhere(whole, images):
    pytest.importorskip("torch_pruning")
    theirs = rivals.as_timm(whole)
    stream, inner, hidden = (torch.arange(1.0, n + 1) for n in (32, 32, 64))
    for block in theirs.blocks:  # every number says which channel it belongs to
        block.attn.qkv.bias.copy_(inner.repeat(3))
        block.attn.proj.weight.copy_(inner.expand(32, -1))
        block.mlp.fc1.bias.copy_(hidden)
        block.mlp.fc2.weight.copy_(hidden.expand(32, -1))
        for part in (block.norm1.weight, block.norm2.weight, block.attn.proj.bias, block.mlp.fc2.bias):
            part.copy_(stream)
    for part in (theirs.norm.weight, theirs.cls_token, theirs.pos_embed):
        part.copy_(stream.expand_as(part))
    small = rivals.torch_pruned(theirs, images[:1], 0.5 * rivals.count(whole))
    left = small.norm.weight
    assert len(left) < 32
    assert torch.equal(small.cls_token[0, 0], left)
    assert all(torch.equal(row, left) for row in small.pos_embed[0])
    for block in small.blocks:
        for part in (block.norm1.weight, block.norm2.weight, block.attn.proj.bias, block.mlp.fc2.bias):
            assert torch.equal(part, left)
        q, k, v = block.attn.qkv.bias.chunk(3)
        assert torch.equal(q, k) and torch.equal(k, v) and torch.equal(v, block.attn.proj.weight[0])
        heads = (v.view(4, -1) - 1).long() // 8
        assert torch.equal(heads, torch.arange(4)[:, None].expand_as(heads))
        assert torch.equal(block.mlp.fc1.bias, block.mlp.fc2.weight[0])


def test_taylor_needs_batches(whole, images):
    with pytest.raises(TailorError, match="needs batches"):
        rivals.torch_pruned(rivals.as_timm(whole), images[:1], 1e4, "taylor")
    with pytest.raises(TailorError, match="luck"):
        rivals.torch_pruned(rivals.as_timm(whole), images[:1], 1e4, "luck")


# -- trainings and tables ---------------------------------------------------------------------------------------------

BASE = {"data": "flowers", "image_size": 98, "epochs": 25, "seed": 1, "source": "a", "test": True}
WHOLE = {"epochs": 30, "lr": 1e-4, "augment": "mild"}


def test_trainings_differ_and_rows_name_no_place():
    todo = trainings.jobs({**BASE, "whole": WHOLE})
    assert len({trainings.key(job) for job in todo}) == len(todo)
    assert todo[0]["network"] == "whole" and todo[0]["epochs"] == 30
    elsewhere = trainings.jobs({**BASE, "whole": WHOLE, "source": "b", "test": False})
    assert [trainings.key(job) for job in todo] == [trainings.key(job) for job in elsewhere]
    assert not {"source", "weights", "store", "test"} & trainings.said(todo[1]).keys()


def test_a_training_that_fails_gives_a_row():
    row = trainings.tried({"network": "whole", "model": "no_such_model", "weights": "nowhere", "source": "a"})
    assert "failed" in row and "source" not in row


def test_tables_show_the_best_rate_and_all_seeds(monkeypatch, tmp_path):
    base = {"data": "flowers", "network": "first", "limit": 6e6, "params": 5_600_000, "macs": 2e8, "taught": True}
    found = [
        {**base, "lr": lr, "seed": seed, "search": good + seed, "test": good + seed}
        for lr, good in ((1e-4, 80.0), (3e-4, 90.0))
        for seed in (1, 2)
    ]
    again = [{k: v - 50 if k == "search" else v for k, v in row.items() if k != "test"} for row in found]
    failed = {**found[0], "seed": 3, "failed": "no room"}
    lines = "".join(json.dumps(row) + "\n" for row in (*again, *found, failed))
    (tmp_path / "rivals-rows.jsonl").write_text(lines)
    monkeypatch.setattr(pretrained, "RESULTS", tmp_path)
    assert "| flowers | the first blocks, taught | - | 91.5 ± 0.7 (5.60M) | - |" in pretrained.rivals()
