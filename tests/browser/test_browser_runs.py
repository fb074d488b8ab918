"""Every kind of run in a browser: wide and narrow, light and dark, printed, and without scripts."""

from __future__ import annotations

import re

import pytest
from looks import brightness, charts, faults, hidden, too_wide, unfold

from tailorvit.report.charts import Figure
from tailorvit.report.page import shell

ALWAYS = {"training-loss", "training-accuracy", "training-rate", "training-speed"}
SPACE = {"space-path", "space-size", "slopes-0", "moves-0", "edf"}
STAGED = {"space-stages", "space-size", "fits-0", "moves-0", "edf"}
SEARCH = {"search-trials", "search-generations", "candidates"}
NETWORK = {"network-blocks", "network-parts"}
ATTENTION = {"attention-maps", "attention-distance", "head-similarity"}
TEST = {"confusion", "class-accuracy", "mistakes"}
RUNS = {
    "s4": ({}, ALWAYS | SPACE | SEARCH | NETWORK | ATTENTION | TEST),
    "s3": ({"kind": "s3"}, ALWAYS | STAGED | SEARCH | NETWORK | ATTENTION | TEST),
    "training-free": ({"kind": "free"}, ALWAYS | SEARCH | NETWORK | ATTENTION | TEST),
    "one network": ({"kind": "fixed"}, ALWAYS | NETWORK | ATTENTION | TEST | {"result-limits"}),
    "contest": ({"with_contest": True}, ALWAYS | SPACE | SEARCH | NETWORK | {"contest-rungs", "contest-worth"}),
    "failed": ({"failed": True}, ALWAYS | SPACE),
    "under way": ({"finished": False}, ALWAYS | SPACE | {"search-trials"}),
    "not analysed": ({"with_analysis": False}, ALWAYS | SPACE | SEARCH | NETWORK),
    "20 classes": ({"classes": 20}, TEST),
    "60 classes": ({"classes": 60}, {"confused-pairs", "confusion-coarse", "class-accuracy", "mistakes"}),
    "damaged database": ({"damage": "run.db"}, NETWORK | ATTENTION | TEST),
    "damaged result": ({"damage": "result.json"}, ALWAYS | SPACE | TEST),
    "damaged analysis": ({"damage": "analysis.json"}, ALWAYS | SPACE | SEARCH | NETWORK),
}
NARROW = {"width": 360, "height": 740}
WIDTHS = (390, 768, 1280)  # a phone, a tablet, a laptop
PHONE = {"viewport": NARROW, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


@pytest.mark.parametrize("kind", RUNS)
def test_every_kind_of_run_is_drawn_whole(open_page, report_of, kind):
    how, expected = RUNS[kind]
    with open_page(report_of(**how)) as page:
        assert page.locator("section").count() == 7 + (kind == "contest")
        unfold(page)
        assert expected <= set(charts(page)), expected - set(charts(page))
        assert faults(page) == []
        assert too_wide(page) == []
        page.set_viewport_size(NARROW)
        assert faults(page) == []
        assert too_wide(page) == []
        damaged = how.get("damage", "")
        assert not damaged or damaged in page.locator(".note").first.inner_text()


@pytest.mark.parametrize("kind", ["s4", "s3", "contest", "60 classes"])
def test_nothing_is_cut_at_any_width(open_page, report_of, kind):
    with open_page(report_of(**RUNS[kind][0])) as page:
        unfold(page)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert too_wide(page) == [], width
            assert hidden(page) == [], width
            assert faults(page) == [], width


def test_rows_become_lists_on_a_phone(open_page, report_of):
    with open_page(report_of(with_contest=True)) as page:
        table = page.locator("#contest table.sortable")
        row, wide = table.locator("tbody tr").first, "(e) => getComputedStyle(e).display"
        assert row.evaluate(wide) == "table-row" and table.locator("thead").is_visible()
        page.set_viewport_size({"width": 390, "height": 844})
        assert row.evaluate(wide) == "grid"
        named = row.locator("td").nth(5).evaluate("(e) => getComputedStyle(e, '::before').content")
        assert named == '"parameters"'
        assert row.locator("td:visible").all_inner_texts()[-2:] == ["64.20", "74.00"], "no dash for a round not reached"
        table.locator("th", has_text="round 1").click()  # the heads are still there to sort by
        first = table.locator("tbody tr").first.locator("td").first
        assert first.inner_text() == "shunted" and row.get_attribute("class") is None


def test_the_winner_is_named_and_marks_say_more(open_page, report_of):
    for scheme in ("light", "dark"):
        with open_page(report_of(with_contest=True), color_scheme=scheme) as page:
            race = page.locator("#contest-rungs svg")
            assert "winner: shunted, hand-designed" in race.text_content()
            thick, faded = race.locator(".line.thick"), race.locator(".line.faded").first
            style = "(e, name) => parseFloat(getComputedStyle(e)[name])"
            assert thick.evaluate(style, "strokeWidth") > 2 * faded.evaluate(style, "strokeWidth")
            assert faded.evaluate(style, "strokeOpacity") < 0.7 <= thick.evaluate(style, "strokeOpacity")
            race.locator("circle.solid").last.hover()
            assert page.locator("#tip").text_content().endswith("round 3, 27 epochs: 74.00 %, the winner")


@pytest.mark.parametrize("scripts", [True, False])
def test_on_a_phone_with_scripts_and_without(open_page, report_of, scripts):
    with open_page(report_of(), java_script_enabled=scripts, **PHONE) as page:
        assert page.evaluate("innerWidth") == 360  # a page made for desks would be laid out wider and shrunk
        assert page.locator("html.js").count() == scripts
        assert (page.locator(".tool:visible").count() > 0) == scripts  # nothing that would do nothing
        assert "63.50 %" in page.locator("#result").inner_text()
        assert too_wide(page) == []
        unfold(page)
        assert set(charts(page)) >= RUNS["s4"][1]
        assert faults(page) == []
        assert too_wide(page) == []


def test_light_dark_and_the_button(open_page, report_of):
    button = '[data-act="theme"]'
    with open_page(report_of(), color_scheme="light") as page:
        assert brightness(page) > 0.9
        page.click(button)
        assert brightness(page) < 0.2
        page.click(button)
        assert brightness(page) > 0.9
    with open_page(report_of(), color_scheme="dark") as page:
        assert brightness(page) < 0.2
        ink = page.evaluate("getComputedStyle(document.querySelector('svg .strong')).fill")
        assert min(map(int, re.findall(r"\d+", ink))) > 150  # light words on the dark page
        page.click(button)
        assert brightness(page) > 0.9


@pytest.mark.parametrize("scripts", [True, False])
def test_on_paper_nothing_is_folded_and_nothing_can_be_pressed(open_page, report_of, scripts):
    inside = "details > :not(summary)"
    with open_page(report_of(), color_scheme="dark", java_script_enabled=scripts) as page:
        assert page.locator("details").count() >= 5
        assert page.locator(f"{inside}:visible").count() == 0
        page.emulate_media(media="print", color_scheme="dark")
        assert brightness(page) > 0.99  # ink is dear, whatever the screen
        assert page.locator("nav:visible, .tool:visible, button:visible, select:visible").count() == 0
        assert page.locator(f"{inside}:visible").count() == page.locator(inside).count()


def test_printing_opens_the_folds_and_closes_them_again(open_page, report_of):
    with open_page(report_of()) as page:
        folds, first = page.locator("details"), page.locator("details").first
        first.evaluate("(d) => { d.open = true; }")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details[open]").count() == folds.count()
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("details[open]").count() == 1
        sheets = page.pdf(format="A4")
        assert sheets.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", sheets)) > 3
        assert page.locator("details[open]").count() == 1


BROKEN = {
    "nothing drawn": '<svg viewBox="0 0 100 50"><text x="9" y="20">words</text><path class="axis" d="M0 0H9"/></svg>',
    "by 4 pixels": '<svg viewBox="0 0 100 50" style="width:9px"><path class="line c0" d="M0 0L9 9"/></svg>',
    "without a colour": '<svg viewBox="0 0 100 50"><rect class="bar" width="9" height="9"/></svg>',
    "cut off": '<svg viewBox="0 0 100 50"><path class="line c0" d="M0 0L9 9"/><text x="90" y="20">words</text></svg>',
    "over each other": '<svg viewBox="0 0 100 50"><path class="line c0" d="M0 0L9 9"/>'
    '<text x="9" y="20">words</text><text x="11" y="21">words</text></svg>',
}


def test_a_bad_chart_is_noticed(open_page, tmp_path):
    figures = [
        Figure(fault.replace(" ", "-"), fault, "A chart with a fault.", (), (), drawing)
        for fault, drawing in BROKEN.items()
    ]
    copy = tmp_path / "bad.html"
    copy.write_text(shell("bad", f"<main>{''.join(f.html() for f in figures)}</main>"), "utf-8")
    with open_page(copy) as page:
        problems = faults(page)
        assert [line.split(":")[0] for line in problems] == [fault.replace(" ", "-") for fault in BROKEN]
        assert all(fault in line for fault, line in zip(BROKEN, problems, strict=True))


def test_a_bad_page_is_noticed(open_page, tmp_path):
    good = shell("good", "<main><p>words</p></main>")
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", good)
    wrongs = {
        "console": (good, "<script>1</script>", "Content Security Policy"),
        "exception": (free, "<script>throw Error('on purpose')</script>", "on purpose"),
        "dialog": (free, "<script>alert(1)</script>", "dialog: 1"),
        "outside": (free, '<img src="http://127.0.0.1:9/x.png">', "127.0.0.1:9"),
        "beside": (free, f'<img src="{tmp_path.as_uri()}/dialog.html">', "dialog.html"),
    }
    for name, (base, extra, expected) in wrongs.items():
        copy = tmp_path / f"{name}.html"
        copy.write_text(base.replace("</main>", f"{extra}</main>"), "utf-8")
        with pytest.raises(AssertionError, match=re.escape(expected)), open_page(copy) as page:
            page.wait_for_load_state()
    copy = tmp_path / "sideways.html"
    copy.write_text(good.replace("</main>", '<div id="wide" style="width:2000px">x</div></main>'), "utf-8")
    with open_page(copy) as page:
        assert "the page scrolls sideways" in too_wide(page) and any("#wide" in line for line in too_wide(page))
    copy.write_text(
        good.replace("<p>", '<p style="overflow-x:auto;width:9rem;white-space:nowrap">many words ' * 9), "utf-8"
    )
    with open_page(copy) as page:
        assert too_wide(page) == [] and hidden(page)[0].startswith("P.: many words")
