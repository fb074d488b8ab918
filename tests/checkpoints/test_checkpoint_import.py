"""``tailorvit import``: a checkpoint file becomes a network folder that other commands take."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from checkpoint_states import autoformer_state
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

import tailorvit
from tailorvit import cli
from tailorvit.checkpoints import load_plain
from tailorvit.errors import TailorError
from tailorvit.families import family, named_arch
from tailorvit.importing import class_names, import_checkpoint

# A small ViT of four 8 px patches and three classes, written as ARCH.json.
ARCH = {
    "arch": {"family": "vit", "depth": 2, "embed": 24, "heads": [2, 1], "mlp": [2, 1.5]},
    "fixed": {"image_size": [16, 16], "patch": 8, "head_dim": 16, "reach": 1, "eps": 1e-5},
}
SIZES = {"heads": 2, "depth": 3, "ratio": 2, "head_dim": 16, "side": 2, "patch": 8, "classes": 3, "reach": 1}


def command(*args):
    return CliRunner().invoke(cli.app, ["import", *map(str, args)], catch_exceptions=True)


@pytest.fixture
def released(tmp_path):
    """A supernet file in the released form, and the architecture to take out of it."""
    state = autoformer_state(**SIZES)
    torch.save({"model": state, "epoch": 499}, tmp_path / "supernet.pth")
    (tmp_path / "small.json").write_text(json.dumps(ARCH))
    return state


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_import_then_predict(here, released):
    (here / "names.txt").write_text("cat\ndog\n\nhorse\n")
    done = command("supernet.pth", "--as", "small.json", "--classes-file", "names.txt", "--out", "net")
    assert done.exit_code == 0, done.output
    assert "supernet.pth: autoformer (AutoFormer's released supernets" in done.output and "3 classes" in done.output
    network = tailorvit.load(here / "net")
    params = sum(p.numel() for p in network.parameters())
    assert f"{params:,} parameters" in done.output
    card = network.card
    assert card.classes == ("cat", "dog", "horse") and card.facts["checkpoint"] == "supernet.pth"
    assert card.preprocessing["mean"] == [0.485, 0.456, 0.406] and card.preprocessing["margin"] == 256 / 224
    x = torch.randn(2, 3, 16, 16)
    arch = family("vit").arch(ARCH["arch"])
    with torch.no_grad():
        torch.testing.assert_close(network(x), load_plain(released, arch, ARCH["fixed"])(x), atol=0, rtol=0)

    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(here / "photo.png")
    done = CliRunner().invoke(cli.app, ["predict", "net", "photo.png", "--json"])
    answer = json.loads(done.output)
    answer = answer[0] if isinstance(answer, list) else answer
    assert {"cat", "dog", "horse"} <= set(json.dumps(answer).replace('"', " ").split())


@pytest.mark.parametrize("eps", [None, 0.1])
def test_an_imported_autoformer_has_the_released_eps(here, released, eps):
    fixed = {k: v for k, v in {**ARCH["fixed"], "eps": eps}.items() if v is not None}
    (here / "other.json").write_text(json.dumps({**ARCH, "fixed": fixed}))
    import_checkpoint("supernet.pth", "other.json", out="net")
    network = tailorvit.load(here / "net")
    assert network.card.settings["eps"] == network.model.settings["eps"] == 1e-5


def test_a_named_architecture_and_its_place(here):
    named = named_arch("deit-ti")
    model = family("vit").build(family("vit").settings({**named.settings, "classes": 4}), named.arch)
    save_file(model.state_dict(), here / "deit.safetensors")
    done = command("deit.safetensors", "--as", "deit-ti", "--json")
    facts = json.loads(done.output)
    assert facts["kind"] == "vit" and facts["folder"] == "networks/deit-ti" and len(facts["sha256"]) == 64
    assert facts["params"] == sum(p.numel() for p in model.parameters()) and facts["macs"] > 1e9
    network = tailorvit.load(here / "networks" / "deit-ti")
    assert network.card.classes == ("class 0", "class 1", "class 2", "class 3")
    assert network.card.settings["classes"] == 4 and network.card.shape == (3, 224, 224)
    with pytest.raises(TailorError, match="holds files that no export wrote"):
        import_checkpoint("deit.safetensors", "deit-ti")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deit-xx", "Unknown architecture 'deit-xx'"),
        ("swin-t", r"kind 'autoformer' .* 'swin-t' is of the family swin"),
        ("autoformer-t", r"lacks 'blocks\.3\.\S+' \(and 159 more\)"),
        ("absent.json", r"no architecture file 'absent\.json'"),
    ],
)
def test_mistakes_leave_nothing_behind(here, released, name, words):
    with pytest.raises(TailorError, match=words):
        import_checkpoint("supernet.pth", name)
    assert not (here / "networks").exists()


def test_grey_networks_have_no_published_preprocessing(here):
    torch.save(autoformer_state(**SIZES, channels=1), here / "grey.pth")
    (here / "grey.json").write_text(json.dumps({**ARCH, "fixed": {**ARCH["fixed"], "channels": 1}}))
    with pytest.raises(TailorError, match=r"'channels' of 'grey\.json' cannot be 1"):
        import_checkpoint("grey.pth", "grey.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\nb\n", "has 2 names, but the checkpoint has 3 classes"),
        ("crane\nb\ncrane\n", "'crane' twice, as names 1 and 3"),
    ],
)
def test_class_names_are_checked(tmp_path, text, words):
    (tmp_path / "names.txt").write_text(text)
    with pytest.raises(TailorError, match=words):
        class_names(tmp_path / "names.txt", 3)
    with pytest.raises(TailorError, match="cannot be read"):
        class_names(tmp_path / "absent.txt", 3)
