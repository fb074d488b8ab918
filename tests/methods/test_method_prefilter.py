"""The pre-filter of the evolution: ask many, evaluate few, and say whether it was worth it."""

from __future__ import annotations

import math

import pytest

import tailorvit
from tailorvit.config import configure
from tailorvit.costs import Meter
from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.methods.session import Supernet
from tailorvit.proxies import PROXIES, Proxy
from tailorvit.runs import Run
from tailorvit.search import EvolutionSettings, Trial, run_search
from tailorvit.search.evolution import Evolution

SPACE = named_space("vit-8px")
METER = Meter.for_space(SPACE)
SETTINGS = EvolutionSettings(
    population=10, parents=4, generations=3, crossover=4, mutation=4, prefilter="params", ask=5
)
QUICK = ["train.epochs=1", "final.train.epochs=1", "train.batch=200", "baseline=false", "train.checkpoint_seconds=0"]
QUIET = ["analysis.images=0", "analysis.mistakes=0", "analysis.samples=0", "search.prefilter=mine"]
WIDE = ["search.population=12", "search.crossover=5", "search.mutation=5", "search.generations=3"]


def macs_are_good(candidates, generation):
    return [Trial(c.arch, METER.cost("macs", c.arch) / 1e6, 0, 0, c.source, generation, c.parents) for c in candidates]


def by_size(archs):
    return [float(METER.cost("params", a)) for a in archs]


# -- the searcher -----------------------------------------------------------------------------------------------------


def test_many_are_asked_and_the_best_liked_are_evaluated():
    asked = []

    def like(archs):
        asked.append(list(archs))
        return by_size(archs)

    trials = run_search(Evolution(SPACE, lambda _: True, 3, SETTINGS, like), macs_are_good)
    assert len(trials) == len({t.arch for t in trials}) == 40, "as many as without a filter"
    assert [len(group) for group in asked] == [20] * 6, "crosses and mutations of three generations"
    for generation in (1, 2, 3):
        for kind, group in zip(("cross", "mutate"), asked[2 * generation - 2 :]):
            chosen = {t.arch for t in trials if t.generation == generation and t.source == kind}
            assert chosen == set(sorted(group, key=lambda a: -METER.cost("params", a))[:4])
    first = [t.arch for t in trials if t.generation == 0]
    plain = Evolution(SPACE, lambda _: True, 3, EvolutionSettings(population=10, crossover=4, mutation=4)).ask()
    assert first == [c.arch for c in plain], "the first population is not filtered"


def test_a_filter_that_knows_finds_better_and_none_changes_nothing():
    def best(like, seed):
        return max(
            t.accuracy for t in run_search(Evolution(SPACE, lambda _: True, seed, SETTINGS, like), macs_are_good)
        )

    seeds = range(8)
    plain, knowing = ([best(like, s) for s in seeds] for like in (None, by_size))
    against = [best(lambda archs: [-v for v in by_size(archs)], s) for s in seeds]
    assert sum(knowing) > sum(plain) > sum(against)
    unset = EvolutionSettings(population=10, parents=4, generations=3, crossover=4, mutation=4)
    two = [run_search(Evolution(SPACE, lambda _: True, 0, s), macs_are_good) for s in (SETTINGS, unset)]
    assert two[0] == two[1], "without someone to ask the settings do nothing"


def test_a_restored_searcher_goes_on_alike():
    whole, half = (Evolution(SPACE, lambda _: True, 5, SETTINGS, by_size) for _ in range(2))
    run_search(whole, macs_are_good)
    for _ in range(2):
        half.tell(macs_are_good(half.ask(), half.generation))
    again = Evolution(SPACE, lambda _: True, 5, SETTINGS, by_size)
    again.restore(half.state())
    assert run_search(again, macs_are_good) == list(whole.trials)


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"search": {"prefilter": "predictr"}}, r"Unknown search\.prefilter 'predictr'\. Did you mean 'predictor'"),
        ({"search": {"prefilter": "te"}}, "'te' ranks candidates within one set"),
        ({"search": {"prefilter": "dss", "ask": 1}}, r"search\.ask must be at least 2"),
        ({"search": {"name": "random", "prefilter": "dss"}}, r"Unknown recipe key 'search\.prefilter'"),
        (
            {"method": "tf-tas", "proxy": {"evolution": True}, "search": {"prefilter": "predictor"}},
            "would filter a search whose fitness is a score",
        ),
    ],
)
def test_where_it_makes_no_sense_it_is_refused(table, match):
    with pytest.raises(TailorError, match=match):
        configure(table)


