"""Section 4: blocks of any number and stage, attention whole, damaged and hostile."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from tailorvit.report import collect, network
from tailorvit.report.charts import LEVELS, heat_png, palette, trim
from tailorvit.report.fields import checked_picture
from tailorvit.report.network import top_keys
from tailorvit.report.reading import Analysis, Facts, Result, blocks

PIXEL = "data:image/png;base64," + base64.b64encode(b"not decoded here").decode()
EVIL = "</script><script>alert(1)</script><img src=x onerror='a'>\"&'"


def row(i: int, stage: int | None = None, **more):
    facts = {"stage": stage, "block": i, "tokens": 196, "embed": 96, "heads": 3, "qkv": 192, "mlp": 4, "hidden": 384}
    return {**facts, "window": None, "params": 1000 * i, "macs": 10**6, **more}


def layer(images: int = 2, heads: int = 3, grid: tuple[int, int] = (4, 5), name: str = "block 1"):
    rng = np.random.default_rng(0)
    maps = rng.integers(0, 255, (images, 2, heads, *grid)).astype(np.uint8)
    maps.reshape(-1, grid[0] * grid[1])[:, 3] = 255
    box = {"low": 0.5, "q1": 1, "median": 1.5, "q3": 2, "high": 3, "mean": 1.6}
    return {
        "name": name,
        "stage": None,
        "block": 1,
        "heads": heads,
        "grid": list(grid),
        "references": [[2, 2], [0, 0]],
        "maps": base64.b64encode(maps.tobytes()).decode(),
        "peaks": base64.b64encode(np.full((images, 2, heads), 0.5, "<f4").tobytes()).decode(),
        "distance": {"5": box, "10": box},
        "similarity": [[1.0 if a == b else 0.25 for a in range(heads)] for b in range(heads)],
        "redundancy": 0.25 if heads > 1 else None,
    }


def facts(rows=(), layers=(), images: int = 2, classes=("rose", "tulip"), seen=None, **result):
    seen = seen or [{"name": f"a/{i}.png", "truth": i % 2, "said": 0, "picture": PIXEL} for i in range(images)]
    analysis = {"classes": list(classes), "attention": {"images": seen, "layers": list(layers)}}
    arch = {"family": "vit", "depth": len(rows), "embed": 96}
    return Facts("run", True, result={"arch": arch, "blocks": list(rows), **result}, analysis=analysis)


def keys(known: Facts) -> list[str]:
    """The keys of the figures, each checked: drawing well-formed, rows as wide as the columns, words in place."""
    found = network.figures(known)
    for figure in found:
        ElementTree.fromstring(figure.svg)
        assert all(len(values) == len(figure.columns) for values in figure.rows), figure.key
        assert figure.title and figure.caption
        assert not re.search(r"\b(nan|inf|None)\b", figure.svg), figure.key
    return [figure.key for figure in found]


@pytest.mark.parametrize("count", [1, 3, 16, 17, 48])
def test_every_block_is_drawn(count):
    known = facts([row(i) for i in range(1, count + 1)])
    assert keys(known) == ["network-blocks"]
    drawing = ElementTree.fromstring(network.figures(known)[0].svg)
    tips = [g.get("data-tip") or "" for g in drawing.iter("g")]
    assert sum(t.startswith("block ") for t in tips) == count
    width, height = map(float, drawing.get("viewBox").split()[2:])
    assert width == 440 and height > 20 * count
    for rect in drawing.iter("rect"):
        assert float(rect.get("x")) + float(rect.get("width")) <= width
        assert float(rect.get("y")) + float(rect.get("height")) <= height


def test_widths_share_one_scale_and_heads_cut_the_bar():
    drawing = ElementTree.fromstring(
        network.figures(facts([row(1), row(2, embed=48, qkv=64, hidden=96, heads=4)]))[0].svg
    )
    first, second = (g for g in drawing.iter("g") if (g.get("data-tip") or "").startswith("block"))
    wide = [[float(r.get("width")) for r in g.iter("rect")] for g in (first, second)]
    assert wide[0][0] / wide[1][0] == pytest.approx(2, rel=0.02), "embed 96 against 48"
    assert wide[0][2] / wide[0][1] == pytest.approx(2, rel=0.02), "hidden 384 against Q-K-V 192"
    assert [g.find("path").get("d").count("M") for g in (first, second)] == [2, 3], "heads less one"


BARE = {"stage": None, "block": 1, "tokens": 49, "embed": 64, "params": 1000, "macs": 10**6}


def test_a_family_without_heads_and_with_columns_of_its_own():
    rows = [{**BARE, "block": i, "kernel": 7, "mixer": "<conv>", "odd": [1], "nothing": None} for i in (1, 2)]
    known = facts(rows)
    assert keys(known) == ["network-blocks"]
    (figure,) = network.figures(known)
    assert figure.columns == ("part", "block", "tokens", "embed", "kernel", "mixer", "params", "macs")
    assert figure.rows[0] == ("block", 1, 49, 64, 7, "<conv>", 1000, 10**6)
    assert [words for _, words in figure.legend] == ["width", "parameters", "MACs"]
    assert "heads" not in figure.caption and "MLP" not in figure.caption
    text = network.section(known)
    heads = re.findall(r"<th[^>]*>([^<]*)</th>", text)
    assert heads == ["block", "tokens", "width", "kernel", "mixer", "parameters", "MACs"], "no empty columns"
    assert "width 64, kernel 7, mixer &lt;conv&gt;" in text and "–" not in text


def test_blocks_of_two_kinds_share_one_table():
    known = facts([BARE, {**BARE, "block": 2, "heads": 2, "qkv": 64}])
    keys(known)
    (figure,) = network.figures(known)
    assert figure.columns == ("part", "block", "tokens", "embed", "heads", "qkv", "params", "macs")
    assert figure.rows[0][4:6] == (None, None) and figure.rows[1][4:6] == (2, 64)


def test_stages_with_windows():
    rows = [row(i, stage, window=7 * stage, tokens=3136 // 4**stage) for i, stage in enumerate((1, 1, 2, 3, 3, 4), 1)]
    text = network.section(facts(rows))
    for words in (
        "Stage 1, 784 tokens, width 96, window 7, 2 blocks",
        "Stage 4, 12 tokens, width 96, window 28, 1 block",
    ):
        assert words in text, words


def test_parts_before_between_and_after_the_blocks():
    names = (("patch_embed", 10), ("blocks.attn", 50), ("merge", 5), ("blocks.mlp", 30), ("norm", 2), ("head", 3))
    known = facts([row(1)], parts=[{"part": n, "params": p, "macs": 2 * p} for n, p in names])
    drawn = {f.key: f for f in network.figures(known)}
    ends = {r[0]: r[-2:] for r in drawn["network-blocks"].rows if r[0] != "block"}
    assert ends == {"stem": (10, 20), "between": (5, 10), "head": (5, 10)}
    shares = {r[0]: r[2] for r in drawn["network-parts"].rows}
    assert shares["blocks.attn"] == 0.5 and sum(shares.values()) == pytest.approx(1)


def test_an_old_run_is_drawn_from_its_architecture():
    arch = {"family": "vit", "depth": 2, "embed": 40, "heads": [3, 4], "mlp": [2.5, 2]}
    found = blocks(Result(arch=arch, fixed={"head_dim": 16}))
    assert [(b.block, b.embed, b.heads, b.qkv, b.hidden, b.params) for b in found] == [
        (1, 40, 3, 48, 100, None),
        (2, 40, 4, 64, 80, None),
    ]
    staged = {"family": "swin", "embed.1": 24, "mlp.1": [2], "embed.2": 48, "mlp.2": [3, 4], "window.2": [5, 7]}
    found = blocks(Result(arch=staged))
    assert [(b.stage, b.embed, b.mlp, b.window) for b in found] == [(1, 24, 2, None), (2, 48, 3, 5), (2, 48, 4, 7)]


def test_the_section_of_a_whole_run(make):
    known = collect(make(classes=4))
    assert keys(known) == [
        *("network-blocks", "network-parts", "attention-maps", "attention-distance", "head-similarity"),
    ]
    text = network.section(known)
    assert text.count("<figure") == 5 and "A note." in text


def test_maps_show_reference_heads_and_strongest_keys():
    figure = next(f for f in network.figures(facts([row(1)], [layer()])) if f.key == "attention-maps")
    drawing = ElementTree.fromstring(figure.svg)
    assert len(list(drawing.iter("image"))) == 2 + 2 * 3, "two pictures and three heads each"
    words = [t.text for t in drawing.iter("text")]
    assert words.count("head 3") == 2 and [words.count(str(n)) for n in range(1, 7)] == [6] * 5 + [0]
    assert "a/1.png: tulip, predicted rose" in words
    assert "block 1, query patch in row 3, column 3" in words
    values = [r for r in figure.rows if r[:5] == ("a/0.png", "block 1", 3, 3, 1)]
    assert len(values) == 20 and max(values, key=lambda r: r[-1])[5:] == (1, 4, 0.5), "weight is map times peak"


def test_heat_maps_are_true_pictures():
    values = np.arange(0, 255, 17, dtype=np.uint8).reshape(3, 5)
    address = heat_png(values)
    assert checked_picture(address) == address
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB"))
    assert (pixels == palette()[values.astype(int) * LEVELS // 256]).all()


def test_strongest_keys_in_order_and_never_without_weight():
    heat = np.array([[0, 9, 3], [9, 0, 255]], np.uint8)
    assert top_keys(heat) == [(1, 2), (0, 1), (1, 0), (0, 2)]


def test_one_head_has_nothing_to_compare():
    known = facts([row(1, heads=1)], [layer(heads=1)])
    assert "head-similarity" not in keys(known)
    assert "one head" in network.section(known)


def test_the_script_gets_all_layers_and_cannot_be_left():
    known = facts([row(1)], [layer(name="first"), layer(name=EVIL)], classes=(EVIL, "b"))
    text = network.section(known)
    data = re.findall(r'<script type="application/json" id="attention-data">(.*?)</script>', text)
    assert len(data) == 1 and text.count("<script") == 1
    assert "<" not in data[0]
    told_data = json.loads(data[0])
    assert [each["name"] for each in told_data["layers"]] == ["first", trim(EVIL, 40)]
    assert told_data["images"][0]["truth"] == trim(EVIL, 80) and len(told_data["palette"]) == LEVELS


class Tags(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found += [(tag, k, v) for k, v in attrs]


def test_hostile_names_and_pictures_stay_text():
    bad = layer(name=EVIL)
    images = [
        {"name": EVIL * 1000, "truth": 0, "said": 0, "picture": "data:image/svg+xml;base64,PHN2Zz4="},
        {"name": "a/1.png", "truth": 1, "said": 0, "picture": f'{PIXEL}"onload="alert(1)'},
    ]
    parts = [{"part": EVIL, "params": 1, "macs": 1}]
    known = facts([row(1)], [bad], classes=(EVIL, EVIL * 500), seen=images, parts=parts)
    keys(known)
    text = network.section(known)
    assert "alert(1)" in text, "the names are shown"
    found = Tags(text).found
    assert not [a for a in found if a[1].startswith("on") or a[0] == "img" or a[1] == "src"]
    assert all(v.startswith("data:image/png;base64,") for _, k, v in found if k == "href")
    assert "2 of 2 pictures beside the attention maps are missing or damaged." in text


@pytest.mark.parametrize(
    "address",
    [
        None,
        5,
        "",
        "https://example.org/a.png",
        "javascript:alert(1)",
        f"{PIXEL}\n",
        PIXEL.replace("png", "gif"),
        "data:image/png;base64,",
        PIXEL + "A" * 300_000,
    ],
)
def test_only_small_pictures_of_two_kinds_are_taken(address):
    assert checked_picture(address) is None


DAMAGES = {
    "maps cut": ({"maps": "AAAA"}, "attention maps of block 1 are damaged"),
    "maps no base64": ({"maps": "%%%"}, "attention maps of block 1 are damaged"),
    "maps a number": ({"maps": 7}, "attention maps of block 1 are damaged"),
    "grid missing": ({"grid": None}, "attention of block 1 is damaged"),
    "grid huge": ({"grid": [10**9, 10**9]}, "attention of block 1 is damaged"),
    "grid wrong": ({"grid": [5, 5]}, "attention maps of block 1 are damaged"),
    "heads nan": ({"heads": float("nan")}, "attention of block 1 is damaged"),
    "reference outside": ({"references": [[9, 9], [0, 0]]}, "attention maps of block 1 are damaged"),
    "box without numbers": ({"distance": {"5": {"low": float("nan")}}}, "distance of block 1 is damaged"),
    "distance of a word": ({"distance": {"five": {}}}, "distance of block 1 is damaged"),
    "similarity ragged": ({"similarity": [[1.0], [1.0, 0.5]]}, "similarity of block 1 is damaged"),
    "similarity nan": ({"similarity": [[float("nan")] * 3] * 3}, "similarity of block 1 is damaged"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_costs_only_its_own_part(name):
    change, sentence = DAMAGES[name]
    known = facts([row(1)], [{**layer(), **change}, layer(name="block 2")])
    whole = keys(facts([row(1)], [layer(name="block 2")]))
    assert keys(known) == whole, "the other layer still has all its figures"
    assert sentence in network.section(known)


@pytest.mark.parametrize("peaks", [None, "AAA", base64.b64encode(np.full((2, 2, 3), np.nan, "<f4").tobytes()).decode()])
def test_maps_without_peaks_are_still_shown(peaks):
    assert "attention-maps" in keys(facts([row(1)], [{**layer(), "peaks": peaks}]))


@pytest.mark.parametrize("analysis", [{}, {"attention": 5}, {"attention": {"layers": "x"}}, {"notes": "none"}])
def test_no_attention_is_a_sentence(analysis):
    known = Facts("run", True, result={"arch": {"family": "vit"}, "blocks": [row(1)]}, analysis=analysis)
    assert "The attention of this network was not recorded." in network.section(known)
    assert "No network has been chosen yet." in network.section(Facts("run", False, analysis=analysis))


@pytest.mark.parametrize("value", [None, float("nan"), -3, 0, "x", 10**400, [1], {}])
@pytest.mark.parametrize("key", ["stage", "block", "embed", "heads", "qkv", "hidden", "window", "params", "tokens"])
def test_damaged_rows_of_blocks_are_drawn_without_the_number(key, value):
    assert "network-blocks" in keys(facts([row(1), row(2, **{key: value})]))
    network.section(facts([row(1, **{key: value})]))


def test_too_many_maps_keep_the_last_layers():
    known = facts(
        [row(1)], [layer(images=4, heads=16, grid=(40, 40), name=f"block {i}") for i in range(1, 10)], images=4
    )
    text = network.section(known)
    data = json.loads(re.search(r'id="attention-data">(.*?)</script>', text)[1])
    assert 1 <= len(data["layers"]) < 9 and data["layers"][-1]["name"] == "block 9"
    assert len(text) < 1.5 * 2**20


def test_numbers_survive_as_csv(make):
    for figure in network.figures(collect(make())):
        out = io.StringIO()
        csv.writer(out).writerows([figure.columns, *figure.rows])
        assert out.getvalue().count("\n") == len(figure.rows) + 1


def test_attention_of_nothing():
    assert Analysis.model_validate({}).attention is None
    found = Analysis.model_validate({"attention": {"images": [], "layers": []}, "classes": None})
    assert found.attention is not None and found.classes == ()
    assert found.attention.layers == () and found.attention.problems == ()
