"""Chart arithmetic: ticks, fronts, thinning, scales."""

from __future__ import annotations

import re

import pytest

from tailorvit.report import charts


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.2, 7.7), (1e6, 9e6), (0.001, 0.0013), (99.999, 100.0)])
def test_ticks_are_few_round_and_inside(low, high):
    marks = charts.ticks(low, high)
    assert 2 <= len(marks) <= 8 and marks == sorted(set(marks))
    assert all(low - 1e-9 <= m <= high + 1e-9 for m in marks)


def test_one_value_has_one_tick():
    assert charts.ticks(4, 4) == [4]


def test_axis_numbers():
    assert [charts.short(v) for v in (0, 0.25, 9000, 12000, 2.5e6, 1.25e9)] == [
        "0",
        "0.25",
        "9000",
        "12k",
        "2.5M",
        "1.25G",
    ]


def test_front_keeps_the_unbeaten():
    points = [(3, 5), (1, 1), (2, 4), (2, 3), (4, 5), (5, 4), (6, 9)]
    assert charts.front(points) == [(1, 1), (2, 4), (3, 5), (6, 9)]


def test_thinning_keeps_ends_and_count():
    items = [(float(i), 0.0) for i in range(1000)]
    kept = charts.thin(items, 10)
    assert len(kept) == 10 and kept[0] == items[0] and kept[-1] == items[-1]
    assert charts.thin(items[:5], 10) == items[:5]


def test_scatter_counts_what_it_draws_and_keeps_the_front():
    cloud = [(float(i), float(-i)) for i in range(1, 5000)]
    drawing, drawn = charts.scatter([(0.5, 10.0), *cloud[:99], (0.2, 5.0), *cloud], "t", "x", "y", most=100)
    assert drawn < 110 and drawing.count("dot c1") == 2
    assert charts.scatter([], "t", "x", "y") == ("", 0)


def test_scales_stay_on_the_paper():
    for points in ([(1.0, 1.0)], [(0.0, 0.0), (0.0, 0.0)], [(-1e9, 1e-9), (1e9, 2e-9)]):
        drawing, _ = charts.scatter(points, "t", "x", "y")
        for x, y in re.findall(r'cx="([^"]+)" cy="([^"]+)"', drawing):
            assert 0 <= float(x) <= charts.WIDTH and 0 <= float(y) <= charts.HEIGHT


def test_slopes_reach_both_sides_and_show_errors():
    drawing = charts.slopes([("depth", -0.5, 0.1), ("embed <b>", 0.25, None), ("mlp", 0.0, 0.0)], "t")
    assert drawing.count("whisker") == 2 and "embed &lt;b&gt;" in drawing and "-0.5" in drawing
    assert charts.slopes([], "t") == "" and charts.slopes([("a", 0.0, None)], "t")


def test_intervals_have_a_bar_per_step_and_a_dot_per_choice():
    drawing = charts.intervals("embed", [(0, (64, 96, 128)), (1, (96, 128, 160)), (2, ())])
    assert drawing.count("span c0") == 2 and drawing.count("<circle") == 6
    assert charts.intervals("embed", [(0, ())]) == ""


def test_lines_skip_empty_series_and_show_single_points():
    drawing = charts.lines({"a": [(0.0, 1.0), (1.0, 2.0)], "b": [], "<c>": [(0.0, 1.0)]}, "t", "x", "y")
    assert drawing.count('class="line') == 2 and drawing.count("<circle") == 1 and "&lt;c&gt;" in drawing
    assert charts.lines({"a": []}, "t", "x", "y") == ""
