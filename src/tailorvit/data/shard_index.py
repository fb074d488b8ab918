"""What lies in a shard: the place, size, label and name of every sample, read once and kept on disk.

Of a tar file only headers and labels are read, of a Parquet file its footer and its label column.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tailorvit.data.disk_cache import DiskCache
from tailorvit.data.shard_files import Shard, fetch, library, open_shard
from tailorvit.data.splits import Ints
from tailorvit.descriptors import open_file, read_at
from tailorvit.errors import TailorError
from tailorvit.portable import SUFFIXES
from tailorvit.runs.atomic import write_bytes
from tailorvit.texts import parse_json, shown

FORMAT = 1
LABELS = ("cls", "json", "txt")  # files of a sample that may hold its class, in this order
LABEL_COLUMNS = ("label", "labels", "class", "cls", "target")  # of a table that does not say what a column holds
KEYS = ("label", "class", "cls")  # in a .json file
LONGEST = 1 << 20  # bytes of a label file or of a header's texts
IMAGES = tuple(suffix[1:] for suffix in SUFFIXES)


@dataclass(frozen=True)
class ShardIndex:
    """The samples of a shard, in its order."""

    at: Ints  # the image's offset; its row where the shard must be unpacked
    size: Ints  # bytes of the image; 0 where the shard must be unpacked
    label: Ints  # a number, or a place in ``words``; -1: none
    words: tuple[str, ...] | None = None  # the names of classes, where labels are names
    classes: tuple[str, ...] | None = None  # what a Parquet file calls the labels 0, 1, ...
    names: bytes = b""  # of the samples, one after another
    ends: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # of the names
    column: str = ""  # of the images in a Parquet file
    unpacked: int = 0  # bytes it takes unpacked, about
    skipped: tuple[tuple[str, str], ...] = ()  # samples left out, each with the reason


def read_index(shard: Shard, cache: DiskCache, columns: Mapping[str, str]) -> ShardIndex:
    """The index of a shard; a remote tar file is fetched for it."""
    if shard.packed:
        try:
            with open_shard(shard) as source:
                return _read_parquet(source, shard, columns)
        except TailorError:
            raise
        except Exception as error:  # Arrow's errors, and those of file systems elsewhere
            first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise TailorError(f"'{shown(shard.place)}' cannot be read as a .parquet file: {shown(first)}.") from error
    file = fetch(shard, cache) if shard.remote else open_file(shard.place, os.O_RDONLY)
    try:
        return _read_tar(file, shard)
    finally:
        os.close(file)


# -- tar --------------------------------------------------------------------------------------------------------------
#
# Python's tarfile takes some 200 microseconds for a sample of two files as webdataset writes them, four headers with
# their extensions. This reader knows what archives of samples consist of, and takes a tenth.

_OWN = re.compile(r"__[^/]*__($|/)")  # what webdataset keeps for itself
_UNIT = 512
_AHEAD = 4096  # bytes read at a time: the headers and labels of a sample mostly lie side by side


class _Damaged(Exception):
    pass


class _Bytes:
    """An open file, read in pieces."""

    def __init__(self, file: int) -> None:
        self.file, self.size = file, os.fstat(file).st_size
        self.low, self.held = 0, b""

    def read(self, at: int, count: int) -> bytes:
        low = at - self.low
        if low < 0 or low + count > len(self.held):
            self.low, self.held = at, read_at(self.file, max(count, _AHEAD), at)
            low = 0
        return self.held[low : low + count]


def _members(data: _Bytes) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of every regular file of an archive."""
    at, name, size = 0, "", -1  # what an extended header says of the next file
    while True:
        header = data.read(at, _UNIT)
        if len(header) < _UNIT:
            raise _Damaged("it is cut off")
        if not header[0]:
            if any(header):
                raise _Damaged(f"there is no header at byte {at:,}")
            for rest in range(at, data.size, LONGEST):
                if read_at(data.file, LONGEST, rest).strip(b"\0"):
                    raise _Damaged(f"there is more after its end at byte {at:,}")
            return
        try:
            told = int(header[148:156].strip(b" \0") or b"0", 8)
            own = _number(header[124:136])
        except ValueError:
            raise _Damaged(f"there is no header at byte {at:,}") from None
        if sum(header) - sum(header[148:156]) + 8 * 32 != told:
            raise _Damaged(f"the header at byte {at:,} is damaged")
        kind, begin = header[156:157], at + _UNIT
        if kind in b"xgLK":
            if own > LONGEST:
                raise _Damaged(f"the header at byte {at:,} is damaged")
            text = data.read(begin, own)
            if kind == b"L":
                name = _text(text.rstrip(b"\0"))
            elif kind == b"x":
                said = _records(text, at)
                name, size = said.get("path", name), int(said.get("size", size))
        else:
            if kind in b"123456":  # links, devices, folders
                own = 0
            elif size >= 0:
                own = size
            if begin + own > data.size:
                raise _Damaged("it is cut off")
            if kind in b"0\x007":
                yield name or _ustar_name(header), begin, own
            name, size = "", -1
        at = begin + -(-own // _UNIT) * _UNIT


def _number(raw: bytes) -> int:
    """A size: octal digits, or for large ones a binary number."""
    if raw[0] & 0x80:
        return int.from_bytes(raw[1:], "big")
    return int(raw.strip(b" \0") or b"0", 8)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _ustar_name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _records(text: bytes, at: int) -> dict[str, str]:
    """What an extended header says: lines of "LENGTH KEY=VALUE"."""
    found = {}
    try:
        while text.strip(b"\0"):
            length = int(text.split(b" ", 1)[0])
            key, _, value = text[:length].split(b" ", 1)[1].removesuffix(b"\n").partition(b"=")
            if length < 5:
                raise ValueError
            found[_text(key)], text = _text(value), text[length:]
    except (ValueError, IndexError):
        raise _Damaged(f"the header at byte {at:,} is damaged") from None
    return found


def _read_tar(file: int, shard: Shard) -> ShardIndex:
    """Files of one sample share their name up to the first dot, and follow each other."""
    base_plus_ext = library("webdataset", "Reading shards").tariterators.base_plus_ext
    data, rows, found = _Bytes(file), list[tuple[str, int, int]](), list[int | str | None]()
    skipped, key, sample = list[tuple[str, str]](), "", dict[str, tuple[int, int]]()

    def end_sample() -> None:
        image = next((e for e in sample if e in IMAGES), None) or next(
            (e for e in sample if e.rpartition(".")[2] in IMAGES), None
        )
        if image is None:
            if sample:
                skipped.append((f"{shard.name}/{key}", "the sample has no image"))
            return
        rows.append((f"{key}.{image}", *sample[image]))
        found.append(_label(data, sample, key))

    try:
        for name, at, size in _members(data):
            base, ext = base_plus_ext(name)
            hidden = name.rpartition("/")[2].startswith(".")
            if base is None or hidden or _OWN.match(name):
                continue
            if base != key:
                end_sample()
                key, sample = base, {}
            sample.setdefault(ext.lower(), (at, size))
        end_sample()
    except _Damaged as error:
        raise TailorError(
            f"'{shown(shard.place)}' is damaged after {len(rows)} samples ({error}): fetch it again, or leave it out."
        ) from None
    return _indexed(rows, found, skipped, shard)


def _label(data: _Bytes, sample: Mapping[str, tuple[int, int]], key: str) -> int | str | None:
    """A class number or name: from a file of the sample, or the folder it lies in; None where nothing says."""
    for ext in LABELS:
        at, size = sample.get(ext, (0, 0))
        if not 0 < size <= LONGEST:
            continue
        text = data.read(at, size).decode("utf-8", "replace").strip()
        if ext == "json":
            try:
                said = parse_json(text)
            except ValueError:
                continue
            value = next((said[k] for k in KEYS if k in said), None) if isinstance(said, dict) else None
            text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
        if text:
            number = text.removeprefix("-")
            return int(text) if number.isdecimal() and number.isascii() and len(number) < 18 else text
    folder = key.rpartition("/")[0].rpartition("/")[2]
    return folder if folder not in ("", ".") else None


def _indexed(
    rows: list[tuple[str, int, int]],
    found: list[int | str | None],
    skipped: list[tuple[str, str]],
    shard: Shard,
) -> ShardIndex:
    """The index of a tar file's samples."""
    if not rows:
        raise TailorError(f"There is no sample with an image in '{shown(shard.place)}'.")
    label, words = label_numbers(found, f"'{shown(shard.place)}'")
    encoded = [name.encode("utf-8", "surrogateescape") for name, _, _ in rows]
    return ShardIndex(
        np.asarray([at for _, at, _ in rows]),
        np.asarray([size for _, _, size in rows]),
        label,
        words,
        names=b"".join(encoded),
        ends=np.cumsum([len(name) for name in encoded]),
        skipped=tuple(skipped),
    )


def label_numbers(found: Sequence[Any], where: str) -> tuple[Ints, tuple[str, ...] | None]:
    """Labels as numbers, and their names where they are names; -1 for those that are missing or negative."""
    wrong = next((v for v in found if not (v is None or isinstance(v, int | str)) or isinstance(v, bool)), None)
    if wrong is not None:
        raise TailorError(f"A label in {where} is neither a class number nor a name: {shown(repr(wrong)[:60])}.")
    names = sorted({value for value in found if isinstance(value, str)})
    number = next((value for value in found if isinstance(value, int)), None)
    if not names:
        return np.maximum([-1 if value is None else int(value) for value in found], -1).astype(np.int64), None
    if number is not None:
        raise TailorError(f"Some labels in {where} are numbers ({number}), others names ('{shown(names[0][:40])}').")
    place = {name: i for i, name in enumerate(names)}
    return np.asarray([-1 if value is None else place[value] for value in found], np.int64), tuple(names)


# -- Parquet ----------------------------------------------------------------------------------------------------------


def _read_parquet(source: Any, shard: Shard, columns: Mapping[str, str]) -> ShardIndex:
    parquet = library("pyarrow.parquet", "Reading .parquet files")
    file = parquet.ParquetFile(source, pre_buffer=True)
    schema, meta = file.schema_arrow, file.metadata
    features = _features(schema)
    image = choose_column("image", columns, _image_columns(schema, features), schema.names, shard.place)
    named = {n for n, f in features.items() if f.get("_type") == "ClassLabel"}
    usual = [n for n in schema.names if n.lower() in LABEL_COLUMNS]
    label = choose_column("label", columns, sorted(named) or usual, schema.names, shard.place)
    found = file.read(columns=[label]).column(0).to_pylist()
    numbers, words = label_numbers(found, f"'{shown(shard.place)}'")
    groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
    parts = [group.column(i) for group in groups for i in range(group.num_columns)]
    own = [part for part in parts if part.path_in_schema in (image, f"{image}.bytes")]
    classes = features[label].get("names") if label in named else None
    return ShardIndex(
        np.arange(len(found)),
        np.zeros(len(found), np.int64),
        numbers,
        words,
        tuple(map(str, classes)) if isinstance(classes, list) else None,
        column=image,
        unpacked=sum(part.total_uncompressed_size for part in own) + 8 * (len(found) + 2),
    )


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """What the library datasets wrote about the columns."""
    raw = (schema.metadata or {}).get(b"huggingface")
    try:
        found = parse_json(raw.decode())["info"]["features"] if raw else {}
        return {name: f for name, f in found.items() if isinstance(f, dict)}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def _image_columns(schema: Any, features: Mapping[str, Mapping[str, Any]]) -> list[str]:
    said = [n for n in schema.names if features.get(n, {}).get("_type") == "Image"]
    if said:
        return said
    kinds = {f.name: str(f.type) for f in schema}
    return [n for n, kind in kinds.items() if kind in ("binary", "large_binary") or kind.startswith("struct<bytes:")]


def choose_column(what: str, wanted: Mapping[str, str], candidates: list[str], names: list[str], place: str) -> str:
    """The column a user named, or the only candidate."""
    if what in wanted:
        if wanted[what] not in names:
            raise TailorError(
                f"'{shown(place)}' has no column '{wanted[what]}' for {what}; its columns: {', '.join(names)}."
            )
        return wanted[what]
    if len(candidates) != 1:
        which = f"the columns {', '.join(candidates)} could be the {what}" if candidates else f"no column is the {what}"
        raise TailorError(
            f"In '{shown(place)}' {which}: add ?{what}=NAME to the source; its columns: {', '.join(names)}."
        )
    return candidates[0]


# -- kept on disk -----------------------------------------------------------------------------------------------------


def kept_index(folder: Path, shard: Shard, columns: Mapping[str, str]) -> ShardIndex | None:
    """The stored index of a shard; None where it is missing, damaged or of another shard."""
    try:
        with np.load(_file(folder, shard, columns), allow_pickle=False) as arrays:
            numbers, text = arrays["numbers"], arrays["text"].tobytes()
        facts, _, names = text.partition(b"\n")
        said = parse_json(facts.decode())
        words, classes = (None if said[k] is None else tuple(said[k]) for k in ("words", "classes"))
        at, size, label, ends = numbers.astype(np.int64)
        if said["of"] != [FORMAT, shard.size, shard.stamp] or said["names"] != len(names) or numbers.shape[0] != 4:
            return None
        if not len(at) or (words is not None and label.max() >= len(words)) or ends.max() > len(names):
            return None
        skipped = tuple((str(name), str(why)) for name, why in said["skipped"])
        ends = ends if names else ends[:0]
        return ShardIndex(
            at, size, label, words, classes, names, ends, str(said["column"]), int(said["unpacked"]), skipped
        )
    except Exception:  # numpy has many errors for a file that is not whole
        return None


def keep_index(folder: Path, shard: Shard, columns: Mapping[str, str], index: ShardIndex) -> None:
    """Store the index of a shard: plain numbers, and a line of JSON before the names."""
    facts = {
        "of": [FORMAT, shard.size, shard.stamp],
        "words": index.words,
        "classes": index.classes,
        "column": index.column,
        "unpacked": index.unpacked,
        "skipped": index.skipped,
        "names": len(index.names),
    }
    ends = index.ends if len(index.ends) else np.zeros(len(index.at), np.int64)
    text = json.dumps(facts).encode() + b"\n" + index.names
    out = io.BytesIO()
    np.savez(out, numbers=np.stack([index.at, index.size, index.label, ends]), text=np.frombuffer(text, np.uint8))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(_file(folder, shard, columns), out.getvalue())
    except OSError as error:
        raise TailorError(f"The index of '{shown(shard.place)}' cannot be stored in '{folder}': {error}.") from None


def _file(folder: Path, shard: Shard, columns: Mapping[str, str]) -> Path:
    chosen = "".join(f"-{columns[k]}" for k in sorted(columns))
    return folder / f"{shard.key}{''.join(c if c.isalnum() or c in '-_' else '.' for c in chosen)}.npz"
