"""S4's arithmetic: neighbours, cosines, ties, the closed form."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailorvit.seek.s4 import agreement, best_first, cosines, neighbours, unconstrained

SLOPES = st.lists(st.floats(-3, 3, allow_nan=False, width=32), min_size=2, max_size=5).map(np.array)


@pytest.mark.parametrize(("n", "count"), [(1, 2), (2, 8), (3, 26), (4, 80), (5, 242)])
def test_neighbour_counts(n, count):
    found = neighbours(n)
    assert found.shape == (count, n) and set(np.unique(found)) <= {-1, 0, 1}
    rows = [tuple(r) for r in found.tolist()]
    assert len(set(rows)) == count and (0,) * n not in rows and rows == sorted(rows)


def test_cosine_by_hand():
    directions = np.array([[1, 0], [1, 1], [-1, 0], [0, 1]])
    assert cosines(directions, np.array([3.0, 4.0])) == pytest.approx([0.6, 7 / (5 * 2**0.5), -0.6, 0.8])
    assert (cosines(directions, np.zeros(2)) == 0).all()


@given(SLOPES, st.floats(1e-3, 1e3))
@settings(max_examples=50, deadline=None)
def test_cosines_do_not_see_the_scale(slopes, factor):
    assume(np.linalg.norm(slopes) > 1e-3)
    directions = neighbours(len(slopes))
    assert np.allclose(cosines(directions, slopes), cosines(directions, factor * slopes), atol=1e-9)
    sizes = [1.0] * len(directions)
    first, second = (best_first(directions, s, directions @ s, sizes)[0] for s in (slopes, factor * slopes))
    assert cosines(directions, slopes)[first] == pytest.approx(cosines(directions, slopes)[second], abs=1e-8)


@given(SLOPES)
@settings(max_examples=200, deadline=None)
def test_without_limit_the_enumeration_equals_the_closed_form(slopes):
    assume(np.linalg.norm(slopes) > 1e-6)
    directions = neighbours(len(slopes))
    cos = cosines(directions, slopes)
    pick = best_first(directions, slopes, directions @ slopes, [1.0] * len(directions))[0]
    formula = np.array(unconstrained(slopes))
    assert np.any(formula)
    reached = float(cosines(formula[None], slopes)[0])
    assert cos[pick] == pytest.approx(cos.max(), abs=2e-9) and reached == pytest.approx(cos.max(), abs=2e-9)
    gap = np.sort(cos)[-1] - np.sort(cos)[-2]
    if gap > 1e-6:  # a single winner
        assert tuple(directions[pick]) == unconstrained(slopes)


def test_closed_form_by_hand():
    assert unconstrained(np.array([0.3, 0.4, 0.24, 0.24])) == (1, 1, 1, 1)
    assert unconstrained(np.array([0.3, 0.8, 0.12, 0.01])) == (0, 1, 0, 0)
    assert unconstrained(np.array([-5.0, 0.1])) == (-1, 0)
    assert unconstrained(np.array([-1.0, 1.0])) == (-1, 1)


def test_ties_prefer_gain_then_size_then_order():
    slopes = np.array([1.0, 1.0])
    directions = np.array([[0, 1], [1, 0], [1, 1]])
    assert best_first(directions[:2], slopes, np.array([1.0, 1.0]), [5, 4])[0] == 1, "the smaller one"
    assert best_first(directions[:2], slopes, np.array([2.0, 1.0]), [5, 4])[0] == 0, (
        "the larger gain comes before the size"
    )
    assert best_first(directions[:2], slopes, np.array([1.0, 1.0]), [4, 4])[0] == 0, "lexicographic at last"
    order = best_first(directions, slopes, directions @ slopes, [9, 9, 9])
    assert order == [2, 0, 1]
    # Float error must not break a tie: 0.1 + 0.2 is not 0.3.
    noisy = np.array([0.1 + 0.2, 0.3])
    assert best_first(directions[:2], noisy, np.array([1.0, 1.0]), [5, 4])[0] == 1


def test_agreement_is_sure_when_slopes_are_and_lost_when_they_are_noise():
    directions = neighbours(3)
    slopes = np.array([1.0, 0.5, -0.2])
    pick = best_first(directions, slopes, directions @ slopes, [1.0] * 26)[0]
    assert agreement(directions, slopes, np.zeros(3), pick) == 1
    assert agreement(directions, slopes, np.full(3, 100.0), pick) < 0.2
    sure, unsure = (agreement(directions, slopes, np.full(3, e), pick) for e in (0.02, 0.3))
    assert sure > unsure


def test_best_agrees_with_sorting_by_hand():
    rng = np.random.default_rng(0)
    for _ in range(20):
        slopes = rng.normal(size=4)
        directions = neighbours(4)
        order = best_first(directions, slopes, directions @ slopes, rng.random(80).tolist())
        assert sorted(order) == list(range(80))
        cos = cosines(directions, slopes)[order]
        assert all(a >= b - 1e-9 for a, b in itertools.pairwise(cos))
