"""A budget of time for a pretrained network: how it is shared out, stored, kept on resume and shown."""

from __future__ import annotations

import json
from itertools import count

import pytest

import tailorvit
from tailorvit import api
from tailorvit.errors import TailorError
from tailorvit.methods import schedule, tailor_plan
from tailorvit.methods.tailor_plan import LONGEST, Piece, longest, measured_pieces, scaled, whole_time
from tailorvit.runs import Run

QUICK = ["analysis.images=0", "analysis.mistakes=0", "data.limit=60", "device=cpu", "train.batch=20", "baseline=true"]
BASE = {"data": "digits", "start": "random:tiny", "max_params": "18k"}


def go(folder, *sets, **options):
    asked = {**BASE, **options}
    return tailorvit.run("tailor", out=folder, settings=[*QUICK, *sets], progress="quiet", **asked)


def plan_of(*sets, **options):
    return api.plan("tailor", settings=[*QUICK, *sets], **{**BASE, **options})


def paced(monkeypatch, epoch=1.0, image=0.0):
    """Every epoch takes as long, and every image looked at."""
    monkeypatch.setattr(
        tailor_plan, "pace", lambda *given, **more: (given[1](), {"epoch": epoch, "setup": 0.0, "memory": 7e6})[1]
    )
    monkeypatch.setattr(tailor_plan._Measuring, "_seconds_of_an_image", lambda self, model: image)


# -- sharing out ------------------------------------------------------------------------------------------------------


def test_all_epochs_follow_one_factor_and_use_the_time():
    pieces = [Piece("whole", 1.0, 20, 1.0, late=False), Piece("order", 5.0), Piece("final", 1.0, 30, 0.5, times=2)]
    assert whole_time(pieces, 1) == 21 + 5 + 2 * 16
    for budget in (20, 58, 100):
        factor = longest(pieces, budget)
        assert budget * 0.9 - 1 < whole_time(pieces, factor) <= budget, budget
    assert longest(pieces, 1e9) == pytest.approx(LONGEST)
    assert longest(pieces, 8) == 0 and [p.length(0) for p in pieces] == [1, 0, 1]
    assert Piece("looked at", 0, 30, 0, check=1.0).lasts(1) == 10 and Piece("few", 0, 3, 0, check=1.0).lasts(1) == 3


def test_warm_ups_are_no_longer_than_a_part_of_a_short_training():
    config = api.recipe_for("tailor", start="random:tiny")
    short = scaled(config, 0.1, 0.1)
    assert (short.tailor.epochs, short.final.train.epochs, short.train.epochs) == (2, 3, 3)
    assert short.final.train.warmup == pytest.approx(0.6) and config.final.train.warmup == 2
    assert scaled(config, 0, 0).tailor.epochs == 1


@pytest.mark.parametrize(
    ("sets", "options", "labels"),
    [
        ([], {}, ["whole network", "order of its parts", "refitting what is cut", "first blocks", "final training"]),
        (["baseline=false"], {"front": "12k,18k"}, ["final training", "final training, at most 12k"]),
        (["tailor.search=supernet"], {}, ["supernet", "search in the supernet"]),
        ([], {"max_params": None, "max_memory": "4MiB"}, ["latency and memory of shapes", "shapes, trained for a"]),
        (["start.beside=true"], {}, ["uniform slimming", "from scratch"]),
        ([], {"baseline": "timm:resnet10t", "image_size": 32}, ["timm's resnet10t"]),
    ],
)
def test_every_piece_of_work_is_in_the_plan(sets, options, labels, monkeypatch):
    paced(monkeypatch)
    plan = plan_of(*sets, **options)
    text = "\n".join(plan["lines"])
    for label in labels:
        assert f"  {label}" in text
    rows = {row["label"]: row for row in plan["pieces"]}
    assert rows["whole network"]["planned"] == 25 and rows["whole network"]["params"] > 25_000
    supernet = "supernet" in rows
    assert rows["final training"]["planned"] == 30
    if "first blocks" in rows:
        assert rows["first blocks"]["planned"] == (60 if supernet else 30)
    assert ("first blocks" in rows) == ("baseline=false" not in sets)


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_a_plan_trains_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = plan_of(budget="1h", front="12k")
    text = "\n".join(plan["lines"])
    assert "60 training" in text and "75 epochs" in text and "90 epochs" in text and "Nothing was trained." in text
    assert "3 times the recipe, the most a plan gives" in text and "left over" in text
    assert plan["disk"] > 4 * 30_000 and 0 < plan["seconds"] < 600 and not list(tmp_path.iterdir())


def test_a_longer_budget_buys_epochs(monkeypatch):
    paced(monkeypatch)
    plans = [plan_of(budget=f"{s}s") for s in (30, 60, 90)]
    epochs = [p["final_epochs"] for p in plans]
    assert epochs == sorted(set(epochs)) and epochs[0] > 1 and epochs[-1] < 90
    assert all(0.8 * s < p["seconds"] <= s and p["left"] == 0 for p, s in zip(plans, (30, 60, 90), strict=True))
    assert plans[0]["memory"] == 7e6 and "of GPU memory" in plans[0]["lines"][-1]


