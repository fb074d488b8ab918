"""``start.supernet``: a run searches a released supernet without training it, and goes on without its file."""

from __future__ import annotations

import pytest
import torch
from checkpoint_states import autoformer_reference, autoformer_state

from tailorvit import api
from tailorvit.checkpoints import IMAGENET, checksum
from tailorvit.config import configure
from tailorvit.data import open_data
from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.methods import session as session_module
from tailorvit.methods import team
from tailorvit.methods.released import space_of_released
from tailorvit.runs import Run
from tailorvit.train import accuracy

SIZES = {"heads": 4, "depth": 5, "ratio": 3, "head_dim": 16, "side": 4, "patch": 2, "channels": 1, "reach": 3}
SPACE = named_space("vit-8px", eps=1e-5)


@pytest.fixture
def file(tmp_path):
    torch.save({"model": autoformer_state(classes=10, **SIZES)}, tmp_path / "supernet-small.pth")
    return tmp_path / "supernet-small.pth"


def recipe(file, **changes):
    small = {"population": 4, "parents": 2, "generations": 1, "crossover": 1, "mutation": 1}
    data = {"source": "digits", "limit": 120}
    return {
        "method": "autoformer",
        "space": SPACE.to_dict(),
        "data": data,
        "start": {"supernet": str(file)},
        "search": small,
        "final": {"how": "inherit"},
        "baseline": False,
        "analysis": {"samples": 3},
        **changes,
    }


def run(tmp_path, config, name="run"):
    import tomli_w

    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(config))
    return api.run(str(tmp_path / "recipe.toml"), out=tmp_path / name, progress="quiet")


@torch.no_grad()
def test_the_file_is_searched_and_never_trained(tmp_path, file, monkeypatch):
    def train(*_, **__):
        raise AssertionError("nothing here is trained")

    monkeypatch.setattr(team, "train", train)
    result = run(tmp_path, recipe(file))
    from tailorvit import load
    from tailorvit.arch import Arch

    network, arch = load(tmp_path / "run"), Arch.from_dict(result["arch"])
    assert network.model.settings["qkv"] == "aligned"
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    expected = autoformer_reference(torch.load(file, weights_only=True)["model"], x, arch, 16, 2)
    torch.testing.assert_close(network(x), expected, atol=1e-4, rtol=1e-4)
    assert (tmp_path / "run" / "report.html").is_file()
    with Run.open(tmp_path / "run") as record:
        assert record.result("supernet-0")["sha256"] == checksum(file)
        messages = [e["text"] for e in record.events("start")]
        data = open_data("digits", limit=120, saved=record.read_json("splits"))
    assert (
        len(messages) == 1
        and "supernet-small.pth (autoformer, for depth 5, embed 64, heads 4; sha256" in messages[0]
        and "not trained" in messages[0]
    )
    batches = list(data.eval_batches("search", 64))
    assert result["search_accuracy"] == pytest.approx(accuracy(network.model, batches, "cpu"))


@torch.no_grad()
def test_the_space_gets_the_eps_of_the_file(tmp_path, file):
    """The network computes what the released code computes, although the recipe's space has another eps."""
    from tailorvit import load
    from tailorvit.arch import Arch
    from tailorvit.config import parse_recipe

    result = run(tmp_path, recipe(file, space=SPACE.with_settings(eps=0.1).to_dict()))
    network, arch = load(tmp_path / "run"), Arch.from_dict(result["arch"])
    assert network.model.settings["eps"] == 1e-5 and result["settings"]["eps"] == 1e-5
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    expected = autoformer_reference(torch.load(file, weights_only=True)["model"], x, arch, 16, 2)
    torch.testing.assert_close(network(x), expected, atol=1e-4, rtol=1e-4)
    saved = parse_recipe((tmp_path / "run" / "recipe.toml").read_text(), "recipe.toml")
    assert saved["space"]["settings"]["eps"] == 1e-5, "a resumed run builds the same supernet"


def test_a_killed_run_goes_on_without_the_file(tmp_path, file, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(session_module.Session, "search", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, recipe(file))
    file.unlink()
    resumed = api.resume(tmp_path / "run", progress="quiet")
    torch.save({"model": autoformer_state(classes=10, **SIZES)}, file)
    whole = run(tmp_path, recipe(file), "whole")
    assert resumed["arch"] == whole["arch"] and resumed["test_accuracy"] == whole["test_accuracy"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "s4"}, r"start\.supernet is for the methods autoformer, bignas, hat; 's4' does not"),
        ({"method": "fixed", "arch": "deit-ti", "data": {"source": "digits", "image_size": 224}}, "'fixed' does not"),
        ({"space": "vit-32px"}, r"too small for the space: 'depth' goes up to 8, and the file has 5"),
        ({"start": {"supernet": "absent.pth"}}, r"There is no checkpoint file 'absent\.pth'"),
        ({"space": "swin-8px"}, r"supernet of the family vit, but the space is of the family swin"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_is_written(tmp_path, file, changes, words):
    with pytest.raises(TailorError, match=words):
        run(tmp_path, recipe(file, **changes))
    assert not (tmp_path / "run").exists()


def test_other_classes_are_refused(tmp_path):
    torch.save(autoformer_state(classes=7, **SIZES), tmp_path / "seven.pth")
    with pytest.raises(TailorError, match=r"seven\.pth' has 7 classes, but the data has 10"):
        run(tmp_path, recipe(tmp_path / "seven.pth"))


def test_colour_images_are_normalised_as_in_the_papers(tmp_path):
    from types import SimpleNamespace

    data = SimpleNamespace(channels=3, classes=["a", "b"], mean=(0.1,) * 3, std=(1.0,) * 3)
    torch.save(autoformer_state(classes=2, **{**SIZES, "channels": 3}), tmp_path / "x.pth")
    config = configure({"method": "autoformer", "start": {"supernet": str(tmp_path / "x.pth")}})
    space = space_of_released(config, data, SPACE.with_settings(channels=3))
    assert (data.mean, data.std) == (IMAGENET.mean, IMAGENET.std)
    assert dict(space.settings)["qkv"] == "official" and dict(space.settings)["classes"] == 2
    assert space_of_released(configure({"method": "autoformer"}), data, SPACE) is SPACE
