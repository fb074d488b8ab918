"""analyse: the content of analysis.json for whole networks and data."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from analysis_tools import network, opened, unpacked
from PIL import Image

from tailorvit.analysis import AnalysisSettings, analyse
from tailorvit.data import open_data
from tailorvit.errors import TailorError
from tailorvit.families import family
from tailorvit.train import accuracy

VIT = family("vit")


@pytest.fixture
def digits():
    data = open_data("digits", limit=60)
    data.unseal_test("tests of the analysis")
    return data


def finite(value):
    """Every number in plain data, and nothing but plain data."""
    if isinstance(value, dict):
        assert all(isinstance(k, str) for k in value)
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    assert value is None or type(value) in (str, int, float, bool), type(value)
    return not isinstance(value, float) or math.isfinite(value)


class Oracle(torch.nn.Module):
    """Always right: it knows the labels in order."""

    def __init__(self, labels, classes):
        super().__init__()
        self.labels, self.classes, self.at = torch.as_tensor(labels), classes, 0

    def forward(self, x):
        mine = self.labels[self.at : self.at + len(x)]
        self.at += len(x)
        return 20.0 * torch.nn.functional.one_hot(mine, self.classes)


def test_the_whole_of_digits(digits):
    model = network(classes=10)
    found = analyse(VIT, model, digits, "cpu", AnalysisSettings(images=3, mistakes=5), batch=7)
    assert finite(found) and json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["format"] == 1 and found["classes"] == list(digits.classes) and found["notes"] == []
    test = found["test"]
    percent = accuracy(model, digits.eval_batches("test", 60))
    assert 100 * test["correct"] / test["count"] == percent < 60, "an untrained network, as accuracy sees it"
    assert sum(n for _, _, n in test["confusion"]) == test["count"] == 60
    assert sum(n for t, s, n in test["confusion"] if t == s) == test["correct"] == sum(c for _, c in test["per_class"])
    sure = [m["probability"] for m in test["mistakes"]]
    assert len(sure) == 5 and sure == sorted(sure, reverse=True)
    names, x = digits.names("test"), digits.examples("test", range(60))[0]
    for row in [*test["mistakes"], *found["attention"]["images"]]:
        np.testing.assert_array_equal(np.asarray(opened(row["picture"])), x[names.index(row["name"])][0])
        assert digits.labels("test")[names.index(row["name"])] == row["truth"]
    assert all(m["truth"] != m["said"] and m["truth_probability"] <= m["probability"] for m in test["mistakes"])
    attention = found["attention"]
    assert len(attention["images"]) == 3 and attention["pooled"] == 16
    assert [(layer["name"], layer["stage"], layer["block"]) for layer in attention["layers"]] == [
        ("block 1", None, 1),
        ("block 2", None, 2),
    ]
    for layer in attention["layers"]:
        assert layer["references"][0] == [2, 2]
        assert (unpacked(layer, 3).max((-2, -1)) == 255).all()
        assert (unpacked(layer, 3, "peaks") >= 1 / 16 - 1e-6).all(), "16 weights that sum to 1"


def test_the_maps_belong_to_the_images_shown(digits):
    model = network(classes=10)
    attention = analyse(VIT, model, digits, "cpu", AnalysisSettings(images=2))["attention"]
    at = [digits.names("test").index(row["name"]) for row in attention["images"]]
    x = digits.normalise(digits.examples("test", at)[0])
    with torch.no_grad():
        first = next(iter(VIT.attention(model, x))).weights()
    row, column = attention["layers"][0]["references"][0]
    peaks = first[:, 0, :, 4 * row + column].amax(-1)
    np.testing.assert_allclose(unpacked(attention["layers"][0], 2, "peaks")[:, 0], peaks, rtol=1e-5)


def test_twice_the_same_bytes_and_nothing_is_left_changed(digits):
    model = network(classes=10).train()
    model.blocks[0].eval()  # a mixed state, to be found again
    modes = [m.training for m in model.modules()]
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    state, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - the state itself is meant
    first = json.dumps(analyse(VIT, model, digits, "cpu", AnalysisSettings()))
    assert first == json.dumps(analyse(VIT, model, digits, "cpu", AnalysisSettings()))
    assert [m.training for m in model.modules()] == modes and len(set(modes)) == 2
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == numbers).all()  # noqa: NPY002
    model(torch.zeros(1, 1, 8, 8)).sum().backward()  # no tensor of inference mode has crept in


def test_modes_come_back_after_an_error(digits):
    class Broken(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("no")

    model = Broken().train()
    with pytest.raises(RuntimeError, match="no"):
        analyse(VIT, model, digits, "cpu", AnalysisSettings())
    assert model.training


def test_no_images_no_mistakes(digits):
    model = network(classes=10)
    found = analyse(VIT, model, digits, "cpu", AnalysisSettings(images=0, mistakes=0))
    assert found["attention"] is None and found["notes"] == ["Attention is left out, as analysis.images is 0."]
    assert found["test"]["mistakes"] == [] and found["test"]["correct"] < found["test"]["count"]


def test_a_family_without_attention_and_a_network_without_mistakes(digits):
    model = Oracle(digits.labels("test"), 10)
    found = analyse(replace(VIT, attention=None), model, digits, "cpu", AnalysisSettings())
    assert found["attention"] is None and found["notes"] == ["The vit family has no attention maps."]
    assert found["test"]["correct"] == found["test"]["count"] == 60 and found["test"]["mistakes"] == []
    assert [t for t, s, _ in found["test"]["confusion"]] == [s for _, s, _ in found["test"]["confusion"]]


def test_a_network_of_nan_is_reported_not_hidden(digits):
    model = network(classes=10)
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight.fill_(float("nan"))
    found = analyse(VIT, model, digits, "cpu", AnalysisSettings(images=1, mistakes=2))
    assert finite(found)
    assert found["notes"] == [
        "60 test image(s) got no finite prediction; their probabilities are shown as 0.",
        "Attention is not finite in block 2, and left out.",
    ]
    assert [layer["name"] for layer in found["attention"]["layers"]] == ["block 1"]


def test_hostile_names_stay_text_and_paths_stay_home(tmp_path):
    classes = ["<script>alert(1)<", "&amp; \"quoted' \n"]
    rng = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 3)):
        for label in classes:
            folder = tmp_path / "my pictures" / part / label
            folder.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(rng.integers(0, 256, (80, 90, 3), dtype=np.uint8)).save(
                    folder / f"<img onerror={i}>.png"
                )
    data = open_data(str(tmp_path / "my pictures"), image_size=(72, 72))
    data.unseal_test("tests of the analysis")
    model = network(classes=2, size=(72, 72), channels=3, patch=18)
    found = analyse(VIT, model, data, "cpu", AnalysisSettings(images=2))
    assert found["classes"] == sorted(classes)
    rows = [*found["test"]["mistakes"], *found["attention"]["images"]]
    assert len(rows) >= 2
    for row in rows:
        assert row["name"].startswith(f"test/{found['classes'][row['truth']]}/<img onerror=")
        assert opened(row["picture"]).format == "JPEG" and opened(row["picture"]).size == (72, 72)
    assert str(tmp_path) not in json.dumps(found)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_sealed_test_split_stays_sealed():
    data = open_data("digits", limit=20)
    with pytest.raises(TailorError, match="sealed"):
        analyse(VIT, network(classes=10), data, "cpu", AnalysisSettings())
