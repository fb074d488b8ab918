"""Segmentation: figures against hand-made ones, a network that learns, scales, predictions and ONNX."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from segment_tools import Toy

from tailorvit.errors import TailorError
from tailorvit.families import family
from tailorvit.tasks import segment
from tailorvit.tasks.backbone import Start
from tailorvit.tasks.mask_data import SegmentSettings, read_segment_data
from tailorvit.tasks.mask_pictures import colours
from tailorvit.tasks.miou import figures, pixel_counts
from tailorvit.tasks.segment import (
    TASK,
    evaluate_scales,
    mask_of,
    predictions,
    runs_of,
    save_mask,
    scaled,
)
from tailorvit.testing.masks import SHAPES, draw_mask_folder
from tailorvit.train import TrainSettings

SETTINGS = SegmentSettings(image_size=(24, 32), decoder=16, jitter=(1.0, 1.0), scales=(0.5, 1.0))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = draw_mask_folder(tmp_path_factory.mktemp("shapes"), {"train": 2, "val": 2, "test": 3})
    return read_segment_data(str(root), SETTINGS, 0)


@pytest.fixture(scope="module")
def trained(data):
    """A network, and the losses of its training on two images."""
    torch.manual_seed(0)
    network = TASK.build(Toy(), data, SETTINGS)
    optimizer, losses = torch.optim.AdamW(network.parameters(), lr=1e-2), []
    for batch in data.train_batches(2, 0).iterate(0, 60):
        loss = network.loss(*batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return network, losses


def facts(data) -> dict:
    return {"classes": data.classes, "image_size": list(data.image_size), "mean": data.mean, "std": data.std}


def test_figures_of_a_table_made_by_hand():
    truth = np.array([[0, 0, 0, 1], [1, 1, 2, 255]], np.uint8)
    predicted = np.array([[0, 0, 1, 1], [1, 0, 2, 0]], np.uint8)
    counts = pixel_counts(truth, predicted, 4)
    assert counts.tolist() == [[2, 1, 0, 0], [1, 2, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    found = figures(counts, ("a", "b", "c", "never"))
    assert found == pytest.approx(
        {
            "miou": 100 * (2 / 4 + 2 / 4 + 1) / 3,
            "mean_accuracy": 100 * (2 / 3 + 2 / 3 + 1) / 3,
            "pixel_accuracy": 100 * 5 / 7,
            "iou/a": 50,
            "iou/b": 50,
            "iou/c": 100,
        }
    )


def test_a_class_that_is_only_predicted_counts_against_the_mean():
    counts = pixel_counts(np.zeros((2, 2), np.uint8), np.array([[0, 0], [0, 1]], np.uint8), 2)
    found = figures(counts, ("a", "b"))
    assert found["miou"] == pytest.approx((75 + 0) / 2) and found["mean_accuracy"] == 75
    assert figures(np.zeros((2, 2), np.int64), ("a", "b")) == {"miou": 0, "mean_accuracy": 0, "pixel_accuracy": 0}


def test_two_images_are_learnt(trained, data):
    network, losses = trained
    assert losses[-1] < 0.25 * losses[0]
    assert not data.test_opened
    found = TASK.evaluate(network, data, "train", "cpu")
    assert found["miou"] > 80 and set(found) == {
        *("miou", "mean_accuracy", "pixel_accuracy"),
        *(f"iou/{name}" for name in SHAPES),
    }
    assert network.training, "the mode is put back"


def test_one_scale_without_a_mirror_is_the_plain_figure(trained, data):
    network, _ = trained
    plain = TASK.evaluate(network, data, "search", "cpu")
    assert evaluate_scales(network, data, "search", "cpu", (1.0,), flip=False) == plain
    other = evaluate_scales(network, data, "search", "cpu", (0.5, 1.0, 1.5))
    assert other != plain and network.backbone.asked[-2:] == [(12, 16), (36, 48)]


def test_scales_are_whole_cells_and_each_size_is_used_once():
    toy = Toy()
    assert scaled((24, 32), 1, toy) == (24, 32) and scaled((24, 32), 1.3, toy) == (32, 40)
    assert scaled((16, 16), 0.1, toy) == (4, 4) and scaled((17, 17), 1.0, toy) == (17, 17)


def test_a_mirror_averages_the_image_and_its_mirror_image(trained, data):
    """A network whose logits grow to the right says the same everywhere once its mirror image is added."""
    network, _ = trained

    class Leaning(type(network)):
        def logits(self, x, backbone):
            ramp = torch.linspace(-1, 1, x.shape[3]).expand(len(x), 1, x.shape[2], x.shape[3])
            return torch.cat([ramp, -ramp, ramp * 0 - 9], 1)

    leaning = Leaning(Toy(), 3, 16)
    plain = next(predictions(leaning, data, "search", "cpu", (1.0,), False))[1]
    assert (plain[:, :12] == 1).all() and (plain[:, -12:] == 0).all()
    both = next(predictions(leaning, data, "search", "cpu", (1.0, 1.5), True))[1]
    assert set(both[:, 2:-2].flatten().tolist()) <= {0, 1} and not (both[:, -12:] == 0).all(), both


def test_large_images_are_evaluated_one_by_one(trained, data, monkeypatch):
    monkeypatch.setattr(segment, "_VALUES", 100)
    assert [list(g) for g in segment._groups([60, 30, 20, 500, 10, 10])] == [[0, 1], [2], [3], [4, 5]]
    assert [len(g) for g in segment._groups([1] * 19)] == [8, 8, 3] and not list(segment._groups([]))
    few = TASK.evaluate(trained[0], data, "search", "cpu")
    monkeypatch.undo()
    assert few == TASK.evaluate(trained[0], data, "search", "cpu")


def test_the_last_evaluation_has_the_figure_over_scales(trained, tmp_path):
    network, _ = trained
    data = read_segment_data(str(draw_mask_folder(tmp_path, {"train": 2, "val": 2, "test": 2})), SETTINGS, 0)
    assert "miou_ms_flip" not in TASK.evaluate(network, data, "search", "cpu")
    with pytest.raises(TailorError, match="sealed"):
        TASK.evaluate(network, data, "test", "cpu")
    data.unseal_test("final figures")
    found = TASK.evaluate(network, data, "test", "cpu")
    assert found["miou_ms_flip"] == evaluate_scales(network, data, "test", "cpu", (0.5, 1.0))["miou"]


def test_figures_are_those_of_the_masks_own_pixels(trained, tmp_path):
    root = draw_mask_folder(tmp_path, {"train": 2, "val": 2, "test": 2}, size=(50, 40))
    data = read_segment_data(str(root), SETTINGS, 0)
    for place, predicted in predictions(trained[0], data, "search", "cpu", (1.0,), False):
        assert predicted.shape == (50, 40) == data.truth("search", place).shape


@pytest.mark.parametrize("size", [(8, 8), (24, 32)])
def test_one_image_can_be_trained_on(data, size):
    network = TASK.build(Toy(), data, SETTINGS).train()
    x, mask = torch.randn(1, 3, *size), torch.zeros(1, *size, dtype=torch.uint8)
    network.loss(x, torch.zeros(1), mask).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_pixels_without_a_class_do_not_count(data):
    torch.manual_seed(1)
    network = TASK.build(Toy(), data, SETTINGS).eval()
    x = torch.randn(2, 3, 24, 32)
    mask = torch.randint(0, 3, (2, 24, 32), dtype=torch.uint8)
    mask[:, :, :16] = 255
    maps = network.backbone(x)
    expected = 0.0
    for weight, head in ((1.0, network.decoder), (0.4, network.auxiliary)):
        logits = torch.nn.functional.interpolate(head(maps), size=(24, 32), mode="bilinear")
        chosen = logits.log_softmax(1).gather(1, mask.clamp(max=2)[:, None].long())[:, 0]
        expected -= weight * float(chosen[:, :, 16:].mean().detach())
    assert network.loss(x, torch.zeros(2), mask).item() == pytest.approx(expected, rel=1e-5)
    nothing = network.loss(x, torch.zeros(2), torch.full_like(mask, 255))
    assert nothing.item() == 0 and nothing.requires_grad


def test_a_file_is_predicted_at_its_own_size(trained, data, tmp_path):
    item = data.items("train")[0]
    found = json.loads(json.dumps(TASK.predict(trained[0], facts(data), item.image)))
    mask = mask_of(found)
    assert tuple(found["size"]) == item.size == mask.shape and found["classes"] == list(SHAPES)
    assert (mask == data.truth("train", 0)).mean() > 0.9
    assert sum(found["shares"].values()) == pytest.approx(100, abs=0.1)
    path = save_mask(found, tmp_path / "out.png")
    with Image.open(path) as image:
        assert image.mode == "P" and (np.asarray(image) == mask).all()
        assert tuple(image.getpalette()[:9]) == sum(colours(3), ())
    beside = TASK.predict(trained[0], facts(data), item.image, masks=tmp_path / "masks")
    assert beside["mask"] == str(tmp_path / "masks" / f"{item.image.stem}.png")
    assert (np.asarray(Image.open(beside["mask"])) == mask).all()
    with pytest.raises(TailorError, match=r"out\.jpg"):
        save_mask(found, tmp_path / "out.jpg")
    with pytest.raises(TailorError, match="no image file"):
        TASK.predict(trained[0], facts(data), tmp_path / "none.png")
    (tmp_path / "bad.png").write_bytes(b"nothing")
    with pytest.raises(TailorError, match="not an image"):
        TASK.predict(trained[0], facts(data), tmp_path / "bad.png")


def test_runs_hold_every_pixel_once():
    mask = np.array([[0, 0, 2], [2, 1, 0]], np.uint8)
    assert runs_of(mask) == [[0, 2], [2, 2], [1, 1], [0, 1]]
    assert (mask_of({"rle": runs_of(mask), "size": [2, 3]}) == mask).all()


def test_pictures_show_image_mask_and_prediction(trained, data):
    found = TASK.pictures(trained[0], data, "train", "cpu")
    assert [p.name for p in found] == [item.name for item in data.items("train")]
    image = Image.open(io.BytesIO(found[0].data)).convert("RGB")
    assert image.width == 3 * 240 + 12 and "mean IoU" in found[0].caption
    seen = {colour for _, colour in image.getcolors(1 << 20)}
    assert set(colours(3)) <= seen, "the legend has every class's colour"


def test_colours_differ():
    assert len(set(colours(150))) == 150 and colours(3) == colours(150)[:3]


def test_the_exported_network_is_the_same_function(trained, data, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from tailorvit.export.onnx_format import quiet

    network, form = trained[0].eval(), TASK.for_onnx(trained[0], data)
    with quiet():
        torch.onnx.export(
            form.module,
            tuple(form.inputs.values()),
            dynamo=True,
            dynamic_shapes=({k: torch.export.Dim(v) for k, v in form.dynamic["images"].items()},),
            input_names=list(form.inputs),
            output_names=list(form.outputs),
            verbose=False,
        ).save(str(tmp_path / "network.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "network.onnx"), providers=["CPUExecutionProvider"])
    for count in (1, 3):
        x = torch.randn(count, 3, 24, 32, generator=torch.Generator().manual_seed(count))
        with torch.inference_mode():
            expected = network(x)
        (found,) = session.run(list(form.outputs), {"images": x.numpy()})
        assert found.shape == (count, 3, 24, 32)
        assert np.allclose(found, expected.numpy(), atol=1e-4)


def test_presets_and_defaults_are_settings():
    TrainSettings(**TASK.train)
    for changes in TASK.presets.values():
        assert set(changes) == {"summary", "train", "segment"}
        TrainSettings(**{**TASK.train, **changes["train"]})
        SegmentSettings(**changes["segment"])
    steps = 20210 // 16
    assert TASK.presets["ade20k"]["train"]["epochs"] * steps == pytest.approx(160_000, rel=0.01)
    assert TASK.presets["ade20k"]["train"]["warmup"] * steps == pytest.approx(1500, rel=0.01)


@pytest.mark.parametrize("name", ["vit", "windowed"])
def test_a_network_of_ours_is_trained_and_seen_at_other_sizes(data, name):
    record = family(name)
    space = record.spaces[f"{name}-8px"]
    settings = record.build(record.settings(dict(space.settings)), space.smallest()).settings
    backbone = Start(name, {"family": name, "settings": settings}, None).backbone(data.image_size, 3, 0)
    network = TASK.build(backbone, data, SETTINGS)
    network.loss(*next(data.train_batches(2, 0).iterate(0, 1))).backward()
    assert all(p.grad is not None for p in network.parameters())
    found = evaluate_scales(network, data, "search", "cpu", (1.0, 1.5))
    assert 0 <= found["miou"] <= 100 and network.backbone.at((36, 48))(torch.zeros(1, 3, 36, 48))
