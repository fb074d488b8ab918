"""Figure files: they stand alone, carry every number, and show their words."""

from __future__ import annotations

import base64
import csv
import io
import json
import sys
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from tailorvit.errors import TailorError
from tailorvit.report import charts, collect, files
from tailorvit.report.charts import Figure, image
from tailorvit.report.files import NAMESPACE, csv_text, figure_style, svg_file, write_figures
from tailorvit.report.page import figures

SVG = f"{{{NAMESPACE}}}"


def picture(colour):
    data = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def figure(svg, key="one", **more):
    given = {"title": "A title", "caption": "What it shows.", "columns": ("a", "b"), "rows": [(1, 2.5)]}
    return Figure(key, svg=svg, **(given | more))


def chart(body):
    return f'<svg viewBox="0 0 100 50">{body}</svg>'


def drawn(path):
    return Image.open(path).convert("RGB")


def test_a_file_carries_its_style_title_hints_and_legend():
    body = '<circle class="dot c1" r="3" data-tip="here &amp; there" tabindex="0"/><text class="strong">hello</text>'
    root = ET.fromstring(svg_file(figure(chart(body), legend=(("c1", "the worst"),))))
    inner = root.find(f"{SVG}svg")
    dot = inner.find(f"{SVG}circle")
    assert dot.find(f"{SVG}title").text == "here & there", "a viewer of the file shows the hint as well"
    assert set(dot.attrib) == {"class", "r"} and inner.get("viewBox") == "0 0 100 50"
    assert ["".join(t.itertext()) for t in root.findall(f"{SVG}text")] == ["A title", "the worst"]
    assert root.find(f"{SVG}style").text == figure_style() and root.find(f"{SVG}desc").text == "What it shows."
    assert root.findall(f"{SVG}rect")[-1].get("class") == "bar c1", "the legend's mark has the colour of its class"


def test_the_style_of_files_is_that_of_the_light_page():
    style = figure_style()
    assert "var(" not in style and "@media" not in style
    assert ".dot.c1{fill:#c2571a;fill-opacity:.55}" in style and ".line.front{fill:none;stroke:#20242a" in style
    assert "svg text{fill:#5d6670}" in style and "svg .strong{fill:#20242a;font-weight:600}" in style


@pytest.mark.parametrize("kind", ["s4", "s3", "free", "fixed"])
def test_every_figure_of_a_report_stands_alone(make, tmp_path, kind):
    drawings = figures(collect(make(kind=kind)))
    assert len(drawings) > 3
    folder = tmp_path / "figures"
    write_figures(drawings, folder, ("svg", "csv"))
    index = {row["key"]: row for row in json.loads((folder / "index.json").read_text())["figures"]}
    for each in drawings:
        assert index[each.key]["files"] == [f"{each.key}.csv", f"{each.key}.svg"], index[each.key]["notes"]
        text = (folder / f"{each.key}.svg").read_text()
        assert "var(" not in text and "data-" not in text.replace("data:image", "")
        root = ET.fromstring(text)
        assert len(list(root.iter())) > 4
        body = list(csv.reader(io.StringIO((folder / f"{each.key}.csv").read_text(), newline="")))
        assert tuple(body[0]) == each.columns and len(body) == 1 + len(each.rows)


def test_charts_are_drawn_in_colour_with_words(tmp_path):
    drawings = {
        "lines": charts.lines({"a": [(0.0, 1.0), (1.0, 3.0)], "b <i>": [(0.0, 2.0)]}, "Lines", "x", "y"),
        "bars": charts.bars([("depth", 0.5, 0.1), ("embed", -0.2, None)], "Slopes"),
    }
    write_figures([figure(svg, key) for key, svg in drawings.items()], tmp_path, ("svg", "png"))
    for key in drawings:
        root = ET.fromstring((tmp_path / f"{key}.svg").read_text())
        pixels = drawn(tmp_path / f"{key}.png")
        assert pixels.width == 2 * float(root.get("width")) and pixels.height == 2 * round(float(root.get("height")))
        assert len(pixels.getcolors(100_000)) > 10
        assert pixels.getpixel((0, 0)) == (255, 255, 255)
        title = pixels.crop((0, 0, pixels.width, 50)).convert("L")
        assert title.getextrema()[0] < 100, "the title is there to read"
        colours = {c for _, c in pixels.getcolors(100_000)}
        assert any(b > r + 60 for r, g, b in colours), "the blue of c0 and not black"


def test_text_inside_a_drawing_is_drawn(tmp_path):
    blank, words = (
        drawn(write_figures([figure(chart(body))], tmp_path / name, ["png"])[0])
        for name, body in (("a", ""), ("b", '<text x="10" y="30">accuracy</text>'))
    )
    assert blank.tobytes() != words.tobytes()
    assert words.crop((20, 90, 200, 130)).convert("L").getextrema()[0] < 160


