"""Small statistics against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tailorvit.stats import kendall, paired_difference, ranks, spearman, wilson


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


def test_a_paired_difference_counts_only_where_two_disagree():
    first, second = np.zeros(200, dtype=bool), np.zeros(200, dtype=bool)
    first[:100], second[20:110] = True, True  # 20 images for the first alone, 10 for the second alone
    gap = paired_difference(first, second)
    assert gap.difference == pytest.approx(5.0) and gap.se == pytest.approx(100 * np.sqrt(30 - 100 / 200) / 200)
    assert gap.low < 0 < gap.high and not gap.clear
    back = paired_difference(second, first)
    assert (back.difference, back.low, back.high) == pytest.approx((-gap.difference, -gap.high, -gap.low))
    same = paired_difference(first, first)
    assert same.difference == same.se == 0 and same.low == -same.high < 0, "equal answers leave a doubt"
    with pytest.raises(ValueError, match="not on 200 and 5"):
        paired_difference(first, second[:5])


@pytest.mark.parametrize(("won", "clear"), [(3, False), (4, False), (6, True)])
def test_few_disagreements_are_clear_about_where_mcnemar_is(won, clear):
    """McNemar's exact test gives 0.25, 0.125 and 0.03."""
    first = np.ones(150, dtype=bool)
    second = np.arange(150) >= won
    assert paired_difference(first, second).clear == clear == (stats.binomtest(0, won).pvalue < 0.05)


@pytest.mark.parametrize("images", [60, 150, 900])
def test_the_paired_interval_covers_the_truth(images):
    rng = np.random.default_rng(images)
    kind = rng.choice(4, size=(4000, images), p=[0.6, 0.12, 0.08, 0.2])  # both right, first only, second only, none
    found = [paired_difference((row < 2), (row == 0) | (row == 2)) for row in kind]
    inside = np.mean([gap.low <= 4 <= gap.high for gap in found])
    assert 0.935 < inside < 0.975
