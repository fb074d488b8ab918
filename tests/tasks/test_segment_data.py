"""Batches of images and masks: fitted, changed alike, and the same for the same seed and step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tailorvit.errors import TailorError
from tailorvit.tasks.mask_data import (
    Box,
    Change,
    Fitted,
    SegmentSettings,
    changed,
    draw_change,
    fitted_box,
    fitted_mask,
    fitted_pixels,
    read_segment_data,
)
from tailorvit.testing.masks import draw_mask_folder

PLAIN = (1.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = draw_mask_folder(tmp_path_factory.mktemp("shapes"), 12)
    return read_segment_data(str(root), SegmentSettings(image_size=(20, 40)), 0)


def test_images_keep_their_shape_and_the_rest_is_ignored():
    assert fitted_box((30, 60), (20, 40)) == Box(0, 0, 20, 40)
    assert fitted_box((60, 30), (20, 40)) == Box(0, 15, 20, 10)
    assert fitted_box((1, 1000), (16, 16)) == Box(7, 0, 1, 16)
    mask = np.repeat(np.arange(4, dtype=np.uint8), 8)[:, None].repeat(16, 1)  # 32 x 16
    out = fitted_mask(mask, (8, 8))
    assert (out[:, 2:6] == np.repeat(np.arange(4), 2)[:, None]).all()
    assert (out[:, :2] == 255).all() and (out[:, 6:] == 255).all()
    pixels, box = fitted_pixels(Image.fromarray(np.full((32, 16, 3), 200, np.uint8)), (8, 8))
    assert box == Box(0, 2, 8, 4) and (pixels[:, :, 2:6] == 200).all() and not pixels[:, :, :2].any()


def image_of(rows: int, columns: int) -> Fitted:
    """Every pixel has a colour of its own, and its mask number is a function of that colour."""
    red = torch.arange(rows)[:, None].expand(rows, columns) * 8
    green = torch.arange(columns).expand(rows, columns) * 8
    mask = (red // 8 * 5 + green // 8 * 3) % 7
    pixels = torch.zeros(3, rows + 4, columns + 2, dtype=torch.uint8)
    pixels[:, 2:-2, 1:-1] = torch.stack([red, green, red * 0])
    whole = torch.full((rows + 4, columns + 2), 255, dtype=torch.uint8)
    whole[2:-2, 1:-1] = mask
    return Fitted(pixels, whole, Box(2, 1, rows, columns))


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("top", "left"), [(0, 0), (3, 5), (-4, 2), (-6, -7)])
def test_a_mask_follows_its_image_pixel_by_pixel(top, left, flip):
    image, size = image_of(12, 16), (16, 18)
    x, mask, shown = changed(image, Change(12, 16, top, left, flip, PLAIN), size)
    if flip:
        x, mask, shown = x.flip(2), mask.flip(1), shown.flip(1)
    row, column = (x[:2] / 8).round().long()
    expected = ((row * 5 + column * 3) % 7).to(torch.uint8)
    assert torch.equal(mask[shown], expected[shown]) and (mask[~shown] == 255).all()
    for r in range(16):
        for c in range(18):
            inside = 0 <= r + top < 12 and 0 <= c + left < 16
            assert bool(shown[r, c]) == inside
            assert not inside or (row[r, c], column[r, c]) == (r + top, c + left)


@pytest.mark.parametrize("scale", [0.5, 1.7, 2.0])
def test_a_scaled_mask_shows_the_class_that_its_image_shows(scale):
    rows, columns = 24, 24
    mask = torch.zeros(rows, columns, dtype=torch.uint8)
    mask[6:18, 4:12], mask[8:14, 14:24] = 1, 2
    pixels = 255 * torch.stack([mask == k for k in range(3)]).to(torch.uint8)
    new = round(scale * rows)
    start = (new - rows) // 2
    change = Change(new, new, start, start, True, PLAIN)
    x, found, shown = changed(Fitted(pixels, mask, Box(0, 0, rows, columns)), change, (rows, columns))
    sharp = shown & (x.amax(0) > 254.9)  # not mixed of two classes
    assert sharp.sum() > 0.6 * shown.sum() and found[sharp].unique().tolist() == [0, 1, 2]
    assert torch.equal(x.argmax(0).to(torch.uint8)[sharp], found[sharp])


def test_changes_follow_from_seed_step_and_place():
    settings, box = SegmentSettings(jitter=(0.5, 2.0)), Box(0, 4, 32, 24)
    drawn = [draw_change(box, (32, 32), settings, 3, step, place) for step in range(50) for place in range(4)]
    assert drawn == [draw_change(box, (32, 32), settings, 3, step, place) for step in range(50) for place in range(4)]
    assert len(set(drawn)) == 200 and drawn[0] != draw_change(box, (32, 32), settings, 4, 0, 0)
    rows = [c.rows for c in drawn]
    assert 16 <= min(rows) < 20 and 58 < max(rows) <= 64
    assert 70 < sum(c.flip for c in drawn) < 130
    assert all(min(0, c.rows - 32) <= c.top <= max(0, c.rows - 32) for c in drawn)
    still = draw_change(Box(0, 0, 32, 32), (32, 32), replace(settings, jitter=(1.0, 1.0), flip=False), 0, 0, 0)
    assert (still.rows, still.columns, still.top, still.left, still.flip) == (32, 32, 0, 0, False)


def test_batches_are_a_function_of_seed_and_step(data):
    one, two = data.train_batches(4, 7), data.train_batches(4, 7)
    assert one.steps_per_epoch == data.counts["train"] // 4
    state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    run = list(one.iterate(0, 5))
    for step in (4, 2):
        for a, b in zip(run[step], two.at(step)):
            assert torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(next(iter(two.iterate(3, 4))), run[3]))
    assert not torch.equal(run[0].x, data.train_batches(4, 8).at(0).x)
    assert torch.equal(state[0], torch.get_rng_state())
    assert (state[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    epoch = torch.cat([batch.y for batch in run[: one.steps_per_epoch]])
    assert len(epoch.unique()) == len(epoch)
    assert run[0].x.shape == (4, 3, 20, 40) and run[0].target.shape == (4, 20, 40)
    assert (run[0].x * (run[0].target == 255)[:, None] == 0).all(), "beside an image there is nothing"


def test_evaluation_sees_images_as_they_are(data):
    batches = list(data.eval_batches("search", 1))
    assert [int(b.y) for b in batches] == list(range(data.counts["search"]))
    item, x, mask = data.items("search")[0], batches[0].x[0], batches[0].target[0]
    box = fitted_box(item.size, (20, 40))
    with Image.open(item.image) as image:
        pixels, _ = fitted_pixels(image.convert("RGB"), (20, 40))
    mean, std = (torch.tensor(t)[:, None, None] for t in (data.mean, data.std))
    whole = (torch.from_numpy(pixels).float() / 255 - mean) / std
    assert torch.allclose(box.cut(x), box.cut(whole), atol=1e-5)
    assert (x[..., : box.left] == 0).all() and (mask[:, : box.left] == 255).all() and box.left > 0
    assert (box.cut(mask) != 255).all()
    data.mean = (0.0, 0.0, 0.0)  # as a pretrained backbone may ask
    assert not torch.equal(next(iter(data.eval_batches("search", 1))).x[0], x)
    data.mean = tuple(mean.flatten().tolist())


def test_the_test_split_is_sealed(tmp_path):
    data = read_segment_data(str(draw_mask_folder(tmp_path, 8)), SegmentSettings(image_size=16), 0)
    for call in (lambda: data.eval_batches("test", 2), lambda: data.truth("test", 0), lambda: data.items("test")):
        with pytest.raises(TailorError, match="sealed"):
            call()
    with pytest.raises(TailorError, match="reason"):
        data.unseal_test(" ")
    data.unseal_test("final figures")
    assert sum(len(b.x) for b in data.eval_batches("test", 2)) == data.counts["test"]


def test_files_that_change_after_reading_are_named(tmp_path):
    data = read_segment_data(str(draw_mask_folder(tmp_path, 8)), SegmentSettings(image_size=16), 0)
    data._cache.clear()
    item = data.items("search")[0]
    Image.new("RGB", (5, 5)).save(item.image)
    with pytest.raises(TailorError, match=f"{item.image.name}' changed"):
        next(iter(data.eval_batches("search", 1)))
    Image.new("L", item.size[::-1], 9).save(item.mask)
    with pytest.raises(TailorError, match="changed"):
        data.truth("search", 0)
