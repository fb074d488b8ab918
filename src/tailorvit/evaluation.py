"""A finished network on labelled images: accuracy, precision, recall and F1 per class, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailorvit.errors import TailorError, unknown
from tailorvit.portable import HUB, reason, to_image
from tailorvit.predict import Item, classify, load_classifier
from tailorvit.texts import read_table

Ints = NDArray[np.int64]
_NAMES_SHOWN = 5


@dataclass(frozen=True)
class ClassScores:
    """The figures of one class in percent, and its number of images."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Evaluation:
    """The result; all shares are percent. Row i of ``confusion`` counts the images of class i by predicted class."""

    network: str
    data: str
    split: str
    images: int
    accuracy: float
    macro: Mapping[str, float]  # precision, recall and f1, averaged over the classes that have images
    metrics: Mapping[str, float]  # top-5 accuracy of more than five classes, macro-F1, balanced accuracy, calibration
    classes: tuple[ClassScores, ...]  # in the network's order
    confusion: tuple[tuple[int, ...], ...]
    skipped: tuple[tuple[str, str], ...]  # images that could not be read, each with the reason
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "skipped": [{"file": name, "reason": why} for name, why in self.skipped]}

    def lines(self) -> list[str]:
        """The lines that the command line prints."""
        width = max(len("macro average"), *(len(c.name) for c in self.classes))
        rows = [*self.classes, ClassScores("macro average", **self.macro, support=self.images)]
        return [
            f"Accuracy {self.accuracy:.2f} % on {self.images} images of {self.data} (split: {self.split})",
            self._figures(),
            f"  {'class':<{width}}  precision   recall       f1   images",
            *(
                f"  {c.name:<{width}}  {c.precision:>7.2f} % {c.recall:>6.2f} % {c.f1:>6.2f} %  {c.support:>7}"
                for c in rows
            ),
            *self.notes,
        ]

    def _figures(self) -> str:
        """The figures that are not in the table."""
        names = {"top5_accuracy": "Top-5 accuracy", "balanced_accuracy": "balanced accuracy"}
        names["calibration_error"] = "calibration error"
        words = ", ".join(f"{name} {self.metrics[key]:.2f} %" for key, name in names.items() if key in self.metrics)
        return words[0].upper() + words[1:]


@dataclass(frozen=True)
class _Labelled:
    """Labelled data: class names, a class number per image, the ids of every split, and the images themselves."""

    source: str
    classes: tuple[str, ...]
    labels: Ints
    splits: Mapping[str, Ints]
    fingerprint: str
    images: Any

    def items(self, ids: Ints) -> Iterator[Item]:
        """The images. Files are decoded later, by several threads; a dataset's own code may not allow that."""
        for i in ids.tolist():
            name = self.images.name(i)
            if self.images.names is not None and Path(name).is_file():
                yield Item(name, Path(name))
                continue
            try:
                yield Item(
                    name, to_image(self.images.images[i]) if hasattr(self.images, "images") else self.images.opener(i)
                )
            except Exception as error:  # datasets and decoders raise errors of every type
                yield Item(name, error=reason(error))

    def unreadable(self, split: str) -> list[tuple[str, str]]:
        """Files of the split that are in no split because their header cannot be read, each with the reason."""
        if split == "all":
            return list(self.images.skipped)
        if split not in self.splits or self.images.names is None:  # a run's own splits hold readable images only
            return []
        root = Path(self.source).expanduser()

        def top(name: str) -> str | None:
            return Path(name).relative_to(root).parts[0] if Path(name).is_relative_to(root) else None

        folder = top(self.images.names[self.splits[split][0]])  # train, validation, ..., as the data spells it
        return [(name, why) for name, why in self.images.skipped if top(name) == folder]


def _read_data(source: str) -> _Labelled:
    """Data in any form that ``tailorvit run --data`` takes."""
    from tailorvit.data.sources import read_source

    images = read_source(source)
    splits = {part: np.flatnonzero(images.origin == part) for part in dict.fromkeys(images.origin.tolist())}
    splits["all"] = np.arange(len(images.labels))
    return _Labelled(source, images.classes, images.labels, splits, images.fingerprint, images)


def _run_splits(network: Path, data: _Labelled) -> dict[str, Ints]:
    """The splits of the run that the network comes from, if that run used this very data."""
    if network.as_posix().startswith(HUB):
        return {}
    place = network.absolute()
    for folder in (place, *list(place.parents)[:3]):  # the run, its network, an export of it, a file of that
        try:
            saved = read_table(folder / "splits.json")
            if saved["fingerprint"] != data.fingerprint:
                return {}
            return {s: np.asarray(saved[s], dtype=np.int64) for s in ("train", "search", "test")}
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return {}


