"""Objects in pictures: what annotation files say of them, checked; mistakes are named by file.

Boxes are (left, top, right, bottom) in pixels of the upright image, from the outer edge of the first pixel to the outer
edge of the last: a box over the whole of a 640x480 image is (0, 0, 640, 480).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailorvit.data.sources import split_of_name
from tailorvit.errors import TailorError
from tailorvit.portable import SUFFIXES, is_folder, is_grey, reason

if TYPE_CHECKING:
    from PIL import Image

Box = tuple[float, float, float, float]
LARGEST_XML = 8 << 20  # bytes; a file with ten thousand objects has 3 MB
EDGE = 1.0  # a box may stick out this far without a word: writers disagree on whether pixels count from 0 or 1
DEEPEST = 2  # folders that may lie around the data, as archives unpack
_ORIENTATION = 0x0112  # the EXIF tag
CLASS_LISTS = ("classes.txt", "labels.txt")
LAYOUTS = (
    "VOC: Annotations/*.xml with JPEGImages/ and perhaps ImageSets/Main/, or *.xml beside the images; "
    "COCO: annotations/*.json or *.json beside the images"
)


@dataclass(frozen=True)
class Thing:
    """One object of a picture. What counts for nothing is neither a hit nor a miss in the figures."""

    label: int  # a class number, from 0
    box: Box
    mask: Any = None  # polygons [[x, y, x, y, ...], ...] or run lengths {"size": [rows, columns], "counts": ...}
    counts: bool = True  # False: marked as difficult (VOC) or as a crowd (COCO)
    trained: bool = True  # False: a crowd, whose box is no object


@dataclass(frozen=True)
class Photo:
    """A picture with its objects."""

    name: str  # below the data's folder
    path: Path
    size: tuple[int, int]  # rows and columns of the upright image
    things: tuple[Thing, ...]
    origin: str = "all"  # "all", or "train", "val" and "test"
    bytes: int = 0
    grey: bool = False


@dataclass
class Annotations:
    """The pictures of a folder, in the order of their names, and what was wrong with the rest."""

    classes: tuple[str, ...]
    photos: list[Photo]
    notes: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # a file, or an object of it -> why it was left out

    @property
    def masks(self) -> bool:
        """Whether masks can be learnt: more than half of the objects have one."""
        have = [t.mask is not None for p in self.photos for t in p.things if t.trained]
        return 2 * sum(have) > len(have)

    def with_masks(self) -> Annotations:
        """Without the objects that have none; they are named."""
        skipped, photos, lost = dict(self.skipped), [], 0
        for p in self.photos:
            bare = [i for i, t in enumerate(p.things) if t.trained and t.mask is None]
            skipped.update({f"{p.name}, object {i + 1}": "it has no mask" for i in bare})
            photos.append(_with(p, [t for i, t in enumerate(p.things) if i not in bare]))
            lost += len(bare)
        note = f"{lost} object{'s' if lost != 1 else ''} without a mask left out."
        return Annotations(self.classes, photos, [*self.notes, *([note] if lost else [])], skipped)

    @property
    def fingerprint(self) -> str:
        """Of names, sizes and annotations: other data have another."""
        digest = hashlib.sha256(repr(self.classes).encode())
        for p in self.photos:
            digest.update(repr((p.name, p.bytes, p.size, p.origin, p.things)).encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


class Findings:
    """What is wrong with the data, gathered while they are read."""

    def __init__(self) -> None:
        self.skipped: dict[str, str] = {}
        self.cut: list[str] = []  # objects whose boxes reached over the edge
        self.notes: list[str] = []

    def skip(self, what: str, why: str) -> None:
        """Leave a file or an object out."""
        self.skipped[what] = why

    def box(self, what: str, box: Sequence[float], size: tuple[int, int]) -> Box | None:
        """The box inside the image, or nothing where there is none."""
        left, top, right, bottom = box
        if not all(map(math.isfinite, box)):
            self.skip(what, "its box holds a value that is no finite number")
            return None
        if right <= left or bottom <= top:
            self.skip(what, f"its box is empty: {_numbers(box)}")
            return None
        rows, columns = size
        inside = max(left, 0.0), max(top, 0.0), min(right, float(columns)), min(bottom, float(rows))
        if inside[2] - inside[0] < 1 or inside[3] - inside[1] < 1:
            kind = (
                "lies outside the image" if inside[2] <= inside[0] or inside[3] <= inside[1] else "is below one pixel"
            )
            self.skip(what, f"its box {_numbers(box)} {kind} of {columns}x{rows}")
            return None
        if max(abs(a - b) for a, b in zip(inside, box)) > EDGE:
            self.cut.append(what)
        return inside

    def sentences(self) -> list[str]:
        """For the log."""
        found = list(self.notes)
        if self.cut:
            names = ", ".join(self.cut[:3]) + (", ..." if self.cut[3:] else "")
            found.append(f"Boxes that reach over the edge of their image are cut to it: {len(self.cut)} ({names}).")
        objects = sum(", object " in what for what in self.skipped)
        for count, kind in ((len(self.skipped) - objects, "file"), (objects, "object")):
            if count:
                first = next(what for what in self.skipped if (", object " in what) == (kind == "object"))
                few = f"{count} {kind}{'s' if count != 1 else ''} left out"
                found.append(f"{few}, the first is {first}: {self.skipped[first]}.")
        return found


def _numbers(box: Sequence[float]) -> str:
    return "(" + ", ".join(f"{v:g}" for v in box) + ")"


def read_annotations(source: str) -> Annotations:
    """The pictures and objects of a folder in one of the known layouts."""
    root = Path(source).expanduser()
    if not is_folder(root):
        raise TailorError(f"There is no folder '{source}'; a detector's data are {LAYOUTS}.")
    found = [(folder, kind) for folder in _around(root, DEEPEST) if (kind := _layout(folder)) is not None]
    if not found:
        raise TailorError(f"'{source}' has no annotations that can be read; {LAYOUTS}.")
    nearest = min(len(folder.parts) for folder, _ in found)
    found = [(folder, kind) for folder, kind in found if len(folder.parts) == nearest]
    if len(found) > 1:
        names = ", ".join(f"'{folder.relative_to(root)}'" for folder, _ in found)
        raise TailorError(f"'{source}' holds several data sets ({names}); name the folder of one of them.")
    folder, kind = found[0]
    findings = Findings()
    classes, photos = (_read_coco if kind == "coco" else _read_voc)(folder, findings)
    photos = sorted(photos, key=lambda p: p.name)
    if not any(t.trained for p in photos for t in p.things):
        raise TailorError(f"No object of '{source}' can be used. {' '.join(findings.sentences())}".strip())
    return Annotations(classes, photos, findings.sentences(), findings.skipped)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if not p.name.startswith((".", "__")) and is_folder(p))
    except OSError as error:
        raise TailorError(f"The folder '{folder}' cannot be listed: {reason(error)}.") from None


def _around(root: Path, depth: int) -> Iterator[Path]:
    """A folder and those in it; below a folder with a known layout nothing is looked for."""
    yield root
    if depth and _layout(root) is None:
        for folder in _folders(root):
            yield from _around(folder, depth - 1)


def _parts(root: Path) -> list[tuple[Path, str]]:
    """The folder itself, or its split folders with the split each stands for."""
    split = [(p, part) for p in _folders(root) if (part := split_of_name(p.name)) is not None]
    return [(root, "all"), *split]


def _layout(folder: Path) -> str | None:
    places = [folder, folder / "annotations", folder / "Annotations", *(p for p, _ in _parts(folder))]
    if any(_coco_files(place) for place in places):
        return "coco"
    return "voc" if any(True for place in places for _ in place.glob("*.xml")) else None


# -- images -----------------------------------------------------------------------------------------------------------


def _header(path: Path) -> tuple[tuple[int, int], bool]:
    """Rows and columns of the upright image, and whether it is grey."""
    from PIL import Image

    with Image.open(path) as image:
        return upright_size(image), is_grey(image)


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Rows and columns of an opened image once it is upright, as its camera's note says (EXIF)."""
    turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    return (image.width, image.height) if turned else (image.height, image.width)


