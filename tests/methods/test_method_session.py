"""A session's pieces of work: each is done once, stored, and given back by a later session of the same run."""

from __future__ import annotations

import pytest
import torch

from tailorvit.config import configure
from tailorvit.costs import Limits, Meter
from tailorvit.data import open_data
from tailorvit.errors import InfeasibleError, TailorError
from tailorvit.families import family, named_space
from tailorvit.families.network import DropPath
from tailorvit.methods import finish, team
from tailorvit.methods import session as session_module
from tailorvit.methods.session import Plan, S4Journal, Session
from tailorvit.progress import Progress
from tailorvit.rng import generator
from tailorvit.runs import Run
from tailorvit.search import Candidate
from tailorvit.seek.s4 import S4Settings, move_space
from tailorvit.train import Evaluator, Teacher

SPACE = family("vit").shrink(named_space("vit-8px"))
RECIPE = {
    "train": {"epochs": 2, "batch": 50, "warmup": 0, "augment": "none", "checkpoint_seconds": 0},
    "search": {"population": 4, "parents": 2, "generations": 1, "crossover": 1, "mutation": 1},
    "limits": {"max_params": "15k"},
}
ARCHS = list(dict.fromkeys(SPACE.sample(generator(0, i)) for i in range(8)))


@pytest.fixture(scope="module")
def data():
    return open_data("digits", limit=100)


@pytest.fixture
def sessions(tmp_path, data):
    """A function that opens the run's next session, as a resumed process would."""
    Run.create(tmp_path / "run", "", {}).close()
    opened = []

    def make(**changes) -> Session:
        while opened:
            opened.pop().close()
        run = Run.open(tmp_path / "run")
        opened.append(run)
        config = configure({**RECIPE, **changes})
        return Session(Plan(config, data, SPACE, config.budget(), "cpu"), run, Progress())

    yield make
    while opened:
        opened.pop().close()


def weights(model):
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.fixture
def no_training(monkeypatch):
    """Call it to forbid any further training."""

    def forbid():
        def train(*_, **__):
            raise AssertionError("trained again")

        monkeypatch.setattr(team, "train", train)

    return forbid


def test_a_teacher_reaches_the_training(sessions, no_training):
    session = sessions()
    teacher, asked = Teacher(session.build(SPACE.largest())), []
    teacher.network.register_forward_hook(lambda *_: asked.append(1))
    settings = session.config.final.train
    session.plain(SPACE.largest(), settings, "final", teacher=teacher)
    steps = settings.epochs * len(range(0, session.data.counts["train"], settings.batch))
    assert len(asked) == steps
    taught = session.supernet(SPACE, 1, teacher=teacher).model()
    assert len(asked) == 2 * steps
    no_training()
    again = sessions().supernet(SPACE, 1, teacher=teacher).model()
    assert same(weights(again), weights(taught)) and len(asked) == 2 * steps


def test_a_plain_network_is_trained_once(sessions, no_training):
    arch = SPACE.largest()
    first = sessions()
    settings = first.config.final.train
    model = first.plain(arch, settings, "final")
    assert not model.training
    assert [e["epoch"] for e in first.run.epochs("final")] == [1, 2]
    assert "search_accuracy" in first.run.epochs("final")[-1]
    no_training()
    again = sessions()
    assert same(weights(again.plain(arch, settings, "final")), weights(model))
    assert set(again.run.result("final")) == {"loss", "skipped", "rollbacks"}
    assert again.run.seconds()["final"] > 0


def test_found_network_and_baseline_start_from_the_same_weights(sessions):
    one = sessions()
    settings = one.config.final.train
    first = {}

    def fit(model, rule, settings, stage, evaluate=None, **_):
        first[stage] = weights(model)
        return model

    one.fit = fit
    for stage in ("final", "baseline"):
        one.plain(SPACE.largest(), settings, stage)
    assert same(first["final"], first["baseline"])


def test_a_checkpoint_of_another_network_is_refused(sessions):
    one = sessions()
    one.plain(SPACE.largest(), one.config.final.train, "final")
    with pytest.raises(TailorError, match="belongs to another space or network"):
        sessions().plain(SPACE.smallest(), one.config.final.train, "final")


def test_lost_weights_are_trained_again_to_the_same(sessions):
    one = sessions()
    settings = one.config.final.train
    model = one.plain(SPACE.largest(), settings, "final")
    one.run.drop_checkpoint("final")
    two = sessions()
    assert same(weights(two.plain(SPACE.largest(), settings, "final")), weights(model))
    assert any("trained again" in e["text"] for e in two.run.events("warning"))


