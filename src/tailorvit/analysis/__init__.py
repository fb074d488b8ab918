"""The analysis of the finished network for the report, computed once at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn

from tailorvit.analysis.attention import POOLED, attention_of
from tailorvit.analysis.metrics import metrics
from tailorvit.analysis.predictions import (
    Predictions,
    confident_mistakes,
    images_to_show,
    plain_text,
    predict,
    shown_name,
    summary,
    thumbnail,
)
from tailorvit.analysis.settings import AnalysisSettings
from tailorvit.data import Data
from tailorvit.families.base import Family

__all__ = ["FORMAT", "AnalysisSettings", "Predictions", "analyse", "metrics", "tested"]

FORMAT = 1


def analyse(
    family: Family,
    model: nn.Module,
    data: Data,
    device: str,
    settings: AnalysisSettings,
    batch: int = 256,
    found: Predictions | None = None,
) -> dict[str, Any]:
    """The content of analysis.json: a network's predictions on the unsealed test split, and its attention there.

    Predictions that were ``found`` already are not made again. The plain network must be on the device. It is left
    unchanged; nothing is random.
    """
    with evaluating(model):
        found = found or predict(model, data.eval_batches("test", batch), device)
        attention, notes = _attention(family, model, data, device, settings, found)
    if found.not_finite:
        words = f"{found.not_finite} test image(s) got no finite prediction; their probabilities are shown as 0."
        notes.insert(0, words)
    wrong = confident_mistakes(found, settings.mistakes)
    mistakes = [
        {
            **picture,
            "probability": round(float(found.probability[i]), 6),
            "truth_probability": round(float(found.truth_probability[i]), 6),
        }
        for i, picture in zip(wrong, _pictures(data, found, wrong), strict=True)
    ]
    return {
        "format": FORMAT,
        "classes": [plain_text(c) for c in data.classes],
        "test": {**summary(found, len(data.classes)), "mistakes": mistakes},
        "attention": attention,
        "notes": notes,
    }


def tested(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: str) -> Predictions:
    """A network's predictions on a split."""
    with evaluating(model):
        return predict(model, batches, device)


def _attention(
    family: Family, model: nn.Module, data: Data, device: str, settings: AnalysisSettings, found: Predictions
) -> tuple[dict[str, Any] | None, list[str]]:
    if family.attention is None:
        return None, [f"The {family.name} family has no attention maps."]
    if settings.images == 0:
        return None, ["Attention is left out, as analysis.images is 0."]
    chosen = images_to_show(found.truth, found.predicted, settings.images)
    total = len(found.truth)
    # After the images shown come others, evenly spread, so that distances rest on more than a handful.
    spread = [int(i) for i in np.linspace(0, total - 1, min(POOLED, total)) if int(i) not in chosen]
    x, _ = data.examples("test", [*chosen, *spread][:POOLED])
    maps, notes = attention_of(family.attention, model, data.normalise(x).to(device), len(chosen))
    if maps is None:
        return None, notes
    return {"images": _pictures(data, found, chosen[: maps.pop("shown")]), **maps}, notes


def _pictures(data: Data, found: Predictions, positions: list[int]) -> list[dict[str, Any]]:
    """Images of the test split as the report shows them."""
    if not positions:
        return []
    names, (x, _) = data.names("test"), data.examples("test", positions)
    return [
        {
            "name": shown_name(names[i], data.source),
            "truth": int(found.truth[i]),
            "said": int(found.predicted[i]),
            "picture": thumbnail(pixels.numpy()),
        }
        for i, pixels in zip(positions, x, strict=True)
    ]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module has its own mode again."""
    before = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode
