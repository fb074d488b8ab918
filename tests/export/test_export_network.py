"""Saved networks: loaded, also old and broken ones; predictions of any kind of image; what plain networks offer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from export_tools import ARCH, FIXED, NAMES
from PIL import Image

from tailorvit.errors import TailorError
from tailorvit.export import load
from tailorvit.export import network as network_module
from tailorvit.export.formats import crop_share
from tailorvit.families import FAMILIES, family, plain_class


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made.run / "network", tmp_path / "network")
    return tmp_path / "network"


def edit(folder, change):
    data = json.loads((folder / "network.json").read_text())
    change(data)
    (folder / "network.json").write_text(json.dumps(data))


def test_a_file_without_plain_settings_still_loads(folder, made):
    edit(folder, lambda d: (d.pop("plain"), d["preprocessing"].pop("interpolation")))
    with torch.inference_mode():
        np.testing.assert_array_equal(load(folder)(torch.from_numpy(made.x)).numpy(), made.logits)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["plain"].update(family="vitt"), "Unknown family 'vitt'. Did you mean 'vit'"),
        (lambda d: d["plain"]["settings"].update(colour=1), "cannot be read"),
        (lambda d: d["plain"]["settings"].pop("embed"), "cannot be read"),
        (lambda d: d["plain"]["settings"].update(embed=32), "do not belong"),
        (lambda d: d.pop("classes"), "cannot be read"),
        (lambda d: d["classes"].pop(), "has 10 classes but names 9 of them"),
    ],
)
def test_a_broken_description_is_one_sentence(folder, change, words):
    edit(folder, change)
    with pytest.raises(TailorError, match=words):
        load(folder)


def test_missing_weights_are_one_sentence(folder):
    (folder / "network.safetensors").unlink()
    with pytest.raises(TailorError, match="cannot be read"):
        load(folder)


# -- predict ----------------------------------------------------------------------------------------------------------


def probabilities(rows):
    return [pytest.approx(row, abs=1e-6) for row in rows]


def test_one_image_gives_one_prediction_and_several_a_list(folder, image_paths):
    network = load(folder)
    assert network.classes == NAMES
    wanted = network.predict([str(p) for p in image_paths])
    assert isinstance(wanted, list) and len({tuple(row) for row in wanted}) > 1
    for row in wanted:
        assert set(row) == set(NAMES) and abs(sum(row.values()) - 1) < 1e-5
        assert list(row.values()) == sorted(row.values(), reverse=True)
    assert (
        network.predict(image_paths) == network.predict(tuple(image_paths)) == network.predict(p for p in image_paths)
    )
    assert (
        network.predict(image_paths)
        == network.predict(image_paths[0].parent)
        == network.predict(str(image_paths[0].parent))
    )
    assert network.predict(image_paths) == probabilities(wanted)
    for path, row in zip(image_paths, wanted):
        assert network.predict(path) == network.predict(str(path)) == pytest.approx(row, abs=1e-6)
    assert network.predict([]) == []


def test_pillow_images_and_arrays_are_as_good_as_files(folder, image_paths, tmp_path):
    """An undecoded JPEG too: it shrinks while decoding, and the caller's image stays as it was."""
    network = load(folder)
    wanted = network.predict(image_paths)
    opened = [Image.open(p) for p in image_paths]
    sizes = [image.size for image in opened]
    assert network.predict(opened) == wanted and [image.size for image in opened] == sizes
    assert network.predict(opened[0]) == pytest.approx(wanted[0], abs=1e-6)
    rng = np.random.default_rng(1)
    for shape in ((21, 30, 3), (21, 30, 4), (21, 30, 1), (21, 30)):
        array = rng.integers(0, 256, shape, np.uint8)
        Image.fromarray(array[..., 0] if shape[-1] == 1 else array).save(tmp_path / "a.png")
        row = network.predict(tmp_path / "a.png")
        assert network.predict(array) == network.predict(array / np.float32(255)) == row
        assert network.predict(array.astype(float) / 255) == network.predict(np.asfortranarray(array)) == row
    several = rng.integers(0, 256, (3, 21, 30, 3), np.uint8)
    rows = network.predict(several)
    assert rows == network.predict(list(several)) and len(rows) == 3


