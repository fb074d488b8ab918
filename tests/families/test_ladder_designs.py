"""What a ladder computes: its designs written out, its trunk, its features and its attention."""

from __future__ import annotations

import json

import pytest
import torch

from tailorvit.families import named_space, plain_class, with_settings
from tailorvit.families.ladder.elastic import ElasticLadder
from tailorvit.families.ladder.family import FAMILY as LADDER
from tailorvit.families.ladder.plain import PlainLadder
from tailorvit.families.ladder.spaces import ladder_arch
from tailorvit.trunks.network import PlainTrunk, TowerSettings

DESIGNS = ("a", "evl", "lst")


# -- what the designs compute -----------------------------------------------------------------------------------------


def layer_norm(x, norm):
    return torch.nn.functional.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def attended(attn, x, y, dim):
    """Attention head by head."""
    q, (k, v) = attn.q(x), attn.kv(y).chunk(2, -1)
    heads = []
    for i in range(attn.heads):
        part = slice(i * dim, (i + 1) * dim)
        scores = (q[..., part] @ k[..., part].transpose(1, 2) / dim**0.5).softmax(-1)
        heads.append(scores @ v[..., part])
    return attn.proj(torch.cat(heads, -1))


def mlp(block, x, act):
    inside = block.mlp.fc1(layer_norm(x, block.norm2))
    inside = inside * torch.sigmoid(1.702 * inside) if act == "quick_gelu" else torch.nn.functional.gelu(inside)
    return block.mlp.fc2(inside)


def by_hand(net, taps):
    """The three designs written out."""
    shared, a = net.shared, len(net.blocks)
    last = [taps[:, i] for i in range(shared.channels - a, shared.channels)]
    if shared.design == "lst":
        x = net.entry(taps[:, max(shared.channels - a - 1, 0)])
        for block, tap, y in zip(net.blocks, net.taps, last, strict=True):
            g = torch.sigmoid(tap.alpha / 0.1)
            x = g * x + (1 - g) * tap.proj(y)
            inner = layer_norm(x, block.norm1)
            x = x + attended(block.attn, inner, inner, shared.head_dim)
            x = x + mlp(block, x, shared.act)
        return net.head(layer_norm(x, net.norm).mean(1))
    x = net.query.expand(len(taps), 1, -1)
    for i, (block, y) in enumerate(zip(net.blocks, last, strict=True)):
        if shared.design == "a":
            y = net.taps[i].proj(layer_norm(y, net.taps[i].norm))
        x = x + attended(block.attn, layer_norm(x, block.norm1), layer_norm(y, block.norm3), shared.head_dim)
        x = x + mlp(block, x, shared.act)
    return net.head(layer_norm(x, net.norm)[:, 0])


def network(design="a", depth=3, **fixed):
    shared = LADDER.settings(
        {"image_size": (5, 24), "channels": 4, "classes": 6, "head_dim": 8, "design": design, **fixed}
    )
    torch.manual_seed(0)
    net = LADDER.build(shared, ladder_arch(24 if design == "evl" else 20, [1, 3, 2, 2][:depth], 2, depth)).eval()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return net, torch.randn(2, 4, *shared.image_size)


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("act", ["gelu", "quick_gelu"])
@pytest.mark.parametrize("design", DESIGNS)
@torch.no_grad()
def test_designs_as_written_out(design, act, depth):
    net, taps = network(design, depth, act=act)
    torch.testing.assert_close(net(taps), by_hand(net, taps), atol=1e-5, rtol=1e-5)
    changed = taps.clone()
    changed[:, : max(4 - depth - (design == "lst"), 0)] += 1
    assert torch.equal(net(changed), net(taps)), "only the last taps are read, and by lst the one before"
    changed[:, 4 - depth] += torch.randn_like(changed[:, 0])
    assert not torch.allclose(net(changed), net(taps))


@torch.no_grad()
def test_a_rung_belongs_to_its_trunk_layer_at_every_depth():
    space = named_space("ladder-8px")
    torch.manual_seed(0)
    model = ElasticLadder(space)
    shallow, deep = (LADDER.extract(model, ladder_arch(24, 2, 2, d)) for d in (2, 4))
    for i in (1, 2):
        assert torch.equal(shallow.taps[-i].proj.weight, deep.taps[-i].proj.weight)
    assert torch.equal(shallow.blocks[0].mlp.fc1.weight, deep.blocks[0].mlp.fc1.weight)


