"""Data sources: every built-in kind, one sentence for every fault, and sources from outside."""

from __future__ import annotations

import gzip
import pickle
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tailorvit
from tailorvit.data import SOURCES, DataSource, from_items, open_data, sources
from tailorvit.errors import TailorError

LABELS = np.arange(20) % 2
IMAGES = np.random.default_rng(0).integers(0, 256, (20, 10, 12, 3), dtype=np.uint8)


def opened(tmp_path, **arrays):
    np.savez(tmp_path / "a.npz", **arrays)
    return open_data(str(tmp_path / "a.npz"))


def pictures(data):
    """All images by their bytes, whatever the split."""
    data.unseal_test("compare")
    return {x.numpy().tobytes() for s in data.counts for x in data.examples(s, range(data.counts[s]))[0]}


def test_digits():
    data = open_data("digits")
    assert data.channels == 1 and data.image_size == (8, 8) and data.classes == tuple("0123456789")
    assert sum(data.counts.values()) == 1797
    x, y = next(data.eval_batches("train", 2000))
    assert abs(float(x.mean())) < 1e-3 and abs(float(x.std()) - 1) < 1e-3 and y.dtype == torch.int64
    assert 0.2 < data.mean[0] < 0.4


def test_layouts_and_types_agree(tmp_path):
    want = pictures(opened(tmp_path, x=IMAGES, y=LABELS))
    assert len(want) == 20
    for x in (IMAGES.transpose(0, 3, 1, 2), IMAGES / 255, IMAGES.astype(np.float32), IMAGES.astype(np.uint16) * 257):
        assert pictures(opened(tmp_path, x=x, y=LABELS)) == want
    assert pictures(opened(tmp_path, images=IMAGES, labels=LABELS[:, None])) == want
    grey = opened(tmp_path, x=IMAGES[..., 0], y=LABELS)
    assert grey.channels == 1 and grey.image_size == (10, 12)


def test_parts_by_name(tmp_path):
    for spell in ("{}_x {}_y", "x_{} y_{}", "{}_images {}_labels"):
        x, y = spell.split()
        arrays = {x.format(p): IMAGES for p in ("train", "test")} | {y.format(p): LABELS for p in ("train", "test")}
        assert opened(tmp_path, **arrays).counts == {"train": 16, "search": 4, "test": 20}
    named = opened(tmp_path, x=IMAGES, y=LABELS, classes=np.array(["cat", "dog"]))
    assert named.classes == ("cat", "dog")


def test_npy_files(tmp_path):
    np.save(tmp_path / "train_x.npy", IMAGES)
    np.save(tmp_path / "train_y.npy", LABELS)
    assert sum(open_data(str(tmp_path)).counts.values()) == 20
    assert sum(open_data(str(tmp_path / "train_x.npy")).counts.values()) == 20
    np.save(tmp_path / "test_x.npy", IMAGES)
    with pytest.raises(TailorError, match="'test_x' but not their labels 'test_y'"):
        open_data(str(tmp_path))
    np.save(tmp_path / "test_y.npy", LABELS)
    assert open_data(str(tmp_path)).counts["test"] == 20
    np.save(tmp_path / "alone.npy", IMAGES)
    with pytest.raises(TailorError, match=r"no labels; put them beside it as alone_y\.npy or y\.npy"):
        open_data(str(tmp_path / "alone.npy"))
    np.save(tmp_path / "y.npy", LABELS)
    assert sum(open_data(str(tmp_path / "alone.npy")).counts.values()) == 20


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": IMAGES[0, 0], "y": LABELS}, r"shape \(12, 3\); images need"),
        ({"x": IMAGES[..., :2], "y": LABELS}, r"shape \(20, 10, 12, 2\)"),
        ({"x": IMAGES.astype(str), "y": LABELS}, r"shape \(20, 3, 10, 12\) and type <U"),
        ({"x": IMAGES * np.nan, "y": LABELS}, "NaN"),
        ({"x": IMAGES - 300.0, "y": LABELS}, r"values from -300 to -45; images need 0\.\.1 or 0\.\.255"),
        ({"x": IMAGES, "y": LABELS[:7]}, r"7 labels for images of shape \(20, 3, 10, 12\)"),
        ({"x": IMAGES, "y": LABELS * 0.5}, r"shape \(20,\) and type float64; labels need whole numbers"),
        ({"x": IMAGES, "y": LABELS * 0}, "one class only, '0'"),
        ({"x": IMAGES}, "'x' but not their labels 'y'"),
        ({"pictures": IMAGES}, "needs arrays named x and y, or train_x and train_y, not pictures"),
        ({"train_x": IMAGES, "train_y": LABELS, "test_x": IMAGES[:, :8], "test_y": LABELS}, r"shape \(20, 3, 8, 12\)"),
        ({"train_x": IMAGES, "train_y": LABELS, "test_x": IMAGES, "test_y": LABELS + 1}, "'2' has images in the test"),
    ],
)
def test_array_faults(tmp_path, arrays, words):
    with pytest.raises(TailorError, match=words):
        opened(tmp_path, **arrays)


