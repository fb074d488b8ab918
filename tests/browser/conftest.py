"""A headless Chromium for the tests of the pages; skipped where there is none, an error where one was promised."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from fake_runs import write_run
from tailorvit.report import write_report

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str | None:
    """The browser .ci/run promises, else one on the path."""
    return os.environ.get("TAILORVIT_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def chromium():
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium on this machine; .ci/run installs one")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def outside(asked: list[str], url: str) -> list[str]:
    """Requests for anything but data in the page, the page itself, and a server's own addresses."""
    home = urlsplit(url)
    own = (lambda u: u.netloc == home.netloc) if home.scheme == "http" else (lambda u: u.path == home.path)
    return [a for a in asked if (u := urlsplit(a)).scheme != "data" and not (u.scheme == home.scheme and own(u))]


@pytest.fixture
def open_page(chromium):
    """A function that opens an address and watches it: console errors, exceptions, dialogs, failed or outside requests
    fail the test."""
    contexts = []

    @contextmanager
    def opened(url, **options):
        url = url if isinstance(url, str) else url.as_uri()
        context = chromium.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(10_000)
        page, troubles, asked = context.new_page(), [], []
        page.on("console", lambda m: troubles.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: troubles.append(f"exception: {e}"))
        page.on("dialog", lambda d: (troubles.append(f"dialog: {d.message}"), d.dismiss()))
        page.on("request", lambda r: asked.append(r.url))
        page.on("requestfailed", lambda r: troubles.append(f"failed: {r.url[:200]}"))
        page.goto(url)
        try:
            yield page
            page.evaluate("0")  # events reach us while we wait for an answer
        finally:
            context.close()
        assert troubles == []
        assert outside(asked, url) == []
        assert any(a.split("#")[0] == url.split("#")[0] for a in asked)  # else nothing was watched

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def report_of(tmp_path_factory):
    """The report of a fake run, made once for all tests that only look at it; options as for ``write_run``."""
    made = {}

    def build(name="run", damage=None, **how):
        key = repr((name, damage, sorted(how.items())))
        if key not in made:
            place = tmp_path_factory.mktemp("report")
            folder = write_run(place / name, **how)
            if damage is not None:
                (folder / damage).write_bytes(b"neither database nor JSON" * 200)
            made[key] = write_report(folder, place / "report.html")
        return made[key]

    return build
