"""A latency table of another host: fitted where it is one, refused in one sentence where it is not."""

from __future__ import annotations

import json

import pytest

from tailorvit.config import configure
from tailorvit.costs import Clock, Counter, Limits, Meter
from tailorvit.costs.latency_table import FORMAT, fitted, read_latency_table
from tailorvit.errors import TailorError
from tailorvit.families import named_space, with_settings
from tailorvit.methods.latency import with_clock
from tailorvit.report.latency_facts import LatencyBy
from tailorvit.report.result import latency_in_words
from tailorvit.rng import generator

SPACE = named_space("vit-8px")
COUNTER = Counter("vit", dict(SPACE.settings))
ARCHS = [SPACE.smallest(), SPACE.largest(), *SPACE.sample_distinct(38, generator(0, "table"))]


def seconds(arch) -> float:
    """A host: a start, a price per block and per MAC."""
    return 2e-4 + 1e-4 * float(arch.one("depth")) + 1e-9 * COUNTER.macs(arch)


def facts(archs=ARCHS, clock=seconds) -> dict:
    rows = [
        {"file": f"{i}.onnx", "arch": a.to_dict(), "median_ms": (ms := 1e3 * clock(a)), "low_ms": ms, "high_ms": ms}
        for i, a in enumerate(archs)
    ]
    host = {"name": "pi", "processor": "Cortex", "machine": "aarch64"}
    return {
        "format": FORMAT,
        "space": SPACE.to_dict(),
        "provider": "CPUExecutionProvider",
        "threads": 4,
        "host": host,
        "rows": rows,
    }


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(facts()))
    return path


def test_a_linear_host_is_learnt_and_its_error_is_that_of_rows_never_seen(table):
    found = read_latency_table(table)
    assert found.quality.rows == 40 and found.quality.folds == 5 and found.quality.noise == 0
    assert found.quality.median_error < 1e-3 and found.quality.worst_error < 0.01
    assert found.quality.tau == pytest.approx(1, abs=0.01) and found.quality.constant_error > 0.05
    assert found.host == "pi, Cortex"
    noise = generator(0, "noise").permutation(len(ARCHS)).tolist()
    lying = fitted(facts(clock=lambda a: seconds(a) * (1 + (noise[ARCHS.index(a)] % 2))), "lies.json")
    assert lying.quality.poor and not found.quality.poor
    assert lying.quality.median_error > 0.15, "half the rows are twice too long, and that is not hidden"


def test_a_meter_predicts_and_measures_nothing(table, monkeypatch):
    monkeypatch.setattr(Meter, "_measure", lambda *_: pytest.fail("measured"))
    stored, clock = [], Clock(table=read_latency_table(table))
    meter = Meter.for_space(
        SPACE,
        Limits.of(max_latency=sorted(map(seconds, ARCHS))[20]),
        recall=lambda *_: stored.append("recalled"),
        record=lambda *_: stored.append("recorded"),
        clock=clock,
    )
    fits = [meter.fits(a) for a in ARCHS]
    assert 10 < sum(fits) < 30 and stored == []
    assert meter.costs(ARCHS[0])["latency"] == pytest.approx(seconds(ARCHS[0]), rel=0.01)


def test_more_classes_are_counted_and_other_settings_refused(table):
    clock = Clock(table=read_latency_table(table))
    wider = with_settings(SPACE, classes=1000)
    more = Meter.for_space(wider, clock=clock).cost("latency", wider.smallest())
    assert more > Meter.for_space(SPACE, clock=clock).cost("latency", SPACE.smallest())
    with pytest.raises(TailorError, match=r"is of networks with image_size .*8.* and this run's have .*16"):
        Meter.for_space(with_settings(SPACE, image_size=(16, 16)), clock=clock)
    with pytest.raises(TailorError, match="is of vit networks, and this run has pit ones"):
        Meter.for_space(named_space("pit-8px"), clock=clock)


def test_what_lies_beyond_the_table_is_said(table):
    found = read_latency_table(table)
    assert found.beyond(SPACE.smallest()) == [] == found.beyond(SPACE.largest())
    deep = SPACE.family
    arch = type(ARCHS[0])(deep, depth=9, embed=56, heads=(4,) * 9, mlp=(3,) * 9)
    assert found.beyond(arch) == ["depth", "MACs"]
    said = Clock(table=found).facts(arch)
    assert said["how"] == "predicted" and said["beyond"] == ["depth", "MACs"] and said["threads"] == 4
    words = latency_in_words(LatencyBy.model_validate(said))
    assert "predicted for pi, Cortex, not measured there; from 40 networks of table.json" in words
    assert "the median error is 0.0 %" in words and "beyond what was measured in depth, MACs" in words
    sentences = Clock(table=found).sentences(SPACE, "cpu")
    assert len(sentences) == 1 and "predicted for pi, Cortex from 40 networks" in sentences[0]


def broken(**changes) -> dict:
    return {**facts(), **changes}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (broken(format="other"), "is no latency table: measure.py of a latency kit writes one"),
        (broken(rows=facts()["rows"][:9]), "needs at least 10 different networks; 'table.json' has 9"),
        (broken(rows=[facts()["rows"][0]] * 20), "has 1"),
        (broken(rows="none"), "is damaged"),
        (broken(space={"family": "vit"}), "'table.json'"),
        (broken(rows=[{**facts()["rows"][0], "median_ms": -1}]), "median_ms must be a number above 0, not -1"),
        (broken(rows=[{**facts()["rows"][0], "median_ms": True}]), "median_ms must be a number above 0, not True"),
        (broken(rows=[{"median_ms": 1.0}]), "is damaged"),
        (broken(rows=[{"median_ms": 1.0, "arch": {"depth": 1}}]), "'table.json' cannot be used"),
        ([], "cannot be read: it holds a list"),
    ],
)
def test_what_is_no_table_is_one_sentence(tmp_path, content, words):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(content))
    with pytest.raises(TailorError) as found:
        read_latency_table(path)
    assert words in str(found.value) and "\n" not in str(found.value)


def test_other_files_are_one_sentence(tmp_path):
    with pytest.raises(TailorError, match="There is no latency table"):
        read_latency_table(tmp_path / "none.json")
    with pytest.raises(TailorError, match=r"give the table\.json that lies beside it"):
        read_latency_table(tmp_path / "table.csv")
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(TailorError, match="cannot be read"):
        read_latency_table(tmp_path / "t.json")


def test_the_table_brings_its_space_and_methods_of_several_spaces_are_refused(table):
    limits = {"max_latency": "5ms", "table": str(table)}
    config, clock = with_clock(configure({"method": "s4", "limits": limits}), "cpu")
    assert config.space == SPACE.to_dict() and config.family == "vit" and clock.table is not None
    named, _ = with_clock(configure({"method": "s4", "limits": limits, "space": "vit-8px"}), "cpu")
    assert named.space == "vit-8px"
    with pytest.raises(TailorError, match="a contest compares several families"):
        with_clock(configure({"method": "contest", "limits": limits}), "cpu")
    with pytest.raises(TailorError, match="makes a predictor of its own"):
        with_clock(configure({"method": "hat", "limits": limits}), "cpu")
