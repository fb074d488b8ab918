"""Thousands of trials: no trial costs more because others came before it. Calls are counted where that says enough,
as clocks on a busy machine do not; where the work is inside numpy, times at n and 4n are compared."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from fake_runs import SPACE, fill
from tailorvit.families import named_space
from tailorvit.methods.untrained import sample_different
from tailorvit.report import charts, collect, compare, figures, render
from tailorvit.report.compare import comparison_figures
from tailorvit.rng import generator
from tailorvit.runs import Run
from tailorvit.search import SEARCHERS, Candidate, run_search
from tailorvit.search.pareto import non_dominated
from tailorvit.stats import kendall
from tailorvit.testing.synthetic import Synthetic

LARGE = named_space("autoformer-s")  # nothing is met twice
# Made up and mostly noise: a search that converges meets its old children again, and tries ten times for each.
PROBLEM = Synthetic(LARGE, {"embed": 384}, noise=10)
LINEAR = 5.5  # the most that four times as much may cost; quadratic is 16
BATCH = 20
SETTINGS = {
    "evolution": lambda n: {"population": BATCH, "generations": n // BATCH - 1, "crossover": 8, "mutation": 8},
    "nsga2": lambda n: {"population": BATCH, "generations": n // BATCH - 1},
    "random": lambda n: {"budget": n, "batch": BATCH},
}


def calls(work):
    """How many functions a piece of work calls, and what it returns."""
    count = 0

    def seen(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        found = work()
    finally:
        sys.setprofile(None)
    return count, found


def seconds(work):
    """The CPU time of a piece of work, the best of three."""
    took = []
    for _ in range(3):
        begin = time.process_time()
        work()
        took.append(time.process_time() - begin)
    return min(took)


def searcher(name, trials):
    method = SEARCHERS[name]
    return method.factory(LARGE, lambda arch: True, 3, method.settings(**SETTINGS[name](trials)))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_last_generation_costs_what_an_early_one_does(name):
    trials = 1000 if name == "nsga2" else 2000
    search, early, late = searcher(name, trials), range(4, 8), range(trials // BATCH - 5, trials // BATCH - 1)
    spent = dict.fromkeys([*early, *late], 0)
    while candidates := search.ask():
        told, at = PROBLEM.evaluate(candidates, search.generation), search.generation

        def generation(told=told):
            search.tell(told)
            return search.ask()

        if at in spent:
            spent[at], _ = calls(generation)
        else:
            generation()
    before, after = (sum(spent[at] for at in part) for part in (early, late))
    assert len(search.trials) == trials and 0 < after < 1.6 * before, (before, after)


def test_a_resumed_search_grows_with_its_trials(tmp_path):
    """As a resumed run does it: the searcher is asked again, and every answer comes from the database."""
    spent = {}
    for trials in (250, 1000):
        with Run.create(tmp_path / str(trials), "", {}) as run:
            told = run_search(searcher("evolution", trials), PROBLEM.evaluate)
            run.record_trials("search", [vars(t) for t in told])

            def again(asked, generation, run=run):
                known = [run.accuracy("search", candidate.arch) for candidate in asked]
                return [replace(t, accuracy=v) for t, v in zip(PROBLEM.evaluate(asked, generation), known, strict=True)]

            spent[trials], found = calls(lambda n=trials, again=again: run_search(searcher("evolution", n), again))
            assert found == told
    assert spent[1000] < LINEAR * spent[250]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_searcher_is_restored_in_linear_time(name):
    spent = {}
    for trials in (200, 800):
        told = PROBLEM.evaluate([Candidate(a) for a in LARGE.sample_distinct(trials, generator(0, "many"))], 0)
        state = {"generations": [[t.to_dict() for t in told[at : at + BATCH]] for at in range(0, trials, BATCH)]}
        fresh = searcher(name, 10 * trials)
        spent[trials], _ = calls(lambda fresh=fresh, state=state: fresh.restore(state))
        assert fresh.trials == tuple(told)
    assert spent[800] < LINEAR * spent[200]


def test_rows_are_written_as_quickly_at_the_end(tmp_path):
    drawn = LARGE.sample_distinct(2000, generator(0, "many"))
    took = []
    with Run.create(tmp_path / "run", "", {}) as run:
        for i, arch in enumerate(drawn):
            row = {"arch": arch, "accuracy": i / 100, "params": i, "macs": i, "source": "cross", "generation": i // 50}
            begin = time.process_time()
            run.record_trials("search", [{**row, "parents": drawn[max(i - 2, 0) : i], "costs": {}}])
            took.append(time.process_time() - begin)
        assert run.trial_count() == 2000
        early, _ = calls(lambda: run.accuracy("search", drawn[0]))
        late, _ = calls(lambda: run.accuracy("search", drawn[-1]))
    assert median(took[-500:]) < 4 * median(took[:500]) and late == early


def test_the_pages_grow_with_the_trials(tmp_path):
    spent, size = {}, {}
    for trials in (300, 1200):
        for name in ("one", "two"):
            with Run.create(tmp_path / str(trials) / name, 'method = "s4"\n', {}) as run:
                fill(run, trials=trials)
        folders = [tmp_path / str(trials) / name for name in ("one", "two")]
        if trials == 300:
            render(collect(folders[0]))  # what is made once
        spent[trials, "report"], page = calls(lambda at=folders[0]: render(collect(at)))
        spent[trials, "figures"], _ = calls(lambda at=folders[0]: figures(collect(at)))
        spent[trials, "compare"], _ = calls(lambda at=folders: comparison_figures(compare(at)))
        size[trials] = len(page)
    for what in ("report", "figures", "compare"):
        assert spent[1200, what] < LINEAR * spent[300, what], what
    assert size[1200] - size[300] < 200 * 900, "bytes a trial"


def test_a_large_cloud_draws_what_can_be_told_apart():
    rng = np.random.default_rng(0)
    points = [(float(a), float(b)) for a, b in rng.normal(size=(20_000, 2))]
    few, many = (charts.scatter({"a": some}, "t", "x", "y") for some in (points[: charts.CLOUD], points))
    assert few.count("h.01") > 0.95 * charts.CLOUD and many.count("h.01") < 10_000
    assert charts.crowded([points[:9], points]) and not charts.crowded([points[: charts.CLOUD]])


@pytest.mark.parametrize(
    "work",
    [
        lambda n, rng: non_dominated(rng.random((n, 2))),
        lambda n, rng: kendall(*rng.random((2, n)).tolist()),
        lambda n, rng: sample_different(SPACE, lambda arch: True, rng, n // 5),
    ],
    ids=["front", "tau", "draw"],
)
def test_arithmetic_over_all_trials_is_not_quadratic(work):
    small, large = (seconds(lambda n=n: work(n, np.random.default_rng(0))) for n in (2000, 8000))
    assert large < 9 * small + 0.02, (small, large)