def _photo(
    root: Path, path: Path, origin: str, said: tuple[int, int] | None, what: str, findings: Findings
) -> Photo | None:
    """A picture without its objects yet, where the file can be opened and has the size that was said."""
    try:
        size, grey = _header(path)
        length = path.stat().st_size
    except Exception as error:  # decoders raise errors of every type on broken files
        findings.skip(what, f"the image '{path.name}' cannot be read: {reason(error)}")
        return None
    if said is not None and said != size:
        findings.skip(
            what,
            f"its annotation is for {said[1]}x{said[0]} pixels and '{path.name}' has {size[1]}x{size[0]} when upright",
        )
        return None
    return Photo(path.relative_to(root).as_posix(), path, size, (), origin, length, grey)


def _with(photo: Photo, things: Sequence[Thing]) -> Photo:
    return replace(photo, things=tuple(things))


# -- VOC --------------------------------------------------------------------------------------------------------------


def read_xml(path: Path) -> Any:
    """The root of an XML file; a document type is refused, since entities in it could grow without bound."""
    from xml.etree import ElementTree
    from xml.parsers import expat

    if path.stat().st_size > LARGEST_XML:
        raise ValueError(f"it is larger than {LARGEST_XML >> 10} kB")
    data = path.read_bytes()

    def refuse(*_: Any) -> None:
        raise ValueError("it declares a document type, which an annotation has no need of")

    check = expat.ParserCreate()
    check.StartDoctypeDeclHandler = refuse
    try:
        check.Parse(data, True)
        return ElementTree.fromstring(data)
    except (expat.ExpatError, ElementTree.ParseError, LookupError) as error:
        raise ValueError(f"it is not XML: {error}") from None


