"""A network's predictions on a whole split: confusion, accuracy per class, its most confident mistakes, pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailorvit.data.splits import Ints
from tailorvit.portable import Pixels, to_image
from tailorvit.train.memory import Fitting

TOP = 5  # classes among which top-5 accuracy looks for the true one
EXACT = 64  # pixels; up to this side PNG keeps every pixel
LARGEST = 128  # pixels; a JPEG of this side is about 5 kB


class Predictions(NamedTuple):
    """One entry per image, in the order of the split; probabilities are 0 where the network gave no finite number."""

    truth: Ints
    predicted: Ints
    probability: NDArray[np.float32]  # of the predicted class
    truth_probability: NDArray[np.float32]
    among_top: NDArray[np.bool_]  # whether the true class is among the five with the highest scores
    not_finite: int = 0  # images without a finite prediction


@torch.inference_mode()
def predict(model: Callable[[Tensor], Tensor], batches: Iterable[tuple[Tensor, Tensor]], device: str) -> Predictions:
    """One pass over the images; only five numbers per image are kept."""
    rows: list[tuple[Tensor, ...]] = []
    not_finite, call = 0, Fitting(model)
    for x, labels in batches:
        logits, y = call(x.to(device)).float().cpu(), labels.cpu()
        predicted = logits.argmax(-1)  # of the logits, as accuracy does: softmax may round two classes to a tie
        probabilities = logits.softmax(-1)
        not_finite += int((~probabilities.isfinite().all(-1)).sum())
        probabilities = probabilities.nan_to_num(0.0)
        both = torch.stack([predicted, y], -1)
        top = logits.topk(min(TOP, logits.shape[-1]), -1).indices
        rows.append((y, predicted, *probabilities.gather(-1, both).unbind(-1), (top == y[:, None]).any(-1)))
    if not rows:
        empty = np.zeros(0, np.int64)
        return Predictions(empty, empty, empty.astype(np.float32), empty.astype(np.float32), empty.astype(np.bool_))
    truth, chosen, sure, right, among = (torch.cat(column).numpy() for column in zip(*rows, strict=True))
    return Predictions(truth, chosen, sure, right, among, not_finite)


def confusion(truth: Ints, predicted: Ints) -> list[list[int]]:
    """[truth, predicted, count] of every pair that occurs, in order."""
    pairs, counts = np.unique(np.stack([truth, predicted], -1), axis=0, return_counts=True)
    return [[int(t), int(p), int(n)] for (t, p), n in zip(pairs, counts, strict=True)]


def per_class(truth: Ints, predicted: Ints, classes: int) -> list[list[int]]:
    """[count, correct] of every class, also of those without an image."""
    count = np.bincount(truth, minlength=classes)
    correct = np.bincount(truth[truth == predicted], minlength=classes)
    return [[int(n), int(c)] for n, c in zip(count, correct, strict=True)]


def summary(predictions: Predictions, classes: int) -> dict[str, Any]:
    """The counts as plain data."""
    truth, predicted = predictions.truth, predictions.predicted
    return {
        "count": len(truth),
        "correct": int((truth == predicted).sum()),
        "confusion": confusion(truth, predicted),
        "per_class": per_class(truth, predicted, classes),
    }


def confident_mistakes(predictions: Predictions, most: int) -> list[int]:
    """Positions of the wrong predictions, the most confident first; equal ones in the order of the split."""
    wrong = np.flatnonzero(predictions.truth != predictions.predicted)
    return [int(i) for i in wrong[np.argsort(-predictions.probability[wrong], kind="stable")][:most]]


def images_to_show(truth: Ints, predicted: Ints, count: int) -> list[int]:
    """Images for the attention maps: correct and wrong in turn, of different classes, spread over the split."""
    total = len(truth)
    count = min(count, total)
    chosen: list[int] = []
    for k in range(count):
        off = np.abs(np.arange(total) - (2 * k + 1) * total / (2 * count))
        unwanted = (truth == predicted) if k % 2 else (truth != predicted)
        order = np.lexsort((off, np.isin(truth, truth[chosen]), unwanted, np.isin(np.arange(total), chosen)))
        chosen.append(int(order[0]))
    return chosen


# -- pictures and names -----------------------------------------------------------------------------------------------


def thumbnail(pixels: Pixels) -> str:
    """uint8 (C, H, W) as a data URI: PNG up to 64 pixels per side, above it JPEG of at most 128."""
    from PIL import Image

    image, kind, stream = to_image(pixels), "png", io.BytesIO()
    if max(image.size) <= EXACT:
        image.save(stream, "PNG", optimize=True)
    else:
        image.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
        image.save(stream, "JPEG", quality=85)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


def plain_text(words: str) -> str:
    """Text that any file can hold: bytes that are not UTF-8 become the replacement character."""
    return words.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def shown_name(name: str, source: str) -> str:
    """A file's name relative to its source, without the machine's paths; the bare name where it lies elsewhere."""
    path, root = PurePath(name), Path(source).expanduser()
    return plain_text(path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name)
