"""Networks on the Hugging Face hub: pushed and loaded by its own library, against a hub on this machine."""

from __future__ import annotations

import threading
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from export_tools import ARCH, FIXED
from fake_hub import FakeHub
from huggingface_hub import constants
from PIL import Image

from tailorvit.errors import TailorError
from tailorvit.evaluation import evaluate
from tailorvit.export import Card, export, hub, load, push, save_network
from tailorvit.families import family
from tailorvit.predict import predict
from tailorvit.runs.atomic import dumps

FILES = {"README.md", "config.json", "model.safetensors", "network.json", "preprocessor_config.json"}


@pytest.fixture
def fake(monkeypatch, tmp_path):
    server = FakeHub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN", FakeHub.token)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A run folder with things that are nobody's business."""
    folder = tmp_path_factory.mktemp("hub") / "run"
    torch.manual_seed(0)
    record = family("vit")
    model = record.build(record.settings(FIXED), ARCH).eval()
    names = ("0", "1|x", 'a "FOLDER"', *"3456789")
    how = {"image_size": [8, 8], "channels": 1, "mean": [0.5], "std": [0.25], "margin": 1.0}
    save_network(folder / "network", model, Card(ARCH, FIXED, names, how, {"test_accuracy": 90.0}))
    (folder / "result.json").write_text(dumps({"test_accuracy": 91.25, "data": {"source": "/home/someone/my photos"}}))
    (folder / "log.txt").write_text("secret")
    return folder


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """The check of the format hf starts a process; it has tests of its own."""
    import tailorvit.export as room

    real = room.export
    monkeypatch.setattr(room, "export", lambda *a, **k: real(*a, **k, check=False))


def test_a_pushed_network_is_private_and_loads_by_its_name(fake, run, tmp_path, monkeypatch):
    done = push(run, "me/digits")
    repo = fake.repos["me/digits"]
    assert done.private and repo["private"] and set(repo["files"]) == FILES | {".gitattributes"}
    assert not any(b"secret" in data or b"/home" in data for data in repo["files"].values())
    assert done.url == f"{fake.url}/me/digits" and "only you" in done.lines()[0]
    x = torch.rand(3, 1, 8, 8)
    found = load("hf:me/digits")
    with torch.inference_mode():
        assert torch.equal(found(x), load(run)(x))
    assert found.classes == load(run).classes
    assert {r.split("/")[-1] for r in fake.seen if "/resolve/" in r} == {"network.json", "model.safetensors"}
    for number in range(4):
        label = tmp_path / "images" / "34"[number % 2]
        label.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 60 * number, np.uint8)).save(label / f"{number}.png")
    rows = list(predict("hf:me/digits", tmp_path / "images"))
    assert len(rows) == 4 and all(row.error is None for row in rows)
    assert evaluate("hf:me/digits", str(tmp_path / "images")).to_dict()["images"] == 4
    sha = repo["sha"]
    assert hub.fetched(f"hf:me/digits@{sha}").name == sha
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert load("hf:me/digits").classes == found.classes
    assert load("hf:me/digits@" + sha).classes == found.classes, "from the copy on this machine"


def test_the_card_is_a_valid_model_index(fake, run):
    push(run, "hf:me/digits", public=True, license="apache-2.0")
    assert not fake.repos["me/digits"]["private"]
    text = fake.repos["me/digits"]["files"]["README.md"].decode()
    card = huggingface_hub.ModelCard(text)
    said = card.data.to_dict()
    assert said["library_name"] == "transformers" and said["pipeline_tag"] == "image-classification"
    assert said["license"] == "apache-2.0" and said["metrics"] == ["accuracy"] and "tailorvit" in said["tags"]
    assert "datasets" not in said
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_split) == ("accuracy", 0.9125, "test")
    assert (result.dataset_name, result.dataset_type) == ("my photos", "my-photos")
    assert said["model-index"][0]["name"] == "digits"
    use = text.split("## Use")[1]
    assert 'from_pretrained("me/digits")' in use and '"hf-hub:me/digits"' in use and '"FOLDER"' not in use
    assert 'tailorvit.load("hf:me/digits")' in use and 'a "FOLDER"' in text
    assert "apache-2.0, as stated" in text and "None is stated" not in text


