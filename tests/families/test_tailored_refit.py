"""Refitting a cut network: an uncut one stays as it is, a cut one comes near the whole, deterministic and in place."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tailorvit.families import FAMILIES
from tailorvit.families import refit as refit_module
from tailorvit.families.tailored.order import refit, turned
from tailorvit.families.tailored.plain import PlainTailored, TailoredSettings

FAMILY = FAMILIES["tailored"]
KINDS = {
    "plain": {},
    "gated": {"gated": True, "act": "silu"},
    "registers": {"registers": 2},
    "no class token": {"class_token": False, "pool": "gap"},
    "norm before": {"pre_norm": True},
}


def network(seed: int = 0, **more) -> PlainTailored:
    torch.manual_seed(seed)
    settings = {"image_size": (16, 16), "patch": 4, "channels": 3, "classes": 7, "head_dim": 8, **more}
    model = PlainTailored(TailoredSettings(**settings), embed=32, heads=[4] * 4, hidden=[64] * 4)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape))
    return model.eval()


def images(count: int = 6, seed: int = 1) -> list[torch.Tensor]:
    """Smooth ones, so that their tokens have something in common, as those of photos have."""
    rng = torch.Generator().manual_seed(seed)
    return [F.interpolate(torch.randn(32, 3, 3, 3, generator=rng), 16, mode="bilinear") for _ in range(count)]


def cut(model: PlainTailored, blocks=(0, 1, 2, 3), embed=32, heads=4, hidden=64) -> PlainTailored:
    """Prefixes of everything."""
    small = PlainTailored(model.shared, embed=embed, heads=[heads] * len(blocks), hidden=[hidden] * len(blocks))
    width, state = heads * model.shared.head_dim, model.state_dict()
    found = {}
    for name, p in small.state_dict().items():
        parts = name.split(".")
        if parts[0] == "blocks":
            parts[1] = str(blocks[int(parts[1])])
        whole = state[".".join(parts)]
        if "qkv" in name:
            whole = whole.unflatten(0, (3, -1))[:, :width].flatten(0, 1)
        found[name] = whole[tuple(slice(n) for n in p.shape)] if name not in ("head.bias",) else whole
    small.load_state_dict(found)
    return small.eval()


def order_of(kept) -> list[int]:
    """Blocks by importance, of which these come first, in any order."""
    return [*reversed(kept), *(b for b in range(4) if b not in kept)]


def far(model: PlainTailored, whole: PlainTailored) -> float:
    """How far the normalised tokens of other images lie from the whole network's, as a share."""
    width = model.shape["embed"]
    with torch.no_grad():
        pairs = [(model.norm(s), whole.norm(w)[..., :width]) for s, w in _streams(model, whole)]
    return float(sum((a - b).square().sum() for a, b in pairs) / sum(b.square().sum() for _, b in pairs))


def _streams(model, whole):
    for x in images(3, seed=9):
        found = []
        for network in (model, whole):
            tokens = network.tokens(x)
            for block in network.blocks:
                tokens = block(tokens)
            found.append(tokens)
        yield found


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_that_lost_nothing_stays_as_it_is(kind):
    whole = network(**KINDS[kind])
    same = cut(whole)
    before = {k: v.clone() for k, v in same.state_dict().items()}
    refit(same, whole, (2, 0, 3, 1), images())
    for name, tensor in same.state_dict().items():
        torch.testing.assert_close(tensor, before[name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "kept",
    [{"hidden": 24}, {"heads": 2}, {"blocks": (0, 1, 3)}, {"blocks": (0, 2, 3), "hidden": 32, "heads": 3}],
    ids=str,
)
def test_a_cut_network_comes_nearer_the_whole(kind, kept):
    whole = network(**KINDS[kind])
    small = cut(whole, **kept)
    before = far(small, whole)
    refit(small, whole, order_of(kept.get("blocks", (0, 1, 2, 3))), images())
    assert far(small, whole) < 0.7 * before


def test_a_narrow_stream_follows_the_first_channels_of_the_whole():
    whole = turned(network(), images(2))
    small = cut(whole, embed=24, hidden=48)
    before = far(small, whole)
    refit(small, whole, range(4), images())
    assert far(small, whole) < 0.7 * before


def test_only_what_writes_to_the_stream_changes_and_twice_gives_the_same():
    whole = network()
    kept = {k: v.clone() for k, v in whole.state_dict().items()}
    small, again = cut(whole, hidden=24).train(), cut(whole, hidden=24)
    before = {k: v.clone() for k, v in small.state_dict().items()}
    state = torch.get_rng_state()
    refit(small, whole, range(4), images())
    refit(again, whole, range(4), images())
    assert small.training and not whole.training and torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, kept[k]) for k, v in whole.state_dict().items())
    for name, tensor in small.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
        assert torch.equal(tensor, before[name]) != (".attn.proj." in name or ".mlp.fc2." in name), name


def test_no_more_images_than_are_needed(monkeypatch):
    whole, seen = network(), []
    inner = PlainTailored.tokens
    monkeypatch.setattr(refit_module, "ROWS", 1000)  # two batches of 32 images with 17 tokens
    monkeypatch.setattr(PlainTailored, "tokens", lambda self, x: seen.append(len(x)) or inner(self, x))
    refit(cut(whole, hidden=24), whole, range(4), images(6))
    assert seen == [32, 32, 32, 32], "two batches for each network"