def test_gates_start_half_open_and_dropout_works_in_training():
    lst = ElasticLadder(with_settings(named_space("ladder-8px"), design="lst"))
    assert all(tap.alpha.item() == 0 for tap in lst.taps)
    space = with_settings(named_space("ladder-8px"), mlp_dropout=0.5, head_dropout=0.5)
    torch.manual_seed(0)
    elastic = ElasticLadder(space)
    for model in (elastic, LADDER.extract(elastic, space.smallest())):
        x = torch.randn(2, 4, 5, 24)
        assert not torch.equal(model.train()(x), model.train()(x)) and torch.equal(model.eval()(x), model.eval()(x))


# -- with a trunk -----------------------------------------------------------------------------------------------------


def trunk(**changes):
    torch.manual_seed(1)
    shared = TowerSettings(
        **{
            "image_size": (8, 8),
            "channels": 1,
            "patch": 4,
            "embed": 24,
            "depth": 5,
            "taps": 4,
            "heads": 2,
            "hidden": 30,
        }
        | changes
    )
    tower = PlainTrunk(shared)
    for p in tower.parameters():
        p.add_(0.2 * torch.randn_like(p))
    return tower


@pytest.mark.parametrize("design", DESIGNS)
@torch.no_grad()
def test_attached_takes_images_and_is_rebuilt_from_its_settings(design):
    net, _ = network(design)
    tower, images = trunk(), torch.randn(2, 1, 8, 8)
    whole = net.attached(tower)
    torch.testing.assert_close(whole(images), net(tower(images)), atol=0, rtol=0)
    assert net.trunk is None and net.settings["trunk"] is None
    learnt = {n for n, p in whole.named_parameters() if p.requires_grad}
    assert learnt == set(dict(net.named_parameters())) and any(n.startswith("trunk.") for n in whole.state_dict())
    assert not whole.train().trunk.training and whole.blocks.training
    again = plain_class("ladder").from_settings(json.loads(json.dumps(whole.settings)))
    again.load_state_dict(whole.state_dict())
    torch.testing.assert_close(again.eval()(images), whole.eval()(images), atol=0, rtol=0)
    assert isinstance(again, PlainLadder) and again.trunk is not None
    found = list(LADDER.attention(whole, images))
    assert [m.grid for m in found] == [(2, 2)] * 3


def test_a_foreign_trunk_is_refused():
    with pytest.raises(ValueError, match=r"taps \(3, 5, 24\) does not fit \(4, 5, 24\)"):
        network()[0].attached(trunk(taps=3))


@pytest.mark.parametrize(("design", "side"), [("a", 1), ("evl", 1), ("lst", 2)])
@torch.no_grad()
def test_features(design, side):
    net, taps = network(design)
    width = 24 if design == "evl" else 20
    whole, features = net.forward_features(taps), net.forward_intermediates(taps)
    assert whole.shape == ((2, width) if side == 1 else (2, 5, width))
    torch.testing.assert_close(net.forward_head(whole), net(taps))
    assert net.forward_head(whole, pre_logits=True).shape == (2, width)
    torch.testing.assert_close(features[0], whole)
    assert [m.shape for m in features[1]] == [(2, width, side, side)] * 3
    (last,) = net.forward_intermediates(taps, 1, norm=True, output_fmt="NLC", intermediates_only=True)
    torch.testing.assert_close(last, whole[:, None] if side == 1 else whole[:, 1:])
    assert [row["num_chs"] for row in net.feature_info] == [width] * 3
    net.reset_classifier(3)
    assert net(taps).shape == (2, 3) and net.settings["classes"] == 3


@pytest.mark.parametrize("design", DESIGNS)
@torch.no_grad()
def test_attention_reproduces_the_output(design):
    net, taps = network(design, image_size=(10, 24))  # 3 x 3 patches and a class token
    caught = []
    hooks = [b.attn.register_forward_hook(lambda _, args, out: caught.append((args, out))) for b in net.blocks]
    net(taps)
    for hook in hooks:
        hook.remove()
    found = list(LADDER.attention(net, taps))
    for m, block, ((x, y), out) in zip(found, net.blocks, caught, strict=True):
        torch.testing.assert_close(attended(block.attn, x, y, 8), out, atol=1e-5, rtol=1e-5)
        seen = block.attn.weights(x, y)[..., 1:]
        seen = seen if design != "lst" else seen[:, :, 1:]
        torch.testing.assert_close(m.weights()[:, 0], seen / seen.sum(-1, keepdim=True))
        assert m.grid == (3, 3) and m.queries.shape[1] == (9 if design == "lst" else 1)
    assert list(LADDER.attention(network(design, image_size=(7, 24))[0], torch.randn(1, 4, 7, 24))) == []
