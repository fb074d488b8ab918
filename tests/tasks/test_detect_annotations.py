"""Annotations of VOC and COCO: layouts, splits, and every mistake named by its file."""

from __future__ import annotations

import json

import numpy as np
import pytest
from detect_tools import CLASSES, coco_table, make_coco, make_voc, scene, voc_text
from PIL import Image
from pycocotools import mask as library

from tailorvit.errors import TailorError
from tailorvit.tasks.annotations import read_annotations
from tailorvit.tasks.detect import TASK, DetectSettings
from tailorvit.tasks.detect_data import mask_pixels

SMALL = DetectSettings(image_size=48, width=8)


def objects(photo):
    return [(t.label, t.box) for t in photo.things]


def true_objects(number, side=48):
    return [(CLASSES.index(kind), tuple(map(float, box))) for kind, box, _ in scene(number, side)[1]]


def one_voc(root, extra="", text=None):
    """A folder with a good picture p0 and p1, whose annotation is changed."""
    make_voc(root, 2, lists=False)
    text = voc_text("p1.png", (48, 48), scene(1)[1], extra) if text is None else text
    (root / "Annotations" / "p1.xml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_annotations(str(root))


def thing(name="square", box=(1, 1, 10, 10), more=""):
    sides = "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box))
    return f"<object><name>{name}</name>{more}<bndbox>{sides}</bndbox></object>"


def test_voc_boxes_are_the_drawn_ones_and_lists_make_the_splits(tmp_path):
    found = read_annotations(str(make_voc(tmp_path / "in" / "side")))
    assert found.classes == CLASSES and not found.masks and found.notes == [] and found.skipped == {}
    assert [objects(p) for p in found.photos] == [true_objects(i) for i in range(8)]
    assert [p.origin for p in found.photos] == ["val", "test", *["train"] * 6]
    again = read_annotations(str(tmp_path))  # as an archive unpacks
    assert again.fingerprint == found.fingerprint
    (tmp_path / "in/side/Annotations/p3.xml").write_text(voc_text("p3.png", (48, 48), scene(2)[1]))
    assert read_annotations(str(tmp_path)).fingerprint != found.fingerprint


def test_flat_folders_and_split_folders_of_voc(tmp_path):
    for part, ids in (("train", (0, 1)), ("valid", (2,)), ("test", (3,))):
        (tmp_path / part).mkdir()
        for i in ids:
            Image.fromarray(scene(i)[0]).save(tmp_path / part / f"p{i}.png")
            (tmp_path / part / f"p{i}.xml").write_text(voc_text(f"p{i}.png", (48, 48), scene(i)[1]))
    found = read_annotations(str(tmp_path))
    assert [(p.name, p.origin) for p in found.photos] == [
        ("test/p3.png", "test"),
        ("train/p0.png", "train"),
        ("train/p1.png", "train"),
        ("valid/p2.png", "val"),
    ]
    flat = read_annotations(str(tmp_path / "train"))
    assert [objects(p) for p in flat.photos] == [true_objects(i) for i in (0, 1)] and flat.photos[0].origin == "all"


def test_coco_boxes_and_masks_are_the_drawn_ones(tmp_path):
    found = read_annotations(str(make_coco(tmp_path)))
    assert found.classes == CLASSES and found.masks and found.skipped == {}
    for i, photo in enumerate(found.photos):
        assert objects(photo) == true_objects(i)
        for t, (_, _, mask) in zip(photo.things, scene(i)[1]):
            np.testing.assert_array_equal(mask_pixels(t.mask, photo.size), mask)


def test_coco_splits_by_files_and_by_folders(tmp_path):
    for style in ("files", "folders"):
        root = tmp_path / style
        for part, first in (("train", 0), ("valid", 4), ("test", 6)):
            folder = root / part if style == "folders" else root / "images" / part
            folder.mkdir(parents=True)
            for i in range(first, first + 2):
                Image.fromarray(scene(i)[0]).save(folder / f"p{i}.png")
            table = json.dumps(coco_table(2, first=first, prefix="" if style == "folders" else f"{part}/"))
            place = folder / "_annotations.coco.json" if style == "folders" else root / f"instances_{part}2017.json"
            place.write_text(table)
        found = read_annotations(str(root))
        assert [p.origin for p in found.photos] == ["test"] * 2 + ["train"] * 2 + ["val"] * 2, style
        assert found.skipped == {}


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (thing(box=(60, 1, 70, 10)), "lies outside the image of 48x48"),
        (thing(box=(10, 1, 10, 10)), "its box is empty: (10, 1, 10, 10)"),
        (thing(box=(20, 1, 10, 10)), "its box is empty"),
        (thing(box=("nan", 1, 10, 10)), "no finite number"),
        (thing(box=("", 1, 10, 10)), "no finite number"),
        (thing(name=" "), "it has no class name"),
        ("<object><name>square</name></object>", "no finite number"),
    ],
)
def test_a_bad_object_is_named_and_the_others_stay(tmp_path, extra, why):
    found = one_voc(tmp_path, extra)
    assert list(found.skipped) == ["Annotations/p1.xml, object 3"] and why in found.skipped[next(iter(found.skipped))]
    assert objects(found.photos[1]) == true_objects(1)
    assert "1 object left out, the first is Annotations/p1.xml, object 3" in found.notes[0]