def test_predicting_leaves_the_mode_and_batches_agree(folder, image_paths, monkeypatch):
    network = load(folder)
    assert not any(module.training for module in network.modules())
    wanted = network.predict(image_paths)
    assert not any(module.training for module in network.modules()), "a call would change batch statistics"
    monkeypatch.setattr(network_module, "BATCH", 2)
    network.train()
    assert network.predict(image_paths) == probabilities(wanted)
    assert network.training


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ("none.png", r"There is no image file 'none\.png'\."),
        (Path("none"), r"There is no image file 'none'\."),
        (["none.png"], r"There is no image file 'none\.png'\."),
        (3, "a list of those, or a folder, not of the type int"),
        ([3], "a Pillow image or a numpy array, not of the type int"),
        (None, "not of the type NoneType"),
        (torch.zeros(1, 8, 8), "not of the type Tensor"),
        (np.zeros((8, 8, 2), np.uint8), r"with C 1, 3 or 4, .* not \(8, 8, 2\)"),
        (np.zeros(8, np.uint8), r"not \(8,\)"),
        (np.zeros((0, 8, 3), np.uint8), r"not \(0, 8, 3\)"),
        (np.zeros((8, 8), np.int64), "is uint8, or float from 0 to 1, not int64"),
        (np.full((8, 8), 3.0), "values from 0 to 1, not from 3 to 3"),
        (np.full((8, 8), np.nan), "values from 0 to 1, not from nan to nan"),
        (np.zeros((2, 8, 8, 5)), r"not \(8, 8, 5\)"),
    ],
    ids=str,
)
def test_bad_images_are_one_sentence(folder, tmp_path, monkeypatch, images, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TailorError, match=words) as caught:
        load(folder).predict(images)
    assert "\n" not in str(caught.value)


def test_files_and_folders_that_hold_no_image(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.png").write_text("text")
    network = load(folder)
    with pytest.raises(TailorError, match=r"no images in or below '.*empty'"):
        network.predict(tmp_path / "empty")
    for images in (tmp_path / "text.png", [tmp_path / "text.png"]):
        with pytest.raises(TailorError, match=r"Cannot read '.*text\.png' as an image: not an image"):
            network.predict(images)
    with pytest.raises(TailorError, match="There is no image file"):  # a folder has to be given alone
        network.predict([tmp_path / "empty"])


# -- plain networks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_a_plain_network_that_settings_rebuild(name):
    record = family(name)
    space = next(iter(record.spaces.values()))
    model = record.build(record.settings(dict(space.settings)), space.smallest())
    settings = json.loads(json.dumps(model.settings))
    rebuilt = plain_class(name).from_settings(settings)
    assert rebuilt.settings == model.settings
    rebuilt.load_state_dict(model.state_dict())


def test_intermediate_maps_are_what_leaves_the_blocks():
    record = family("vit")
    model = record.build(record.settings(FIXED), ARCH).eval()
    x = torch.rand(3, 1, 8, 8)
    seen = []
    for block in model.blocks:
        block.register_forward_hook(lambda m, i, out: seen.append(out))
    with torch.inference_mode():
        end, maps = model.forward_intermediates(x)
        tokens = model.forward_intermediates(x, indices=1, output_fmt="NLC", intermediates_only=True)
        turned = model.forward_intermediates(x, indices=[1, 0], intermediates_only=True)
        assert torch.equal(end, model.forward_features(x))
    assert [m.shape for m in maps] == [(3, 24, 4, 4)] * 2
    for found, block in zip(maps, seen[:2]):
        assert torch.equal(found[:, :, 1, 2], block[:, 1 + 1 * 4 + 2])
    assert len(tokens) == 1 and torch.equal(tokens[0], seen[1][:, 1:])
    assert torch.equal(turned[0], maps[1]) and torch.equal(turned[1], maps[0])
    with pytest.raises(IndexError):
        model.forward_intermediates(x, indices=[2])


def test_another_head_and_pooling():
    record = family("vit")
    model = record.build(record.settings(FIXED), ARCH).eval()
    x = torch.rand(2, 1, 8, 8)
    tokens = model.forward_features(x)
    model.reset_classifier(0)
    assert torch.allclose(model(x), tokens[:, 1:].mean(1)) and model.num_classes == 0
    model.reset_classifier(4, "token")
    assert model(x).shape == (2, 4) and torch.equal(model.forward_head(tokens, pre_logits=True), tokens[:, 0])
    assert plain_class("vit").from_settings(model.settings)(x).shape == (2, 4)


@pytest.mark.parametrize("size", [8, 32, 96, 160, 224, 225, 384])
@pytest.mark.parametrize("margin", [1.0, 1.15, 1.143])
def test_timm_resizes_to_the_size_we_do(made, size, margin):
    from dataclasses import replace

    card = load(made.run).card
    card = replace(card, preprocessing={**card.preprocessing, "image_size": [size, size], "margin": margin})
    assert int(size / crop_share(card)) == round(margin * size)


def test_timm_options_of_a_network(exported, made):
    import timm

    import tailorvit.for_timm  # noqa: F401 - registers

    model = timm.create_model(f"local-dir:{exported('timm').path}", pretrained=True, drop_path_rate=0.1).eval()
    with torch.inference_mode():
        np.testing.assert_allclose(model(torch.from_numpy(made.x)).numpy(), made.logits, atol=1e-4)
    assert [b.drop_path.rate for b in model.blocks] == [0.0, 0.1]
    with pytest.raises(
        ValueError, match=r"Images of 15 px do not suit this vit network .* the nearest that do: 14 and 16"
    ):
        timm.create_model(f"local-dir:{exported('timm').path}", img_size=15)
    with pytest.raises(ValueError, match="local-dir"):
        timm.create_model("tailorvit")
