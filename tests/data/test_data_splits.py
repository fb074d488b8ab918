from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from data_pictures import fill, picture

from tailorvit.data import open_data
from tailorvit.data.splits import SPLITS, balanced_subset, make_splits
from tailorvit.errors import TailorError


def every(labels, where="all", seed=0, search=0.1, test=0.2):
    labels = np.asarray(labels)
    origin = np.asarray([where] * len(labels)) if isinstance(where, str) else np.asarray(where)
    return make_splits(labels, origin, [f"c{i}" for i in range(labels.max() + 1)], seed, search, test)


def test_shares_are_kept_in_every_class_and_nothing_is_lost():
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    splits = every(labels)
    assert sorted(np.concatenate(list(splits.values())).tolist()) == list(range(160))
    for label, size in enumerate((100, 50, 10)):
        assert [int((labels[splits[s]] == label).sum()) for s in SPLITS] == [0.7 * size, 0.1 * size, 0.2 * size]


@pytest.mark.parametrize("size", [3, 4, 5, 9])
def test_small_classes_reach_every_split(size):
    labels = np.repeat([0, 1], [size, 40])
    for shares in ((0.1, 0.2), (0.45, 0.5), (0.01, 0.01)):
        splits = every(labels, search=shares[0], test=shares[1])
        assert all((labels[splits[s]] == 0).any() for s in SPLITS)


def test_seed_decides_and_classes_do_not_disturb_each_other():
    labels = np.repeat([0, 1], [30, 30])
    assert all((every(labels)[s] == every(labels)[s]).all() for s in SPLITS)
    assert any((every(labels)[s] != every(labels, seed=1)[s]).any() for s in SPLITS)
    more = every(np.repeat([0, 1], [30, 60]))
    assert (more["test"][:6] == every(labels)["test"][:6]).all()


