from __future__ import annotations

import random
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from data_pictures import fill, same

from tailorvit.data import Augment, augment_preset, open_data
from tailorvit.data.augment import crop_boxes, shift_flip
from tailorvit.errors import TailorError
from tailorvit.rng import generator

STANDARD = augment_preset("standard", 32, "photos")
KINDS = {
    "mild": Augment(crop_pad=4, flip=True, smoothing=0.1),
    "mix": Augment(crop_pad=2, mixup=0.8, cutmix=1.0, erasing=0.5),
    "jitter": Augment(scale=(0.3, 1.0), flip=True, jitter=0.4),
    "standard": STANDARD,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return open_data(str(fill(tmp_path_factory.mktemp("r"), {"a": 30, "b": 30, "c": 6})), search_share=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_at_is_pure(data, kind):
    batches = data.train_batches(8, 3, KINDS[kind])
    first = batches.at(7)
    batches.at(0)
    torch.manual_seed(99), random.seed(99), np.random.seed(99)  # noqa: NPY002
    assert same(first, batches.at(7))
    assert same(first, data.train_batches(8, 3, KINDS[kind]).at(7))
    assert not torch.equal(first.x, data.train_batches(8, 4, KINDS[kind]).at(7).x)
    assert first.x.dtype == torch.float32 and first.x.shape == (8, 3, 32, 32)
    assert first.y.dtype == torch.int64 and first.target.shape == (8, 3)
    assert torch.allclose(first.target.sum(1), torch.ones(8))


@pytest.mark.parametrize("kind", KINDS)
def test_global_generators_are_left_alone(data, kind):
    batches = data.train_batches(8, 3, KINDS[kind])
    torch.manual_seed(1), random.seed(1), np.random.seed(1)  # noqa: NPY002
    want = torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(1), random.seed(1), np.random.seed(1)  # noqa: NPY002
    batches.at(0)
    for _ in batches.iterate(0, 3):
        pass
    assert torch.equal(torch.rand(3), want[0]) and (random.random(), np.random.rand()) == want[1:]  # noqa: NPY002


@pytest.mark.parametrize("kind", KINDS)
def test_iterate_equals_at_while_others_draw(data, kind):
    batches = data.train_batches(8, 3, KINDS[kind])
    seen = 0
    for step, batch in zip(range(2, 7), batches.iterate(2, 7)):
        torch.manual_seed(step), random.seed(step), np.random.seed(step)  # noqa: NPY002
        assert same(batch, batches.at(step))
        seen += 1
    assert seen == 5


@pytest.mark.parametrize("kind", KINDS)
def test_global_generators_are_seeded_in_the_callers_thread_only(data, kind, monkeypatch):
    users = []

    @contextmanager
    def seeded(*_):
        users.append(threading.current_thread())
        yield

    monkeypatch.setattr("tailorvit.data.augment.seeded_globals", seeded)
    for workers in (0, None):
        list(data.train_batches(8, 3, KINDS[kind]).iterate(0, 5, workers))
    assert set(users) <= {threading.main_thread()} and bool(users) == (kind in ("mix", "standard"))


def test_iterate_with_processes(data):
    batches = data.train_batches(8, 3, STANDARD)
    for step, batch in zip(range(1, 4), batches.iterate(1, 4, workers=1)):
        assert same(batch, batches.at(step))


def test_iterate_may_be_left_early_and_passes_errors_on(data):
    batches = data.train_batches(8, 3, KINDS["mild"])
    ahead = batches.iterate(0, 1000)
    next(ahead)
    ahead.close()

    def broken(step):
        raise TailorError("boom")

    batches.at = broken
    with pytest.raises(TailorError, match="boom"):
        list(batches.iterate(0, 3))


def test_epochs_cover_the_set_in_new_orders(data):
    n = data.counts["train"]
    batches = data.train_batches(8, 0, Augment())
    assert batches.steps_per_epoch == n // 8
    whole = data.train_batches(10**6, 0, Augment())
    assert whole.steps_per_epoch == 1 and len(whole.at(0).y) == n
    assert not torch.equal(whole.at(0).x, whole.at(1).x)
    known = {x.numpy().tobytes() for x in next(data.eval_batches("train", n))[0]}
    for epoch in (0, 1):
        seen = [x.numpy().tobytes() for k in range(n // 8) for x in batches.at(epoch * (n // 8) + k).x]
        assert len(set(seen)) == n // 8 * 8 and set(seen) <= known
    with pytest.raises(TailorError, match="batch size must be at least 1, not 0"):
        data.train_batches(0, 0, Augment())


def test_images_keep_their_labels(data):
    label = {x.numpy().tobytes(): int(y) for x, y in zip(*next(data.eval_batches("train", 100)))}
    batch = data.train_batches(16, 0, Augment(smoothing=0.3)).at(5)
    assert [label[x.numpy().tobytes()] for x in batch.x] == batch.y.tolist()
    assert torch.allclose(batch.target.max(1).values, torch.tensor(0.8))
    assert torch.equal(batch.target.argmax(1), batch.y)


def test_shift_takes_windows_of_the_image():
    x = torch.arange(2 * 100, dtype=torch.uint8).view(2, 1, 10, 10)
    plain = shift_flip(x, (8, 8), 0, False, generator(0))
    assert torch.equal(plain, x[:, :, 1:9, 1:9])
    found = set()
    for seed in range(60):
        out = shift_flip(x, (8, 8), 1, True, generator(seed))[0, 0]
        windows = {(i, j, f): x[0, 0, i : i + 8, j : j + 8] for i in range(3) for j in range(3) for f in (0, 1)}
        hit = [k for k, w in windows.items() if torch.equal(out, w.flip(1) if k[2] else w)]
        assert len(hit) == 1
        found.add(hit[0])
    assert len(found) > 12


def test_shift_beyond_the_border():
    x = torch.arange(4, dtype=torch.uint8).repeat(4, 1).view(1, 1, 4, 4)
    rows = {tuple(shift_flip(x, (4, 4), 1, False, generator(s))[0, 0, 0].tolist()) for s in range(30)}
    assert rows == {(0, 0, 1, 2), (0, 1, 2, 3), (1, 2, 3, 3)}
    colour = x.expand(1, 3, 4, 4)
    rows = {tuple(shift_flip(colour, (4, 4), 1, False, generator(s))[0, 2, 0].tolist()) for s in range(30)}
    assert rows == {(1, 0, 1, 2), (0, 1, 2, 3), (1, 2, 3, 2)}


def test_crop_boxes_lie_inside_and_keep_the_area():
    boxes = crop_boxes(500, (37, 41), (0.3, 0.6), generator(0))
    left, top, right, bottom = boxes.T
    assert (left >= 0).all() and (top >= 0).all() and (right <= 41).all() and (bottom <= 37).all()
    share = (right - left) * (bottom - top) / (37 * 41)
    assert share.min() > 0.27 and share.max() < 0.65 and share.std() > 0.05


@pytest.mark.parametrize("how", [{"crop_pad": 3}, {"flip": True}, {"scale": (0.3, 0.9)}, {"jitter": 0.4},
                                 {"randaugment": "rand-m9-mstd0.5-inc1"}, {"erasing": 1.0}, {"mixup": 0.8},
                                 {"cutmix": 1.0}])  # fmt: skip
def test_each_part_changes_images(data, how):
    plain, changed = data.train_batches(7, 0, Augment()).at(1), data.train_batches(7, 0, Augment(**how)).at(1)
    assert torch.equal(plain.y, changed.y) and torch.isfinite(changed.x).all()
    assert not torch.equal(plain.x, changed.x)
    mixes = bool({"mixup", "cutmix"} & set(how))
    assert torch.equal(plain.target, changed.target) != mixes
    if mixes:  # the odd last image has no partner
        assert torch.equal(plain.x[-1], changed.x[-1]) and torch.equal(plain.target[-1], changed.target[-1])


def test_grey_images_take_the_full_recipe():
    data = open_data("digits", limit=40)
    batch = data.train_batches(20, 0, data.augment("standard")).at(0)
    assert batch.x.shape == (20, 1, 8, 8) and torch.isfinite(batch.x).all()


def test_posterise_survives_the_strongest_draw(data):
    batches = data.train_batches(40, 0, Augment(randaugment="rand-m10-n8-p1-inc1"))
    assert all(torch.isfinite(batches.at(s).x).all() for s in range(3))


def test_presets():
    assert augment_preset("none", 32, "x") == Augment()
    assert augment_preset("mild", 8, "digits", channels=1) == Augment(mixup=0.2, smoothing=0.1)
    assert augment_preset("mild", 64, "photos") == Augment(crop_pad=8, flip=True, smoothing=0.1)
    assert not augment_preset("standard", 32, "torchvision:SVHN@data").flip
    assert augment_preset("mild", 64, "photos", channels=1) == Augment(crop_pad=8, smoothing=0.1)
    assert (STANDARD.randaugment, STANDARD.erasing, STANDARD.mixup, STANDARD.cutmix, STANDARD.switch, STANDARD.scale,
            STANDARD.jitter, STANDARD.smoothing, STANDARD.flip) == (
        "rand-m9-mstd0.5-inc1", 0.25, 0.8, 1.0, 0.5, (0.08, 1.0), 0.4, 0.1, True)  # fmt: skip
    assert augment_preset("auto", 32, "x", images=10**6) == augment_preset("mild", 32, "x")
    assert augment_preset("auto", 64, "x", images=4999) == augment_preset("mild", 64, "x")
    assert augment_preset("auto", 64, "x", images=5000).scale == (0.3, 1.0)
    with pytest.raises(TailorError, match=r"Unknown augmentation preset 'standrad'. Did you mean 'standard'"):
        augment_preset("standrad", 32, "x")


@pytest.mark.parametrize("how", [{"erasing": 2}, {"mixup": -1}, {"crop_pad": -1}, {"randaugment": "m9"},
                                 {"scale": (0.5, 0.2)}, {"scale": (0, 1)}, {"smoothing": -0.1}])  # fmt: skip
def test_augment_is_checked_at_birth(how):
    with pytest.raises(TailorError, match=f"Augmentation: .*{next(iter(how))}"):
        Augment(**how)
    assert Augment(**STANDARD.to_dict()) == STANDARD