def test_pickles_are_never_loaded(tmp_path):
    bomb = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "a.npz", x=bomb, y=LABELS)
    with pytest.raises(TailorError, match="pickles, which are never loaded"):
        open_data(str(tmp_path / "a.npz"))
    np.save(tmp_path / "b.npy", bomb, allow_pickle=True)
    np.save(tmp_path / "y.npy", LABELS)
    with pytest.raises(TailorError, match="pickled objects are not loaded"):
        open_data(str(tmp_path / "b.npy"))
    (tmp_path / "c.npz").write_bytes(b"nonsense")
    with pytest.raises(TailorError, match="not a numpy file"):
        open_data(str(tmp_path / "c.npz"))
    batches = tmp_path / "root" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    (batches / "data_batch_1").write_bytes(pickle.dumps({}))
    for where in (batches, batches.parent):
        with pytest.raises(TailorError, match=r"never loaded; give the binary version"):
            open_data(str(where))
    for name in ("CIFAR10", "CIFAR100"):
        with pytest.raises(TailorError, match=f"{name} is stored as pickles, which are never loaded"):
            open_data(f"torchvision:{name}@{tmp_path}")


def test_cifar_binaries(tmp_path):
    rng = np.random.default_rng(0)
    ten = tmp_path / "cifar-10-batches-bin"
    ten.mkdir()
    pixels = rng.integers(0, 256, (20, 3072), dtype=np.uint8)
    record = np.concatenate([LABELS[:, None].astype(np.uint8), pixels], 1)
    (ten / "data_batch_1.bin").write_bytes(record.tobytes())
    with pytest.raises(TailorError, match=r"no test_batch\.bin"):
        open_data(str(ten))
    (ten / "test_batch.bin").write_bytes(record[:4].tobytes())
    (ten / "batches.meta.txt").write_text("plane\ncar\n")
    data = open_data(str(tmp_path))
    assert data.classes == ("plane", "car") and data.counts == {"train": 16, "search": 4, "test": 4}
    data.unseal_test("look")
    x, y = data.examples("test", [1])
    assert (x[0].numpy() == pixels[1].reshape(3, 32, 32)).all() and y.tolist() == [1]
    (ten / "test_batch.bin").write_bytes(b"short")
    with pytest.raises(TailorError, match="not whole records of 3073"):
        open_data(str(ten))
    hundred = tmp_path / "hundred"
    hundred.mkdir()
    coarse = np.full((20, 1), 7, np.uint8)
    for name in ("train.bin", "test.bin"):
        (hundred / name).write_bytes(np.concatenate([coarse, record], 1).tobytes())
    assert open_data(str(hundred)).classes == ("0", "1")


