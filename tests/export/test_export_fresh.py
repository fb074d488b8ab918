"""Every format is loaded in a process of its own that imports only what the format needs, with the same logits."""

from __future__ import annotations

import json
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from export_tools import NAMES, fresh

from tailorvit.data import preprocess
from tailorvit.export import EXPORTERS, load
from tailorvit.export.devices import DEVICES

HEAD = """
import sys
import numpy as np
folder, scratch = sys.argv[1:3]
x, expected = np.load(f"{scratch}/x.npy"), np.load(f"{scratch}/logits.npy")
def agree(logits):
    assert logits.shape == expected.shape and np.abs(np.asarray(logits) - expected).max() <= 1e-4
def absent(*names):
    found = [m for m in sys.modules if any(m == n or m.startswith(n + ".") for n in names)]
    assert not found, found
def no_search_code():
    rooms = "search seek methods train costs proxies data runs config api report families.pit families.windows"
    absent(*(f"tailorvit.{room}" for room in rooms.split()))
"""

TORCH = """
import torch
x = torch.from_numpy(x)
torch.set_grad_enabled(False)
def tune(loss, network):
    optimiser, losses = torch.optim.AdamW(network.parameters(), 1e-2), []
    for _ in range(8):
        optimiser.zero_grad()
        now = loss()
        now.backward()
        optimiser.step()
        losses.append(now.item())
    assert losses[-1] < losses[0] - 0.1, losses
"""

ONNX = """
import json, onnxruntime
session = onnxruntime.InferenceSession(f"{folder}/network.onnx", providers=["CPUExecutionProvider"])
agree(session.run(None, {"images": x})[0])
for n in (1, 3, 7):
    assert np.abs(session.run(None, {"images": x[:n]})[0] - expected[:n]).max() <= 1e-4
print(session.get_modelmeta().custom_metadata_map["tailorvit"])
absent("torch", "tailorvit")
"""

PT2 = """
extra = {"tailorvit.json": ""}
network = torch.export.load(f"{folder}/network.pt2", extra_files=extra).module()
agree(network(x))
for n in (1, 3):
    assert np.abs(network(x[:n]).numpy() - expected[:n]).max() <= 1e-4
print(extra["tailorvit.json"])
absent("tailorvit", "timm", "transformers")
"""

SAFETENSORS = """
import tailorvit
network = tailorvit.load(folder)
agree(network(x))
print(__import__("json").dumps(network.card.to_dict()))
absent("timm", "transformers")
no_search_code()
"""

TIMM = """
import json, timm
import tailorvit.for_timm
for place in (folder, sys.argv[3]):
    network = timm.create_model(f"local-dir:{place}", pretrained=True).eval()
    agree(network(x))
agree(network.forward_head(network.forward_features(x)))
assert network.num_classes == 10 and network.forward_head(network.forward_features(x), pre_logits=True).shape[1] == 24
bare = timm.create_model(f"local-dir:{folder}")
assert np.abs(bare.eval()(x).numpy() - expected).max() > 1e-2, "without pretrained=True the weights are fresh"

other = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=4).eval()
assert other(x).shape[1] == 4 and other.num_classes == 4
assert torch.equal(other.blocks[1].mlp.fc1.weight, network.blocks[1].mlp.fc1.weight)
other.reset_classifier(0)
assert other(x).shape[1] == 24
other.reset_classifier(7, "token")
assert other(x).shape[1] == 7 and other.get_classifier().out_features == 7

features = timm.create_model(f"local-dir:{folder}", pretrained=True, features_only=True).eval()
assert features.feature_info.channels() == [24, 24] and features.feature_info.reduction() == [2, 2]
maps = features(x[:5])
assert [tuple(m.shape) for m in maps] == [(5, 24, 4, 4)] * 2
whole = network.forward_features(x[:5])[:, 1:].transpose(1, 2).unflatten(2, (4, 4))
normed = network.forward_intermediates(x[:5], indices=[-1], norm=True, intermediates_only=True)[0]
assert torch.allclose(normed, whole, atol=1e-5)
one = timm.create_model(f"local-dir:{folder}", features_only=True, out_indices=(0,)).eval()
assert len(one(x[:2])) == 1
config = timm.data.resolve_model_data_config(network)
transform = timm.data.create_transform(**config)
square = np.arange(400, dtype=np.uint8).reshape(20, 20)
from PIL import Image
np.save(f"{scratch}/timm.npy", transform(Image.fromarray(square)).numpy())
print(json.dumps({"config": config, "labels": network.pretrained_cfg["label_names"]}))

torch.set_grad_enabled(True)
tuned = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=4, drop_path_rate=0.1).train()
tune(lambda: torch.nn.functional.cross_entropy(tuned(x[:32]), torch.arange(32) % 4), tuned)
absent("transformers")
no_search_code()
"""

