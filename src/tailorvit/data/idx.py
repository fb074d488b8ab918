"""MNIST's own file form: a head with type and shape, then the bytes; plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from tailorvit.data.arrays import Array, array_pool
from tailorvit.data.pools import Pool
from tailorvit.errors import TailorError

FASHION = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package dataset-fashion-mnist puts it
_PARTS = {"train": "train", "test": "t10k"}
_CLOTHES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def open_idx(root: Path) -> Pool | None:
    """The four files of MNIST, Fashion-MNIST or their kin in a folder; None for another kind of folder."""
    if _file(root, "train-images-idx3-ubyte") is None:
        return None
    parts = {}
    for part, prefix in _PARTS.items():
        found = [_file(root, f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")]
        if None in found:
            raise TailorError(f"'{root}' holds MNIST training images but not {prefix}-images and {prefix}-labels.")
        images, labels = (_read(path) for path in found if path is not None)
        parts[part] = (images, labels)
    return array_pool(parts, f"'{root}'", _CLOTHES if "fashion" in root.name.lower() else None)


def open_fashion() -> Pool:
    """Fashion-MNIST from Debian's package."""
    pool = open_idx(FASHION)
    if pool is None:
        raise TailorError(
            f"'fashion-mnist' is read from {FASHION}, which is not there; install Debian's dataset-fashion-mnist, "
            "or give the folder that holds train-images-idx3-ubyte.gz."
        )
    return pool


def _file(root: Path, name: str) -> Path | None:
    return next((p for p in (root / name, root / f"{name}.gz") if p.is_file()), None)


def _read(path: Path) -> Array:
    """The array of one file: two zero bytes, type 8 (bytes), dimensions, a big-endian size each, then the values."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise TailorError(f"'{path}' cannot be read: {error}.") from None
    rank = raw[3] if len(raw) > 4 and raw[:3] == b"\0\0\x08" else 0
    shape = np.frombuffer(raw, ">i4", rank, 4) if len(raw) >= 4 + 4 * rank else np.empty(0, np.int64)
    body = len(raw) - 4 - 4 * rank
    if not rank or not len(shape) or int(np.prod(shape.astype(np.int64))) != body:
        raise TailorError(f"'{path}' is not a whole file of bytes in MNIST's form.")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(tuple(shape.tolist()))
