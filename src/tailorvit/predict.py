"""Predictions for image files: from a run, a network folder or an ONNX file; as text, JSON or CSV."""

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
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import numpy as np

from tailorvit.errors import TailorError, unknown
from tailorvit.portable import (
    HUB,
    SUFFIXES,
    Floats,
    OnnxNetwork,
    Preprocessing,
    distinct,
    image_files,
    is_folder,
    prepare,
    reason,
    softmax,
    usable_cores,
)
from tailorvit.texts import shown

if TYPE_CHECKING:
    from PIL import Image

STDIN = "-"
BATCH = 64


@dataclass(frozen=True)
class Prediction:
    """One image's class probabilities, most probable first; empty where ``error`` says why."""

    name: str
    probabilities: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    def top(self, count: int) -> dict[str, float]:
        """The most probable classes; 0 means all."""
        return dict(islice(self.probabilities.items(), count or None))


@dataclass(frozen=True)
class Classifier:
    """A network as one function: prepared images (n, C, H, W) to probabilities (n, classes)."""

    classes: tuple[str, ...]
    preprocessing: Preprocessing
    probabilities: Callable[[Floats], Floats]


@dataclass(frozen=True)
class Item:
    """One image to classify: a file, its bytes or the image itself; or the reason why it cannot be read."""

    name: str
    source: Path | bytes | Image.Image | None = None
    error: str | None = None


# -- networks ---------------------------------------------------------------------------------------------------------


def load_classifier(source: str | Path) -> Classifier:
    """The network of a run folder, a network folder, hf:USER/NAME, FILE.onnx, or a folder of network.onnx alone."""
    place = Path(source)
    inside = place / "network.onnx"
    on_hub = place.as_posix().startswith(HUB)  # its name may end in anything
    if place.is_file() and place.suffix.lower() != ".onnx":
        raise TailorError(
            f"'{source}' is not a network: give a run folder, a network folder or a file ending in .onnx."
        )
    if place.suffix.lower() == ".onnx" and not on_hub and not place.is_dir():
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


def classify(classifier: Classifier, items: Iterator[Item], batch: int = BATCH) -> Iterator[tuple[Item, Floats | str]]:
    """Each item with its class probabilities, or with the reason why it has none; one batch is in memory at a time."""

    def read(item: Item) -> Floats | str:
        if item.source is None:
            return item.error or "cannot be read"
        try:
            source = io.BytesIO(item.source) if isinstance(item.source, bytes) else item.source
            return prepare(source, classifier.preprocessing)
        except TailorError as error:
            return reason(error.__cause__) if isinstance(error.__cause__, Exception) else "no such file"
        except (OSError, ValueError) as error:  # a name in a list that no file can have
            return reason(error)

    with ThreadPoolExecutor(min(16, usable_cores()), thread_name_prefix="tailorvit-decode") as threads:
        while group := list(islice(items, batch)):
            prepared = list(threads.map(read, group))
            arrays = [x for x in prepared if not isinstance(x, str)]
            scores: Iterator[Floats] = iter(classifier.probabilities(np.stack(arrays)) if arrays else ())
            for item, x in zip(group, prepared):
                found = x if isinstance(x, str) else next(scores)
                bad = not isinstance(found, str) and not np.isfinite(found).all()
                yield item, "the network's output is not a number" if bad else found


# -- inputs -----------------------------------------------------------------------------------------------------------


def _folder_items(folder: Path, recursive: bool) -> Iterator[Item]:
    for path, problem in image_files(folder, recursive):
        yield Item(str(path), None if problem else path, problem)


def _argument_items(text: str, recursive: bool) -> Iterator[Item]:
    """The images of one argument; it has to exist and to be an image, which is checked at once."""
    from PIL import Image

    path = Path(text)
    try:
        path.stat()
    except (OSError, ValueError) as error:
        why = "" if isinstance(error, FileNotFoundError) else f" ({reason(error)})"
        raise TailorError(f"There is no image file or folder '{text}'{why}.") from None
    if path.is_dir():
        items = _folder_items(path, recursive)
        first = next(items, None)
        if first is None:
            where = "in or below" if recursive else "in"
            raise TailorError(f"There are no images {where} '{text}'; known endings: {', '.join(SUFFIXES)}.")
        return chain([first], items)
    if not path.is_file():
        raise TailorError(f"'{text}' is neither a file nor a folder.")
    try:
        with Image.open(path):  # reads the header only
            return iter([Item(text, path)])
    except Exception as error:  # decoders raise errors of every type on broken files
        raise TailorError(f"Cannot read '{text}' as an image: {reason(error)}.") from None


def _listed_items(lines: Iterable[bytes], recursive: bool) -> Iterator[Item]:
    """Paths, one per line, as they arrive. A missing file becomes a row, because the list may be long and piped in."""
    for line in lines:
        text = os.fsdecode(line.rstrip(b"\r\n"))
        if not text:
            continue
        path = Path(text)
        if is_folder(path):
            yield from _folder_items(path, recursive)
        else:
            yield Item(text, path)


