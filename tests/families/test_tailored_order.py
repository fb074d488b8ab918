"""The same network in another order or basis, and prefixes that keep what comes first."""

from __future__ import annotations

import pytest
import torch

from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES, with_settings
from tailorvit.families.tailored.order import principal_basis, reordered, rotated
from tailorvit.families.tailored.plain import PlainTailored
from tailorvit.families.tailored.spaces import SPACES
from tailorvit.families.tailoring import Orders

KINDS = {
    "plain": {},
    "registers": {"registers": 2},
    "gated": {"gated": True, "act": "silu"},
    "norms of queries and keys": {"qk_norm": True, "qkv_bias": False},
    "pooled": {"pool": "gap", "class_token": False},
}


def network(**settings):
    space = with_settings(SPACES["tailored-8px"], order=(), **settings)
    torch.manual_seed(0)
    model = FAMILIES["tailored"].build(FAMILIES["tailored"].settings(dict(space.settings)), space.largest(), 0.1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.eval()


def images(n=6):
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def shuffled(n, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("kind", [*KINDS, "clip"])
@torch.no_grad()
def test_another_order_computes_the_same(kind):
    model = network(**KINDS.get(kind, {"pre_norm": True}))
    heads, hidden = ([shuffled(n, i) for i, n in enumerate(model.shape[k])] for k in ("heads", "hidden"))
    other = reordered(model, Orders(heads, hidden, [shuffled(24, 9)]))
    assert not torch.equal(other.blocks[0].mlp.fc1.weight, model.blocks[0].mlp.fc1.weight)
    torch.testing.assert_close(other(images()), model(images()), atol=1e-5, rtol=1e-5)
    assert [b.drop_path.rate for b in other.blocks] == [b.drop_path.rate for b in model.blocks]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_another_basis_computes_the_same(kind):
    model = network(**KINDS[kind])
    turned = rotated(model, torch.linalg.qr(torch.randn(24, 24))[0])
    assert turned.shared.norm == "rms" and turned.shared.width == 24
    torch.testing.assert_close(turned(images()), model(images()), atol=1e-4, rtol=1e-4)
    again = rotated(turned, torch.linalg.qr(torch.randn(24, 24))[0])
    torch.testing.assert_close(again(images()), model(images()), atol=1e-4, rtol=1e-4)
    back = PlainTailored.from_settings(turned.settings)
    back.load_state_dict(turned.state_dict())


@torch.no_grad()
def test_a_stream_of_few_directions_loses_nothing_when_cut_to_them():
    """All that writes to the stream lies in six directions, so eight channels of the principal basis hold it all."""
    model = network()
    few = torch.linalg.qr(torch.randn(24, 6))[0]
    few = few - few.mean(0)  # a layer norm sees no mean
    onto = few @ torch.linalg.pinv(few)
    for name, p in model.named_parameters():
        if name.endswith(("proj.weight", "proj.bias", "fc2.weight", "fc2.bias")):
            p.copy_(torch.tensordot(onto, p, dims=([1], [0])))
        elif name in ("cls_token", "pos_embed"):
            p.copy_(p @ onto)
    basis, shares = principal_basis(model, [images()])
    assert shares[:6].sum() > 0.999 and torch.all(shares[:-1] >= shares[1:] - 1e-6)
    turned = rotated(model, basis)
    space = with_settings(SPACES["tailored-8px"], **{**turned.shared.to_dict(), "order": ()})
    supernet = FAMILIES["tailored"].supernet(space).eval()
    for name, p in supernet.named_parameters():
        p.copy_(turned.state_dict()[name].view(p.shape))
    narrow = space.largest().replace(embed=16)
    torch.testing.assert_close(supernet(images(), narrow), model(images()), atol=1e-3, rtol=1e-3)
    magnitude = FAMILIES["tailored"].extract(supernet, narrow)
    assert magnitude.shape["embed"] == 16


def test_a_norm_before_the_blocks_is_refused():
    with pytest.raises(TailorError, match=r"norm before its blocks \(CLIP\)"):
        rotated(network(pre_norm=True), torch.eye(24))
    with pytest.raises(TailorError, match=r"basis of \(3, 3\) does not fit a stream of 24"):
        rotated(network(), torch.eye(3))
