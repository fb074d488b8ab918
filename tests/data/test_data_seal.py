from __future__ import annotations

import pytest
import torch

from tailorvit.data import open_data
from tailorvit.errors import TailorError


def test_the_test_split_is_sealed(pets):
    data = open_data(str(pets))
    asks = [
        lambda: data.eval_batches("test", 4),
        lambda: data.examples("test", [0]),
        lambda: data.names("test"),
        lambda: data.labels("test"),
    ]
    assert data.test_opened is None and data.counts["test"] == 7
    for ask in asks:
        with pytest.raises(TailorError, match="test split is sealed"):
            ask()
    with pytest.raises(TailorError, match="needs a reason"):
        data.unseal_test(" ")
    data.unseal_test("final accuracy")
    data.unseal_test("again")
    assert data.test_opened == "final accuracy"
    for ask in asks:
        ask()
    x, y = next(data.eval_batches("test", 100))
    assert len(x) == 7 and y.tolist() == data.labels("test").tolist()


def test_test_images_are_not_opened_before(split_pets):
    for path in (split_pets / "test").rglob("*.png"):
        path.write_bytes(path.read_bytes()[:400])  # a header, no picture
    data = open_data(str(split_pets))
    list(data.eval_batches("search", 4))
    data.train_batches(4, 0, data.augment()).at(0)
    assert data.skipped == ()
    with pytest.raises(TailorError, match="test split holds no readable image"):
        data.unseal_test("look")
    assert len(data.skipped) == 14 and data.test_opened is None


def test_statistics_come_from_train_alone(split_pets):
    before = open_data(str(split_pets))
    from PIL import Image

    for part in ("valid", "test"):
        for path in (split_pets / part).rglob("*.png"):
            Image.new("RGB", (40, 36), "white").save(path)
    after = open_data(str(split_pets))
    assert (after.mean, after.std) == (before.mean, before.std)
    x = torch.cat([x for x, _ in after.eval_batches("train", 5)])
    assert torch.allclose(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-4)


def test_evaluation_runs_in_order_with_a_ragged_end(pets):
    data = open_data(str(pets))
    parts = list(data.eval_batches("train", 8))
    assert [len(y) for _, y in parts] == [8, 8, data.counts["train"] - 16]
    assert torch.cat([y for _, y in parts]).tolist() == data.labels("train").tolist()
    assert [data.classes[y] for y in data.labels("train")] == [n.split("/")[-2] for n in data.names("train")]


def test_faults_of_asking(pets):
    data = open_data(str(pets))
    with pytest.raises(TailorError, match=r"Unknown split 'val'"):
        data.names("val")
    with pytest.raises(TailorError, match="positions 0 to"):
        data.examples("train", [-1])
    with pytest.raises(TailorError, match="batch size must be at least 1, not 0"):
        data.eval_batches("train", 0)
