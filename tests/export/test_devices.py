"""Formats for the runtimes of devices: opened again, one image or many, and honest where nothing can open them."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from export_tools import ARCH, FIXED, NAMES

from tailorvit.errors import TailorError
from tailorvit.export import Card, devices, export, load, save_network
from tailorvit.families import family


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A network for images that are not square, in three colours."""
    folder = tmp_path_factory.mktemp("devices")
    shared = {**FIXED, "image_size": (8, 12), "channels": 3}
    torch.manual_seed(0)
    record = family("vit")
    how = {"image_size": [8, 12], "channels": 3, "mean": [0.5] * 3, "std": [0.25] * 3, "margin": 1.0}
    model = record.build(record.settings(shared), ARCH).eval()
    save_network(folder / "network", model, Card(ARCH, shared, NAMES, how, {"method": "none"}))
    return folder


def test_torchscript_is_read_by_torch_alone(wide, tmp_path):
    done = export(wide, "torchscript", tmp_path / "out", check=False)
    assert done.files == ("network.pt", "tailorvit.json")
    network, x = torch.jit.load(done.path / "network.pt"), torch.randn(5, 3, 8, 12)
    with torch.inference_mode():
        for count in (1, 2, 5):
            torch.testing.assert_close(network(x[:count]), load(wide)(x[:count]), atol=1e-5, rtol=1e-4)
    said = json.loads((done.path / "tailorvit.json").read_text())
    assert said["classes"] == list(NAMES) and said["preprocessing"]["image_size"] == [8, 12]
    with pytest.raises(TailorError, match=r"is an export without network\.json"):
        load(done.path)


def test_openvino_reads_one_image_and_many(wide, tmp_path):
    """The check itself gives it batches of one, two, five and the rest, in a process of its own."""
    for package in ("openvino", "timmx"):
        pytest.importorskip(package)
    done = export(wide, "openvino", tmp_path / "out", images=9)
    assert done.files == ("network.bin", "network.xml", "tailorvit.json")
    assert done.facts["images"] == 9 and done.facts["max_difference"] < 1e-4
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(("to", "packages"), [("executorch", ["executorch"]), ("coreml", ["coremltools"])])
def test_one_image_at_a_time_formats(wide, tmp_path, to, packages):
    """Not in the extra dev: they bring hundreds of megabytes."""
    for package in [*packages, "timmx"]:
        pytest.importorskip(package)
    done = export(wide, to, tmp_path / "out", images=3)
    assert "max_difference" in done.facts or "Not checked: this machine has no runtime" in "\n".join(done.lines())
    assert done.facts["bytes"][done.files[0]] > 10_000


def fake_timmx(monkeypatch, export_model):
    """timmx and the library behind a format, as far as they are called."""
    module = type(sys)("timmx")
    module.export_model = export_model
    for name, found in {"timmx": module, "coremltools": type(sys)("coremltools")}.items():
        monkeypatch.setitem(sys.modules, name, found)


def test_where_nothing_can_run_the_file_it_says_so(wide, tmp_path, monkeypatch):
    def write(backend, name, output, **options):
        assert (backend, options["verify"], options["pretrained"]) == ("coreml", False, True)
        (output / "Data").mkdir(parents=True)
        (output / "Data" / "weights").write_bytes(b"12345")

    fake_timmx(monkeypatch, write)
    monkeypatch.setattr(devices.platform, "system", lambda: "Linux")
    done = export(wide, "coreml", tmp_path / "out")
    assert "Not checked: this machine has no runtime for coreml files" in done.lines()
    assert done.files == ("network.mlpackage", "tailorvit.json") and done.facts["bytes"]["network.mlpackage"] == 5
    assert "max_difference" not in done.facts
    assert export(wide, "coreml", tmp_path / "out").path == done.path, "a folder of an earlier export is replaced"


def test_a_refusal_is_one_sentence_and_leaves_nothing(wide, tmp_path, monkeypatch):
    def refuse(backend, name, **options):
        raise ValueError(f"{name} has an operation\nthat nobody knows")

    fake_timmx(monkeypatch, refuse)
    words = r"^timmx cannot write this network for coreml: the network has an operation\.$"
    with pytest.raises(TailorError, match=words):
        export(wide, "coreml", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("to", "missing"), [(t.name, n) for t in devices.DEVICES.values() for n in t.needs])
def test_a_missing_extra_is_named(wide, tmp_path, monkeypatch, to, missing):
    for name in devices.DEVICES[to].needs:
        monkeypatch.setitem(sys.modules, name, None if name == missing else type(sys)(name))
    with pytest.raises(TailorError, match=rf"^The format {to} needs '{missing}': pip install 'tailorvit\[{to}\]'"):
        export(wide, to, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
