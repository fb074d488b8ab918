"""Data sources: from the text a user gives for their data to a set of images.

``SOURCES`` is the table. A source is asked for by ``NAME`` or ``NAME:REST``; one with ``recognises`` by a path.
"""

from __future__ import annotations

import difflib
import gzip
import hashlib
import inspect
import os
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailorvit.data.images import ArrayImageSet, ImageSet, LazyImageSet, Seal, seal, state_of, thread_map
from tailorvit.data.splits import Ints
from tailorvit.errors import TailorError, unknown
from tailorvit.portable import SUFFIXES, Pixels, is_grey, reason, to_image
from tailorvit.registry import Registry

if TYPE_CHECKING:
    from PIL import Image

Array = NDArray[Any]
IN_MEMORY = "memory:"  # before the key of data that were given as objects (data/memory.py)
KEPT = "data"  # the folder in a run that holds a copy of them
KEPT_TABLE = "images.csv"


@dataclass(frozen=True)
class DataSource:
    """One kind of data. ``read`` takes what follows "NAME:" (an empty string for a bare name), or the path."""

    name: str
    summary: str  # one line, for lists of sources
    read: Callable[[str], ImageSet]
    usage: str = ""  # how a user asks for it; empty: by its name; with a colon: by NAME:REST, never by its bare name
    recognises: Callable[[Path], bool] | None = None  # whether an existing file or folder is of this kind


def read_source(text: str) -> ImageSet:
    """The images that a user's text stands for."""
    if text.startswith(IN_MEMORY):
        from tailorvit.data.memory import read_held

        return read_held(text.removeprefix(IN_MEMORY))
    source, rest = find_source(text)
    images = source.read(rest)
    if not isinstance(images, ImageSet):
        raise TailorError(f"The data source '{source.name}' returned a {type(images).__name__}, not an ImageSet.")
    return images


def find_source(text: str) -> tuple[DataSource, str]:
    """The source for a user's text, and what its ``read`` takes."""
    name, colon, rest = text.partition(":")
    named = SOURCES.get(name)
    by_name = named is not None and (named.recognises is None or named.usage.startswith(f"{name}:"))
    if by_name and (colon or ":" not in named.usage):
        return named, rest
    path = Path(text).expanduser()
    choices = ", ".join(s.usage or s.name for s in SOURCES.working())
    if not path.exists():
        raise TailorError(f"There is no '{text}'; data can be: {choices}.")
    for source in SOURCES.working():
        if source.recognises is not None and source.recognises(path):
            return source, str(path)
    raise TailorError(f"'{text}' is a '{path.suffix}' file; data can be: {choices}.")


def absolute_path(text: str) -> str | None:
    """The absolute path of a file or folder, after the name of a source where there is one; None for data by name."""
    name, path = _path_in(text)
    return f"{name}{path.absolute()}" if path.exists() else None


def source_of_run(text: str, info: Mapping[str, Any], run: Path) -> str:
    """A run's data source as typed, or its recorded path: a run may be resumed from another working directory.

    Data that were given in memory are read from the copy in the run's folder.
    """
    if text.startswith(IN_MEMORY) and (kept := kept_source(run / KEPT)) is not None:
        return kept
    path = (info.get("data") or {}).get("path")
    return path if path and not _path_in(text)[1].exists() and _path_in(path)[1].exists() else text


def kept_source(folder: Path) -> str | None:
    """What stands for data that were kept as files: a table where there is one, else the folder."""
    table = folder / KEPT_TABLE
    return str(table) if table.is_file() else str(folder) if folder.is_dir() else None


def _path_in(text: str) -> tuple[str, Path]:
    """What a user's text has before a path, and the path; only these names may have one behind them."""
    rest = text.removeprefix("shards:").removeprefix("table:")
    return text[: len(text) - len(rest)], Path(rest)


def no_pickle(what: str) -> TailorError:
    """The error for data that would have to be unpickled."""
    return TailorError(
        f"{what} is stored as pickles, which are never loaded; "
        "give the binary version (data_batch_1.bin, train.bin), .npy or .npz files, or an image folder."
    )


# -- image sets from arrays and from items ----------------------------------------------------------------------------


