"""Folders of images and masks: which mask belongs to which image, which classes there are, and what is wrong.

Masks are single-channel images of class numbers, or palette images. They lie in folders named ``masks`` or the like,
and have their images' names.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tailorvit.data.images import thread_map
from tailorvit.data.sources import split_of_name
from tailorvit.errors import TailorError
from tailorvit.portable import Size, flat, image_files, reason

if TYPE_CHECKING:
    from PIL import Image

IGNORE = 255  # the class number of pixels that count for nothing
MOST_CLASSES = 254
MOST_UNNAMED = 200  # different numbers in masks without classes.txt; more come from blurred or photographic masks
CLASSES_FILE = "classes.txt"
_NUMBERS = 1 << 16  # a mask has 8 or 16 bits
_SHOWN = 12  # numbers in a sentence
_TRIMAP = ("pet", "background", "border")  # numbers 1 to 3 of the Oxford-IIIT Pet trimaps

_KINDS = r"masks?|trimaps?|annot(?:ation)?s?|labels?|label_?ids|segmentations?|segmentationclass"
_MASK_FOLDER = re.compile(rf"(?:(.+?)[_-]?)?(?:{_KINDS})|(?:(.+?)[_-])?(?:gt|gtfine|ground_?truth)")
_IMAGE_FOLDER = re.compile(r"(?:(.+?)[_-])?(?:images?|imgs?|jpegimages|photos?|pictures?)")
_MASK_STEM = re.compile(rf"(.+?)[_-](?:{_KINDS}|gt|seg)", re.IGNORECASE)
_LAYOUT = (
    "put images into 'images' and masks of the same names into 'masks', each with 'train', 'val' and 'test' "
    "above or below if you have such splits"
)
Mask = NDArray[np.int32]  # (rows, columns) of numbers as they lie in the file
Classes = NDArray[np.uint8]  # (rows, columns) of class numbers


@dataclass(frozen=True)
class MaskedImage:
    """An image and its mask."""

    name: str  # of the image, below the folder
    image: Path
    mask: Path
    part: str  # "train", "val", "test", or "all" where there are no split folders
    size: Size  # of both, upright
    numbers: tuple[int, ...]  # that its mask holds


@dataclass(frozen=True)
class MaskFolder:
    """What was found in a folder, without the files that are wrong."""

    items: tuple[MaskedImage, ...]
    classes: tuple[str, ...]
    numbers: tuple[int, ...]  # of the classes, as masks hold them
    ignored: tuple[int, ...]
    fingerprint: str
    notes: tuple[str, ...]
    skipped: Mapping[str, str]

    def truth(self, item: MaskedImage) -> Classes:
        """The class numbers of an image's pixels, 0 to classes - 1, and IGNORE."""
        try:
            mask = read_mask(item.mask)
        except ValueError as error:
            raise TailorError(f"The mask '{item.mask}' cannot be read any more: {error}.") from None
        table = np.full(_NUMBERS, IGNORE, np.uint8)
        table[list(self.numbers)] = np.arange(len(self.numbers))
        found: Classes = table[mask]
        if found.shape != item.size or not np.isin(mask[found == IGNORE], self.ignored).all():
            raise TailorError(f"The mask '{item.mask}' changed since the data were read.")
        return found


# -- single files -----------------------------------------------------------------------------------------------------


