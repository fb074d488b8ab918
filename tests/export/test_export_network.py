"""Saved networks load without search code, old ones through their family, broken ones with a sentence; plain duties."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from export_tools import ARCH, FIXED

from tailorvit.errors import TailorError
from tailorvit.export import load, timm_format
from tailorvit.families import FAMILIES, family, plain_class


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made.run / "network", tmp_path / "network")
    return tmp_path / "network"


def edit(folder, change):
    data = json.loads((folder / "network.json").read_text())
    change(data)
    (folder / "network.json").write_text(json.dumps(data))


def test_a_file_of_the_first_kind_still_loads(folder, made):
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
        (lambda d: d["classes"].pop(), "classes apart but names"),
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


def test_predicting_files_works_on_what_was_written(folder, pictures):
    rows = load(folder).predict(pictures)
    assert len(rows) == len(pictures) and all(abs(sum(r.values()) - 1) < 1e-5 for r in rows)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_a_plain_network_that_settings_rebuild(name):
    record = family(name)
    space = next(iter(record.spaces.values()))
    model = record.build(record.frame(dict(space.fixed)), space.smallest())
    settings = json.loads(json.dumps(model.settings))
    again = plain_class(name).from_settings(settings)
    assert again.settings == model.settings
    again.load_state_dict(model.state_dict())


def test_intermediate_maps_are_what_leaves_the_blocks():
    record = family("vit")
    model = record.build(record.frame(FIXED), ARCH).eval()
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
    model = record.build(record.frame(FIXED), ARCH).eval()
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
    assert int(size / timm_format.crop_share(card)) == round(margin * size)


def test_the_package_registers_the_entry_point_too(exported, made):
    import timm

    import tailorvit.export.timm_models  # noqa: F401 - registers

    model = timm.create_model(f"local-dir:{exported('timm').path}", pretrained=True, drop_path_rate=0.1).eval()
    with torch.inference_mode():
        np.testing.assert_allclose(model(torch.from_numpy(made.x)).numpy(), made.logits, atol=1e-4)
    assert [b.drop_path.rate for b in model.blocks] == [0.0, 0.1]
    with pytest.raises(ValueError, match=r"takes images of \[8, 8\], not \[16, 16\]"):
        timm.create_model(f"local-dir:{exported('timm').path}", img_size=16)
    with pytest.raises(ValueError, match="local-dir"):
        timm.create_model("tailorvit")
