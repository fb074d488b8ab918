"""Fine-tuning presets are the papers' settings."""

from __future__ import annotations

import pytest

from tailorvit.config import configure
from tailorvit.errors import TailorError
from tailorvit.methods.finetune import PRESETS, preset

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
