"""Shards where they lie: found by folder, pattern or URL, fetched where they lie elsewhere, and read by offset."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import re
import threading
import urllib.error
import urllib.request
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from tailorvit.data.disk_cache import DiskCache
from tailorvit.data.images import UnreachableError, thread_map
from tailorvit.data.splits import Ints
from tailorvit.descriptors import open_file, read_at, write_at
from tailorvit.errors import TailorError
from tailorvit.texts import shown

KINDS = (".tar", ".parquet")
MOST = 100_000  # shards of a set
PROTOCOLS = ("http", "https", "hf", "s3", "gs", "gcs", "az", "abfs", "file")  # none of them starts a program
OPEN = 64  # shards a process keeps open
FETCHERS = 4  # shards fetched at a time
FAR = 2000  # steps that are looked ahead
RETRIES, PAUSE = 5, 0.5  # seconds before the first further try; twice as many before each other
SECONDS = 60  # a server may be silent
BLOCK = 8 << 20


@dataclass(frozen=True)
class Shard:
    """One file of many samples. ``name`` is its path below the folder that all shards have in common."""

    place: str  # absolute path or URL
    size: int  # bytes
    stamp: str  # changes when the file does: time of its last change, or what a server tells instead
    name: str = ""

    @property
    def remote(self) -> bool:
        """Whether it must be fetched."""
        return "://" in self.place

    @property
    def packed(self) -> bool:
        """Whether its images have no bytes of their own in the file, so that it must be unpacked."""
        return _path(self.place).endswith(".parquet")

    @property
    def key(self) -> str:
        """The name of what is kept of it."""
        return hashlib.sha256(f"{self.place}\0{self.size}\0{self.stamp}".encode("utf-8", "replace")).hexdigest()[:32]


def _path(place: str) -> str:
    """A place without what a URL may have after the file's name, such as a signature."""
    return place.partition("?")[0] if "://" in place else place


def library(name: str, what: str, extra: str = "shards") -> Any:
    """A package of an extra, or one sentence where it is missing."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise TailorError(f"{what} needs the package {package}: pip install 'tailorvit[{extra}]'.") from None


# -- finding ----------------------------------------------------------------------------------------------------------


def find_shards(text: str) -> list[Shard]:
    """The shards of a user's text: folders, files, patterns with braces and URLs, joined by "::"."""
    if not hasattr(os, "pread"):
        raise TailorError("Shards are read on Linux and macOS only.")
    found: list[Shard] = []
    for place in text.split("::"):
        expanded = list(_expanded(place))
        remote = [p for p in expanded if "://" in p]
        found += [s for p in expanded if "://" not in p for s in _local(Path(p).expanduser())]
        found += [s for shards in thread_map(_distant, remote) for s in shards]
    twice = [s.place for s, other in zip(sorted(found, key=_place), sorted(found, key=_place)[1:]) if s == other]
    if twice:
        raise TailorError(f"'{shown(twice[0])}' comes twice in '{shown(text)}'.")
    folders = [_folder(s.place).split("/") for s in found]
    above = len(list(takewhile(lambda names: len(set(names)) == 1, zip(*folders))))
    named = [Shard(s.place, s.size, s.stamp, "/".join(_path(s.place).split("/")[above:])) for s in found]
    return sorted(named, key=lambda s: s.name)


def _place(shard: Shard) -> str:
    return shard.place


def _folder(place: str) -> str:
    return _path(place).rpartition("/")[0]


