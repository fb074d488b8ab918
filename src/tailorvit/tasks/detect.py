"""Detection and instance segmentation: boxes, and masks, of the objects in a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from tailorvit.errors import TailorError
from tailorvit.portable import checked_size, reason
from tailorvit.tasks.base import Backbone, OnnxForm, Picture

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tailorvit.portable import Size
    from tailorvit.tasks.average_precision import Found
    from tailorvit.tasks.detect_data import DetectionData, Placement
    from tailorvit.tasks.detector import Detector

_EVAL_BATCH = 8
_PICTURES = 6
_SMALLEST, _LARGEST = 32, 2048  # pixels of a side of the canvas


@dataclass(frozen=True)
class DetectSettings:
    """The keys of ``[detect]``. The defaults suit some hundred photos; see docs/tasks/detect.md."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    head: Literal["faster", "mask", "cascade"] = "faster"  # mask: with masks; cascade: three stages, masks if there are
    image_size: int | tuple[int, int] = 320  # of the canvas that images are fitted onto: a side, or rows and columns
    scale: tuple[float, float] = (0.8, 1.25)  # training images are resized by a random factor in this range
    width: int = 128  # channels of the pyramid; the heads have four times as many

    def __post_init__(self) -> None:
        size = checked_size(self.image_size)
        if not _SMALLEST <= min(size) <= max(size) <= _LARGEST:
            raise TailorError(f"detect.image_size must be from {_SMALLEST} to {_LARGEST}, not {self.image_size}.")
        low, high = self.scale
        if not (math.isfinite(low) and math.isfinite(high) and 0.1 <= low <= high <= 4):
            raise TailorError(f"detect.scale must be two growing factors from 0.1 to 4, not {list(self.scale)}.")
        if not 8 <= self.width <= 1024 or self.width % 8:
            raise TailorError(f"detect.width must be a multiple of 8 from 8 to 1024, not {self.width}.")

    @property
    def canvas(self) -> Size:
        """Rows and columns."""
        return checked_size(self.image_size)


def _coco(epochs: int) -> dict[str, Any]:
    return {
        "summary": f"COCO as in S3 (Chen et al., 2021): Cascade Mask R-CNN, {epochs} epochs, several scales",
        "train": {
            "epochs": epochs,
            "batch": 16,
            "lr": 1e-4,
            "weight_decay": 0.05,
            "precision": "auto",
        },
        "detect": {"head": "cascade", "image_size": [800, 1344], "scale": [0.6, 1.0], "width": 256},
    }


