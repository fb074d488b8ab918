"""Arrays to images and labels: shapes, types and values checked, every fault named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailorvit.data.images import Pixels
from tailorvit.data.pools import ArrayPool
from tailorvit.data.splits import Ints
from tailorvit.errors import TailorError

Array = NDArray[Any]
_SPELLINGS = (("{}_x", "{}_y"), ("x_{}", "y_{}"), ("{}_images", "{}_labels"))
_WHOLE = (("x", "y"), ("images", "labels"), ("data", "labels"))


def load_array(path: Path) -> Any:
    """np.load without pickle: an array, or the members of a .npz file."""
    try:
        return np.load(path, allow_pickle=False)
    except Exception as error:  # numpy raises ValueError, OSError, EOFError or BadZipFile for a foreign file
        raise TailorError(f"'{path}' is not a numpy file of plain numbers; pickled objects are not loaded.") from error


def to_images(raw: Array, where: str) -> Pixels:
    """uint8 (N, C, H, W) from (N, H, W), (N, H, W, C) or (N, C, H, W)."""
    if raw.ndim == 3:
        raw = raw[:, None]
    elif raw.ndim == 4 and raw.shape[3] in (1, 3) and raw.shape[1] not in (1, 3):
        raw = raw.transpose(0, 3, 1, 2)
    if raw.ndim != 4 or raw.shape[1] not in (1, 3) or 0 in raw.shape:
        raise TailorError(
            f"{where} has shape {raw.shape}; images need (N, H, W), (N, H, W, C) or (N, C, H, W) with C 1 or 3."
        )
    if raw.dtype == np.uint8:
        return np.ascontiguousarray(raw)
    if raw.dtype.kind not in "biuf":
        raise TailorError(f"{where} has shape {raw.shape} and type {raw.dtype}; images need uint8 or float.")
    if raw.dtype.kind == "b":
        return np.ascontiguousarray(raw, dtype=np.uint8) * np.uint8(255)
    if not np.isfinite(raw).all():
        raise TailorError(f"{where} holds NaN or infinite values.")
    low, high = float(raw.min()), float(raw.max())
    sixteen = raw.dtype == np.uint16 and high > 255
    if low < 0 or (high > 255 and not sixteen):
        raise TailorError(f"{where} holds values from {low:g} to {high:g}; images need 0..1 or 0..255.")
    scale = 1 / 257 if sixteen else 255 if raw.dtype.kind == "f" and high <= 1 else 1
    out = np.empty(raw.shape, np.uint8)
    for at in range(0, len(raw), 4096):
        out[at : at + 4096] = np.rint(raw[at : at + 4096].astype(np.float32) * scale)
    return out


def to_labels(raw: Array, images: Pixels, where: str) -> Ints:
    """int64 (N,) from whole numbers of shape (N,) or (N, 1)."""
    if raw.ndim == 2 and raw.shape[1] == 1:
        raw = raw[:, 0]
    if raw.dtype.kind == "f" and np.array_equal(raw, np.rint(raw)):  # as spreadsheets write them
        raw = raw.astype(np.int64)
    if raw.dtype.kind not in "iu" or raw.ndim != 1:
        raise TailorError(f"{where} has shape {raw.shape} and type {raw.dtype}; labels need whole numbers, shape (N,).")
    if len(raw) != len(images):
        raise TailorError(f"{where} has {len(raw)} labels for images of shape {images.shape}.")
    return raw.astype(np.int64)


def array_pool(parts: Mapping[str, tuple[Array, Array]], where: str, names: Sequence[str] | None = None) -> ArrayPool:
    """A pool from (images, labels) per part: "all", or "train" with "val", "test" or both."""
    digest = hashlib.sha256()
    images: list[Pixels] = []
    labels: list[Ints] = []
    origin: list[str] = []
    for part, (raw_x, raw_y) in parts.items():
        x = to_images(np.asarray(raw_x), f"The image array of {where} ({part})")
        y = to_labels(np.asarray(raw_y), x, f"The label array of {where} ({part})")
        if images and x.shape[1:] != images[0].shape[1:]:
            raise TailorError(f"The {part} images of {where} have shape {x.shape}, the first ones {images[0].shape}.")
        digest.update(f"{part}{x.shape}".encode())
        digest.update(x.data)
        digest.update(y.data)
        images.append(x)
        labels.append(y)
        origin += [part] * len(x)
    values, index = np.unique(np.concatenate(labels), return_inverse=True)
    if names is None:
        classes = [str(v) for v in values]
    elif values[0] >= 0 and values[-1] < len(names):
        classes = [names[v] for v in values]
    elif len(names) == len(values) and values[0] == 1 and values[-1] == len(names):
        classes = list(names)  # labels counted from one
    else:
        raise TailorError(
            f"{where} names {len(names)} classes, but its labels run from {values[0]} to {values[-1]}; name n classes "
            "for labels from 0 to n - 1, or none."
        )
    return ArrayPool(
        np.concatenate(images) if len(images) > 1 else images[0],
        classes=classes,
        labels=index.astype(np.int64),
        origin=np.asarray(origin),
        fingerprint=digest.hexdigest(),
    )


def named_arrays(have: Collection[str], get: Callable[[str], Array], where: str) -> ArrayPool:
    """A pool from arrays with the usual names: x and y, or train_x, train_y, test_x, ... in any common spelling."""
    pairs = {p: [(x.format(p), y.format(p)) for x, y in _SPELLINGS] for p in ("train", "val", "test")}
    found: dict[str, tuple[Array, Array]] = {}
    for part, spellings in {**pairs, "all": list(_WHOLE)}.items():
        for x, y in spellings:
            if x not in have or part in found:
                continue
            if y not in have:
                raise TailorError(f"{where} has the images '{x}' but not their labels '{y}'.")
            found[part] = (get(x), get(y))
    if "train" not in found and "all" not in found:
        raise TailorError(
            f"{where} needs arrays named x and y, or train_x and train_y, not {', '.join(sorted(have)) or 'none'}."
        )
    if "train" in found:
        found.pop("all", None)
    names = get("classes") if "classes" in have else None
    parts = {"all": found["train"]} if set(found) == {"train"} else found if "train" in found else {"all": found["all"]}
    return array_pool(parts, where, None if names is None else [str(n) for n in names])