def _number(text: str | None) -> float:
    try:
        return float((text or "").strip())
    except ValueError:
        return math.nan


def _said_size(tree: Any) -> tuple[int, int] | None:
    """Rows and columns an annotation names; some writers leave them out or write 0."""
    pair = _number(tree.findtext("size/height")), _number(tree.findtext("size/width"))
    if not all(map(math.isfinite, pair)) or min(pair) < 1:
        return None
    return int(pair[0]), int(pair[1])


def _voc_things(tree: Any, photo: Photo, what: str, names: list[str], known: bool, findings: Findings) -> list[Thing]:
    things = []
    for i, item in enumerate(tree.findall("object"), 1):
        here = f"{what}, object {i}"
        name = (item.findtext("name") or "").strip()
        if not name:
            findings.skip(here, "it has no class name")
            continue
        if known and name not in names:
            findings.skip(here, f"its class '{name}' is not in the list of classes")
            continue
        left, top, right, bottom = (_number(item.findtext(f"bndbox/{k}")) for k in ("xmin", "ymin", "xmax", "ymax"))
        if right > left and bottom > top:  # VOC counts pixels from 1 and names the last one inside
            left, top = left - 1, top - 1
        box = findings.box(here, (left, top, right, bottom), photo.size)
        if box is None:
            continue
        if name not in names:
            names.append(name)
        hard = (item.findtext("difficult") or "0").strip() == "1"
        things.append(Thing(names.index(name), box, counts=not hard))
    return things


def _class_list(root: Path) -> list[str]:
    for name in CLASS_LISTS:
        for folder in (root, root / "Annotations"):
            if (folder / name).is_file():
                lines = (folder / name).read_text("utf-8", "replace").splitlines()
                return list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    return []


def _set_lists(root: Path) -> dict[str, str]:
    """The split of each name in ImageSets/Main; names without their suffix."""
    parts: dict[str, str] = {}
    folder = root / "ImageSets" / "Main"
    files = {part: folder / f"{part}.txt" for part in ("train", "val", "test") if (folder / f"{part}.txt").is_file()}
    if "train" not in files and (folder / "trainval.txt").is_file():
        files = {"train": folder / "trainval.txt", **{k: v for k, v in files.items() if k == "test"}}
    for part, file in files.items():
        for line in file.read_text("utf-8", "replace").splitlines():
            if not line.strip():
                continue
            name = line.split()[0] if len(line.split()) == 2 and line.split()[1] in ("1", "-1", "0") else line.strip()
            if parts.setdefault(name, part) != part:
                raise TailorError(
                    f"'{name}' is in {parts[name]}.txt and in {part}.txt of '{folder}'; an image that is trained on "
                    "cannot judge the network."
                )
    return parts


