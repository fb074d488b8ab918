from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailorvit.search.pareto import hypervolume, non_dominated

points = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=25)


def dominates(a, b) -> bool:
    return all(x <= y for x, y in zip(a, b)) and a != b


def test_known_front():
    p = [(1, 5), (2, 2), (3, 1), (3, 3), (2, 2), (6, 6)]
    assert non_dominated(p).tolist() == [True, True, True, False, True, False]


@settings(max_examples=100, deadline=None)
@given(points)
def test_the_front_matches_the_definition(p):
    assert non_dominated(p).tolist() == [not any(dominates(b, a) for b in p) for a in p]


@settings(max_examples=100, deadline=None)
@given(points)
def test_hypervolume_counts_unit_squares(p):
    squares = sum(any(x <= i and y <= j for x, y in p) for i in range(6) for j in range(7))
    assert hypervolume(p, (6, 7)) == squares


def test_hypervolume_of_fractions_and_outsiders():
    assert hypervolume([(0.5, 0.25)], (1, 1)) == pytest.approx(0.375)
    assert hypervolume([(1, 0), (2, 2)], (1, 1)) == 0
    assert hypervolume([], (1, 1)) == 0


def test_other_numbers_of_columns():
    cube = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0], [1, 1, 1]])
    assert non_dominated(cube).tolist() == [True, True, True, False]
    with pytest.raises(ValueError, match="two columns"):
        hypervolume(cube, (2, 2))


def test_rejects_nan_and_flat_arrays():
    with pytest.raises(ValueError, match="NaN"):
        non_dominated([(1.0, float("nan"))])
    with pytest.raises(ValueError, match="rows"):
        non_dominated([1.0, 2.0])


def test_agrees_with_pymoo():
    from pymoo.indicators.hv import HV
    from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

    p = np.random.default_rng(0).random((60, 2))
    assert hypervolume(p, (0.9, 0.8)) == pytest.approx(float(HV(ref_point=np.array([0.9, 0.8]))(p)))
    front = NonDominatedSorting().do(p, only_non_dominated_front=True)
    assert set(non_dominated(p).nonzero()[0]) == set(front)