def _expanded(place: str) -> Iterator[str]:
    """A place without its braces, checked: nothing in it may be a command."""
    protocol = re.match(r"([\w.+-]+):", place)
    if protocol and protocol[1] not in PROTOCOLS and not Path(place).exists():
        if protocol[1] == "pipe":
            raise TailorError(f"'{shown(place)}' would run a command, which data never does: give files or URLs.")
        raise TailorError(
            f"'{shown(place)}' is none of the addresses that shards are read from: {', '.join(PROTOCOLS)}."
        )
    if "{" not in place or Path(place).exists():
        yield place
        return
    braces = library("braceexpand", f"The pattern '{shown(place)}'")
    ranges = re.findall(r"\{(-?\d+)\.\.(-?\d+)", place)  # which the library writes out before it gives the first one
    places: list[str] = []
    if all(len(low) < 9 and len(high) < 9 and abs(int(high) - int(low)) < MOST for low, high in ranges):
        try:
            places = list(islice(braces.braceexpand(place), MOST + 1))
        except ValueError as error:
            raise TailorError(f"The pattern '{shown(place)}' cannot be read: {error}.") from None
    if not 0 < len(places) <= MOST:
        raise TailorError(f"The pattern '{shown(place)}' stands for more than {MOST:,} shards.")
    yield from places


def _local(path: Path) -> list[Shard]:
    if path.is_dir():
        paths = []
        for where, below, files in os.walk(path):
            below[:] = [b for b in below if not b.startswith(".")]
            paths += [Path(where, f) for f in files if f.endswith(KINDS) and not f.startswith(".")]
        if not paths:
            raise TailorError(f"There are no {' or '.join(KINDS)} files in '{shown(str(path))}'.")
    else:
        paths = [path]
    found = []
    for file in paths:
        _require_kind(str(file))
        try:
            status = file.stat()
        except OSError as error:
            raise TailorError(f"There is no shard '{shown(str(file))}' ({(error.strerror or '').lower()}).") from None
        found.append(Shard(str(file.absolute()), status.st_size, str(status.st_mtime_ns)))
    return found


def _require_kind(place: str) -> None:
    if not _path(place).endswith(KINDS):
        raise TailorError(f"Shards are {' or '.join(KINDS)} files, not '{shown(place)}'; unpack what is compressed.")


def _distant(url: str) -> list[Shard]:
    """The shard of a URL, or those in a folder of a file system that can be listed."""
    if _is_http(url):
        _require_kind(url)
        with _told(url), _answer(url, method="HEAD") as answer:
            return [Shard(url, _length(url, answer), _http_stamp(answer))]
    if url.startswith("hf://"):
        from tailorvit.trunks.libraries import hub_reachable

        if not hub_reachable():  # asked once, where the hub's client would try again for most of a minute
            raise UnreachableError(f"'{shown(url)}' cannot be read: the hub is out of reach.")
    with _told(url):
        system, path = _file_system(url)
        if path.endswith(KINDS):
            infos = {path: system.info(path)}
        else:
            infos = {p: i for p, i in system.find(path, detail=True).items() if p.endswith(KINDS)}
        shards = [Shard(system.unstrip_protocol(p), int(i["size"]), _stamp(i)) for p, i in infos.items()]
    if not shards:
        raise TailorError(f"There are no {' or '.join(KINDS)} files in '{shown(url)}'.")
    return shards


def _is_http(place: str) -> bool:
    return place.startswith(("http://", "https://"))


# -- elsewhere --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """Turn what libraries and servers raise into one sentence."""
    try:
        yield
    except TailorError:
        raise
    except Exception as error:  # every library has its own
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        first = (str(cause).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UnreachableError(f"'{shown(url)}' cannot be read: {shown(first)}.") from error


def _file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, in this process, and the path in it."""
    system, path = library("fsspec", f"'{shown(url)}'").core.url_to_fs(url)
    return system, str(path)


def _stamp(info: dict[str, Any]) -> str:
    known = ("ETag", "etag", "blob_id", "md5Hash", "content_md5", "generation", "mtime", "LastModified")
    return str(next((info[key] for key in known if info.get(key)), ""))


def _answer(url: str, method: str = "GET", start: int = 0, stop: int | None = None) -> Any:
    """A server's answer, for the bytes from ``start`` to ``stop``; errors are one sentence."""
    headers = {"User-Agent": "tailorvit"}
    if start or stop is not None:
        headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method), timeout=SECONDS)
    except urllib.error.HTTPError as error:
        with error:
            if error.code >= 500 or error.code in (408, 429):
                raise
            raise UnreachableError(f"'{shown(url)}' cannot be read: the server says {error.code}.") from None


