"""Fine-tuning presets are the papers' settings, and what they need: SGD and a constant learning rate."""

from __future__ import annotations

import pytest
import torch
from train_toys import Toys, plain, settings, weights

from tailorvit.config import configure
from tailorvit.errors import TailorError
from tailorvit.methods.finetune import PRESETS, preset
from tailorvit.train import Fixed, TrainSettings, train
from tailorvit.train.optim import make_optimizer, optimizer_tensors, restore_optimizer


def test_a_constant_learning_rate_stays():
    s = TrainSettings(epochs=4, lr=1e-5, warmup=1, schedule="constant")
    rates = [s.lr_at(step, 5) for step in range(20)]
    assert rates[:5] == sorted(rates[:5]) and rates[0] < 1e-5
    assert rates[5:] == [1e-5] * 15
    assert TrainSettings(epochs=4, lr=1e-5, warmup=0, schedule="constant").lr_at(0, 5) == 1e-5


def test_sgd_steps_as_the_formula_says():
    model = plain()
    optimizer = make_optimizer(model, settings(optimizer="sgd", weight_decay=0.1, lr=0.2))
    name, weight = "head.weight", model.head.weight
    before, speed = weight.detach().clone(), torch.zeros_like(weight)
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        speed = 0.9 * speed + 1 + 0.1 * before
        before = before - 0.2 * speed
        torch.testing.assert_close(weight.detach(), before)
    assert sum(g["weight_decay"] == 0 for g in optimizer.param_groups) == 1, "norms and biases do not decay"
    kept = optimizer_tensors(model, optimizer)
    assert f"{name}/momentum_buffer" in kept
    other = make_optimizer(model, settings(optimizer="sgd"))
    restore_optimizer(model, other, kept.items())
    assert torch.equal(other.state[weight]["momentum_buffer"], optimizer.state[weight]["momentum_buffer"])


def test_sgd_trains():
    model = plain()
    before = weights(model)
    done = train(model, Toys(), Fixed(), settings(optimizer="sgd", lr=0.05, epochs=2), seed=0)
    after = weights(model)
    assert done.loss == done.loss and not torch.equal(before["head.weight"], after["head.weight"])


def test_freezing_slices_needs_adamw():
    with pytest.raises(TailorError, match="'slice' needs AdamW"):
        TrainSettings(optimizer="sgd", freeze="slice")


# The papers' settings once more, written out: (optimiser, learning rate, last one, decay, epochs, batch, px).
PAPERS = {
    "autoformer-384": ("adamw", 1e-6, 1e-7, 0.05, 30, 64, 384),
    "s3-384": ("adamw", 1e-5, 1e-5, 1e-8, 10, None, 384),
    "cifar": ("sgd", 1e-2, None, 1e-8, 1000, 64, 224),
    "cars": ("sgd", 1e-2, None, 1e-8, 1000, 64, 384),
    "flowers": ("adamw", 5e-4, 1e-6, 1e-8, 1000, 64, 384),
    "pets": ("adamw", 5e-4, 1e-6, 1e-8, 1000, 64, 384),
}


@pytest.mark.parametrize("name", PAPERS)
def test_presets_are_the_papers(name):
    optimizer, first, last, decay, epochs, batch, side = PAPERS[name]
    config = configure(preset(name).recipe())
    own = config.train
    assert (own.optimizer, own.weight_decay, own.epochs, config.data.image_size) == (optimizer, decay, epochs, side)
    assert batch is None or own.batch == batch
    assert own.warmup == 0 and own.clip == 0
    assert own.lr_at(0, 10) == pytest.approx(first)
    if last is not None:
        assert own.lr_at(10 * epochs, 10) == pytest.approx(last)
    if optimizer == "sgd":
        assert own.schedule == "cosine"


def test_every_preset_is_checked_or_ours():
    assert {p.name for p in PRESETS.values() if p.source != "ours"} == set(PAPERS)
    ours = preset("default")
    assert ours.image_size is None and configure(ours.recipe()).train.epochs == 30
    with pytest.raises(TailorError, match=r"Unknown preset 'pet'. Did you mean 'pets'"):
        preset("pet")