def read_mask(path: Path) -> Mask:
    """The numbers in a mask file, upright; ValueError with the reason where it is none."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            opened.load()
            lossy = opened.format in ("JPEG", "MPO")
            image = ImageOps.exif_transpose(opened)
    except Exception as error:  # decoders raise errors of every type on broken files
        raise ValueError(reason(error)) from None
    if lossy:
        raise ValueError("a JPEG file changes class numbers; save masks as PNG")
    array = np.asarray(image)
    if image.mode in ("RGB", "RGBA", "LA"):
        colours = array[..., :3] if image.mode != "LA" else array[..., :1]
        if (colours != colours[..., :1]).any():
            raise ValueError(
                "its colours are no class numbers; save it as a grey PNG of class numbers or with a palette"
            )
        array = colours[..., 0]
    elif image.mode not in ("1", "L", "P", "I") and not image.mode.startswith("I;16"):
        raise ValueError(f"pixels of the kind '{image.mode}' are no class numbers")
    mask: Mask = array.astype(np.int32)
    if mask.min() < 0 or mask.max() >= _NUMBERS:
        raise ValueError(f"its values run from {mask.min()} to {mask.max()}")
    return mask


def open_image(path: Path) -> Image.Image:
    """An image in RGB, upright; transparent parts on white."""
    from PIL import Image, ImageOps

    with Image.open(path) as image:
        return flat(ImageOps.exif_transpose(image), 3)


@dataclass(frozen=True)
class _Checked:
    """What checking a pair of files told."""

    problem: str = ""
    size: Size = (0, 0)
    numbers: tuple[int, ...] = ()
    state: tuple[str, str] = ("", "")  # digests of the image's file and of the mask's numbers


def _check(pair: tuple[Path, Path]) -> _Checked:
    image, mask = pair
    try:
        height_width = open_image(image).size[::-1]
        image_digest = hashlib.sha256(image.read_bytes()).hexdigest()
    except Exception as error:  # as in read_mask
        return _Checked(f"the image cannot be read: {reason(error)}")
    try:
        numbers = read_mask(mask)
    except ValueError as error:
        return _Checked(f"the mask '{mask.name}' cannot be used: {error}")
    if numbers.shape != height_width:
        mine, other = ("x".join(map(str, s[::-1])) for s in (height_width, numbers.shape))
        return _Checked(f"the mask '{mask.name}' has {other} px, the image {mine}")
    digest = hashlib.sha256(numbers.tobytes()).hexdigest()
    rows, columns = numbers.shape
    found = tuple(np.flatnonzero(np.bincount(numbers.reshape(-1))).tolist())
    return _Checked("", (rows, columns), found, (image_digest, digest))


# -- pairs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Where a file lies: its split, and its path without the words that only say "images", "masks" or the split."""

    is_mask: bool
    part: str
    key: tuple[str, ...]


def _place(path: Path, root: Path) -> _Place:
    is_mask, part, key = False, "all", []
    for folder in path.relative_to(root).parent.parts:
        word = folder.lower()
        if found := _MASK_FOLDER.fullmatch(word):
            is_mask, word = True, found[1] or found[2] or ""
        elif found := _IMAGE_FOLDER.fullmatch(word):
            word = found[1] or ""
        split = split_of_name(word)
        if split is not None and part == "all":
            part = split
        elif word:
            key.append(word)
    stem = path.stem
    if is_mask and (found := _MASK_STEM.fullmatch(stem)):
        stem = found[1]
    return _Place(is_mask, part, (*key, stem))


def _beside(places: dict[Path, _Place]) -> None:
    """Without a folder of masks: a PNG beside a JPEG of its name is its mask, and so is NAME_mask beside NAME."""
    stems: dict[tuple[Path, str], set[str]] = {}
    for path in places:
        stems.setdefault((path.parent, path.stem), set()).add(path.suffix.lower())
    for path, place in places.items():
        named = _MASK_STEM.fullmatch(path.stem)
        if named is not None and (path.parent, named[1]) in stems:
            places[path] = _Place(True, place.part, (*place.key[:-1], named[1]))
        elif path.suffix.lower() == ".png" and stems[path.parent, path.stem] & {".jpg", ".jpeg"}:
            places[path] = _Place(True, place.part, place.key)


