"""Small sets of pictures written as shards by webdataset's and datasets' own writers, and a web server for them."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import webdataset
from PIL import Image

SIDE = 32


def png(number: int, side: int = SIDE) -> bytes:
    """A noisy picture, its own for each number, in few bytes."""
    noise = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise.repeat(side // 4, 0).repeat(side // 4, 1)).save(out, "png")
    return out.getvalue()


def write_tars(
    folder: Path, count: int, each: int, classes: int = 4, prefix: str = "x", first: int = 0, in_order: bool = False
) -> Path:
    """``count`` samples in shards of ``each``, classes in turn or one after another; a .cls file holds the class."""
    folder.mkdir(parents=True, exist_ok=True)
    with webdataset.ShardWriter(f"{folder}/{prefix}-%04d.tar", maxcount=each, verbose=0) as writer:
        for i in range(count):
            label = i * classes // count if in_order else i % classes
            writer.write({"__key__": f"s{first + i:05d}", "png": png(first + i), "cls": label})
    return folder


class Server(ThreadingHTTPServer):
    """Files of a folder by http; counts what was asked for, and breaks connections where it is told to."""

    asked: Counter[str]
    breaks: int = 0  # answers still to be cut off in the middle
    parts: bool = True  # whether parts of files are given
    stamp: str = "1"

    def handle_error(self, request, client_address) -> None:
        pass  # a broken connection


class _Handler(SimpleHTTPRequestHandler):
    server: Server

    def log_message(self, *args) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(False)

    def do_GET(self) -> None:
        self.answer(True)

    def answer(self, body: bool) -> None:
        path = Path(self.translate_path(self.path))
        self.server.asked[f"{self.command} {path.name}"] += 1
        if not path.is_file():
            self.send_error(404)
            return
        data, asked = path.read_bytes(), self.headers.get("Range")
        low, high = 0, len(data)
        if asked and self.server.parts:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            low, high = int(first), int(last) + 1 if last else len(data)
        self.send_response(206 if (low, high) != (0, len(data)) or (asked and self.server.parts) else 200)
        self.send_header("Content-Length", str(high - low))
        self.send_header("ETag", f'"{path.name}{self.server.stamp}"')
        self.end_headers()
        if body and self.server.breaks > 0 and high - low > 2000:
            self.server.breaks -= 1
            self.wfile.write(data[low : low + 2000])
            self.wfile.flush()
            self.connection.close()
        elif body:
            self.wfile.write(data[low:high])


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, Server]]:
    """The address of a folder on a local web server."""
    server = Server(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    server.asked = Counter()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server
    finally:
        server.shutdown()
        server.server_close()