def from_arrays(
    parts: Mapping[str, tuple[Array, Array]], where: str, classes: Sequence[str] | None = None
) -> ArrayImageSet:
    """An image set from (images, labels) per part: "all", or "train" with "val", "test" or both.

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W), labels whole numbers; ``where`` names the data in messages.
    """
    digest = hashlib.sha256()
    images: list[Pixels] = []
    labels: list[Ints] = []
    origin: list[str] = []
    for part, (raw_x, raw_y) in parts.items():
        x = _to_images(np.asarray(raw_x), f"The image array of {where} ({part})")
        y = _to_labels(np.asarray(raw_y), x, f"The label array of {where} ({part})")
        if images and x.shape[1:] != images[0].shape[1:]:
            raise TailorError(f"The {part} images of {where} have shape {x.shape}, the first ones {images[0].shape}.")
        digest.update(f"{part}{x.shape}".encode())
        digest.update(x.data)
        digest.update(y.data)
        images.append(x)
        labels.append(y)
        origin += [part] * len(x)
    values, index = np.unique(np.concatenate(labels), return_inverse=True)
    return ArrayImageSet(
        np.concatenate(images) if len(images) > 1 else images[0],
        classes=named_classes(values, classes, where),
        labels=index.astype(np.int64),
        origin=np.asarray(origin),
        fingerprint=digest.hexdigest(),
    )


def named_classes(values: Ints, classes: Sequence[str] | None, where: str) -> list[str]:
    """The names of the labels that occur, in ascending order."""
    if classes is None:
        return [str(v) for v in values]
    if values[0] >= 0 and values[-1] < len(classes):
        return [classes[v] for v in values]
    if len(classes) == len(values) and values[0] == 1 and values[-1] == len(classes):
        return list(classes)  # labels counted from one
    raise TailorError(
        f"{where} names {len(classes)} classes, but its labels run from {values[0]} to {values[-1]}; name n "
        "classes for labels from 0 to n - 1, or none."
    )


def from_items(
    parts: Mapping[str, tuple[Callable[[int], Any], Ints]], identity: str, classes: Sequence[str] | None = None
) -> LazyImageSet:
    """An image set from (opener, labels) per part; ``opener(i)`` returns a PIL image, or an array with values in 0..1.

    ``identity`` and the labels make the fingerprint. Openers are called from one thread.
    """
    places = [(part, i) for part, (_, labels) in parts.items() for i in range(len(labels))]

    def opener(index: int) -> Image.Image:
        part, i = places[index]
        image: Any = parts[part][0](i)
        if not hasattr(image, "mode"):
            image = to_image((np.asarray(image) * 255).astype(np.uint8))
        found: Image.Image = image
        return found

    values, index = np.unique(np.concatenate([labels for _, labels in parts.values()]), return_inverse=True)
    named = classes is not None and values[0] >= 0 and values[-1] < len(classes)
    visible = [k for k, (part, _) in enumerate(places) if part != "test"]  # the test part decides nothing
    samples = [opener(visible[k]) for k in np.unique(np.linspace(0, len(visible) - 1, 200).astype(int))]
    digest = hashlib.sha256(f"{identity} {[(p, len(labels)) for p, (_, labels) in parts.items()]}".encode())
    digest.update(index.astype(np.int64).tobytes())
    return LazyImageSet(
        opener,
        np.asarray([min(image.size) for image in samples]),
        False,
        classes=[classes[v] if classes and named else str(v) for v in values],
        labels=index.astype(np.int64),
        origin=np.asarray([part for part, _ in places]),
        fingerprint=digest.hexdigest(),
        channels=1 if all(is_grey(image) for image in samples) else 3,
    )


def _to_images(raw: Array, where: str) -> Pixels:
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


def _to_labels(raw: Array, images: Pixels, where: str) -> Ints:
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


# -- numpy files ------------------------------------------------------------------------------------------------------

_SPELLINGS = (("{}_x", "{}_y"), ("x_{}", "y_{}"), ("{}_images", "{}_labels"))
_WHOLE = (("x", "y"), ("images", "labels"), ("data", "labels"))