def _pairs(root: Path, skipped: dict[str, str], notes: list[str]) -> list[tuple[Path, Path, str]]:
    """Images with their masks and splits: by the same place below their folders, else by a name that occurs once."""
    places: dict[Path, _Place] = {}
    for path, problem in image_files(root):
        if problem is None:
            places[path] = _place(path, root)
        else:
            skipped[path.relative_to(root).as_posix()] = problem
    if not any(place.is_mask for place in places.values()):
        _beside(places)
    images = [p for p, place in places.items() if not place.is_mask]
    masks: dict[tuple[str, tuple[str, ...]], list[Path]] = {}
    for path, place in places.items():
        if place.is_mask:
            masks.setdefault((place.part, place.key), []).append(path)
    matched = {p: masks.get((places[p].part, places[p].key), []) for p in images}
    used = {mask for found in matched.values() for mask in found}
    free = _once((places[m].part, places[m].key[-1], m) for found in masks.values() for m in found if m not in used)
    lonely = _once((places[p].part, places[p].key[-1], p) for p, found in matched.items() if not found)
    for key, path in lonely.items():
        if key in free:
            matched[path] = [free[key]]
            used.add(free[key])
    pairs = []
    for path, found in matched.items():
        if len(found) == 1:
            pairs.append((path, found[0], places[path].part))
        else:
            several = " and ".join(f"'{m.relative_to(root).as_posix()}'" for m in found[:2])
            skipped[path.relative_to(root).as_posix()] = (
                f"it has more than one mask: {several}" if found else "it has no mask of its name"
            )
    unused = [m for found in masks.values() for m in found if m not in used]
    if unused:
        notes.append(f"{len(unused)} mask(s) have no image, the first '{unused[0].relative_to(root).as_posix()}'.")
    if not pairs:
        raise TailorError(f"'{root}' has no image with a mask: {_LAYOUT}.")
    return pairs


def _once(rows: Iterable[tuple[str, str, Path]]) -> dict[tuple[str, str], Path]:
    """Files by split and name, where only one has them."""
    found: dict[tuple[str, str], list[Path]] = {}
    for part, stem, path in rows:
        found.setdefault((part, stem), []).append(path)
    return {key: paths[0] for key, paths in found.items() if len(paths) == 1}


# -- classes ----------------------------------------------------------------------------------------------------------


def _listed(root: Path) -> tuple[list[str], list[int] | None] | None:
    """The names in classes.txt, and their numbers where every line begins with one; None without the file."""
    path = root / CLASSES_FILE
    if not path.is_file():
        return None
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise TailorError(f"'{path}' cannot be read: {reason(error)}.") from None
    numbered = [re.fullmatch(r"(\d{1,5})\s*[\s:,;=]\s*(\S.*)", line) for line in lines]
    names, numbers = lines, None
    if lines and all(numbered):
        names = [m[2].strip() for m in numbered if m is not None]
        numbers = [int(m[1]) for m in numbered if m is not None]
    if not 2 <= len(names) <= MOST_CLASSES:
        raise TailorError(f"'{path}' lists {len(names)} class(es); it needs 2 to {MOST_CLASSES}, one a line.")
    for values in (names, numbers or []):
        for value in values:
            if list(values).count(value) > 1:
                raise TailorError(f"'{path}' lists '{value}' twice.")
    if numbers and max(numbers) >= _NUMBERS:
        raise TailorError(f"'{path}' lists the number {max(numbers)}; masks hold numbers up to {_NUMBERS - 1}.")
    return names, numbers


def _without_strays(counts: Mapping[int, int]) -> list[int]:
    """The numbers that are classes: one that a single mask alone has, beyond all others, is a mistake in that mask."""
    common = [n for n, masks in counts.items() if masks > 1]
    if not common:
        return sorted(counts)
    top = max(common)
    while counts.get(top + 1):
        top += 1
    return sorted(n for n in counts if n <= top)


