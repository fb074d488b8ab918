from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from tailorvit.data import idx, open_data
from tailorvit.errors import TailorError

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 6, 5), dtype=np.uint8)
LABELS = (np.arange(20) % 10).astype(np.uint8)


def packed(array):
    return struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(root, zipped=True, **changes):
    root.mkdir(exist_ok=True)
    arrays = {"train-images-idx3": IMAGES, "train-labels-idx1": LABELS}
    arrays |= {"t10k-images-idx3": IMAGES[:10], "t10k-labels-idx1": LABELS[:10]}
    for name, array in arrays.items():
        raw = changes.get(name, packed(array))
        path = root / f"{name}-ubyte{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(raw) if zipped else raw)


@pytest.mark.parametrize("zipped", [True, False])
def test_the_four_files_of_mnist(tmp_path, zipped):
    write(tmp_path / "mnist", zipped)
    data = open_data(str(tmp_path / "mnist"), search_share=0.5)
    assert (data.channels, data.image_size) == (1, (6, 5)) and data.classes == tuple("0123456789")
    assert data.counts == {"train": 10, "search": 10, "test": 10}
    data.unseal_test("look")
    x, y = data.examples("test", [3])
    assert (x[0, 0].numpy() == IMAGES[3]).all() and y.tolist() == [3]


def test_fashion_has_names_and_a_word_of_its_own(tmp_path, monkeypatch):
    write(tmp_path / "fashion-mnist")
    monkeypatch.setattr(idx, "FASHION", tmp_path / "fashion-mnist")
    data = open_data("fashion-mnist", search_share=0.5)
    assert data.classes[0] == "T-shirt" and len(data.classes) == 10
    monkeypatch.setattr(idx, "FASHION", tmp_path / "nowhere")
    with pytest.raises(TailorError, match=r"'fashion-mnist' is read from .*nowhere, which is not there; install"):
        open_data("fashion-mnist")


def test_faults_are_named(tmp_path):
    root = tmp_path / "mnist"
    for head in (b"", b"\0\0\x08", b"\0\0\x0d" + packed(IMAGES)[3:], packed(IMAGES)[:-1], packed(IMAGES)[:9]):
        write(root, False, **{"train-images-idx3": head})
        with pytest.raises(TailorError, match=r"train-images-idx3-ubyte' is not a whole file of bytes in MNIST's form"):
            open_data(str(root))
    (root / "train-images-idx3-ubyte").write_bytes(packed(IMAGES))
    (root / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(TailorError, match="holds MNIST training images but not t10k-images and t10k-labels"):
        open_data(str(root))
    (root / "t10k-labels-idx1-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(TailorError, match=r"t10k-labels-idx1-ubyte.gz' cannot be read"):
        open_data(str(root))


@pytest.mark.skipif(not idx.FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_the_real_fashion_mnist():
    data = open_data("fashion-mnist")
    assert data.counts == {"train": 54_000, "search": 6_000, "test": 10_000} and data.image_size == (28, 28)
    assert np.bincount(data.labels("search")).tolist() == [600] * 10
