"""S4 and S3 judged by short trainings: every architecture by itself, all on the same batches, each stored at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tailorvit
from tailorvit.config import configure
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES
from tailorvit.methods import judges
from tailorvit.methods.session import Session, Supernets
from tailorvit.report import collect
from tailorvit.runs import Run
from tailorvit.train import TrainSettings

QUICK = ["train.epochs=2", "final.train.epochs=1", "train.batch=200", "train.checkpoint_seconds=0", "baseline=false"]
QUIET = ["analysis.images=0", "analysis.mistakes=0", "analysis.samples=3"]
FEW = ["s4.pairs=2", "s4.iterations=1", "s3.samples=2", "s3.updates=1", "seek.evaluator=training"]
TABLES = ("trials", "spaces", "slopes", "decisions")


def go(folder, *sets, method="s4", recipe="s4-digits"):
    settings = [*QUICK, *QUIET, *FEW, *sets]
    return tailorvit.run(recipe, method=method, out=folder, tiny=True, settings=settings, progress="quiet")


def read(folder, *names):
    with Run.open(folder, lock=False) as run:
        return [getattr(run, name)() for name in names]


# -- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["s4", "s3"])
def test_architectures_are_judged_by_their_own_training(tmp_path, method):
    result = go(tmp_path / "run", "seek.train_epochs=2", method=method)
    trials, epochs, slopes, events = read(tmp_path / "run", "trials", "epochs", "slopes", "events")
    stage = "slopes-0" if method == "s4" else "et-0"
    judged = [t for t in trials if t["stage"] == stage]
    assert len(judged) >= 8 and all(0 <= t["accuracy"] <= 100 for t in judged) and len(slopes) == 4
    last = max(s["step"] for s in read(tmp_path / "run", "spaces")[0])
    assert {e["stage"] for e in epochs} == {"final", f"supernet-{last}"}, "only the last space has a supernet"
    assert result["seek"] == {"evaluator": "training", "epochs": 2}
    assert [e["text"] for e in events if e["kind"] == "seek"] == [
        f"{stage}: {len(judged)} architectures are trained from scratch, 2 epoch(s) each."
    ]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "trained from scratch for 2 epochs" in page and "standard deviations" not in page
    assert collect(tmp_path / "run").scale == "points of accuracy"


def test_interrupted_it_ends_the_same_and_trains_no_architecture_twice(tmp_path, monkeypatch):
    go(tmp_path / "whole")
    inner, trained, stop = judges.trained_accuracy, [], [0]

    def once(session, arch, *rest):
        if len(trained) == stop[0]:
            raise KeyboardInterrupt
        trained.append(arch)
        return inner(session, arch, *rest)

    monkeypatch.setattr(judges, "trained_accuracy", once)
    stop[0] = 5
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut")
    stop[0] = 9
    with pytest.raises(KeyboardInterrupt):
        tailorvit.resume(tmp_path / "cut", progress="quiet")
    stop[0] = -1
    tailorvit.resume(tmp_path / "cut", progress="quiet")
    assert len(trained) == len(set(trained)) > 9
    assert read(tmp_path / "cut", *TABLES) == read(tmp_path / "whole", *TABLES)
    events = [e["text"] for e in read(tmp_path / "cut", "events")[0] if e["kind"] == "seek"]
    assert len(events) == 1, "logged once"


def test_a_survey_trains_its_architectures_once_and_says_so(tmp_path, monkeypatch):
    """Killed on the way it ends the same; the steps after the first use what the first has trained."""
    sets = ("s4.survey=8", "s4.reach=2", "s4.iterations=3")
    result = go(tmp_path / "whole", *sets)
    trials, slopes, decisions, events = read(tmp_path / "whole", "trials", "slopes", "decisions", "events")
    judged = [t for t in trials if t["stage"].startswith("slopes")]
    assert {t["stage"] for t in judged} == {"slopes-0"} and len(judged) == 8
    assert len({s["t"] for s in slopes}) == sum(d["kind"] != "repair" for d in decisions) >= 2
    assert result["seek"] == {"evaluator": "training", "epochs": 1, "reach": 2}
    assert [e["text"] for e in events if e["kind"] == "seek"] == [
        "slopes-0: 8 architectures are trained from scratch, 1 epoch(s) each."
    ]
    page = (tmp_path / "whole" / "report.html").read_text(encoding="utf-8")
    assert "come from up to 2 steps around the space and serve every step" in page and "pairs each" not in page
    assert "trained 8 architectures by themselves and evaluated" in page
    inner, left = judges.trained_accuracy, [5]

    def once(*args):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return inner(*args)

    monkeypatch.setattr(judges, "trained_accuracy", once)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", *sets)
    left[0] = 3
    tailorvit.resume(tmp_path / "cut", progress="quiet")
    assert read(tmp_path / "cut", *TABLES) == read(tmp_path / "whole", *TABLES)


# -- one architecture -------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """A function that gives the session of a finished tiny run whose space did not move, open for more work."""
    sessions, inner = [], Session.__init__

    def note(self, *args, **more):
        inner(self, *args, **more)
        sessions.append(self)

    monkeypatch.setattr(Session, "__init__", note)

    def make(recipe="s4-digits"):
        go(tmp_path / "run", "s4.iterations=0", recipe=recipe)
        sessions[-1].run = Run.open(tmp_path / "run")
        return sessions[-1]

    yield make
    for session in sessions:
        session.run.close()


@pytest.fixture
def session(opened):
    """One of the ViT family."""
    return opened()


@pytest.mark.parametrize("name", sorted(f.name for f in FAMILIES.working() if f.from_scratch))
def test_architectures_of_every_family_can_be_judged_so(opened, name):
    session = opened("s4-digits" if name == "vit" else f"s4-{name}-digits")
    assert session.family.name == name
    space = session.run.spaces()[-1]["space"]  # where the first was too large it was repaired
    archs, judge = [space.smallest(), space.largest()], judges.judge(session, Supernets(session, False), "own", "pair")
    found = judge(space, 0)(archs)
    assert [t["accuracy"] for t in session.run.trials("own-0")] == found and max(found) > 0
    assert judge(space, 0)(archs[::-1]) == found[::-1]


def test_an_accuracy_depends_on_its_architecture_only(session):
    settings = judges.short_training(session.config.train, 2)
    a, b = session.space.smallest(), session.space.largest()
    alone = judges.trained_accuracy(session, b, settings, "here")
    assert judges.trained_accuracy(session, a, settings, "there") >= 0
    assert judges.trained_accuracy(session, b, settings, "there") == alone


def test_all_architectures_see_the_same_batches(session, monkeypatch):
    seen = []

    def train(model, batches, rule, settings, seed, *rest):
        seen.append((seed, batches.at(0).x.sum().item(), batches.at(1).y.tolist()))

    monkeypatch.setattr(judges, "train", train)
    settings = judges.short_training(session.config.train, 2)
    for stage, arch in (("slopes-0", session.space.smallest()), ("slopes-1", session.space.largest())):
        judges.trained_accuracy(session, arch, settings, stage)
    assert seen[0] == seen[1]


# -- settings ---------------------------------------------------------------------------------------------------------


def test_the_training_is_the_recipes_shortened_and_without_what_supernets_need():
    own = TrainSettings(
        epochs=20, warmup=5.0, lr=0.003, rule="sandwich", distill=True, reg_largest_only=True, compile=True
    )
    got = judges.short_training(own, 4)
    assert (got.epochs, got.warmup, got.lr, got.batch) == (4, 1.0, 0.003, own.batch)
    assert (got.rule, got.distill, got.reg_largest_only, got.compile) == ("single_path", False, False, False)
    for epochs in (1, 3, 7, 11, 29):
        assert judges.short_training(replace(own, epochs=30), epochs).epochs == epochs
        assert judges.short_training(replace(own, epochs=3), epochs).epochs == epochs


def test_there_must_be_an_epoch():
    with pytest.raises(TailorError, match=r"seek\.train_epochs must be at least 1, not 0"):
        configure({"method": "s4", "seek": {"train_epochs": 0}})
