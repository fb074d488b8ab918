"""S4 and S3 judged by short trainings of their members: paired, stored one by one, and from the right weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tailorvit
from tailorvit.config import configure
from tailorvit.errors import TailorError
from tailorvit.families import FAMILIES
from tailorvit.methods import members
from tailorvit.methods.session import Session, Supernets
from tailorvit.report import collect
from tailorvit.runs import Run
from tailorvit.search import Candidate
from tailorvit.train import TrainSettings

QUICK = ["train.epochs=2", "final.train.epochs=1", "train.batch=200", "train.checkpoint_seconds=0", "baseline=false"]
QUIET = ["analysis.images=0", "analysis.mistakes=0", "analysis.samples=3"]
FEW = ["s4.pairs=2", "s4.iterations=1", "s3.samples=2", "s3.updates=1"]


def go(folder, evaluator, *sets, method="s4", recipe="s4-digits"):
    every = [*QUICK, *QUIET, *FEW, f"seek.evaluator={evaluator}", *sets]
    return tailorvit.run(recipe, method=method, out=folder, tiny=True, settings=every, progress="quiet")


def read(folder, *names):
    with Run.open(folder, lock=False) as run:
        return [getattr(run, name)() for name in names]


# -- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["s4", "s3"])
@pytest.mark.parametrize("evaluator", ["training", "tuned"])
def test_members_are_judged_by_their_own_training(tmp_path, evaluator, method):
    result = go(tmp_path / "run", evaluator, "seek.tune_epochs=3", "seek.train_epochs=2", method=method)
    trials, epochs, slopes, events = read(tmp_path / "run", "trials", "epochs", "slopes", "events")
    stage = "slopes-0" if method == "s4" else "et-0"
    asked = [t for t in trials if t["stage"] == stage]
    assert len(asked) >= 8 and all(0 <= t["accuracy"] <= 100 for t in asked) and len(slopes) == 4
    supernets = {e["stage"] for e in epochs} - {"final"}
    last = max(s["step"] for s in read(tmp_path / "run", "spaces")[0])
    assert supernets == ({f"supernet-{last}"} if evaluator == "training" else {"supernet-0", f"supernet-{last}"})
    own = {"training": 2, "tuned": 3}[evaluator]
    assert result["seek"] == {"evaluator": evaluator, "epochs": own}
    how = {"training": "trained from scratch", "tuned": "trained on from the supernet's weights"}[evaluator]
    assert [f"{stage}: {len(asked)} members are {how}, {own} epoch(s) each"] == [
        e["text"] for e in events if e["kind"] == "seek"
    ]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    told = {"training": "trained from scratch for 2 epochs", "tuned": "trained by itself for 3 epochs more"}[evaluator]
    assert told in page and "standard deviations" not in page
    assert collect(tmp_path / "run").scale == "points of accuracy"


@pytest.mark.parametrize("evaluator", ["training", "tuned"])
def test_interrupted_it_ends_the_same_and_trains_no_member_twice(tmp_path, monkeypatch, evaluator):
    go(tmp_path / "whole", evaluator)
    inner, trained, stop = members.own_accuracy, [], [0]

    def once(session, arch, *rest):
        if len(trained) == stop[0]:
            raise KeyboardInterrupt
        trained.append(arch)
        return inner(session, arch, *rest)

    monkeypatch.setattr(members, "own_accuracy", once)
    stop[0] = 5
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", evaluator)
    stop[0] = 9
    with pytest.raises(KeyboardInterrupt):
        tailorvit.resume(tmp_path / "cut", progress="quiet")
    stop[0] = -1
    tailorvit.resume(tmp_path / "cut", progress="quiet")
    assert len(trained) == len(set(trained)) > 9
    tables = ("trials", "spaces", "slopes", "decisions")
    assert read(tmp_path / "cut", *tables) == read(tmp_path / "whole", *tables)
    events = [e["text"] for e in read(tmp_path / "cut", "events")[0] if e["kind"] == "seek"]
    assert len(events) == 1, "told once"


def test_a_survey_asks_its_members_once_and_says_so(tmp_path, monkeypatch):
    """Killed on the way it ends the same; the moves after the first read what the first has asked."""
    sets = ("s4.design=survey", "s4.survey=8", "s4.reach=2", "s4.iterations=3", "s4.stop_at=-1")
    result = go(tmp_path / "whole", "training", *sets)
    trials, slopes, decisions, events = read(tmp_path / "whole", "trials", "slopes", "decisions", "events")
    asked = [t for t in trials if t["stage"].startswith("slopes")]
    assert {t["stage"] for t in asked} == {"slopes-0"} and len(asked) == 8
    assert len({s["t"] for s in slopes}) == sum(d["kind"] != "repair" for d in decisions) >= 2
    assert result["seek"] == {"evaluator": "training", "epochs": 1, "reach": 2}
    assert [e["text"] for e in events if e["kind"] == "seek"] == [
        "slopes-0: 8 members are trained from scratch, 1 epoch(s) each"
    ]
    page = (tmp_path / "whole" / "report.html").read_text(encoding="utf-8")
    assert "from up to 2 steps around the space and serve every step" in page and "pairs each" not in page
    assert "trained 8 architectures by themselves and evaluated" in page
    inner, left = members.own_accuracy, [5]

    def once(*args):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return inner(*args)

    monkeypatch.setattr(members, "own_accuracy", once)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", "training", *sets)
    left[0] = 3
    tailorvit.resume(tmp_path / "cut", progress="quiet")
    tables = ("trials", "spaces", "slopes", "decisions")
    assert read(tmp_path / "cut", *tables) == read(tmp_path / "whole", *tables)


# -- one member -------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """A function that gives the session of a finished tiny run whose space did not move, open to be asked more."""
    kept, inner = [], Session.__init__

    def note(self, *args, **more):
        inner(self, *args, **more)
        kept.append(self)

    monkeypatch.setattr(Session, "__init__", note)

    def make(recipe="s4-digits"):
        go(tmp_path / "run", "tuned", "s4.iterations=0", recipe=recipe)
        kept[-1].run = Run.open(tmp_path / "run")
        return kept[-1]

    yield make
    for each in kept:
        each.run.close()


@pytest.fixture
def session(opened):
    """One of the ViT family."""
    return opened()


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_members_of_every_family_can_be_judged_so(opened, name):
    session = opened("s4-digits" if name == "vit" else f"s4-{name}-digits")
    assert session.family.name == name
    space = session.run.spaces()[-1]["space"]  # where the first was too large it was repaired
    archs, config = [space.smallest(), space.largest()], session.config
    nets = Supernets(session, False, 1.0)
    for judge in ("training", "tuned"):
        session.config = replace(config, seek=replace(config.seek, evaluator=judge))
        found = members.by_training(session, lambda: nets, judge, "pair")(space, 0)(archs)
        assert [t["accuracy"] for t in session.run.trials(f"{judge}-0")] == found and max(found) > 0
        assert members.by_training(session, lambda: nets, judge, "pair")(space, 0)(archs[::-1]) == found[::-1]


def test_a_members_figure_depends_on_nothing_but_itself(session):
    train = members.member_training(session.config.train, 2)
    a, b = session.space.smallest(), session.space.largest()
    alone = members.own_accuracy(session, b, train, "here")
    assert members.own_accuracy(session, a, train, "there") >= 0
    assert members.own_accuracy(session, b, train, "there") == alone


def test_all_members_see_the_same_batches(session, monkeypatch):
    seen = []

    def look(model, batches, rule, settings, seed, *rest):
        seen.append((seed, batches.at(0).x.sum().item(), batches.at(1).y.tolist()))

    monkeypatch.setattr(members, "train", look)
    train = members.member_training(session.config.train, 2)
    for stage, arch in (("slopes-0", session.space.smallest()), ("slopes-1", session.space.largest())):
        members.own_accuracy(session, arch, train, stage)
    assert seen[0] == seen[1]


def test_tuning_starts_from_inherited_weights_and_leaves_the_supernet_alone(session):
    net = Supernets(session, False, 1.0).at(session.space, 0)
    before = {k: v.clone() for k, v in net.model().state_dict().items()}
    arch = session.space.largest()
    train = members.member_training(session.config.train, 2)
    still = replace(train, lr=1e-12, warmup=0.0, min_lr=0.0, weight_decay=0.0)
    inherited = net.score("look", [Candidate(arch)])[0].accuracy
    start = session.family.extract(net.model(), arch)
    assert members.own_accuracy(session, arch, still, "x", start) == pytest.approx(inherited)
    moved = session.family.extract(net.model(), arch)
    first = {k: v.clone() for k, v in moved.state_dict().items()}
    members.own_accuracy(session, arch, train, "x", moved)
    assert any((first[k] != v).any() for k, v in moved.state_dict().items())
    assert all((before[k] == v).all() for k, v in net.model().state_dict().items())


# -- settings ---------------------------------------------------------------------------------------------------------


def test_a_member_trains_by_the_recipe_shortened_and_without_what_supernets_need():
    own = TrainSettings(
        epochs=20, warmup=5.0, lr=0.003, rule="sandwich", distill=True, reg_largest_only=True, compile=True
    )
    got = members.member_training(own, 4)
    assert (got.epochs, got.warmup, got.lr, got.batch) == (4, 1.0, 0.003, own.batch)
    assert (got.rule, got.distill, got.reg_largest_only, got.compile) == ("single_path", False, False, False)
    for epochs in (1, 3, 7, 11, 29):
        assert members.member_training(replace(own, epochs=30), epochs).epochs == epochs
        assert members.member_training(replace(own, epochs=3), epochs).epochs == epochs


@pytest.mark.parametrize("name", ["train_epochs", "tune_epochs"])
def test_epochs_must_be_some(name):
    with pytest.raises(TailorError, match=rf"seek\.{name} must be at least 1, not 0"):
        configure({"method": "s4", "seek": {name: 0}})


def test_anchors_are_for_inherited_accuracies(tmp_path):
    with pytest.raises(TailorError, match="leave them at 0 where 'training' judges"):
        go(tmp_path / "run", "training", "s4.anchors=4")
