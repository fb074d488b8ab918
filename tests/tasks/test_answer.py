"""Answering questions about images: the network, its figures, pictures, predictions and ONNX form."""

from __future__ import annotations

import io
import json
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from answer_tools import SMALL, Strided, folder, picture, rows_of
from PIL import Image

from tailorvit.errors import TailorError
from tailorvit.rng import seed_everything
from tailorvit.tasks.answer import TASK, AnswerSettings
from tailorvit.train.loop import train
from tailorvit.train.rules import Fixed
from tailorvit.train.settings import TrainSettings

SETTINGS = AnswerSettings(**SMALL)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return TASK.read(str(folder(tmp_path_factory.mktemp("answer"), 24)), SETTINGS, 0)


def built(data, settings=SETTINGS):
    seed_everything(0, "build")
    return TASK.build(Strided(), data, settings)


def fitted(data, settings=SETTINGS, epochs=80):
    network = built(data, settings)
    recipe = TrainSettings(epochs=epochs, batch=16, lr=2e-3, warmup=5.0)
    train(network, data.train_batches(16, 0), Fixed(), recipe, 0, objective=network.loss)
    return network


@pytest.fixture(scope="module")
def network(data):
    return fitted(data)


def test_a_tiny_set_is_learned_and_a_blind_network_cannot(data, network):
    seen, blind = TASK.evaluate(network, data, "train", "cpu"), fitted(data, replace(SETTINGS, blind=True))
    guessed = TASK.evaluate(blind, data, "train", "cpu")
    assert seen["accuracy"] == 100
    assert set(seen) == {"accuracy", "accuracy_colour", "accuracy_yes_no", "prior_accuracy"}
    # The best without images: the more frequent of yes and no, and the most frequent colour.
    kinds = [(q.text, max(q.scores)) for q in data.questions("train")]
    best = sum(max(kinds.count((t, a)) for _, a in kinds) for t in {t for t, _ in kinds})
    assert guessed["accuracy"] <= 100 * best / len(kinds) + 1e-6
    assert guessed["prior_accuracy"] == pytest.approx(100 * kinds.count(("Is it red?", "no")) / len(kinds))
    x, words, _ = data.at("train", np.arange(6))
    with torch.no_grad():
        assert torch.equal(blind(x, words), blind(torch.randn_like(x), words))
        assert not torch.equal(network(x, words), network(torch.randn_like(x), words))


def test_padding_changes_nothing(data):
    network = built(data).eval()
    x, words, _ = data.at("train", np.arange(4))
    network.text.embeddings.position_ids = torch.arange(words.shape[1] + 3)[None]
    table = network.text.embeddings.position_embeddings
    table.weight = torch.nn.Parameter(torch.cat([table.weight, torch.randn(3, table.weight.shape[1])]))
    network.text.embeddings.token_type_ids = torch.zeros(1, words.shape[1] + 3, dtype=torch.long)
    with torch.no_grad():
        longer = torch.cat([words, torch.zeros(4, 3, dtype=torch.long)], 1)
        assert torch.allclose(network(x, longer), network(x, words), atol=1e-5)


def test_the_place_of_a_thing_in_the_image_matters(data):
    network = built(data).eval()
    x, words, _ = data.at("train", np.arange(1))
    left, right = torch.zeros_like(x), torch.zeros_like(x)
    left[..., :8], right[..., 8:] = 3.0, 3.0
    tokens = network.image_tokens(left)
    assert tokens.shape == (1, 4, SETTINGS.width)
    with torch.no_grad():
        assert not torch.allclose(network(left, words), network(right, words), atol=1e-5)


def test_training_again_gives_the_same_network(data):
    settings = replace(SETTINGS, dropout=0.2)
    a, b = (fitted(data, settings, epochs=1).state_dict() for _ in range(2))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_blind_network_does_not_train_its_backbone(data):
    blind = built(data, replace(SETTINGS, blind=True))
    assert not any(p.requires_grad for p in blind.backbone.parameters())
    assert blind.nothing.requires_grad and built(data).nothing is None


