"""What matters less is ranked last, by every criterion, and measuring changes nothing."""

from __future__ import annotations

import pytest
import torch

from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES
from tailorvit.families.tailored.order import reordered
from tailorvit.families.tailored.spaces import SPACES
from tailorvit.methods.importance import CRITERIA, block_order, importance

DEAD_UNITS, DEAD_HEAD, DEAD_CHANNEL = (3, 40, 90), 1, 7


@pytest.fixture
def model():
    """A network in which some parts do nothing: what leads out of them is zero."""
    space = SPACES["tailored-8px"]
    torch.manual_seed(0)
    made = FAMILIES["tailored"].build(FAMILIES["tailored"].settings(dict(space.settings)), space.largest())
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.2 * torch.randn_like(p))
        for block in made.blocks:
            block.mlp.fc2.weight[:, list(DEAD_UNITS)] = 0
            block.mlp.fc1.weight[list(DEAD_UNITS)] = 0
            block.mlp.fc1.bias[list(DEAD_UNITS)] = 0
            block.attn.proj.weight[:, 8 * DEAD_HEAD : 8 * DEAD_HEAD + 8] = 0
            for part in range(3):
                rows = slice(24 * part + 8 * DEAD_HEAD, 24 * part + 8 * DEAD_HEAD + 8)
                block.attn.qkv.weight[rows] = 0
    return made.eval()


def batches(n=3):
    rng = torch.Generator().manual_seed(2)
    return [(torch.randn(8, 1, 8, 8, generator=rng), torch.randint(10, (8,), generator=rng)) for _ in range(n)]


@pytest.mark.parametrize("criterion", CRITERIA)
def test_dead_parts_come_last_and_nothing_is_changed(model, criterion):
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.train()
    found = importance(model, batches(), criterion)
    assert model.training and all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    orders = found.orders()
    for heads, hidden in zip(orders.heads, orders.hidden, strict=True):
        assert heads[-1] == DEAD_HEAD and set(hidden[-3:]) == set(DEAD_UNITS)
        assert sorted(heads) == [0, 1, 2] and sorted(hidden) == list(range(96))
    assert [sorted(order) for order in orders.streams] == [list(range(24))]
    assert found.orders(channels=False).streams is None


@torch.no_grad()
def test_a_cut_to_the_first_ones_loses_nothing_where_the_rest_is_dead(model):
    turned = reordered(model, importance(model, batches(), "activation").orders(channels=False))
    x = batches(1)[0][0]
    for block in turned.blocks:
        block.mlp.fc2.weight[:, 93:] = 100.0 * torch.randn(24, 3)  # these units are silent, so nothing is heard
    torch.testing.assert_close(turned(x), model(x), atol=1e-5, rtol=1e-5)


def test_taylor_is_the_change_of_the_loss_to_first_order(model):
    """Switching a unit off a little changes the loss as its score says, where one image is all there is."""
    data = [(x[:1], y[:1]) for x, y in batches(1)]
    scores = importance(model, data, "taylor").hidden[1]
    (x, y), share = data[0], 1e-3

    def loss():
        with torch.no_grad():
            return float(torch.nn.functional.cross_entropy(model(x).double(), y))

    model.double()
    x = x.double()
    for unit in (0, 17, 55):
        whole = loss()
        with torch.no_grad():
            kept = model.blocks[1].mlp.fc2.weight[:, unit].clone()
            model.blocks[1].mlp.fc2.weight[:, unit] *= 1 - share
            change = abs(loss() - whole) / share
            model.blocks[1].mlp.fc2.weight[:, unit] = kept
        assert change == pytest.approx(float(scores[unit]), rel=0.05, abs=1e-4)


def test_blocks_that_do_nothing_are_given_up_first(model):
    with torch.no_grad():
        for b in (0, 2):
            for p in (*model.blocks[b].attn.proj.parameters(), *model.blocks[b].mlp.fc2.parameters()):
                p.zero_()
    order = block_order(model, [(x, model(x).argmax(-1)) for x, _ in batches()])  # its own answers: all others matter
    assert set(order[-2:]) == {0, 2} and sorted(order) == [0, 1, 2, 3]


def test_an_unknown_criterion_lists_the_known(model):
    with pytest.raises(TailorError, match=r"'luck'.*activation"):
        importance(model, batches(1), "luck")
