from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.search import run_search
from tailorvit.search.evolution import PRESETS, Evolution, EvolutionSettings
from tailorvit.testing.synthetic import Synthetic

SPACE = named_space("vit-8px")
PROBLEM = Synthetic(SPACE, {"embed": 56, "heads": 4, "depth": 5})


def anything(arch):
    return True


def test_defaults_and_presets():
    default = EvolutionSettings()
    assert (default.population, default.parents, default.generations) == (50, 10, 20)
    assert (default.crossover, default.mutation) == (25, 25)
    for name, numbers in {"fixed": (0.2, 0.2, 0.4), "paper": (0.2, 0.2, 0.4), "official": (0.4, 0.4, 0.2)}.items():
        s = PRESETS[name]
        assert (s.p_depth, s.p_global, s.p_block) == numbers
        assert s.per_gene == s.redraw_same == (name == "official")
        assert s.elitist == (name != "paper")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"population": 0}, "'population' must be at least 1, not 0"),
        ({"parents": 0}, "'parents' must be at least 1"),
        ({"generations": -1}, "'generations' must be at least 0"),
        ({"crossover": 30}, "Crossover 30 and mutation 25 make more children than the population 50"),
    ],
)
def test_bad_settings_are_named(change, words):
    with pytest.raises(TailorError, match=words):
        EvolutionSettings(**change)


def test_generations_are_offspring_after_the_first_population():
    settings = EvolutionSettings(population=20, parents=5, generations=3, crossover=8, mutation=7)
    trials = run_search(Evolution(SPACE, anything, 0, settings), PROBLEM.evaluate)
    assert Counter(t.generation for t in trials) == {0: 20, 1: 20, 2: 20, 3: 20}
    for generation in range(4):
        sources = Counter(t.source for t in trials if t.generation == generation)
        assert sources == ({"random": 20} if generation == 0 else {"cross": 8, "mutate": 7, "random": 5})
    assert all(len(t.parents) == {"cross": 2, "mutate": 1, "random": 0}[t.source] for t in trials)


def test_no_generations_is_one_population():
    settings = EvolutionSettings(generations=0)
    assert len(run_search(Evolution(SPACE, anything, 0, settings), PROBLEM.evaluate)) == 50


@pytest.mark.parametrize("elitist", [True, False])
def test_parents_are_the_best_so_far_or_of_the_last_generation(elitist):
    preset = "fixed" if elitist else "paper"
    settings = EvolutionSettings(population=20, parents=5, generations=6, crossover=10, mutation=10, preset=preset)
    search = Evolution(SPACE, anything, 1, settings)
    # Accuracy falls from one generation to the next, so an elitist keeps to the first.
    told = []
    while candidates := search.ask():
        told_now = PROBLEM.evaluate(candidates, search.generation)
        trials = [replace(t, accuracy=t.accuracy - 50 * search.generation) for t in told_now]
        if told:
            used = {p for t in trials for p in t.parents}
            pool = [t for g in told for t in g] if elitist else told[-1]
            best = {t.arch for t in sorted(pool, key=lambda t: (-t.accuracy, t.params, t.macs, t.arch.to_json()))[:5]}
            assert used <= best
            assert best <= ({t.arch for t in told[0]} if elitist else {t.arch for t in told[-1]})
        search.tell(trials)
        told.append(trials)
    assert len(told) == 7


def test_children_take_at_most_ten_tries_each():
    calls = []

    def first_only(arch):
        calls.append(arch)
        return len(calls) <= 6  # the first population, then nothing

    settings = EvolutionSettings(population=6, parents=3, generations=3, crossover=3, mutation=3)
    search = Evolution(SPACE, first_only, 0, settings)
    search.tell(PROBLEM.evaluate(search.ask(), 0))
    assert search.ask() == []
    assert len(calls) <= 6 + 10 * 6 + 1000 * 6


def test_one_parent_only_still_breeds():
    settings = EvolutionSettings(population=6, parents=1, generations=4, crossover=3, mutation=3)
    trials = run_search(Evolution(SPACE, anything, 0, settings), PROBLEM.evaluate)
    assert len(trials) == 30
    assert "mutate" in {t.source for t in trials}


def test_whole_default_budget():
    space = named_space("vit-32px")
    problem = Synthetic(space, {"embed": 128})
    trials = run_search(Evolution(space, anything, 0), problem.evaluate)
    assert len(trials) == 50 * 21