def test_a_saved_network_comes_back_from_plain_data(data, network):
    kept = json.loads(json.dumps(network.settings))
    again = TASK.rebuild(Strided(), kept)
    again.load_state_dict(network.state_dict())
    x, words, _ = data.at("train", np.arange(5))
    with torch.no_grad():
        assert torch.equal(again.eval()(x, words), network.eval()(x, words))


def test_soft_answers_are_learned_each_by_itself(tmp_path):
    rows = [{**r, "answers": [r["answer"]] * 8 + ["perhaps"] * 2} for r in rows_of(12)]
    data = TASK.read(str(folder(tmp_path, 12, rows)), SETTINGS, 0)
    network = built(data)
    x, words, target = data.at("train", np.arange(4))
    logits = network(x, words)
    each = target * logits.sigmoid().log() + (1 - target) * (-logits).sigmoid().log()
    assert network.soft and torch.isclose(network.eval().loss(x, words, target), -each.sum(1).mean(), atol=1e-4)
    assert target.unique().tolist() == pytest.approx([0.0, 0.6, 1.0])


def test_predictions_of_a_file(tmp_path, data, network):
    facts = {"image_size": data.image_size, "channels": 3, "mean": data.mean, "std": data.std}
    picture(tmp_path / "a.png", "green", 99)
    found = TASK.predict(network, facts, tmp_path / "a.png", question="what COLOUR is it")
    assert found["answer"] == "green" and found["answers"][0]["answer"] == "green"
    assert sum(row["probability"] for row in found["answers"]) == pytest.approx(1, abs=1e-5)
    json.dumps(found)
    with pytest.raises(TailorError, match="A question is needed"):
        TASK.predict(network, facts, tmp_path / "a.png")
    with pytest.raises(TailorError, match="no image file"):
        TASK.predict(network, facts, tmp_path / "b.png", question="what?")
    (tmp_path / "b.png").write_bytes(b"x")
    with pytest.raises(TailorError, match="Cannot read"):
        TASK.predict(network, facts, tmp_path / "b.png", question="what?")


def test_pictures_show_what_was_asked_and_said(data, network):
    shown = TASK.pictures(network, data, "search", "cpu")
    assert len({p.name for p in shown}) == len(shown) >= 6
    assert Image.open(io.BytesIO(shown[0].data)).size == (160, 160)
    first = data.questions("search")[0]
    assert shown[0].caption.startswith(first.text) and f"true: {max(first.scores)}" in shown[0].caption
    assert "%" in shown[0].caption


def test_onnx_says_the_same(tmp_path, data, network):
    pytest.importorskip("onnxscript")
    import onnxruntime

    form = TASK.for_onnx(network.eval(), data)
    shapes = tuple({axis: torch.export.Dim(name) for axis, name in form.dynamic[i].items()} for i in form.inputs)
    program = torch.onnx.export(
        form.module,
        tuple(form.inputs.values()),
        dynamo=True,
        dynamic_shapes=shapes,
        input_names=list(form.inputs),
        output_names=list(form.outputs),
        verbose=False,
    )
    program.save(str(tmp_path / "answer.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "answer.onnx"), providers=["CPUExecutionProvider"])
    for count in (1, 5):
        x, words, _ = data.at("train", np.arange(count))
        with torch.no_grad():
            expected = network(x, words)
        found = session.run(["logits"], {"images": x.numpy(), "words": words.numpy()})[0]
        assert np.allclose(found, expected.numpy(), atol=1e-4)


def test_the_papers_preset_holds_known_settings():
    preset = TASK.presets["vqa2"]
    assert set(preset) == {"summary", "backbone_lr", "train", "answer"}
    recipe = TrainSettings(**preset["train"])
    assert AnswerSettings(**preset["answer"]).image_size == 384 and AnswerSettings(**TASK.tiny["answer"])
    assert recipe.lr * preset["backbone_lr"] == pytest.approx(5e-6)
    TrainSettings(**TASK.train)
    for settings in TASK.beside.values():
        assert replace(SETTINGS, **settings).blind


def test_the_documentation_names_every_key_with_its_default():
    text = (Path(__file__).parents[2] / "docs" / "tasks" / "answer.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| `answer\.(\w+)` \| `(.+?)` \|", text, re.M)
    assert explained == [(f.name, json.dumps(f.default)) for f in fields(AnswerSettings)]