def test_supernets_are_trained_when_a_figure_is_missing(sessions, no_training):
    candidates = [Candidate(a) for a in ARCHS]
    one = sessions()
    net = one.supernet(SPACE, 0)
    assert one.run.epochs() == []
    trials = net.score("search", candidates, 3)
    assert [t.arch for t in trials] == ARCHS and all(t.generation == 3 for t in trials)
    stored = one.run.trials("search")
    assert [t["arch"] for t in stored] == ARCHS
    assert [t["accuracy"] for t in stored] == [t.accuracy for t in trials]
    meter = Meter.for_space(SPACE)
    assert all((t.params, t.macs) == meter.counter.both(t.arch) for t in trials)
    assert {"largest", "smallest"} <= set(one.run.epochs("supernet-0")[-1])

    no_training()
    two = sessions()
    later = two.supernet(SPACE, 0)
    assert later.score("search", candidates, 3) == trials
    assert later._evaluator is None, "not even loaded"
    assert same(weights(later.model()), weights(net.model())), "loaded when asked for"


def test_scores_keep_the_order_and_nothing_is_evaluated_twice(sessions, monkeypatch):
    net = sessions().supernet(SPACE, 0)
    ran, inner = [], Evaluator._accuracy

    def watched(self, arch):
        ran.append(arch)
        return inner(self, arch)

    net._ready()
    monkeypatch.setattr(Evaluator, "_accuracy", watched)
    wanted = [ARCHS[3], ARCHS[0], ARCHS[3], *ARCHS]
    trials = net.score("slopes-0", [Candidate(a, "pair") for a in wanted])
    assert [t.arch for t in trials] == wanted
    assert ran == list(dict.fromkeys(wanted))
    count = len(ran)
    assert net.score("slopes-0", [Candidate(a, "pair") for a in ARCHS]) != [] and len(ran) == count
    # What is known is what the folder holds under a stage, not what is in memory: another stage scores anew.
    net.score("search", [Candidate(a) for a in wanted])
    assert ran[count:] == ran[:count]


def test_scores_do_not_depend_on_where_an_evaluation_was_cut(sessions):
    candidates = [Candidate(a) for a in ARCHS]
    whole = sessions().supernet(SPACE, 0).score("a", candidates)
    sessions().supernet(SPACE, 0).score("b", candidates[:3])  # then a kill
    assert sessions().supernet(SPACE, 0).score("b", candidates) == whole


def test_accuracies_for_slopes_are_stored_as_pairs(sessions):
    one = sessions()
    accuracies = one.supernet(SPACE, 0).accuracies("slopes-0", "pair")
    figures = accuracies([ARCHS[0], ARCHS[1], ARCHS[0]])
    assert figures[0] == figures[2] and len(figures) == 3
    assert [t["source"] for t in one.run.trials("slopes-0")] == ["pair", "pair"]
    assert one.run.seconds()["slopes-0"] > 0


def test_warm_start_inherits_and_trains_shorter(sessions, monkeypatch):
    inherited = []
    inner = session_module.inherit
    monkeypatch.setattr(session_module, "inherit", lambda a, b: inherited.append(b) or inner(a, b))
    one = sessions()
    before = one.supernet(SPACE, 0)
    moved = SPACE.shift({"embed": 1})
    warm = one.supernet(moved, 1, before)
    end = weights(warm.model())
    assert inherited == [before.model()]
    assert [e["epoch"] for e in one.run.epochs("supernet-1")] == [1], "half the epochs"

    # Killed and resumed at any point, it ends the same: also when its weights were lost after it was finished.
    for lose in (False, True):
        two = sessions()
        if lose:
            two.run.drop_checkpoint("supernet-1")
        again = two.supernet(moved, 1, two.supernet(SPACE, 0))
        assert same(weights(again.model()), end)
    assert len(inherited) == 2
    cold = sessions().supernet(moved, 2)
    assert not same(weights(cold.model()), end)


def test_search_stays_within_limits_and_is_the_same_again(sessions):
    one = sessions()
    net = one.supernet(SPACE, 0)

    def score(candidates, generation):
        return net.score("search", candidates, generation)

    trials = one.search(SPACE, score)
    assert trials and all(one.meter.fits(t.arch) and SPACE.contains(t.arch) for t in trials)
    two = sessions()
    net = two.supernet(SPACE, 0)
    assert two.search(SPACE, score) == trials and net._evaluator is None


def test_an_infeasible_search_is_an_error(sessions):
    one = sessions(limits={"max_params": 10})
    with pytest.raises(InfeasibleError):
        one.search(SPACE, lambda c, g: [])


def test_time_is_kept_also_when_interrupted(sessions):
    one = sessions()
    with pytest.raises(KeyboardInterrupt), one.timed("work"):
        raise KeyboardInterrupt
    assert one.run.seconds()["work"] >= 0


