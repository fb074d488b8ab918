"""Visual question answering: an image and a question in, one of the training answers out."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from tailorvit.data.images import normalise
from tailorvit.errors import TailorError
from tailorvit.portable import checked_size, reason, to_image
from tailorvit.rng import generator
from tailorvit.tasks.answer_network import HEAD_WIDTH, AnswerNetwork, bert_config
from tailorvit.tasks.base import Backbone, OnnxForm, Picture, TaskData, TaskNetwork
from tailorvit.tasks.question_data import QuestionData, letterbox
from tailorvit.tasks.questions import read_questions
from tailorvit.tasks.words import TextFolder

EVAL_BATCH = 128
SHOWN = 8  # pictures of the report, evenly spaced over the questions; as many of wrong answers
LEAST_SIDE = 160  # pixels of a picture's shorter side in the report
BEST = 5  # answers that a prediction lists
MOST_DROPOUT = 0.9


@dataclass(frozen=True)
class AnswerSettings:
    """The task's own settings."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    image_size: int | tuple[int, int] = 0  # 0: as the images are, up to 224 px
    text: str = ""  # folder of a BERT: config.json, model.safetensors, vocab.txt; empty: an encoder from scratch
    width: int = 64  # of the encoder from scratch
    depth: int = 2  # its layers
    dropout: float = 0.0  # its dropout
    answers: int = 3129  # at most; rarer ones of the training questions are left out
    blind: bool = False  # a learned constant in place of the image

    def __post_init__(self) -> None:
        if self.image_size != 0:
            checked_size(self.image_size)
        for name, low, high in (("width", 2, 4096), ("depth", 1, 100), ("answers", 2, 1_000_000)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise TailorError(f"answer.{name} must be from {low} to {high}, not {value}.")
        if self.width > HEAD_WIDTH and self.width % HEAD_WIDTH:
            raise TailorError(f"answer.width must be a multiple of {HEAD_WIDTH}, or below it, not {self.width}.")
        if not (math.isfinite(self.dropout) and 0 <= self.dropout <= MOST_DROPOUT):
            raise TailorError(f"answer.dropout must be from 0 to {MOST_DROPOUT}, not {self.dropout}.")


@dataclass(frozen=True)
class AnswerTask:
    """See :class:`tailorvit.tasks.base.Task`."""

    name: str = "answer"
    summary: str = "answer questions about images"
    settings: type = AnswerSettings
    metric: str = "accuracy"
    needs: tuple[tuple[str, str], ...] = (("transformers", "hf"),)
    beside: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"question only": {"blind": True}})
    train: Mapping[str, Any] = field(default_factory=lambda: {"epochs": 8, "batch": 64, "lr": 1e-3, "warmup": 0.3})
    # SOHO as S3's paper uses it. Its rate falls tenfold after epochs 25 and 35; a cosine to a hundredth stands for it.
    # Its BERT must be given as answer.text; without one the encoder has the same size and starts from scratch.
    presets: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {
            "vqa2": {
                "summary": "VQA 2.0 as in S3's paper (SOHO without its dictionary); give a BERT as answer.text",
                "backbone_lr": 0.1,
                "train": {"epochs": 40, "batch": 2048, "lr": 5e-5, "min_lr": 5e-7, "warmup": 2.3, "precision": "auto"},
                "answer": {"image_size": 384, "width": 768, "depth": 12, "dropout": 0.1},
            }
        }
    )

    tiny: Mapping[str, Any] = field(default_factory=lambda: {"answer": {"image_size": 32, "width": 32, "depth": 1}})

    def read(self, source: str, settings: Any, seed: int, splits: Mapping[str, Any] | None = None) -> QuestionData:
        """The questions of a folder, or of the package easy-vqa."""
        own = cast(AnswerSettings, settings)
        size = None if own.image_size == 0 else checked_size(own.image_size)
        found = read_questions(source)
        return QuestionData(source, found, seed, size, own.answers, own.text, splits)

    def build(self, backbone: Backbone, data: TaskData, settings: Any) -> AnswerNetwork:
        """The network on a backbone; a text encoder from its folder where one is given."""
        own, asked = cast(AnswerSettings, settings), cast(QuestionData, data)
        folder = TextFolder(own.text) if own.text else None
        words = asked.words
        scratch = bert_config(own.width, own.depth, len(words.vocabulary), words.length, own.dropout)
        network = AnswerNetwork(
            backbone,
            {
                "bert": scratch if folder is None else folder.config,
                "words": words.to_dict(),
                "answers": list(asked.classes),
                "soft": asked.soft,
                "blind": own.blind,
            },
        )
        if folder is not None:
            folder.load_into(network.text)
        return network

    def rebuild(self, backbone: Backbone, settings: Mapping[str, Any]) -> AnswerNetwork:
        """The network from its own ``settings``, for weights that were saved."""
        return AnswerNetwork(backbone, settings)

    def evaluate(self, network: TaskNetwork, data: TaskData, split: str, device: str) -> dict[str, float]:
        """Accuracy in percent, over all questions and by what they ask for, and that of the most frequent answer.

        Where ten people answered, a question counts by VQA's accuracy.
        """
        asked = cast(QuestionData, data)
        score = np.concatenate([s for s, _, _ in _answered(cast(AnswerNetwork, network), asked, split, device)])
        questions = asked.questions(split)
        kinds = np.asarray([q.kind for q in questions])
        figures = {"accuracy": 100 * float(score.mean())}
        for kind in sorted(set(kinds)) if len(set(kinds)) > 1 else ():
            figures[f"accuracy_{kind}"] = 100 * float(score[kinds == kind].mean())
        prior = [q.scores.get(asked.classes[0], 0.0) for q in questions]
        return {**figures, "prior_accuracy": 100 * float(np.mean(prior))}

    def pictures(self, network: TaskNetwork, data: TaskData, split: str, device: str) -> list[Picture]:
        """Some questions, evenly spaced, and some that were answered wrongly."""
        own, asked = cast(AnswerNetwork, network), cast(QuestionData, data)
        rows = [part for parts in _answered(own, asked, split, device) for part in zip(*parts, strict=True)]
        wrong = [i for i, (score, _, _) in enumerate(rows) if not score]
        chosen = [("question", i) for i in _spaced(range(len(rows)))]
        chosen += [("wrong", i) for i in _spaced(wrong) if ("question", i) not in chosen]
        shown = []
        for place, (what, i) in enumerate(chosen):
            question, (_, number, probability) = asked.questions(split)[i], rows[i]
            true = max(question.scores, key=lambda a: question.scores[a])
            said = f"{question.text} {own.answers[number]} ({100 * probability:.0f} %); true: {true}"
            shown.append(Picture(f"{what}-{place}", _png(asked.pixels(question)), said))
        return shown

    def for_onnx(self, network: TaskNetwork, data: TaskData) -> OnnxForm:
        """Logits of images and words."""
        own = cast(AnswerNetwork, network)
        draw, count = generator(0, "onnx"), len(own.words.vocabulary)
        x = torch.from_numpy(draw.standard_normal((2, data.channels, *data.image_size)).astype(np.float32))
        words = torch.from_numpy(own.words.encode(["", ""]))
        words[1, 1:] = torch.from_numpy(draw.integers(0, count, words.shape[1] - 1))
        return OnnxForm(
            own,
            {"images": x, "words": words},
            ("logits",),
            {"images": {0: "batch"}, "words": {0: "batch"}, "logits": {0: "batch"}},
            "Questions are turned into words outside of it; the list of words is in the network's settings.",
        )

    def predict(
        self, network: TaskNetwork, data_facts: Mapping[str, Any], image: Path, question: str = ""
    ) -> dict[str, Any]:
        """The answer to a question about one image file, with the next best ones."""
        from PIL import Image

        own = cast(AnswerNetwork, network)
        if not question.strip():
            raise TailorError("A question is needed: tailorvit predict RUN IMAGE --question 'what is ...?'.")
        if not image.is_file():
            raise TailorError(f"There is no image file '{image}'.")
        try:
            with Image.open(image) as opened:
                pixels = letterbox(opened, checked_size(data_facts["image_size"]), int(data_facts["channels"]))
        except Exception as error:  # decoders raise errors of every type on broken files
            raise TailorError(f"Cannot read '{image}' as an image: {reason(error)}.") from error
        x = normalise(torch.from_numpy(pixels[None]), data_facts["mean"], data_facts["std"])
        words = torch.from_numpy(own.words.encode([question]))
        device = next(own.parameters()).device
        own.eval()
        with torch.inference_mode():
            found = own.probabilities(own(x.to(device), words.to(device)))[0].cpu()
        best = found.topk(min(BEST, len(found)))
        rows = [
            {"answer": own.answers[i], "probability": p}
            for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        return {"question": question, **rows[0], "answers": rows}


def _answered(
    network: AnswerNetwork, data: QuestionData, split: str, device: str
) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """By batch: what each given answer is worth, its number, and its probability."""
    training = network.training
    network.to(device).eval()
    found = []
    with torch.inference_mode():
        for x, words, target in data.eval_batches(split, EVAL_BATCH):
            probability, number = network.probabilities(network(x.to(device), words.to(device))).cpu().max(1)
            score = target.gather(1, number[:, None])[:, 0]
            found.append((score.numpy(), number.numpy(), probability.numpy()))
    network.train(training)
    return found


def _spaced(items: Sequence[int]) -> list[int]:
    """Some of the items, evenly spaced."""
    if not items:
        return []
    return [items[i] for i in np.unique(np.linspace(0, len(items) - 1, min(SHOWN, len(items))).astype(int))]


def _png(pixels: Tensor) -> bytes:
    """An image as PNG; a small one with its pixels repeated."""
    from PIL import Image

    image, out = to_image(pixels.numpy()), io.BytesIO()
    times = max(1, -(-LEAST_SIDE // min(image.size)))
    image.resize((times * image.width, times * image.height), Image.Resampling.NEAREST).save(out, "PNG")
    return out.getvalue()


TASK = AnswerTask()