@pytest.mark.parametrize(
    ("images", "search"),
    [(100, 20), (400, 80), (600, 120), (800, 150), (1000, 150), (1400, 150), (1800, 180), (5000, 500)],
)
def test_small_sets_hold_out_more_for_the_search(images, search):
    """At least 150 search images, but at most a quarter of those that are not for the test."""
    splits = every(np.arange(images) % 10, search=None)
    counts = {s: len(splits[s]) for s in SPLITS}
    assert counts["search"] == pytest.approx(search, abs=10) and counts["test"] == images // 5
    assert counts["search"] <= 0.26 * (counts["search"] + counts["train"])
    same = every(np.arange(images) % 10, search=0.1)
    assert len(same["search"]) == images // 10, "a share that was asked for is kept"
    given = every(np.arange(images) % 10, ["train"] * (images // 2) + ["test"] * (images // 2), search=None)
    wanted = max(images / 20, min(150, images / 8))  # of the training half
    assert len(given["search"]) == pytest.approx(wanted, abs=10) and len(given["test"]) == images // 2


def test_the_splits_of_digits_stay(tmp_path):
    by_data, before = (open_data("digits", search_share=share).split_record() for share in (None, 0.1))
    assert by_data == before and [len(before[s]) for s in SPLITS] == [1259, 179, 359]


def test_tiny_class_without_split_folders():
    with pytest.raises(TailorError, match=r"Class 'c1' has 2 images; .* needs 3"):
        every([0, 0, 0, 1, 1])
    with pytest.raises(TailorError, match=r"Class 'c1' has 1 image;"):
        every([0, 0, 0, 1])


@pytest.mark.parametrize("shares", [(0, 0.2), (0.1, 1), (0.6, 0.4), (-1, 0.2)])
def test_bad_shares(shares):
    with pytest.raises(TailorError, match="share"):
        every([0] * 9 + [1] * 9, search=shares[0], test=shares[1])


def test_origins():
    labels, origin = [0, 0, 1, 1, 0, 1, 0, 1], ["train"] * 4 + ["val"] * 2 + ["test"] * 2
    three = every(labels, origin)
    assert [three[s].tolist() for s in SPLITS] == [[0, 1, 2, 3], [4, 5], [6, 7]]
    train_test = every(labels[:4] + labels[6:], origin[:4] + origin[6:])
    assert train_test["test"].tolist() == [4, 5] and len(train_test["search"]) == len(train_test["train"]) == 2
    imagenet = every(labels[:6], origin[:6])
    assert imagenet["test"].tolist() == [4, 5]
    with pytest.raises(TailorError, match="'c1' has images in the test split but none in train"):
        every([0, 0, 1], ["train", "train", "test"])
    with pytest.raises(TailorError, match="one training image only"):
        every([0, 1, 0], ["train", "train", "test"])
    assert len(every([0, 1, 1, 0], ["train", "train", "train", "test"])["search"]) == 1


def test_balanced_limit():
    labels = np.repeat([0, 1, 2], [50, 2, 50])
    kept = balanced_subset(np.arange(102), labels, 12, 0, "train")
    assert np.bincount(labels[kept]).tolist() == [5, 2, 5]
    assert (kept == balanced_subset(np.arange(102), labels, 12, 0, "train")).all()
    assert (balanced_subset(kept, labels, 12, 5, "train") == kept).all()


def test_saved_splits_return_exactly(pets):
    first = open_data(str(pets), seed=1)
    saved = json.loads(json.dumps(first.split_record()))
    again = open_data(str(pets), seed=2, saved=saved)
    assert again.split_record() == saved
    assert again.names("train") == first.names("train") and again.mean == first.mean
    assert open_data(str(pets), seed=2).names("train") != first.names("train")


def test_saved_limited_splits_return_exactly(pets):
    saved = open_data(str(pets), limit=5).split_record()
    assert [len(saved[s]) for s in SPLITS] == [5, 5, 5]
    assert open_data(str(pets), seed=9, saved=saved, limit=5).split_record() == saved


def test_changed_data_is_refused(pets, tmp_path):
    saved = open_data(str(pets)).split_record()
    moved = shutil.copytree(pets, tmp_path / "elsewhere")
    assert open_data(str(moved), saved=saved).split_record() == saved
    picture(moved / "cat" / "new.png")
    with pytest.raises(TailorError, match="data changed since its splits were made"):
        open_data(str(moved), saved=saved)
    (moved / "cat" / "new.png").unlink()
    picture(moved / "cat" / "000.png", 5, (20, 20))
    with pytest.raises(TailorError, match="data changed"):
        open_data(str(moved), saved=saved)


def test_malformed_record(pets):
    saved = open_data(str(pets)).split_record()
    with pytest.raises(TailorError, match="A split record holds"):
        open_data(str(pets), saved={"train": []})
    with pytest.raises(TailorError, match="indices repeat"):
        open_data(str(pets), saved={**saved, "test": saved["train"]})
    with pytest.raises(TailorError, match=r"leave 0\.\.32"):
        open_data(str(pets), saved={**saved, "test": [99]})


def test_array_fingerprint_sees_a_single_pixel(tmp_path):
    x, y = np.zeros((12, 8, 8), np.uint8), np.arange(12) % 2
    prints = []
    for pixel in (0, 0, 1):
        x[3, 2, 2] = pixel
        np.savez(tmp_path / "a.npz", x=x, y=y)
        prints.append(open_data(str(tmp_path / "a.npz")).fingerprint)
    assert prints[0] == prints[1] != prints[2]


def test_folder_layouts(tmp_path, split_pets):
    three = open_data(str(split_pets))
    assert three.counts == {"train": 14, "search": 14, "test": 14}
    assert {n.split("/")[-3] for n in three.names("search")} == {"valid"}
    shutil.rmtree(split_pets / "test")
    two = open_data(str(split_pets))
    assert two.counts == {"train": 10, "search": 4, "test": 14}
    two.unseal_test("look")
    assert {n.split("/")[-3] for n in two.names("test")} == {"valid"}
    shutil.rmtree(split_pets / "valid")
    assert sum(open_data(str(split_pets)).counts.values()) == 14
    words = fill(tmp_path / "words", {"test": 4, "train": 4})
    assert open_data(str(words)).classes == ("test", "train")


def test_split_folders_by_their_other_names(tmp_path):
    for k, (train, test) in enumerate((("Training", "Testing"), ("train", "testing"), ("trainval", "test"))):
        root = fill(tmp_path / str(k), {f"{part}/{c}": 4 for part in (train, test) for c in ("a", "b")})
        assert open_data(str(root)).counts == {"train": 6, "search": 2, "test": 8}
    root = fill(tmp_path / "three", {f"{part}/{c}": 4 for part in ("training", "dev", "test") for c in ("a", "b")})
    assert open_data(str(root)).counts == {"train": 8, "search": 8, "test": 8}


def test_misspelt_split_folders_are_refused(tmp_path):
    root = fill(tmp_path / "near", {f"{part}/{c}": 4 for part in ("trian", "tests") for c in ("a", "b")})
    with pytest.raises(TailorError, match=r"has 'tests', which is not the name of a split; did you mean 'test'\?"):
        open_data(str(root))
    classes = fill(tmp_path / "classes", {"tests": 4, "rain": 4})  # they hold images, so they are classes
    assert open_data(str(classes)).classes == ("rain", "tests")


def test_unusual_folders_are_noted(tmp_path, pets):
    assert open_data(str(pets)).notes == ()
    picture(pets / "loose.png")
    (note,) = open_data(str(pets)).notes
    assert note.startswith("1 image(s) lie beside the class folders of") and note.endswith("are not used.")
    nested = fill(tmp_path / "nested", {f"{year}/{c}": 4 for year in ("2019", "2020") for c in ("a", "b")})
    found = open_data(str(nested))
    assert found.classes == ("2019", "2020")
    assert found.notes == ("The classes are 2019, 2020; the sub-folders a, b in each of them are not classes.",)


def test_classes_that_a_split_lacks_are_noted(tmp_path):
    counts = {f"{part}/{c}": 4 for part in ("train", "val", "test") for c in ("a", "b", "c")}
    root = fill(tmp_path / "whole", counts)
    assert open_data(str(root)).notes == ()
    root = fill(tmp_path / "part", {k: n for k, n in counts.items() if k not in ("val/c", "test/a")})
    assert open_data(str(root)).notes == (
        "The search split has no image of 'c', so the search does not take it into account.",
        "The test split has no image of 'a', so the test accuracy does not take it into account.",
    )
