"""The contest: who takes part, rounds, ties, time plans."""

from __future__ import annotations

import json
import time
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import tailorvit
from tailorvit import api
from tailorvit.costs.limits import Limits
from tailorvit.costs.meter import Meter
from tailorvit.data import open_data
from tailorvit.data.augment import LADDER
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.methods import contest as contests
from tailorvit.methods import schedule
from tailorvit.methods.contest import HAND, Contest, Entry, Standing, first_entries
from tailorvit.progress import PlainProgress
from tailorvit.runs import Run
from tailorvit.train import TrainSettings

SETS = {"train.augment": "auto", "final.train.augment": "auto", "train.epochs": 15, "final.train.epochs": 3}
SMALL = {**SETS, "data.limit": 200, "analysis.images": 0, "analysis.mistakes": 0}


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contest") / "run"
    return tailorvit.run("image-folder", tiny=True, settings=SMALL, out=folder, progress="quiet"), folder


@pytest.fixture(scope="module")
def digits():
    return open_data("digits")


def test_every_family_that_reads_images_takes_part_at_the_limit(digits):
    limits = Limits.of(max_params="60k")
    entries = first_entries("auto", digits, limits, TrainSettings())
    assert {e.family for e in entries} == {"vit", "pit", "shunted", "hybrid", "swin", "windowed"}
    for entry in entries:
        meter = Meter(entry.family, dict(entry.settings), limits)
        assert meter.fits(entry.arch) and meter.counter.params(entry.arch) > 45_000, entry.label
        assert entry.augment == LADDER[0] and Entry.from_dict(json.loads(json.dumps(entry.to_dict()))) == entry
    networks = [(e.arch, e.settings) for e in entries]
    assert len(set(networks)) == len(networks)


def test_one_family_alone_and_none_that_fits(digits):
    entries = first_entries("shunted", digits, Limits.of(max_params="60k"), TrainSettings(augment="none"))
    assert {e.family for e in entries} == {"shunted"} and {e.augment for e in entries} == {"none"}
    with pytest.raises(InfeasibleError, match=r"No family has a network .* that keeps params <= 30"):
        first_entries("auto", digits, Limits.of(max_params=30), TrainSettings())


def test_rounds_ask_one_thing_each_and_survivors_train_on(held):
    result, _ = held
    found = result["contest"]
    asked = ["all networks", "best of each family", "best three", "learning rate", "augmentation"]
    assert [r["asks"] for r in found["rungs"]] == asked[-len(found["rungs"]) :] and len(found["rungs"]) >= 4
    entries = found["entries"]
    for number, rung in enumerate(found["rungs"]):
        rows = [e for e in entries if any(r["rung"] == number for r in e["rungs"])]
        ends = {r["total_epochs"] for e in rows for r in e["rungs"] if r["rung"] == number}
        assert len(rows) == rung["entries"] and len(ends) == 1, "all have seen as many epochs"
        assert sum(r["kept"] for e in rows for r in e["rungs"] if r["rung"] == number) == rung["kept"]
    last = [e for e in entries if e["rungs"][-1]["rung"] == len(found["rungs"]) - 1]
    climbed = [e["augment"] for e in last]
    assert climbed == list(LADDER[: len(climbed)]) and len(climbed) >= 2, "up the ladder, step by step"
    assert {e["lr"] for e in entries} in ({0.001, 0.002}, {0.0005, 0.001, 0.002}, {0.001, 0.002, 0.004})
    winner = entries[found["winner"]]
    assert winner["won"] and sum(e["won"] for e in entries) == 1 and winner in last
    assert found["why"].startswith(winner["family"])


def test_the_winner_is_trained_as_the_contest_chose(held):
    result, folder = held
    winner = result["contest"]["entries"][result["contest"]["winner"]]
    assert result["arch"] == winner["arch"] and result["params"] <= 20_000
    trained, left = (row["augment"] for row in result["candidates"])
    assert left == winner["augment"], "the network as the contest left it competes"
    up = LADDER[min(LADDER.index(winner["augment"]) + 1, 3)]
    assert trained in (up, winner["augment"]), "one step above the best of the climb, or that"
    assert trained == winner["augment"] or f"{trained} augmentation" in result["contest"]["why"]
    kept = {path.name.split(".")[0] for path in (folder / "checkpoints").glob("contest-*")}
    assert len(kept) == 1, "the winner's weights; others are deleted"
    with Run.open(folder, lock=False) as run:
        assert [t["stage"] for t in run.trials()].count("contest-0-0") == 1
    assert tailorvit.load(folder)(np_images()).shape == (2, 10)