HF = """
import json
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline
import tailorvit.for_transformers
network = AutoModelForImageClassification.from_pretrained(folder)
agree(network(x).logits)
assert not network.training and network(x, labels=torch.zeros(len(x), dtype=torch.long)).loss > 0
processor = AutoImageProcessor.from_pretrained(folder)
pixels = processor([Image.open(p) for p in sys.argv[3:]], return_tensors="pt")["pixel_values"]
np.save(f"{scratch}/hf.npy", pixels.numpy())
np.save(f"{scratch}/hf-one.npy", processor(Image.open(sys.argv[3]), return_tensors="np")["pixel_values"])
first = pipeline("image-classification", model=folder, device="cpu")(sys.argv[3], top_k=1)[0]
best = network(pixels[:1]).logits.softmax(-1).max(-1)
assert first["label"] == network.config.id2label[int(best.indices)] and abs(first["score"] - float(best.values)) < 1e-5
network.save_pretrained(f"{scratch}/again")
processor.save_pretrained(f"{scratch}/again")
second = AutoModelForImageClassification.from_pretrained(f"{scratch}/again")
agree(second(x).logits)
assert AutoImageProcessor.from_pretrained(f"{scratch}/again").to_dict() == processor.to_dict()
tuned = AutoModelForImageClassification.from_pretrained(folder, num_labels=3, ignore_mismatched_sizes=True)
assert tuned(x).logits.shape[1] == 3 and tuned(x).logits.isfinite().all()
torch.set_grad_enabled(True)
tune(lambda: tuned(x[:32], labels=torch.arange(32) % 3).loss, tuned.train())
print(json.dumps(network.config.id2label))
absent("timm")
no_search_code()
"""


# Folders as they were written before: with the network's source, which needs no tailorvit.
OLD = """
import timm
sys.path.insert(0, folder)
import tailorvit_network
agree(timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(x))
from transformers import AutoImageProcessor, AutoModelForImageClassification
agree(AutoModelForImageClassification.from_pretrained(folder, trust_remote_code=True)(x).logits)
AutoImageProcessor.from_pretrained(folder, trust_remote_code=True)
absent("tailorvit")
"""

OLD_INSTALLED = """
import timm
import tailorvit, tailorvit.for_timm, tailorvit.for_transformers
from transformers import AutoImageProcessor, AutoModelForImageClassification
agree(tailorvit.load(folder)(x))
agree(timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(x))
for trust in ({}, {"trust_remote_code": True}):
    agree(AutoModelForImageClassification.from_pretrained(folder, **trust)(x).logits)
    AutoImageProcessor.from_pretrained(folder, **trust)
"""


@pytest.fixture
def scratch(tmp_path, made, monkeypatch) -> Path:
    made.save(tmp_path)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    return tmp_path


def last_line(text: str):
    return json.loads(text.strip().splitlines()[-1])