def _has_signature(head: bytes) -> bool:
    """Whether a format that Pillow knows may begin like this."""
    from PIL import Image

    Image.init()
    for _, accept in Image.OPEN.values():
        try:
            if accept is not None and accept(head):
                return True
        except Exception:  # a Pillow plugin may fail on a short beginning
            continue
    return False


def _is_image(data: bytes) -> bool:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)):
            return True
    except Exception:  # decoders raise errors of every type
        return False


def _stdin_items(stdin: BinaryIO, recursive: bool) -> Iterator[Item]:
    """One image's bytes or a list of paths, recognised by content; no path holds a zero byte."""
    head = stdin.read(16)  # as much as Pillow's signatures need
    if not head.strip():
        raise TailorError("Standard input is empty; give it the bytes of one image, or paths, one per line.")
    if b"\0" in head or _has_signature(head):
        head += stdin.read()
        # A path may begin like an image: "BMW/1.jpg" like a bitmap, "P1/" like PNM.
        if b"\0" in head or _is_image(head):
            return iter([Item(STDIN, head)])
    begun = (head if head.endswith(b"\n") else head + stdin.readline()).split(b"\n")
    return _listed_items(chain(begun, stdin), recursive)


def _all_items(inputs: Sequence[str], recursive: bool, stdin: BinaryIO | None) -> Iterator[Item]:
    """Everything to predict, in order; mistakes in the arguments are raised here, before any prediction."""
    if not inputs:
        raise TailorError("Nothing to predict: name image files, folders, or - for standard input.")
    if inputs.count(STDIN) > 1:
        raise TailorError("Standard input (-) can be read only once.")
    parts = [_argument_items(text, recursive) if text != STDIN else iter(()) for text in inputs]
    if STDIN in inputs:
        parts[inputs.index(STDIN)] = _stdin_items(stdin or sys.stdin.buffer, recursive)
    return chain.from_iterable(parts)


# -- predictions ------------------------------------------------------------------------------------------------------


def predict(
    source: str | Path,
    inputs: str | Path | Iterable[str | Path],
    *,
    batch: int = BATCH,
    recursive: bool = True,
    stdin: BinaryIO | None = None,
) -> Iterator[Prediction]:
    """Predictions for image files, the images of folders (sorted) and ``-`` (standard input), in this order.

    Every input has to exist and be an image, else an error is raised before anything is predicted. An unreadable image
    in a folder or a list becomes a prediction with an error. One batch is in memory at a time.
    """
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise TailorError(f"The batch must be a whole number of at least 1, not {batch}.")
    names = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    classifier = load_classifier(source)
    items = _all_items([str(n) for n in names], recursive, stdin)

    def predictions() -> Iterator[Prediction]:
        for item, result in classify(classifier, items, batch):
            if isinstance(result, str):
                yield Prediction(item.name, error=result)
            else:
                order = np.argsort(-result, kind="stable").tolist()
                yield Prediction(item.name, {classifier.classes[i]: float(result[i]) for i in order})

    return predictions()


# -- writers ----------------------------------------------------------------------------------------------------------


def _put(out: TextIO, text: str) -> None:
    """Write; characters that the stream's encoding lacks are escaped."""
    code = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(code, "backslashreplace").decode(code))


def write_text(rows: Iterable[Prediction], top: int, out: TextIO) -> None:
    """``name: label 97.1 %, label 2.0 %`` for a person."""
    for row in rows:
        best = ", ".join(f"{shown(label)} {100 * p:.1f} %" for label, p in row.top(top).items())
        _put(out, f"{shown(row.name)}: {best if row.error is None else f'error: {shown(row.error)}'}\n")


def write_json(rows: Iterable[Prediction], top: int, out: TextIO) -> None:
    """A list of ``{"file", "classes", "error"}``, one per line."""
    before = "["
    for row in rows:
        _put(out, f"{before}\n {json.dumps({'file': row.name, 'classes': row.top(top), 'error': row.error})}")
        before = ","
    out.write("[]\n" if before == "[" else "\n]\n")


def write_csv(rows: Iterable[Prediction], top: int, out: TextIO) -> None:
    """``file,rank,label,probability,error``: one line per class, or one with the error."""
    header = ("file", "rank", "label", "probability", "error")
    lines = ((row.name, *cells) for row in rows for cells in _cells(row, top))
    for line in chain([header], lines):
        text = io.StringIO()
        # Python 3.11 quotes a lone carriage return only if the line ending has one, so it is cut off afterwards.
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
    question: str | None = None,
    *,
    batch: int = BATCH,
    recursive: bool = True,
    stdin: BinaryIO | None = None,
    err_stream: TextIO | None = None,
) -> int:
    """Predict and write. Returns 0, or 1 where some images could not be read; stderr then says how many.

    A task's network writes one line of JSON an image, whatever the format; one that answers needs a question.
    """
    if any((Path(source) / name).is_file() for name in ("task.json", "network/task.json")):
        from tailorvit.downstream import print_predictions

        if format == "csv":
            raise TailorError("A task's network writes JSON, one line an image; leave out --format csv.")
        more = {} if question is None else {"question": question}
        return print_predictions(source, map(str, inputs), out_stream, **more)
    if question is not None:
        raise TailorError(f"--question is for networks that answer, and '{source}' tells classes apart.")
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
