"""The drawing of a survey: slopes are those of the sub-networks, dots lie in place, a damaged row costs only itself."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

from tailorvit.report.reading import Facts, Slope, Trial
from tailorvit.report.space import figures, section, survey

GAINS = {"depth": 1.0, "heads": 0.0, "embed": 4.0}  # points a doubling
SURVEY = {"method": "s4", "s4": {"design": "survey"}, "seek": {"evaluator": "training"}}
SLOPES = (*(Slope(0, k, 0.5, 0.1, 0) for k in GAINS), Slope(0, "mlp", 0.0, 0.0, 0), Slope(1, "depth", 0.3, 0.1, 0))
CORNERS = [dict(zip(GAINS, v)) for v in itertools.product((2, 4, 8), (1, 4), (16, 32, 64))]


def member(values, off=0.0, stage="slopes-0"):
    accuracy = 50 + sum(g * math.log2(values[k]) for k, g in GAINS.items()) + off
    arch = {
        "family": "vit",
        **values,
        "heads": [values["heads"]] * values["depth"],
        "mlp": list(range(values["depth"])),
    }
    return Trial(stage, accuracy, 1e6, 1e8, "survey", 0, arch)


def facts(trials, settings=SURVEY, slopes=SLOPES):
    return Facts("run", False, slopes=slopes, trials=tuple(trials), settings=settings)


def slopes_shown(figure):
    return re.findall(r"([+-]\d+\.\d\d)( ± \d+\.\d\d)? a doubling", figure.svg)


def test_slopes_are_those_of_the_sub_networks_and_dots_scatter_around_their_line():
    exact = survey(facts(map(member, CORNERS)))
    assert [float(g) for g, _ in slopes_shown(exact)] == pytest.approx([*GAINS.values()], abs=0.005)
    assert exact.svg.count("line c1") == 3 and exact.svg.count("dot solid") == 3 * len(CORNERS)
    assert [row[-1] for row in exact.rows] == pytest.approx([row[-2] for row in exact.rows])
    assert exact.columns == ("stage", *GAINS, "accuracy", "surface")
    rng = np.random.default_rng(0)
    noisy = survey(facts(member(v, rng.normal()) for v in CORNERS))
    off = [(float(g) - want) / float(e[3:]) for (g, e), want in zip(slopes_shown(noisy), GAINS.values())]
    assert max(map(abs, off)) < 3.5 and [row[-1] for row in noisy.rows] != [row[-2] for row in noisy.rows]


def test_sub_networks_of_all_steps_are_drawn_and_other_trials_are_not():
    more = [member(CORNERS[0], stage="search"), member(CORNERS[1], stage="slopes-3", off=1)]
    figure = survey(facts([*map(member, CORNERS), *more]))
    assert len(figure.rows) == len(CORNERS) + 1 and {r[0] for r in figure.rows} == {"slopes-0", "slopes-3"}
    assert "one of 19 sub-networks" in figure.caption


def test_only_a_survey_with_enough_sub_networks_is_drawn():
    trials = [member(v) for v in CORNERS]
    assert survey(facts(trials, {"method": "s4", "s4": {"design": "pairs"}})) is None
    assert survey(facts(trials, {})) is None and survey(facts([])) is None
    assert survey(facts(trials[:4])) is None and survey(facts(trials[:5])) is not None
    assert survey(facts(trials, slopes=())) is None, "sub-networks are still in training"


@pytest.mark.parametrize("odd", [{"embed": "<b>"}, {"embed": 0}, {"heads": [1, 2]}, {"depth": []}, {"embed": math.nan}])
def test_a_damaged_row_costs_only_itself(odd):
    bad = Trial("slopes-0", 99.0, 1e6, 1e8, "", 0, {**member(CORNERS[0]).arch, **odd})
    figure = survey(facts([bad, *map(member, CORNERS)]))
    assert len(figure.rows) == len(CORNERS) and "<b>" not in figure.svg


def test_the_page_shows_it_once():
    known = facts(map(member, CORNERS))
    assert [f.key for f in figures(known)].count("survey") == 1 and section(known).count('id="survey"') == 1


def test_the_setting_is_read_in_its_old_and_its_new_form():
    trials = [member(v) for v in CORNERS]
    for s4, drawn in (({"survey": 16}, True), ({"survey": 0}, False), ({"design": "pairs", "survey": 24}, False)):
        assert (survey(facts(trials, {"method": "s4", "s4": s4})) is not None) == drawn, s4
