"""The CIFAR-10 study's surface: found again where it is known, and S4 led astray by the error it is given."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import cifar10
import study.bends as bends
import study.queue
import study.surface as surface
import study.surveys as surveys
import study.tables
from study.sizes import FULL, uniform

from tailorvit.families import family
from tailorvit.methods import members
from tailorvit.rng import generator
from tailorvit.runs import Run
from tailorvit.seek.survey import Survey, candidates, wider

SIZE = FULL["1.5M"]
TRUE = {"depth": 0.8, "mlp": 1.8, "heads": -0.1, "embed": 3.9}
BIAS = {"depth": -0.6, "mlp": -1.5, "heads": 1.1, "embed": -1.9}
BEND = -0.9  # of depth, counted from 12 blocks


def height(arch):
    each = surface.logs(arch)
    return 40 + sum(g * v for g, v in zip(TRUE.values(), each)) + BEND * (each[0] - math.log2(12)) ** 2


def slopes_at(at):
    """Points a doubling of the truth."""
    return np.array([*TRUE.values()]) + 2 * BEND * (at[0] - math.log2(12)) * np.eye(4)[0]


def rows_of(noise=0.0, count=40, seed=0):
    """Networks all over the place, and three supernets off the truth by the bias."""
    rng, rows = np.random.default_rng(seed), []
    for i in range(count):
        values = {"depth": rng.integers(4, 20), "mlp": rng.uniform(2, 5), "heads": rng.integers(1, 8)}
        arch = {k: float(v) for k, v in values.items()} | {"embed": float(rng.integers(50, 180))}
        percent = height(arch) + rng.normal(0, noise)
        rows.append({"case": "x", "seed": i, "arch": arch, "test": percent, "search": percent, "slopes": []})
    space = SIZE.first()
    at = surface.middle(space)
    true = slopes_at(at)
    for seed in range(3):
        slopes = []
        for k, v, gain, off in zip(surface.KEYS, at, true, BIAS.values()):
            step = math.log2(1 + float(space[k].shift) / 2**v)
            off += rng.normal(0, noise / 10)
            slopes.append({"t": 0, "dim": k, "shift": space[k].shift, "z_step": (gain + off) * step})
        path = [{"t": 0, "step": 0, "space": space.to_dict()}]
        rows.append({"case": "d s4", "seed": seed, "slopes": slopes, "path": path, "decisions": []})
    return rows


def test_a_surface_is_found_again_with_errors_that_hold():
    found, place = surface.fit(rows_of()), surface.middle(SIZE.first())
    assert found.slopes_at(place) == pytest.approx(slopes_at(place))
    assert found.bends == pytest.approx([BEND, 0, 0, 0], abs=1e-6)
    assert found.deviation < 1e-9 and found.networks == 40
    arch = {"depth": 7, "mlp": 3, "heads": 2, "embed": 90}
    assert found.at(surface.logs(arch)) == pytest.approx(height(arch))
    fits = [surface.fit(rows_of(0.4, count=120, seed=s)) for s in range(40)]
    away = [f.slopes_at(place) - slopes_at(place) for f in fits]
    assert np.std(away, axis=0) == pytest.approx(np.mean([f.errors_at(place) for f in fits], axis=0), rel=0.4)
    assert surface.fit(rows_of(count=10)) is None


def test_bends_are_fitted_where_networks_show_them_and_are_small_elsewhere():
    rng = np.random.default_rng(0)
    found, errors = [], []
    for _ in range(40):
        places = rng.uniform(-1, 1, (60, 4))
        values = 70 + places @ [1.0, 2, 0, 3] - 3 * places[:, 3] ** 2 + rng.normal(0, 0.7, 60)
        made = bends.fit(places, values)
        found.append(made.bends)
        errors.append(np.sqrt(np.diag(made.covariance)[4:]))
    assert np.mean(found, axis=0)[3] == pytest.approx(-3, abs=0.2)
    assert np.std(found, axis=0)[3] == pytest.approx(np.mean(errors, axis=0)[3], rel=0.4)
    assert (np.mean(found, axis=0)[:3] > -0.15).all() and np.max(found) <= 0
    few = bends.fit(places[:7], values[:7])  # too few for any bend
    assert not few.bends.any() and few.deviation > 0


def test_sets_of_bends_are_averaged_and_none_goes_upwards():
    rng = np.random.default_rng(2)
    places = rng.uniform(-1, 1, (40, 2))
    up = bends.fit(places, places @ [1.0, 2] + 3 * places[:, 0] ** 2 + rng.normal(0, 0.3, 40))
    assert up.bends[0] == 0 and up.bends[1] <= 0, "a valley is no reason to believe in one"
    values = places @ [1.0, 2] - 0.3 * places[:, 0] ** 2 + rng.normal(0, 0.3, 40)
    straight, bent = (bends._with(places - places.mean(0), some, np.empty((40, 0)), values) for some in ((), (0,)))
    made = bends.fit(places, values)
    assert bent.known[3] < made.bends[0] < 0, "between the straight one and the bent one"
    spread = np.sqrt(np.diag(made.covariance))[2]
    assert spread > np.sqrt(np.diag(straight.covariance))[2], "which set is right is doubt as well"


def test_groups_have_constants_of_their_own_and_share_slopes():
    rng = np.random.default_rng(1)
    places, of = rng.uniform(-1, 1, (30, 4)), [0] * 10 + [1] * 10 + [2] * 10
    values = places @ [1.0, 2, 0, 3] + np.array([60.0, 63, 66])[of]
    found = bends.fit(places, values, of)
    assert found.slopes == pytest.approx([1, 2, 0, 3], abs=1e-6) and found.deviation < 1e-9
    assert found.at(np.zeros(4)) == pytest.approx(63)
    assert bends.fit(places, values).deviation > 1


def test_the_top_is_the_best_network_within_what_was_trained(monkeypatch):
    monkeypatch.setattr(surface, "RESAMPLED", 10)
    rows = rows_of(0.05)
    found = surface.top(surface.fit(rows), rows, SIZE)
    assert height(found["arch"]) == pytest.approx(found["percent"], abs=0.3)
    gain, error = found["over_hand"]
    true = height(found["arch"]) - height(uniform(*SIZE.hand))
    assert gain == pytest.approx(true, abs=5 * error) and 0 < error < 0.1 < gain
    assert found["resampled"][0] <= gain + 0.2 and found["resampled"][1] >= gain - 0.2
    arch = family("vit").arch({"family": "vit", **found["arch"]})
    assert SIZE.meter().fits(arch) and 50 <= found["arch"]["embed"] <= 180 and found["arch"]["mlp"] <= 5
    text = surface._top(found)
    assert f"{gain:.1f} ± {error:.1f} more than (a)" in text and surface._top(None) == ""


def test_half_rates_and_a_network_found_twice_do_not_count():
    rows = rows_of()
    more = [{**rows[0], "case": "y"}, {**rows[1], "case": "noise half rate", "seed": 99}]
    assert len(surface.trained([*rows, *more])) == 40


def test_what_supernets_share_is_their_bias_and_chance_says_how_likely_it_is():
    found = surface.fit(rows_of())
    bias, spread = surface.errors_of(found, surface.supernets(rows_of(0.01)))
    assert bias == pytest.approx([*BIAS.values()], abs=0.05) and (spread < 0.05).all()
    noisy = rows_of(0.8)
    fitted, judged = surface.fit(noisy), surface.supernets(noisy)
    square, p = surface.chance(fitted, judged)
    assert square > 10 and p < 0.05
    right = [
        (at, fitted.slopes_at(at) + 0.1 * np.random.default_rng(i).normal(size=4)) for i, (at, _) in enumerate(judged)
    ]
    assert surface.chance(fitted, right)[1] > 0.05


def test_s4_gains_by_right_slopes_and_loses_by_biased_ones():
    way = "sized by the middle, three moves"
    found = surface.what_if(rows_of(0.3), [], SIZE, seeds=2, ways=(way,))
    by = found["ways"][way]
    assert by["right"][0] > found["first"] and by["right"][0] > by["bias"][0] + 1
    assert len(by["spread"]) == 2 and not found["surveys"]
    text = surface.told(found, study.tables.grid)
    assert f"{by['right'][0]:.1f}" in text and "Surveys ask" not in text
    short = {"slopes": TRUE, "errors": TRUE, "bends": {**TRUE, "mlp": 0}, "networks": 9, "deviation": 1.25}
    text = surface.told({**found, "short": short, "surveys": {"8 members": {"3": [1.0, 3.0]}}}, study.tables.grid)
    for words in ("| 8 members | 2.0 ± 1.4 |", "9 members of surveys", "bending by +3.90", "the 1.25 points"):
        assert words in text
    assert surface.told({}, study.tables.grid) == "Not run yet."


def test_the_stored_figures_are_those_of_the_stored_rows():
    """One way over the real surface; the others are made by `cifar10.py surface`."""
    kept = json.loads(cifar10.SURFACE.read_text())
    rows = [r for r in study.queue.finished(study.queue.read_rows(cifar10.ROWS)).values() if r.get("size") == "1.5M"]
    way = "as in the paper, three moves"
    asked = json.loads(cifar10.SURVEYS.read_text())
    made = json.loads(json.dumps(surface.what_if(rows, asked, SIZE, seeds=1, ways=(way,))))
    for key in ("bias", "spread", "chance", "first", "hand", "where", "supernets"):
        assert made[key] == pytest.approx(kept[key]), key
    for which in ("surface", "short"):
        for key in ("networks", "deviation", "slopes", "errors", "bends"):
            assert made[which][key] == pytest.approx(kept[which][key]), (which, key)
    top = surface.top(surface.fit(rows), rows, SIZE)
    assert top["arch"] == kept["top"]["arch"] and top["percent"] == pytest.approx(kept["top"]["percent"])
    for key in ("over_hand", "resampled"):
        assert [*top[key]] == pytest.approx(kept["top"][key]), key
    assert made["ways"][way]["right"] == kept["ways"][way]["right"]
    assert made["ways"][way]["both"][0] == kept["ways"][way]["both"][0]


def test_a_survey_is_read_from_its_run_folder_and_agrees_with_what_it_was_told(tmp_path, monkeypatch):
    """Members scored by the truth: slopes must be the truth's, along the limit too; biased ones must not."""
    space, entry = SIZE.first(), family("vit")
    region = wider(space, 4, surface.KEYS)
    drawn = candidates(space, space.dims, region, SIZE.meter(), 400, generator(0, "x"))[:16]
    with Run.create(tmp_path / "runs" / "g-s4-survey-5", "seed = 5\n", {}) as run:
        run.record_trials("slopes-0", [{"arch": a, "accuracy": height(a.to_dict())} for a in drawn])
        run.record_trials("search", [{"arch": drawn[0], "accuracy": 1.0}])
        for t, gamma in enumerate(({"depth": -1, "embed": 1}, {"embed": 1})):
            run.record_decision(t, {"t": t, "kind": "move", "gamma": gamma, "sentence": "moved"})
        run.record_decision(2, {"t": 2, "kind": "stop", "gamma": {}, "sentence": "stayed"})
    (found,) = surveys.collect(tmp_path / "runs")
    kept = tmp_path / "surveys.json"
    kept.write_text(json.dumps([{"name": "g-s4-survey-6"}, {"name": "g-s4-survey-5"}]))
    monkeypatch.setattr(sys, "argv", ["cifar10.py", "surveys", str(tmp_path), "--to", str(kept)])
    cifar10.main()
    assert json.loads(kept.read_text()) == [found, {"name": "g-s4-survey-6"}], "put to the others, not over them"
    assert found["seed"] == 5 and len(found["members"]) == 16 and len(found["moves"]) == 2
    assert all(entry.arch({"family": "vit", **m["arch"]}) == a for m, a in zip(found["members"], drawn))
    whole = surface.fit(rows_of(0.05))
    z, _ = surveys.slopes_of(found, space)
    assert min(surveys.agreement(z, whole, space, SIZE)) > 0.9
    step = surface.doublings_a_step(space)
    off = z + np.array([*BIAS.values()]) * step
    both, along = surveys.agreement(off, whole, space, SIZE)
    assert along < 0.3 < both  # larger is better, that much it knows
    text = surveys.told([found], rows_of(0.05), SIZE, study.tables.grid)
    assert "depth -1 embed +1, then embed +1 |" in text and "Mean cosines: 1 surveys" in text
    assert surveys.told([], rows_of(), SIZE, study.tables.grid) == "Not run yet."