def test_wrong_source_names(tmp_path):
    with pytest.raises(
        TailorError, match="There is no 'nowhere'; data can be: digits, fashion-mnist, torchvision:NAME@ROOT, "
    ):
        open_data("nowhere")
    (tmp_path / "a.xls").write_text("x")
    with pytest.raises(TailorError, match=r"is a '\.xls' file; data can be: digits, "):
        open_data(str(tmp_path / "a.xls"))
    with pytest.raises(TailorError, match=r"Unknown torchvision dataset 'FasionMNIST'. Did you mean 'FashionMNIST'"):
        open_data("torchvision:FasionMNIST")
    with pytest.raises(TailorError, match=r"MNIST cannot be read from .* and is not downloaded"):
        open_data(f"torchvision:MNIST@{tmp_path}")
    with pytest.raises(TailorError, match=r"EMNIST cannot be read from .*: Dataset not found\.$"):
        open_data(f"torchvision:EMNIST@{tmp_path}")
    with pytest.raises(TailorError, match="CocoDetection is not a plain set of images with one class each"):
        open_data(f"torchvision:CocoDetection@{tmp_path}")
    with pytest.raises(TailorError, match="image size"):
        open_data("digits", image_size=0)
    with pytest.raises(TailorError, match="limit on images must be at least 2, not 0"):
        open_data("digits", limit=0)


def test_a_folder_may_bear_the_name_of_a_source_that_needs_more(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TailorError, match="There is no 'torchvision'; data can be"):
        open_data("torchvision")
    Path("torchvision").mkdir()
    np.save("torchvision/train_x.npy", IMAGES)
    np.save("torchvision/train_y.npy", LABELS)
    assert sum(open_data("torchvision").counts.values()) == 20


def test_torchvision_arrays(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 40), ("t10k", 10)):
        x = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for name, array in (("images-idx3", x), ("labels-idx1", np.arange(count, dtype=np.uint8) % 10)):
            shape = b"".join(n.to_bytes(4, "big") for n in array.shape)
            body = bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()
            (raw / f"{part}-{name}-ubyte").write_bytes(body)
            (raw / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(body))
    data = open_data(f"torchvision:FashionMNIST@{tmp_path}")
    assert data.counts == {"train": 30, "search": 10, "test": 10} and data.channels == 1
    assert data.image_size == (28, 28) and data.classes[0] == "T-shirt/top"


def test_torchvision_items(monkeypatch):
    import torchvision.datasets as catalogue

    class Shapes:
        classes = ("round", "square")

        def __init__(self, root, split="train"):
            if split not in ("train", "test"):
                raise ValueError(split)
            self.size = {"train": 20, "test": 6}[split]

        def __len__(self):
            return self.size

        def __getitem__(self, i):
            return Image.new("RGB", (50, 50), (i * 10, 0, 0)), i % 2

    monkeypatch.setattr(catalogue, "DTD", Shapes)
    data = open_data("torchvision:DTD@somewhere")
    assert data.counts == {"train": 16, "search": 4, "test": 6} and data.classes == ("round", "square")
    assert data.image_size == (48, 48)
    data.unseal_test("look")
    assert data.examples("test", [4])[0][0, 0].unique().tolist() == [40]
    assert data.names("test")[4] == "test[4]"


def test_arrays_are_resized_on_request(tmp_path):
    np.savez(tmp_path / "a.npz", x=IMAGES, y=LABELS)
    data = open_data(str(tmp_path / "a.npz"), image_size=(6, 5))
    x, _ = next(data.eval_batches("search", 4))
    assert x.shape[1:] == (3, 6, 5) and data.image_size == (6, 5)


