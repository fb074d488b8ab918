"""What a network says about a whole split: confusion, accuracy per class, the mistakes it is surest of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailorvit.data.splits import Ints


class Answers(NamedTuple):
    """One entry per image, in the order of the split; probabilities are 0 where the network gave no finite number."""

    truth: Ints
    said: Ints
    probability: NDArray[np.float32]  # of the class said
    truth_probability: NDArray[np.float32]
    broken: int = 0  # images without a finite answer


@torch.inference_mode()
def ask(model: Callable[[Tensor], Tensor], batches: Iterable[tuple[Tensor, Tensor]], device: str) -> Answers:
    """One pass; only four numbers an image are kept."""
    rows: list[tuple[Tensor, ...]] = []
    broken = 0
    for x, y in batches:
        logits = model(x.to(device)).float().cpu()
        said = logits.argmax(-1)  # of the logits, as accuracy does: softmax may round two classes to a tie
        probabilities = logits.softmax(-1)
        broken += int((~probabilities.isfinite().all(-1)).sum())
        probabilities = probabilities.nan_to_num(0.0)
        pick = torch.stack([said, y], -1)
        rows.append((y, said, *probabilities.gather(-1, pick).unbind(-1)))
    if not rows:
        nothing = np.zeros(0, np.int64)
        return Answers(nothing, nothing, nothing.astype(np.float32), nothing.astype(np.float32))
    truth, answer, sure, right = [torch.cat(column).numpy() for column in zip(*rows, strict=True)]
    return Answers(truth, answer, sure, right, broken)


def confusion(truth: Ints, said: Ints) -> list[list[int]]:
    """[truth, said, count] of every pair that occurs, in order."""
    pairs, counts = np.unique(np.stack([truth, said], -1), axis=0, return_counts=True)
    return [[int(t), int(s), int(n)] for (t, s), n in zip(pairs, counts, strict=True)]


def per_class(truth: Ints, said: Ints, classes: int) -> list[list[int]]:
    """[count, correct] of every class, also of those the split lacks."""
    count = np.bincount(truth, minlength=classes)
    correct = np.bincount(truth[truth == said], minlength=classes)
    return [[int(n), int(c)] for n, c in zip(count, correct, strict=True)]


def surest_mistakes(answers: Answers, most: int) -> list[int]:
    """Positions of the wrong answers, the most confident first; equal ones in the order of the split."""
    wrong = np.flatnonzero(answers.truth != answers.said)
    return [int(i) for i in wrong[np.argsort(-answers.probability[wrong], kind="stable")][:most]]


def telling_images(truth: Ints, said: Ints, count: int) -> list[int]:
    """Images worth a look: right and wrong in turn, of different classes, spread over the split; no draw involved."""
    total = len(truth)
    count = min(count, total)
    chosen: list[int] = []
    for k in range(count):
        off = np.abs(np.arange(total) - (2 * k + 1) * total / (2 * count))
        unwanted = (truth == said) if k % 2 else (truth != said)
        order = np.lexsort((off, np.isin(truth, truth[chosen]), unwanted, np.isin(np.arange(total), chosen)))
        chosen.append(int(order[0]))
    return chosen


def summary(answers: Answers, classes: int) -> dict[str, Any]:
    """The counts as plain data."""
    return {
        "count": len(answers.truth),
        "correct": int((answers.truth == answers.said).sum()),
        "confusion": confusion(answers.truth, answers.said),
        "per_class": per_class(answers.truth, answers.said, classes),
    }
