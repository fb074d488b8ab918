"""What is on image files: names in, one answer a name out, in order; from a run, a network folder or an ONNX file."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

from tailorvit.errors import TailorError, unknown
from tailorvit.portable import (
    SUFFIXES,
    Floats,
    OnnxNetwork,
    Preprocessing,
    distinct,
    prepare,
    reason,
    softmax,
    usable_cores,
)

STDIN = "-"
BATCH = 64


@dataclass(frozen=True)
class Prediction:
    """One image's class probabilities, most probable first; none where an error says why."""

    name: str
    probabilities: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    def top(self, count: int) -> dict[str, float]:
        """The most probable classes; 0 means all."""
        return dict(islice(self.probabilities.items(), count or None))


@dataclass(frozen=True)
class Classifier:
    """A network behind one function: prepared images (n, C, H, W) to probabilities (n, classes)."""

    classes: tuple[str, ...]
    preprocessing: Preprocessing
    probabilities: Callable[[Floats], Floats]


@dataclass(frozen=True)
class _Item:
    """Something to predict: a file, the bytes of an image, or what is wrong with it."""

    name: str
    source: Path | bytes | None = None
    error: str | None = None


# -- networks ---------------------------------------------------------------------------------------------------------


def open_classifier(source: str | Path) -> Classifier:
    """The network of a run folder, a network folder, FILE.onnx, or a folder that holds network.onnx only."""
    place = Path(source)
    inside = place / "network.onnx"
    if place.is_file() and place.suffix.lower() != ".onnx":
        raise TailorError(f"'{source}' is no network: give a run folder, a network folder or a file ending in .onnx.")
    if place.suffix.lower() == ".onnx" and not place.is_dir():
        return _onnx(place)
    if inside.is_file() and not (place / "network.safetensors").is_file():
        return _onnx(inside)
    try:
        from tailorvit.export import load
    except ModuleNotFoundError as error:
        raise TailorError(
            f"Predicting with the folder '{source}' needs {error.name}, which is not installed; "
            "without it, give a network exported with --to onnx."
        ) from None
    import torch

    network = load(source)

    def probabilities(x: Floats) -> Floats:
        with torch.inference_mode():
            return softmax(network(torch.from_numpy(x)).numpy())

    card = network.card
    return Classifier(distinct(card.classes, source), Preprocessing.from_dict(card.preprocessing), probabilities)


def _onnx(path: Path) -> Classifier:
    network = OnnxNetwork(path)
    return Classifier(network.classes, network.preprocessing, network.predict)


# -- inputs -----------------------------------------------------------------------------------------------------------


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name too long, a loop of links: reading it will say so
        return False