def np_images():
    import torch

    return torch.zeros(2, 1, 8, 8)


def test_a_final_training_that_fails_does_not_cost_the_network_of_the_contest(tmp_path, monkeypatch):
    """The final network here was never trained; what a third of thirty epochs made is better."""
    monkeypatch.setattr(api.Session, "plain", lambda self, arch, *_: self.build(arch, 0.0).eval())
    settings = {"family": "vit", "time": None, "train.epochs": 30, "analysis.images": 0, "analysis.mistakes": 0}
    settings["data.limit"] = 400
    out = tmp_path / "run"
    result = tailorvit.run(
        "image-folder", data="digits", max_params="20k", settings=settings, out=out, progress="quiet"
    )
    found, left = result["candidates"]
    assert left["name"] == "contest" and left["chosen"] and left["final_search_accuracy"] > 40 > found["test_accuracy"]
    assert result["test_accuracy"] == left["test_accuracy"] and "as the contest left it" in result["why"]
    assert tailorvit.evaluate(out, data="digits").accuracy > 30, "and its weights are the ones stored"


def test_what_a_choice_was_worth_compares_what_differs_in_it_alone(held):
    for row in held[0]["contest"]["worth"]:
        assert row["low"] <= row["points"] <= row["high"] and row["points"] >= 0 and row["best"] != row["worst"]
    assert [w["what"] for w in held[0]["contest"]["worth"]][-1] == "augmentation"


class Nothing:
    """A session that is not asked."""


def standings(rows):
    made = Contest(Nothing(), [], [])
    base = Entry("vit", "usual", HAND, None, (), "mild", 1e-3)
    for augment, right in rows:
        entry = Entry(base.family, base.stem, base.shape, base.arch, base.settings, augment, base.lr)
        correct = np.zeros(400, dtype=bool)
        correct[:right] = 1
        made.standings.append(Standing(entry, 10, rounds=[{"accuracy": right / 4}], correct=correct))
    return made


def test_of_augmentations_that_cannot_be_told_apart_the_mildest_wins(monkeypatch):
    """One image of 400 says nothing, forty do."""
    for light, winner in ((301, "mild"), (340, "light")):
        made, right = standings([("mild", 300)]), {"light": light, "medium": 200}
        auto = SimpleNamespace(final=SimpleNamespace(train=SimpleNamespace(augment="auto")))
        made.session = SimpleNamespace(config=auto)

        def fresh(entries, full, what, number, made=made, right=right):
            made.standings.extend(standings([(e.augment, right[e.augment]) for e in entries]).standings)
            return [len(made.standings) - 1]

        monkeypatch.setattr(made, "_fresh", fresh)
        monkeypatch.setattr(made, "_end", lambda *_: None)
        assert made.climb(0).entry.augment == winner


@pytest.mark.parametrize(
    ("twice", "tried", "best"),
    [(301, [0.001, 0.002], 0.002), (340, [0.001, 0.002, 0.004], 0.004), (250, [0.001, 0.002, 0.0005], 0.0005)],
)
def test_a_third_learning_rate_is_tried_only_beyond_one_that_is_clearly_better(monkeypatch, twice, tried, best):
    """One image of 400 tells nothing, forty do."""
    made, right = standings([("mild", 300)]), {0.0005: 380, 0.001: 300, 0.002: twice, 0.004: 390}
    made.session = SimpleNamespace(config=SimpleNamespace(final=SimpleNamespace(train=SimpleNamespace(lr=2e-3))))

    def fresh(entries, full, what, number):
        for entry in entries:
            made.standings.append(standings([("mild", right[entry.lr])]).standings[0])
            made.standings[-1].entry = entry
        return list(range(len(made.standings) - len(entries), len(made.standings)))

    monkeypatch.setattr(made, "_fresh", fresh)
    monkeypatch.setattr(made, "_end", lambda *_: None)
    won = made.standings[made.set_rate(made.standings[0])]
    assert [s.entry.lr for s in made.standings[1:]] == tried and won.entry.lr == best


@pytest.mark.parametrize(("best", "final"), [("mild", "light"), ("medium", "strong"), ("strong", "strong")])
def test_the_final_training_takes_one_step_up_the_ladder(best, final):
    made = standings([(best, 300)])
    assert made.final_augment(made.standings[0]) == best, "where the contest has not climbed"
    made.rounds.append({"asks": "augmentation"})
    assert made.final_augment(made.standings[0]) == final


