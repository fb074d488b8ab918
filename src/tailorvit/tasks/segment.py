"""Semantic segmentation: a class for every pixel, by UperNet (Xiao et al. 2018) over a backbone's maps."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.errors import TailorError
from tailorvit.portable import Size, reason
from tailorvit.rng import generator
from tailorvit.tasks.base import Backbone, OnnxForm, Picture, TaskNetwork
from tailorvit.tasks.mask_data import Box, SegmentData, SegmentSettings, data_of_facts, read_segment_data
from tailorvit.tasks.mask_files import IGNORE, Classes
from tailorvit.tasks.mask_pictures import mask_image, side_by_side
from tailorvit.tasks.miou import Counts, figures, pixel_counts

AUXILIARY = 0.4  # weight of the auxiliary head's loss, as in UperNet's usual training
_THIRD = 2  # the auxiliary head reads the third map
_BATCH = 8  # images at a time in evaluation, at most
_VALUES = 1 << 27  # probabilities at a time, of which a large image has many: pixels times classes
_PICTURES = 6


# -- the network ------------------------------------------------------------------------------------------------------


class _Norm(nn.BatchNorm2d):
    """A batch norm that uses its running statistics where a channel has one value only, which has no deviation."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalised."""
        if self.training and x.numel() == x.shape[1]:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


