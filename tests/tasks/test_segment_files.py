"""Folders of images and masks: every usual layout is read, and every mistake is named by its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tailorvit.errors import TailorError
from tailorvit.tasks.mask_data import SegmentSettings, read_segment_data
from tailorvit.tasks.mask_files import read_mask_folder
from tailorvit.testing.masks import SHAPES, draw_mask_folder

SMALL = SegmentSettings(image_size=16)


def put(path: Path, array, palette: bool = False, **how) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(array, np.uint8))
    if palette:
        image.putpalette([0, 0, 0, 200, 0, 0, 0, 200, 0])
    image.save(path, **how)
    return path


def photo(path: Path, size=(6, 8)) -> Path:
    return put(path, np.full((*size, 3), 99))


def mask(*numbers: int, size=(6, 8)):
    return np.resize(np.asarray(numbers), size)


def pair(root: Path, image: str, of_mask: str, *numbers: int) -> None:
    photo(root / image)
    put(root / of_mask, mask(*(numbers or (0, 1, 2))))


LAYOUTS = {
    "names beside each other": ("images/{}.jpg", "masks/{}.png", "all"),
    "splits below": ("images/train/{}.jpg", "masks/train/{}.png", "train"),
    "splits above": ("train/images/{}.jpg", "train/masks/{}.png", "train"),
    "the words in the split's name": ("data/trainval/cat/{}.jpg", "data/trainval_trimaps/cat/{}.png", "train"),
    "Oxford-Pets as published": ("images/{}.jpg", "annotations/trimaps/{}.png", "all"),
    "ADE20K": ("images/validation/{}.jpg", "annotations/validation/{}.png", "val"),
    "VOC": ("JPEGImages/{}.jpg", "SegmentationClass/{}.png", "all"),
    "CamVid": ("test/{}.png", "testannot/{}.png", "test"),
    "names that end in mask": ("images/{}.jpg", "masks/{}_mask.png", "all"),
    "other sub-folders": ("images/cat/{}.jpg", "masks/{}.png", "all"),
    "in one folder": ("{}.jpg", "{}.png", "all"),
    "in one folder, named": ("{}.png", "{}_mask.png", "all"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_read(tmp_path, layout):
    image, of_mask, part = LAYOUTS[layout]
    for name in ("a", "b"):
        pair(tmp_path, image.format(name), of_mask.format(name))
    found = read_mask_folder(str(tmp_path))
    assert [i.image.relative_to(tmp_path).as_posix() for i in found.items] == [image.format(n) for n in "ab"]
    assert [i.mask.relative_to(tmp_path).as_posix() for i in found.items] == [of_mask.format(n) for n in "ab"]
    assert {i.part for i in found.items} == {part}
    assert found.skipped == {} and found.classes == ("0", "1", "2")


def test_the_same_name_in_two_folders_keeps_its_own_mask(tmp_path):
    pair(tmp_path, "images/cat/1.jpg", "masks/cat/1.png", 0, 1)
    pair(tmp_path, "images/dog/1.jpg", "masks/dog/1.png", 0, 2)
    assert [i.mask.parent.name for i in read_mask_folder(str(tmp_path)).items] == ["cat", "dog"]


def test_numbers_from_one_are_counted_from_zero_and_trimaps_get_their_names(tmp_path):
    for name in "ab":
        pair(tmp_path, f"images/{name}.jpg", f"annotations/trimaps/{name}.png", 1, 2, 3, 255)
    found = read_mask_folder(str(tmp_path))
    assert found.classes == ("pet", "background", "border")
    assert found.truth(found.items[0])[0, :5].tolist() == [0, 1, 2, 255, 0]
    assert any("are 1, 2, 3" in note for note in found.notes)


def test_a_list_of_classes_says_which_numbers_there_are(tmp_path):
    pair(tmp_path, "images/a.png", "masks/a.png", 1, 2, 255)
    (tmp_path / "classes.txt").write_text("sky\nsea\n\nsand\n")
    assert read_mask_folder(str(tmp_path)).numbers == (0, 1, 2)
    (tmp_path / "classes.txt").write_text("sky\nsea\n")
    assert read_mask_folder(str(tmp_path)).numbers == (1, 2), "no mask holds 0, and 2 needs counting from 1"
    (tmp_path / "classes.txt").write_text("2 sea\n1: sky\n")
    found = read_mask_folder(str(tmp_path))
    assert found.numbers == (2, 1) and found.classes == ("sea", "sky")
    assert found.truth(found.items[0])[0, :3].tolist() == [1, 0, 255]


def test_ignored_numbers_are_no_class(tmp_path):
    pair(tmp_path, "images/a.png", "masks/a.png", 0, 1, 2)
    found = read_mask_folder(str(tmp_path), (0, 255))
    assert found.numbers == (1, 2) and found.truth(found.items[0])[0, :3].tolist() == [255, 0, 1]
    (tmp_path / "classes.txt").write_text("sky\nsea\nsand\n")
    assert read_mask_folder(str(tmp_path), (0, 255)).numbers == (1, 2, 3), "names count from 1 where 0 is ignored"


def test_black_and_white_masks_have_two_classes(tmp_path):
    pair(tmp_path, "images/a.png", "masks/a.png", 0, 255)
    found = read_mask_folder(str(tmp_path))
    assert found.numbers == (0, 255) and found.truth(found.items[0])[0, :2].tolist() == [0, 1]
    assert any("255 is the second class" in note for note in found.notes)


def test_palettes_and_grey_saved_as_colour_are_class_numbers(tmp_path):
    photo(tmp_path / "images" / "a.png")
    put(tmp_path / "masks" / "a.png", mask(0, 1, 2), palette=True)
    photo(tmp_path / "images" / "b.png")
    put(tmp_path / "masks" / "b.png", mask(0, 1, 2)[..., None].repeat(3, 2))
    found = read_mask_folder(str(tmp_path))
    assert Image.open(found.items[0].mask).mode == "P"
    assert [found.truth(i)[0, :3].tolist() for i in found.items] == [[0, 1, 2]] * 2


def _wrong_size(root: Path) -> None:
    put(root / "masks" / "bad.png", mask(0, 1, size=(8, 6)))


def _unknown(root: Path) -> None:
    put(root / "masks" / "bad.png", mask(0, 1, 77))


def _missing(root: Path) -> None:
    (root / "masks" / "bad.png").unlink()


def _colours(root: Path) -> None:
    put(root / "masks" / "bad.png", np.stack([mask(0, 1), mask(1, 0), mask(2, 1)], -1))


def _broken_mask(root: Path) -> None:
    path = root / "masks" / "bad.png"
    path.write_bytes(path.read_bytes()[:40])


def _broken_image(root: Path) -> None:
    (root / "images" / "bad.png").write_bytes(b"no image")


def _jpeg(root: Path) -> None:
    (root / "masks" / "bad.png").unlink()
    put(root / "masks" / "bad.jpg", mask(0, 1))


def _nothing(root: Path) -> None:
    put(root / "masks" / "bad.png", mask(255))


def _twice(root: Path) -> None:
    put(root / "masks" / "bad.tif", mask(0, 1))


def _kind(root: Path) -> None:
    Image.fromarray(mask(0, 1).astype(np.float32)).save(root / "masks" / "bad.tif")
    (root / "masks" / "bad.png").unlink()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_wrong_size, "the mask 'bad.png' has 6x8 px, the image 8x6"),
        (_unknown, "the mask 'bad.png' holds 77, but the classes are 0, 1, 2"),
        (_missing, "it has no mask of its name"),
        (_colours, "its colours are no class numbers"),
        (_broken_mask, "the mask 'bad.png' cannot be used"),
        (_broken_image, "the image cannot be read: not an image"),
        (_jpeg, "a JPEG file changes class numbers"),
        (_nothing, "all pixels of the mask 'bad.png' are ignored"),
        (_twice, "it has more than one mask: 'masks/bad.png' and 'masks/bad.tif'"),
        (_kind, "pixels of the kind 'F' are no class numbers"),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_a_file_that_is_wrong_is_named_and_left_out(tmp_path, spoil, why, listed):
    for name in ("good", "fine", "bad"):
        pair(tmp_path, f"images/{name}.png", f"masks/{name}.png")
    if listed:
        (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    spoil(tmp_path)
    found = read_mask_folder(str(tmp_path))
    assert [i.name for i in found.items] == ["images/fine.png", "images/good.png"]
    assert why in found.skipped.pop("images/bad.png") and not found.skipped


def test_folders_of_which_nothing_can_be_used_are_refused(tmp_path):
    def refused(*words: str, ignored=(255,)) -> None:
        with pytest.raises(TailorError) as error:
            read_mask_folder(str(tmp_path), ignored)
        assert all(word in str(error.value) for word in words), error.value

    with pytest.raises(TailorError, match="no folder"):
        read_mask_folder(str(tmp_path / "none"))
    refused("no image with a mask")
    photo(tmp_path / "images" / "a.png")
    refused("no image with a mask")
    put(tmp_path / "masks" / "a.png", mask(0, 1, size=(3, 3)))
    refused("None of the 1 images", "images/a.png", "3x3 px")
    put(tmp_path / "masks" / "a.png", mask(4, 255))
    refused("the number 4 alone")
    put(tmp_path / "masks" / "a.png", np.arange(240).reshape(15, 16))
    photo(tmp_path / "images" / "a.png", (15, 16))
    refused("240 different numbers", "classes.txt")
    (tmp_path / "classes.txt").write_text("sky\nsky\n")
    refused("classes.txt", "'sky' twice")
    (tmp_path / "classes.txt").write_text("sky\n")
    refused("classes.txt", "lists 1 class")


def test_masks_without_an_image_are_counted(tmp_path):
    pair(tmp_path, "images/a.png", "masks/a.png")
    put(tmp_path / "masks" / "z.png", mask(0, 1))
    assert "1 mask(s) have no image, the first 'masks/z.png'." in read_mask_folder(str(tmp_path)).notes


def test_split_folders_are_kept_and_missing_splits_are_drawn(tmp_path):
    whole = draw_mask_folder(tmp_path / "whole", {"train": 4, "val": 2, "test": 3})
    assert read_segment_data(str(whole), SMALL, 0).counts == {"train": 4, "search": 2, "test": 3}
    two = draw_mask_folder(tmp_path / "two", {"train": 8, "validation": 3})
    data = read_segment_data(str(two), SMALL, 0)
    assert data.counts == {"train": 6, "search": 2, "test": 3} and data.classes == SHAPES
    assert all("/train/" in name for name in data.split_record()["search"])
    none = draw_mask_folder(tmp_path / "none", 20)
    data = read_segment_data(str(none), SMALL, 0)
    assert data.counts == {"train": 14, "search": 3, "test": 3}
    names = [name for split in ("train", "search", "test") for name in data.split_record()[split]]
    assert len(set(names)) == 20
    assert read_segment_data(str(none), SMALL, 1).split_record() != data.split_record()


def test_a_split_record_brings_the_same_splits_back_and_other_data_are_refused(tmp_path):
    root = draw_mask_folder(tmp_path, 8)
    record = read_segment_data(str(root), SMALL, 0).split_record()
    assert read_segment_data(str(root), SMALL, 5, record).split_record() == record
    first = root / "masks" / "000.png"
    before = first.read_bytes()
    put(first, mask(0, 1, 2, size=(24, 32)))
    with pytest.raises(TailorError, match="an image or a mask became another"):
        read_segment_data(str(root), SMALL, 0, record)
    first.write_bytes(before)
    assert read_segment_data(str(root), SMALL, 0, record).split_record() == record
    image = root / "images" / "003.png"
    kept = image.read_bytes()
    put(image, np.zeros((24, 32, 3)))
    with pytest.raises(TailorError, match="an image or a mask became another"):
        read_segment_data(str(root), SMALL, 0, record)
    image.write_bytes(kept)
    (root / "images" / "003.png").unlink()
    with pytest.raises(TailorError, match=r"'images/003\.png' is gone"):
        read_segment_data(str(root), SMALL, 0, record)


def test_splits_that_cannot_be_made_are_refused(tmp_path):
    few = draw_mask_folder(tmp_path / "few", 2)
    with pytest.raises(TailorError, match="at least 3"):
        read_segment_data(str(few), SMALL, 0)
    untrained = draw_mask_folder(tmp_path / "untrained", {"val": 2, "test": 2})
    with pytest.raises(TailorError, match="'train' folder"):
        read_segment_data(str(untrained), SMALL, 0)
    mixed = draw_mask_folder(tmp_path / "mixed", {"train": 3, "": 1})
    with pytest.raises(TailorError, match=r"'images/000\.png' lies outside"):
        read_segment_data(str(mixed), SMALL, 0)


def test_a_class_that_no_training_mask_holds_is_told(tmp_path):
    for part in ("train", "val", "test"):
        for k in range(2):
            pair(tmp_path, f"{part}/images/{k}.png", f"{part}/masks/{k}.png", *((0, 1) if part == "train" else (0, 2)))
    assert "No training mask holds '2', so no network can learn it." in read_segment_data(str(tmp_path), SMALL, 0).notes


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image_size", 8),
        ("image_size", (64, 5000)),
        ("decoder", 2),
        ("jitter", (2.0, 0.5)),
        ("ignore", (-1,)),
        ("scales", (1.0, 9.0)),
    ],
)
def test_settings_are_checked(key, value):
    with pytest.raises(TailorError, match=f"segment.{key}"):
        SegmentSettings(**{key: value})
