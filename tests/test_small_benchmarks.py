"""Tables of benchmarks/README.md that are not filled in by their script: they say what the stored rows say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import slopes
import starts
import tiles

from tailorvit.config import configure
from tailorvit.families import family
from tailorvit.space import Space

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
PAGE = (BENCHMARKS / "README.md").read_text(encoding="utf-8")


def stored(name: str):
    return json.loads((BENCHMARKS / "results" / name).read_text(encoding="utf-8"))


def test_tables_are_those_of_the_stored_rows():
    assert starts.told(stored("starts-2026-11-15.json")["rows"]) in PAGE
    names = ("slopes-2026-11-15.json", "slopes-more-2026-11-15.json", "slopes-survey-2026-11-16.json")
    for name in names:
        assert slopes.table(stored(name)["seeds"]) in PAGE
    assert slopes.cosines(*(stored(name)["seeds"] for name in names)) in PAGE


@pytest.mark.parametrize("shape", tiles.SHAPES)
def test_the_best_tiles_are_those_told(shape):
    rows = [r for r in stored("tiles-2026-11-15.json")["rows"] if r["shape"] == shape]
    tokens, _, width = shape.partition(", heads of ")
    line = next(x for x in PAGE.splitlines() if x.startswith(f"| {tokens}, ") and f"heads of {width}," in x)
    cells = [c.strip() for c in line.strip("|").split("|")][1:]
    for name, first, best in zip(tiles.CANDIDATES, cells[::2], cells[1::2], strict=True):
        each = [r for r in rows if r["kernel"] == name]
        assert first == f"{each[0]['us']:.0f}"
        quickest = min(each, key=lambda r: r["us"])
        told = "the same" if quickest is each[0] else f"{quickest['us']:.0f} ("
        assert best.startswith(told)


@pytest.mark.parametrize("case", starts.CASES)
def test_a_start_is_a_valid_recipe_with_members_at_the_limit(case):
    table = starts.recipe(0, 300, 2, starts.CASES[case])
    config = configure(table)
    assert config.method == starts.CASES[case]["method"] and config.final.train.epochs == 2
    space = Space.from_dict(table["space"])
    assert space["depth"].choices == (8, 9, 10) and space["embed"].choices == (24, 32, 40)


def test_uniform_networks_use_the_limit():
    from tailorvit.costs.count import Counter

    counter = Counter("vit", starts.FIXED)
    for depth in starts.DEPTHS:
        table = starts.uniform(depth)
        params = counter.both(family("vit").arch(table))[0]
        wider = counter.both(family("vit").arch({**table, "embed": table["embed"] + 4}))[0]
        assert params <= starts.LIMIT < wider


def test_a_second_start_goes_on_with_what_is_there():
    known = {(r["case"], r["seed"]) for r in stored("starts-2026-11-15.json")["rows"]}
    todo = {j[:2] for j in starts.jobs(range(4), 3000, 16, "")}
    assert known < todo and len(todo) == 4 * len(starts.CASES) + len(starts.DEPTHS)