def _read_voc(root: Path, findings: Findings) -> tuple[tuple[str, ...], list[Photo]]:
    split_folders = _parts(root)[1:]
    lists = _set_lists(root)
    names = _class_list(root)
    known = bool(names)
    photos: list[Photo] = []
    if any(True for folder, _ in split_folders for _ in folder.glob("**/*.xml")):
        places = split_folders
    else:
        places = [(root, "all")]
    taken: set[Path] = set()
    seen: set[str] = set()
    for base, part in places:
        inner = base / "Annotations"
        for file in sorted((inner if is_folder(inner) else base).glob("*.xml")):
            stem = file.stem
            seen.add(stem)
            origin = part if not lists else lists.get(stem, "")
            if not origin:
                continue
            what = file.relative_to(root).as_posix()
            try:
                tree = read_xml(file)
            except (OSError, ValueError) as error:
                findings.skip(what, reason(error))
                continue
            image = _voc_image(base, stem, tree.findtext("filename"))
            if image is None:
                findings.skip(what, f"there is no image '{stem}' for it")
                continue
            taken.add(image)
            photo = _photo(root, image, origin, _said_size(tree), what, findings)
            if photo is not None:
                photos.append(_with(photo, _voc_things(tree, photo, what, names, known, findings)))
        alone = sum(p not in taken for p in _images_of(base))
        if alone:
            findings.notes.append(
                f"{alone} image{'s' if alone != 1 else ''} of '{base.name}' without an .xml left out."
            )
    for name in sorted(set(lists) - seen):
        findings.skip(name, f"ImageSets/Main/{lists[name]}.txt names it, but it has no .xml")
    if lists and (rest := len(seen - set(lists))):
        findings.notes.append(
            f"{rest} annotated image{'s' if rest != 1 else ''} in no list of ImageSets/Main left out."
        )
    order = {name: i for i, name in enumerate(names if known else sorted(names))}
    renumbered = [_with(p, [_numbered(t, order[names[t.label]]) for t in p.things]) for p in photos]
    return tuple(order), renumbered


def _numbered(thing: Thing, label: int) -> Thing:
    return Thing(label, thing.box, thing.mask, thing.counts, thing.trained)


def _images_of(base: Path) -> list[Path]:
    folders = [base / name for name in ("JPEGImages", "images") if is_folder(base / name)] or [base]
    return sorted(p for f in folders for p in f.iterdir() if p.suffix.lower() in SUFFIXES and p.name[0] != ".")


def _voc_image(base: Path, stem: str, named: str | None) -> Path | None:
    """The image of an annotation: of its own name, or of the name it holds; never outside the folder."""
    named = (named or "").replace("\\", "/").rsplit("/", 1)[-1].strip()
    for folder in (base / "JPEGImages", base / "images", base):
        for suffix in SUFFIXES:
            for ending in (suffix, suffix.upper()):
                if (folder / f"{stem}{ending}").is_file():
                    return folder / f"{stem}{ending}"
        if named and Path(named).suffix.lower() in SUFFIXES and (folder / named).is_file():
            return folder / named
    return None


# -- COCO -------------------------------------------------------------------------------------------------------------


def _coco_files(folder: Path) -> list[Path]:
    """Files that look like object annotations; where some say so in their names, the others are something else."""
    files = sorted(p for p in folder.glob("*.json") if p.is_file()) if is_folder(folder) else []
    named = [p for p in files if "instances" in p.name.lower()]
    return named or [p for p in files if "annotation" in p.name.lower() or "coco" in p.name.lower() or _begins(p)]


def _begins(path: Path) -> bool:
    """Whether a file's name is a split's, or COCO's keys stand in its first bytes; whole files are read later."""
    if split_of_name(path.stem) is not None:
        return True
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return False
    return any(key in head for key in (b'"images"', b'"annotations"', b'"categories"'))


def _split_in(name: str) -> str:
    """The split a file's name tells, e.g. "instances_train2017"; "all" where it tells none."""
    words = "".join(c if c.isalpha() else " " for c in name).split()
    return next((part for word in words if (part := split_of_name(word)) is not None), "all")