class Detect:
    """The task of ``tailorvit detect``."""

    name = "detect"
    summary = "find objects: a box, a class and perhaps a mask for each"
    settings = DetectSettings
    metric = "map"
    needs = (("pycocotools", "tasks"),)
    train: Mapping[str, Any] = {"epochs": 50, "batch": 8, "lr": 1e-3, "warmup": 2.0, "weight_decay": 0.05}
    presets: Mapping[str, Mapping[str, Any]] = {"coco-1x": _coco(12), "coco-3x": _coco(36)}
    tiny: Mapping[str, Any] = {"detect": {"image_size": 64, "width": 16}}

    def read(
        self, source: str, settings: DetectSettings, seed: int, splits: Mapping[str, Any] | None = None
    ) -> DetectionData:
        """Pictures with boxes in the layouts of VOC and COCO."""
        from tailorvit.tasks.annotations import read_annotations
        from tailorvit.tasks.detect_data import DetectionData

        found = read_annotations(source)
        if settings.head == "mask" and not found.masks:
            raise TailorError(
                f"detect.head = 'mask' needs a mask for every object, and '{source}' has not: take 'faster' "
                "or 'cascade'."
            )
        masks = settings.head != "faster" and found.masks
        if masks:
            found = found.with_masks()
        data = DetectionData(source, found, settings.canvas, settings.scale, masks, seed, splits)
        if settings.head == "faster" and found.masks:
            data.notes.append("The objects have masks; detect.head = 'mask' or 'cascade' would predict them too.")
        return data

    def build(self, backbone: Backbone, data: Any, settings: DetectSettings) -> Detector:
        """The detector on a backbone."""
        from tailorvit.tasks.detector import Detector

        return Detector(backbone, len(data.classes), settings.canvas, settings.head, data.masks, settings.width)

    def rebuild(self, backbone: Backbone, own: Mapping[str, Any]) -> Detector:
        """The detector of stored settings."""
        from tailorvit.tasks.detector import Detector

        rows, columns = own["canvas"]
        return Detector(backbone, own["classes"], (rows, columns), own["head"], own["masks"], own["width"])

    def evaluate(self, network: Any, data: Any, split: str, device: str) -> dict[str, float]:
        """Average precision in percent, in pixels of the files."""
        from tailorvit.tasks.average_precision import average_precision

        photos = data.photos(split)
        found = detections(network, data, split, device)
        out = {"map": 0.0, "map50": 0.0, "map75": 0.0, **average_precision(photos, found, data.classes)}
        if data.masks:
            out.update(average_precision(photos, found, data.classes, masks=True))
        return out

    def pictures(self, network: Any, data: Any, split: str, device: str) -> list[Picture]:
        """Some images, what is true on the left and what was found on the right."""
        from tailorvit.tasks.draw_boxes import compared

        photos = data.photos(split)
        step = max(1, len(photos) // _PICTURES)
        chosen = photos[::step][:_PICTURES]
        found = detections(network, data, split, device, chosen)
        return [compared(photo, of, data.classes) for photo, of in zip(chosen, found)]

    def for_onnx(self, network: Any, data: Any) -> OnnxForm:
        """One image -> boxes in pixels of the canvas, scores, class numbers and masks inside the boxes."""
        # A plain surface would have the same score everywhere, and the order of equals is nobody's promise.
        noise = torch.randn(1, data.channels, 8, 8, generator=torch.Generator().manual_seed(0))
        x = nn.functional.interpolate(noise, network.canvas, mode="bilinear")
        names = ("boxes", "scores", "labels", *(("masks",) if network.mask_head is not None else ()))
        note = (
            "One image at a time, fitted onto the canvas at its top left. 100 detections, the surest first; those with "
            "the score 0 are none. Boxes are pixels of the canvas: left, top, right, bottom."
        )
        return OnnxForm(FixedDetector(network).eval(), {"images": x}, names, {}, note)

    def predict(self, network: Any, data_facts: Mapping[str, Any], image: Path) -> dict[str, Any]:
        """The objects of one image file, the surest first, in pixels of the upright image."""
        from PIL import Image

        from tailorvit.tasks.annotations import upright_size
        from tailorvit.tasks.detect_data import fitted, on_canvas, placement

        if not Path(image).is_file():
            raise TailorError(f"There is no image file '{image}'.")
        channels, classes = int(data_facts["channels"]), tuple(data_facts["classes"])
        try:
            with Image.open(image) as opened:
                size = upright_size(opened)
                pixels = fitted(opened, channels, network.canvas)
        except Exception as error:  # decoders raise errors of every type on broken files
            raise TailorError(f"Cannot read '{image}' as an image: {reason(error)}.") from error
        x = on_canvas(pixels, network.canvas, data_facts["mean"], data_facts["std"])
        found = _in_files(network, x[None], [placement(size, network.canvas)])[0]
        objects: list[dict[str, Any]] = []
        for i, (box, score, label) in enumerate(
            zip(found.boxes.tolist(), found.scores.tolist(), found.labels.tolist())
        ):
            item = {"class": classes[label], "score": round(score, 4), "box": [round(v, 2) for v in box]}
            if found.masks:
                run = found.masks[i]
                item["mask"] = {"size": list(run["size"]), "counts": run["counts"].decode("ascii")}
            objects.append(item)
        return {"size": {"rows": size[0], "columns": size[1]}, "objects": objects}


class FixedDetector(nn.Module):
    """A detector as a plain function of images: tensors of fixed shapes."""

    def __init__(self, network: Detector) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Boxes, scores, class numbers and perhaps masks."""
        found = self.network(images, fixed=True)
        return tuple(t for t in found if t is not None)


def detections(network: Any, data: Any, split: str, device: str, some: Any = None) -> list[Found]:
    """What a network finds in the pictures of a split, or in some of them; the network's mode is left as it was."""
    from tailorvit.tasks.detect_data import placement

    photos = data.photos(split)
    chosen = photos if some is None else list(some)
    mode = network.training
    network.eval()
    out: list[Found] = []
    try:
        batches = data.eval_batches(split, _EVAL_BATCH) if some is None else data.batches_of(chosen, _EVAL_BATCH)
        for batch in batches:
            at = chosen[len(out) : len(out) + len(batch.x)]
            out += _in_files(network, batch.x.to(device), [placement(p.size, network.canvas) for p in at])
    finally:
        network.train(mode)
    return out


def _in_files(network: Any, x: Tensor, places: list[Placement]) -> list[Found]:
    """Detections of a batch in pixels of the files, without those that fill up."""
    from tailorvit.tasks.average_precision import Found

    with torch.inference_mode():
        of_batch = network(x)
    boxes, scores, labels = (t.cpu() for t in of_batch[:3])
    masks = None if of_batch.masks is None else of_batch.masks.cpu()
    out = []
    for i, place in enumerate(places):
        box = place.to_file(boxes[i].double())
        real = (scores[i] > 0) & ((box[:, 2:] - box[:, :2]) > 0.01).all(1)
        runs = [] if masks is None else [_run(m, b, place.size) for m, b in zip(masks[i][real], box[real].tolist())]
        out.append(Found(box[real].numpy(), scores[i][real].double().numpy(), labels[i][real].numpy(), runs))
    return out


def _run(chance: Tensor, box: list[float], size: Size) -> Any:
    """A mask inside a box as run lengths of the whole file: chances are read between their centres, half is inside."""
    import numpy as np
    from pycocotools import mask as library

    rows, columns = size
    left, top = max(0, math.floor(box[0])), max(0, math.floor(box[1]))
    right, bottom = min(columns, math.ceil(box[2])), min(rows, math.ceil(box[3]))
    whole: NDArray[np.uint8] = np.zeros(size, np.uint8, order="F")
    if right > left and bottom > top:
        x = (torch.arange(left, right) + 0.5 - box[0]) / (box[2] - box[0]) * 2 - 1
        y = (torch.arange(top, bottom) + 0.5 - box[1]) / (box[3] - box[1]) * 2 - 1
        grid = torch.stack([x.expand(len(y), -1), y[:, None].expand(-1, len(x))], -1).to(chance)
        seen = torch.nn.functional.grid_sample(
            chance[None, None], grid[None], "bilinear", "border", align_corners=False
        )[0, 0]
        inside = (grid.abs() <= 1).all(-1)
        whole[top:bottom, left:right] = ((seen >= 0.5) & inside).numpy()
    return library.encode(whole)


TASK = Detect()
