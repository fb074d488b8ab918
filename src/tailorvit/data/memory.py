"""Images that are given as Python objects: arrays, a torch Dataset, a DataFrame, a data set of Hugging Face.

They are written to files, which are read like any other data: so the same images give the same splits by every door,
and a run keeps a copy from which it is resumed.
"""

from __future__ import annotations

import atexit
import csv
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailorvit.data.images import ImageSet
from tailorvit.data.sources import (
    IN_MEMORY,
    KEPT,
    KEPT_TABLE,
    Array,
    from_arrays,
    kept_source,
    read_source,
)
from tailorvit.errors import TailorError
from tailorvit.portable import from_array, is_grey

FORMS = (
    "a path, a pair of arrays or tensors (images, labels), a mapping of arrays named as in a .npz file, a torch "
    "Dataset of (image, label), a pandas DataFrame of files and classes, or a data set of Hugging Face"
)
_HELD: dict[str, Path] = {}  # key -> folder of this process


def source_of(data: Any) -> str:
    """The text of a source for data in any form; objects are written to files that last as long as the process."""
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    write = _writer(data)
    folder = Path(tempfile.mkdtemp(prefix="tailorvit-data-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write(folder / KEPT)
    kept = kept_source(folder / KEPT)
    assert kept is not None
    key = hashlib.sha256(read_source(kept).fingerprint.encode()).hexdigest()[:16]
    _HELD[key] = folder / KEPT
    return IN_MEMORY + key


def keep_copy(source: str, run: Path) -> None:
    """Put a copy of data that were given as objects into a run's folder."""
    if not source.startswith(IN_MEMORY) or (run / KEPT).exists():
        return
    place = _folder(source.removeprefix(IN_MEMORY))
    part = run / f".{KEPT}.tmp"
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(place, part)
    part.rename(run / KEPT)


def _folder(key: str) -> Path:
    if key not in _HELD:
        raise TailorError(
            f"'{IN_MEMORY}{key}' stands for data that another process had in memory; give the data again, or go on "
            "with the run that keeps a copy of them: tailorvit resume RUN."
        )
    return _HELD[key]


def read_held(key: str) -> ImageSet:
    """The images of data that this process was given as objects."""
    kept = kept_source(_folder(key))
    assert kept is not None
    return read_source(kept)


# -- one function for each form ---------------------------------------------------------------------------------------


def _writer(data: Any) -> Callable[[Path], None]:
    """What writes data of this form into a new folder."""
    if hasattr(data, "save_to_disk"):
        return lambda folder: _write_hugging_face(data, folder)
    if hasattr(data, "to_csv") and hasattr(data, "columns"):
        return lambda folder: _write_table(data, folder)
    if isinstance(data, Mapping):
        return lambda folder: _write_arrays({str(k): _array(v) for k, v in data.items()}, folder)
    if isinstance(data, Sequence) and len(data) == 2 and not isinstance(data[0], tuple | list):
        return lambda folder: _write_arrays({"x": _array(data[0]), "y": _array(data[1])}, folder)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return lambda folder: _write_items(data, folder)
    raise TailorError(f"Data of the type {type(data).__name__} cannot be read; it can be: {FORMS}.")


def _array(values: Any) -> Array:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if values.is_floating_point():
            values = values.float()  # numpy knows no bfloat16
    array = np.asarray(values)
    if array.dtype == object:
        raise TailorError(f"The data hold an array of Python objects ({type(values).__name__}), not of numbers.")
    return array


def _write_arrays(arrays: Mapping[str, Array], folder: Path) -> None:
    """As a folder of .npy files, by the names that data/sources.py reads; labels may be words."""
    usual = {"x": "train_x", "y": "train_y", "images": "train_x", "labels": "train_y"}
    whole = not any("train" in name for name in arrays)
    named = {usual.get(name, name) if whole else name: array for name, array in arrays.items()}
    words = [name for name, array in named.items() if array.dtype.kind in "US" and name != "classes"]
    if words:
        classes = sorted({str(word) for name in words for word in named[name].tolist()})
        number = {name: i for i, name in enumerate(classes)}
        named |= {name: np.asarray([number[str(w)] for w in named[name].tolist()], np.int64) for name in words}
        named["classes"] = np.asarray(classes)
    folder.mkdir()
    for name, array in named.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)


def _write_table(frame: Any, folder: Path) -> None:
    """As a CSV file whose paths are whole, since it lies elsewhere than its user's folder."""
    from tailorvit.data.table import FILE_COLUMNS

    columns = [name for name in frame.columns if str(name).lower() in FILE_COLUMNS]
    if len(columns) != 1:
        which = ", ".join(map(str, columns or frame.columns))
        raise TailorError(
            f"The DataFrame needs one column of image files, called {', '.join(FILE_COLUMNS[:4])} or the like; it has "
            f"{which}."
        )
    folder.mkdir()
    whole = [str(Path(str(name)).expanduser().absolute()) for name in frame[columns[0]]]
    frame.assign(**{str(columns[0]): whole}).to_csv(folder / KEPT_TABLE, index=False)


def _write_hugging_face(data: Any, folder: Path) -> None:
    data.save_to_disk(str(folder))


def _write_items(data: Any, folder: Path) -> None:
    """Images of one size as arrays, others as files; either way without loss."""
    images: list[Array] = []
    labels: list[int] = []
    for i in range(len(data)):
        item = data[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise TailorError(f"Item {i} of the data set is a {type(item).__name__}, not a pair (image, label).")
        try:
            labels.append(int(item[1]))
        except (TypeError, ValueError):
            raise TailorError(f"Item {i} of the data set has the label {item[1]!r}, not a class number.") from None
        images.append(_pixels(item[0], i))
    if not images:
        raise TailorError("The data set is empty.")
    names = getattr(data, "classes", None)
    names = [str(n) for n in names] if isinstance(names, list | tuple) else None
    if len({image.shape for image in images}) == 1:
        arrays: dict[str, Array] = {"x": np.stack(images), "y": np.asarray(labels)}
        from_arrays({"all": (arrays["x"], arrays["y"])}, "the data set", names)  # its messages name the data set
        _write_arrays({**arrays, **({} if names is None else {"classes": np.asarray(names)})}, folder)
        return
    width = len(str(max(labels)))
    called = [f"{label:0{width}d}" if names is None else names[label] for label in labels]
    folder.mkdir()
    with (folder / KEPT_TABLE).open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("file", "label"))
        for i, (image, name) in enumerate(zip(images, called)):
            from_array(image).save(folder / f"{i:08d}.png")
            rows.writerow((f"{i:08d}.png", name))


def _pixels(image: Any, number: int) -> Array:
    """An item's image as rows, columns and channels."""
    from PIL import Image

    if isinstance(image, Image.Image):
        return np.asarray(image if image.mode in ("L", "RGB") else image.convert("L" if is_grey(image) else "RGB"))
    array = _array(image)
    array = array.transpose(1, 2, 0) if array.ndim == 3 and array.shape[0] in (1, 3) else array
    array = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
        raise TailorError(f"Item {number} of the data set has an image of shape {array.shape}; channels are 1 or 3.")
    return array