# -- a run ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(monkeypatch):
    """Accuracies that follow the parameters, and a filter that knows (1), misleads (-1) or knows nothing (0)."""

    def make(sign):
        def measure(task):
            return {"score": math.sin(1e3 * task.params) if sign == 0 else float(sign * task.params)}

        record = Proxy("mine", "made up", "none", True, "counted", "nothing", measure)
        monkeypatch.setattr("tailorvit.proxies.PROXIES", {**PROXIES, "mine": record})

        def score(self, stage, candidates, generation=0):
            costs = [self.session.meter.cost("params", c.arch) for c in candidates]
            trials = [self.session.trial(c, p / 1e3, generation) for c, p in zip(candidates, costs)]
            self.session.run.record_trials(stage, [vars(t) for t in trials])
            return trials

        monkeypatch.setattr(Supernet, "score", score)

    return make


@pytest.mark.parametrize("sign", [1, -1, 0])
def test_a_run_tells_whether_it_helped(tmp_path, world, sign):
    world(sign)
    sets = [*QUICK, *QUIET, *WIDE, "space=vit-8px", "limits.max_params=150k"]
    result = tailorvit.run(
        "autoformer-digits", out=tmp_path / "run", small=True, sets=sets, progress="quiet", command="test"
    )
    told = result["prefilter"]
    with Run.open(tmp_path / "run", lock=False) as run:
        filtered, searched = run.trials("prefilter"), run.trials("search")
    assert told["name"] == "mine" and told["ask"] == 4 and told["asked"] == len(filtered)
    assert told["evaluated"] == len(searched) == 48 < len(filtered)
    assert {t["arch"] for t in searched} <= {t["arch"] for t in filtered}
    assert all(t["accuracy"] is None and t["proxy"] == "mine" for t in filtered)
    if sign:
        assert told["tau"] == pytest.approx(sign) == told["tau_first"]
    assert told["helps"] == (sign == 1)


def test_the_shipped_predictor_filters_a_search(tmp_path):
    sets = [*QUICK, *QUIET[:-1], "search.prefilter=predictor", "search.ask=3"]
    result = tailorvit.run(
        "autoformer-digits", out=tmp_path / "run", small=True, sets=sets, progress="quiet", command="test"
    )
    assert result["prefilter"]["name"] == "predictor" and result["prefilter"]["ask"] == 3
    tau = result["prefilter"]["tau"]
    assert tau is None or -1 <= tau <= 1
    assert result["prefilter"]["asked"] > result["prefilter"]["evaluated"] > 0


def test_a_filter_fitted_on_the_first_population(tmp_path, world):
    world(1)
    sets = [*QUICK, *QUIET[:-1], *WIDE, "search.prefilter=fitted", "space=vit-8px", "limits.max_params=150k"]
    result = tailorvit.run(
        "autoformer-digits", out=tmp_path / "run", small=True, sets=sets, progress="quiet", command="test"
    )
    told = result["prefilter"]
    assert told["name"] == "fitted" and told["fit"]["rows"] == 12
    assert told["helps"] and told["tau_first"] > 0.6, "accuracies follow the size, which it can see"
    with Run.open(tmp_path / "run", lock=False) as run:
        filtered, searched = run.trials("prefilter"), run.trials("search")
    assert {t["arch"] for t in searched} <= {t["arch"] for t in filtered} and len(filtered) > len(searched) == 48
    assert all(t["accuracy"] is None and t["parts"]["fitted"]["error"] > 0 for t in filtered)
    first = {t["arch"]: t["accuracy"] for t in searched if t["generation"] == 0}
    children = [t["accuracy"] for t in searched if t["source"] in ("cross", "mutate")]
    assert sum(children) / len(children) > sum(first.values()) / len(first)


def test_a_fitted_filter_needs_enough_to_learn_from():
    few = {"population": 6, "parents": 3, "crossover": 2, "mutation": 2, "prefilter": "fitted"}
    with pytest.raises(TailorError, match="needs at least 8 members, not 6"):
        configure({"search": few})
