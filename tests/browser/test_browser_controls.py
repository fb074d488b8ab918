"""What a reader can do on the page: hover, tap, filter, choose, sort, by mouse, keyboard and finger."""

from __future__ import annotations

import re
import time

import pytest

from tailorvit.arch import Arch
from tailorvit.report import write_report
from tailorvit.runs import Run

TIP = "#tip"
# In every chart the first place with words behind it, scrolled to the middle, and what the words are.
PLACES = """() => [...document.querySelectorAll("figure.chart")].map((f) => f.id)"""
PLACE = """async (key) => {
  const chart = document.getElementById(key);
  for (const each of [...chart.querySelectorAll("[data-tip]")].slice(0, 20)) {
    each.scrollIntoView({ block: "center", behavior: "instant" });
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const shape = each.matches("g") ? each.querySelector("rect,circle,image,text") : each;
    const box = shape.getBoundingClientRect(), [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    if (each.contains(document.elementFromPoint(x, y))) return [x, y, each.getAttribute("data-tip")];
  }
  return null;
}"""
SETTLE = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
CLOUD = """() => [...document.querySelectorAll('svg[data-chart="search"] .cloud')]
  .reduce((sum, path) => sum + path.getAttribute("d").split("M").length - 1, 0)"""


def shown(page):
    """What the page says of the trials it draws. Trials on one spot share a dot, so dots are at most as many."""
    dots, words = page.evaluate(CLOUD), page.locator('[data-controls="search"] output').inner_text()
    trials = int(words.split()[0].replace(",", ""))
    assert (trials + 2) // 4 <= dots <= trials, (dots, words)
    return words


def said(page):
    return page.locator(TIP).text_content() if page.locator(TIP).is_visible() else None


def test_pointing_shows_the_words_of_a_mark(open_page, report_of):
    with open_page(report_of()) as page:
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        pointed = set()
        for key in page.evaluate(PLACES):
            place = page.evaluate(PLACE, key)
            if place is not None:
                page.mouse.move(place[0], place[1])
                assert said(page) == place[2], key
                box = page.locator(TIP).bounding_box()
                assert box["x"] >= 0 and box["x"] + box["width"] <= 1200
                pointed.add(key)
        assert len(pointed) >= 20, pointed  # nearly every chart has marks that say more
        page.mouse.move(2, 450)
        assert said(page) is None


def test_the_keyboard_shows_them_too(open_page, report_of):
    with open_page(report_of()) as page:
        mark = page.locator("#search-trials [data-tip][tabindex]")
        mark.first.focus()  # far below: the page scrolls to it
        page.evaluate(SETTLE)
        first, box = said(page), mark.first.bounding_box()
        assert first == mark.first.get_attribute("data-tip")
        tip = page.locator(TIP).bounding_box()
        assert min(abs(tip["y"] - box["y"] - box["height"]), abs(tip["y"] + tip["height"] - box["y"])) < 30
        page.keyboard.press("Tab")
        page.evaluate(SETTLE)
        assert said(page) == mark.nth(1).get_attribute("data-tip") != first
        page.keyboard.press("Escape")
        assert said(page) is None
        page.keyboard.press("Shift+Tab")
        assert said(page) == first
        page.evaluate("scrollTo(0, 0)")
        page.evaluate(SETTLE)
        assert said(page) is None


