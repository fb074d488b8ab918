"""Data by different doors: tables, DataFrames, arrays, torch Datasets and data sets of Hugging Face, read alike."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas
import pytest
import torch
from data_pictures import fill, picture
from PIL import Image

import tailorvit
from tailorvit.data import open_data
from tailorvit.data.memory import source_of
from tailorvit.data.sources import read_source
from tailorvit.errors import TailorError

NAMES = ("cat", "dog")


def table(path, rows, header=("file", "label")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def rows_of(root, with_split=False):
    files = sorted(root.rglob("*.png"), key=lambda p: p.name)  # another order than the folder's
    return [
        (p.relative_to(root).as_posix(), p.parent.name, *([p.parent.parent.name] if with_split else [])) for p in files
    ]


def same_data(a, b, size=16):
    """Splits, classes and the images of a batch are equal."""
    first, second = (open_data(text, image_size=size) for text in (a, b))
    assert first.classes == second.classes
    assert {k: v for k, v in first.split_record().items() if k in ("train", "search", "test")} == {
        k: v for k, v in second.split_record().items() if k in ("train", "search", "test")
    }
    (x, y), (u, v) = (next(iter(d.eval_batches("search", 64))) for d in (first, second))
    return torch.equal(x, u) and torch.equal(y, v)


# -- tables -----------------------------------------------------------------------------------------------------------


def test_a_table_of_a_folders_images_is_that_folder(tmp_path):
    root = fill(tmp_path / "photos", {"cat": 9, "dog": 7})
    text = table(tmp_path / "photos" / "list.csv", rows_of(root))
    assert same_data(str(root), text)
    assert read_source(text).fingerprint == read_source(str(root)).fingerprint


def test_a_table_may_name_splits(tmp_path):
    root = fill(tmp_path, {f"{part}/{name}": 4 for part in ("train", "val", "test") for name in NAMES})
    text = table(tmp_path / "list.tsv", [], ())
    with (tmp_path / "list.tsv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t").writerows([("Path", "Class", "Split"), *rows_of(root, with_split=True)])
    assert same_data(str(root), text)


def test_columns_may_be_named(tmp_path):
    fill(tmp_path, {"cat": 3, "dog": 3})
    rows = [(name, "x", label) for name, label in rows_of(tmp_path)]
    place = table(tmp_path / "list.csv", rows, ("where", "label", "animal"))
    with pytest.raises(TailorError, match="no column is the image: add"):
        read_source(place)
    assert read_source(f"table:{place}?image=where&label=animal").classes == NAMES


@pytest.mark.parametrize(
    ("rows", "header", "sentence"),
    [
        ([("a.png",)], ("file", "label"), r"line 2 has 1 values for 2 columns"),
        ([("a.png", "cat"), ("a.png", "dog")], ("file", "label"), r"line 3 gives 'a.png' the class 'dog', but an ear"),
        ([("a.png", "cat", "tarin")], ("file", "label", "split"), r"line 2 has the split 'tarin'"),
        ([("a.png", "cat", "test")], ("file", "label", "split"), r"has the split test but no 'train'"),
        ([("", "cat")], ("file", "label"), r"names no image with a class"),
        ([("gone.png", "cat"), ("a.png", "dog")], ("file", "label"), r"None of the images of class 'cat' can be read"),
        ([], ("file", "file"), r"names its columns, each by its own name"),
    ],
)
def test_mistakes_in_tables_are_named(tmp_path, rows, header, sentence):
    picture(tmp_path / "a.png")
    with pytest.raises(TailorError, match=sentence):
        read_source(table(tmp_path / "list.csv", rows, header))


def test_lines_that_are_not_used_are_told(tmp_path):
    fill(tmp_path, {"cat": 3, "dog": 3})
    rows = rows_of(tmp_path)
    notes = read_source(table(tmp_path / "list.csv", [*rows, rows[0], ("", "cat")])).notes
    assert [note.partition(" line")[0] for note in notes] == ["1", "1"]


# -- objects ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (24, 3, 16, 16), dtype=np.uint8), np.arange(24) % 3


class Pictures(torch.utils.data.Dataset):
    classes = ("cat", "dog", "fox")

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


def test_arrays_tensors_and_datasets_of_them_are_the_same_data(tmp_path, arrays):
    x, y = arrays
    np.savez(tmp_path / "a.npz", x=x, y=y)
    known = read_source(str(tmp_path / "a.npz")).fingerprint
    forms = [(x, y), [torch.from_numpy(x), torch.from_numpy(y)], {"x": x, "y": y}, (x.astype(np.float64) / 255, y)]
    forms += [
        Pictures(torch.from_numpy(x), y),
        Pictures([Image.fromarray(image.transpose(1, 2, 0)) for image in x], torch.from_numpy(y)),
    ]
    assert {read_source(source_of(form)).fingerprint for form in forms} == {known}
    assert len({source_of(form) for form in forms}) == 1


def test_labels_may_be_words(arrays):
    x, y = arrays
    read = read_source(source_of((x, np.asarray(["fox", "cat", "dog"])[y])))
    assert read.classes == ("cat", "dog", "fox")
    assert read.labels.tolist() == [(2, 0, 1)[label] for label in y]


def test_parts_and_class_names_of_a_mapping(arrays):
    x, y = arrays
    read = read_source(source_of({"train_x": x[:18], "train_y": y[:18], "test_x": x[18:], "test_y": y[18:]}))
    assert (read.origin == "test").sum() == 6


def test_a_dataset_of_pictures_of_different_sizes(arrays):
    images = [torch.from_numpy(image[:, : 12 + i % 4]) for i, image in enumerate(arrays[0])]
    read = read_source(source_of(Pictures(images, arrays[1])))
    assert read.classes == Pictures.classes
    at = read.labels.tolist().index(1)  # sorted by class, then by number
    read.prepare(None, 24, 1 << 20)
    assert Image.open(read.names[at]).size == (16, images[1].shape[1])
    assert np.array_equal(np.asarray(Image.open(read.names[at])), images[1].permute(1, 2, 0).numpy())


def test_a_data_frame_is_its_table(tmp_path, monkeypatch):
    root = fill(tmp_path / "photos", {"cat": 6, "dog": 6})
    monkeypatch.chdir(root)
    frame = pandas.DataFrame(rows_of(root), columns=["image", "target"])
    assert same_data(str(root), source_of(frame))


def test_a_data_set_of_hugging_face_is_its_saved_form(tmp_path):
    datasets = pytest.importorskip("datasets")
    root = fill(tmp_path / "photos", {"cat": 6, "dog": 6})
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES))})
    files = sorted(root.rglob("*.png"))
    made = datasets.Dataset.from_dict(
        {"image": [str(p) for p in files], "label": [NAMES.index(p.parent.name) for p in files]}, features=features
    )
    made.save_to_disk(str(tmp_path / "saved"))
    assert same_data(source_of(made), str(tmp_path / "saved"))
    assert same_data(source_of(made), str(root))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (3, r"Data of the type int cannot be read; it can be: a path"),
        ((np.asarray([object()]), np.asarray([1])), r"array of Python objects"),
        (["a", "b"], r"images need uint8 or float|has shape"),
        ([("a", "b", "c")], r"Item 0 of the data set is a tuple, not a pair"),
        ([(np.zeros((4, 4)), "cat")], r"Item 0 of the data set has the label 'cat'"),
        ([(np.zeros((4, 4, 2)), 0)], r"Item 0 of the data set has an image of shape \(4, 4, 2\)"),
        ([], r"The data set is empty"),
        (pandas.DataFrame({"a": [1]}), r"needs one column of image files"),
    ],
)
def test_objects_that_are_no_images_are_refused(data, sentence):
    with pytest.raises(TailorError, match=sentence):
        source_of(data)


def test_data_of_another_process_are_not_guessed():
    with pytest.raises(TailorError, match="another process had in memory"):
        read_source("memory:0123456789abcdef")


# -- runs -------------------------------------------------------------------------------------------------------------

ARCH = {"family": "vit", "depth": 1, "embed": 16, "heads": 1, "mlp": 2}
TINY = {"settings": {"train.epochs": 1, "arch": ARCH, "baseline": False}, "method": "fixed", "progress": "quiet"}


def test_a_run_on_objects_keeps_a_copy_and_resumes_from_it(tmp_path, arrays, monkeypatch):
    x, y = np.repeat(arrays[0], 4, 0), np.repeat(arrays[1], 4)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    ours = tailorvit.run(data=(x, y), out=tmp_path / "run", **TINY)
    theirs = tailorvit.run(data=tmp_path / "a.npz", out=tmp_path / "other", **TINY)
    for name in ("test_accuracy", "arch", "params"):
        assert ours[name] == theirs[name]
    weights = [(tmp_path / run / "network" / "network.safetensors").read_bytes() for run in ("run", "other")]
    assert weights[0] == weights[1]

    monkeypatch.setattr("tailorvit.data.memory._HELD", {})  # as in a later process
    (tmp_path / "run" / "result.json").unlink()
    assert tailorvit.resume(tmp_path / "run", progress="quiet").test_accuracy == ours.test_accuracy
    assert tailorvit.evaluate(tmp_path / "run", (x, y), split="test").accuracy == pytest.approx(ours.test_accuracy)
    recipe = (tmp_path / "run" / "recipe.toml").read_text(encoding="utf-8")
    assert 'source = "memory:' in recipe
    assert json.loads((tmp_path / "run" / "info.json").read_text(encoding="utf-8"))["data"]["path"] is None
