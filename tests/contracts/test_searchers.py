"""Every searcher of ours passes the contract that ships with the package."""

from __future__ import annotations

import pytest

from tailorvit.errors import TailorError
from tailorvit.search import SEARCHERS
from tailorvit.search.evolution import EvolutionSettings
from tailorvit.search.nsga2 import Nsga2Settings
from tailorvit.search.random_search import RandomSettings
from tailorvit.testing import SearcherContract


class TestEvolution(SearcherContract):
    name = "evolution"
    small = EvolutionSettings(population=16, parents=4, generations=5, crossover=8, mutation=8)
    tiny = EvolutionSettings(population=4, parents=2, generations=3, crossover=2, mutation=2)
    larger = EvolutionSettings(population=25, parents=6, generations=9, crossover=12, mutation=13)


class TestNsga2(SearcherContract):
    name = "nsga2"
    small = Nsga2Settings(population=16, generations=5)
    tiny = Nsga2Settings(population=4, generations=3)
    larger = Nsga2Settings(population=25, generations=9)


class TestRandom(SearcherContract):
    name = "random"
    small = RandomSettings(budget=96, batch=16)
    tiny = RandomSettings(budget=16, batch=4)
    larger = None


def test_every_searcher_of_ours_is_tested():
    tested = {kind.name for kind in SearcherContract.__subclasses__()}
    ours = {name for name in SEARCHERS if SEARCHERS.origin(name) == "tailorvit"}
    assert ours <= tested


def test_an_unknown_name_lists_the_known():
    with pytest.raises(TailorError, match=r"'evolutoin'.*Did you mean 'evolution'.*nsga2.*random"):
        SEARCHERS["evolutoin"]
