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
WINDOW = {"width": 1200, "height": 900}
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


class Tabs:
    """Pages by their options; a plain one serves many tests, as a new one costs as much as the test itself."""

    def __init__(self, browser):
        self.browser, self.plain = browser, None

    @contextmanager
    def lend(self, **options):
        page, self.plain = (None, self.plain) if options else (self.plain, None)
        if page is None:
            page = self.browser.new_context(**{"viewport": WINDOW, **options}).new_page()
            page.set_default_timeout(10_000)
        try:
            yield page
        except BaseException:
            page.context.close()
            raise
        if options:
            page.context.close()
        else:
            page.set_viewport_size(WINDOW)
            page.mouse.move(0, 0)
            self.plain = page


@pytest.fixture(scope="session")
def tabs(chromium):
    return Tabs(chromium)


@pytest.fixture
def open_page(tabs):
    """A function that opens an address and watches it: what troubles the console, dialogs, failed and outside requests
    fail the test."""

    @contextmanager
    def opened(url, **options):
        url = url if isinstance(url, str) else url.as_uri()
        troubles, asked = [], []
        watched = {
            "console": lambda m: troubles.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None,
            "pageerror": lambda e: troubles.append(f"exception: {e}"),
            "dialog": lambda d: (troubles.append(f"dialog: {d.message}"), d.dismiss()),
            "request": lambda r: asked.append(r.url),
            "requestfailed": lambda r: troubles.append(f"failed: {r.url[:200]}"),
        }
        with tabs.lend(**options) as page:
            for name, note in watched.items():
                page.on(name, note)
            page.goto(url)
            yield page
            page.evaluate("0")  # events reach us while we wait for an answer
            for name, note in watched.items():
                page.remove_listener(name, note)
            page.goto("about:blank")  # a live page would go on asking
        assert troubles == []
        assert outside(asked, url) == []
        assert url in asked  # else nothing was watched

    return opened


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