def _load_numpy(path: Path) -> Any:
    """np.load without pickle: an array, or the arrays of a .npz file."""
    try:
        return np.load(path, allow_pickle=False)
    except Exception as error:  # numpy raises ValueError, OSError, EOFError or BadZipFile for a foreign file
        raise TailorError(f"'{path}' is not a numpy file of plain numbers; pickled objects are not loaded.") from error


def _from_named_arrays(names: Collection[str], get: Callable[[str], Array], where: str) -> ArrayImageSet:
    """An image set from arrays with the usual names: x and y, or train_x, train_y, test_x, ... in a common spelling."""
    pairs = {p: [(x.format(p), y.format(p)) for x, y in _SPELLINGS] for p in ("train", "val", "test")}
    found: dict[str, tuple[Array, Array]] = {}
    for part, spellings in {**pairs, "all": list(_WHOLE)}.items():
        for x, y in spellings:
            if x not in names or part in found:
                continue
            if y not in names:
                raise TailorError(f"{where} has the images '{x}' but not their labels '{y}'.")
            found[part] = (get(x), get(y))
    if "train" not in found and "all" not in found:
        raise TailorError(
            f"{where} needs arrays named x and y, or train_x and train_y, not {', '.join(sorted(names)) or 'none'}."
        )
    if "train" in found:
        found.pop("all", None)
    classes = [str(n) for n in get("classes")] if "classes" in names else None
    parts = {"all": found["train"]} if set(found) == {"train"} else found if "train" in found else {"all": found["all"]}
    return from_arrays(parts, where, classes)


def _npy_files(folder: Path) -> dict[str, Path]:
    return {p.stem: p for p in folder.glob("*.npy")}


def _is_npy_folder(path: Path) -> bool:
    return path.is_dir() and bool(_npy_files(path).keys() & {"train_x", "x_train"})


def _read_npy_folder(path: str) -> ImageSet:
    files = _npy_files(Path(path))
    return _from_named_arrays(files.keys(), lambda name: _load_numpy(files[name]), f"'{path}'")


def _read_npy(text: str) -> ImageSet:
    """One array of images, its labels beside it."""
    path = Path(text)
    stems = [f"{path.stem}_y", *([path.stem[:-2] + "_y"] if path.stem.endswith("_x") else []), "y"]
    for stem in stems:
        labels = path.with_name(f"{stem}.npy")
        if labels.is_file() and labels != path:
            return from_arrays({"all": (_load_numpy(path), _load_numpy(labels))}, f"'{path}'")
    raise TailorError(f"'{path}' has no labels; put them beside it as {' or '.join(f'{s}.npy' for s in stems)}.")


def _read_npz(text: str) -> ImageSet:
    path = Path(text)
    with _load_numpy(path) as arrays:

        def get(name: str) -> Array:
            try:
                return np.asarray(arrays[name])
            except ValueError as error:
                raise no_pickle(f"'{name}' in '{path}'") from error

        return _from_named_arrays(arrays.files, get, f"'{path}'")


# -- data sets in their own file formats ------------------------------------------------------------------------------


def _no_rest(name: str, rest: str) -> None:
    if rest:
        raise TailorError(f"'{name}' is asked for by its name alone, not as '{name}:{rest}'.")


def _read_digits(rest: str) -> ImageSet:
    """scikit-learn's 1,797 digits of 8 x 8 px, which come inside its wheel."""
    from sklearn.datasets import load_digits

    _no_rest("digits", rest)
    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    return from_arrays({"all": (images, digits.target)}, "digits")


def _cifar_binaries(root: Path) -> tuple[Path, bool] | None:
    """The folder that holds CIFAR's binary files, and whether it is CIFAR-10; None where there is none."""
    for folder in (root, root / "cifar-10-batches-bin", root / "cifar-100-binary"):
        ten = any(folder.glob("data_batch_*.bin"))
        if ten or (folder / "train.bin").is_file():
            return folder, ten
    return None


def _cifar_pickles(root: Path) -> Path | None:
    """The folder that holds CIFAR's Python version."""
    for folder in (root, root / "cifar-10-batches-py", root / "cifar-100-python"):
        if (folder / "data_batch_1").is_file() or all((folder / f).is_file() for f in ("train", "test", "meta")):
            return folder
    return None


