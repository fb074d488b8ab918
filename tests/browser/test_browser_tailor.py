"""The page of a pretrained network that was cut, in a browser: nothing is cut or covered at any width."""

from __future__ import annotations

import pytest
from looks import charts, faults, hidden, too_wide, unfold

from fake_runs import write_tailored
from tailorvit.report import write_report

OWN = {"tailored-sizes", "tailored-kept", "result-time", "result-limits", "result-accuracy"}
RUNS = {"found": ({}, OWN), "first blocks": ({"first": True}, OWN), "under way": ({"stages": 2}, {"result-time"})}


@pytest.mark.parametrize("kind", RUNS)
def test_nothing_is_cut_at_any_width(open_page, tmp_path, kind):
    how, expected = RUNS[kind]
    folder = write_tailored(tmp_path / "run", **how)
    with open_page(write_report(folder)) as page:
        assert page.locator("section").count() == 8
        unfold(page)
        assert expected <= set(charts(page))
        for width in (390, 768, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert too_wide(page) == [], width
            assert hidden(page) == [], width
            assert faults(page) == [], width


def test_a_dot_says_more(open_page, tmp_path):
    with open_page(write_report(write_tailored(tmp_path / "run"))) as page:
        page.locator("#tailored-sizes circle.dot.c5").hover()
        assert page.locator("#tip").text_content().startswith("whole network\n21.52M parameters, 100 % of the whole")