def test_too_little_time_is_refused_before_there_is_a_folder(tmp_path, monkeypatch):
    paced(monkeypatch, epoch=60.0)
    with pytest.raises(TailorError, match=r"A budget of 2.0 minutes is too short: the shortest run .* takes about 3.2"):
        go(tmp_path / "run", budget="2m")
    assert not list(tmp_path.iterdir())


def test_a_budget_of_epochs_moves_the_whole_network_too():
    config = api.recipe_for("tailor", start="random:tiny", budget="60epochs")
    assert (config.tailor.epochs, config.final.train.epochs, config.train.epochs) == (50, 60, 60)
    own = api.recipe_for("tailor", start="random:tiny", budget="60epochs", settings=["tailor.epochs=7"])
    assert (own.tailor.epochs, own.final.train.epochs) == (7, 60)
    assert api.recipe_for("tailor", start="random:tiny", budget="1 epoch").tailor.epochs == 1
    assert api.recipe_for("image-folder", budget="30epochs").tailor.epochs == 25, "no pretrained network, no matter"


# -- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_ends_in_time_and_says_what_it_did(tmp_path):
    result = go(tmp_path / "run", "tailor.epochs=200", "train.epochs=200", budget="9s")
    assert sum(result["seconds"].values()) < 30  # generous: the machine may be busy
    plan = result["plan"]
    with Run.open(tmp_path / "run", lock=False) as run:
        assert run.epochs("whole")[-1]["epoch"] == plan["whole_epochs"] < 600
        assert run.epochs("final")[-1]["epoch"] == run.epochs("baseline")[-1]["epoch"] == plan["final_epochs"] < 600
        assert any(e["text"].startswith("Plan: ") for e in run.events("plan"))
    assert "<html" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_the_end_takes_the_time_that_is_left(tmp_path, monkeypatch):
    """Planned with epochs of a second, which take a few hundredths: the final trainings are lengthened, once."""
    paced(monkeypatch)
    plan = go(tmp_path / "run", budget="20s")["plan"]
    assert plan["whole_epochs"] < 8
    assert plan["final_epochs"] > 1.3 * scaled(api.recipe_for("tailor"), 0, plan["factor"]).final.train.epochs
    with Run.open(tmp_path / "run", lock=False) as run:
        assert any("enough for final trainings of" in e["text"] for e in run.events("plan"))


@pytest.mark.parametrize("stage", ["whole", "final"])
def test_a_resumed_run_keeps_its_plan(tmp_path, monkeypatch, stage):
    paced(monkeypatch)
    before = api.Session.save_stage

    def killed(self, model, name, *facts):
        before(self, model, name, *facts)
        if name == stage:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(api.Session, "save_stage", killed)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "run", budget="14s")
    with Run.open(tmp_path / "run", lock=False) as run:
        plan, later = run.result("plan"), run.result("plan-final")
    assert plan is not None and (later is not None) == (stage == "final")
    monkeypatch.setattr(tailor_plan, "measured_pieces", lambda session: pytest.fail("measured again"))
    result = api.resume(tmp_path / "run", progress="quiet")
    assert {k: v for k, v in result["plan"].items() if k != "final_epochs"} == {
        k: v for k, v in json.loads(json.dumps(plan)).items() if k != "final_epochs"
    }
    if later is not None:
        wanted = scaled(api.recipe_for("tailor"), 0, later["factor"]).final.train.epochs
        assert result["plan"]["final_epochs"] == wanted


def test_killed_before_its_plan_was_stored_a_run_makes_one(tmp_path, monkeypatch):
    paced(monkeypatch)
    made, forgotten = Run.finish, []

    def finish(self, stage, facts):
        if stage == "plan" and not forgotten:
            forgotten.append(facts)
            raise KeyboardInterrupt
        made(self, stage, facts)

    monkeypatch.setattr(Run, "finish", finish)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "run", budget="14s")
    assert api.resume(tmp_path / "run", progress="quiet")["plan"]["whole_epochs"] > 1


def test_progress_knows_when_the_run_ends(tmp_path, monkeypatch):
    paced(monkeypatch)
    clock = count(0, 1e-3)
    monkeypatch.setattr(schedule.time, "monotonic", lambda: float(next(clock)))
    config = api.recipe_for("tailor", data="digits", start="random:tiny", budget="10m", settings=QUICK)
    made = api.prepare(config)
    with api._rehearsal(made, "quiet") as session:
        _, plan = tailor_plan.begin_in_time(session)
        assert plan["left"] > 300 and session.progress.ends_at == pytest.approx(600 - plan["left"], abs=2)
        assert len(measured_pieces(session)) == 5


def test_the_report_shows_how_the_time_was_shared_out(tmp_path, monkeypatch):
    paced(monkeypatch)
    go(tmp_path / "run", budget="14s", front="12k")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "How the time was shared out" in page and "final training, at most 12k" in page


def test_a_swin_is_planned_too_and_has_no_first_blocks():
    facts = plan_of(start="random:tiny-swin", max_params=None)
    labels = [row["label"] for row in facts["pieces"]]
    assert labels[:2] == ["whole network", "order of its parts"] and "final training" in labels
    assert "first blocks" not in labels