def _is_cifar(path: Path) -> bool:
    return path.is_dir() and (_cifar_binaries(path) is not None or _cifar_pickles(path) is not None)


def _read_cifar(path: str) -> ImageSet:
    """CIFAR-10 or CIFAR-100 in its binary form."""
    found = _cifar_binaries(Path(path))
    if found is None:
        raise no_pickle(f"'{_cifar_pickles(Path(path))}'")
    folder, ten = found
    train = sorted(folder.glob("data_batch_*.bin")) if ten else [folder / "train.bin"]
    test = folder / ("test_batch.bin" if ten else "test.bin")
    if not test.is_file():
        raise TailorError(f"'{folder}' holds CIFAR training batches but no {test.name}.")
    parts = {part: _cifar_records(files, 1 if ten else 2) for part, files in (("train", train), ("test", [test]))}
    names = folder / ("batches.meta.txt" if ten else "fine_label_names.txt")
    return from_arrays(
        parts, f"'{folder}'", names.read_text("utf-8", "surrogateescape").split() if names.is_file() else None
    )


def _cifar_records(files: list[Path], label_bytes: int) -> tuple[Array, Array]:
    raw = b"".join(f.read_bytes() for f in files)
    width = label_bytes + 3072
    if not raw or len(raw) % width:
        raise TailorError(f"'{files[0].parent}' is not CIFAR: {len(raw)} bytes are not whole records of {width}.")
    table = np.frombuffer(raw, np.uint8).reshape(-1, width)
    return table[:, label_bytes:].reshape(-1, 3, 32, 32), table[:, label_bytes - 1].astype(np.int64)


FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package dataset-fashion-mnist puts it
_CLOTHES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def _idx_file(root: Path, name: str) -> Path | None:
    return next((p for p in (root / name, root / f"{name}.gz") if p.is_file()), None)


def _is_idx(path: Path) -> bool:
    return path.is_dir() and _idx_file(path, "train-images-idx3-ubyte") is not None


