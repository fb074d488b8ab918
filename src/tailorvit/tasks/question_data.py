"""Images with questions in three splits, and their batches: images, words, and what each answer is worth."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tailorvit.data.images import normalise, thread_map
from tailorvit.data.splits import SPLITS, Ints, require_open, require_reason
from tailorvit.errors import TailorError
from tailorvit.portable import Pixels, Size, flat, is_grey, reason
from tailorvit.rng import generator
from tailorvit.tasks.base import TaskBatch
from tailorvit.tasks.questions import Found, Question, most_frequent
from tailorvit.tasks.words import TextFolder, WordList, Words

if TYPE_CHECKING:
    from torch import Tensor

SHARES = (0.15, 0.15)  # of the images for the test and search splits, where the data does not say
CACHE_BYTES = 2 << 30  # decoded images that stay in memory
FILL = 128  # grey beside an image that is not of the network's shape
SIDES = (32, 64, 96, 128, 160, 192, 224)  # of "as the data has it"
_LOOKED_AT = 500  # images that the size, the mean and the deviation come from


def letterbox(image: Any, size: Size, channels: int) -> Pixels:
    """An opened image as uint8 (C, H, W): upright and whole, with grey beside it where its shape is another."""
    from PIL import Image, ImageOps

    image.draft(None, (2 * max(size), 2 * max(size)))
    upright = flat(ImageOps.exif_transpose(image), channels)
    scale = min(size[0] / upright.height, size[1] / upright.width)
    rows, columns = max(1, round(scale * upright.height)), max(1, round(scale * upright.width))
    if (rows, columns) != (upright.height, upright.width):
        upright = upright.resize((columns, rows), Image.Resampling.BICUBIC)
    out = np.full((channels, *size), FILL, np.uint8)
    top, left = (size[0] - rows) // 2, (size[1] - columns) // 2
    pixels = np.asarray(upright, np.uint8).reshape(rows, columns, channels)
    out[:, top : top + rows, left : left + columns] = pixels.transpose(2, 0, 1)
    return out


class Pictures:
    """Images of one size by number, decoded once where all fit into memory."""

    def __init__(self, files: Sequence[Path], size: Size, channels: int, cache_bytes: int) -> None:
        self.files, self.size, self.channels = files, size, channels
        self.failed: dict[int, str] = {}
        self._kept: Pixels | None = None
        if len(files) * channels * size[0] * size[1] <= cache_bytes:
            self._kept = np.empty((len(files), channels, *size), np.uint8)
            for start in range(0, len(files), 1024):  # in parts, or all would be in memory twice
                self._kept[start : start + 1024] = self._decoded(range(start, min(start + 1024, len(files))))
        else:
            self.failed = {i: text for i, text in enumerate(thread_map(_header, files)) if text}

    def read(self, ids: Ints) -> Tensor:
        """uint8 (n, C, H, W)."""
        if self._kept is not None:
            return torch.from_numpy(self._kept[ids])
        return torch.from_numpy(self._decoded(ids.tolist()))

    def _decoded(self, ids: Sequence[int]) -> Pixels:
        return np.stack(thread_map(self._one, ids))

    def _one(self, number: int) -> Pixels:
        from PIL import Image

        try:
            with Image.open(self.files[number]) as image:
                return letterbox(image, self.size, self.channels)
        except Exception as error:  # decoders raise errors of every type on broken files
            self.failed[number] = f"it cannot be read: {reason(error)}"
            return np.full((self.channels, *self.size), FILL, np.uint8)


def _header(path: Path) -> str:
    from PIL import Image

    try:
        with Image.open(path):
            return ""
    except Exception as error:
        return f"it cannot be read: {reason(error)}"


def _looked_at(files: Sequence[Path]) -> tuple[Size, int]:
    """The size that suits some of the images, the larger side rounded up, and how many channels they have."""
    from PIL import Image

    sides, grey = [], True
    for i in np.unique(np.linspace(0, len(files) - 1, min(len(files), _LOOKED_AT)).astype(int)):
        try:
            with Image.open(files[i]) as image:
                sides.append(max(image.size))
                grey = grey and is_grey(image)
        except Exception:  # it is named when it is decoded
            continue
    middle = float(np.median(sides)) if sides else SIDES[-1]
    side = next((s for s in SIDES if s >= middle), SIDES[-1])
    return (side, side), 1 if grey and sides else 3


class QuestionData:
    """Pairs of image and question. All questions of an image are in one split, so no image is known from training."""

    def __init__(
        self,
        source: str,
        found: Found,
        seed: int,
        image_size: Size | None,
        most_answers: int,
        text: str = "",
        splits: Mapping[str, Any] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self.source, self.soft = source, found.several
        self.skipped: dict[str, str] = dict(found.skipped)
        self.notes: list[str] = list(found.notes)
        names = sorted(found.files)
        size, self.channels = _looked_at([found.files[n] for n in names])
        self.image_size = image_size or size
        room = CACHE_BYTES if cache_bytes is None else cache_bytes
        self._pictures = Pictures([found.files[n] for n in names], self.image_size, self.channels, room)
        for number, why in self._pictures.failed.items():
            self.skipped[names[number]] = why
        broken = {names[number] for number in self._pictures.failed}
        questions = [q for q in found.questions if q.image not in broken]
        self._names, self._number = names, {name: i for i, name in enumerate(names)}
        self.fingerprint = _fingerprint(found, names)
        if not questions:
            raise TailorError(f"'{source}' has no image that can be read ({_first(self.skipped)}).")
        in_split = _restored(splits, questions) if splits is not None else _split(questions, seed)
        self._questions = self._sorted(questions, in_split, most_answers)
        self.counts = {s: len({q.image for q in self._questions[s]}) for s in SPLITS}
        self.words: Words = self._words(text)
        self._rows = {s: self.words.encode([q.text for q in qs]) for s, qs in self._questions.items()}
        self._images = {
            s: np.asarray([self._number[q.image] for q in qs], np.int64) for s, qs in self._questions.items()
        }
        self.mean, self.std = self._statistics()
        self._opened: str | None = None  # why the test split was opened
        if self.skipped:
            self.notes.append(f"{len(self.skipped):,} rows and images are left out, the first: {_first(self.skipped)}.")

    # -- what is in the data --

    def _sorted(
        self, questions: Sequence[Question], in_split: Mapping[str, str], most: int
    ) -> dict[str, list[Question]]:
        """Questions by split; training questions whose answers are no classes are left out."""
        parts: dict[str, list[Question]] = {s: [] for s in SPLITS}
        for question in questions:
            parts[in_split[question.image]].append(question)
        for split, part in parts.items():
            if not part:
                raise TailorError(
                    f"The {split} split of '{self.source}' has no question: {len(in_split):,} images are too few, "
                    "or its part is empty."
                )
        self.classes = tuple(most_frequent(parts["train"], most))
        if len(self.classes) < 2:
            raise TailorError(
                f"All training questions of '{self.source}' have the answer '{''.join(self.classes)}'; "
                "at least two answers are needed."
            )
        self._class_number = {answer: i for i, answer in enumerate(self.classes)}
        known = set(self.classes)
        kept = [q for q in parts["train"] if known & q.scores.keys()]
        if len(kept) < len(parts["train"]):
            self.notes.append(
                f"{len(parts['train']) - len(kept):,} training questions have none of the {most:,} most frequent "
                "answers and are left out."
            )
        parts["train"] = kept
        for split in ("search", "test"):
            new = Counter(max(q.scores, key=lambda a: q.scores[a]) for q in parts[split] if not known & q.scores.keys())
            if new:
                first = ", ".join(f"'{a}'" for a, _ in new.most_common(3))
                self.notes.append(
                    f"{sum(new.values()):,} {split} questions have answers that are none of training's ({first}); "
                    "no network can get them right."
                )
        count = ", ".join(f"{len(part):,} for {split}" for split, part in parts.items())
        self.notes.append(f"Questions: {count}; {len(self.classes):,} answers.")
        return parts

    def _words(self, text: str) -> Words:
        asked = [q.text for q in self._questions["train"]]
        return TextFolder(text).words(asked) if text else WordList.of(asked)

    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation of each channel over some training images."""
        ids = np.unique(self._images["train"])
        ids = ids[np.unique(np.linspace(0, len(ids) - 1, min(len(ids), _LOOKED_AT)).astype(np.int64))]
        pixels = self._pictures.read(ids).to(torch.float64).div_(255)
        mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3), correction=0).clamp_min(1e-3)
        return tuple(mean.tolist()), tuple(std.tolist())

    def questions(self, split: str) -> Sequence[Question]:
        """The questions of a split in the order of ``eval_batches``."""
        require_open(split, self._opened)
        return self._questions[split]

    def pixels(self, question: Question) -> Tensor:
        """The image of a question as the network sees it, uint8 (C, H, W)."""
        return self._pictures.read(np.asarray([self._number[question.image]], np.int64))[0]

    def split_record(self) -> dict[str, Any]:
        """The names of each split's images."""
        return {s: sorted({q.image for q in self._questions[s]}) for s in SPLITS}

    # -- batches --

    def train_batches(self, batch: int, seed: int) -> QuestionBatches:
        """Shuffled pairs."""
        return QuestionBatches(self, batch, seed)

    def eval_batches(self, split: str, batch: int) -> Iterator[TaskBatch]:
        """A split's questions in their order; its test part raises until it is unsealed."""
        require_open(split, self._opened)
        total = len(self._questions[split])
        for start in range(0, total, batch):
            yield self.at(split, np.arange(start, min(start + batch, total)))

    def at(self, split: str, ids: Ints) -> TaskBatch:
        """Questions of a split by number."""
        pixels = self._pictures.read(self._images[split][ids])
        words = torch.from_numpy(self._rows[split][ids])
        target = np.zeros((len(ids), len(self.classes)), np.float32)
        for row, i in zip(target, ids, strict=True):
            for answer, score in self._questions[split][i].scores.items():
                if answer in self._class_number:
                    row[self._class_number[answer]] = score
        return TaskBatch(normalise(pixels, self.mean, self.std), words, torch.from_numpy(target))

    def training_questions(self) -> int:
        """How many pairs an epoch has."""
        return len(self._questions["train"])

    def unseal_test(self, reason: str) -> None:
        """Open the test split; the first reason is recorded."""
        self._opened = self._opened or require_reason(reason)


