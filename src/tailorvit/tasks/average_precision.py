"""Average precision as COCO defines it, of boxes and of masks, by pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from tailorvit.tasks.annotations import Photo
from tailorvit.tasks.detect_data import run_lengths

SIZES = ("small", "medium", "large")  # below 32x32 pixels of the file, below 96x96, and above
MOST = 100  # detections of an image that count


class Found(NamedTuple):
    """What was found in one picture, in pixels of its file."""

    boxes: NDArray[Any]  # (n, 4) left, top, right, bottom
    scores: NDArray[Any]
    labels: NDArray[Any]  # class numbers from 0 on
    masks: Sequence[Any] = ()  # run lengths, where there are masks


def average_precision(
    photos: Sequence[Photo], found: Sequence[Found], classes: Sequence[str], masks: bool = False
) -> dict[str, float]:
    """Percent: ``map`` (mean over overlaps .5 to .95 and classes), ``map50``, ``map75``, by size and by class.

    What the pictures have no object of is left out. With ``masks`` the overlap is that of masks and the names begin
    with ``mask_``. Objects that do not count are neither hits nor misses.
    """
    from pycocotools.cocoeval import COCOeval

    judge = _judge(photos, found, classes, masks)
    with contextlib.redirect_stdout(io.StringIO()):
        run = COCOeval(*judge, "segm" if masks else "bbox")
        run.params.maxDets = [1, 10, MOST]
        run.evaluate()
        run.accumulate()
    precision: NDArray[Any] = run.eval["precision"][..., -1]  # (overlaps, recalls, classes, sizes)
    before = "mask_" if masks else ""
    parts = {
        "map": precision[:, :, :, 0],
        "map50": precision[0, :, :, 0],
        "map75": precision[5, :, :, 0],
        **{f"map_{name}": precision[:, :, :, i] for i, name in enumerate(SIZES, 1)},
        **{f"ap/{name}": precision[:, :, i, 0] for i, name in enumerate(classes)},
    }
    # -1 stands for "no such object"
    return {f"{before}{key}": 100 * float(part[part > -1].mean()) for key, part in parts.items() if (part > -1).any()}


def _judge(photos: Sequence[Photo], found: Sequence[Found], classes: Sequence[str], masks: bool) -> tuple[Any, Any]:
    """The truth and the findings as the library's tables."""
    from pycocotools import mask as library
    from pycocotools.coco import COCO

    images = [{"id": i, "height": p.size[0], "width": p.size[1]} for i, p in enumerate(photos)]
    kinds = [{"id": i, "name": name} for i, name in enumerate(classes)]
    true: list[dict[str, Any]] = []
    for i, photo in enumerate(photos):
        for thing in photo.things:
            left, top, right, bottom = thing.box
            item = {
                "id": len(true) + 1,
                "image_id": i,
                "category_id": thing.label,
                "bbox": [left, top, right - left, bottom - top],
                "area": (right - left) * (bottom - top),
                "iscrowd": int(not thing.counts),
            }
            if masks and thing.mask is not None:
                item["segmentation"] = run_lengths(thing.mask, photo.size)
                item["area"] = float(library.area(item["segmentation"]))
            elif masks:
                continue
            true.append(item)
    said: list[dict[str, Any]] = []
    for i, of in enumerate(found):
        for k, (box, score, label) in enumerate(zip(of.boxes.tolist(), of.scores.tolist(), of.labels.tolist())):
            area = (box[2] - box[0]) * (box[3] - box[1])
            item = {
                "id": len(said) + 1,
                "image_id": i,
                "category_id": int(label),
                "score": score,
                "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
                "area": area,
                "iscrowd": 0,
            }
            if masks:
                item["segmentation"] = of.masks[k]
                item["area"] = float(library.area(of.masks[k]))
            said.append(item)
    tables = []
    for items in (true, said):
        table = COCO()
        table.dataset = {"images": images, "categories": kinds, "annotations": items}
        with contextlib.redirect_stdout(io.StringIO()):
            table.createIndex()
        tables.append(table)
    return tables[0], tables[1]