def test_a_box_over_the_edge_is_cut_and_named(tmp_path):
    found = one_voc(tmp_path, thing(box=(30, -5, 60, 20)))
    assert found.photos[1].things[2].box == (29, 0, 48, 20) and found.skipped == {}
    assert found.notes == [
        "Boxes that reach over the edge of their image are cut to it: 1 (Annotations/p1.xml, object 3)."
    ]
    within = one_voc(tmp_path / "b", thing(box=(0, 0, 48, 48)))  # writers that count from 0
    assert within.photos[1].things[2].box == (0, 0, 48, 48) and within.notes == []


def test_difficult_objects_and_a_list_of_classes(tmp_path):
    found = one_voc(tmp_path, thing(more="<difficult>1</difficult>") + thing(name="zebra"))
    hard = found.photos[1].things[2]
    assert hard.trained and not hard.counts and found.classes == (*CLASSES, "zebra")
    (tmp_path / "classes.txt").write_text("square\ndisc\n")
    listed = read_annotations(str(tmp_path))
    assert listed.classes == ("square", "disc")
    assert listed.skipped == {"Annotations/p1.xml, object 4": "its class 'zebra' is not in the list of classes"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<annotation><object>", "it is not XML"),
        (b"\x00\xff\x00", "it is not XML"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', "declares a document type"),
        (voc_text("p1.png", (40, 48), []), "is for 40x48 pixels and 'p1.png' has 48x48"),
    ],
)
def test_a_bad_file_is_named_and_the_others_stay(tmp_path, text, why):
    found = one_voc(tmp_path, text=text)
    assert list(found.skipped) == ["Annotations/p1.xml"] and why in found.skipped["Annotations/p1.xml"]
    assert [p.name for p in found.photos] == ["JPEGImages/p0.png"]


def test_xml_is_bounded_in_size_and_depth(tmp_path, monkeypatch):
    deep = one_voc(tmp_path, text=b"<a>" * 50_000 + b"</a>" * 50_000)
    assert objects(deep.photos[1]) == []
    monkeypatch.setattr("tailorvit.tasks.annotations.LARGEST_XML", 1 << 18)
    assert "larger than 256 kB" in read_annotations(str(tmp_path)).skipped["Annotations/p1.xml"]


