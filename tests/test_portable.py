"""Pixels and ONNX without torch: the same numbers as torch's way, and a sentence for every bad file."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tailorvit.data.images import centre_crop, normalise, preprocess, stored_size, to_pixels
from tailorvit.errors import TailorError
from tailorvit.portable import OnnxNetwork, Preprocessing, prepare, softmax

HOW = {"image_size": [12, 10], "channels": 3, "mean": [0.48, 0.4, 0.31], "std": [0.2, 0.21, 0.19], "margin": 1.15}
GREY = {"image_size": [12, 10], "channels": 1, "mean": [0.3], "std": [0.37], "margin": 1.0}


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width * height).integers(0, 256, (height, width, 3), dtype=np.uint8))


def exif(orientation: int) -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = orientation
    return found


def deep() -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 65536, (31, 17), dtype=np.uint16))


PICTURES = {
    "colour.png": (noise(33, 21), {}),
    "one-pixel.png": (noise(1, 1), {}),
    "thin.png": (noise(1, 97), {}),
    "exact.png": (noise(12, 14), {}),
    "grey.png": (noise(19, 40).convert("L"), {}),
    "bits.png": (noise(19, 40).convert("1"), {}),
    "palette.gif": (noise(30, 23).convert("P"), {}),
    "alpha.png": (noise(25, 25).convert("RGBA").rotate(20), {}),
    "grey-alpha.png": (noise(25, 31).convert("LA").rotate(20), {}),
    "deep.png": (deep(), {}),
    "float.tif": (Image.fromarray(np.linspace(0, 1, 600, dtype=np.float32).reshape(20, 30)), {}),
    "print.jpg": (noise(64, 48).convert("CMYK"), {}),
    "large.jpg": (noise(301, 199), {"exif": exif(6)}),
    "turned.jpg": (noise(40, 28), {"exif": exif(3)}),
}


# -- pixels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [HOW, GREY], ids=["colour", "grey"])
@pytest.mark.parametrize("name", PICTURES)
def test_numpy_equals_torch_to_the_bit(tmp_path, name, how):
    picture, options = PICTURES[name]
    picture.save(tmp_path / name, **options)
    found = prepare(tmp_path / name, Preprocessing.from_dict(how))
    with Image.open(tmp_path / name) as image:
        pixels = torch.from_numpy(to_pixels(image, how["channels"], stored_size((12, 10), how["margin"])))
    wanted = normalise(centre_crop(pixels[None], (12, 10)), how["mean"], how["std"])
    assert found.dtype == np.float32 and found.shape == (how["channels"], 12, 10)
    assert np.array_equal(found, wanted[0].numpy())
    assert torch.equal(preprocess(tmp_path / name, **how), wanted)
    assert np.array_equal(prepare(io.BytesIO((tmp_path / name).read_bytes()), Preprocessing.from_dict(how)), found)


def test_values_and_orientation_are_right(tmp_path):
    """Against arithmetic by hand, since the test above shares the decoder."""
    Image.new("RGB", (40, 40), (51, 102, 204)).save(tmp_path / "a.png")
    x = prepare(tmp_path / "a.png", Preprocessing.from_dict(HOW))
    wanted = (np.array([0.2, 0.4, 0.8]) - HOW["mean"]) / HOW["std"]
    assert np.allclose(x, wanted[:, None, None], atol=1e-5)
    picture = Image.new("RGB", (60, 50))
    picture.paste((255, 255, 255), (0, 0, 30, 50))
    picture.save(tmp_path / "b.jpg", exif=exif(6))  # lies on its side: the white half comes to the top
    x = prepare(tmp_path / "b.jpg", Preprocessing.from_dict(GREY))
    assert x[0, 1].min() > 1.5 and x[0, -2].max() < -0.5


def test_interpolation_is_accepted_and_others_refused(tmp_path):
    noise(20, 20).save(tmp_path / "a.png")
    named = preprocess(tmp_path / "a.png", **HOW, interpolation="bicubic")
    assert torch.equal(named, preprocess(tmp_path / "a.png", **HOW))
    with pytest.raises(TailorError, match=r"Unknown interpolation 'nearest'\. Known: bicubic\."):
        preprocess(tmp_path / "a.png", **HOW, interpolation="nearest")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"image_size": 0}, "image size must be a whole number"),
        ({"image_size": "12"}, "image size must be a whole number"),
        ({"image_size": None}, "cannot be used"),
        ({"channels": 2}, "1 or 3 channels"),
        ({"mean": [0.1]}, "1 or 3 channels"),
        ({"mean": ["x", 0, 0]}, "cannot be used"),
        ({"std": [0.1, 0, 0.1]}, "std above zero"),
        ({"mean": [0.1, float("nan"), 0.1]}, "must be finite"),
        ({"margin": 0.9}, "at least 1, not 0.9"),
        ({"interpolation": "lanczos"}, "Unknown interpolation 'lanczos'"),
        ({"crop": 3}, "Unknown preprocessing key 'crop'"),
    ],
)
def test_preprocessing_is_checked(change, sentence):
    with pytest.raises(TailorError, match=sentence):
        Preprocessing.from_dict({**HOW, **change})


def test_preprocessing_that_lacks_a_part():
    with pytest.raises(TailorError, match="lacks 'mean'"):
        Preprocessing.from_dict({k: v for k, v in HOW.items() if k != "mean"})


def test_unreadable_images(tmp_path):
    how = Preprocessing.from_dict(HOW)
    with pytest.raises(TailorError, match=r"There is no image file '.*none\.png'\."):
        prepare(tmp_path / "none.png", how)
    with pytest.raises(TailorError, match="Cannot read the stream as an image: not an image"):
        prepare(io.BytesIO(b"text"), how)
    noise(40, 40).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:300])
    with pytest.raises(TailorError, match=r"Cannot read '.*cut\.png' as an image: .*truncated"):
        prepare(tmp_path / "cut.png", how)


# -- ONNX --------------------------------------------------------------------------------------------------------------

META = {"format": 1, "classes": ["cat", "dog"], "preprocessing": GREY, "arch": {"family": "vit"}, "facts": {"seed": 3}}
WEIGHT = np.random.default_rng(0).normal(size=(120, 2)).astype(np.float32)


def linear(path: Path, meta: object = META) -> Path:
    """A network of one matrix: logits = pixels @ WEIGHT."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 12, 10])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    if meta is not None:
        text = meta if isinstance(meta, str) else json.dumps(meta)
        helper.set_model_props(model, {"tailorvit": text, "other": "left alone"})
    path.write_bytes(model.SerializeToString())
    return path


