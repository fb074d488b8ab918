"""Analysis: what the report shows about the finished network, computed once at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import nn

from tailorvit.analysis.answers import Answers, ask, summary, surest_mistakes, telling_images
from tailorvit.analysis.pictures import plain_text, shown_name, thumbnail
from tailorvit.analysis.settings import AnalysisSettings
from tailorvit.analysis.views import POOLED, view
from tailorvit.data import Data
from tailorvit.families.base import Family

__all__ = ["FORMAT", "AnalysisSettings", "analyse"]

FORMAT = 1


def analyse(
    family: Family, model: nn.Module, data: Data, device: str, settings: AnalysisSettings, batch: int = 256
) -> dict[str, Any]:
    """The content of analysis.json: a network's answers on the opened test split, and its attention there.

    The plain network must lie on the device. It is left as it was; nothing is drawn at random.
    """
    with _evaluating(model):
        answers = ask(model, data.eval_batches("test", batch), device)
        attention, notes = _attention(family, model, data, device, settings, answers)
    if answers.broken:
        notes.insert(0, f"{answers.broken} test image(s) got no finite answer; their probabilities are shown as 0.")
    wrong = surest_mistakes(answers, settings.mistakes)
    mistakes = [
        {
            **picture,
            "probability": round(float(answers.probability[i]), 6),
            "truth_probability": round(float(answers.truth_probability[i]), 6),
        }
        for i, picture in zip(wrong, _pictures(data, answers, wrong), strict=True)
    ]
    return {
        "format": FORMAT,
        "classes": [plain_text(c) for c in data.classes],
        "test": {**summary(answers, len(data.classes)), "mistakes": mistakes},
        "attention": attention,
        "notes": notes,
    }


def _attention(
    family: Family, model: nn.Module, data: Data, device: str, settings: AnalysisSettings, answers: Answers
) -> tuple[dict[str, Any] | None, list[str]]:
    if family.attention is None:
        return None, [f"The {family.name} family shows no attention."]
    if settings.images == 0:
        return None, ["Attention is left out, as analysis.images is 0."]
    chosen = telling_images(answers.truth, answers.said, settings.images)
    total = len(answers.truth)
    # Behind the images shown come others, evenly spread, so that distances rest on more than a handful.
    spread = [int(i) for i in np.linspace(0, total - 1, min(POOLED, total)) if int(i) not in chosen]
    x, _ = data.examples("test", [*chosen, *spread][:POOLED])
    seen, notes = view(family.attention, model, data.normalise(x).to(device), len(chosen))
    if seen is None:
        return None, notes
    return {"images": _pictures(data, answers, chosen[: seen.pop("shown")]), **seen}, notes


def _pictures(data: Data, answers: Answers, positions: list[int]) -> list[dict[str, Any]]:
    """Images of the test split as the report shows them."""
    if not positions:
        return []
    names, (x, _) = data.names("test"), data.examples("test", positions)
    return [
        {
            "name": shown_name(names[i], data.source),
            "truth": int(answers.truth[i]),
            "said": int(answers.said[i]),
            "picture": thumbnail(pixels.numpy()),
        }
        for i, pixels in zip(positions, x, strict=True)
    ]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every module's own mode afterwards."""
    before = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode
