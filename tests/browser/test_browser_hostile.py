"""Names that try to become code, to turn the text around them or to burst the page: they stay words."""

from __future__ import annotations

import re

import pytest
from looks import charts, faults, too_wide, unfold

from fake_runs import write_run
from tailorvit.report import write_report

WIDE, NARROW = {"width": 1200, "height": 900}, {"width": 360, "height": 740}
CODE = (
    "<script>alert(1)</script>",
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=alert(2)>",
    '"\' onmouseover=\'window.pwned=1\' autofocus onfocus="window.pwned=1" x="',
    "</svg></style></title></textarea><svg onload=window.pwned=1>",
    "<!--",
    "]]>&lt;b&gt;${window.pwned=1}",
    "javascript:window.pwned=1",
)
TURNED = "\u202egpj.exe\u202c\u2066x\u2069\u200f\u200e\x00\x1b[31m\x9b"
LONG = "W" * 10_000
NAMES = {"code": " ".join(CODE), "turned": TURNED, "long": LONG, "spaced": "wide " * 2_000}
BIDI = "[\u200e\u200f\u202a-\u202e\u2066-\u2069]"


@pytest.mark.parametrize("kind", ["s4", "free"])
def test_code_in_names_stays_text(open_page, report_of, kind):
    with open_page(report_of(evil=NAMES["code"], kind=kind)) as page:
        unfold(page)
        assert set(charts(page)) >= {"network-blocks", "attention-maps", "confusion", "mistakes"}
        words = page.locator("body").inner_text()
        assert all(code in words for code in CODE)
        for tip in page.locator("#mistakes [data-tip]").all()[:2]:
            tip.hover()
            assert CODE[0] in page.locator("#tip").text_content()
        page.select_option("#search-source", index=1)
        page.select_option("#search-stage", label="all stages")
        page.select_option("#attention-image", "1")
        assert page.evaluate("typeof window.pwned") == "undefined"
        assert page.locator("[onerror], [onload], [onmouseover], [onfocus], img[src='x'], a[href^=java]").count() == 0
        assert page.locator("script:not([type])").count() == page.locator("body > script").count() == 2
        assert page.locator("section").count() == 7


@pytest.mark.parametrize("name", NAMES)
def test_no_name_bursts_the_page_or_turns_it_around(open_page, report_of, name):
    with open_page(report_of(evil=NAMES[name], classes=6)) as page:
        unfold(page)
        tallest = page.evaluate("Math.max(...[...document.querySelectorAll('tr')].map((r) => r.clientHeight))")
        assert tallest < 1500  # 10,000 letters would fill seven screens
        for window in (WIDE, NARROW):
            page.set_viewport_size(window)
            assert too_wide(page) == []
            assert [f for f in faults(page) if "pixels" in f or "nothing" in f or "colour" in f] == []
        assert not re.search(BIDI, page.content()) and "\x1b" not in page.content()


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)> \"&' <b>", "W" * 200, "\u202egpj.nur"])
def test_the_folder_may_have_any_name(open_page, tmp_path, name):
    folder = write_run(tmp_path / name, trials=8)
    with open_page(write_report(folder)) as page:
        shown = re.sub(BIDI, "\ufffd", name)
        shown = shown if len(shown) <= 120 else f"{shown[:119]}…"
        assert page.locator("h1").inner_text() == f"{shown} finished"
        assert page.title().startswith(re.sub(r"\s+", " ", shown)[:100])
        for window in (WIDE, NARROW):
            page.set_viewport_size(window)
            assert too_wide(page) == []
