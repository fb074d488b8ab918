from __future__ import annotations

import numpy as np
import pytest
import torch
from data_pictures import fill, picture
from PIL import Image

from tailorvit.data import open_data, preprocess
from tailorvit.errors import TailorError
from tailorvit.portable import to_pixels


def saved(tmp_path, image, name="a.png", **options):
    image.save(tmp_path / name, **options)
    with Image.open(tmp_path / name) as again:
        return to_pixels(again, 3, (again.height, again.width))


def test_transparency_lies_on_white(tmp_path):
    rgba = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    assert (saved(tmp_path, rgba) == 255).all()
    half = Image.new("LA", (4, 4), (0, 128))
    assert abs(int(saved(tmp_path, half)[0, 0, 0]) - 127) <= 1
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert saved(tmp_path, palette)[:, 0, 0].tolist() == [10, 20, 30]
    assert (saved(tmp_path, palette, transparency=1) == 255).all()


def test_deep_grey_is_scaled(tmp_path):
    deep = Image.fromarray(np.array([[0, 257 * 100], [257 * 200, 65535]], np.uint16))
    assert saved(tmp_path, deep)[1].tolist() == [[0, 100], [200, 255]]
    real = Image.fromarray(np.array([[0.0, 0.2], [0.4, 1.0]], np.float32))
    assert saved(tmp_path, real, "a.tif")[2].tolist() == [[0, 51], [102, 255]]


def test_print_colours_and_bits(tmp_path):
    cmyk = Image.new("RGB", (16, 16), (250, 10, 10)).convert("CMYK")
    red = saved(tmp_path, cmyk, "a.jpg", quality=95)[:, 8, 8].astype(int)
    assert red[0] > 200 and red[1] < 60
    assert set(saved(tmp_path, Image.new("1", (4, 4), 1)).ravel().tolist()) == {255}


def test_orientation_is_respected(tmp_path):
    image = Image.new("RGB", (60, 40))
    image.paste((255, 255, 255), (0, 0, 30, 40))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    picture_ = saved(tmp_path, image, "a.jpg", exif=exif)
    assert picture_[0, 20, 5] < 50 and picture_[0, 20, 55] > 200
    exif[0x0112] = 6  # lies on its side: white half comes to the top
    image.save(tmp_path / "b.jpg", exif=exif)
    with Image.open(tmp_path / "b.jpg") as again:
        tall = to_pixels(again, 3, (60, 40))
    assert tall[0, 5, 20] > 200 and tall[0, 55, 20] < 50


def test_short_side_is_kept_and_the_middle_cut(tmp_path):
    wide = Image.new("RGB", (300, 100))
    wide.paste((255, 255, 255), (100, 0, 200, 100))
    pixels = to_pixels(wide, 1, (50, 50))
    assert pixels.shape == (1, 50, 50) and pixels[:, :, 2:-2].min() > 250


def test_channels_follow_the_files(tmp_path):
    grey = fill(tmp_path / "grey", {"a": 4, "b": 4}, mode="L")
    assert open_data(str(grey)).channels == 1
    with Image.open(grey / "a" / "000.png") as image:
        image.convert("P").save(grey / "a" / "000.png")  # a palette of greys is grey
    assert open_data(str(grey)).channels == 1
    picture(grey / "a" / "000.png", mode="RGBA")
    data = open_data(str(grey))
    assert data.channels == 3 and len(data.mean) == 3 and not data.skipped
    x, _ = data.examples("search", [0])
    assert x.shape == (1, 3, 32, 32)


def test_the_test_folder_decides_nothing(tmp_path):
    root = fill(tmp_path / "r", {"train/a": 3, "train/b": 3}, mode="L")
    fill(root, {"test/a": 9, "test/b": 9}, size=(200, 200))
    data = open_data(str(root))
    assert data.channels == 1 and data.image_size == (32, 32)


@pytest.mark.parametrize(("side", "size"), [(20, 32), (40, 32), (100, 96), (223, 160), (300, 224)])
def test_size_follows_the_median(tmp_path, side, size):
    root = fill(tmp_path / "r", {"a": 3, "b": 3}, size=(side + 9, side))
    assert open_data(str(root)).image_size == (size, size)
    assert open_data(str(root), image_size=24).image_size == (24, 24)


def test_broken_files_are_left_out_and_listed(pets):
    (pets / "cat" / "header.png").write_bytes(b"no picture")
    whole = picture(pets / "dog" / "cut.png", 3)
    whole.write_bytes(whole.read_bytes()[:400])
    (pets / "dog" / "notes.txt").write_text("ignored")
    (pets / ".hidden").mkdir()
    data = open_data(str(pets), test_share=0.01)
    data.unseal_test("the cut file may have landed there")
    assert {p.rsplit("/", 1)[1]: bool(why) for p, why in data.skipped} == {"header.png": True, "cut.png": True}
    assert sum(data.counts.values()) == 33
    assert not any("cut.png" in n for s in data.counts for n in data.names(s))


