"""Data in shards: tar files as webdataset writes them and Parquet files, here or elsewhere, larger than a disk."""

from __future__ import annotations

import hashlib
import io
import logging
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from tailorvit import ranks, units
from tailorvit.data.disk_cache import DiskCache, cache_root
from tailorvit.data.images import Ahead, LazyImageSet, UnreachableError
from tailorvit.data.shard_files import FETCHERS, KINDS, Shard, ShardFiles, find_shards, read_beside
from tailorvit.data.shard_index import ShardIndex, keep_index, kept_index, read_index
from tailorvit.data.sources import DataSource, named_classes, split_of_name
from tailorvit.data.splits import Ints
from tailorvit.errors import TailorError
from tailorvit.portable import is_grey, reason, usable_cores
from tailorvit.rng import generator
from tailorvit.texts import parse_json, shown

if TYPE_CHECKING:
    from PIL import Image

WINDOW = 32  # shards whose samples are shuffled together
WINDOW_BYTES = 8 << 30  # and no more than this, so that two windows fit on a disk
GROUPS = 8  # pieces of a batch, each from shards of its own: processes and machines share them out
LOOKED_AT = 16  # shards that sizes, mean and deviation come from
SAMPLES = 200  # images whose header is read
PATIENCE = 2.0  # seconds before the terminal shows that shards are indexed
_log = logging.getLogger(__name__)


# -- the order of an epoch --------------------------------------------------------------------------------------------


def windows(sizes: Sequence[int]) -> list[int]:
    """Where windows end, for shards of so many bytes in this order."""
    ends, count, held = list[int](), 0, 0
    for k, size in enumerate(sizes):
        if count and (count == WINDOW or held + size > WINDOW_BYTES):
            ends.append(k)
            count = held = 0
        count, held = count + 1, held + size
    return [*ends, len(sizes)]


