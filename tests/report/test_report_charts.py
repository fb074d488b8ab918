"""Chart arithmetic: ticks, fronts, thinning, scales, and what each drawing holds."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tailorvit.report import charts


def places(drawing):
    """Every x and y a drawing uses for dots."""
    return [(float(x), float(y)) for x, y in re.findall(r'cx="([^"]+)" cy="([^"]+)"', drawing)]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3.2, 7.7), (1e6, 9e6), (0.001, 0.0013), (99.999, 100.0), (-1e100, 1e100), (1e-9, 2e-9)]
)
def test_ticks_are_few_round_and_inside(low, high):
    marks = charts.ticks(low, high)
    assert 2 <= len(marks) <= 8 and marks == sorted(set(marks))
    assert all(low - 1e-9 * abs(low) - 1e-12 <= m <= high + 1e-9 * abs(high) + 1e-12 for m in marks)


@pytest.mark.parametrize(("low", "high"), [(4, 4), (1e17, 1e17 + 16), (5, 3)])
def test_ranges_without_room_for_ticks(low, high):
    assert 1 <= len(charts.ticks(low, high)) <= 8


def test_whole_numbers_have_whole_marks():
    def marked(xs):
        return re.findall(r'text-anchor="middle">([^<]+)<', "".join(charts.Axes(xs, [1.0, 2.0]).parts))

    assert marked([0.0, 1.0, 2.0]) == ["0", "1", "2"] and marked([3.0]) == ["3"]
    assert "0.5" in marked([0.0, 0.25, 2.0])


def test_axis_numbers():
    values = (0, 0.25, 9000, 12000, 2.5e6, 1.25e9)
    assert [charts.short(v) for v in values] == ["0", "0.25", "9000", "12k", "2.5M", "1.25G"]


def test_front_keeps_the_unbeaten():
    points = [(3, 5), (1, 1), (2, 4), (2, 3), (4, 5), (5, 4), (6, 9)]
    assert charts.front(points) == [(1, 1), (2, 4), (3, 5), (6, 9)]


def test_thinning_keeps_ends_and_count():
    items = [(float(i), 0.0) for i in range(1000)]
    kept = charts.thin(items, 10)
    assert len(kept) == 10 and kept[0] == items[0] and kept[-1] == items[-1]
    assert charts.thin(items[:5], 10) == items[:5]


def test_axes_place_values_between_their_edges():
    axes = charts.Axes([10, 20], [1, 3], "x", "y", charts.Box(100, 50, 200, 100, 20, 10, 5, 15))
    assert axes.left == 120 and axes.right == 290 and axes.top == 55 and axes.bottom == 135
    assert axes.left < axes.x(10) < axes.x(20) < axes.right and axes.x(15) == pytest.approx(205)
    assert axes.top < axes.y(3) < axes.y(1) < axes.bottom and axes.y(2) == pytest.approx(95)


def test_stairs_keep_their_height_until_the_next_point():
    axes = charts.Axes([0, 1], [0, 1])
    axes.path([(0, 0), (1, 1)], "line c0", stairs=True)
    d = re.search(r'line c0" d="M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)"', axes.svg("t"))
    assert float(d[1]) < float(d[3]) and float(d[2]) > float(d[4])


def test_a_cloud_is_one_path_and_draws_a_spot_once():
    points = [(float(i), float(i % 7)) for i in range(500)]
    drawing = charts.scatter({"a": points * 2, "b": []}, "t", "x", "y", [((0.0, 9.0), "first <b>")], ((3.0, 3.0), "it"))
    assert drawing.count('class="cloud') == 1 and drawing.count("h.01") == 500
    assert drawing.count("dot front") == 1 and "first &lt;b&gt;" in drawing and drawing.count("ring") == 1
    assert charts.scatter({"a": []}, "t", "x", "y") == ""


def test_scales_stay_on_the_paper():
    for points in ([(1.0, 1.0)], [(0.0, 0.0), (0.0, 0.0)], [(-1e9, 1e-9), (1e9, 2e-9)], [(-1e100, 0.0), (1e100, 1.0)]):
        drawing = charts.lines({"a": points}, "t", "x", "y")
        assert places(drawing)
        for x, y in places(drawing):
            assert 0 <= x <= charts.WIDTH and 0 <= y <= charts.HEIGHT


def test_bars_reach_both_sides_and_show_errors():
    drawing = charts.bars([("depth", -0.5, 0.1), ("embed <b>", 0.25, None), ("mlp", 0.0, 0.0)], "t")
    assert drawing.count("whisker") == 2 and "embed &lt;b&gt;" in drawing and "-0.5" in drawing
    (minus, plus) = re.findall(r'bar (c\d)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawing)[:2]
    assert minus[0] == "c3" and plus[0] == "c0"
    assert float(minus[1]) + float(minus[2]) == pytest.approx(float(plus[1]), abs=0.2), "both start at zero"
    assert float(minus[2]) == pytest.approx(2 * float(plus[2]), abs=0.2), "and are as long as their values"
    assert charts.bars([], "t") == "" and charts.bars([("a", 0.0, None)], "t")
    assert "e-" not in charts.bars([("a", 1.0, None), ("b", -8.9e-16, None)], "t"), "a rounding error is 0"


def test_levels_keep_proportions_and_mark_limits():
    drawing = charts.levels([("found", 50.0, "50", "c0"), ("other", 100.0, "100", "c4")], [(80.0, "at most 80")], "t")
    wide = [float(w) for w in re.findall(r'class="bar[^>]* width="([\d.]+)"', drawing)]
    assert wide[1] == pytest.approx(2 * wide[0], abs=0.2)
    mark = float(re.search(r'class="rule c3" d="M([\d.]+)', drawing)[1])
    assert mark == pytest.approx(96 + 0.8 * wide[1], abs=0.2) and "at most 80" in drawing
    assert charts.levels([("a", 0.0, "0", "c0")], [], "t") == ""


def test_a_stack_fills_its_bar():
    drawing = charts.stack([("a", 1.0, "1", "c0"), ("none", 0.0, "0", "c1"), ("b", 3.0, "3", "c2")], "t")
    wide = [float(w) for w in re.findall(r' width="([\d.]+)"', drawing)]
    assert sum(wide) == pytest.approx(charts.WIDTH) and wide[1] == pytest.approx(3 * wide[0])
    assert charts.stack([("a", 0.0, "0", "c0")], "t") == ""


def test_dots_lie_within_their_whiskers():
    rows = [
        ("found", [charts.Mark(98.0, "c0", "a", (96.0, 99.0))]),
        ("other", [charts.Mark(50.0, "c4", "b", (40, 60))]),
    ]
    drawing = charts.dot_rows(rows, "t", "%")
    whiskers = re.findall(r'whisker" d="M([\d.]+) \d+H([\d.]+)M', drawing)
    for (x, _), (a, b) in zip(places(drawing), whiskers, strict=True):
        assert float(a) < x < float(b)
    assert charts.dot_rows([("none", [])], "t", "%") == ""
    assert "whisker" not in charts.dot_rows([("a", [charts.Mark(1.0, "c0", "")])], "t", "x")


def test_long_names_have_room():
    drawing = charts.dot_rows([("efficientnet_lite", [charts.Mark(1.0, "c0", "")]), ("w" * 99, [])], "t", "x")
    (x, _), *_ = places(drawing)
    names = re.findall(r'<text x="([\d.]+)"[^>]*class="strong">([^<]*)<', drawing)
    assert [len(words) for _, words in names] == [17, 24]
    assert all(float(at) >= 7 * len(words) for at, words in names) and x > float(names[0][0])


def test_percentages_and_shares_end_at_their_ends():
    assert charts.span([90.0, 100.0], "accuracy, %") == (89.5, 100.0)
    assert charts.span([0.0, 1.0], "share of sub-networks") == (0.0, 1.0)
    assert charts.span([100.0], "accuracy, %") == (95.0, 100.0) and charts.span([0.0], "error, %") == (0.0, 1.0)
    assert charts.span([90.0, 100.0]) == (89.5, 100.5)
    low, high = charts.span([-3.0, 250.0], "accuracy, %")
    assert low < -3 and high > 250, "damaged numbers stay on the paper"


def test_intervals_have_a_bar_per_step_and_a_dot_per_choice():
    path = [("0", (64, 96, 128)), ("1", (96, 128, 160)), ("2", ())]
    drawing = charts.intervals({"embed": path, "one": [("0", (3,))], "none": [("0", ())]}, "t")
    assert drawing.count("span c0") == 3 and drawing.count("<circle") == 7
    assert charts.intervals({"embed": [("0", ())]}, "t") == ""


def test_lines_skip_empty_series_and_show_single_points():
    series = {"a": [(0.0, 1.0), (1.0, 2.0)], "b": [], "<c>": [(0.0, 1.0)]}
    drawing = charts.lines(series, "t", "x", "y", rules=[(5.0, "at most 5")])
    assert drawing.count('class="line') == 2 and drawing.count("<circle") == 3 and "&lt;c&gt;" in drawing
    assert 'class="line c2"' in drawing, "a series keeps its colour where another is empty"
    assert charts.legend(list(series)) == (("c0", "a"), ("c1", "b"), ("c2", "<c>"))
    assert "at most 5" in drawing and charts.lines({"a": []}, "t", "x", "y") == ""


def test_drawings_are_well_formed():
    hostile = "<script>\"'&"
    for drawing in (
        charts.lines({hostile: [(0.0, 1.0), (1.0, 2.0)]}, hostile, hostile, hostile, x_names={0.0: hostile}),
        charts.scatter({hostile: [(0.0, 1.0)]}, hostile, hostile, hostile, [((0.0, 1.0), hostile)]),
        charts.bars([(hostile, 1.0, 1.0)], hostile),
        charts.stack([(hostile, 1.0, hostile, "c0")], hostile),
        charts.levels([(hostile, 1.0, hostile, "c0")], [(1.0, hostile)], hostile),
        charts.dot_rows([(hostile, [charts.Mark(1.0, "c0", hostile, (0.0, 2.0))])], hostile, hostile),
        charts.intervals({hostile: [(hostile, (1.0, 2.0))]}, hostile),
    ):
        assert ElementTree.fromstring(drawing).tag == "svg"