def images_below(folder: Path, recursive: bool = True) -> Iterator[_Item]:
    """Image files of a folder in sorted order, read as they are asked for; hidden ones and linked folders are left."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda e: e.name)
    except OSError as error:
        yield _Item(str(folder), error=f"the folder cannot be listed: {reason(error)}")
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = Path(entry.path)
        if _is_folder(path):
            if recursive and not entry.name.startswith("__") and not entry.is_symlink():
                yield from images_below(path, recursive)
        elif path.suffix.lower() in SUFFIXES:
            yield _Item(entry.path, path)


def _named(text: str, recursive: bool) -> Iterator[_Item]:
    """What the user named; it has to be there and to be an image, which is checked at once."""
    from PIL import Image

    path = Path(text)
    try:
        path.stat()
    except (OSError, ValueError) as error:
        why = "" if isinstance(error, FileNotFoundError) else f" ({reason(error)})"
        raise TailorError(f"There is no image file or folder '{text}'{why}.") from None
    if path.is_dir():
        items = images_below(path, recursive)
        first = next(items, None)
        if first is None:
            where = "in or below" if recursive else "in"
            raise TailorError(f"There are no images {where} '{text}'; known endings: {', '.join(SUFFIXES)}.")
        return chain([first], items)
    if not path.is_file():
        raise TailorError(f"'{text}' is neither a file nor a folder.")
    try:
        with Image.open(path):  # reads the header only
            return iter([_Item(text, path)])
    except Exception as error:  # decoders raise whatever they like on broken files
        raise TailorError(f"Cannot read '{text}' as an image: {reason(error)}.") from None


def _listed(lines: Iterable[bytes], recursive: bool) -> Iterator[_Item]:
    """Paths one a line, as they arrive; a missing one becomes a row, for the list may be long and come from a pipe."""
    for line in lines:
        text = os.fsdecode(line.rstrip(b"\r\n"))
        if not text:
            continue
        path = Path(text)
        if _is_folder(path):
            yield from images_below(path, recursive)
        else:
            yield _Item(text, path)


def _has_signature(head: bytes) -> bool:
    """Whether a format Pillow knows may begin like this."""
    from PIL import Image

    Image.init()
    for _, accept in Image.OPEN.values():
        try:
            if accept is not None and accept(head):
                return True
        except Exception:  # a plugin may trip over a short beginning
            continue
    return False


def _opens(data: bytes) -> bool:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)):
            return True
    except Exception:  # as above
        return False


def _standard_input(stdin: BinaryIO, recursive: bool) -> Iterator[_Item]:
    """One image's bytes or a list of paths, told apart by content; no path holds a zero byte."""
    head = stdin.read(16)  # what Pillow's signatures look at
    if not head.strip():
        raise TailorError("Standard input is empty; give it the bytes of one image, or paths, one a line.")
    if b"\0" in head or _has_signature(head):
        head += stdin.read()
        if b"\0" in head or _opens(head):  # a path may begin as an image does: "BMW/1.jpg" as a bitmap, "P1/" as PNM
            return iter([_Item(STDIN, head)])
    begun = (head if head.endswith(b"\n") else head + stdin.readline()).split(b"\n")
    return _listed(chain(begun, stdin), recursive)


def _items(inputs: Sequence[str], recursive: bool, stdin: BinaryIO | None) -> Iterator[_Item]:
    """Everything to predict, in order; mistakes in what was named are raised here and now."""
    if not inputs:
        raise TailorError("Nothing to predict: name image files, folders, or - for standard input.")
    if inputs.count(STDIN) > 1:
        raise TailorError("Standard input (-) can be read once only.")
    parts = [_named(text, recursive) if text != STDIN else iter(()) for text in inputs]
    if STDIN in inputs:
        parts[inputs.index(STDIN)] = _standard_input(stdin or sys.stdin.buffer, recursive)
    return chain.from_iterable(parts)


# -- answers ----------------------------------------------------------------------------------------------------------


def predict(
    source: str | Path,
    inputs: str | Path | Iterable[str | Path],
    *,
    batch: int = BATCH,
    recursive: bool = True,
    stdin: BinaryIO | None = None,
) -> Iterator[Prediction]:
    """Predictions of image files, of folders' images (sorted) and of ``-``, in the order given.

    What is named has to exist and be an image, else an error comes before anything is predicted; an unreadable image
    found in a folder or a list becomes a prediction with an error. One batch is in memory at a time.
    """
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise TailorError(f"The batch must be a whole number of at least 1, not {batch}.")
    names = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    classifier = open_classifier(source)
    return _answers(classifier, _items([str(n) for n in names], recursive, stdin), batch)


def _answers(classifier: Classifier, items: Iterator[_Item], batch: int) -> Iterator[Prediction]:
    def read(item: _Item) -> Floats | str:
        if item.source is None:
            return item.error or "cannot be read"
        try:
            source = io.BytesIO(item.source) if isinstance(item.source, bytes) else item.source
            return prepare(source, classifier.preprocessing)
        except TailorError as error:
            return reason(error.__cause__) if isinstance(error.__cause__, Exception) else "no such file"
        except (OSError, ValueError) as error:  # a listed name no file can have
            return reason(error)

    with ThreadPoolExecutor(min(16, usable_cores()), thread_name_prefix="tailorvit-decode") as pool:
        while group := list(islice(items, batch)):
            read_ones = list(pool.map(read, group))
            arrays = [x for x in read_ones if not isinstance(x, str)]
            scores = iter(classifier.probabilities(np.stack(arrays)) if arrays else ())
            for item, x in zip(group, read_ones):
                yield Prediction(item.name, error=x) if isinstance(x, str) else _ranked(item, classifier, next(scores))