def test_names_of_classes_fit_the_labels_or_are_refused(tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (30, 8, 8), dtype=np.uint8)
    y = np.arange(30) % 3

    def classes(labels, names):
        return opened(tmp_path, x=x, y=labels, classes=np.array(names)).classes

    assert classes(y, ["a", "b", "c"]) == classes(y + 1, ["a", "b", "c"]) == ("a", "b", "c")
    assert classes(y, ["a", "b", "c", "d"]) == ("a", "b", "c"), "one that no image has"
    assert opened(tmp_path, x=x, y=y.astype(np.float32)).classes == ("0", "1", "2"), "whole numbers, however stored"
    for labels, names in ((y, ["a", "b"]), (y + 1, ["a", "b", "c", "d"][:2]), (y - 1, ["a", "b", "c"])):
        with pytest.raises(TailorError, match=rf"names {len(names)} classes, but its labels run from"):
            classes(labels, names)
    with pytest.raises(TailorError, match="labels need whole numbers"):
        opened(tmp_path, x=x, y=y + 0.5)


# -- MNIST's files ---------------------------------------------------------------------------------------------------

MNIST_IMAGES = np.random.default_rng(0).integers(0, 256, (20, 6, 5), dtype=np.uint8)
MNIST_LABELS = (np.arange(20) % 10).astype(np.uint8)


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(root, zipped=True, **changes):
    root.mkdir(exist_ok=True)
    arrays = {"train-images-idx3": MNIST_IMAGES, "train-labels-idx1": MNIST_LABELS}
    arrays |= {"t10k-images-idx3": MNIST_IMAGES[:10], "t10k-labels-idx1": MNIST_LABELS[:10]}
    for name, array in arrays.items():
        raw = changes.get(name, idx_bytes(array))
        path = root / f"{name}-ubyte{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(raw) if zipped else raw)


@pytest.mark.parametrize("zipped", [True, False])
def test_the_four_files_of_mnist(tmp_path, zipped):
    write_mnist(tmp_path / "mnist", zipped)
    data = open_data(str(tmp_path / "mnist"), search_share=0.5)
    assert (data.channels, data.image_size) == (1, (6, 5)) and data.classes == tuple("0123456789")
    assert data.counts == {"train": 10, "search": 10, "test": 10}
    data.unseal_test("look")
    x, y = data.examples("test", [3])
    assert (x[0, 0].numpy() == MNIST_IMAGES[3]).all() and y.tolist() == [3]


def test_fashion_mnist_has_class_names(tmp_path, monkeypatch):
    write_mnist(tmp_path / "fashion-mnist")
    monkeypatch.setattr(sources, "FASHION_MNIST", tmp_path / "fashion-mnist")
    data = open_data("fashion-mnist", search_share=0.5)
    assert data.classes[0] == "T-shirt" and len(data.classes) == 10
    monkeypatch.setattr(sources, "FASHION_MNIST", tmp_path / "nowhere")
    with pytest.raises(TailorError, match=r"'fashion-mnist' is read from .*nowhere, which is not there; install"):
        open_data("fashion-mnist")