def _read_idx(path: str) -> ImageSet:
    """The four files of MNIST, Fashion-MNIST or a similar set."""
    root, parts = Path(path), {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        found = [_idx_file(root, f"{prefix}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")]
        if None in found:
            raise TailorError(f"'{root}' holds MNIST training images but not {prefix}-images and {prefix}-labels.")
        images, labels = (_idx_array(file) for file in found if file is not None)
        parts[part] = (images, labels)
    return from_arrays(parts, f"'{root}'", _CLOTHES if "fashion" in root.name.lower() else None)


def _idx_array(path: Path) -> Array:
    """The array of one file: two zero bytes, type 8 (bytes), rank, a big-endian size per dimension, then the values."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise TailorError(f"'{path}' cannot be read: {error}.") from None
    rank = raw[3] if len(raw) > 4 and raw[:3] == b"\0\0\x08" else 0
    shape = np.frombuffer(raw, ">i4", rank, 4) if len(raw) >= 4 + 4 * rank else np.empty(0, np.int64)
    body = len(raw) - 4 - 4 * rank
    if not rank or not len(shape) or int(np.prod(shape.astype(np.int64))) != body:
        raise TailorError(f"'{path}' is not a complete file of bytes in MNIST's format.")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(tuple(shape.tolist()))


def _read_fashion_mnist(rest: str) -> ImageSet:
    """Fashion-MNIST from Debian's package."""
    _no_rest("fashion-mnist", rest)
    if not _is_idx(FASHION_MNIST):
        raise TailorError(
            f"'fashion-mnist' is read from {FASHION_MNIST}, which is not there; install Debian's "
            "dataset-fashion-mnist, or give the folder that holds train-images-idx3-ubyte.gz."
        )
    return _read_idx(str(FASHION_MNIST))


# -- image folders ----------------------------------------------------------------------------------------------------

_NAMES_OF_SPLITS = {
    "train": ("train", "training", "trainval"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
_SPLIT_FOLDERS = {name: part for part, names in _NAMES_OF_SPLITS.items() for name in names}


def split_of_name(name: str) -> str | None:
    """The part of the data that a name such as "validation" stands for."""
    return _SPLIT_FOLDERS.get(name.lower())


_LAYOUT = "images belong in ROOT/CLASS/*.jpg or ROOT/{train,val,test}/CLASS/*.jpg"


class _Header(NamedTuple):
    """What the first bytes of an image file say."""

    short_side: int = 0
    grey: bool = False
    seal: Seal = Seal(0, 0, 0)
    problem: str | None = None


def _read_folder(path: str) -> LazyImageSet:
    """One folder per class, with or without train, val and test above them: list, read headers, skip non-images."""
    root = Path(path)
    parts = _split_folders(root)
    paths, names, origin = _list_images(parts)
    return image_files(paths, names, origin, root, _folder_notes(root, parts))


def image_files(
    paths: Sequence[Path], names: Sequence[str], origin: Sequence[str], root: Path, notes: Sequence[str]
) -> LazyImageSet:
    """An image set of files with the class and the part of each; in messages and records files are named from root."""
    from PIL import Image

    headers = thread_map(_header, paths)
    skipped = [(str(p), h.problem) for p, h in zip(paths, headers) if h.problem is not None]
    good = [i for i, h in enumerate(headers) if h.problem is None]
    readable = {(origin[i], names[i]) for i in good}
    for part, name, header in zip(origin, names, headers):
        if (part, name) not in readable:
            raise TailorError(
                f"None of the images of class '{name}'{'' if part == 'all' else f' in {part}'} can be read, "
                f"the first because: {header.problem}."
            )
    classes = sorted(set(names))
    number = {name: i for i, name in enumerate(classes)}
    files = [paths[i] for i in good]
    labels = np.asarray([number[n] for n in names], dtype=np.int64)[good]
    digest = hashlib.sha256()
    seals = [headers[i].seal for i in good]
    sizes = [(_below(file, root), sealed.bytes) for file, sealed in zip(files, seals)]
    for (name, size), label in zip(sizes, labels.tolist()):
        digest.update(os.fsencode(f"{name}\0{size}\0{classes[label]}\n"))
    visible = [headers[i] for i in good if origin[i] != "test"]  # the test folder decides nothing

    def opener(index: int) -> Image.Image:
        if problem := state_of(files[index], seals[index]):
            raise OSError(problem)
        return Image.open(files[index])

    return LazyImageSet(
        opener,
        np.asarray([h.short_side for h in visible]),
        True,
        classes=classes,
        labels=labels,
        origin=np.asarray(origin)[good],
        fingerprint=digest.hexdigest(),
        channels=1 if all(h.grey for h in visible) else 3,
        names=[str(p) for p in files],
        files=sizes,
        seals=seals,
        notes=notes,
        skipped=skipped,
    )


def _below(file: Path, root: Path) -> str:
    """A file's name from the root, or whole where it lies elsewhere."""
    return (file.relative_to(root) if file.is_relative_to(root) else file).as_posix()


def _folders(root: Path) -> list[Path]:
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))


def _images_below(folder: Path) -> list[Path]:
    found = []
    for where, below, files in os.walk(folder):
        below[:] = [b for b in below if not b.startswith((".", "__"))]
        found += [Path(where, f) for f in files if Path(f).suffix.lower() in SUFFIXES and not f.startswith(".")]
    return sorted(found)


def _images_in(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in SUFFIXES]


def _header(path: Path) -> _Header:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return _Header(min(image.size), is_grey(image), seal(path))
    except Exception as error:  # decoders raise anything on broken files
        return _Header(problem=reason(error))


def _split_folders(root: Path) -> dict[str, Path]:
    """Split name to folder; {"all": ...} where the folder is not split."""
    found: dict[str, Path] = {}
    for folder in _folders(root):
        part = _SPLIT_FOLDERS.get(folder.name.lower())
        # A class may be called "test": split folders hold class folders, class folders hold images.
        if part and not _images_in(folder):
            if part in found:
                raise TailorError(f"'{root}' has two folders for one split: {found[part].name} and {folder.name}.")
            found[part] = folder
    if not found:
        _refuse_misspelt(root, [f for f in _folders(root) if not _images_in(f)])
        return {"all": root}
    if "train" not in found:
        have = ", ".join(p.name for p in found.values())
        raise TailorError(f"'{root}' has the split folder {have} but no 'train' folder.")
    # A misspelt split folder would be ignored silently, and test images be taken from train.
    _refuse_misspelt(root, [f for f in _folders(root) if f not in found.values()], " beside its 'train' folder")
    return {"all": found["train"]} if len(found) == 1 else found


def _refuse_misspelt(root: Path, folders: list[Path], where: str = "") -> None:
    """Refuse folders named almost like a split: they would count as classes, or be ignored."""
    for folder in folders:
        near = difflib.get_close_matches(folder.name.lower(), _SPLIT_FOLDERS, 1, 0.75)
        if near and _images_below(folder):
            raise TailorError(
                f"'{root}' has '{folder.name}'{where}, which is not the name of a split; did you mean '{near[0]}'? "
                f"Split folders are named {', '.join(_SPLIT_FOLDERS)}."
            )


def _folder_notes(root: Path, parts: dict[str, Path]) -> list[str]:
    """Sentences on images beside the class folders, and on sub-folders that look like classes."""
    notes = []
    for folder in dict.fromkeys((root, *parts.values())):
        loose = _images_in(folder)
        if loose:
            notes.append(f"{len(loose)} image(s) lie beside the class folders of '{folder}' and are not used.")
    classes = [f for part in parts.values() for f in _folders(part)]
    below = [tuple(f.name for f in _folders(c)) for c in classes]
    if len(set(below)) == 1 and below[0] and not any(map(_images_in, classes)):
        names, first = ", ".join(below[0][:5]), ", ".join(c.name for c in classes[:5])
        notes.append(f"The classes are {first}; the sub-folders {names} in each of them are not classes.")
    return notes


def _list_images(parts: dict[str, Path]) -> tuple[list[Path], list[str], list[str]]:
    """Files with their class names and split folders."""
    paths: list[Path] = []
    names: list[str] = []
    origin: list[str] = []
    for part, folder in parts.items():
        class_folders = _folders(folder)
        if not class_folders:
            raise TailorError(f"'{folder}' has no class folders; {_LAYOUT}.")
        for class_folder in class_folders:
            files = _images_below(class_folder)
            if not files:
                raise TailorError(f"Class folder '{class_folder}' has no images; remove it or fill it.")
            paths += files
            names += [class_folder.name] * len(files)
            origin += [part] * len(files)
    return paths, names, origin


# -- torchvision ------------------------------------------------------------------------------------------------------

_PICKLED = ("CIFAR10", "CIFAR100", "LSUN", "LSUNClass")
_SPLIT_WORDS = {"train": ("train", "trainval"), "val": ("val", "valid"), "test": ("test",)}


def _read_torchvision(text: str) -> ImageSet:
    """The dataset NAME under ROOT, from "NAME@ROOT"; ROOT is "data" unless given."""
    name, _, root = text.partition("@")
    parts = _torchvision_parts(name, root or "data")
    labels = {part: _torchvision_labels(dataset, name) for part, dataset in parts.items()}
    classes = getattr(next(iter(parts.values())), "classes", None)
    classes = [str(n) for n in classes] if isinstance(classes, list | tuple) else None
    raw: dict[str, Any] = {part: getattr(dataset, "data", None) for part, dataset in parts.items()}
    if all(hasattr(d, "shape") and len(d.shape) in (3, 4) for d in raw.values()):
        return from_arrays({p: (np.asarray(raw[p]), labels[p]) for p in parts}, f"torchvision's {name}", classes)

    def opener(dataset: Any) -> Callable[[int], Any]:
        return lambda i: dataset[i][0]

    return from_items({p: (opener(d), labels[p]) for p, d in parts.items()}, f"torchvision {name}", classes)


def _torchvision_parts(name: str, root: str) -> dict[str, Any]:
    """The dataset once per split it offers, or once as "all"."""
    import torchvision.datasets as catalogue

    if name not in catalogue.__all__:
        raise unknown("torchvision dataset", name, catalogue.__all__)
    if name in _PICKLED:
        raise no_pickle(f"torchvision's {name}")
    make = getattr(catalogue, name)
    takes = inspect.signature(make).parameters
    fixed: dict[str, Any] = {"root": root} if "root" in takes else {}
    fixed |= {"download": False} if "download" in takes else {}
    fixed |= {"split": "balanced"} if name == "EMNIST" else {}  # its "split" names a selection of letters
    if "train" in takes or name == "EMNIST":
        wanted: dict[str, list[dict[str, Any]]] = {"train": [{"train": True}], "test": [{"train": False}]}
    elif "split" in takes:
        wanted = {part: [{"split": word} for word in words] for part, words in _SPLIT_WORDS.items()}
    else:
        wanted = {"all": [{}]}
    parts: dict[str, Any] = {}
    for part, tries in wanted.items():
        for extra in tries:
            try:
                parts[part] = make(**fixed, **extra)
                break
            except ValueError:  # the dataset has no such split
                continue
            except (TypeError, NotImplementedError) as error:
                raise TailorError(f"torchvision's {name} is not a plain set of images with one class each.") from error
            except (RuntimeError, OSError, ImportError) as error:
                raise TailorError(
                    f"torchvision's {name} cannot be read from '{root}' and is not downloaded: "
                    f"{' '.join(str(error).split()).split('. ')[0].rstrip('.')}."
                ) from error
    if "train" not in parts and "all" not in parts:
        raise TailorError(f"torchvision's {name} offers no train split that can be read here.")
    return {"all": parts["train"]} if set(parts) == {"train"} else parts


def _torchvision_labels(dataset: Any, name: str) -> Ints:
    for attribute in ("targets", "labels", "_labels", "y"):
        values = getattr(dataset, attribute, None)
        if values is not None and len(values) == len(dataset):
            break
    else:
        values = [dataset[i][1] for i in range(len(dataset))]
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TailorError(f"torchvision's {name} does not label each image with one class number.")
    return array.astype(np.int64)


# -- the table --------------------------------------------------------------------------------------------------------

# Paths are offered to the sources in this order; "folder" recognises every folder, so it comes last.
SOURCES: Registry[DataSource] = Registry(
    "data source",
    "tailorvit.data",
    {
        source.name: source
        for source in (
            DataSource("digits", "scikit-learn's 1,797 grey digits of 8 x 8 px, from its wheel", _read_digits),
            DataSource("fashion-mnist", "Fashion-MNIST from Debian's dataset-fashion-mnist", _read_fashion_mnist),
            DataSource(
                "torchvision",
                "a torchvision dataset on disk, one class per image; ROOT is 'data' unless given",
                _read_torchvision,
                "torchvision:NAME@ROOT",
            ),
            DataSource(
                "npz",
                "arrays named x and y, or train_x, train_y, test_x, ...",
                _read_npz,
                "FILE.npz",
                lambda path: path.is_file() and path.suffix == ".npz",
            ),
            DataSource(
                "npy",
                "an array of images, its labels beside it in FILE_y.npy or y.npy",
                _read_npy,
                "FILE.npy",
                lambda path: path.is_file() and path.suffix == ".npy",
            ),
            DataSource(
                "npy-folder",
                "train_x.npy, train_y.npy, and val and test likewise",
                _read_npy_folder,
                "a folder of .npy files",
                _is_npy_folder,
            ),
            DataSource("cifar", "CIFAR-10 or CIFAR-100", _read_cifar, "a folder of CIFAR's binary files", _is_cifar),
            DataSource("idx", "MNIST, Fashion-MNIST, KMNIST", _read_idx, "a folder of MNIST's files", _is_idx),
        )
    }
    | {
        "table": "tailorvit.data.table:TABLE",
        "hf": "tailorvit.data.hf:HF",
        "shards": "tailorvit.data.shards:SHARDS",
        "folder": DataSource(
            "folder",
            "ROOT/CLASS/*.jpg, or ROOT/train/CLASS/*.jpg with val, test or both",
            _read_folder,
            "a folder of class folders",
            lambda path: path.is_dir(),
        ),
    },
)