def test_a_finger_shows_them_too(open_page, report_of):
    with open_page(report_of(), viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as page:
        for key in ("class-accuracy", "network-blocks", "training-loss"):
            x, y, words = page.evaluate(PLACE, key)
            page.touchscreen.tap(x, y)
            assert said(page) == words
            box = page.locator(TIP).bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= 360
        page.touchscreen.tap(350, 400)
        assert said(page) is None


def test_every_trial_can_be_pointed_at(open_page, report_of):
    """The cloud is one path a source; the script finds the nearest dot."""
    with open_page(report_of()) as page:
        chart = page.locator('svg[data-chart="search"]')
        chart.scroll_into_view_if_needed()
        page.evaluate(SETTLE)
        where = chart.evaluate(
            """(svg) => {
              const [x, y] = svg.querySelector(".cloud").getAttribute("d").match(/[0-9.]+/g).map(Number);
              const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
              return [at.x, at.y];
            }"""
        )
        page.mouse.move(*where)
        words = said(page)
        assert re.match(r"(chosen\n)?accuracy % 6\d\.\d+ \(random, generation 0\)\nparameters [\d.]+M, MACs", words)
        assert re.search(r"\ndepth 1[234], embed \d+, heads [24 ]+, mlp [34. 5]+$", words)


def test_filters_of_the_search(open_page, report_of):
    with open_page(report_of()) as page:
        first = shown(page)
        assert first == "60 of 126 trials"
        page.select_option("#search-stage", label="all stages")
        assert shown(page) == "126 of 126 trials"
        page.select_option("#search-source", label="pair")
        assert shown(page) == "6 of 126 trials"
        assert page.locator("#search-trials .legend .key").all_inner_texts() == ["pair"]
        page.select_option("#search-source", label="all sources")
        page.select_option("#search-stage", label="search")
        page.fill("#search-from", "1")
        page.fill("#search-to", "2")
        assert shown(page) == "30 of 126 trials"
        page.fill("#search-from", "9")
        assert shown(page) == "0 of 126 trials"
        assert "No trial fits these filters." in page.locator("#search-trials svg").text_content()
        page.fill("#search-from", "")
        page.fill("#search-to", "3")
        assert shown(page) == first


def test_another_cost_moves_the_dots(open_page, report_of):
    with open_page(report_of()) as page:
        chart, title = page.locator('svg[data-chart="search"]'), page.locator("#search-trials h4")
        cloud, front = chart.locator(".cloud").first, chart.locator(".line.front")
        before = (cloud.get_attribute("d"), front.get_attribute("d"))
        assert title.inner_text() == "Accuracy against parameters" and chart.locator(".ring").count() == 1
        page.select_option("#search-cost", label="MACs")
        assert title.inner_text() == "Accuracy against MACs" and shown(page) == "60 of 126 trials"
        assert cloud.get_attribute("d") != before[0] and front.get_attribute("d") != before[1]
        page.select_option("#search-cost", label="latency")
        assert title.inner_text() == "Accuracy against latency" and "latency" in chart.text_content()
        page.select_option("#search-cost", label="parameters")
        assert (cloud.get_attribute("d"), front.get_attribute("d")) == before


def test_a_training_free_search_is_filtered_by_score(open_page, report_of):
    with open_page(report_of(kind="free")) as page:
        assert shown(page) == "60 of 60 trials"
        assert page.locator("#search-trials h4").inner_text() == "Score against parameters"
        page.select_option("#search-source", label="cross")
        assert shown(page) == "45 of 60 trials"


@pytest.fixture
def attention(open_page, report_of):
    with open_page(report_of()) as page:
        page.locator("#attention-maps").scroll_into_view_if_needed()
        yield page


def maps(page):
    """The addresses of the maps drawn; the pictures themselves come first in their rows and never change."""
    return page.locator("#attention-maps svg g image").evaluate_all("(all) => all.map((i) => i.getAttribute('href'))")


def cross(page):
    """The middle of the first + as a share of the picture it lies on."""
    return page.evaluate(
        """() => {
          const drawing = document.querySelector("#attention-maps svg");
          const mark = drawing.querySelector("path.line.c0").getBoundingClientRect();
          const face = drawing.querySelector("[data-tip='choose a patch']").getBoundingClientRect();
          const across = (mark.left + mark.width / 2 - face.left) / face.width;
          const down = (mark.top + mark.height / 2 - face.top) / face.height;
          return [across, down];
        }"""
    )


def test_a_click_chooses_the_query_patch(attention):
    drawing = attention.locator("#attention-maps svg")
    before = maps(attention)
    assert "query patch in row 3, column 3" in drawing.text_content() and len(before) == 4
    assert cross(attention) == pytest.approx([0.625, 0.625], abs=0.01)
    face = drawing.locator("[data-tip='choose a patch']").first
    box = face.bounding_box()
    face.click(position={"x": box["width"] * 0.2, "y": box["height"] * 0.1})
    assert "query patch in row 1, column 1" in drawing.text_content()
    assert cross(attention) == pytest.approx([0.125, 0.125], abs=0.01)
    assert attention.locator("#attention-patch").input_value() == "1"
    assert all(a != b for a, b in zip(before, maps(attention), strict=True))
    attention.select_option("#attention-patch", label="row 4, column 2")
    assert cross(attention) == pytest.approx([0.375, 0.875], abs=0.01)
    attention.select_option("#attention-patch", "0")
    assert maps(attention) == before


def test_layer_head_and_image_can_be_chosen(attention):
    drawing = attention.locator("#attention-maps svg")
    last = attention.locator("#attention-layer option").last.inner_text()
    assert f"{last}, query patch" in drawing.text_content()
    before = maps(attention)
    attention.select_option("#attention-layer", label="block 2")
    assert "block 2, query patch" in drawing.text_content()
    assert not set(before) & set(maps(attention))
    four = maps(attention)
    attention.select_option("#attention-image", "1")
    assert maps(attention) == four[2:] and "photos/1.jpg" in drawing.text_content()
    assert "photos/0.jpg" not in drawing.text_content()
    attention.select_option("#attention-head", label="2")
    assert maps(attention) == four[3:] and "head 2" in drawing.text_content()
    hint = drawing.locator("g[data-tip]").first.get_attribute("data-tip")
    assert hint == "head 2, largest weight 0.250"
    attention.select_option("#attention-head", label="mean")
    assert len(maps(attention)) == 1 and not set(maps(attention)) & set(four)
    attention.select_option("#attention-head", label="all")
    attention.select_option("#attention-image", "-1")
    assert maps(attention) == four


def column(page, index):
    cells = page.locator(f"#search table.sortable tbody td:nth-child({index + 1})")
    return cells.evaluate_all("(all) => all.map((c) => c.dataset.v ?? c.textContent)")


def test_tables_sort_by_number_both_ways(open_page, tmp_path):
    sizes = [900, 12_000_000, 1_000, None, 50, 7.5e3]
    with Run.create(tmp_path / "run", "seed = 1\n", {}) as run:
        rows = [
            {"arch": Arch("vit", depth=i), "accuracy": 50.0 + i, "params": p, "source": "random" if i % 2 else "cross"}
            for i, p in enumerate(sizes)
        ]
        run.record_trials("search", rows)
        folder = run.folder
    with open_page(write_report(folder)) as page:
        heads = page.locator("#search table.sortable th")
        names = heads.all_inner_texts()
        at = names.index("parameters")
        heads.nth(at).click()
        numbers = [float(v) for v in column(page, at) if v != "–"]
        assert numbers == sorted((float(s) for s in sizes if s is not None), reverse=True)
        assert heads.nth(at).get_attribute("aria-sort") == "descending"
        heads.nth(at).click()
        assert [float(v) for v in column(page, at) if v != "–"] == numbers[::-1]
        assert heads.nth(at).get_attribute("aria-sort") == "ascending"
        assert "–" in (column(page, at)[0], column(page, at)[-1])
        rate = names.index("accuracy")
        heads.nth(rate).focus()
        page.keyboard.press("Enter")
        assert column(page, rate) == [f"{55.0 - i}" for i in range(6)]
        assert heads.nth(at).get_attribute("aria-sort") is None
        source = names.index("source")
        heads.nth(source).click()
        assert column(page, source) == ["random"] * 3 + ["cross"] * 3


def test_five_thousand_trials_open_quickly(open_page, report_of, record_property):
    report = report_of(trials=5000, classes=200)
    assert report.stat().st_size < 8 * 2**20
    start = time.perf_counter()
    with open_page(report) as page:
        page.locator("figure.chart svg").first.wait_for(state="visible")
        opened = time.perf_counter() - start
        assert shown(page) == "5,000 of 5,066 trials"
        filtered = page.evaluate(
            """() => {
              const start = performance.now(), stage = document.getElementById("search-stage");
              stage.value = "-1";
              stage.dispatchEvent(new Event("input", { bubbles: true }));
              document.querySelector('svg[data-chart="search"]').getBoundingClientRect();
              return (performance.now() - start) / 1000;
            }"""
        )
        assert shown(page) == "5,066 of 5,066 trials"
    print(
        f"5,000 trials, {report.stat().st_size / 2**20:.2f} MiB: open in {opened:.2f} s, filtered in {filtered:.3f} s"
    )
    record_property("opened", opened)
    assert opened < 3 and filtered < 0.5
