"""Image folders: one folder per class, with or without train, val and test above them."""

from __future__ import annotations

import difflib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tailorvit.data.images import SUFFIXES, is_grey, reason
from tailorvit.data.pools import ItemPool, thread_map
from tailorvit.errors import TailorError

if TYPE_CHECKING:
    from PIL import Image

_PARTS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val"}
_PARTS |= {"dev": "val", "test": "test", "testing": "test"}
_SHAPE = "images belong in ROOT/CLASS/*.jpg or ROOT/{train,val,test}/CLASS/*.jpg"


class _Header(NamedTuple):
    """What the first bytes of a file tell."""

    short: int = 0
    grey: bool = False
    bytes: int = 0
    problem: str | None = None


def _folders(root: Path) -> list[Path]:
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))


def _images(folder: Path) -> list[Path]:
    found = []
    for where, below, files in os.walk(folder):
        below[:] = [b for b in below if not b.startswith((".", "__"))]
        found += [Path(where, f) for f in files if Path(f).suffix.lower() in SUFFIXES and not f.startswith(".")]
    return sorted(found)


def _header(path: Path) -> _Header:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return _Header(min(image.size), is_grey(image), path.stat().st_size)
    except Exception as error:  # decoders raise whatever they like on broken files
        return _Header(problem=reason(error))


def _parts(root: Path) -> dict[str, Path]:
    """Split name to folder; {"all": ...} where the folder is not split."""
    found: dict[str, Path] = {}
    for folder in _folders(root):
        part = _PARTS.get(folder.name.lower())
        # A class may be called "test": split folders hold class folders, class folders hold images.
        if part and not _holds_images(folder):
            if part in found:
                raise TailorError(f"'{root}' has two folders for one split: {found[part].name} and {folder.name}.")
            found[part] = folder
    if not found:
        _refuse_near(root, [f for f in _folders(root) if not _holds_images(f)])
        return {"all": root}
    if "train" not in found:
        have = ", ".join(p.name for p in found.values())
        raise TailorError(f"'{root}' has the split folder {have} but no 'train' folder.")
    # A misspelt split would be left out without a word, and test images be drawn.
    _refuse_near(root, [f for f in _folders(root) if f not in found.values()], " beside its 'train' folder")
    return {"all": found["train"]} if len(found) == 1 else found


def _holds_images(folder: Path) -> bool:
    return any(p.is_file() and p.suffix.lower() in SUFFIXES for p in folder.iterdir())


def _refuse_near(root: Path, folders: list[Path], where: str = "") -> None:
    """Refuse folders named nearly as a split is: they would count as classes, or not at all."""
    for folder in folders:
        near = difflib.get_close_matches(folder.name.lower(), _PARTS, 1, 0.75)
        if near and _images(folder):
            raise TailorError(
                f"'{root}' has '{folder.name}'{where}, which is no split; did you mean '{near[0]}'? "
                f"Splits are named {', '.join(_PARTS)}."
            )


def _odd(root: Path, parts: dict[str, Path]) -> list[str]:
    """What to say of images beside the class folders, and of folders below them that look like classes."""
    told = []
    for folder in dict.fromkeys((root, *parts.values())):
        loose = [p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in SUFFIXES]
        if loose:
            told.append(f"{len(loose)} image(s) lie beside the class folders of '{folder}' and are not used.")
    classes = [f for part in parts.values() for f in _folders(part)]
    below = [tuple(f.name for f in _folders(c)) for c in classes]
    if len(set(below)) == 1 and below[0] and not any(map(_holds_images, classes)):
        names, first = ", ".join(below[0][:5]), ", ".join(c.name for c in classes[:5])
        told.append(f"Classes are {first}; the folders {names} in each of them are not told apart.")
    return told


def _list(parts: dict[str, Path]) -> tuple[list[Path], list[str], list[str]]:
    """Files with their class names and split folders."""
    paths: list[Path] = []
    names: list[str] = []
    origin: list[str] = []
    for part, folder in parts.items():
        classes = _folders(folder)
        if not classes:
            raise TailorError(f"'{folder}' has no class folders; {_SHAPE}.")
        for each in classes:
            files = _images(each)
            if not files:
                raise TailorError(f"Class folder '{each}' has no images; remove it or fill it.")
            paths += files
            names += [each.name] * len(files)
            origin += [part] * len(files)
    return paths, names, origin


def open_folder(root: Path) -> ItemPool:
    """Scan a folder: list, read every header, leave out what is not an image."""
    from PIL import Image

    parts = _parts(root)
    paths, names, origin = _list(parts)
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
    kept = [paths[i] for i in good]
    labels = np.asarray([number[n] for n in names], dtype=np.int64)[good]
    digest = hashlib.sha256()
    for path, index, label in zip(kept, good, labels.tolist()):
        digest.update(f"{path.relative_to(root).as_posix()}\0{headers[index].bytes}\0{classes[label]}\n".encode())
    seen = [headers[i] for i in good if origin[i] != "test"]  # the test folder decides nothing

    def opener(index: int) -> Image.Image:
        return Image.open(kept[index])

    return ItemPool(
        opener,
        np.asarray([h.short for h in seen]),
        True,
        classes=classes,
        labels=labels,
        origin=np.asarray(origin)[good],
        fingerprint=digest.hexdigest(),
        channels=1 if all(h.grey for h in seen) else 3,
        names=[str(p) for p in kept],
        notes=_odd(root, parts),
        skipped=skipped,
    )
