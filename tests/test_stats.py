"""Small statistics against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tailorvit.stats import kendall, ranks, spearman, wilson


@pytest.mark.parametrize("seed", range(20))
def test_rank_correlations_agree_with_scipy(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 30))
    a, b = rng.integers(0, 6, count).tolist(), rng.integers(0, 6, count).tolist()  # few values: many ties
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert kendall(a, b) == pytest.approx(stats.kendalltau(a, b).statistic)
        assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert ranks(a) == stats.rankdata(a).tolist()
    x, y = rng.normal(size=count).tolist(), rng.normal(size=count).tolist()
    assert kendall(x, y) == pytest.approx(stats.kendalltau(x, y).statistic)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)


def test_ties_alone_have_no_order():
    assert kendall([1, 1, 1], [1, 2, 3]) is None and spearman([1, 2], [4, 4]) is None
    assert kendall([], []) is None and spearman([1.0], [1.0]) is None


@pytest.mark.parametrize(("correct", "count"), [(0, 5), (5, 5), (1, 4), (63, 100), (9999, 10000)])
def test_wilson_agrees_with_scipy(correct, count):
    found = stats.binomtest(correct, count).proportion_ci(0.95, "wilson")
    assert wilson(correct, count) == pytest.approx((found.low, found.high), abs=1e-4)


def test_wilson_without_images_knows_nothing():
    assert wilson(0, 0) == (0.0, 1.0)
