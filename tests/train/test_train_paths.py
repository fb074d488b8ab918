"""Several paths: every part of a batch goes through an architecture of its own, whoever has which part."""

from __future__ import annotations

import pytest
import torch
from train_toys import SPACE, Store, Toys, same, settings, supernet, weights

from tailorvit import ranks
from tailorvit.config import configure, merged, read_recipe
from tailorvit.errors import TailorError
from tailorvit.methods.prepare import prepare
from tailorvit.rng import seed_everything
from tailorvit.train import Fixed, Sandwich, SinglePath, TrainSettings, rule_for, train
from tailorvit.train.loop import Sink, Trainer
from tailorvit.train.optim import soft_cross_entropy
from tailorvit.train.share import cannot_share, paths_of, rows_of

TWO = SinglePath(SPACE, 2)


def trainer(rule, **options):
    return Trainer(supernet(0.3), Toys(), rule, settings(**options), 5, Sink())


def gradients(of):
    return {n: p.grad.clone() for n, p in of.model.named_parameters() if p.grad is not None}


def test_the_first_path_is_the_only_one_of_before():
    for step in range(5):
        assert TWO.archs_at(3, step)[:1] == SinglePath(SPACE).archs_at(3, step)
        assert len(set(SinglePath(SPACE, 8).archs_at(3, step))) > 1


@pytest.mark.parametrize(("world", "paths", "batch"), [(1, 2, 7), (2, 4, 16), (2, 2, 9), (4, 4, 8), (2, 8, 45)])
def test_every_image_has_one_path_whoever_has_it(world, paths, batch):
    alone = paths_of(range(batch), paths, batch)
    assert sorted(row for rows in alone.values() for row in rows) == list(range(batch))
    seen = {}
    for rank in range(world):
        places = rows_of(rank, world, batch)
        for path, rows in paths_of(places, paths, batch).items():
            assert path not in seen
            seen[path] = [places[row] for row in rows]
    assert seen == alone


@pytest.mark.parametrize("freeze", ["none", "tensor", "slice"])
def test_gradients_are_those_of_every_path_on_its_images(freeze):
    of = trainer(TWO, freeze=freeze, clip=0.0)
    of.model.train()
    batch, archs = of.batches.at(0), TWO.archs_at(5, 0)
    of._gradients(batch, archs)
    found = gradients(of)
    other = trainer(TWO, clip=0.0)
    other.model.train()
    for path, rows in paths_of(range(len(batch.y)), 2, len(batch.y)).items():
        seed_everything(5, "step", 0, "path", path)
        loss = soft_cross_entropy(other.model(batch.x[rows], archs[path]), batch.target[rows])
        (loss * len(rows) / len(batch.y)).backward()
    wanted = gradients(other)
    assert found.keys() >= wanted.keys()
    for name, gradient in found.items():
        assert torch.allclose(gradient, wanted.get(name, torch.zeros(())), atol=1e-7), name
    if freeze == "none":
        assert len(found) == len(list(of.model.parameters()))
    else:
        assert found.keys() == {name for arch in archs for name in of.model.slices(arch)}


def test_resumed_inside_an_epoch_it_is_the_same_to_the_bit():
    def go(store):
        model = supernet(0.3)
        train(model, Toys(3), TWO, settings(epochs=2, checkpoint_seconds=1e-9, freeze="slice"), 5, store)
        return weights(model)

    whole = Store()
    model = go(whole)
    for checkpoint in whole.saved[:-1]:
        assert same(go(Store(checkpoint)), model)


def test_less_memory_cuts_every_path(monkeypatch):
    inner, most = Trainer._add_gradients, []

    def bounded(self, batch, *rest):
        if len(batch.y) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        most.append(len(batch.y))
        return inner(self, batch, *rest)

    monkeypatch.setattr(Trainer, "_add_gradients", bounded)
    store = Store()
    train(supernet(), Toys(), TWO, settings(epochs=1), 5, store)
    assert max(most) == 2 and "of memory with 4 images at a time" in store.events[0][1]


def test_what_cannot_be_shared_says_why(monkeypatch):
    monkeypatch.setattr(ranks, "world", lambda: 3)
    assert cannot_share(30) == cannot_share(30, 6) == ""
    assert cannot_share(30, 4) == "train.paths = 4 cannot be dealt evenly to 3 processes"
    assert cannot_share(30, accumulate=2) == "train.accumulate takes a batch in parts, as several processes would"
    assert cannot_share(5) == "a batch of 5 has no part for each of 3 processes"


def test_other_rules_have_one_path():
    assert rule_for(TrainSettings(paths=4), SPACE) == SinglePath(SPACE, 4)
    assert rule_for(TrainSettings(rule="sandwich"), SPACE) == Sandwich(SPACE)
    assert trainer(Fixed(SPACE.largest())).paths == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"paths": 0}, "train.paths must be 1, or more with train.rule = 'single_path', not 0 with 'single_path'"),
        ({"paths": 2, "rule": "sandwich"}, "not 2 with 'sandwich'"),
        ({"paths": 9, "batch": 16}, "train.paths = 9 needs train.batch of at least 18, not 16"),
    ],
)
def test_paths_that_cannot_be_are_refused(options, message):
    with pytest.raises(TailorError, match=message):
        TrainSettings(**options)


def test_too_few_images_are_refused_before_training():
    changes = {"data": {"limit": 20}, "train": {"paths": 16, "batch": 0}}
    with pytest.raises(TailorError, match=r"train.paths = 16 needs batches of 32 images, not of 20"):
        prepare(configure(merged(read_recipe("autoformer-digits"), changes)))
