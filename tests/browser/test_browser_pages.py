"""The other two pages in a browser: runs compared, and a run watched while it is written."""

from __future__ import annotations

import importlib
import json
import threading
from contextlib import contextmanager

import pytest
from looks import charts, faults, hidden, too_wide, unfold

from fake_runs import draw, spaces, write_run
from tailorvit.report import write_comparison
from tailorvit.runs import Run

module = importlib.import_module("tailorvit.report.watch")  # the package exports the function by this name
NARROW = {"width": 360, "height": 740}


def test_runs_compared(open_page, tmp_path):
    evil = '<img src=x onerror=alert(1)>"'
    runs = [
        write_run(tmp_path / "first"),
        write_run(tmp_path / "staged", kind="s3", trials=30),
        write_run(tmp_path / "half way", finished=False),
        write_run(tmp_path / evil, evil=evil, trials=20, with_analysis=False),
        write_run(tmp_path / ("W" * 200), failed=True),
    ]
    with open_page(write_comparison(runs, tmp_path / "compare.html")) as page:
        unfold(page)
        assert len(charts(page)) >= 3
        assert "first" in page.locator("#runs").inner_text() and evil in page.locator("#runs").inner_text()
        assert page.locator("nav a").all_inner_texts() == [
            "1\u00a0Groups",
            "2\u00a0Figures",
            "3\u00a0Runs",
            "4\u00a0Recipes",
        ]
        for width in (360, 390, 768, 1280, 1200):
            page.set_viewport_size({"width": width, "height": 900})
            assert faults(page) == [], width
            assert too_wide(page) == [], width
            assert hidden(page) == [], width
        head = page.locator("#runs table.sortable th").first
        names = page.locator("#runs table.sortable tbody td:first-child")
        head.click()
        down = names.all_inner_texts()
        head.click()
        assert names.all_inner_texts() == down[::-1] and len(set(down)) == 5
        mark = page.locator("figure.chart [data-tip]").first
        mark.hover()
        assert page.locator("#tip").text_content() == mark.get_attribute("data-tip")


@contextmanager
def serving(folder):
    """A watcher in a thread; gives its address."""
    stop, ready, found = threading.Event(), threading.Event(), []
    worker = threading.Thread(target=module.watch, args=(folder, 0, lambda url: (found.append(url), ready.set()), stop))
    worker.start()
    try:
        assert ready.wait(10)
        yield found[0]
    finally:
        stop.set()
        worker.join(10)
        assert not worker.is_alive()


def top_of(page, selector):
    return page.locator(selector).evaluate("(e) => e.getBoundingClientRect().top")


def wait_for(page, selector, words):
    page.locator(selector, has_text=words).first.wait_for(timeout=15_000)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Redraw as soon as something changed, not only when a tenth of a core allows."""
    monkeypatch.setattr(module, "SHARE", 1e9)


def test_a_watched_run_updates_itself(open_page, tmp_path):
    folder = tmp_path / "run"
    with serving(folder) as url, open_page(url) as page:
        assert "no such folder" in page.locator("main").inner_text()
        with Run.create(folder, "seed = 5\n", {"command": ["tailorvit", "search"]}) as run:
            space = spaces(run, "s4", "")
            rows = draw(space, 40, "s4", "")
            for epoch in (1, 2, 3):
                run.record_epoch("supernet-0", epoch, loss=2 / epoch, accuracy=9.0, lr=1e-3, images_per_second=500)
            run.record_trials("search", rows[:20])
            output = '[data-controls="search"] output'
            wait_for(page, output, "20 of 20 trials")  # nobody pressed anything
            assert page.locator("h1 .badge").inner_text() == "not finished"
            wait_for(page, ".live-note", "running · supernet 0, epoch 3, loss 0.6667")

            # What the reader has opened, chosen and is looking at stays; what is new comes.
            fold = page.locator("details", has_text="Learning rate and speed")
            fold.locator("summary").click()
            page.select_option("#search-source", label="random")
            page.locator("#training-rate").scroll_into_view_if_needed()
            before = top_of(page, "#training-rate"), page.evaluate("scrollY")
            assert before[1] > 500
            page.evaluate("() => { window.stayed = true; }")
            run.record_trials("search", rows[20:])
            run.record_epoch("supernet-0", 4, loss=0.5, accuracy=12.0, lr=1e-4, images_per_second=480)
            wait_for(page, output, f"{sum(r['source'] == 'random' for r in rows)} of 40 trials")
            assert page.evaluate("window.stayed") is True  # not loaded anew
            assert page.locator("#search-source option:checked").inner_text() == "random"
            assert fold.evaluate("(d) => d.open") is True
            assert top_of(page, "#training-rate") == pytest.approx(before[0], abs=2)
            assert page.evaluate("scrollY") > 500
            unfold(page)
            assert faults(page) == []

            # New content is as alive as the first.
            page.select_option("#search-source", label="all sources")
            assert page.locator(output).inner_text() == "40 of 40 trials"
            mark = page.locator("#search-trials [data-tip]").first
            mark.hover()
            assert page.locator("#tip").text_content() == mark.get_attribute("data-tip")

            whole = write_run(tmp_path / "whole", trials=40)  # the same trials, so the winner is among them
            for name in ("analysis", "result"):
                run.write_json(name, json.loads((whole / f"{name}.json").read_text()))
        page.locator("#attention-layer").wait_for(timeout=15_000)
        assert page.locator("h1 .badge").inner_text() == "finished"
        assert "63.50 %" in page.locator("#result").inner_text()
        unfold(page)
        assert set(charts(page)) >= {"attention-maps", "confusion", "candidates", "training-loss"}
        assert faults(page) == []
        page.set_viewport_size(NARROW)
        assert too_wide(page) == []


def test_a_watcher_that_ended_is_named(chromium, tmp_path):
    context = chromium.new_context()
    page = context.new_page()
    with serving(write_run(tmp_path / "run", trials=8)) as url:
        page.goto(url)
        wait_for(page, ".live-note", "finished")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # look now, not in two seconds
    wait_for(page, ".live-note", "The watcher has ended; this is the last it showed.")
    assert "63.50 %" in page.locator("#result").inner_text()
    context.close()