def _json(path: Path) -> Any:
    """A JSON file. Its numbers are checked where they are used: those of a large set are too many to walk twice."""
    try:
        return json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read_coco(root: Path, findings: Findings) -> tuple[tuple[str, ...], list[Photo]]:
    files: list[tuple[Path, str]] = []
    for folder, part in _parts(root):
        for place in dict.fromkeys((folder, folder / "annotations", folder / "Annotations")):
            files += [(f, part if part != "all" else _split_in(f.stem)) for f in _coco_files(place)]
    files = [(f, part) for i, (f, part) in enumerate(files) if f.resolve() not in {g.resolve() for g, _ in files[:i]}]
    tables: list[tuple[Path, str, Mapping[str, Any]]] = []
    for file, part in files:
        what = file.relative_to(root).as_posix()
        try:
            table = _json(file)
        except (OSError, ValueError) as error:
            findings.skip(what, f"it is no JSON that can be read: {reason(error)}")
            continue
        keys = ("images", "annotations", "categories")
        if not isinstance(table, dict) or not all(isinstance(table.get(key), list) for key in keys):
            findings.skip(what, f"it has not the lists {', '.join(keys)}")
            continue
        tables.append((file, part, table))
    whole = [f.name for f, part, _ in tables if part == "all"]
    if len(whole) > 1 or (whole and len(tables) > 1):
        raise TailorError(
            f"'{root}' has several annotation files, and the names of {', '.join(whole)} tell no split: "
            "keep one, or name them after train, val and test."
        )
    names: list[str] = []
    photos: dict[str, Photo] = {}
    for file, part, table in tables:
        for photo in _coco_photos(root, file, part, table, names, findings):
            if photo.name in photos:
                raise TailorError(f"'{photo.name}' is annotated twice in '{root}', the second time in {file.name}.")
            photos[photo.name] = photo
    return tuple(names), list(photos.values())


def _categories(what: str, table: Mapping[str, Any], names: list[str], findings: Findings) -> dict[Any, int]:
    """Class numbers by category id."""
    numbers: dict[Any, int] = {}
    for i, item in enumerate(table["categories"], 1):
        name = str(item.get("name") or "").strip() if isinstance(item, dict) else ""
        if not name or not isinstance(item.get("id"), int | str):
            findings.skip(f"{what}, category {i}", "it has no name or no id")
            continue
        if item["id"] in numbers:
            raise TailorError(f"{what} has two categories with the id {item['id']}.")
        if name not in names:
            names.append(name)
        numbers[item["id"]] = names.index(name)
    return numbers


def _coco_photos(
    root: Path, file: Path, part: str, table: Mapping[str, Any], names: list[str], findings: Findings
) -> list[Photo]:
    what = file.relative_to(root).as_posix()
    numbers = _categories(what, table, names, findings)
    of: dict[Any, list[tuple[int, Mapping[str, Any]]]] = {}
    images: dict[Any, Photo | None] = {}
    for i, item in enumerate(table["images"], 1):
        key = item.get("id") if isinstance(item, dict) else None
        name = item.get("file_name") if isinstance(item, dict) else None
        if not isinstance(key, int | str) or not isinstance(name, str) or not name.strip():
            findings.skip(f"{what}, image {i}", "it has no id or no file_name")
            continue
        if key in images:
            raise TailorError(f"{what} has two images with the id {key}.")
        images[key] = None
        path = _coco_image(root, file, part, name)
        if path is None:
            findings.skip(f"{what}, image {name}", "there is no such image")
            continue
        said = item.get("height"), item.get("width")
        size = (said[0], said[1]) if isinstance(said[0], int) and isinstance(said[1], int) else None
        images[key] = _photo(root, path, part, size, f"{what}, image {name}", findings)
    for i, item in enumerate(table["annotations"], 1):
        key = item.get("image_id") if isinstance(item, dict) else None
        if not isinstance(key, int | str) or key not in images:
            findings.skip(f"{what}, object {i}", f"it is of the image {key}, which is not listed")
        elif images[key] is not None:
            of.setdefault(key, []).append((i, item))
    photos = []
    for key, photo in images.items():
        if photo is not None:
            found = (_coco_thing(f"{what}, object {i}", item, photo, numbers, findings) for i, item in of.get(key, ()))
            photos.append(_with(photo, [t for t in found if t is not None]))
    return photos


