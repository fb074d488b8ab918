"""The detector itself: losses, learning, what it finds, its figures, pictures and ONNX form."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from detect_tools import CLASSES, Toy, make_coco
from PIL import Image
from pydantic import TypeAdapter, ValidationError
from torch import nn
from torchvision.models.detection.roi_heads import RoIHeads

from tailorvit.errors import TailorError
from tailorvit.rng import preserved_state, seed_everything
from tailorvit.tasks.average_precision import Found, average_precision
from tailorvit.tasks.base import Backbone, TaskBatch
from tailorvit.tasks.detect import TASK, DetectSettings
from tailorvit.tasks.detect_data import run_lengths
from tailorvit.tasks.detector import DETECTIONS, Detector, plan_for
from tailorvit.tasks.draw_boxes import WIDTH, colour


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = make_coco(tmp_path_factory.mktemp("shapes") / "coco", 8, 64)
    found = TASK.read(str(folder), DetectSettings("cascade", 64, (1.0, 1.0), 16), 0)
    found.unseal_test("a test")
    return found


def network(head="cascade", masks=True, size=(64, 64), classes=2, width=16):
    with preserved_state():
        seed_everything(0, "network")
        return Detector(Toy(), classes, size, head, masks, width)


@pytest.fixture(scope="module")
def trained(data):
    """A Mask R-CNN that has learnt two images by heart, and its losses on the way."""
    net = network("mask")
    batch = joined_batch(data)
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=0.0)
    losses = []
    with preserved_state():
        for step in range(40):
            seed_everything(0, "step", step)
            optimizer.param_groups[0]["lr"] = 4e-3 * min(1, 2 - step / 20)
            loss = net.loss(*batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
    return net.eval(), losses


def joined_batch(data):
    return next(iter(data.batches_of(data.photos("train")[:2], 2)))


def truth(data, split, shift=0.0):
    out = []
    for photo in data.photos(split):
        boxes = np.array([t.box for t in photo.things]) + shift
        masks = [run_lengths(t.mask, photo.size) for t in photo.things]
        out.append(Found(boxes, np.full(len(boxes), 0.9), np.array([t.label for t in photo.things]), masks))
    return out


def test_two_images_are_learnt_by_heart(data, trained):
    net, losses = trained
    assert np.mean(losses[-5:]) < 0.35 * losses[0]
    batch = joined_batch(data)
    with torch.inference_mode():
        found = net(batch.x)
    for i, photo in enumerate(data.photos("train")[:2]):
        sure = found.scores[i] > 0.5
        assert sorted(found.labels[i][sure].tolist()) == [0, 1]
        for thing in photo.things:
            at = int(torch.where(sure & (found.labels[i] == thing.label))[0][0])
            np.testing.assert_allclose(found.boxes[i][at], thing.box, atol=3)
            mask = found.masks[i][at]
            assert mask[10:18, 10:18].mean() > 0.6  # a disc and a square fill the middle of their boxes


@pytest.mark.parametrize(("head", "masks"), [("faster", False), ("mask", True), ("cascade", False), ("cascade", True)])
def test_every_head_gives_losses_gradients_and_detections(data, head, masks):
    net, batch = network(head, masks), joined_batch(data)
    with preserved_state():
        torch.manual_seed(0)
        losses = net.losses(*batch)
    stages = 3 if head == "cascade" else 1
    names = [f"{kind}_{k}" for k in range(1, stages + 1) for kind in ("class", "box")]
    assert list(losses) == ["proposal", "proposal_box", *names, *(["mask"] if masks else [])]
    assert all(torch.isfinite(v) and v >= 0 for v in losses.values())
    sum(losses.values()).backward()
    still = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not [n for n in still if "bbox_pred" not in n], still
    with torch.inference_mode():
        found = net.eval()(batch.x)
        fixed = net(batch.x, fixed=True)
    assert found.boxes.shape == (2, DETECTIONS, 4) and (found.masks is not None) == masks
    for a, b in zip(found, fixed):
        assert a is b is None or torch.allclose(a, b, atol=1e-4)
    assert (found.scores.diff(dim=1) <= 0).all() and (found.boxes[..., 2:] >= found.boxes[..., :2]).all()


def test_losses_are_a_function_of_the_seed_and_empty_images_are_allowed(data):
    net, batch = network("mask"), joined_batch(data)
    empty = TaskBatch(batch.x, torch.zeros_like(batch.y), batch.target)
    values = []
    with preserved_state():
        for seed, use in ((1, batch), (1, batch), (2, batch), (1, empty)):
            torch.manual_seed(seed)
            values.append(net.losses(*use))
    assert all(torch.equal(values[0][k], values[1][k]) for k in values[0])
    assert any(not torch.equal(values[0][k], values[2][k]) for k in values[0])
    assert values[3]["mask"] == 0 and values[3]["box_1"] == 0 and values[3]["class_1"] > 0


def test_half_precision_keeps_boxes_exact(data):
    net, batch = network("mask").eval(), joined_batch(data)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.isfinite(net.loss(*batch))
        found = net(batch.x)
    assert found.boxes.dtype == found.scores.dtype == torch.float32


def test_detections_are_torchvisions():
    """Fixed shapes give what torchvision's own code for lists of any length gives."""
    net = network("faster", False, classes=3).eval()
    count, batch = 40, 2
    with preserved_state():
        torch.manual_seed(1)
        logits, moves = torch.randn(batch * count, 4) * 3, torch.randn(batch * count, 16)
        corner = torch.rand(batch * count, 2) * 40
        boxes = torch.cat([corner, corner + 4 + torch.rand(batch * count, 2) * 16], 1)
    stage = net.stages[0]
    assert isinstance(stage, RoIHeads)
    theirs = stage.postprocess_detections(logits, moves, list(boxes.split(count)), [(64, 64)] * batch)
    options = stage.box_coder.decode_single(moves, boxes).reshape(batch, count, 4, 4)[:, :, 1:].clamp(0, 64)
    chance = logits.softmax(-1).reshape(batch, count, 4)[..., 1:]
    for i in range(batch):
        ours = net._chosen(options[i], torch.where(chance[i] > 0.05, chance[i], 0.0))
        many = int((ours[1] > 0).sum())
        assert 10 < many == len(theirs[1][i])
        torch.testing.assert_close(ours[0][:many], theirs[0][i], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours[1][:many], theirs[1][i])
        assert (ours[2][:many] + 1).tolist() == theirs[2][i].tolist()