def _length(url: str, answer: Any) -> int:
    length = answer.headers.get("Content-Length", "")
    if not length.isdecimal():
        raise TailorError(f"The server of '{shown(url)}' does not say how long the file is.")
    return int(length)


def _http_stamp(answer: Any) -> str:
    return str(answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "")


class _HttpFile(io.RawIOBase):
    """A file on a web server that is read in parts."""

    def __init__(self, url: str, size: int) -> None:
        self.url, self.size, self.at = url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def readinto(self, buffer: Any) -> int:
        stop = min(self.at + len(buffer), self.size)
        if stop <= self.at:
            return 0
        with _answer(self.url, start=self.at, stop=stop) as answer:
            if answer.status != 206 and (self.at or stop < self.size):
                raise TailorError(f"The server of '{shown(self.url)}' gives no parts of files, as .parquet files need.")
            data = answer.read(stop - self.at)
        buffer[: len(data)] = data
        self.at += len(data)
        return len(data)


def open_shard(shard: Shard) -> Any:
    """A shard as a file object that can seek; of a remote one only what is read is transferred."""
    if not shard.remote:
        return Path(shard.place).open("rb")
    if _is_http(shard.place):
        return _HttpFile(shard.place, shard.size)
    with _told(shard.place):
        system, path = _file_system(shard.place)
        return system.open(path, "rb", block_size=1 << 20)


def read_beside(place: str, name: str) -> str | None:
    """A small text file in the folder of a shard; None where there is none."""
    folder = _folder(place)
    try:
        if "://" not in place:
            return Path(folder, name).read_text("utf-8")
        if _is_http(place):
            with _answer(f"{folder}/{name}") as answer:
                return str(answer.read(BLOCK).decode())
        system, path = _file_system(f"{folder}/{name}")
        return str(system.cat_file(path).decode())
    except Exception:  # every library has its own for a file that is not there
        return None


def _blocks(shard: Shard, start: int) -> Iterator[bytes]:
    """The bytes of a remote shard from ``start`` on."""
    if _is_http(shard.place):
        with _answer(shard.place, start=start) as answer:
            if _http_stamp(answer) != shard.stamp:
                raise UnreachableError(f"'{shown(shard.place)}' has changed since it was indexed; start again.")
            skip = start if answer.status != 206 else 0  # a server that gives no parts
            while skip:
                skip -= len(answer.read(min(skip, BLOCK))) or skip
            while block := answer.read(BLOCK):
                yield block
    else:
        system, path = _file_system(shard.place)
        with system.open(path, "rb", block_size=32 << 20) as file:
            file.seek(start)
            while block := file.read(BLOCK):
                yield block


def _download(shard: Shard, file: int, stop: threading.Event) -> int:
    """Fetch a whole shard into an open file; a broken connection is taken up again where it broke."""
    done = tries = 0
    while True:
        try:
            for block in _blocks(shard, done):
                write_at(file, block, done)
                done, tries = done + len(block), 0
                if stop.is_set():
                    raise UnreachableError("nobody waits for it any more")
            if done != shard.size:
                raise OSError(f"{done:,} of {shard.size:,} bytes came")
            return done
        except UnreachableError:
            raise
        except Exception as error:  # libraries have their own for a broken connection
            tries += 1
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            if done > shard.size or tries > RETRIES:
                with _told(shard.place):
                    raise
            if stop.wait(PAUSE * 2**tries):
                raise UnreachableError("nobody waits for it any more") from None


# -- reading ----------------------------------------------------------------------------------------------------------