def test_faults_of_mnist_files(tmp_path):
    root = tmp_path / "mnist"
    for head in (
        b"",
        b"\0\0\x08",
        b"\0\0\x0d" + idx_bytes(MNIST_IMAGES)[3:],
        idx_bytes(MNIST_IMAGES)[:-1],
        idx_bytes(MNIST_IMAGES)[:9],
    ):
        write_mnist(root, False, **{"train-images-idx3": head})
        with pytest.raises(
            TailorError, match=r"train-images-idx3-ubyte' is not a complete file of bytes in MNIST's format"
        ):
            open_data(str(root))
    (root / "train-images-idx3-ubyte").write_bytes(idx_bytes(MNIST_IMAGES))
    (root / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(TailorError, match="holds MNIST training images but not t10k-images and t10k-labels"):
        open_data(str(root))
    (root / "t10k-labels-idx1-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(TailorError, match=r"t10k-labels-idx1-ubyte.gz' cannot be read"):
        open_data(str(root))


@pytest.mark.skipif(not sources.FASHION_MNIST.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_the_real_fashion_mnist():
    data = open_data("fashion-mnist")
    assert data.counts == {"train": 54_000, "search": 6_000, "test": 10_000} and data.image_size == (28, 28)
    assert np.bincount(data.labels("search")).tolist() == [600] * 10


# -- sources from outside ---------------------------------------------------------------------------------------------


@pytest.fixture
def stripes(monkeypatch):
    """The example of docs/data.md, which registers itself."""
    monkeypatch.setattr(SOURCES, "added", {})
    page = Path(__file__).parents[2] / "docs" / "data.md"
    block = re.search(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    names = {}
    exec(block[1], names)
    return names


def test_a_source_from_outside(stripes, monkeypatch):
    assert open_data("stripes").image_size == (16, 16)
    data = open_data("stripes:24")
    assert data.image_size == (24, 24) and data.classes == ("horizontal", "vertical") and data.channels == 1
    assert data.counts == {"train": 120, "search": 40, "test": 40}
    assert data.train_batches(8, 0, data.augment()).at(0).x.shape == (8, 1, 24, 24)
    with pytest.raises(TailorError, match="stripes needs a whole number of pixels, as in stripes:24, not 'x'"):
        open_data("stripes:x")
    with pytest.raises(TailorError, match=r"There is no 'stripe'; data can be: .*, stripes"):
        open_data("stripe")
    monkeypatch.setitem(SOURCES.added, "broken", DataSource("broken", "returns an array", lambda rest: IMAGES))
    with pytest.raises(TailorError, match="'broken' returned a ndarray, not an ImageSet"):
        open_data("broken")


def test_a_run_with_a_source_from_outside(stripes, tmp_path):
    sets = ["s4.iterations=0", "baseline=false", "train.epochs=1", "final.train.epochs=1"]
    result = tailorvit.run(data="stripes:32", out=tmp_path / "run", tiny=True, settings=sets, progress="quiet")
    assert result["data"]["source"] == "stripes:32" and result["data"]["classes"] == 2


def test_a_source_of_single_images_from_outside(monkeypatch):
    def opener(part: str):
        return lambda i: Image.new("RGB", (40, 50), (i, 0, 200 if part == "test" else 100))

    def read(rest: str):
        labels = {"train": np.arange(30) % 3, "test": np.arange(9) % 3}
        return from_items({p: (opener(p), y) for p, y in labels.items()}, f"colours {rest}", ["a", "b", "c"])

    monkeypatch.setitem(SOURCES.added, "colours", DataSource("colours", "plain colours", read))
    data = open_data("colours:bright")
    assert data.counts == {"train": 24, "search": 6, "test": 9} and data.image_size == (32, 32)
    assert open_data("colours:dark").fingerprint != data.fingerprint == open_data("colours:bright").fingerprint
    data.unseal_test("look")
    assert data.examples("test", [4])[0][0, :, 0, 0].tolist() == [4, 0, 200]


def test_a_source_from_outside_may_recognise_paths(stripes, monkeypatch, tmp_path):
    def read(path: str):
        return stripes["read_stripes"](Path(path).read_text())

    files = DataSource(
        "stripe-file", "the side in a file", read, "FILE.stripes", lambda path: path.suffix == ".stripes"
    )
    monkeypatch.setitem(SOURCES.added, "stripe-file", files)
    (tmp_path / "a.stripes").write_text("12")
    assert open_data(str(tmp_path / "a.stripes")).image_size == (12, 12)
    with pytest.raises(TailorError, match=r"There is no 'stripe-file'; data can be: .*, FILE\.stripes"):
        open_data("stripe-file")


def test_built_in_sources_describe_themselves():
    assert all(name == source.name and source.summary for name, source in SOURCES.items())
    with pytest.raises(TailorError, match="'digits' is asked for by its name alone, not as 'digits:7'"):
        open_data("digits:7")