def test_sizes_follow_from_the_canvas():
    large, small = plan_for((800, 1344), (4, 8, 16, 32)), plan_for((64, 64), (4, 8, 16))
    assert large.anchors == (32, 64, 128, 256, 512) and large.proposals == 1024 and large.sampled == 512
    assert small.anchors == (8, 16, 32, 64) and small.proposals == 64 and small.sampled == 32
    net = network("faster", False, (50, 64))
    boxes = net.anchors
    middles = ((boxes[:, :2] + boxes[:, 2:]) / 2)[::3]
    assert middles[0].tolist() == [0, 0] and middles[16].tolist() == [0, 4]  # at the exact stride, though 50 is odd
    assert len(boxes) == 3 * (13 * 16 + 7 * 8 + 4 * 4 + 2 * 2)


def test_figures_of_perfect_and_of_wrong_answers(data):
    photos = data.photos("train")
    for masks, before in ((False, ""), (True, "mask_")):
        perfect = average_precision(photos, truth(data, "train"), CLASSES, masks)
        assert perfect[f"{before}map"] == perfect[f"{before}map75"] == perfect[f"{before}ap/disc"] == 100
        assert f"{before}map_small" in perfect and f"{before}map_large" not in perfect
        wrong = [Found(f.boxes, f.scores, 1 - f.labels, f.masks) for f in truth(data, "train")]
        assert set(average_precision(photos, wrong, CLASSES, masks).values()) == {0.0}
    shifted = average_precision(photos, truth(data, "train", 2.0), CLASSES)
    assert 0 < shifted["map"] < shifted["map50"]
    nothing = [Found(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int)) for _ in photos]
    assert average_precision(photos, nothing, CLASSES)["map"] == 0
    half = truth(data, "train")
    half[: len(half) // 2] = nothing[: len(half) // 2]
    assert average_precision(photos, half, CLASSES)["map"] == pytest.approx(
        100 * (len(half) - len(half) // 2) / len(half), abs=2
    )


def test_what_does_not_count_is_no_miss(data):
    photo = data.photos("train")[0]
    first, second = photo.things
    hard = type(second)(second.label, second.box, second.mask, counts=False)
    marked = type(photo)(photo.name, photo.path, photo.size, (first, hard))
    one = truth(data, "train")[0]
    found = Found(one.boxes[:1], one.scores[:1], one.labels[:1], one.masks[:1])
    figures = average_precision([marked], [found], CLASSES)
    assert figures["map"] == pytest.approx(100) and "ap/square" not in figures
    both = average_precision([marked], [one], CLASSES)
    assert both["map"] == pytest.approx(100)


def test_the_task_judges_draws_and_predicts(data, trained):
    net, _ = trained
    figures = TASK.evaluate(net, data, "train", "cpu")
    assert figures == TASK.evaluate(net, data, "train", "cpu") and not net.training
    assert 5 < figures["map"] <= figures["map50"] <= 100 and figures["mask_map50"] > 5 and TASK.metric in figures
    pictures = TASK.pictures(net, data, "train", "cpu")
    assert len(pictures) == 6 and "2 objects annotated" in pictures[0].caption
    image = Image.open(io.BytesIO(pictures[0].data)).convert("RGB")
    assert image.size == (2 * WIDTH + 8, WIDTH)
    box = data.photos("train")[0].things[0]
    for shift in (0, WIDTH + 8):  # the disc's frame, true on the left and found on the right
        x, y = (v * WIDTH / 64 for v in (box.box[0], (box.box[1] + box.box[3]) / 2))
        near = np.asarray(image)[
            int(y) - 3 : int(y) + 3, int(x) + shift - (0 if not shift else 20) : int(x) + shift + 22
        ]
        assert np.abs(near.astype(int) - colour(box.label)).sum(2).min() < 60
    facts = {"classes": data.classes, "channels": 3, "mean": data.mean, "std": data.std}
    photo = data.photos("train")[0]
    said = TASK.predict(net, facts, photo.path)
    assert said["size"] == {"rows": 64, "columns": 64}
    best = {o["class"]: o for o in reversed(said["objects"])}
    for thing in photo.things:
        one = best[CLASSES[thing.label]]
        np.testing.assert_allclose(one["box"], thing.box, atol=3)
        assert one["score"] > 0.5 and one["mask"]["size"] == [64, 64] and isinstance(one["mask"]["counts"], str)


def test_predictions_are_in_the_pixels_of_the_file(trained, data, tmp_path):
    net, _ = trained
    photo = data.photos("train")[0]
    facts = {"classes": data.classes, "channels": 3, "mean": data.mean, "std": data.std}
    with Image.open(photo.path) as image:
        image.resize((192, 192), Image.Resampling.BICUBIC).save(tmp_path / "large.png")
    large = TASK.predict(net, facts, tmp_path / "large.png")["objects"][0]
    small = TASK.predict(net, facts, photo.path)["objects"][0]
    assert large["class"] == small["class"] and large["mask"]["size"] == [192, 192]
    np.testing.assert_allclose(np.array(large["box"]) / 3, small["box"], atol=1.5)
    (tmp_path / "no.png").write_bytes(b"x")
    for name, why in (("no.png", "Cannot read .* as an image: not an image"), ("none.png", "There is no image file")):
        with pytest.raises(TailorError, match=why):
            TASK.predict(net, facts, tmp_path / name)


class Coarse(Backbone):
    """Two maps: fewer levels make a smaller graph to export."""

    channels, strides = (8, 16), (8, 16)

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 8, 8), nn.Conv2d(8, 16, 2, 2)

    def forward(self, x):
        first = self.first(x).relu()
        return [first, self.second(first).relu()]


def test_onnx_gives_the_same(data, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from tailorvit.export.onnx_format import OPSET, quiet

    with preserved_state():
        torch.manual_seed(3)
        net = Detector(Coarse(), 2, (64, 64), "mask", True, 8).eval()
    form = TASK.for_onnx(net, data)
    with quiet():
        program = torch.onnx.export(
            form.module,
            tuple(form.inputs.values()),
            dynamo=True,
            input_names=list(form.inputs),
            output_names=list(form.outputs),
            opset_version=OPSET,
            optimize=False,
            verbose=False,
        )
        program.save(str(tmp_path / "d.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "d.onnx"), providers=["CPUExecutionProvider"])
    for x in (form.inputs["images"], *(batch.x for batch in data.batches_of(data.photos("train")[:2], 1))):
        with torch.inference_mode():
            ours = net(x)
        theirs = session.run(list(form.outputs), {"images": x.numpy()})
        assert (ours.scores > 0).sum() > 10
        for name, a, b in zip(form.outputs, ours, theirs):
            np.testing.assert_allclose(a, b, atol=1e-3, err_msg=name)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image_size": 8}, "image_size must be from 32"),
        ({"scale": (2.0, 1.0)}, "scale must be two growing factors"),
        ({"scale": (float("nan"), 1.0)}, "scale must be two"),
        ({"width": 12}, "width must be a multiple of 8"),
        ({"head": "many"}, "'faster', 'mask' or 'cascade'"),
        ({"heads": "mask"}, "Unexpected keyword"),
    ],
)
def test_settings_are_checked(change, why):
    with pytest.raises((TailorError, ValidationError), match=why):
        TypeAdapter(DetectSettings).validate_python(change)


@pytest.mark.parametrize("name", sorted(TASK.presets))
def test_presets_are_settings(name):
    from tailorvit.train.settings import TrainSettings

    settings = TypeAdapter(DetectSettings).validate_python(TASK.presets[name]["detect"])
    assert settings.head == "cascade" and settings.canvas == (800, 1344)
    train = TrainSettings(**{**TASK.train, **TASK.presets[name]["train"]})
    assert (train.lr, train.weight_decay, train.batch) == (1e-4, 0.05, 16)
    assert (
        train.epochs == {"coco-1x": 12, "coco-3x": 36}[name]
        and "S3 (Chen et al., 2021)" in TASK.presets[name]["summary"]
    )