def epoch_order(shards: Ints, sizes: Ints, seed: int, epoch: int, batch: int) -> Ints:
    """The positions of an epoch, for images in these shards, which have so many bytes.

    Shards come in a random order, some at a time; the images of such a window are shuffled. Each batch takes the same
    number from every group of a window's shards, and has them in a piece of its first half and its mirror image in the
    second: the rows of one process, or of several side by side, whatever their number. It depends on nothing else.
    """
    rng = generator(seed, "epoch", epoch)
    every: Ints = rng.permutation(len(shards)).astype(np.int64)
    there, counts = np.unique(shards, return_counts=True)
    if len(windows(sizes[there].tolist())) == 1:
        return every  # nothing would be gained
    turns = rng.permutation(len(there))
    turn = np.empty(int(there[-1]) + 1, np.int64)
    turn[there[turns]] = np.arange(len(there))
    every = every[np.argsort(turn[shards[every]], kind="stable")]  # shard after shard, each shuffled
    ends = np.cumsum(counts[turns])
    parts, low, first = list[Ints](), 0, 0
    for last in windows(sizes[there[turns]].tolist()):
        high = int(ends[last - 1]) // batch * batch  # what is left over goes into the next window
        parts.append(_dealt(every[low:high], batch, min(GROUPS, max(1, (last - first) // 4)), rng))
        low, first = high, last
    return np.concatenate([*parts, every[low:]])


def _dealt(images: Ints, batch: int, groups: int, rng: np.random.Generator) -> Ints:
    """A window's images as batches, whose pieces come from one group of neighbouring images each."""
    steps, pairs, at = len(images) // batch, batch // 2, 0
    out = np.empty((steps, batch), np.int64)
    for group in range(groups):
        low, high = pairs * group // groups, pairs * (group + 1) // groups
        odd = [batch - 1] if batch % 2 and group == groups - 1 else []
        rows = [*range(low, high), *range(2 * pairs - high, 2 * pairs - low), *odd]
        piece = images[at : at + steps * len(rows)]
        out[:, rows] = rng.permutation(piece).reshape(steps, len(rows))
        at += len(piece)
    return out.reshape(-1)


# -- the set of images ------------------------------------------------------------------------------------------------


class _Names(Sequence[str]):
    """The names of samples: SHARD/NAME of a tar file, SHARD[ROW] of a Parquet file."""

    def __init__(self, shards: Sequence[Shard], indices: Sequence[ShardIndex], places: Ints) -> None:
        self.shards, self.indices, self.places = shards, indices, places  # among all samples of the shards
        self.starts = np.cumsum([0, *(len(i.at) for i in indices)])

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        among = int(self.places[at])
        number = int(np.searchsorted(self.starts, among, "right")) - 1
        index, k, place = self.indices[number], among - int(self.starts[number]), self.shards[number].place
        if not len(index.ends):
            return f"{place}[{k}]"
        begin = int(index.ends[k - 1]) if k else 0
        return f"{place}/{index.names[begin : int(index.ends[k])].decode('utf-8', 'surrogateescape')}"


class ShardImageSet(LazyImageSet):
    """Images in shards; ``shards`` has the number of each image's."""

    def __init__(self, reader: ShardFiles, shards: Ints, **named: Any) -> None:
        super().__init__(threads=True, **named)
        self.reader, self.shards = reader, shards
        self.on_disk = np.asarray(reader.bytes, np.int64)

    def spaced(self, ids: Ints, count: int) -> Ints:
        """From a few shards alone, so that not all are fetched for it."""
        assert self.shards is not None
        return super().spaced(in_few_shards(ids, self.shards), count)

    def order(self, ids: Ints) -> Callable[[int, int, int], Ints]:
        """Window by window."""
        assert self.shards is not None
        numbers = self.shards[ids]
        return lambda seed, epoch, batch: epoch_order(numbers, self.on_disk, seed, epoch, batch)

    def ahead(self, ids: Ints) -> Ahead | None:
        """Shards that are read from the cache are fetched, unless memory holds what is needed of them."""
        numbers = self.shards
        if numbers is None or not any(map(self.reader.fetched, range(len(self.reader.shards)))):
            return None

        def shards_of(at: Ints) -> Ints:
            wanted = ids[at]
            return numbers[wanted[~self.cache.has(wanted)]]

        return lambda steps: self.reader.ahead((step, shards_of(at)) for step, at in steps)

    def changed(self) -> list[str]:
        """Local shards that are gone or were written again."""
        found = []
        for shard in self.reader.shards:
            if shard.remote:
                continue
            try:
                status = Path(shard.place).stat()
                same = (status.st_size, str(status.st_mtime_ns)) == (shard.size, shard.stamp)
            except OSError:
                same = False
            found += [] if same else [shard.name]
        return found


def in_few_shards(ids: Ints, shards: Ints) -> Ints:
    """Those of the ids that lie in some shards, evenly spaced."""
    there = np.unique(shards[ids])
    some = there[np.unique(np.linspace(0, len(there) - 1, min(len(there), LOOKED_AT)).astype(np.int64))]
    few: Ints = ids[np.isin(shards[ids], some)]
    return few


# -- reading a set ----------------------------------------------------------------------------------------------------


def read_shards(text: str) -> ShardImageSet:
    """The set of images that a place stands for: shards found and indexed, classes named, some headers read."""
    place, columns = named_columns(text)
    where, cache = f"'{shown(place)}'", DiskCache(cache_root() / "shards")
    shards = find_shards(place)
    parts = _parts(shards, where)
    shards, parts, indices, notes = _labelled(shards, parts, _indices(shards, cache, columns), where)
    label, words = _joined_labels(indices, where)
    kept = np.flatnonzero(label >= 0)
    names = _Names(shards, indices, kept)
    values, labels = np.unique(label[kept], return_inverse=True)
    classes = named_classes(values, words or _classes_beside(shards), where)
    lengths = [len(index.at) for index in indices]
    number = np.repeat(np.arange(len(shards)), lengths)[kept]
    origin = np.repeat(np.asarray(parts), lengths)[kept]
    at, size = np.concatenate([np.stack([index.at, index.size]) for index in indices], 1)[:, kept]
    column = next((index.column for index in indices if index.column), "")
    files = ShardFiles(shards, cache, column, [index.unpacked for index in indices])
    _require_disk(files, where)

    def opener(i: int) -> Image.Image:
        from PIL import Image

        return Image.open(io.BytesIO(files.read(int(number[i]), int(at[i]), int(size[i]))))

    sides, channels = read_headers(opener, number, np.flatnonzero(origin != "test"), where)
    bare = np.flatnonzero(label < 0)
    return ShardImageSet(
        files,
        number,
        opener=opener,
        short_sides=sides,
        classes=classes,
        labels=labels.astype(np.int64),
        origin=origin,
        fingerprint=_fingerprint(shards, parts, indices, classes, labels),
        channels=channels,
        names=names,
        skipped=[
            *(pair for index in indices for pair in index.skipped),
            *((name, "it has no label") for name in _Names(shards, indices, bare)),
        ],
        notes=[*notes, *_sorted_note(number, labels, len(classes), np.asarray(files.bytes))],
        files={shard.name: shard.size for shard in shards},
    )


def named_columns(text: str) -> tuple[str, dict[str, str]]:
    """A place, and the columns a user names after it: ?image=NAME&label=NAME."""
    place, mark, options = text.rpartition("?")
    pairs = [pair.partition("=") for pair in options.split("&")]
    if not mark or not all(key in ("image", "label") and value for key, _, value in pairs):
        return text, {}
    return place, {key: value for key, _, value in pairs}


def _parts(shards: Sequence[Shard], where: str) -> list[str]:
    """Which part of the data each shard belongs to, by the words in its folder's and its own name."""
    parts = []
    for shard in shards:
        found = {part for word in re.findall(r"[a-z]+", shard.name.lower()) if (part := split_of_name(word))}
        if len(found) > 1:
            raise TailorError(f"The shard '{shown(shard.name)}' could belong to {' or '.join(sorted(found))}.")
        parts.append(next(iter(found), "all"))
    if "all" in parts and len(set(parts)) > 1:
        name = shards[parts.index("all")].name
        other = shards[next(i for i, p in enumerate(parts) if p != "all")].name
        raise TailorError(f"In {where} '{shown(other)}' names its part of the data and '{shown(name)}' does not.")
    if "train" not in parts and "all" not in parts:
        raise TailorError(f"{where} has shards for {', '.join(sorted(set(parts)))}, but none for train.")
    return ["all"] * len(parts) if set(parts) == {"train"} else parts


def _indices(shards: Sequence[Shard], cache: DiskCache, columns: Mapping[str, str]) -> list[ShardIndex]:
    """The index of every shard, made where it is not stored yet."""
    folder = cache_root() / "shard-index"
    found = [kept_index(folder, shard, columns) for shard in shards]
    missing = [shard for shard, index in zip(shards, found) if index is None]
    # Processes that start together begin in different places; what one has made the others find.
    first = len(missing) * ranks.rank() // ranks.world()
    begin = time.monotonic()
    for done, _ in enumerate(_made(missing[first:] + missing[:first], partial(_make, folder, cache, columns)), 1):
        _log.info("shards indexed: %d of %d", done, len(missing))
        if sys.stderr.isatty() and time.monotonic() - begin > PATIENCE:
            end = "\n" if done == len(missing) else ""
            print(f"\rshards indexed: {done} of {len(missing)}", end=end, file=sys.stderr, flush=True)
    out = []
    for shard, index in zip(shards, found):
        index = index or kept_index(folder, shard, columns)
        if index is None:
            raise TailorError(f"The index of '{shown(shard.place)}' cannot be read again from '{folder}'.")
        out.append(index)
    return out


def _make(folder: Path, cache: DiskCache, columns: Mapping[str, str], shard: Shard) -> None:
    if kept_index(folder, shard, columns) is None:
        keep_index(folder, shard, columns, read_index(shard, cache, columns))


def _made(shards: Sequence[Shard], make: Callable[[Shard], None]) -> Iterator[None]:
    """make(shard) for all of them, in any order: headers are read by processes, transfers are made by threads."""
    processes = min(usable_cores(), 16, len(shards) // 8)
    if processes > 1 and sys.platform == "linux" and not any(shard.remote for shard in shards):
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            yield from pool.imap_unordered(make, shards)
    else:
        with ThreadPoolExecutor(FETCHERS, "tailorvit-index") as threads:
            yield from threads.map(make, shards)


def _labelled(
    shards: Sequence[Shard], parts: Sequence[str], indices: Sequence[ShardIndex], where: str
) -> tuple[list[Shard], list[str], list[ShardIndex], list[str]]:
    """The parts that have labels, with a note on those that do not."""
    bare = {p for p in set(parts) if all((i.label < 0).all() for i, q in zip(indices, parts) if q == p)}
    if bare & {"all", "train"}:
        raise TailorError(
            f"The samples of {where} have no labels: they need a .cls, .txt or .json file (key 'label', 'class' or "
            "'cls'), or a folder named after their class; in Parquet a label column."
        )
    kept = [(s, p, i) for s, p, i in zip(shards, parts, indices) if p not in bare]
    left = "all" if {p for _, p, _ in kept} == {"train"} else None
    notes = [f"The {part} shards have no labels and are not used." for part in sorted(bare)]
    return [s for s, _, _ in kept], [left or p for _, p, _ in kept], [i for _, _, i in kept], notes


def _joined_labels(indices: Sequence[ShardIndex], where: str) -> tuple[Ints, list[str] | None]:
    """Labels of all shards, and their names where shards hold names; -1 where there is none."""
    named = [index.words is not None for index in indices]
    if not any(named):
        classes = next((index.classes for index in indices if index.classes), None)
        if any(index.classes not in (None, classes) for index in indices):
            raise TailorError(f"The shards of {where} do not agree on the names of the classes.")
        return np.concatenate([index.label for index in indices]), None if classes is None else list(classes)
    if any(index.words is None and (index.label >= 0).any() for index in indices):
        raise TailorError(f"Some shards of {where} label their samples with numbers and some with names.")
    words = sorted({word for index in indices for word in index.words or ()})
    place = {word: i for i, word in enumerate(words)}
    out = []
    for index in indices:
        table = np.asarray([*(place[word] for word in index.words or ()), -1], np.int64)  # -1 takes the last
        out.append(table[index.label])
    return np.concatenate(out), words


def _classes_beside(shards: Sequence[Shard]) -> list[str] | None:
    """Class names from classes.txt (one a line) or classes.json (a list) beside the shards or above them."""
    place = shards[0].place
    above = place.removesuffix(shards[0].name) + "x"
    for beside in dict.fromkeys((place, above)):
        text = read_beside(beside, "classes.txt")
        if text is not None:
            return [line.strip() for line in text.splitlines() if line.strip()]
        text = read_beside(beside, "classes.json")
        if text is not None:
            try:
                found = parse_json(text)
            except ValueError:
                found = None
            if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
                raise TailorError(f"'classes.json' beside '{shown(place)}' is not a list of names.")
            return found
    return None


def _fingerprint(
    shards: Sequence[Shard], parts: Sequence[str], indices: Sequence[ShardIndex], classes: Sequence[str], labels: Ints
) -> str:
    """Of names, sizes and labels."""
    digest = hashlib.sha256("\0".join(classes).encode("utf-8", "surrogateescape"))
    for shard, part, index in zip(shards, parts, indices):
        digest.update(f"{part}\0{shard.name}\0{shard.size}\n".encode("utf-8", "surrogateescape"))
        digest.update(np.stack([index.at, index.size]).astype("<i8").tobytes())
    digest.update(labels.astype("<i8").tobytes())
    return digest.hexdigest()


def _require_disk(files: ShardFiles, where: str) -> None:
    """Refuse a cache that cannot hold what is read together: it would fetch the same shards again and again."""
    sizes = sorted(size for k, size in enumerate(files.bytes) if files.fetched(k))
    if not sizes:
        return
    window = min(sum(sizes[-WINDOW:]), max(WINDOW_BYTES, sizes[-1]))
    need = sum(sizes) if len(windows(files.bytes)) == 1 else min(sum(sizes), 2 * window)
    if need > files.cache.limit:
        raise TailorError(
            f"The shards of {where} that are read together take {units.show(need, 'memory')} of disk, and "
            f"data.disk_cache is {units.show(files.cache.limit, 'memory')}: set it higher."
        )


def _sorted_note(shards: Ints, labels: Ints, classes: int, sizes: NDArray[np.int64]) -> list[str]:
    """A warning where shards hold few classes each, as a batch comes from some shards alone."""
    there, counts = np.unique(shards, return_counts=True)
    pairs = len(np.unique(shards * classes + labels))
    shuffled = (classes * (1 - (1 - 1 / classes) ** counts)).sum()  # what is to be expected
    if len(windows(sizes[there].tolist())) == 1 or pairs > shuffled / 2:
        return []
    return [
        f"A shard holds {pairs / len(there):.0f} of {classes} classes on average, and a batch comes from at most "
        f"{WINDOW} shards: networks learn better from samples that were shuffled before they were written to shards."
    ]


def read_headers(
    opener: Callable[[int], Image.Image], shards: Ints, visible: Ints, where: str
) -> tuple[NDArray[np.int64], int]:
    """Short sides and channels, from images in a few shards; the test part decides nothing."""
    among = in_few_shards(visible, shards)
    sides, grey, first = list[int](), True, ""
    for i in among[np.unique(np.linspace(0, len(among) - 1, min(len(among), SAMPLES)).astype(np.int64))].tolist():
        try:
            with opener(i) as image:
                sides.append(min(image.size))
                grey = grey and is_grey(image)
        except UnreachableError:
            raise
        except Exception as error:  # decoders raise anything on broken files
            first = first or reason(error)
    if not sides:
        raise TailorError(f"None of the images looked at in {where} can be read, the first because: {shown(first)}.")
    return np.asarray(sides), 1 if grey else 3


# -- the source -------------------------------------------------------------------------------------------------------


def _are_shards(path: Path) -> bool:
    """A shard, or a folder of shards with nothing in it that could be class folders."""
    if path.is_file():
        return path.suffix in KINDS
    if not path.is_dir():
        return False
    folders = [p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")]
    if not all(split_of_name(folder.name) for folder in folders):
        return False
    return any(p.suffix in KINDS for folder in (path, *folders) for p in folder.iterdir())


SHARDS = DataSource(
    "shards",
    "tar files as webdataset writes them, or Parquet files, on disk or by URL",
    read_shards,
    "shards:PLACE, or a folder of .tar or .parquet files",
    _are_shards,
)
