"""Batches of a detector's data: boxes and masks follow the pixels, and (seed, step) decides everything."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from detect_tools import COLOURS, make_coco, make_voc
from PIL import Image

from tailorvit.errors import TailorError
from tailorvit.rng import generator
from tailorvit.tasks.annotations import read_annotations
from tailorvit.tasks.detect import TASK, DetectSettings
from tailorvit.tasks.detect_data import (
    FRAME,
    DetectionData,
    Placement,
    augmented,
    fitted,
    framed,
    placement,
    split_photos,
    visible_things,
)

SETTINGS = DetectSettings("mask", 64, (0.5, 2.0), 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_coco(tmp_path_factory.mktemp("shapes") / "coco", 8)


@pytest.fixture(scope="module")
def data(folder):
    return TASK.read(str(folder), SETTINGS, 0)


def seen(pixels, label):
    """The box of the pixels that have an object's colour, with room for the blur of resizing."""
    name = ("disc", "square")[label]
    near = np.abs(pixels.astype(int) - np.array(COLOURS[name])[:, None, None]).max(0) < 60
    rows, columns = np.flatnonzero(near.any(1)), np.flatnonzero(near.any(0))
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


def test_boxes_and_masks_follow_scale_cut_and_mirror(data, monkeypatch):
    monkeypatch.setattr("tailorvit.tasks.detect_data._coloured", lambda image, rng: image)
    checked, mirrored, cut = 0, 0, 0
    for photo in data._splits["train"]:
        for k in range(12):
            pixels, place = augmented(data.pixels(photo), photo.size, (64, 64), (0.5, 2.0), generator(0, k, photo.name))
            window = pixels.shape[1:]
            found = visible_things(photo.things, place, window)
            cut += len(found) < len(photo.things)
            for thing, box in found:
                assert 0 <= box[0] < box[2] <= window[1] <= 64 and 0 <= box[1] < box[3] <= window[0] <= 64
                if min(box[2] - box[0], box[3] - box[1]) < 8:
                    continue
                if thing.label == 1 or place.to_canvas(thing.box) == box:  # a disc that is cut does not fill its box
                    np.testing.assert_allclose(seen(pixels, thing.label), box, atol=2.5)
                frame = framed(thing.mask, place, box)
                at = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
                inside = np.asarray(at.resize((FRAME, FRAME), box=box)).astype(int)
                near = np.abs(inside - COLOURS[("disc", "square")[thing.label]]).max(2) < 75
                assert (near == frame).mean() > 0.9
                checked, mirrored = checked + 1, mirrored + place.mirrored
    assert checked > 60 and 20 < mirrored < checked - 20 and cut > 5


def test_a_polygon_and_its_run_lengths_give_one_frame(data):
    photo = data._splits["train"][0]
    square = next(t for t in photo.things if t.label == 1)
    from tailorvit.tasks.detect_data import run_lengths

    place = Placement(photo.size, 1.5, 1.25, -3.0, -2.0, True)
    box = place.to_canvas(square.box)
    wider = (box[0] - 3, box[1] - 2, box[2] + 4, box[3] + 1)
    both = [framed(mask, place, wider) for mask in (square.mask, run_lengths(square.mask, photo.size))]
    assert (both[0] == both[1]).mean() > 0.96 and 0.2 < both[0].mean() < 0.95


def test_a_placement_and_its_inverse():
    place = Placement((40, 60), 0.5, 0.75, 3.0, 5.0, True)
    box = (10.0, 5.0, 30.0, 35.0)
    there = torch.tensor([place.to_canvas(box), (-50.0, -50.0, 100.0, 100.0)])
    back = place.to_file(there)
    torch.testing.assert_close(back, torch.tensor([box, (0.0, 0.0, 60.0, 40.0)]))


def test_images_keep_their_proportions_at_the_top_left(tmp_path):
    image = Image.new("RGB", (100, 50), (10, 20, 30))
    assert fitted(image, 3, (64, 80)).shape == (3, 40, 80)
    assert placement((50, 100), (64, 80)) == Placement((50, 100), 0.8, 0.8)
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("a.jpg", "a.png"):
        Image.new("RGB", (1003, 501)).save(tmp_path / name, exif=exif)  # decoded at a smaller scale, and upright
        with Image.open(tmp_path / name) as opened:
            assert fitted(opened, 1, (64, 80)).shape == (1, 64, 32)