def test_parameters_a_step_are_those_of_neighbouring_members():
    space = SIZE.first()
    found = dict(zip(surface.KEYS, surveys.params_a_step(space, SIZE)))
    values = {"family": "vit", "mlp": 4, "heads": 3, "embed": 80}  # the middle choices
    low, high = (SIZE.meter().cost("params", family("vit").arch({**values, "depth": d})) for d in (12, 13))
    assert found["depth"] == high - low


def test_the_stored_surveys_are_whole_and_their_runs_would_ask_the_same_members():
    kept = json.loads(cifar10.SURVEYS.read_text())
    assert [s["seed"] for s in kept] == [0, 1, 2, 3, 4]
    for s in kept:
        assert sum(m["stage"] == "slopes-0" for m in s["members"]) == 16 and len(s["moves"]) >= 3
        for m in s["members"]:
            arch = family("vit").arch({"family": "vit", **m["arch"]})
            assert SIZE.meter().cost("params", arch) == m["params"]
        asked = []
        survey = Survey(SIZE.meter(), 16, 4, s["seed"])
        survey.slopes(SIZE.first(), 0, lambda archs, asked=asked: asked.extend(archs) or [1.0] * 16, surface.KEYS)
        assert [family("vit").arch({"family": "vit", **m["arch"]}) for m in s["members"][:16]] == asked


def test_what_a_survey_has_heard_is_not_asked_again(monkeypatch):
    arch = family("vit").arch({"family": "vit", "depth": 3, "mlp": 2, "heads": 2, "embed": 16})
    other = family("vit").arch({"family": "vit", "depth": 4, "mlp": 2, "heads": 2, "embed": 16})
    heard = [{"stage": "slopes-0", "arch": {"depth": 3, "mlp": 2, "heads": 2, "embed": 16}, "percent": 61.5}]
    trained = []

    def train(session, arch, settings, stage, start=None):
        trained.append((stage, arch))
        return 1.0

    monkeypatch.setattr(members, "own_accuracy", train)
    with surveys.answered(heard) as used:
        assert members.own_accuracy(None, arch, None, "slopes-0") == 61.5 and not trained
        assert members.own_accuracy(None, arch, None, "slopes-6") == 1.0, "another step asks for itself"
        assert members.own_accuracy(None, other, None, "slopes-0") == 1.0
    assert used == heard and trained == [("slopes-6", arch), ("slopes-0", other)]
    assert members.own_accuracy is train, "afterwards all is as before"
    with pytest.raises(ValueError), surveys.answered(heard):
        raise ValueError
    assert members.own_accuracy is train