def _coco_thing(
    here: str, item: Mapping[str, Any], photo: Photo, numbers: Mapping[Any, int], findings: Findings
) -> Thing | None:
    here = f"{here} ({photo.name})"
    kind = item.get("category_id")
    if not isinstance(kind, int | str) or kind not in numbers:
        findings.skip(here, f"its class {kind} is not among the categories")
        return None
    box = item.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(_fair(v) for v in box):
        findings.skip(here, f"its bbox is not four numbers: {str(box)[:60]}")
        return None
    left, top, width, height = map(float, box)
    inside = findings.box(here, (left, top, left + width, top + height), photo.size)
    if inside is None:
        return None
    mask, problem = _coco_mask(item.get("segmentation"), photo.size)
    if problem:
        findings.skip(here, problem)
        return None
    crowd = bool(item.get("iscrowd", 0))
    return Thing(numbers[kind], inside, mask, not crowd, not crowd)


def _fair(value: Any) -> bool:
    """Whether a value is a number that can be a coordinate."""
    return isinstance(value, int | float) and abs(value) < 1e9


def _coco_mask(found: Any, size: tuple[int, int]) -> tuple[Any, str]:
    """Polygons or run lengths that can be drawn, and what is wrong with them."""
    if not found:
        return None, ""
    if isinstance(found, dict):
        counts = found.get("counts")
        if found.get("size") != list(size):
            return None, f"its mask is of {str(found.get('size'))[:40]} pixels, the image of {list(size)}"
        if isinstance(counts, list):
            if not all(isinstance(c, int) and c >= 0 for c in counts) or sum(counts) != size[0] * size[1]:
                return None, "the run lengths of its mask do not fill the image"
            return {"size": list(size), "counts": counts}, ""
        if not isinstance(counts, str) or not _whole_runs(counts, size[0] * size[1]):
            return None, "the run lengths of its mask do not fill the image"
        return {"size": list(size), "counts": counts}, ""
    polygons = found if isinstance(found, list) and all(isinstance(p, list) for p in found) else None
    good = polygons is not None and all(len(p) >= 6 and len(p) % 2 == 0 and all(_fair(v) for v in p) for p in polygons)
    if not good or polygons is None:
        return None, "its mask has a polygon that is not three or more points"
    # Points far outside would cost the drawing library memory, and nobody sees them.
    limits = (2.0 * size[1], 2.0 * size[0])
    return [[min(max(v, -limits[i % 2]), limits[i % 2]) for i, v in enumerate(p)] for p in polygons], ""


def _whole_runs(text: str, pixels: int) -> bool:
    """Whether a compressed string of run lengths adds up to the image; the library would read past its end."""
    runs: list[int] = []
    at = 0
    while at < len(text):
        value, shift, more = 0, 0, True
        while more:
            if at >= len(text) or shift > 40:
                return False
            byte = ord(text[at]) - 48
            if not 0 <= byte < 64:
                return False
            value |= (byte & 0x1F) << shift
            more, at, shift = bool(byte & 0x20), at + 1, shift + 5
            if not more and byte & 0x10:
                value -= 1 << shift
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        if runs[-1] < 0 or len(runs) > pixels + 1:
            return False
    return sum(runs) == pixels


def _coco_image(root: Path, file: Path, part: str, name: str) -> Path | None:
    """The image a file names, in the places where writers put them; never outside the data's folder."""
    inner = Path(name.replace("\\", "/"))
    if inner.is_absolute() or ".." in inner.parts:
        return None
    tail = file.stem.rsplit("_", 1)[-1]  # instances_train2017.json -> train2017
    around = (file.parent, root)
    places = [*around, *(a / "images" for a in around)]
    places += [root / tail, root / "images" / tail, root / part, root / "images" / part, root / "JPEGImages"]
    return next((p / inner for p in places if (p / inner).is_file()), None)