def _ranked(item: _Item, classifier: Classifier, scores: Floats) -> Prediction:
    if not np.isfinite(scores).all():
        return Prediction(item.name, error="the network's answer is not a number")
    order = np.argsort(-scores, kind="stable").tolist()
    return Prediction(item.name, {classifier.classes[i]: float(scores[i]) for i in order})


# -- writers ----------------------------------------------------------------------------------------------------------


def _put(out: TextIO, text: str) -> None:
    """Write; what the stream's encoding lacks is spelled out rather than fatal."""
    code = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(code, "backslashreplace").decode(code))


def _shown(text: str) -> str:
    """A name on one line: line breaks and terminal codes are spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def write_text(rows: Iterable[Prediction], top: int, out: TextIO) -> None:
    """``name: label 97.1 %, label 2.0 %`` for a person."""
    for row in rows:
        best = ", ".join(f"{_shown(label)} {100 * p:.1f} %" for label, p in row.top(top).items())
        _put(out, f"{_shown(row.name)}: {best if row.error is None else f'error: {_shown(row.error)}'}\n")


def write_json(rows: Iterable[Prediction], top: int, out: TextIO) -> None:
    """A list of ``{"file", "classes", "error"}``, one a line."""
    before = "["
    for row in rows:
        _put(out, f"{before}\n {json.dumps({'file': row.name, 'classes': row.top(top), 'error': row.error})}")
        before = ","
    out.write("[]\n" if before == "[" else "\n]\n")


def write_csv(rows: Iterable[Prediction], top: int, out: TextIO) -> None:
    """``file,rank,label,probability,error``: a line for each class kept, or one with the error."""
    header = ("file", "rank", "label", "probability", "error")
    lines = ((row.name, *cells) for row in rows for cells in _cells(row, top))
    for line in chain([header], lines):
        text = io.StringIO()
        # Python 3.11 quotes a lone carriage return only if the line end holds one; so it does until the line is made.
        csv.writer(text, lineterminator="\r\n").writerow(line)
        _put(out, text.getvalue()[:-2] + "\n")


def _cells(row: Prediction, top: int) -> Iterator[tuple[Any, ...]]:
    if row.error is not None:
        yield "", "", "", row.error
    for rank, (label, p) in enumerate(row.top(top).items(), 1):
        yield rank, label, f"{p:.6g}", ""


WRITERS: Mapping[str, Callable[[Iterable[Prediction], int, TextIO], None]] = {
    "text": write_text,
    "json": write_json,
    "csv": write_csv,
}


def run_predict(
    source: str | Path,
    inputs: Sequence[str | Path],
    format: str,
    top: int,
    out_stream: TextIO,
    *,
    batch: int = BATCH,
    recursive: bool = True,
    stdin: BinaryIO | None = None,
    err_stream: TextIO | None = None,
) -> int:
    """Predict and write; 0, or 1 where some images could not be read (they have rows, and a last word on stderr)."""
    if format not in WRITERS:
        raise unknown("output format", format, WRITERS)
    if isinstance(top, bool) or not isinstance(top, int) or top < 0:
        raise TailorError(f"The number of classes to print must be 0 (all) or more, not {top}.")
    rows = predict(source, inputs, batch=batch, recursive=recursive, stdin=stdin)
    failed = total = 0

    def counted() -> Iterator[Prediction]:
        nonlocal failed, total
        for row in rows:
            total += 1
            failed += row.error is not None
            yield row

    WRITERS[format](counted(), top, out_stream)
    if failed:
        _put(err_stream or sys.stderr, f"tailorvit: {failed} of {total} images could not be read.\n")
    return 1 if failed else 0
