"""The best epoch by the search images is kept, a training ends early where none is better, and resumes to the bit."""

from __future__ import annotations

import pytest
import torch
from train_toys import SPACE, BadOnce, Store, Toys, plain, same, settings, supernet

from tailorvit.errors import TailorError
from tailorvit.train import Fixed, SinglePath, TrainSettings, train
from tailorvit.train import loop as loop_module

OFTEN = 1e-9  # seconds between checkpoints: every step
CURVE = (50.0, 70.0, 60.0, 70.0, 65.0, 60.0, 55.0, 50.0)  # on the search images, epoch by epoch


def state(model):
    return {n: t.clone() for n, t in model.state_dict().items()}


def go(store, curve=CURVE, toys=None, keep="best", **options):
    """A training whose accuracies are told by epoch; its network's weights after every epoch."""
    toys, model, after = toys or Toys(3), plain(), {}

    def evaluate():
        epoch = one["trainer"].state.meta["step"] // 3
        after[epoch] = state(model)
        return {"search_accuracy": curve[epoch - 1]}

    one = {}
    original = loop_module.Trainer.__init__

    def remember(self, *args, **kwargs):
        one["trainer"] = self
        original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module.Trainer, "__init__", remember)
        chosen = settings(epochs=len(curve), keep=keep, **options)
        trained = train(model, toys, Fixed(), chosen, 5, store, evaluate)
    return model, trained, after


def test_the_later_of_the_best_epochs_is_kept():
    model, trained, after = go(Store())
    assert trained.kept == {"epoch": 4, "of": 8, "planned": 8, "search_accuracy": 70.0}
    assert same(state(model), after[4]) and not same(after[4], after[8])


def test_the_last_epoch_is_kept_unless_told():
    plainly, trained, after = go(Store(), keep="last")
    assert trained.kept is None and same(state(plainly), after[8])
    store = Store()
    go(store, keep="last")
    assert not any("best" in name for name in store.saved[-1][0]) and "best" not in store.saved[-1][1]


def test_a_training_ends_where_it_no_longer_improves():
    model, trained, after = go(Store(), patience=3)
    # Epochs 3, 4 and 5 were no better than epoch 2; epoch 4 was as good, and later.
    assert trained.kept == {"epoch": 4, "of": 5, "planned": 8, "search_accuracy": 70.0}
    assert trained.steps == 15 and max(after) == 5 and same(state(model), after[4])
    assert go(Store(), patience=6)[1].steps == 24, "it had no six evaluations without improvement before the end"


@pytest.mark.parametrize("patience", [0, 2])
def test_resumed_anywhere_it_is_the_same_to_the_bit(monkeypatch, patience):
    monkeypatch.setattr(loop_module, "CHECKPOINT_SHARE", float("inf"))
    whole = Store()
    model, trained, _ = go(whole, patience=patience, checkpoint_seconds=OFTEN)
    assert len(whole.saved) == trained.steps
    for checkpoint in whole.saved[1::3]:  # in the middle of every epoch
        later = Store(checkpoint)
        torch.manual_seed(99)
        again, retrained, _ = go(later, patience=patience, checkpoint_seconds=OFTEN)
        assert same(state(again), state(model)) and retrained == trained, checkpoint[1]["step"]
        assert same(later.checkpoint[0], whole.checkpoint[0]) and later.checkpoint[1] == whole.checkpoint[1]


def test_after_a_roll_back_the_best_is_the_best_of_what_was_trained(monkeypatch):
    monkeypatch.setattr(loop_module, "PATIENCE", 2)
    monkeypatch.setattr(loop_module, "CHECKPOINT_SHARE", float("inf"))

    def bad(done=0):
        toys = BadOnce(3, bad={7, 8})
        toys.requested += range(done)
        return toys

    whole = Store()
    model, trained, after = go(whole, toys=bad(), checkpoint_seconds=OFTEN)
    assert trained.rollbacks == 1 and trained.kept["epoch"] == 4 and same(state(model), after[4])
    for step in (5, 8):
        checkpoint = next(c for c in whole.saved if c[1]["step"] == step)
        again, retrained, _ = go(Store(checkpoint), toys=bad(step), checkpoint_seconds=OFTEN)
        assert same(state(again), state(model)) and retrained == trained


def test_a_supernet_has_no_best_epoch():
    with pytest.raises(TailorError, match="needs one network"):
        train(supernet(), Toys(), SinglePath(SPACE), settings(keep="best"), 0, evaluate=lambda: {"largest": 1.0})
    with pytest.raises(TailorError, match="needs one network"):
        train(plain(), Toys(), Fixed(), settings(keep="best"), 0)
    with pytest.raises(TailorError, match="gives 'search_accuracy'"):
        train(plain(), Toys(), Fixed(), settings(keep="best"), 0, evaluate=lambda: {"mAP": 1.0})


def test_patience_needs_the_best():
    with pytest.raises(TailorError, match=r"train.patience must be 0, or more with train.keep = 'best'"):
        TrainSettings(patience=3)
    with pytest.raises(TailorError, match="not -1"):
        TrainSettings(keep="best", patience=-1)