def test_streaming_replaces_what_fails(split_pets):
    clean = open_data(str(split_pets), cache_bytes=0)
    cut = split_pets / "train" / "cat" / "002.png"
    cut.write_bytes(cut.read_bytes()[:400])
    data = open_data(str(split_pets), cache_bytes=0)
    assert data.counts["train"] == 14 and data.skipped == ()
    x, y = next(data.eval_batches("train", 20))
    want, _ = next(clean.eval_batches("train", 20))
    assert [p.rsplit("/", 1)[1] for p, _ in data.failed] == ["002.png"]
    assert y.tolist() == [0] * 8 + [1] * 6
    raw, clean_raw = data.examples("train", range(14))[0], clean.examples("train", range(14))[0]
    assert torch.equal(raw[2], clean_raw[3]) and torch.equal(raw[3:], clean_raw[3:]) and x.shape == want.shape


def test_the_last_of_a_class_is_replaced_by_its_first(split_pets):
    clean = open_data(str(split_pets), cache_bytes=0).examples("train", range(14))[0]
    cut = split_pets / "train" / "cat" / "007.png"
    cut.write_bytes(cut.read_bytes()[:400])
    raw = open_data(str(split_pets), cache_bytes=0).examples("train", range(14))[0]
    assert torch.equal(raw[7], clean[0]) and torch.equal(raw[8:], clean[8:])


def test_streaming_equals_cache(split_pets):
    cached, streamed = open_data(str(split_pets)), open_data(str(split_pets), cache_bytes=0)
    assert cached.mean == streamed.mean
    for (a, _), (b, _) in zip(cached.eval_batches("train", 5), streamed.eval_batches("train", 5)):
        assert torch.equal(a, b)


def test_classes_nobody_can_read(pets, tmp_path):
    for i in range(3):
        path = pets / "owl" / f"{i:03d}.png"
        path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(TailorError, match="None of the training images of class 'owl' can be read, the first because"):
        open_data(str(pets))
    for i in range(3):
        (pets / "owl" / f"{i:03d}.png").write_bytes(b"")
    with pytest.raises(TailorError, match="None of the images of class 'owl' can be read, the first because"):
        open_data(str(pets))


def test_folder_faults(tmp_path, pets):
    (tmp_path / "empty").mkdir()
    with pytest.raises(TailorError, match=r"has no class folders; images belong in ROOT/CLASS"):
        open_data(str(tmp_path / "empty"))
    (pets / "ant").mkdir()
    with pytest.raises(TailorError, match=r"Class folder '.*ant' has no images"):
        open_data(str(pets))
    with pytest.raises(TailorError, match="one class only, 'cat'"):
        open_data(str(fill(tmp_path / "one", {"cat": 5})))
    with pytest.raises(TailorError, match="Class 'dog' has 2 images"):
        open_data(str(fill(tmp_path / "few", {"cat": 5, "dog": 2})))
    with pytest.raises(TailorError, match="split folder test but no 'train' folder"):
        open_data(str(fill(tmp_path / "half", {"test/cat": 3, "test/dog": 3})))
    lacking = fill(tmp_path / "lacking", {"train/cat": 3, "train/dog": 3, "test/cat": 1, "test/emu": 1})
    with pytest.raises(TailorError, match="'emu' has images in the test split but none in train"):
        open_data(str(lacking))
    with pytest.raises(TailorError, match="two folders for one split: val and valid"):
        open_data(str(fill(tmp_path / "twice", {"train/a": 3, "val/a": 1, "valid/a": 1})))


@pytest.mark.parametrize("side", [40, 100])
def test_preprocess_equals_evaluation(tmp_path, side):
    data = open_data(str(fill(tmp_path / "r", {"a": 6, "b": 6}, size=(side + 30, side))))
    x, _ = next(data.eval_batches("search", 2))
    for image, name in zip(x, data.names("search")):
        assert torch.equal(preprocess(name, **data.preprocessing)[0], image)


def test_preprocess_faults(tmp_path):
    how = {"image_size": 32, "channels": 1, "mean": (0.5,), "std": (0.2,)}
    with pytest.raises(TailorError, match="There is no image file"):
        preprocess(tmp_path / "a.png", **how)
    (tmp_path / "a.png").write_bytes(b"text")
    with pytest.raises(TailorError, match=r"Cannot read '.*a\.png' as an image: not an image"):
        preprocess(tmp_path / "a.png", **how)
    picture(tmp_path / "a.png")
    assert preprocess(tmp_path / "a.png", **how).shape == (1, 1, 32, 32)
    with pytest.raises(TailorError, match="1 or 3 channels"):
        preprocess(tmp_path / "a.png", **{**how, "channels": 3})
