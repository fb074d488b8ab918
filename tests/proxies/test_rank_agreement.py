"""Agreement of scores with accuracies: tau-b against the plain definition, bands, bootstrap, rank sums."""

from __future__ import annotations

import numpy as np
import pytest

from tailorvit import stats
from tailorvit.proxies import ranking
from tailorvit.proxies.ranking import agree, pairs_within, rank_sum, resamples, size_bins
from tailorvit.stats import band_taus, kendall, spearman


def random_table(n=60, seed=0):
    rng = np.random.default_rng(seed)
    params = rng.uniform(5e6, 7e6, n)
    truth = np.round(rng.normal(size=n), 1)  # rounded: ties
    score = np.round(truth + rng.normal(size=n), 1)
    return score, truth, params


def test_tau_and_rho_are_those_of_the_house():
    score, truth, params = random_table()
    found = agree(score.tolist(), truth, params, 0.05, bootstrap=0)
    assert found.tau.value == pytest.approx(kendall(score.tolist(), truth.tolist()))
    assert found.rho.value == pytest.approx(spearman(score.tolist(), truth.tolist()))
    assert found.tau.low is None and found.rows == 60


def test_the_band_keeps_pairs_of_like_size_only():
    score, truth, params = random_table()
    balance = left = right = pairs = 0
    for i in range(60):
        for j in range(i):
            if max(params[i], params[j]) <= 1.05 * min(params[i], params[j]):
                a, b = np.sign(score[i] - score[j]), np.sign(truth[i] - truth[j])
                balance, left, right, pairs = balance + a * b, left + a * a, right + b * b, pairs + 1
    found = agree(score.tolist(), truth, params, 0.05, bootstrap=0)
    assert found.pairs == pairs == pairs_within(params, 0.05) and 0 < pairs < 60 * 59 / 2
    assert found.band_tau.value == pytest.approx(balance / np.sqrt(left * right))
    wide = agree(score.tolist(), truth, params, 5.0, bootstrap=0)
    assert wide.band_tau.value == pytest.approx(found.tau.value)


def test_pieces_of_the_pair_matrix_add_up(monkeypatch):
    score, truth, params = random_table()
    samples = resamples(60, 5, seed=1)
    whole = band_taus(score, truth, params, 0.05, samples)
    monkeypatch.setattr(stats, "_CHUNK", 7)
    assert band_taus(score, truth, params, 0.05, samples) == pytest.approx(whole)


def test_a_row_drawn_twice_is_two_rows():
    score, truth, params = random_table(12)
    counts = np.array([2.0, 0, 1, 1, 3, 1, 0, 1, 1, 1, 1, 1])
    rows = np.repeat(np.arange(12), counts.astype(int))
    found = band_taus(score, truth, params, None, counts[None])[0]
    assert found == pytest.approx(kendall(score[rows].tolist(), truth[rows].tolist()))
    rho = ranking._rhos(score, truth, counts[None])[0]
    assert rho == pytest.approx(spearman(score[rows].tolist(), truth[rows].tolist()))


def test_intervals_are_seeded_hold_the_value_and_narrow():
    score, truth, params = random_table(40)
    first = agree(score.tolist(), truth, params, 0.1, seed=3)
    assert first == agree(score.tolist(), truth, params, 0.1, seed=3)
    assert first != agree(score.tolist(), truth, params, 0.1, seed=4)
    score, truth, params = random_table(400)
    many = agree(score.tolist(), truth, params, 0.1, seed=3)
    for e in (first.tau, first.band_tau, first.rho, many.tau):
        assert e.low < e.value < e.high
    assert many.tau.high - many.tau.low < (first.tau.high - first.tau.low) / 2


def test_the_gain_is_paired():
    _, truth, params = random_table(100)
    same = agree(params.tolist(), truth, params, 0.1, reference=params)
    assert (same.gain.value, same.gain.low, same.gain.high) == (0, 0, 0)
    better = agree(truth.tolist(), truth, params, 0.1, reference=params)
    assert better.gain.low > 0 and better.band_tau.value == pytest.approx(1)


def test_scores_that_are_missing_are_left_out_and_counted():
    score, truth, params = random_table(30)
    holes = [None if i % 3 == 0 else float("nan") if i % 7 == 1 else float(s) for i, s in enumerate(score)]
    rows = [i for i in range(30) if i % 3 and i % 7 != 1]
    found = agree(holes, truth, params, 0.05, bootstrap=0)
    assert found.rows == len(rows)
    assert found.tau.value == pytest.approx(kendall(score[rows].tolist(), truth[rows].tolist()))
    nothing = agree([None] * 30, truth, params, 0.05)
    assert nothing.rows == 0 and nothing.tau.value is None and nothing.pairs == 0


def test_accuracies_that_are_missing_are_left_out_too():
    score, truth, params = random_table(30)
    holes = np.where(np.arange(30) % 3 == 0, np.nan, truth)
    rows = [i for i in range(30) if i % 3]
    found = agree(score.tolist(), holes, params, 0.05, reference=params)
    wanted = agree(score[rows].tolist(), truth[rows], params[rows], 0.05, reference=params[rows])
    assert found == wanted and found.rows == 20


def test_all_ties_have_no_tau():
    _, truth, params = random_table(10)
    found = agree([1.0] * 10, truth, params, 0.05)
    assert found.tau.value is None and found.band_tau.value is None and found.rho.value is None


def test_bins_are_no_wider_than_the_band():
    params = np.array([1.0, 1.01, 1.02, 1.03, 1.04, 1.049, 1.2, 1.21, 2.0, 2.01, 2.02, 2.03, 2.04])
    groups = size_bins(params, 0.05)
    assert groups == [[0, 1, 2, 3, 4, 5], [8, 9, 10, 11, 12]]
    truth = np.arange(13.0)
    upside = truth.copy()
    upside[8:] = -truth[8:]
    found = agree(upside.tolist(), truth, params, 0.05, bootstrap=0)
    assert found.bins == 2 and found.bin_tau == pytest.approx((15 - 10) / 25)
    assert found.bin_rho == pytest.approx((6 - 5) / 11)


def test_rank_sums_add_places_not_values():
    assert rank_sum([[1.0, 1000.0, 2.0], [0.3, 0.1, 0.2]]) == [4, 4, 4]
    assert rank_sum([[1.0, None, 2.0, 3.0], [1.0, 2.0, float("inf"), 5.0]]) == [2, None, None, 4]