def test_onnx_needs_onnxruntime_alone(exported, scratch):
    said = last_line(fresh(HEAD + ONNX, exported("onnx").path, scratch))
    assert said["format"] == 1 and said["classes"] == list(NAMES) and said["arch"]["embed"] == 24
    assert said["preprocessing"]["image_size"] == [8, 8] and said["preprocessing"]["interpolation"] == "bicubic"


def test_torch_needs_torch_alone(exported, scratch):
    said = last_line(fresh(HEAD + TORCH + PT2, exported("torch").path, scratch))
    assert said["classes"] == list(NAMES) and said["plain"]["settings"]["heads"] == [2, 3]


def test_safetensors_needs_no_search_code(exported, scratch):
    said = last_line(fresh(HEAD + TORCH + SAFETENSORS, exported("safetensors").path, scratch))
    assert said["classes"] == list(NAMES)


def test_timm_loads_tunes_and_cuts_the_network(exported, made, scratch):
    """Both folders are loaded, timm's own and the Hugging Face one."""
    said = last_line(fresh(HEAD + TORCH + TIMM, exported("timm").path, scratch, exported("hf").path))
    how = load(made.run).card.preprocessing
    assert said["config"]["input_size"] == [1, 8, 8] and said["config"]["interpolation"] == "bicubic"
    assert said["config"]["mean"] == how["mean"] and said["config"]["std"] == how["std"]
    assert said["labels"] == list(NAMES)
    from PIL import Image

    Image.fromarray(np.arange(400, dtype=np.uint8).reshape(20, 20)).save(scratch / "square.png")
    ours = preprocess(scratch / "square.png", **how)[0].numpy()
    np.testing.assert_allclose(np.load(scratch / "timm.npy"), ours, atol=1e-5)


def test_hugging_face_loads_and_tunes_the_network_and_prepares_images_as_we_do(exported, made, scratch, image_paths):
    said = last_line(fresh(HEAD + TORCH + HF, exported("hf").path, scratch, *image_paths))
    assert list(said.values()) == list(NAMES)
    ours = [preprocess(p, **load(made.run).card.preprocessing)[0].numpy() for p in image_paths]
    np.testing.assert_allclose(np.load(scratch / "hf.npy"), np.stack(ours), atol=1e-5)
    np.testing.assert_allclose(np.load(scratch / "hf-one.npy"), ours[:1], atol=1e-5)


@pytest.mark.parametrize("code", [OLD, OLD_INSTALLED], ids=["alone", "with tailorvit"])
def test_folders_with_their_own_source_still_load(tmp_path, monkeypatch, code):
    with zipfile.ZipFile(Path(__file__).with_name("exported-with-source.zip")) as old:
        old.extractall(tmp_path)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    fresh(HEAD + TORCH + code, tmp_path / "hf", tmp_path)


@pytest.mark.parametrize("to", ["safetensors", "timm", "hf"])
def test_tailorvit_loads_the_folders_too(exported, made, to):
    import torch

    with torch.inference_mode():
        logits = load(exported(to).path)(torch.from_numpy(made.x)).numpy()
    np.testing.assert_allclose(logits, made.logits, atol=1e-6)


def test_no_export_names_this_machine(exported, made):
    import tailorvit

    private = [str(Path(tailorvit.__file__).parent), str(made.run), str(Path.home()), "/home/someone"]
    private.append(tempfile.gettempdir() + "/tmp")  # where a library was handed the network
    known = [to for to in EXPORTERS if to not in DEVICES or all(map(find_spec, DEVICES[to].needs))]
    assert "openvino" in known
    for to in known:
        for path in filter(Path.is_file, exported(to).path.rglob("*")):
            name, data = path.name, path.read_bytes()
            if name.endswith((".pt2", ".pt")):
                with zipfile.ZipFile(path) as parts:
                    data = b"".join(parts.read(n) for n in parts.namelist())
            for word in private:
                assert word.encode() not in data, (to, name, word)