class OpenShard:
    """An open shard. It is closed when nobody refers to it any more, so no thread reads from another's file.

    A ``local`` one is checked before each read: it may be written again while it is open.
    """

    def __init__(self, file: int, rows: Ints | None = None, local: Shard | None = None) -> None:
        self.file, self.rows, self.local = file, rows, local

    def __del__(self) -> None:
        os.close(self.file)

    def read(self, at: int, size: int) -> bytes:
        """So many bytes from an offset; of an unpacked shard those of a row."""
        if self.local is not None:
            _require_same(self.file, self.local)
        if self.rows is not None:
            at, size = int(self.rows[at]), int(self.rows[at + 1] - self.rows[at])
        data = read_at(self.file, size, at)
        if len(data) < size or not size:
            raise OSError("the shard holds no bytes for it" if not size else "the shard ends before it does")
        return data


class ShardFiles:
    """The open shards of a set. What must be fetched or unpacked lies in a cache on disk."""

    def __init__(self, shards: Sequence[Shard], cache: DiskCache, column: str, unpacked: Sequence[int]) -> None:
        self.shards, self.cache, self.column = shards, cache, column
        self.bytes = [n if s.packed else s.size for s, n in zip(shards, unpacked)]  # on disk
        self._open: dict[int, OpenShard] = {}
        self._lost: UnreachableError | None = None  # after one shard could not be had nobody tries for another
        self._given_up = threading.Event()

    def fetched(self, number: int) -> bool:
        """Whether a shard is read from the cache."""
        return self.shards[number].remote or self.shards[number].packed

    def read(self, number: int, at: int, size: int) -> bytes:
        """Bytes of a shard."""
        opened = self._open.get(number)
        if opened is None:
            # Without a lock, which a worker might inherit: two threads may both open it, and one is closed again.
            opened = self._open[number] = self._opened(number)
            while len(self._open) > OPEN:
                with contextlib.suppress(KeyError, StopIteration, RuntimeError):
                    self._open.pop(next(iter(self._open)))
        return opened.read(at, size)

    def _opened(self, number: int) -> OpenShard:
        shard = self.shards[number]
        if not self.fetched(number):
            return OpenShard(_opened_as_indexed(shard), local=shard)
        try:
            file = self._in_cache(number, self._given_up)
        except UnreachableError as error:
            self._lost = self._lost or error
            self._given_up.set()
            raise self._lost from None
        return OpenShard(file, _rows(file) if shard.packed else None)

    def _in_cache(self, number: int, stop: threading.Event) -> int:
        """A descriptor of the fetched shard."""
        shard = self.shards[number]
        if not shard.packed:
            return fetch(shard, self.cache, stop)
        name = f"{shard.key}-{self.column}"
        file = self.cache.get(name)
        if file is None:
            whole = fetch(shard, self.cache, stop) if shard.remote else _opened_as_indexed(shard)
            with os.fdopen(whole, "rb") as source:
                file = self.cache.open(name, self.bytes[number], lambda into: self._unpack(shard, source, into))
            if shard.remote:
                self.cache.drop(shard.key)
        return file

    def _unpack(self, shard: Shard, source: Any, into: int) -> int:
        try:
            return unpack(source, self.column, into)
        except Exception as error:  # Arrow's
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            with _told(shard.place):
                raise

    def ahead(self, wanted: Iterable[tuple[int, Ints]]) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """Inside, the shards of later steps are fetched."""
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes that share the cache
        return _Fetching(self, wanted, self.cache.limit // 4 // local)

    def fetch(self, number: int, stop: threading.Event) -> None:
        """Have a shard in the cache."""
        os.close(self._in_cache(number, stop))


class _Fetching:
    """A thread that has shards fetched before they are needed, until they take so many bytes."""

    def __init__(self, files: ShardFiles, wanted: Iterable[tuple[int, Ints]], budget: int) -> None:
        self.files, self.wanted, self.budget = files, wanted, budget
        self.reached, self.changed, self.stop = -1, threading.Condition(), threading.Event()
        self.thread = threading.Thread(target=self._work, name="tailorvit-fetch", daemon=True)

    def __enter__(self) -> Callable[[int], None]:
        self.thread.start()
        return self._reach

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self._reach(self.reached)
        self.thread.join()

    def _reach(self, step: int) -> None:
        with self.changed:
            self.reached = step
            self.changed.notify()

    def _work(self) -> None:
        recent = OrderedDict[int, None]()  # a step needs much the same shards as the one before
        ahead = deque[tuple[int, int]]()  # step and bytes of what was fetched for later
        pool = ThreadPoolExecutor(FETCHERS, "tailorvit-fetch")
        for step, numbers in self.wanted:
            for number in np.unique(numbers).tolist():
                if number not in recent and self.files.fetched(number) and self._may_go_on(step, ahead):
                    ahead.append((step, self.files.bytes[number]))
                    pool.submit(self._fetch, number)
                recent[number] = None
                recent.move_to_end(number)
            while len(recent) > OPEN:
                recent.popitem(last=False)
            if not self._may_go_on(step, deque()):
                break
        pool.shutdown(wait=False)  # after a stop nothing is begun, and what was begun ends at its next block

    def _may_go_on(self, step: int, ahead: deque[tuple[int, int]]) -> bool:
        """Wait until the step is near and there is room for more; False where nobody needs it any more."""
        with self.changed:
            while not self.stop.is_set():
                while ahead and ahead[0][0] <= self.reached:
                    ahead.popleft()
                if step <= self.reached + FAR and (not ahead or sum(size for _, size in ahead) < self.budget):
                    return True
                self.changed.wait()
        return False

    def _fetch(self, number: int) -> None:
        if not self.stop.is_set():
            with contextlib.suppress(Exception):  # whoever reads the shard meets the same error, and says it
                self.files.fetch(number, self.stop)


def fetch(shard: Shard, cache: DiskCache, stop: threading.Event | None = None) -> int:
    """A descriptor of a remote shard, fetched whole where it is not in the cache."""
    return cache.open(shard.key, shard.size, lambda file: _download(shard, file, stop or threading.Event()))


def _opened_as_indexed(shard: Shard) -> int:
    try:
        file = open_file(shard.place, os.O_RDONLY)
    except OSError as error:
        raise UnreachableError(f"'{shown(shard.place)}' cannot be opened any more: {error.strerror}.") from None
    try:
        _require_same(file, shard)
    except UnreachableError:
        os.close(file)
        raise
    return file


def _require_same(file: int, shard: Shard) -> None:
    status = os.fstat(file)
    if status.st_size != shard.size or str(status.st_mtime_ns) != shard.stamp:
        raise UnreachableError(f"'{shown(shard.place)}' has changed since the run read its index.")


# An unpacked Parquet shard is the bytes of its images one after another, then where each begins and the last ends
# (little-endian 64-bit numbers), and how many numbers that are.


def unpack(source: Any, column: str, into: int) -> int:
    """Write the images of a Parquet file into a file; returns its bytes."""
    parquet, compute = (library(f"pyarrow.{part}", "Reading .parquet files") for part in ("parquet", "compute"))
    starts, at = [np.zeros(1, np.int64)], 0
    for batch in parquet.ParquetFile(source).iter_batches(64, columns=[column]):
        array = batch.column(0)
        if hasattr(array, "field"):  # a structure of bytes and path
            array = compute.struct_field(array, "bytes")
        images = [image or b"" for image in array.to_pylist()]
        write_at(into, b"".join(images), at)
        starts.append(at + np.cumsum([len(image) for image in images]))
        at = int(starts[-1][-1])
    rows = np.concatenate(starts)
    table = np.append(rows, len(rows)).astype("<i8").tobytes()
    write_at(into, table, at)
    return at + len(table)


def _rows(file: int) -> Ints:
    """Where the images of an unpacked shard begin."""
    end = os.fstat(file).st_size
    count = int(np.frombuffer(read_at(file, 8, end - 8), "<i8")[0])
    return np.frombuffer(read_at(file, 8 * count, end - 8 - 8 * count), "<i8").astype(np.int64)
