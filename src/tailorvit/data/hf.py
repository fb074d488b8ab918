"""Data sets of the library datasets: from its hub or its cache, or a folder that it saved; mapped from disk."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tailorvit.data.images import LazyImageSet
from tailorvit.data.shard_files import library
from tailorvit.data.shard_index import LABEL_COLUMNS, choose_column, label_numbers
from tailorvit.data.shards import named_columns, read_headers
from tailorvit.data.sources import DataSource, named_classes, split_of_name
from tailorvit.errors import TailorError
from tailorvit.portable import reason
from tailorvit.texts import shown
from tailorvit.trunks.libraries import load_model

if TYPE_CHECKING:
    from PIL import Image


def read_hf(text: str) -> LazyImageSet:
    """The images of NAME, NAME:CONFIG or a saved folder; ?image=NAME&label=NAME after it names the columns."""
    place, columns = named_columns(text)
    where = f"'{shown(place)}'"
    datasets = library("datasets", f"Reading {where}", "hf")
    parts, notes = _parts(_loaded(datasets, place), where)
    features = next(iter(parts.values())).features
    image, label = _columns(datasets, features, columns, place)
    counts = [len(data) for data in parts.values()]
    numbers, words = label_numbers([v for data in parts.values() for v in _values(data, label)], where)
    origin, row = np.repeat(list(parts), counts), np.concatenate([np.arange(n) for n in counts])
    bare = [part for part in parts if (numbers[origin == part] < 0).all()]
    if set(bare) & {"all", "train"}:
        raise TailorError(f"The column '{label}' of {where} holds no labels.")
    notes += [f"The {part} images have no labels and are not used." for part in bare]
    used = ~np.isin(origin, bare)
    kept, lacking = np.flatnonzero(used & (numbers >= 0)), np.flatnonzero(used & (numbers < 0))
    values, labels = np.unique(numbers[kept], return_inverse=True)
    classes = named_classes(values, words or getattr(features[label], "names", None), where)
    plain = {part: _undecoded(datasets, data, image) for part, data in parts.items()}

    def opener(i: int) -> Image.Image:
        at = kept[i]
        return _opened(plain[str(origin[at])][int(row[at])][image])

    names = [f"{part}[{at}]" for part, at in zip(origin[lacking].tolist(), row[lacking].tolist())]
    of, ids = origin[kept], np.arange(len(kept))
    sides, channels = read_headers(opener, np.zeros_like(ids), ids[of != "test"], where)
    digest = hashlib.sha256("\0".join(classes).encode("utf-8", "surrogateescape"))
    for part in parts:
        digest.update(f"{part} {len(parts[part])} {plain[part].data.nbytes}\n".encode())
    digest.update(labels.astype("<i8").tobytes())
    return LazyImageSet(
        opener,
        sides,
        True,
        classes=classes,
        labels=labels.astype(np.int64),
        origin=np.full(len(of), "all") if (of == "train").all() else of,
        fingerprint=digest.hexdigest(),
        channels=channels,
        skipped=[(name, "it has no label") for name in names],
        notes=notes,
    )


def _loaded(datasets: Any, place: str) -> Any:
    """A data set, or several by split. Code of a data set is never run: the library reads files only."""
    if Path(place).is_dir():
        try:
            return datasets.load_from_disk(place)
        except Exception as error:  # Arrow's errors among others
            raise TailorError(f"'{shown(place)}' cannot be read as a saved data set: {reason(error)}.") from error
    name, _, config = place.partition(":")
    otherwise = (
        "give the NAME or NAME:CONFIG of a data set on the hub, or a folder that save_to_disk wrote; what is larger "
        f"than the disk is read as shards:hf://datasets/{name}"
    )
    return load_model(f"hf:{place}", otherwise, lambda: datasets.load_dataset(name, config or None))


def _parts(loaded: Any, where: str) -> tuple[dict[str, Any], list[str]]:
    """The data sets by part, and a note on splits that are none of them."""
    if not isinstance(loaded, Mapping):
        return {"all": loaded}, []
    parts: dict[str, Any] = {}
    for name, data in loaded.items():
        part = split_of_name(name)
        if part in parts:
            raise TailorError(f"{where} has two splits for {part}: {', '.join(loaded)}.")
        if part is not None and len(data):
            parts[part] = data
    if "train" not in parts:
        raise TailorError(f"{where} has the splits {', '.join(loaded)}, and none with images is called train.")
    others = [name for name in loaded if split_of_name(name) is None]
    return parts, [f"The split '{shown(name)}' of {where} is not used." for name in others]


def _columns(datasets: Any, features: Any, columns: Mapping[str, str], place: str) -> tuple[str, str]:
    """The names of the image column and of the label column."""
    images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    binary = [name for name, feature in features.items() if getattr(feature, "dtype", "") in ("binary", "large_binary")]
    labels = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    usual = [name for name in features if name.lower() in LABEL_COLUMNS]
    names = list(features)
    image = choose_column("image", columns, images or binary, names, place)
    return image, choose_column("label", columns, labels or usual, names, place)


def _values(data: Any, column: str) -> list[Any]:
    """A whole column as plain values."""
    found: list[Any] = data.select_columns([column]).with_format("arrow")[:].column(0).to_pylist()
    return found


def _undecoded(datasets: Any, data: Any, image: str) -> Any:
    """The image column alone, as bytes or paths."""
    only = data.select_columns([image]).with_format(None)
    as_image = isinstance(data.features[image], datasets.Image)
    return only.cast_column(image, datasets.Image(decode=False)) if as_image else only


def _opened(value: Any) -> Image.Image:
    """An image from its bytes, or from the file that a data set names instead."""
    from PIL import Image

    data, path = (value.get("bytes"), value.get("path")) if isinstance(value, Mapping) else (value, None)
    if data is not None:
        return Image.open(io.BytesIO(data))
    if path is None:
        raise OSError("the data set holds no bytes for it")
    return Image.open(path)


def _is_saved(path: Path) -> bool:
    """Whether save_to_disk wrote a folder."""
    return (path / "dataset_dict.json").is_file() or all(
        (path / name).is_file() for name in ("state.json", "dataset_info.json")
    )


HF = DataSource(
    "hf",
    "a data set of the library datasets: by name from its hub or cache, or saved to disk",
    read_hf,
    "hf:NAME[:CONFIG], or a folder that save_to_disk wrote",
    _is_saved,
)