@pytest.mark.parametrize(("light", "final"), [(299, "light"), (250, "mild")])
def test_a_step_that_was_clearly_worse_in_the_climb_is_not_taken(light, final):
    made = standings([("mild", 300), ("light", light), ("medium", 100)])
    made.rounds.append({"asks": "augmentation"})
    assert made.final_augment(made.standings[0]) == final


def test_a_family_is_weighed_by_its_best_stem():
    made = standings([("mild", 300), ("mild", 290), ("mild", 200), ("mild", 100)])
    names = [("vit", "fine"), ("pit", "usual"), ("vit", "usual"), ("pit", "fine")]
    for standing, (name, stem) in zip(made.standings, names, strict=True):
        e = standing.entry
        standing.entry = Entry(name, stem, e.shape, e.arch, e.settings, e.augment, e.lr)
    made._weigh("all networks", [0, 1, 2, 3])
    assert [(w["what"], w["best"], w["worst"], w["points"]) for w in made.worth] == [
        ("family", "vit", "pit", 2.5),
        ("stem", "fine", "usual", 25.0),
    ]


# -- time -------------------------------------------------------------------------------------------------------------


def paced(monkeypatch, seconds):
    monkeypatch.setattr(
        schedule, "measure", lambda session, e: {"epoch": seconds[e.family], "setup": 0.0, "memory": 0.0}
    )


def session_of(tmp_path, **options):
    plan = api.prepare(api.recipe_for("image-folder", data="digits", limits={"max_params": "60k"}, **options))
    run = Run.create(tmp_path / "run", "", {})
    return api.Session(plan, run, api.make_progress("quiet"))


def test_all_get_the_same_time_and_a_longer_budget_buys_epochs(tmp_path, monkeypatch):
    paces = {"vit": 1.0, "pit": 1.0, "shunted": 5.0, "hybrid": 1.0, "swin": 1.0, "windowed": 1.2}
    paced(monkeypatch, paces)
    session = session_of(tmp_path)
    short, middle, long = (schedule.plan_time(session, session.plan.entries, s) for s in (70, 600, 9000))
    for plan, seconds in ((short, 70), (middle, 600)):
        assert 0.7 * seconds < plan["seconds"] < seconds
    left_out = [[r["label"].split(",")[0] for r in p["entries"] if not r["inside"]] for p in (short, middle, long)]
    assert left_out == [["shunted"], [], []], "five epochs at least"
    epochs = {r["label"].split(",")[0]: r["epochs"] for r in middle["entries"]}
    assert epochs["shunted"] == epochs["vit"] // 5 and abs(1.2 * epochs["windowed"] - epochs["vit"]) < 1.5
    assert max(r["epochs"] for r in long["entries"]) == schedule.MOST


def test_the_final_training_uses_what_is_left(tmp_path):
    session = session_of(tmp_path)
    winner = Standing(session.plan.entries[0], 60, rounds=[{"seconds": 8.0, "epochs": 4}])
    session.run.spend("contest-0-0", 300.0)
    assert schedule.final_epochs(session, winner, 500) == int((0.94 * 500 - 300) / 2)
    assert schedule.final_epochs(session, winner, 500, before=1) == int((0.94 * 500 - 300) / 2 / 2)
    assert schedule.final_epochs(session, winner, 301) == schedule.LEAST


def test_a_plan_trains_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = api.plan("image-folder", data="digits", max_params="60k", budget="4m")
    text = "\n".join(plan["lines"])
    assert "vit, hand-designed" in text and "Nothing was trained" in text and 120 < plan["seconds"] <= 240
    assert not list(tmp_path.iterdir())
    with pytest.raises(TailorError, match="--plan knows the contest"):
        api.plan("s4-digits")


def test_a_run_with_a_budget_ends_near_it(tmp_path):
    result = tailorvit.run(
        "image-folder",
        data="digits",
        max_params="8k",
        budget="8s",
        settings={"data.limit": 100, "analysis.images": 0, "analysis.mistakes": 0},
        out=tmp_path / "run",
        progress="quiet",
    )
    assert result["plan"]["final_epochs"] >= schedule.LEAST
    assert sum(result["seconds"].values()) < 40  # generous: the machine may be busy


@pytest.mark.parametrize(("text", "why"), [("soon", "Cannot read 'soon'"), ("0m", "above zero")])
def test_a_budget_that_is_none(text, why):
    with pytest.raises(TailorError, match=why):
        api.recipe_for("image-folder", budget=text)


