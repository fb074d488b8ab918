"""The section of a study: there when RUN/study holds one, whole or in part; odd files do no harm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailorvit.report import collect, page, render, study, write_report_figures


def judged(test: float) -> dict:
    return {"search_accuracy": test + 1, "test_accuracy": test, "low": test - 2, "high": test + 2}


def facts_of() -> dict:
    arch = {"family": "vit", "depth": 12, "embed": 64}
    network = {"arch": arch, "params": 5e6, "macs": 1e9}
    rows = [
        {"name": f"network {i + 1}", **network, "inherited": judged(50 + i), "tuned": judged(60 - i)}
        | {"retrained": judged(70 + 2 * i)}
        for i in range(3)
    ]
    return {
        "epochs": 300,
        "tuned_epochs": 30,
        "spaces": [
            {"t": 0, "how": "a search of 1,110 networks", **network, "inherited": 61.25, "retrained": judged(67.39)},
            {"t": 1, "searched": True, "problem": "No architecture of the space has params <= 3M."},
        ],
        "networks": rows,
        "agreement": [
            {"first": "inherited", "second": "retrained", "tau": 1.0, "low": 0.5, "high": 1.0, "gain": 21.0},
            {"first": "inherited", "second": "tuned", "tau": None, "low": None, "high": None, "gain": 0.0},
        ],
    }


def put(folder: Path, facts: object) -> Path:
    (folder / "study").mkdir()
    (folder / "study" / "study.json").write_text(json.dumps(facts))
    return folder


def test_the_section_shows_spaces_networks_and_tau(make, tmp_path):
    facts = collect(put(make(), facts_of()))
    text = study.section(facts)
    for words in (
        "trained from scratch for 300 epochs",
        "1 space has no such network",
        "No architecture of the space has params &lt;= 3M.",
        "67.39 %",
        "65.4 to 69.4 %",
        "space 1, searched",
        "tuned from these for 30 epochs",
        "+0.50 to +1.00",
        "The supernet ranks them as a training of their own does",
    ):
        assert words in text
    assert "The study of this run" in render(facts)
    figures = {f.key: f for f in study.figures(facts)}
    assert set(figures) == {"study-spaces", "study-networks"}
    assert figures["study-spaces"].rows[1][-1] == "No architecture of the space has params <= 3M."
    assert [row[3:] for row in figures["study-networks"].rows] == [(50, 60, 70), (51, 59, 72), (52, 58, 74)]
    names = {p.name for p in write_report_figures(tmp_path / "run", tmp_path / "figures")}
    assert {"study-spaces.svg", "study-networks.csv"} <= names


def test_without_a_study_there_is_no_section(make):
    facts = collect(make())
    assert not study.there(facts) and "The study of this run" not in render(facts)


@pytest.mark.parametrize(
    "odd",
    [
        3,
        {"spaces": 5, "networks": "many"},
        {"spaces": [{"t": "<b>", "retrained": 7, "problem": 3}], "networks": [{"name": "<i>", "tuned": []}]},
        {"networks": [{}], "agreement": [{"tau": "x", "low": 1}, 4]},
    ],
)
def test_odd_studies_render(make, odd):
    text = render(collect(put(make(), odd)))
    assert "cannot be shown" not in text and "<b><" not in text and "<i>" not in text


def test_a_part_alone(make):
    facts = facts_of()
    del facts["networks"], facts["agreement"]
    found = collect(put(make(), facts))
    assert "drawn at random" not in study.section(found)
    assert [f.key for f in page.figures(found) if f.key.startswith("study")] == ["study-spaces"]
