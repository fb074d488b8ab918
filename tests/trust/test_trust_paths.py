"""No path in a recipe, run folder, archive or checkpoint leads outside where it belongs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from trust_tools import refused

from tailorvit.errors import TailorError
from tailorvit.runs import Run, checkpoint


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "", ".hidden", "a\0b", "a.prev"])
def test_a_checkpoint_name_is_no_path(tmp_path, name):
    with pytest.raises(ValueError, match="is not a checkpoint name"):
        checkpoint.files(tmp_path, name)
    with Run.create(tmp_path / "run", "", {}) as run, pytest.raises(ValueError):
        run.load_checkpoint(name)


def test_stages_of_a_hostile_database_name_no_file(call, damaged):
    with Run.open(damaged) as run:
        run.finish("../../outside", {"loss": 1.0})
        run.record_epoch("../../outside", 0, loss=1.0)
    (damaged / "result.json").unlink()
    before = {p.name for p in damaged.parent.iterdir()}
    assert call("resume", damaged)[0] == 0
    assert {p.name for p in damaged.parent.iterdir()} == before


@pytest.mark.parametrize("folder", ["../../outside", "/etc"])
def test_a_folder_named_in_a_result_is_only_printed(call, damaged, folder):
    path = damaged / "result.json"
    facts = json.loads(path.read_text())
    cut = {"size": 1, "params": 1, "test_accuracy": 1.0, "folder": folder}
    path.write_text(json.dumps({**facts, "sizes": [cut]}))
    assert call("resume", damaged)[0] == 0
    assert call("report", damaged)[0] == 0
    assert not (damaged.parent.parent / "outside").exists()


def test_an_export_through_a_link_is_refused(call, damaged, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    refused(call("export", damaged, "--to", "safetensors", "--out", tmp_path / "link"), "is not a folder")
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_mark_of_a_hostile_export_deletes_nothing_outside(call, damaged, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "out" / "tailorvit-export.json").write_text(json.dumps({"files": ["../precious"]}))
    assert call("export", damaged, "--to", "safetensors", "--out", tmp_path / "out")[0] == 0
    assert (tmp_path / "precious").read_text() == "mine"


def test_an_onnx_file_reads_nothing_outside_its_folder(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from tailorvit.portable import OnnxNetwork

    (tmp_path / "in").mkdir()
    (tmp_path / "secret.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weight = onnx.TensorProto(name="w", data_type=kind, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", "../secret.bin"), ("offset", "0"), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    values = [helper.make_tensor_value_info(name, kind, [4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (tmp_path / "in" / "n.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(TailorError, match="cannot be opened as an ONNX network"):
        OnnxNetwork(tmp_path / "in" / "n.onnx")
