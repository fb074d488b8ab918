"""Sources: from the word a person gives for their data to a pool of images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tailorvit.data.arrays import Array, array_pool, load_array, named_arrays
from tailorvit.data.folder import open_folder
from tailorvit.data.idx import open_fashion, open_idx
from tailorvit.data.pools import Pool
from tailorvit.data.vision import no_pickle, open_torchvision
from tailorvit.errors import TailorError

_KINDS = "a folder, a .npz or .npy file, 'digits', 'fashion-mnist' or 'torchvision:NAME@ROOT'"
_CIFAR = {"cifar-10-batches-bin": 1, "cifar-100-binary": 2}  # folder to label bytes per record


def open_digits() -> Pool:
    """scikit-learn's 1,797 digits of 8 x 8, which travel inside its wheel."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    return array_pool({"all": (images, digits.target)}, "digits")


def _cifar_records(files: list[Path], label_bytes: int) -> tuple[Array, Array]:
    raw = b"".join(f.read_bytes() for f in files)
    width = label_bytes + 3072
    if not raw or len(raw) % width:
        raise TailorError(f"'{files[0].parent}' is not CIFAR: {len(raw)} bytes are not whole records of {width}.")
    table = np.frombuffer(raw, np.uint8).reshape(-1, width)
    return table[:, label_bytes:].reshape(-1, 3, 32, 32), table[:, label_bytes - 1].astype(np.int64)


def _cifar(root: Path) -> Pool | None:
    """CIFAR-10 or CIFAR-100 in its binary form; None for another kind of folder."""
    for folder in (root, *(root / name for name in _CIFAR)):
        ten = sorted(folder.glob("data_batch_*.bin"))
        train, test = (ten, folder / "test_batch.bin") if ten else ([folder / "train.bin"], folder / "test.bin")
        if not train[0].is_file():
            continue
        if not test.is_file():
            raise TailorError(f"'{folder}' holds CIFAR training batches but no {test.name}.")
        parts = {k: _cifar_records(f, 1 if ten else 2) for k, f in (("train", train), ("test", [test]))}
        words = folder / ("batches.meta.txt" if ten else "fine_label_names.txt")
        return array_pool(parts, f"'{folder}'", words.read_text().split() if words.is_file() else None)
    for folder in (root, root / "cifar-10-batches-py", root / "cifar-100-python"):
        if (folder / "data_batch_1").is_file() or all((folder / f).is_file() for f in ("train", "test", "meta")):
            raise no_pickle(f"'{folder}'")
    return None


def _npy(path: Path) -> Pool:
    """One array of images, its labels beside it."""
    stems = [f"{path.stem}_y", *([path.stem[:-2] + "_y"] if path.stem.endswith("_x") else []), "y"]
    for stem in stems:
        labels = path.with_name(f"{stem}.npy")
        if labels.is_file() and labels != path:
            return array_pool({"all": (load_array(path), load_array(labels))}, f"'{path}'")
    raise TailorError(f"'{path}' has no labels; put them beside it as {' or '.join(f'{s}.npy' for s in stems)}.")


def place_of(source: str) -> str | None:
    """Where a file or folder lies, whatever the folder of work; None for data by name."""
    return str(Path(source).absolute()) if Path(source).exists() else None


def found_again(source: str, info: Mapping[str, Any]) -> str:
    """A run's source as it was typed, or where that lay: a run may go on from another folder than it began in."""
    place = (info.get("data") or {}).get("path")
    return place if place and not Path(source).exists() and Path(place).exists() else source


def find(source: str) -> Pool:
    """The pool behind a source."""
    if source == "digits":
        return open_digits()
    if source == "fashion-mnist":
        return open_fashion()
    if source.startswith("torchvision:"):
        return open_torchvision(source.removeprefix("torchvision:"))
    path = Path(source).expanduser()
    if path.is_dir():
        arrays = {p.stem: p for p in path.glob("*.npy")}
        if arrays.keys() & {"train_x", "x_train"}:
            return named_arrays(arrays.keys(), lambda name: load_array(arrays[name]), f"'{path}'")
        return _cifar(path) or open_idx(path) or open_folder(path)
    if not path.exists():
        raise TailorError(f"There is no '{source}'; give {_KINDS}.")
    if path.suffix == ".npy":
        return _npy(path)
    if path.suffix == ".npz":
        with load_array(path) as members:

            def get(name: str) -> Array:
                try:
                    return np.asarray(members[name])
                except ValueError as error:
                    raise no_pickle(f"'{name}' in '{path}'") from error

            return named_arrays(members.files, get, f"'{path}'")
    raise TailorError(f"'{source}' is a '{path.suffix}' file; give {_KINDS}.")
