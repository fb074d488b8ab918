"""Every family's plain network leaves the house: ONNX and timm give the same answers, stages give their maps."""

from __future__ import annotations

import pytest
import torch

from tailorvit.export import Card, export, load, save_network
from tailorvit.families import FAMILIES


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def taken(request, tmp_path_factory):
    """A network folder with the largest member of the family's smallest space."""
    family = FAMILIES[request.param]
    space = min(family.spaces.values(), key=lambda s: max(dict(s.fixed)["image_size"]))
    frame = family.frame(dict(space.fixed))
    torch.manual_seed(0)
    model = family.build(frame, space.largest()).eval()
    high, wide = frame.image_size
    how = {"image_size": [high, wide], "channels": frame.channels, "margin": 1.0}
    how |= {"mean": [0.5] * frame.channels, "std": [0.25] * frame.channels}
    classes = tuple(f"class {i}" for i in range(frame.classes))
    folder = tmp_path_factory.mktemp(family.name)
    save_network(folder / "network", model, Card(space.largest(), dict(space.fixed), classes, how, {"method": "none"}))
    return family, frame, folder, model


def test_saved_and_loaded_is_the_same_network(taken):
    _, frame, folder, model = taken
    x = torch.randn(2, frame.channels, *frame.image_size)
    with torch.inference_mode():
        torch.testing.assert_close(load(folder)(x), model(x), atol=0, rtol=0)


def test_onnx_agrees(taken, tmp_path):
    _, _, folder, _ = taken
    done = export(folder, "onnx", tmp_path / "onnx", images=8)
    assert done.facts["max_difference"] < 1e-4 and "random images" in done.facts["checked_on"]


def test_timm_opens_it_and_stages_give_their_maps(taken, tmp_path):
    family, frame, folder, model = taken
    import timm

    import tailorvit.for_timm  # noqa: F401 - registers the model name

    place = export(folder, "timm", tmp_path / "timm", check=False).path
    x = torch.randn(2, frame.channels, *frame.image_size)
    opened = timm.create_model(f"local-dir:{place}", pretrained=True).eval()
    maps = timm.create_model(f"local-dir:{place}", pretrained=True, features_only=True).eval()
    with torch.inference_mode():
        torch.testing.assert_close(opened(x), model(x), atol=1e-4, rtol=1e-4)
        sides = [m.shape[-2:] for m in maps(x)]
    stages = {row["stage"] for row in family.outline(frame, load(folder).card.arch)} - {None}
    assert len(sides) == (len(stages) if stages else min(3, len(model.settings["heads"])))
    assert sides == sorted(sides, reverse=True)