def test_without_a_licence_or_an_accuracy_none_is_claimed(fake, run, tmp_path):
    place = tmp_path / "run"
    card = Card(ARCH, FIXED, tuple("0123456789"), load(run).card.preprocessing, {})
    save_network(place / "network", load(run).model, card)
    (place / "info.json").write_text(dumps({"data": {"source": "hf:someone/flowers:small"}}))
    push(place, "me/bare")
    said = huggingface_hub.ModelCard(fake.repos["me/bare"]["files"]["README.md"].decode()).data.to_dict()
    assert not {"license", "model-index", "metrics"} & set(said) and said["datasets"] == ["someone/flowers"]


def test_a_push_replaces_an_earlier_one_and_nothing_else(fake, run):
    push(run, "me/digits")
    first = fake.repos["me/digits"]["files"]["README.md"]
    push(run, "me/digits", license="mit")
    assert fake.repos["me/digits"]["files"]["README.md"] != first
    for name, files, private, words in (
        ("me/thesis", {"README.md": b"", "thesis.pdf": b""}, True, r"no push wrote \(such as 'thesis.pdf'\)"),
        ("me/other", {"config.json": b"{}", "README.md": b"mine"}, True, "no push wrote"),
        ("me/open", {"network.json": b"{}"}, False, "'me/open' is public; push into it with --public"),
    ):
        fake.put(name, files, private)
        with pytest.raises(TailorError, match=words):
            push(run, name)
        assert fake.repos[name]["files"] == files


def test_what_cannot_be_pushed_is_one_sentence(fake, run, monkeypatch):
    for name in ("digits", "me/a/b", "me/..", "me/-- x"):
        with pytest.raises(TailorError, match=r"is not the name of a network on the hub, which reads USER/NAME\.$"):
            push(run, name)
    with pytest.raises(TailorError, match="is on the hub already"):
        push("hf:me/digits", "me/copy")
    with pytest.raises(TailorError, match=r"refuses what was to be written to 'me/x': .*license must be known"):
        push(run, "me/x", license="no-such")
    assert not fake.repos, "no empty repository is left behind"
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(TailorError, match=r"refuses your token for 'me/y' \(403\)"):
        push(run, "me/y")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(TailorError, match="needs a token that may write: set HF_TOKEN"):
        push(run, "me/z")


def test_what_cannot_be_loaded_is_one_sentence(fake, run, monkeypatch, tmp_path):
    fake.put("you/bert", {"config.json": b"{}", "run.py": b"evil()"}, False)
    with pytest.raises(TailorError, match=r"'hf:you/bert' holds no network that TailorViT wrote \(no network.json\)"):
        load("hf:you/bert")
    assert not any("resolve" in row for row in fake.seen), "nothing of it was downloaded"
    fake.put("you/broken", {"network.json": b"{}", "model.safetensors": b"x"}, False)
    with pytest.raises(TailorError, match="The network in 'hf:you/broken' cannot be read"):
        load("hf:you/broken")
    with pytest.raises(TailorError, match="no network 'you/gone', or your token may not see it"):
        load("hf:you/gone")
    with pytest.raises(TailorError, match="'you/bert' has no such revision"):
        load("hf:you/bert@v9")
    with pytest.raises(TailorError, match="which reads USER/NAME"):
        predict("hf:bert.onnx", tmp_path)
    with pytest.raises(TailorError, match=r"say where to write its export \(--out\)"):
        export("hf:you/bert", "onnx")


def test_without_a_network_it_is_one_sentence(fake, run, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(TailorError, match="'me/x' is not on this machine yet, and the hub cannot be reached: "):
        load("hf:me/x")
    with pytest.raises(TailorError, match="The hub cannot be reached: "):
        push(run, "me/x")
    assert not Path("hf:me").exists()