def test_onnx_outputs(tmp_path):
    network = OnnxNetwork(linear(tmp_path / "n.onnx"), threads=1)
    assert network.classes == ("cat", "dog") and network.facts == {"seed": 3} and network.arch == {"family": "vit"}
    assert network.preprocessing == Preprocessing.from_dict(GREY)
    x = np.random.default_rng(1).normal(size=(5, 1, 12, 10)).astype(np.float32)
    wanted = torch.softmax(torch.from_numpy(x.reshape(5, -1) @ WEIGHT), -1).numpy()
    for batch in (x, list(x)):
        found = network.predict(batch)
        assert found.dtype == np.float32 and np.allclose(found, wanted, atol=1e-6)
    with pytest.raises(TailorError, match="takes images of 1x12x10, not 3x12x10"):
        network.predict(np.zeros((1, 3, 12, 10), np.float32))


def test_softmax_survives_large_scores():
    assert softmax(np.array([[1e4, 0], [-1e4, -1e4]])).tolist() == [[1, 0], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("meta", "sentence"),
    [
        (None, "not one of tailorvit's: it names no classes and no preprocessing"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ("3", "is damaged"),
        ({"format": 1}, "is damaged"),
        ({**META, "classes": [1, 2]}, "is damaged"),
        ({**META, "preprocessing": None}, "is damaged"),
        ({**META, "format": 2}, "metadata of format 2; this tailorvit reads format 1"),
        ({**META, "classes": ["cat", "cat"]}, "two classes called 'cat'"),
        ({**META, "preprocessing": {**GREY, "interpolation": "box"}}, "Unknown interpolation 'box'"),
    ],
)
def test_foreign_and_damaged_onnx_files(tmp_path, meta, sentence):
    with pytest.raises(TailorError, match=sentence):
        OnnxNetwork(linear(tmp_path / "n.onnx", meta))


def test_files_that_are_not_onnx(tmp_path, monkeypatch):
    with pytest.raises(TailorError, match="There is no ONNX file"):
        OnnxNetwork(tmp_path / "none.onnx")
    linear(tmp_path / "three.onnx", {**META, "classes": ["a", "b", "c"]})
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(TailorError, match=r"text\.onnx' cannot be opened as an ONNX network: \S") as caught:
        OnnxNetwork(tmp_path / "text.onnx")
    assert "\n" not in str(caught.value)
    network = OnnxNetwork(tmp_path / "three.onnx")
    with pytest.raises(TailorError, match=r"returns the shape \(1, 2\) for its 3 classes"):
        network.predict(np.zeros((1, 1, 12, 10), np.float32))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(TailorError, match="needs onnxruntime: pip install"):
        OnnxNetwork(tmp_path / "three.onnx")


def test_no_torch_is_needed(tmp_path):
    """In a process where importing torch fails, as on a machine without it."""
    noise(30, 30).save(tmp_path / "a.png")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from tailorvit.portable import OnnxNetwork, prepare\n"
        "assert not {'PIL', 'onnxruntime'} & set(sys.modules), 'heavy libraries wait until used'\n"
        "network = OnnxNetwork(sys.argv[1])\n"
        "print(network.predict([prepare(sys.argv[2], network.preprocessing)]).tolist())"
    )
    files = [str(linear(tmp_path / "n.onnx")), str(tmp_path / "a.png")]
    done = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    x = preprocess(tmp_path / "a.png", **GREY).flatten(1)
    assert np.allclose(json.loads(done.stdout), torch.softmax(x @ torch.from_numpy(WEIGHT), -1), atol=1e-6)