def test_batches_are_a_function_of_seed_and_step(data):
    batches = data.train_batches(3, 5)
    assert data.counts == {"train": 6, "search": 1, "test": 1} and batches.steps_per_epoch == 2
    once = list(batches.iterate(0, 5))
    for a, b in zip(once[2:], data.train_batches(3, 5).iterate(2, 5)):
        assert all(torch.equal(s, t) for s, t in zip(a, b))
    assert not torch.equal(once[0].x, once[2].x)
    assert not torch.equal(once[0].x, next(iter(data.train_batches(3, 6).iterate(0, 1))).x)
    assert [t.shape for t in once[0]] == [(3, 3, 64, 64), (3, 2, 5), (3, 2, FRAME, FRAME)]
    assert data.train_batches(50, 5).at(0).x.shape[0] == 6


def test_evaluation_takes_images_as_they_are_and_keeps_the_test_split_shut(folder):
    data = TASK.read(str(folder), SETTINGS, 0)
    with pytest.raises(TailorError, match="test split is sealed"):
        data.eval_batches("test", 2)
    data.unseal_test("the end")
    (batch,) = data.eval_batches("test", 2)
    photo = data.photos("test")[0]
    for row, thing in zip(batch.y[0], photo.things):
        assert row[0] == thing.label + 1
        np.testing.assert_allclose(row[1:], np.array(thing.box) * 64 / 48, rtol=1e-6)
    shown = batch.x[0] * torch.tensor(data.std)[:, None, None] + torch.tensor(data.mean)[:, None, None]
    torch.testing.assert_close(shown * 255, torch.from_numpy(data.pixels(photo)).float(), atol=1e-2, rtol=0)


def test_the_record_of_splits_restores_them_and_refuses_other_data(folder, tmp_path):
    data = TASK.read(str(folder), SETTINGS, 0)
    record = data.split_record()
    names = [n for s in ("train", "search", "test") for n in record[s]]
    assert sorted(names) == [f"images/p{i}.png" for i in range(8)]
    assert TASK.read(str(folder), SETTINGS, 9, record).split_record() == record
    assert TASK.read(str(folder), SETTINGS, 9).split_record() != record
    other = make_coco(tmp_path / "c", 7)
    with pytest.raises(TailorError, match="changed since its splits were made"):
        TASK.read(str(other), SETTINGS, 0, record)


def test_splits_of_the_data_are_used_and_completed(tmp_path):
    root = make_voc(tmp_path)
    plain = DetectSettings(image_size=48, width=8)
    data = TASK.read(str(root), plain, 0)
    assert data.split_record()["search"] == ["JPEGImages/p0.png"] and data.counts["train"] == 6
    (root / "ImageSets/Main/test.txt").unlink()
    two = TASK.read(str(root), plain, 0)
    assert two.split_record()["test"] == ["JPEGImages/p0.png"] and two.counts == {"train": 5, "search": 1, "test": 1}
    photos = read_annotations(str(root)).photos
    with pytest.raises(TailorError, match="2 images that can be used; train, search and test need one each"):
        split_photos([p for p in photos if p.origin == "train"][:2], "here", 0)
    with pytest.raises(TailorError, match="no images to train on"):
        split_photos([p for p in photos if p.origin == "val"], "here", 0)


def test_objects_without_a_mask_are_named_where_masks_are_used(folder):
    found = read_annotations(str(folder))
    photo = found.photos[0]
    bare = [type(t)(t.label, t.box) for t in photo.things[:1]]
    found.photos[0] = type(photo)(photo.name, photo.path, photo.size, (*bare, photo.things[1]))
    used = found.with_masks()
    assert found.masks and used.skipped == {"images/p0.png, object 1": "it has no mask"}
    assert used.photos[0].things == photo.things[1:] and used.notes == ["1 object without a mask left out."]


def test_grey_images_have_one_channel_and_memory_is_bounded(tmp_path, monkeypatch):
    root = make_voc(tmp_path, 4, lists=False)
    for file in (root / "JPEGImages").iterdir():
        Image.open(file).convert("L").save(file)
    monkeypatch.setattr("tailorvit.tasks.detect_data.CACHE", 0)
    data = TASK.read(str(root), DetectSettings(image_size=48, width=8), 0)
    assert isinstance(data, DetectionData) and data.channels == 1 and data._kept == {}
    assert data.train_batches(2, 0).at(0).x.shape == (2, 1, 48, 48)
    gone = data.photos("search")[0].path
    gone.write_bytes(b"")
    with pytest.raises(TailorError, match="cannot be read any more"):
        list(data.eval_batches("search", 1))