def _split(data: _Labelled, recorded: Mapping[str, Ints], split: str | None) -> tuple[str, Ints, list[str]]:
    """The split's name and ids; by default the data's own test images (or, as in a run, val), else all images."""
    choices = {**recorded, **data.splits}
    if split is None:
        split = next((s for s in ("test", "val") if s in data.splits), "all")
    if split not in choices:
        raise unknown("split", split, choices)
    ids = choices[split]
    seen = [np.isin(ids, recorded[s]).sum() for s in ("train", "search") if s in recorded]
    if not sum(seen):
        return split, ids, []
    note = (
        f"The network's run used {sum(seen)} of these images for training or selection, so the figures may be too high"
    )
    return split, ids, [f"{note}; --split test takes the others." if split != "test" else f"{note}."]


def _class_numbers(data: _Labelled, ids: Ints, known: tuple[str, ...]) -> tuple[Ints, list[str]]:
    """The labels as numbers of the network's classes, and a note on classes without images."""
    number = {name: i for i, name in enumerate(known)}
    here = [data.classes[i] for i in np.unique(data.labels[ids])]
    if foreign := [name for name in here if name not in number]:
        raise TailorError(
            f"The data has the class {_named(foreign)}, which the network does not know; "
            f"it knows {_named(list(known))}."
        )
    table = np.asarray([number.get(name, -1) for name in data.classes], dtype=np.int64)
    empty = [name for name in known if name not in here]
    note = f"The data has no images of the class {_named(empty)}; the macro averages are over the others."
    return table[data.labels[ids]], [note] if empty else []


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_NAMES_SHOWN]) + more


def evaluate(network: str | Path, data: Any, *, split: str | None = None) -> Evaluation:
    """Evaluate a run folder, a network folder or an .onnx file on labelled data in any form that a run takes.

    ``data`` may be objects too: arrays, a torch Dataset, a DataFrame, a data set of Hugging Face.
    ``split`` is a part of the data (train, val, test), ``all``, or a split of the network's run on the same data. By
    default it is the test split that the data brings, else all images. Classes are matched by name.
    """
    from sklearn.metrics import accuracy_score, confusion_matrix, precision_recall_fscore_support

    from tailorvit.analysis.metrics import metrics
    from tailorvit.analysis.predictions import TOP, Predictions
    from tailorvit.data.memory import source_of

    data = source_of(data)
    classifier = load_classifier(network)
    labelled = _read_data(data)
    chosen, ids, notes = _split(labelled, _run_splits(Path(network), labelled), split)
    labels, more = _class_numbers(labelled, ids, classifier.classes)
    rows, skipped = list[tuple[int, int, float, float, bool]](), labelled.unreadable(chosen)
    for label, (item, found) in zip(labels.tolist(), classify(classifier, labelled.items(ids))):
        if isinstance(found, str):
            skipped.append((item.name, found))
        else:
            top = np.argsort(-found, kind="stable")[:TOP]
            rows.append((label, int(top[0]), float(found[top[0]]), float(found[label]), label in top))
    if not rows:
        raise TailorError(
            f"None of the {len(ids)} images of '{data}' can be read, the first because: {skipped[-1][1]}."
        )
    if skipped:
        more.append(f"{len(skipped)} images could not be read and were left out, the first: {skipped[0][0]}.")
    labelled_as, said, sure, right, among = (np.asarray(column) for column in zip(*rows))
    found_there = Predictions(labelled_as, said, sure.astype(np.float32), right.astype(np.float32), among)
    truth, predicted = found_there.truth, found_there.predicted
    numbers, present = list(range(len(classifier.classes))), np.unique(truth)
    scores = np.stack(precision_recall_fscore_support(truth, predicted, labels=numbers, zero_division=0), axis=1)
    macro = precision_recall_fscore_support(truth, predicted, labels=present, average="macro", zero_division=0)
    return Evaluation(
        network=str(network),
        data=data,
        split=chosen,
        images=len(truth),
        accuracy=100 * float(accuracy_score(truth, predicted)),
        macro={k: 100 * float(v) for k, v in zip(("precision", "recall", "f1"), macro)},
        metrics=metrics(found_there, len(classifier.classes)),
        classes=tuple(
            ClassScores(name, 100 * float(p), 100 * float(r), 100 * float(f), int(n))
            for name, (p, r, f, n) in zip(classifier.classes, scores)
        ),
        confusion=tuple(map(tuple, confusion_matrix(truth, predicted, labels=numbers).tolist())),
        skipped=tuple(skipped),
        notes=(*notes, *more),
    )