def _classes(
    root: Path, found: Sequence[Collection[int]], ignored: Collection[int], trimaps: bool, notes: list[str]
) -> tuple[list[str], list[int], list[int]]:
    """Names of the classes, their numbers in the masks, and the numbers that are ignored."""
    counts: dict[int, int] = {}
    for numbers in found:
        for number in numbers:
            counts[number] = counts.get(number, 0) + 1
    used = {n: c for n, c in counts.items() if n not in ignored}
    ignore = sorted(ignored)
    listed = _listed(root)
    binary = set(counts) == {0, IGNORE} and (listed is None or len(listed[0]) == 2)
    if binary and 0 not in ignored:
        ignore, used = [n for n in ignore if n != IGNORE], counts
        notes.append("Masks hold 0 and 255 alone, so 255 is the second class and no pixel is ignored.")
    if listed is not None:
        names, own = listed
        first = 1 if 0 in ignored or (0 not in used and len(names) in used) else 0
        numbers = [0, IGNORE] if binary else own or list(range(first, first + len(names)))
    else:
        numbers = _without_strays(used)
        if len(numbers) > MOST_UNNAMED:
            raise TailorError(
                f"The masks in '{root}' hold {len(numbers)} different numbers; masks are not photographs or blurred: "
                f"save class numbers as PNG, and list the classes in {CLASSES_FILE}."
            )
        if len(numbers) < 2:
            what = f"the number {numbers[0]} alone" if numbers else "no class number"
            raise TailorError(f"The masks in '{root}' hold {what}; at least two classes are needed.")
        names = [str(n) for n in numbers]
        if trimaps and numbers == [1, 2, 3]:
            names = list(_TRIMAP)
            notes.append("The masks are trimaps: 1 is pet, 2 background, 3 border.")
    if numbers != list(range(len(numbers))):
        notes.append(f"Class numbers in the masks are {_list(numbers)}; the network counts them from 0.")
    return names, numbers, ignore


def _list(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return shown + (f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else "")


# -- folders ----------------------------------------------------------------------------------------------------------


def read_mask_folder(source: str, ignored: Collection[int] = (IGNORE,)) -> MaskFolder:
    """The images and masks below a folder; files that are wrong are left out and named."""
    root = Path(source).expanduser()
    if not root.is_dir():
        raise TailorError(f"There is no folder '{source}' of images and masks.")
    skipped: dict[str, str] = {}
    notes: list[str] = []
    pairs = _pairs(root, skipped, notes)
    names = [image.relative_to(root).as_posix() for image, _, _ in pairs]
    checks = thread_map(_check, [(image, mask) for image, mask, _ in pairs])
    skipped.update({name: check.problem for name, check in zip(names, checks) if check.problem})
    good = [check for check in checks if not check.problem]
    if not good:
        raise TailorError(
            f"None of the {len(pairs)} images in '{source}' can be used; of '{names[0]}': {skipped[names[0]]}."
        )
    trimaps = any("trimap" in part.lower() for _, mask, _ in pairs for part in mask.relative_to(root).parts)
    classes, numbers, ignore = _classes(root, [c.numbers for c in good], ignored, trimaps, notes)
    known, legal = set(numbers), {*numbers, *ignore}
    items, digest = [], hashlib.sha256()
    digest.update(repr((classes, numbers, ignore)).encode())
    for name, check, (image, mask, part) in zip(names, checks, pairs):
        if check.problem:
            continue
        if strange := sorted(set(check.numbers) - legal):
            skipped[name] = f"the mask '{mask.name}' holds {_list(strange)}, but the classes are {_list(numbers)}"
        elif not known & set(check.numbers):
            skipped[name] = f"all pixels of the mask '{mask.name}' are ignored"
        else:
            items.append(MaskedImage(name, image, mask, part, check.size, check.numbers))
            digest.update(os.fsencode(f"{name}\0{check.state}\n"))
    if not items:
        raise TailorError(
            f"None of the {len(pairs)} images in '{source}' can be used; of '{names[0]}': {skipped[names[0]]}."
        )
    return MaskFolder(
        tuple(items), tuple(classes), tuple(numbers), tuple(ignore), digest.hexdigest(), tuple(notes), skipped
    )