def _heads(channels: Sequence[int], classes: int, width: int) -> tuple[nn.Module, nn.Module]:
    """UperNet's decoder and its auxiliary head, from transformers."""
    from transformers.models.upernet.configuration_upernet import UperNetConfig
    from transformers.models.upernet.modeling_upernet import UperNetConvModule, UperNetFCNHead, UperNetHead

    config = UperNetConfig(hidden_size=width, auxiliary_channels=max(width // 2, 1), num_labels=classes)
    decoder = UperNetHead(config, list(channels))
    auxiliary = UperNetFCNHead(config, list(channels), in_index=min(_THIRD, len(channels) - 1))
    for head in (decoder, auxiliary):
        for part in head.modules():
            if isinstance(part, UperNetConvModule):
                part.batch_norm = _Norm(part.batch_norm.num_features)
    return decoder, auxiliary


class SegmentNetwork(TaskNetwork):
    """A backbone with UperNet; calling it gives logits (B, classes, rows, columns) at the images' size."""

    def __init__(self, backbone: Backbone, classes: int, width: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.classes, self.width = classes, width
        self.decoder, self.auxiliary = _heads(backbone.channels, classes, width)

    @property
    def settings(self) -> dict[str, Any]:
        """The decoder's channels; the classes are the data's."""
        return {"decoder": self.width}

    def forward(self, x: Tensor) -> Tensor:
        """Logits at the images' size."""
        return self.logits(x, self.backbone)

    def logits(self, x: Tensor, backbone: Backbone) -> Tensor:
        """Logits at the images' size through a form of the backbone for that size."""
        return _resized(self.decoder(backbone(x)), x.shape[2:])

    def loss(self, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy of both heads over the pixels that have a class; ``target`` holds the masks."""
        maps, truth = self.backbone(x), target.long()
        loss: Tensor = _cross_entropy(self.decoder(maps), truth)
        return loss + AUXILIARY * _cross_entropy(self.auxiliary(maps), truth)


def _resized(x: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)


def _cross_entropy(logits: Tensor, truth: Tensor) -> Tensor:
    """The mean over the pixels with a class, zero where there are none."""
    full = _resized(logits.float(), truth.shape[1:])
    total = F.cross_entropy(full, truth, ignore_index=IGNORE, reduction="sum")
    return total / (truth != IGNORE).sum().clamp_min(1)


# -- predictions ------------------------------------------------------------------------------------------------------


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the mode is put back."""
    was = network.training
    network.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        network.train(was)


def _at_own_size(logits: Tensor, box: Box, size: Size) -> Tensor:
    """Probabilities (classes, rows, columns) at an image's own size from logits of its fitted form."""
    return _resized(box.cut(logits)[None].float(), size)[0].softmax(0)


def scaled(size: Size, scale: float, backbone: Backbone) -> Size:
    """An image size times a scale, in whole cells of the backbone's coarsest map."""
    if scale == 1:
        return size
    cell = max(backbone.strides)
    rows, columns = (max(1, round(side * scale / cell)) * cell for side in size)
    return rows, columns


def predictions(
    network: SegmentNetwork, data: SegmentData, split: str, device: str, scales: Sequence[float], flip: bool
) -> Iterator[tuple[int, Classes]]:
    """The images of a split by place, with their predicted classes at their own size.

    Probabilities are averaged over the scales, and over the image and its mirror image.
    """
    items = data.items(split)
    sizes = list(dict.fromkeys(scaled(data.image_size, scale, network.backbone) for scale in scales))
    forms = [network.backbone if size == data.image_size else network.backbone.at(size) for size in sizes]
    with _evaluating(network):
        forms = [form.to(device).eval() for form in forms]
        for places in _groups([network.classes * math.prod(item.size) for item in items]):
            sums: list[Tensor | None] = [None] * len(places)
            for size, form in zip(sizes, forms):
                x, boxes = data.inputs(split, places, size)
                x = x.to(device)
                found = [network.logits(x, form)]
                if flip:
                    found.append(network.logits(x.flip(3), form).flip(3))
                for logits in found:
                    for i, place in enumerate(places):
                        part, sum_so_far = _at_own_size(logits[i], boxes[i], items[place].size), sums[i]
                        sums[i] = part if sum_so_far is None else sum_so_far + part
            for place, total in zip(places, sums):
                assert total is not None
                yield place, total.argmax(0).to(torch.uint8).cpu().numpy()


def _groups(values: Sequence[int]) -> Iterator[range]:
    """Places of images that are evaluated together, one at least."""
    start, total = 0, 0
    for place, more in enumerate(values):
        if place > start and (place - start == _BATCH or total + more > _VALUES):
            yield range(start, place)
            start, total = place, 0
        total += more
    if values:
        yield range(start, len(values))


def _counted(
    network: SegmentNetwork, data: SegmentData, split: str, device: str, scales: Sequence[float], flip: bool
) -> Counts:
    classes = len(data.classes)
    total: Counts = np.zeros((classes, classes), np.int64)
    for place, predicted in predictions(network, data, split, device, scales, flip):
        total += pixel_counts(data.truth(split, place), predicted, classes)
    return total


def evaluate_scales(
    network: SegmentNetwork,
    data: SegmentData,
    split: str,
    device: str,
    scales: Sequence[float] = SegmentSettings.scales,
    flip: bool = True,
) -> dict[str, float]:
    """The figures of a split where every image is seen at several scales and mirrored, at the masks' own size."""
    return figures(_counted(network, data, split, device, scales, flip), data.classes)


def runs_of(classes: Classes) -> list[list[int]]:
    """Class numbers row by row as [class, pixels] runs."""
    flat = classes.reshape(-1)
    starts = np.flatnonzero(np.diff(flat, prepend=flat[:1] ^ 1))
    lengths = np.diff(starts, append=len(flat))
    return [[int(flat[start]), int(length)] for start, length in zip(starts, lengths)]


def mask_of(prediction: Mapping[str, Any]) -> Classes:
    """The class numbers (rows, columns) of what :meth:`Segment.predict` returned."""
    runs = np.asarray(prediction["rle"], np.int64).reshape(-1, 2)
    found: Classes = np.repeat(runs[:, 0].astype(np.uint8), runs[:, 1]).reshape(prediction["size"])
    return found


# -- the task ---------------------------------------------------------------------------------------------------------


class Segment:
    """Semantic segmentation of folders of images and masks."""

    name = "segment"
    summary = "a class for every pixel: UperNet over the backbone's maps, for folders of images and masks"
    settings = SegmentSettings
    metric = "miou"
    needs = (("transformers", "tasks"),)
    train: Mapping[str, Any] = {"epochs": 30, "batch": 16, "lr": 1e-3, "warmup": 1.0}
    # UperNet on ADE20K as S3 (Chen et al. 2021) and Swin (Liu et al. 2021) train it: 160,000 steps of 16 images of the
    # 20,210 are 127 epochs, 1,500 steps of warm-up 1.19. Their masks number classes from 1; 0 is no class.
    presets: Mapping[str, Mapping[str, Any]] = {
        "ade20k": {
            "summary": "ADE20K as S3 and Swin train it: 160,000 steps of 16 images at 512 px",
            "train": {
                "epochs": 127,
                "batch": 16,
                "lr": 6e-5,
                "min_lr": 0.0,
                "schedule": "linear",
                "warmup": 1.19,
                "weight_decay": 0.01,
                "clip": 0.0,
                "precision": "auto",
            },
            "segment": {"image_size": 512, "decoder": 512, "jitter": [0.5, 2.0], "ignore": [0, IGNORE]},
        },
    }

    tiny: Mapping[str, Any] = {
        "train": {"epochs": 1, "batch": 4},
        "segment": {"image_size": 32, "decoder": 8, "scales": [1.0, 1.5]},
    }

    def read(
        self, source: str, settings: SegmentSettings, seed: int, splits: Mapping[str, Any] | None = None
    ) -> SegmentData:
        """The images and masks of a folder (docs/tasks/segment.md says which folders)."""
        return read_segment_data(source, settings, seed, splits)

    def build(self, backbone: Backbone, data: Any, settings: SegmentSettings) -> SegmentNetwork:
        """UperNet on a backbone."""
        return SegmentNetwork(backbone, len(data.classes), settings.decoder)

    def evaluate(self, network: SegmentNetwork, data: SegmentData, split: str, device: str) -> dict[str, float]:
        """Figures in percent at the masks' own size; of the test split also mIoU over several scales and mirrored."""
        found = figures(_counted(network, data, split, device, (1.0,), False), data.classes)
        if split == "test" and data.settings.scales:
            found["miou_ms_flip"] = evaluate_scales(network, data, split, device, data.settings.scales)["miou"]
        return found

    def pictures(self, network: SegmentNetwork, data: SegmentData, split: str, device: str) -> list[Picture]:
        """Evenly spaced images: the image, its mask and the predicted mask side by side."""
        items = data.items(split)
        chosen = set(np.unique(np.linspace(0, len(items) - 1, min(_PICTURES, len(items))).astype(int)).tolist())
        return list(self._drawn(data, split, chosen, predictions(network, data, split, device, (1.0,), False)))

    def _drawn(
        self, data: SegmentData, split: str, chosen: set[int], found: Iterable[tuple[int, Classes]]
    ) -> Iterator[Picture]:
        items = data.items(split)
        for place, predicted in found:
            if place in chosen:
                truth, name = data.truth(split, place), items[place].name
                iou = figures(pixel_counts(truth, predicted, len(data.classes)), data.classes)["miou"]
                png = side_by_side(items[place].image, truth, predicted, data.classes)
                yield Picture(name, png, f"{name}: image, mask and prediction; mean IoU {iou:.1f} %")

    def for_onnx(self, network: SegmentNetwork, data: Any) -> OnnxForm:
        """The network as it is called: normalised images to logits at their size."""
        noise = generator(0, "segment", "onnx").standard_normal((2, data.channels, *data.image_size))
        x = torch.from_numpy(noise.astype(np.float32))
        return OnnxForm(
            network,
            {"images": x},
            ("logits",),
            {"images": {0: "batch"}, "logits": {0: "batch"}},
            "Images are resized to fit, zero beside the image after normalisation; the auxiliary head is left out.",
        )

    def predict(
        self,
        network: SegmentNetwork,
        data_facts: Mapping[str, Any],
        image: Path,
        masks: str | Path | None = None,
    ) -> dict[str, Any]:
        """The class of every pixel of a file: ``rle`` holds [class number, pixels] runs, row by row from the top left.

        ``size`` is (rows, columns), ``classes`` the names by number, ``shares`` the percent of the pixels of each
        class that occurs. :func:`mask_of` gives the mask as an array, :func:`save_mask` writes it; with a folder for
        ``masks`` it is written there under the image's name, and ``mask`` is its path.
        """
        x, box, size = data_of_facts(data_facts, image)
        with _evaluating(network):
            logits = network(x.to(next(network.parameters()).device))
            found: Classes = _at_own_size(logits[0], box, size).argmax(0).to(torch.uint8).cpu().numpy()
        names = list(data_facts["classes"])
        pixels = np.bincount(found.reshape(-1), minlength=len(names))
        shares = {name: round(100 * int(n) / found.size, 2) for name, n in zip(names, pixels) if n}
        prediction = {"classes": names, "size": list(size), "rle": runs_of(found), "shares": shares}
        if masks is not None:
            prediction["mask"] = str(save_mask(prediction, Path(masks) / f"{image.stem}.png"))
        return prediction


def save_mask(prediction: Mapping[str, Any], path: str | Path) -> Path:
    """Write a prediction as a palette PNG: pixels are class numbers, colours those of the report's pictures."""
    place = Path(path)
    if place.suffix.lower() != ".png":
        raise TailorError(f"A mask is written as a PNG file, not as '{path}'.")
    buffer = io.BytesIO()
    mask_image(mask_of(prediction), len(prediction["classes"])).save(buffer, "PNG")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(buffer.getvalue())
    except OSError as error:
        raise TailorError(f"The mask '{path}' cannot be written: {reason(error)}.") from None
    return place


TASK = Segment()
