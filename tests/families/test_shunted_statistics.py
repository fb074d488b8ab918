"""Batch statistics of the Shunted stem travel: through resumes, skipped steps, extraction and kills."""

from __future__ import annotations

import pytest
import torch

import tailorvit
from tailorvit.data import Batch
from tailorvit.families import FAMILIES, named_space
from tailorvit.methods.stages import StageSink
from tailorvit.rng import seed_everything
from tailorvit.train import RULES, Sink, TrainSettings, train
from tailorvit.train.loop import inherit

SHUNTED = FAMILIES["shunted"]
SMALL = named_space("shunted-8px")


def pictures(space, n=2):
    shared = SHUNTED.settings(dict(space.settings))
    return torch.randn(n, shared.channels, *shared.image_size, generator=torch.Generator().manual_seed(1))


class Toys:
    """Learnable batches as a function of the step; steps in ``bad`` hold a NaN."""

    steps_per_epoch = 2

    def __init__(self, bad=()):
        self.bad = bad

    def iterate(self, start, stop):
        for step in range(start, stop):
            rng = torch.Generator().manual_seed(step)
            y = torch.randint(10, (8,), generator=rng)
            x = torch.randn(8, 1, 8, 8, generator=rng) + y.view(-1, 1, 1, 1) / 3
            x[0, 0, 0, 0] = float("nan") if step in self.bad else x[0, 0, 0, 0]
            yield Batch(x, y, torch.eye(10)[y])


class Kept(Sink):
    """Remembers the states, or begins with one."""

    def __init__(self, start=None):
        self.start, self.states = start, []

    def save(self, tensors, meta):
        self.states.append(({k: v.clone() for k, v in tensors.items()}, dict(meta)))

    def load(self):
        return self.start


def trained(toys, sink, rule="sandwich", **given):
    settings = TrainSettings(**{"epochs": 3, "batch": 8, "checkpoint_seconds": 0.0, "warmup": 0, **given})
    seed_everything(7, "toy")
    model = SHUNTED.supernet(SMALL, 0.1)
    train(model, toys, RULES[rule](SMALL), settings, 5, sink)
    return model


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_resumed_training_keeps_the_statistics():
    sink = Kept()
    whole = trained(Toys(), sink).state_dict()
    statistics = [k for k in whole if "running" in k]
    assert len(statistics) == 2 and all(whole[k].std() > 0.01 for k in statistics)
    assert len(sink.states) == 3
    for state in sink.states:
        assert same(trained(Toys(), Kept(state)).state_dict(), whole)


def test_a_skipped_step_leaves_the_statistics_alone():
    model = trained(Toys(bad=(3,)), Kept())
    assert all(t.isfinite().all() for t in model.state_dict().values())
    assert model(pictures(SMALL)).isfinite().all()


def test_statistics_are_extracted_and_inherited():
    model = trained(Toys(), Kept(), epochs=1)
    state = model.state_dict()
    wider = SHUNTED.supernet(SMALL.shift({"embed": 1}))
    inherit(wider, model)
    for other in (SHUNTED.extract(model, SMALL.smallest()), wider):
        theirs = other.state_dict()
        assert all(torch.equal(theirs[k], v) for k, v in state.items() if "patch_embed.norms" in k)


def test_a_killed_run_ends_as_the_whole_one(tmp_path, monkeypatch):
    """The supernet of a resumed run comes from its checkpoint, and its statistics end in the network."""
    sets = ["method=autoformer", "family=shunted", "train.epochs=1", "final.train.epochs=1", "final.how=finetune"]
    (tmp_path / "mine.toml").write_text("")

    def go(name):
        sets_all = [*sets, "baseline=false", "train.rule=single_path"]
        recipe = str(tmp_path / "mine.toml")
        tailorvit.run(recipe, out=tmp_path / name, tiny=True, settings=sets_all, progress="quiet")

    def stop(self, step, total, facts):
        if self.stage == "final" and step == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StageSink, "progress", stop)
        go("killed")
    tailorvit.resume(tmp_path / "killed", progress="quiet")
    go("whole")
    killed, whole = (tailorvit.load(tmp_path / n).model.state_dict() for n in ("killed", "whole"))
    assert same(killed, whole) and whole["patch_embed.norms.0.running_mean"].abs().max() > 0.01