def test_the_search_split_is_read_once_and_the_test_split_not_at_all(sessions, data):
    one = sessions()
    first = one.search_batches()
    assert one.search_batches() is first and sum(len(y) for _, y in first) == data.counts["search"]
    assert data.test_opened is None


def test_decisions_are_shown_once(sessions):
    def by_width(space, t):
        return lambda archs: [float(a.one("embed")) for a in archs]

    meter, shown = Meter.for_space(SPACE, Limits.of(max_params="30k")), []
    for _ in range(2):
        one = sessions()
        one.progress.say = shown.append
        move_space(SPACE, meter, by_width, S4Settings(iterations=1, pairs=2), 0, S4Journal(one))
    assert len(shown) == 1 and len(one.run.decisions()) == 1 and len(one.run.spaces()) == 2
    assert len(one.run.slopes(0)) == len(SPACE.dims)
    assert one.run.spaces()[0]["largest"]["params"] == meter.cost("params", SPACE.largest())
    assert one.run.events("decision")[0]["text"] == one.run.decisions()[0]["sentence"]


def test_a_resumed_s4_follows_what_it_stored(sessions):
    """Spaces of runs before 0.3 have no nominal choices: the moves are theirs, the intervals are today's."""

    def by_width(space, t):
        return lambda archs: [float(a.one("embed")) for a in archs]

    meter = Meter.for_space(SPACE, Limits.of(max_params="30k"))
    one = sessions()
    first, settings = S4Journal(one), S4Settings(iterations=1, pairs=2)
    end, _, _ = move_space(SPACE, meter, by_width, settings, 0, first)
    again = S4Journal(one)
    again.space_reached(0, SPACE)
    assert again.followed(0) == end and again.followed(1) is None
    decision = one.run.decisions()[0]
    other = SPACE.shift({SPACE.keys[0]: 1})
    one.run.record_space(1, other)  # what an older version chose, by rules of its own
    assert move_space(SPACE, meter, by_width, settings, 0, S4Journal(one))[0] == other
    assert one.run.decisions() == [decision]
    one.run.record_decision(0, {**decision, "kind": "stop", "stop": True})
    assert move_space(SPACE, meter, by_width, settings, 0, S4Journal(one))[0] == SPACE, "a stop stays one"


def test_extract_and_finetune(sessions):
    one = sessions()
    net = one.supernet(SPACE, 0)
    inherited = family("vit").extract(net.model(), SPACE.smallest())
    before = weights(inherited)
    tuned = one.plain(SPACE.smallest(), one.config.final.train, "final", inherited)
    assert tuned is inherited and not same(weights(tuned), before)


def test_finetuned_networks_have_the_drop_path_of_the_last_training(sessions, monkeypatch):
    """An extracted network has the supernet's rates, the baseline those of the recipe."""
    one = sessions(final={"how": "finetune", "train": {"drop_path": 0.5}})
    net, arch, started, whole = one.supernet(SPACE, 0), SPACE.largest(), [], family("vit").supernet(SPACE)
    monkeypatch.setattr(Session, "fit", lambda self, model, *_, **__: started.append(model) or model)
    monkeypatch.setattr(net, "model", lambda: whole)
    tuned = finish.final_network(one, arch, net, "final", None)
    rates = [m.rate for m in tuned.modules() if isinstance(m, DropPath)]
    baseline = one.plain(arch, one.config.final.train, "baseline")
    assert max(rates) == 0.5 and rates == [m.rate for m in baseline.modules() if isinstance(m, DropPath)]
    assert same(weights(tuned), weights(family("vit").extract(whole, arch))) and started == [tuned, baseline]


def test_errors_of_a_space_are_sampled_once_and_are_no_part_of_the_search(sessions, no_training):
    first = sessions(analysis={"samples": 6})
    net = first.supernet(SPACE, 0)
    net.sample_errors(0)
    rows = first.run.trials("edf-0")
    assert len({r["arch"] for r in rows}) == 6 and all(SPACE.contains(r["arch"]) for r in rows)
    assert {r["source"] for r in rows} == {"sample"} and first.run.seconds()["edf-0"] > 0
    no_training()
    again = sessions(analysis={"samples": 6})
    again.supernet(SPACE, 0).sample_errors(0)  # a stored answer needs no supernet
    assert again.run.trials("edf-0") == rows


def test_no_errors_are_sampled_when_switched_off(sessions, no_training):
    no_training()
    session = sessions(analysis={"samples": 0})
    session.supernet(SPACE, 0).sample_errors(0)
    assert session.run.trials() == []


def test_sampling_a_nearly_exhausted_space_ends():
    none = SPACE.sample_distinct(0, generator(0))
    small = SPACE.pin("depth", 1).pin("embed", 16)
    drawn = small.sample_distinct(500, generator(0))
    assert none == [] and len(drawn) == len(set(drawn)) <= min(500, small.count())
