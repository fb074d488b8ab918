"""The CIFAR-10 study's queue and arithmetic: it goes on after kills and failures, and tables say what is missing."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import cifar10
import study.queue
import study.ranks
import study.slopes
import study.tables
from study.jobs import Job, jobs, ready
from study.sizes import FULL, TINY
from tailorvit.seek.moves import moves

import tailorvit
from tailorvit.config import configure
from tailorvit.families.vit.spaces import vit_arch

WORKER = """
import json, sys, time
job = json.load(open(sys.argv[1]))
name = job["name"]
if name == "dies":
    sys.exit(9)
time.sleep(job["recipe"].get("sleep", 0))
row = {k: job[k] for k in ("name", "case", "seed", "size", "epochs")}
row |= {"ok": name != "fails", "error": "no luck", "test": 50.0, "params": 7, "seconds": job["recipe"].get("told", 1.0)}
row |= {"rank": [{"genes": {"depth": 3}}], "arch": job["recipe"].get("arch")}
json.dump(row, open(job["row"], "w"))
"""


def asked(*more):
    return cifar10.options().parse_args(["plan", *more])


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """A function that makes the next queue of one folder, with a worker that trains nothing."""
    parts = tmp_path / "benchmarks" / "study"
    parts.mkdir(parents=True)
    (parts / "__init__.py").touch()
    (parts / "worker.py").write_text(WORKER)
    monkeypatch.setattr(study.queue, "HERE", tmp_path / "benchmarks")

    def make(todo, minutes=1.0, processes=2, **rest):
        settings = {"grace": 0.1, "tiny": True, "keep": False, **rest}
        return study.queue.Queue(todo, tmp_path / "out", processes, minutes, **settings)

    return make


def job(name, epochs=1.0, **rest):
    return Job(name, "case", 0, "1.5M", rest.pop("recipe", {}), epochs, **rest)


# -- jobs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tiny", [[], ["--tiny"]])
def test_every_job_has_a_name_of_its_own_and_a_valid_recipe(tiny):
    todo = jobs(asked(*tiny))
    assert len({j.name for j in todo}) == len(todo) > 50
    for each in todo:
        recipe = each.recipe if each.pick is None else {**each.recipe, "arch": {"depth": 2, "embed": 8, "heads": 1}}
        assert configure(recipe).seed == each.seed and each.epochs > 0
        assert not each.needs or each.needs in {j.name for j in todo[: todo.index(each)]}


def test_hand_designed_networks_use_the_budget():
    for size in FULL.values():
        for depth, embed, heads in (size.hand, *size.ladder):
            assert size.meter().fits(vit_arch(embed, heads, 4, depth)), (depth, embed, heads)


def test_members_near_the_limit_are_different_and_within_it():
    size = FULL["1.5M"]
    drawn = size.near(size.first(), 8, "first")
    assert len(set(drawn)) == 8 and all(size.meter().fits(a) for a in drawn)
    assert drawn == size.near(size.first(), 8, "first")


def test_epochs_of_the_study_follow_from_the_options():
    by_name = {j.name: j for j in jobs(asked("--epochs-supernet", "10", "--epochs-final", "30", "--edf", "0"))}
    assert by_name["a-hand-designed-0"].epochs == 30
    search = 20 * 7 * 5000 / 45000 / 3
    assert by_name["b-autoformer-0"].epochs == pytest.approx(30 + 10 + search)
    pairs = 3 * 8 * 20 * 5000 / 45000 / 3
    assert by_name["d-s4-0"].epochs == pytest.approx(30 + 40 + pairs + search)
    assert by_name["e-s4-warm-0"].epochs == pytest.approx(30 + 25 + pairs + search)
    assert by_name["f-s4-dss-0"].epochs == 30


def test_a_sandwich_trains_a_quarter_of_the_epochs_for_the_same_work():
    by_name = {j.name: j for j in jobs(asked("--epochs-supernet", "40"))}
    warm, sandwich = by_name["e-s4-warm-0"], by_name["g-s4-sandwich-0"]
    assert (warm.recipe["train"]["epochs"], sandwich.recipe["train"]["epochs"]) == (40, 10)
    assert sandwich.epochs == pytest.approx(warm.epochs)


def test_a_job_waits_for_the_row_it_needs():
    late = job("late", needs="first", pick=("rank", 1), recipe={"a": 1})
    assert ready(late, {}) is None
    assert ready(late, {"first": {"rank": [{"genes": {"depth": 1}}, {"genes": {"depth": 2}}]}})["arch"] == {"depth": 2}
    assert "names no such network" in ready(late, {"first": {"rank": []}})


# -- the queue --------------------------------------------------------------------------------------------------------


def test_failures_and_deaths_do_not_stop_the_queue(queue):
    todo = [job("dies"), job("fails"), job("good"), job("after", needs="good", pick=("rank", 0))]
    todo.append(job("never", needs="good", pick=("rank", 5)))
    first = queue(todo)
    first.work()
    rows = study.queue.read_rows(first.place)
    good = study.queue.finished(rows)
    assert set(good) == {"good", "after", "never"} and "skipped" in good["never"]
    assert good["after"]["arch"] == {"depth": 3}
    bad = [r["name"] for r in rows if not r["ok"]]
    assert sorted(bad) == ["dies", "dies", "fails", "fails"], "tried twice each, the second time behind the others"
    assert "ended with 9" in next(r["error"] for r in rows if r["name"] == "dies")
    queue(todo).work()
    assert study.queue.read_rows(first.place) == rows, "nothing is left to do"
    queue(todo, retry=True).work()
    assert len(study.queue.read_rows(first.place)) == len(rows) + 4


def test_a_cut_line_and_a_row_nobody_collected_are_survived(queue):
    one = queue([job("good")])
    one.work()
    with (one.place / "rows.jsonl").open("a") as file:
        file.write('{"name": "cut o')
    left = {"name": "left", "case": "case", "ok": True, "test": 1.0, "params": 1, "epochs": 1, "seconds": 1}
    (one.place / "rows" / "left.json").write_text(json.dumps(left))
    again = queue([job("good"), job("left"), job("more")])
    assert set(study.queue.finished(again.rows)) == {"good", "left"}
    again.work()
    assert set(study.queue.finished(study.queue.read_rows(one.place))) == {"good", "left", "more"}


def test_no_job_starts_that_would_end_too_late(queue):
    """The first job tells that an epoch takes 30 s; 40 s are left: room for one epoch, not for one and a half."""
    todo = [job("first", recipe={"told": 30.0}), job("long", 1.5), job("short", recipe={"told": 30.0})]
    one = queue(todo, minutes=1.0, processes=1)
    one.deadline -= 20
    one.work()
    assert [r["name"] for r in one.rows] == ["first", "short"]


def test_what_no_session_has_time_for_starts_in_the_first_half_of_one(queue):
    known = {"name": "known", "case": "case", "ok": True, "epochs": 1, "seconds": 60.0}
    one = queue([job("long", 5)], minutes=1.0, have=[known])
    assert one.next()[0].name == "long"
    one.deadline -= 35
    assert one.next() is None


def test_at_the_end_of_the_time_workers_are_ended(queue):
    one = queue([job("slow", recipe={"sleep": 60})], minutes=0.02, grace=0.0)
    one.work()
    assert not one.running and one.rows == []


def test_a_copy_elsewhere_starts_its_own_worker_from_any_folder(tmp_path, monkeypatch):
    """Also from the folder whose queue.py would take the standard library's place; the job's own error tells."""
    copied = shutil.copytree(cifar10.HERE / "study", tmp_path / "bench" / "study")
    monkeypatch.setattr(study.queue, "HERE", tmp_path / "bench")
    monkeypatch.setattr(study.queue, "TRIES", 1)
    monkeypatch.setenv("PYTHONPATH", str(Path(tailorvit.__file__).parents[1]))
    monkeypatch.chdir(copied)
    todo = [job("bad", recipe={"device": "cpu", "method": "none of ours"})]
    one = study.queue.Queue(todo, tmp_path / "out", 1, 1.0, grace=0.0, tiny=True, keep=False)
    one.work()
    (row,) = one.rows
    assert row["error"].startswith("TailorError") and "none of ours" in row["error"]
    assert str(copied / "worker.py") in row["trace"]


# -- arithmetic -------------------------------------------------------------------------------------------------------


def made_row(pairs):
    space = TINY["1.5M"].first()
    slopes = [
        {
            "t": 0,
            "dim": d.key,
            "shift": d.shift,
            "pairs": p,
            "z": float(np.mean(study.slopes.each_slope({"pairs": p}))),
        }
        for d, p in zip(space.dims, pairs, strict=True)
    ]
    for s in slopes:
        s |= {"z_step": s["z"] * s["shift"], "se": 0.1, "se_step": 0.1 * s["shift"]}
    return {"path": [{"t": 0, "step": 0, "space": space.to_dict()}], "slopes": slopes}


def test_slopes_without_noise_choose_the_same_move_every_time():
    steady = [
        [[2, 3, 50.0, 51.0]] * 6,
        [[1.5, 2, 50.0, 49.0]] * 6,
        [[1, 2, 50.0, 50.0]] * 6,
        [[24, 32, 50.0, 51.0]] * 6,
    ]
    found = study.slopes.stability(made_row(steady), 0, TINY["1.5M"])
    assert found["again"] == {"step": 1.0, "raw": 1.0}
    legal = moves(TINY["1.5M"].first(), TINY["1.5M"].meter())
    assert found["legal"] == len(legal) and tuple(found["gamma"]["step"]) in {m.gamma for m in legal}


def test_noise_in_the_pairs_shows_in_the_share_of_draws():
    rng = np.random.default_rng(0)
    noisy = [
        [[u, v, 50.0, 50 + float(e)] for e in rng.normal(0, 3, 8)] for u, v in ((2, 3), (1.5, 2), (1, 2), (24, 32))
    ]
    found = study.slopes.stability(made_row(noisy), 0, TINY["1.5M"])
    assert found["again"]["step"] < 0.95 and set(found["noise"]) <= set(TINY["1.5M"].first().keys)


def test_tau_has_an_interval_that_holds_it():
    a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    low, high = study.ranks.interval(a, [1.0, 3.0, 2.0, 4.0, 6.0, 5.0, 7.0, 8.0])
    assert 0 < low < 26 / 28 <= high <= 1
    assert study.ranks.interval([1.0, 2.0], [1.0, 2.0]) is None


def test_ranks_over_two_spaces_are_of_what_lies_above_the_mean_of_its_own():
    rows = [{"space": w, "test": v} for w, v in (("first", 60.0), ("last", 82.0), ("first", 64.0), ("last", 80.0))]
    assert study.ranks._within(rows, "test") == [-2.0, 1.0, 2.0, -1.0]


def test_tables_of_nothing_say_so(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Before\n<!-- tables -->\nold\n<!-- end of tables -->\nAfter\n")
    study.tables.write(tmp_path, tmp_path / "all.json", page, tiny=True)
    text = page.read_text()
    assert text.startswith("Before\n") and text.endswith("After\n") and "old" not in text
    assert text.count("Not run yet.") >= 6 and json.loads((tmp_path / "all.json").read_text())["rows"] == []


def test_the_noise_of_seeds_is_pooled_over_cases():
    rows = {
        "x": [{"test": 1.0}, {"test": 3.0}],
        "y": [{"test": 10.0}, {"test": 10.0}, {"test": 13.0}],
        "z": [{"test": 5}],
    }
    sd, freedom = study.tables.noise(rows)
    assert freedom == 3 and sd == pytest.approx(np.sqrt((2 + 6) / 3))


def test_times_are_those_of_runs_that_did_all_of_it():
    whole, rest = {"search_seconds": 800.0, "seconds": 850.0}, {"search_seconds": 80.0, "seconds": 90.0}
    ended = {**rest, "asked_before": 16}
    assert study.tables._times([whole, whole]) == ["800", "850"]
    assert study.tables._times([whole, ended, ended]) == ["800 (runs in one piece)", "850 (runs in one piece)"]
    assert study.tables._times([ended, ended]) == ["80 and 16 trainings", "90 and 16 trainings"]


def test_two_cases_are_compared_by_their_own_deviation():
    def rows(*values):
        return [{"test": v} for v in values]

    groups = {"x": rows(1.0, 2.0, 3.0), "y": rows(11.0, 12.0, 13.0), "z": rows(0.0, 50.0), "one": rows(5.0)}
    # Deviation 1, four degrees of freedom: 2.78 * 1 * sqrt(2 / 3)
    assert study.tables._pair(groups, "y", "x").endswith("y less x: +10.00 ± 2.27.")
    assert study.tables._pair(groups, "y", "one") == "" and study.tables._pair(groups, "y", "none") == ""
