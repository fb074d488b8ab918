"""ONNX: checked and timed against PyTorch, int8 measured, no output, impossible options refused."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from tailorvit.errors import TailorError
from tailorvit.export import Card, export, load, save_network
from tailorvit.export.base import compared
from tailorvit.export.onnx_format import OPSET
from tailorvit.families.vit.plain import PlainViT, ViTSettings


def logits(path, x):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"images": x})[0]


@pytest.fixture(scope="module")
def quantised(made, tmp_path_factory):
    return export(made.run, "onnx", tmp_path_factory.mktemp("onnx") / "out", int8=True)


def test_the_check_is_on_the_runs_test_images(quantised, made):
    facts = quantised.facts
    assert facts["checked_on"] == "test images of the run" and facts["images"] == 256
    assert 0 < facts["max_difference"] <= 1e-4 and facts["agreement"] == 1.0
    assert np.abs(logits(quantised.path / "network.onnx", made.x) - made.logits).max() <= 1e-4
    assert set(facts["latency"]) == {"PyTorch", "onnxruntime", "int8"} and min(facts["latency"].values()) > 0


def test_the_opset_is_the_stated_one_and_any_batch_works(quantised):
    model = onnx.load(quantised.path / "network.onnx")
    assert [(o.domain, o.version) for o in model.opset_import] == [("", OPSET)] and quantised.facts["opset"] == OPSET
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert dims[0].dim_param == "batch" and [d.dim_value for d in dims[1:]] == [1, 8, 8]
    assert not any(n.metadata_props or n.doc_string for n in model.graph.node)


def test_int8_accuracy_is_the_measured_one(quantised, made):
    facts, int8 = quantised.facts, quantised.path / "network.int8.onnx"
    right = [100 * (s.argmax(1) == made.y).mean() for s in (made.logits, logits(int8, made.x))]
    assert facts["int8"]["test_accuracy"]["float"] == pytest.approx(right[0])
    assert facts["int8"]["test_accuracy"]["int8"] == pytest.approx(right[1])
    scores = facts["int8"]["search_accuracy"]
    assert scores[facts["int8"]["way"]] == max(scores.values()) and set(scores) == {"dynamic", "static"}
    assert right[1] > right[0] - 3
    types = {i.data_type for i in onnx.load(int8).graph.initializer}
    assert onnx.TensorProto.INT8 in types
    assert facts["int8"]["bytes"]["int8"] == int8.stat().st_size < facts["int8"]["bytes"]["float"]
    assert sorted(p.name for p in quantised.path.glob("*.onnx")) == ["network.int8.onnx", "network.onnx"]


def test_int8_has_the_metadata_too(quantised):
    model = onnx.load(quantised.path / "network.int8.onnx")
    assert [p.key for p in model.metadata_props] == ["tailorvit"]


def test_the_lines_say_what_was_measured(quantised):
    text = "\n".join(quantised.lines())
    for word in ("network.onnx", "opset 18", "test images of the run", "Latency of onnxruntime", "int8 (", "accuracy"):
        assert word in text, word


@pytest.mark.parametrize("relative", [True, False])
def test_larger_networks_are_exported_quietly_and_on_noise_without_a_run(tmp_path, capfd, relative):
    """More than 32 tokens run fused, or without tables; a network folder has no images of its own."""
    from tailorvit.arch import Arch

    shared = ViTSettings(image_size=(24, 32), patch=4, classes=3, head_dim=8, reach=4, pool="cls", relative=relative)
    model = PlainViT(shared, 16, [1, 2], [2, 1.5]).eval()
    arch = Arch("vit", depth=2, embed=16, heads=(1, 2), mlp=(2, 1.5))
    how = {"image_size": [24, 32], "channels": 3, "mean": [0.5] * 3, "std": [0.2] * 3, "margin": 1.15}
    save_network(tmp_path, model, Card(arch, shared.to_dict(), ("a", "b", "c"), how, {}))
    capfd.readouterr()
    done = export(tmp_path, "onnx", int8=relative, images=5)
    assert capfd.readouterr() == ("", "")
    assert done.facts["checked_on"].startswith("random images: the folder holds a network but no run")
    assert done.path == tmp_path / "export" / "onnx" and done.facts["images"] == 5
    x = torch.rand(4, 3, 24, 32)
    with torch.inference_mode():
        np.testing.assert_allclose(logits(done.path / "network.onnx", x.numpy()), load(tmp_path)(x), atol=1e-4)
    if relative:
        assert done.facts["int8"]["way"] == "dynamic" and "unknown without the data" in done.lines()[-1]


@pytest.mark.parametrize("opset", [3, 17, 999, True])
def test_an_impossible_opset_is_refused(made, tmp_path, opset):
    with pytest.raises(TailorError, match="opset must be a whole number from 18 to"):
        export(made.run, "onnx", tmp_path / "out", opset=opset)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_extra_is_named(made, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(TailorError, match=rf"'{missing}': pip install 'tailorvit\[export\]'"):
        export(made.run, "onnx", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_difference_that_is_not_rounding_is_an_error():
    good = torch.tensor([[1.0, 50.0]])
    assert compared(good, good + 4e-3)["max_difference"] == pytest.approx(4e-3, rel=0.1)  # 1e-4 of 50
    with pytest.raises(TailorError, match="off by"):
        compared(good, good + 6e-3)
    with pytest.raises(TailorError, match="shape"):
        compared(good, good[:, :1])
    with pytest.raises(TailorError, match="not finite"):
        compared(good, good * float("nan"))