class QuestionBatches:
    """Pairs by (seed, step). Images are never mirrored or coloured anew: 'left' and 'red' are answers."""

    def __init__(self, data: QuestionData, batch: int, seed: int) -> None:
        if batch < 1:
            raise TailorError(f"The batch size must be at least 1, not {batch}.")
        self.data, self.seed, total = data, seed, data.training_questions()
        self.batch = min(batch, total)
        self.steps_per_epoch = total // self.batch
        self._order: tuple[int, Ints] | None = None

    def iterate(self, start: int, stop: int) -> Iterator[TaskBatch]:
        """Batches of steps start..stop-1."""
        for step in range(start, stop):
            yield self.at(step)

    def at(self, step: int) -> TaskBatch:
        """The batch of one step."""
        epoch, k = divmod(step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            order = generator(self.seed, "questions", epoch).permutation(self.data.training_questions())
            self._order = epoch, order.astype(np.int64)
        ids = self._order[1][k * self.batch : (k + 1) * self.batch]
        return self.data.at("train", ids)


def _fingerprint(found: Found, names: Sequence[str]) -> str:
    """Of all questions and answers, and of the images' names and bytes."""
    digest = hashlib.sha256()
    for q in found.questions:
        digest.update(repr((q.image, q.text, sorted(q.scores.items()), q.split)).encode("utf-8", "surrogateescape"))
    for name in names:
        digest.update(f"{name} {found.files[name].stat().st_size}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _first(skipped: Mapping[str, str]) -> str:
    return next((f"{name}: {why}" for name, why in skipped.items()), "there is none")


# -- splits -----------------------------------------------------------------------------------------------------------


def _split(questions: Sequence[Question], seed: int) -> dict[str, str]:
    """The split of each image: by the data where it says, else drawn; a missing search part comes from training."""
    said: dict[str, str] = {}
    for q in questions:
        if said.setdefault(q.image, q.split) != q.split:
            raise TailorError(
                f"Image '{q.image}' has questions of two splits, '{said[q.image] or 'none'}' and "
                f"'{q.split or 'none'}'; all questions of an image belong to one."
            )
    parts = set(said.values())
    if parts == {""}:
        test, search, train = _drawn(sorted(said), SHARES, seed, "all")
        return {**dict.fromkeys(test, "test"), **dict.fromkeys(search, "search"), **dict.fromkeys(train, "train")}
    if "" in parts:
        image = next(i for i in sorted(said) if not said[i])
        raise TailorError(f"Image '{image}' has no split, and others have one; give all of them one, or none.")
    if "train" not in parts or parts == {"train"}:
        raise TailorError(
            f"The only splits of the questions: {', '.join(sorted(parts))}; train and another are needed."
        )
    names = {"train": "train", "val": "search", "test": "test"}
    if parts == {"train", "val"}:  # as in the published sets whose test answers are kept back
        names["val"] = "test"
    splits = {image: names[part] for image, part in said.items()}
    if parts != {"train", "val", "test"}:
        search, _ = _drawn(sorted(i for i, s in splits.items() if s == "train"), SHARES[1:], seed, "train")
        splits.update(dict.fromkeys(search, "search"))
    return splits


def _drawn(images: Sequence[str], shares: Sequence[float], seed: int, place: str) -> list[list[str]]:
    """So large shares of the images, at least one each, and the rest."""
    if len(images) <= len(shares):
        raise TailorError(
            f"{len(images)} images with questions cannot be split; at least {len(shares) + 1} are needed."
        )
    order = generator(seed, "split", place).permutation(len(images))
    parts, at = [], 0
    for k, share in enumerate(shares):
        take = max(1, min(round(share * len(images)), len(images) - at - (len(shares) - k)))
        parts.append([images[i] for i in order[at : at + take]])
        at += take
    return [*parts, [images[i] for i in order[at:]]]


def _restored(saved: Mapping[str, Any], questions: Sequence[Question]) -> dict[str, str]:
    """Splits from their record."""
    splits = {str(name): split for split in SPLITS for name in saved.get(split, ())}
    for q in questions:
        if q.image not in splits:
            raise TailorError(f"The data changed since its splits were made: image '{q.image}' is new.")
    if gone := set(splits) - {q.image for q in questions}:
        raise TailorError(f"The data changed since its splits were made: image '{min(gone)}' is gone.")
    return splits
