"""The CIFAR-10 study's question why, and its second session: slopes beside true ones, rows that serve again."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import cifar10
import study.jobs
import study.queue
import study.tables
import study.why
from study.jobs import Job, jobs
from study.sizes import FULL

from tailorvit.families import family

SIZE = FULL["1.5M"]
KEYS = ("depth", "mlp", "heads", "embed")


def by_name(*more):
    return {j.name: j for j in jobs(cifar10.options().parse_args(["plan", *more]))}


def truth_rows(slopes, seed=0, base=70.0):
    """Rows of true trainings whose accuracy is a plane with these slopes per step."""
    rows = []
    for label, arch in study.why.neighbours(SIZE).items():
        key, _, way = label.partition("-")
        off = {"up": 1, "down": -1, "": 0}[way] * slopes.get(key, 0.0)
        figures = {"search": base + off, "test": base + off, "arch": arch, "slopes": []}
        rows.append({"name": f"truth-{label}-{seed}", "case": "truth", "seed": seed, **figures})
    return rows


def judged_row(case, slopes, se=0.1, seed=0):
    space = study.why.start_space(SIZE)
    listed = [{"t": 0, "dim": k, "z_step": slopes[k], "se_step": se} for k in KEYS]
    path = [{"t": 0, "step": 0, "space": space.to_dict()}]
    return {"name": f"{case}-{seed}", "case": case, "seed": seed, "slopes": listed, "path": path}


# -- jobs -------------------------------------------------------------------------------------------------------------


def test_true_neighbours_differ_in_one_dimension_by_one_step_and_keep_the_limit():
    found = study.why.neighbours(SIZE)
    space = study.why.start_space(SIZE)
    assert space != SIZE.first() and SIZE.meter().below(space.largest())
    middle = found.pop("middle")
    assert len(found) == 8
    for label, arch in found.items():
        key, _, way = label.partition("-")
        assert {k for k in middle if arch[k] != middle[k]} == {key}
        assert arch[key] - middle[key] == (1 if way == "up" else -1) * space[key].shift
        assert SIZE.meter().below(family("vit").arch(arch))


def test_costs_and_order_of_what_answers_why():
    found = by_name("--epochs-supernet", "8", "--epochs-final", "16", "--edf", "0", "--pairs", "20")
    look = 5000 / 45000 / 3
    search = 20 * 7 * look
    members = 3 * 8 * 2
    assert found["g-s4-training-0"].epochs == pytest.approx(16 + 8 + members * (4 + look) + search)
    assert found["g-s4-tuned-0"].epochs == pytest.approx(16 + 4 * 8 + members * (1 + look) + search)
    for n in (1, 2, 4):
        assert found[f"length-x{n}-0"].epochs == pytest.approx(16 + 8 * n + 8 * 20 * look + search)
    place = {name: i for i, name in enumerate(found)}
    assert sum(n.startswith("truth-") and n.endswith("-0") for n in found) == 9
    # Truth before what tries to do better; the methods' three seeds before the other sizes.
    assert place["truth-embed-down-0"] < place["landscape-20-0"] < place["rank-first-0"] < place["g-s4-tuned-0"]
    assert place["f-s4-predictor-2"] < place["a-hand-designed-6M-0"] < place["rank-first-0"] < place["truth-middle-1"]
    long = [j.epochs for j in cifar10.chosen(cifar10.options().parse_args(["plan", "--long-first", "--only", "^g-"]))]
    assert len(long) > 20 and long == sorted(long, reverse=True)
    assert {f"g-s4-{how}-{seed}" for how in ("training", "tuned") for seed in (0, 1, 2)} <= set(found)


# -- slopes -----------------------------------------------------------------------------------------------------------


def test_slopes_that_are_the_true_ones_have_cosine_one_and_choose_the_same_move():
    true = {"depth": 0.4, "mlp": 0.3, "heads": 0.1, "embed": 0.5}
    other = {k: -v for k, v in true.items()}
    rows = [*truth_rows(true), judged_row("g s4 tuned", true), judged_row("d s4", other)]
    found = study.why.compare(rows, SIZE)["columns"]
    assert {k: v[0] for k, v in found[study.why.TRUE]["slopes"].items()} == pytest.approx(true)
    assert found["tuned"]["cosine"] == pytest.approx(1) and found["supernet x1"]["cosine"] == pytest.approx(-1)
    assert found["tuned"]["gamma"] == found[study.why.TRUE]["gamma"] != found["supernet x1"]["gamma"]
    gain = np.dot(found["tuned"]["gamma"], [true[k] for k in KEYS])
    assert found["tuned"]["true_gain"] == pytest.approx(gain) and gain > 0 > found["supernet x1"]["true_gain"]
    assert found["dss"]["slopes"] == {} and found["dss"]["gamma"] is None
    text = study.why.told(study.why.compare(rows, SIZE), study.tables.grid)
    assert "| dss | not run yet |" in text and "| tuned | one | points | +0.40 ± 0.10 |" in text


def test_the_error_of_true_slopes_is_that_of_retrainings():
    rows = truth_rows({"depth": 0.4}, 0, 70.0) + truth_rows({"depth": 0.4}, 1, 70.2)
    sd, freedom = study.why.retraining_noise(rows)
    assert freedom == 9 + 2 * 4  # nine networks twice, and two seeds of nine that are planes of five numbers
    assert sd == pytest.approx(0.2 / math.sqrt(2) * math.sqrt(9 / 17))
    z, se, seeds = study.why.true_slopes(rows, KEYS)["depth"]
    assert (z, seeds) == (pytest.approx(0.4), 2) and se == pytest.approx(sd / 2)
    half = [r for r in rows if r["name"] != "truth-depth-up-1"]
    assert study.why.true_slopes(half, KEYS)["depth"][2] == 1, "a seed with one side alone tells nothing"


def test_true_trainings_that_miss_a_plane_say_how_noisy_one_is():
    rows = truth_rows(dict.fromkeys(KEYS, 0.3))
    assert study.why.from_plane(rows) == (pytest.approx(0.0, abs=1e-12), 4)
    middle = next(r for r in rows if r["name"] == "truth-middle-0")
    middle["search"] = middle["test"] = middle["test"] - 0.9
    squares, freedom = study.why.from_plane(rows)  # the plane follows by a ninth: 0.8 are left there, 0.1 at the others
    assert freedom == 4 and squares == pytest.approx(0.8**2 + 8 * 0.1**2)
    assert study.why.from_plane(rows[1:]) == (0.0, 0)  # without the middle nothing is said


def test_a_plane_through_all_trainings_finds_its_slopes_and_wants_enough_networks():
    rng = np.random.default_rng(0)
    space, true, rows = study.why.start_space(SIZE), {"depth": 0.2, "mlp": 0.4, "heads": -0.1, "embed": 0.6}, []
    for k in range(24):
        arch = space.sample(rng).to_dict()
        steps = {d: float(np.mean(arch[d])) / float(space[d].shift) for d in KEYS}
        value = 70 + sum(true[d] * steps[d] for d in KEYS) + rng.normal(0, 0.05)
        rows.append({"case": "rank first", "seed": k, "search": value, "test": value, "arch": arch, "slopes": []})
    found = study.why.plane_slopes(rows, space, SIZE)
    for key, (slope, error, networks) in found.items():
        assert networks == 24 and abs(slope - true[key]) < 4 * error < 0.5
    far = [{**r, "arch": {**r["arch"], "depth": 30}} for r in rows]
    half = [{**r, "case": "noise half rate", "test": 0.0} for r in rows]
    assert study.why.plane_slopes([*rows, *far, *half], space, SIZE) == found
    assert study.why.plane_slopes(rows[:14], space, SIZE) == {}


def test_networks_trained_again_count_with_their_mean():
    own = {"size": "1.5M", "params": 1, "macs": 1, "search_seconds": 1, "seconds": 1, "decisions": []}
    rows = [
        {"name": "d-s4-0", "case": "d s4", "test": 74.0, **own},
        {"name": "again-d-s4-0-0", "case": "again d s4", "test": 76.0, **own},
        {"name": "again-d-s4-0-1", "case": "again d s4", "test": 75.0, **own},
        {"name": "d-s4-1", "case": "d s4", "test": 73.0, **own},
    ]
    line = next(r for r in study.tables.methods(rows, "1.5M").splitlines() if r.startswith("| d s4 |"))
    assert line.startswith("| d s4 | 2 | 4 | 1 | 1 | 74.00 ± 1.41 |")


def test_a_network_another_job_found_is_trained_again():
    found = by_name()["again-d-s4-1-0"]
    assert found.needs == "d-s4-1" and found.seed == 10
    assert study.jobs.ready(found, {}) is None
    row = {"d-s4-1": {"arch": {"family": "vit", "depth": 3}}}
    assert study.jobs.ready(found, row)["arch"] == {"family": "vit", "depth": 3}


def test_slopes_of_several_seeds_are_averaged_and_other_spaces_left_out():
    ones, twos = dict.fromkeys(KEYS, 1.0), dict.fromkeys(KEYS, 2.0)
    rows = [judged_row("g s4 training", ones), judged_row("g s4 training", twos, seed=1)]
    apart = judged_row("g s4 training", dict.fromkeys(KEYS, 9.0), seed=2)
    apart["path"][0]["space"] = SIZE.first().to_dict()
    space = study.why.start_space(SIZE)
    found = study.why.judged_slopes([*rows, apart], ("g s4 training",), space)
    assert found["mlp"] == (1.5, pytest.approx(0.5), 2)  # one and two: half a point apart from their mean
    alone = study.why.judged_slopes(rows[:1], ("g s4 training",), space)
    assert alone["mlp"] == (1.0, 0.1, 1)  # one seed knows the error of its pairs only
    text = study.why.seeds_apart([{**r, "case": "d s4"} for r in rows], SIZE, study.tables.grid)
    assert "| deviation between supernets | 0.71 |" in text and "| error by pairs of one | 0.10 |" in text
    assert study.why.seeds_apart(rows, SIZE, study.tables.grid) == "Not run yet."


def test_students_quantile():
    assert [round(study.tables.student(n), 2) for n in (1, 3, 10, 11, 20, 60)] == [12.71, 3.18, 2.23, 2.2, 2.09, 2.0]


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_rows_serve_again_only_with_the_same_settings(tmp_path):
    todo = list(by_name("--epochs-supernet", "8", "--epochs-final", "16").values())[:3]
    names = [j.name for j in todo]
    rows = [{"name": n, "ok": True, "settings": dict(todo[0].settings)} for n in names]
    assert [r["name"] for r in study.queue.usable(rows, todo)] == names
    rows[1]["settings"]["F"] = 24
    rows[2]["ok"] = False
    assert [r["name"] for r in study.queue.usable(rows, todo)] == names[:1]
    place = tmp_path / "rows.jsonl"
    assert study.queue.add_rows(place, rows) == 2 and study.queue.add_rows(place, rows) == 0
    rest = {"grace": 0.0, "tiny": False, "keep": False}
    queue = study.queue.Queue(todo, tmp_path / "out", 1, 1.0, have=study.queue.usable(rows, todo), **rest)
    assert queue.next()[0].name == names[1] and study.queue.read_rows(tmp_path / "out") == []


def test_a_job_too_long_for_any_session_starts_in_the_first_half_of_one(tmp_path):
    known = [{"name": "x", "ok": True, "seconds": 10.0, "epochs": 1.0}]
    todo = [Job("long", "case", 0, "1.5M", {}, 100.0)]
    queue = study.queue.Queue(todo, tmp_path, 1, 1.0, have=known, grace=0.0, tiny=True, keep=False)
    assert queue.next()[0].name == "long", "1,000 s of work in a session of 60 s"
    queue.deadline -= 40
    assert queue.next() is None, "20 s are left"


def test_the_stored_rows_are_good_and_make_the_stored_tables(tmp_path):
    rows = study.queue.read_rows(cifar10.ROWS)
    assert len(rows) >= 9 and all(r["ok"] for r in rows)
    assert study.queue.usable(rows, list(by_name().values())) == rows, "the defaults go on with what is there"
    page = (cifar10.HERE / "cifar10.md").read_text(encoding="utf-8")
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    more = {name: json.loads(getattr(cifar10, name.upper()).read_text()) for name in ("surface", "surveys")}
    study.tables.write(cifar10.ROWS, tmp_path / "all.json", tmp_path / "page.md", tiny=False, **more)
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == page, "python benchmarks/cifar10.py table"
    made, kept = (json.loads(p.read_text()) for p in (tmp_path / "all.json", cifar10.HERE / "results" / "cifar10.json"))
    assert made["rows"] == kept["rows"] and made["why"] == kept["why"]
    pictures = sorted((tmp_path / "figures").iterdir())
    assert {p.name for p in pictures} >= {"cifar10-edf-0.svg", "cifar10-width.svg"}
    for picture in pictures:
        assert picture.read_bytes() == (cifar10.HERE / "figures" / picture.name).read_bytes()
