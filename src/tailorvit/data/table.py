"""Tables of image files with their classes: a CSV file, or a DataFrame written as one."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from tailorvit.data.images import LazyImageSet
from tailorvit.data.shard_index import LABEL_COLUMNS, choose_column
from tailorvit.data.shards import named_columns
from tailorvit.data.sources import DataSource, image_files, split_of_name
from tailorvit.errors import TailorError
from tailorvit.texts import shown

FILE_COLUMNS = ("file", "path", "image", "filename", "filepath", "file_name", "file_path", "image_path")
CLASS_COLUMNS = (*LABEL_COLUMNS, "category", "class_name")
SPLIT_COLUMNS = ("split", "part", "set", "subset")
SUFFIXES = (".csv", ".tsv")
LONGEST = 1 << 30  # bytes


def read_table_file(text: str) -> LazyImageSet:
    """The images of a table: a column of files, one of classes, and perhaps one of splits.

    Files are found from the table's folder. Rows are sorted by split, class and file, so the order of a table does not
    matter, and a table of a folder's images is split as the folder is.
    """
    place, columns = named_columns(text)
    path = Path(place).expanduser()
    header, rows = _rows(path)
    names = {name.lower(): name for name in header}

    def column(what: str, usual: tuple[str, ...]) -> str:
        return choose_column(what, columns, [names[n] for n in usual if n in names], header, place)

    file, label = column("image", FILE_COLUMNS), column("label", CLASS_COLUMNS)
    split = column("split", SPLIT_COLUMNS) if any(n in names for n in SPLIT_COLUMNS) else None
    at = {name: header.index(name) for name in (file, label, *([split] if split else []))}
    found: dict[Path, tuple[str, str]] = {}
    notes: list[str] = []
    empty = twice = 0
    for number, row in rows:
        where = f"'{shown(place)}', line {number}"
        if len(row) < len(header):
            raise TailorError(f"{where} has {len(row)} values for {len(header)} columns.")
        image, name = row[at[file]].strip(), row[at[label]].strip()
        if not image or not name:
            empty += 1
            continue
        part = "all" if split is None else _part(row[at[split]].strip(), where)
        whole = path.parent / Path(image).expanduser()
        if found.setdefault(whole, (part, name)) != (part, name):
            before = " in ".join(reversed(found[whole])).removesuffix(" in all")
            raise TailorError(
                f"{where} gives '{shown(image)}' the class '{shown(name)}', but an earlier line {before}."
            )
        twice += 1
    twice -= len(found)
    if not found:
        raise TailorError(f"'{shown(place)}' names no image with a class.")
    parts = {part for part, _ in found.values()}
    if "train" not in parts and parts != {"all"}:
        raise TailorError(f"'{shown(place)}' has the split {', '.join(sorted(parts))} but no 'train'.")
    if empty:
        notes.append(f"{empty} line(s) of '{shown(place)}' without a file or a class are not used.")
    if twice:
        notes.append(f"{twice} line(s) of '{shown(place)}' repeat another and count once.")
    ordered = sorted((part, name, image) for image, (part, name) in found.items())
    if parts == {"train"}:
        ordered = [("all", name, image) for _, name, image in ordered]
    return image_files(
        [image for _, _, image in ordered],
        [name for _, name, _ in ordered],
        [part for part, _, _ in ordered],
        path.parent,
        notes,
    )


def _part(word: str, where: str) -> str:
    part = split_of_name(word)
    if part is None:
        raise TailorError(f"{where} has the split '{shown(word)}'; splits are called train, val or test.")
    return part


def _rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of the columns, and the rows with the numbers of their lines."""
    try:
        if path.stat().st_size > LONGEST:
            raise TailorError(f"'{shown(str(path))}' is larger than {LONGEST >> 20} MiB; give a folder of images.")
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
        tabs = path.suffix.lower() == ".tsv" or text.partition("\n")[0].count("\t") > text.partition("\n")[0].count(",")
        semicolons = ";" in text.partition("\n")[0] and "," not in text.partition("\n")[0]
        reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if tabs else ";" if semicolons else ",")
        header = [name.strip() for name in next(reader, [])]
        rows = [(reader.line_num, row) for row in reader if any(value.strip() for value in row)]
    except (OSError, csv.Error) as error:
        raise TailorError(f"'{shown(str(path))}' cannot be read as a table: {error}.") from None
    if len(set(header)) != len(header) or "" in header[1:]:
        raise TailorError(f"'{shown(str(path))}' needs a first line that names its columns, each by its own name.")
    return header, rows


TABLE = DataSource(
    "table",
    "a table with a column of image files and one of classes, and perhaps one of splits",
    read_table_file,
    "table:FILE.csv?image=NAME&label=NAME, or just FILE.csv",
    lambda path: path.is_file() and path.suffix.lower() in SUFFIXES,
)