def test_a_budget_of_epochs():
    config = api.recipe_for("image-folder", data="digits", budget="7 epochs")
    assert config.time is None and config.final.train.epochs == 7 and config.method == "contest"
    assert api.configure(tomllib.loads(api.to_toml(config))) == config, "a resumed run reads the same"
    with pytest.raises(TailorError, match="epochs"):
        api.recipe_for("image-folder", budget="0epochs")


def test_the_device_decides_what_the_recipe_leaves_open():
    plan = api.prepare(api.recipe_for("image-folder", data="digits"))
    assert plan.config.final.train.precision == "fp32" and plan.config.final.train.batch == 32
    assert plan.config.seconds() == schedule.DEFAULTS["cpu"]
    assert plan.config.family == contests.AUTO and plan.config.space == "auto", "a resumed run holds the contest again"


def test_another_method_goes_on_with_the_winner(tmp_path):
    settings = {**SMALL, "family": "auto", "space": "auto", "limits.min_params": 1}
    result = tailorvit.run("autoformer-digits", tiny=True, settings=settings, out=tmp_path / "run", progress="quiet")
    winner = result["contest"]["entries"][result["contest"]["winner"]]
    assert result["method"] == "autoformer" and result["arch"]["family"] == winner["family"]


def test_the_time_left_of_a_whole_run_is_shown(capsys):
    shown = PlainProgress()
    shown.step("training", 1, 2, {})
    shown.ends_at = time.monotonic() + 600
    shown.step("contest", 1, 2, {})
    first, second = capsys.readouterr().out.splitlines()
    assert "left" not in first and second.endswith("run: 10 min left")


def test_the_best_of_each_family_passes_the_first_cut():
    made = standings([("mild", right) for right in (400, 390, 380, 100)])
    for standing, name in zip(made.standings, ("vit", "vit", "pit", "swin"), strict=True):
        standing.entry = replace(standing.entry, family=name)
    assert made._first_cut([0, 1, 2, 3]) == [0, 2, 3, 1]


def test_other_shapes_take_part(digits):
    entries = first_entries("vit", digits, Limits.of(max_params="150k"), TrainSettings())
    assert {e.shape for e in entries} > {HAND} and len({e.arch for e in entries}) == len(entries)


def test_as_many_take_part_in_each_round_as_the_plan_counts(held):
    found = held[0]["contest"]
    began = found["rungs"][0]["entries"]
    counted = {what: n for what, n in schedule._entries(began).items() if n}
    counted["augmentation"] = found["rungs"][-1]["entries"]  # the lowest step is trained already; its end is not known
    assert {r["asks"]: r["entries"] for r in found["rungs"]} == counted


def test_the_time_of_measuring_is_part_of_the_budget(tmp_path, monkeypatch):
    """Networks that train in no time, but half a minute of measuring: a budget of ten seconds is too short."""
    paced(monkeypatch, dict.fromkeys(("vit", "pit", "shunted", "hybrid", "swin", "windowed"), 1e-4))
    clock = iter(range(0, 10_000, 30))
    monkeypatch.setattr(schedule.time, "monotonic", lambda: float(next(clock)))
    session = session_of(tmp_path)
    with pytest.raises(TailorError, match="A budget of 10 s is too short"):
        schedule.plan_time(session, session.plan.entries, 10)
    assert schedule.plan_time(session, session.plan.entries, 600)["seconds"] < 570


def test_a_budget_that_is_too_short_is_refused_before_there_is_a_folder(tmp_path):
    with pytest.raises(TailorError, match=r"A budget of 1 s is too short: the shortest run .* takes about \d+"):
        tailorvit.run("image-folder", data="digits", max_params="60k", budget="1s", out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_budget_nobody_would_keep_to_is_refused(tmp_path):
    with pytest.raises(TailorError, match="A budget of time is planned for a contest"):
        tailorvit.run("s4-digits", budget="2m", out=tmp_path / "run")
    config = api.recipe_for("image-folder", data="digits", method="s4", settings={"family": "vit"})
    assert api.prepare(config).config.time is None, "chosen for the contest, which is not held"


def test_a_lower_limit_does_not_end_the_row_of_networks(digits):
    limits = Limits.of(min_params="40k", max_params="60k")
    assert {e.family for e in first_entries("auto", digits, limits, TrainSettings())} >= {"vit", "pit", "swin"}
