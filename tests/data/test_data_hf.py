"""Data sets of the library datasets: saved to disk or by name; columns found or named; one sentence for every fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from data_shards import png

from tailorvit.data import Augment, open_data, shard_files
from tailorvit.data.splits import SPLITS
from tailorvit.errors import TailorError
from tailorvit.trunks import libraries

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()


def table(numbers, **columns):
    """A data set of pictures with a label each, and other columns."""
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee", "cat"])}
    rows = {"image": [{"bytes": png(i), "path": None} for i in numbers], "label": [i % 3 for i in numbers]}
    for name, (feature, values) in columns.items():
        features[name], rows[name] = feature, values
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def saved(data, folder: Path) -> str:
    data.save_to_disk(folder)
    return str(folder)


def refusal(source: str) -> str:
    with pytest.raises(TailorError) as error:
        open_data(source)
    assert "\n" not in str(error.value)
    return str(error.value)


def pictures(data, split):
    data.unseal_test("compare")
    x, y = data.examples(split, range(data.counts[split]))
    return {(data.classes[k], image.numpy().tobytes()) for k, image in zip(y.tolist(), x)}


def test_a_saved_data_set_holds_what_a_folder_holds(tmp_path):
    parts = {"train": range(30), "validation": range(30, 42), "test": range(42, 51)}
    whole = datasets.DatasetDict({name: table(numbers) for name, numbers in parts.items()})
    data = open_data(saved(whole, tmp_path / "set"))
    assert data.classes == ("ant", "bee", "cat") and data.image_size == (32, 32) and data.notes == ()
    assert data.counts == {"train": 30, "search": 12, "test": 9}
    for name, numbers in parts.items():
        for i in numbers:
            file = tmp_path / "folder" / name / data.classes[i % 3] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(i))
    folder = open_data(str(tmp_path / "folder"))
    for split in SPLITS:
        assert pictures(data, split) == pictures(folder, split)
    again = open_data(f"hf:{tmp_path / 'set'}", saved=data.split_record())
    assert again.split_record() == data.split_record() and again.fingerprint == data.fingerprint
    batches = data.train_batches(10, 0, Augment(flip=True))
    for step, batch in enumerate(batches.iterate(2, 6, 1), 2):
        assert (batch.x == batches.at(step).x).all()


def test_one_data_set_is_split_here(tmp_path):
    data = open_data(saved(table(range(40)).shuffle(seed=3).select(range(36)), tmp_path / "set"))
    assert sum(data.counts.values()) == 36
    assert len(set().union(*(pictures(data, s) for s in SPLITS))) == 36
    other = open_data(saved(table(range(36)), tmp_path / "other"))
    assert other.fingerprint != data.fingerprint
    names = table(range(12)).remove_columns("label").add_column("label", ["x", "y"] * 6)
    assert open_data(saved(names, tmp_path / "names")).classes == ("x", "y")


def test_columns_are_found_or_named(tmp_path):
    more = table(range(18), fine=(datasets.ClassLabel(names=list("abcdef")), [i % 6 for i in range(18)]))
    place = saved(more, tmp_path / "set")
    sentence = refusal(place)
    assert (
        "the columns label, fine could be the label: add ?label=NAME" in sentence and "image, label, fine" in sentence
    )
    assert open_data(f"hf:{place}?label=fine").classes == tuple("abcdef")
    assert "has no column 'depth' for image" in refusal(f"hf:{place}?label=fine&image=depth")
    bare = saved(table(range(9)).remove_columns("image"), tmp_path / "bare")
    assert "no column is the image" in refusal(bare)
    unlabelled = datasets.DatasetDict(
        {"train": table(range(12)), "test": table(range(9)).map(lambda row: {"label": -1}), "extra": table(range(3))}
    )
    data = open_data(saved(unlabelled, tmp_path / "no-labels"))
    assert sum(data.counts.values()) == 12
    assert data.notes[0].startswith("The split 'extra' of") and data.notes[1] == (
        "The test images have no labels and are not used."
    )
    only = datasets.DatasetDict({"test": table(range(9))})
    assert "has the splits test, and none with images is called train" in refusal(saved(only, tmp_path / "only"))
    two = datasets.DatasetDict({"train": table(range(9)), "valid": table(range(9)), "validation": table(range(9))})
    assert "has two splits for val: train, valid, validation" in refusal(saved(two, tmp_path / "two"))
    none = saved(table(range(9)).map(lambda row: {"label": None}), tmp_path / "none")
    assert "The column 'label' of" in refusal(none) and "holds no labels" in refusal(none)


def test_images_that_cannot_be_decoded_are_replaced(tmp_path):
    rows = table(range(30)).to_dict()
    rows["image"][7]["bytes"] = b"broken"
    rows["image"][8] = None
    path = tmp_path / "outside.png"
    path.write_bytes(png(77))
    rows["image"][9] = {"bytes": None, "path": str(path)}
    data = open_data(saved(datasets.Dataset.from_dict(rows, table([0]).features), tmp_path / "set"), cache_bytes=0)
    for split in ("train", "search"):
        pictures(data, split)
    pictures(data, "test")
    assert dict(data.failed) == {"item 7": "not an image", "item 8": "the data set holds no bytes for it"}


def test_a_set_by_name(tmp_path, monkeypatch):
    asked = []

    def load(name, config):
        asked.append((name, config))
        return datasets.DatasetDict({"train": table(range(30)), "test": table(range(30, 39))})

    monkeypatch.setattr(libraries, "hub_reachable", lambda: True)
    monkeypatch.setattr(datasets, "load_dataset", load)
    assert open_data("hf:somebody/insects").counts["test"] == 9
    assert open_data("hf:somebody/insects:small?image=image").counts["test"] == 9
    assert asked == [("somebody/insects", None), ("somebody/insects", "small")]


def test_the_hub_out_of_reach_is_one_sentence(monkeypatch):
    monkeypatch.setattr(libraries, "hub_reachable", lambda: False)
    sentence = refusal("hf:nobody/nothing")
    assert sentence.startswith("'hf:nobody/nothing' cannot be loaded (")
    assert sentence.endswith("what is larger than the disk is read as shards:hf://datasets/nobody/nothing.")
    assert "There is no 'hf'" in refusal("hf")


def test_a_damaged_or_missing_library_or_folder_is_one_sentence(tmp_path, monkeypatch):
    place = Path(saved(table(range(12)), tmp_path / "set"))
    next(place.glob("*.arrow")).write_bytes(b"not arrow")
    assert f"'{place}' cannot be read as a saved data set" in refusal(str(place))
    monkeypatch.setattr(shard_files, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    assert "needs the package datasets: pip install 'tailorvit[hf]'" in refusal(str(place))


def test_nothing_of_a_data_set_is_run(tmp_path, monkeypatch):
    """A script beside the data, as older data sets have it, is refused by the library and never imported."""
    folder = tmp_path / "insects"
    folder.mkdir()
    (folder / "insects.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr(libraries, "hub_reachable", lambda: True)
    for source in (f"hf:{folder}", f"hf:{folder / 'insects.py'}"):
        assert "cannot be" in refusal(source)
    assert not (tmp_path / "ran").exists() and "insects" not in sys.modules
