from __future__ import annotations

from collections import Counter

import pytest

from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.search import run_search
from tailorvit.search.random_search import RandomSearch, RandomSettings
from tailorvit.testing.synthetic import Synthetic

SPACE = named_space("vit-32px")
PROBLEM = Synthetic(SPACE, {"embed": 128})


def test_budget_comes_in_batches():
    trials = run_search(RandomSearch(SPACE, lambda a: True, 0, RandomSettings(25, 10)), PROBLEM.evaluate)
    assert Counter(t.generation for t in trials) == {0: 10, 1: 10, 2: 5}


def test_draws_follow_the_space():
    trials = run_search(RandomSearch(SPACE, lambda a: True, 0, RandomSettings(900, 300)), PROBLEM.evaluate)
    depths = Counter(t.arch["depth"] for t in trials)
    assert all(240 < depths[d] < 360 for d in (6, 7, 8))  # uniform over depths, not over architectures


@pytest.mark.parametrize("field", ["budget", "batch"])
def test_bad_settings_are_named(field):
    with pytest.raises(TailorError, match=f"'{field}' must be at least 1, not 0"):
        RandomSettings(**{field: 0})