def test_pictures_survive(tmp_path):
    red = picture("#ff0000")
    body = image(red, 0, 0, 50, 50) + image(red, 50, 0, 50, 50)
    write_figures([figure(chart(body))], tmp_path, ["svg", "png"])
    assert (tmp_path / "one.svg").read_text().count(red) == 2
    reds = [n for n, c in drawn(tmp_path / "one.png").getcolors(100_000) if c == (255, 0, 0)]
    assert reds and reds[0] > 0.8 * 4 * 100 * 50


def test_maps_keep_their_sharp_patches(tmp_path):
    data = io.BytesIO()
    map_ = Image.new("L", (2, 1))
    map_.putpixel((1, 0), 255)
    map_.save(data, "PNG")
    href = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
    picture_ = drawn(write_figures([figure(chart(image(href, 0, 0, 100, 50)))], tmp_path, ["png"])[0])
    inside = picture_.crop((30, 80, 200, 120)).getcolors(1000)
    assert {c for _, c in inside} == {(0, 0, 0), (255, 255, 255)}, "two patches and no blur between them"


def test_numbers_are_whole_and_names_are_text(tmp_path):
    rows = [
        (0.1 + 0.2, 10**30, 'a "b", c\nd', None),
        (float("nan"), True, "=HYPERLINK(1)", [1, 2.5]),
        (-1e-300, -5, "Straße \U0001f600", {"k": 1}),
    ]
    write_figures([figure(chart(""), columns=("x", "n", "name", "more"), rows=rows)], tmp_path, ["csv"])
    data = (tmp_path / "one.csv").read_bytes()
    head, *body = csv.reader(io.StringIO(data.decode("utf-8"), newline=""))
    assert head == ["x", "n", "name", "more"]
    assert body[0] == ["0.30000000000000004", str(10**30), 'a "b", c\nd', ""]
    assert body[1] == ["nan", "True", "'=HYPERLINK(1)", "[1, 2.5]"]
    assert body[2] == ["-1e-300", "-5", "Straße \U0001f600", '{"k": 1}']
    assert csv_text(("a",), []) == "a\r\n"


def test_the_index_tells_what_there_is(tmp_path):
    made = write_figures([figure(chart("")), figure("", "none"), figure("<svg><g></svg>", "bad")], tmp_path)
    assert [p.name for p in made] == ["one.csv", "one.svg", "none.csv", "bad.csv", "index.json"]
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["format"] == 1
    one, none, bad = index["figures"]
    assert one["files"] == ["one.csv", "one.svg"] and one["rows"] == 1 and one["caption"] == "What it shows."
    assert none["notes"] == ["There is no picture: it has no drawing."]
    assert "not well-formed" in bad["notes"][0]


def test_hostile_words_stay_words(tmp_path):
    evil = "</title><script>alert(1)</script>\x00\x1b\udcff]]>&"
    more = {"title": evil, "caption": evil, "legend": (("c0", evil),)}
    write_figures([figure(chart("<script>x</script><text>\x01</text>"), **more)], tmp_path, ["svg", "png", "csv"])
    root = ET.parse(tmp_path / "one.svg").getroot()
    assert not [e for e in root.iter() if e.tag.endswith("script")]
    assert "<script>alert(1)</script>" in root.find(f"{SVG}desc").text


@pytest.mark.parametrize(
    ("keys", "formats", "sentence"),
    [
        (["a"], ["pdf"], "Unknown figure format 'pdf'. Known: csv, png, svg."),
        (["a"], [], "No format was named; choose from svg, png, csv."),
        (["a", "a"], ["csv"], "Two figures are called 'a'"),
        (["../a"], ["csv"], "'../a' cannot name a figure file"),
        (["index"], ["csv"], "'index' cannot name a figure file"),
    ],
)
def test_mistakes_are_sentences(tmp_path, keys, formats, sentence):
    with pytest.raises(TailorError) as caught:
        write_figures([figure(chart(""), k) for k in keys], tmp_path / "out", formats)
    assert sentence in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(TailorError, match="Cannot write figures to"):
        write_figures([figure(chart(""))], tmp_path / "out")


def test_without_resvg_the_pip_line_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    files._check_fonts.cache_clear()
    with pytest.raises(TailorError, match=r"pip install 'tailorvit\[figures\]'"):
        write_figures([figure(chart(""))], tmp_path / "out", ["png"])
    assert not (tmp_path / "out").exists()


def test_without_any_font_it_says_so(tmp_path, monkeypatch):
    import resvg_py

    real = resvg_py.svg_to_bytes
    monkeypatch.setattr(resvg_py, "svg_to_bytes", lambda **how: real(**how, skip_system_fonts=True))
    files._check_fonts.cache_clear()
    write_figures([figure(chart(""))], tmp_path / "own", ["png"])  # Pillow's font is enough
    title = drawn(tmp_path / "own" / "one.png").crop((0, 0, 200, 50)).convert("L")
    assert title.getextrema()[0] < 100
    files._check_fonts.cache_clear()
    monkeypatch.setattr(files, "_own_font", lambda: b"")
    with pytest.raises(TailorError, match="has no font"):
        write_figures([figure(chart(""))], tmp_path / "out", ["png"])
    files._check_fonts.cache_clear()