def test_missing_and_broken_images(tmp_path):
    root = make_voc(tmp_path)
    (root / "JPEGImages" / "p2.png").unlink()
    (root / "JPEGImages" / "p3.png").write_bytes(b"no image")
    whole = (root / "JPEGImages" / "p4.png").read_bytes()
    (root / "JPEGImages" / "p4.png").write_bytes(whole[: len(whole) // 2])
    (root / "Annotations" / "p5.xml").unlink()
    (root / "JPEGImages" / "p6.png").rename(root / "JPEGImages" / "p6.jpg")
    Image.fromarray(scene(6)[0]).save(root / "JPEGImages" / "p6.jpg")
    whole = (root / "JPEGImages" / "p6.jpg").read_bytes()
    (root / "JPEGImages" / "p6.jpg").write_bytes(whole[: len(whole) * 3 // 4])
    Image.new("RGB", (9, 9)).save(root / "JPEGImages" / "p9.png")
    data = TASK.read(str(root), SMALL, 0)
    assert data.skipped["Annotations/p2.xml"] == "there is no image 'p2' for it"
    assert data.skipped["Annotations/p3.xml"] == "the image 'p3.png' cannot be read: not an image"
    assert "truncated" in data.skipped["Annotations/p4.xml"]  # the header of a PNG is read to its end
    assert "truncated" in data.skipped["JPEGImages/p6.jpg"]
    assert "Images that cannot be decoded are left out: 1." in data.notes
    assert data.skipped["p5"] == "ImageSets/Main/train.txt names it, but it has no .xml"
    assert any("without an .xml left out" in n for n in data.notes)
    assert data.counts == {"train": 1, "search": 1, "test": 1}


def test_pictures_turned_by_their_camera_are_upright(tmp_path):
    root = make_voc(tmp_path, 3, lists=False)
    for i, side in ((1, (24, 48)), (2, (48, 24))):  # width, height in the annotation; both files are stored 48x24
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", (48, 24)).save(root / "JPEGImages" / f"p{i}.png", exif=exif)
        (root / "Annotations" / f"p{i}.xml").write_text(voc_text("", side, [("disc", (2, 3, 20, 40))]))
    found = read_annotations(str(root))
    assert found.photos[1].size == (48, 24) and objects(found.photos[1]) == [(0, (2.0, 3.0, 20.0, 40.0))]
    assert found.skipped == {
        "Annotations/p2.xml": "its annotation is for 48x24 pixels and 'p2.png' has 24x48 when upright"
    }


def changed_coco(root, change):
    make_coco(root, 3)
    table = coco_table(3)
    change(table)
    (root / "annotations.json").write_text(json.dumps(table))
    return read_annotations(str(root))


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("category_id", 99, "its class 99 is not among the categories"),
        ("category_id", None, "its class None is not"),
        ("category_id", [1], "is not among the categories"),
        ("image_id", 77, "of the image 77, which is not listed"),
        ("bbox", [1, 2, 0, 5], "its box is empty"),
        ("bbox", [60, 2, 5, 5], "lies outside the image"),
        ("bbox", [1, 2, 3], "not four numbers"),
        ("bbox", [1, 2, 3, 10**400], "not four numbers"),
        ("segmentation", [[1, 2, 3, 4]], "three or more points"),
        ("segmentation", [[1, 2, 3, 4, 5, "6"]], "three or more points"),
        ("segmentation", {"size": [48, 40], "counts": [48 * 40]}, "its mask is of [48, 40] pixels, the image of"),
        ("segmentation", {"size": [48, 48], "counts": [10, 20]}, "do not fill the image"),
        ("segmentation", {"size": [48, 48], "counts": "PPP"}, "do not fill the image"),
    ],
)
def test_a_bad_object_of_coco_is_named(tmp_path, key, value, why):
    found = changed_coco(tmp_path, lambda t: t["annotations"][3].update({key: value}))
    ((what, reason),) = found.skipped.items()
    assert what.startswith("annotations.json, object 4") and why in reason
    assert [len(p.things) for p in found.photos] == [2, 1, 2]


def test_compressed_run_lengths_and_crowds(tmp_path):
    mask = scene(1)[1][0][2]
    packed = library.encode(np.asfortranarray(mask.astype(np.uint8)))
    text = {"size": packed["size"], "counts": packed["counts"].decode()}
    found = changed_coco(tmp_path, lambda t: t["annotations"][2].update(segmentation=text, iscrowd=1))
    crowd = found.photos[1].things[0]
    np.testing.assert_array_equal(mask_pixels(crowd.mask, (48, 48)), mask)
    assert not crowd.trained and not crowd.counts and found.skipped == {}


@pytest.mark.parametrize("name", ["gone.png", "../p1.png", "/p1.png"])
def test_an_image_of_coco_that_is_not_there(tmp_path, name):
    Image.new("RGB", (48, 48)).save(tmp_path / "p1.png")
    found = changed_coco(tmp_path / "data", lambda t: t["images"][1].update(file_name=name))
    assert found.skipped == {f"annotations.json, image {name}": "there is no such image"}


def test_what_leaves_nothing_is_refused(tmp_path):
    for text, why in (
        (str(tmp_path / "none"), "There is no folder"),
        (str(tmp_path), "has no annotations that can be read"),
    ):
        with pytest.raises(TailorError, match=why):
            read_annotations(text)
    root = make_voc(tmp_path / "a")
    with (root / "ImageSets/Main/test.txt").open("a") as file:
        file.write("p4\n")
    with pytest.raises(TailorError, match=r"'p4' is in train.txt and in test.txt"):
        read_annotations(str(root))
    make_voc(tmp_path / "b")
    with pytest.raises(TailorError, match="several data sets"):
        read_annotations(str(tmp_path))
    coco = make_coco(tmp_path / "c")
    (coco / "annotations2.json").write_text((coco / "annotations.json").read_text())
    with pytest.raises(TailorError, match="several annotation files"):
        read_annotations(str(coco))
    (coco / "annotations2.json").unlink()
    (coco / "annotations.json").write_text("[" * 100_000)
    with pytest.raises(
        TailorError, match=r"No object of .* can be used\. 1 file left out, the first is annotations\.json"
    ):
        read_annotations(str(coco))
    with pytest.raises(TailorError, match="needs a mask for every object"):
        TASK.read(str(make_voc(tmp_path / "d")), DetectSettings("mask", 48, width=8), 0)
