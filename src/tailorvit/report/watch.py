"""The live page: the report of a run under way, served to a browser on this machine only. It reads and never writes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tailorvit.errors import TailorError
from tailorvit.report.markup import cell, stage_name
from tailorvit.report.page import page_parts, policy, script, shell
from tailorvit.report.reading import Facts, collect
from tailorvit.report.snapshot import folder_state

HOST = "127.0.0.1"
SHARE = 0.1  # the largest share of one core that drawing may take from the run beside it
SCRIPT = script("live")
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_CLOSED = "default-src 'none'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class View:
    """One state of the run as the browser gets it."""

    state: dict[str, Any]
    page: bytes


class Viewer:
    """Draws the page when the folder has changed, and otherwise returns the page it has."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mutex = threading.Lock()
        self._seen: object = self  # no state equals this, so the first call always draws
        self._view: View | None = None
        self._due = 0.0

    def view(self) -> View:
        """The present state; drawn as often as the share of a core allows."""
        with self._mutex:
            start = time.monotonic()
            if self._view is None or start >= self._due:
                now = folder_state(self._folder)
                if self._view is None or now != self._seen:
                    self._view, self._seen = _draw(self._folder, str(now)), now
                    self._due = time.monotonic() + (time.monotonic() - start) / SHARE
            return self._view


def _draw(folder: Path, token: str) -> View:
    version = hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()[:16]
    try:
        facts = collect(folder)
        parts, state = page_parts(facts), summary(facts)
    except TailorError as error:  # no folder yet, or none any more, or no run in it
        parts, state = _plain(folder, str(error)), {"status": "waiting"}
    except Exception as error:  # a page that says what is wrong is better than a server that ends
        parts, state = _plain(folder, f"The run cannot be read just now ({error})."), {"status": "unreadable"}
    head = f'<meta name="tailorvit-version" content="{version}">\n'
    page = shell(*parts, scripts=(SCRIPT,), head=head, connect=True)
    return View({"version": version, **state}, page.encode("utf-8", "replace"))


def summary(facts: Facts) -> dict[str, Any]:
    """The answer to /state."""
    best = max((t.accuracy for t in facts.trials if t.accuracy is not None), default=None)
    line = ""
    if facts.epochs and not facts.finished:
        last = facts.epochs[-1]
        numbers = (
            ("loss", last.loss, ".4g"),
            ("accuracy", last.accuracy, ".2f"),
            ("images per second", last.images_per_second, ".0f"),
        )
        known = [f"{name} {value:{form}}" for name, value, form in numbers if value is not None]
        line = ", ".join([f"{stage_name(last.stage)}, epoch {last.epoch}", *known])
    return {"status": facts.status, "best": best, "trials": len(facts.trials), "epoch": line}


def _plain(folder: Path, sentence: str) -> tuple[str, str]:
    name = folder.resolve().name
    rest = "This page updates by itself as soon as there is something to show."
    body = f"<main>\n<h1>{cell(name)}</h1>\n<p>{cell(sentence)}</p>\n<p>{rest}</p>\n</main>"
    return f"{name} – TailorViT", body


class _Handler(BaseHTTPRequestHandler):
    """Two addresses, two methods, one host."""

    server: _Server
    server_version, sys_version = "TailorViT", ""
    timeout = 20  # seconds that a silent client may hold a thread

    def do_GET(self) -> None:
        if self.headers.get("Host", "").lower() not in self.server.names:
            # A page of another site may reach this port under its own name (DNS rebinding), never under ours.
            self._send(HTTPStatus.FORBIDDEN, b"Forbidden.\n")
        elif self.path == "/":
            page = self.server.viewer.view().page
            self._send(HTTPStatus.OK, page, "text/html; charset=utf-8", policy((SCRIPT,), connect=True))
        elif self.path == "/state":
            state = json.dumps(self.server.viewer.view().state).encode()
            self._send(HTTPStatus.OK, state, "application/json")
        else:
            self._send(HTTPStatus.NOT_FOUND, b"Not found.\n")

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Every other method ends here as 501; answer 405 and repeat nothing of the request."""
        self.close_connection = True
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._send(status, f"{status.phrase}.\n".encode())

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8", rules: str = _CLOSED
    ) -> None:
        self.send_response(status)
        guard = f"{rules}; frame-ancestors 'none'"  # a policy inside the page cannot say this
        head = {"Content-Type": kind, "Content-Length": str(len(body)), "Content-Security-Policy": guard, **_HEADERS}
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            head["Allow"] = "GET, HEAD"
        for name, value in head.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the console shows only the address."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"  # there it would let two programs share a port

    def __init__(self, port: int, viewer: Viewer) -> None:
        super().__init__((HOST, port), _Handler)
        self.viewer = viewer
        self.names = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
        if self.server_port == 80:
            self.names |= {HOST, "localhost"}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closed the connection is not worth a message."""


def watch(
    folder: Path, port: int = 0, ready: Callable[[str], object] | None = None, stop: threading.Event | None = None
) -> None:
    """Serve the live report of ``folder`` until Ctrl-C or ``stop``; ``ready`` is called with the address."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise TailorError(f"'{folder}' is a file, not the folder of a run.")
    if not 0 <= port <= 65535:
        raise TailorError(f"A port is a number from 0 (any free one) to 65535, not {port}.")
    try:
        server = _Server(port, Viewer(folder))
    except OSError as error:
        why = error.strerror or error
        raise TailorError(
            f"Cannot listen on {HOST}:{port} ({why}); choose another port, or 0 for a free one."
        ) from None
    ended = stop or threading.Event()
    worker = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    worker.start()
    try:
        if ready is not None:
            ready(f"http://{HOST}:{server.server_port}/")
        with contextlib.suppress(KeyboardInterrupt):
            ended.wait()
    finally:
        server.shutdown()
        server.server_close()
        worker.join()
