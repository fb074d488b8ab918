"""Section 6: rank statistics against scipy, verdicts on networks with a known answer, moves and limits."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from tailorvit.report import checks, collect
from tailorvit.report.facts import Decision, Direction, Facts, SpaceStep, Trial
from tailorvit.report.guidelines import guidelines
from tailorvit.report.views import Block
from tailorvit.stats import kendall, mean_gap, ranks, spearman, wilson


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


def test_the_gap_of_means_agrees_with_welch():
    a, b = [1.0, 2.0, 4.0], [3.0, 3.5, 7.0, 9.0]
    gap = mean_gap(a, b)
    assert gap is not None and gap[0] / gap[1] == pytest.approx(stats.ttest_ind(b, a, equal_var=False).statistic)
    assert mean_gap([1.0], b) is None


def block(i: int, stage: int | None = None, embed=100.0, qkv=50.0, mlp=4.0, window=None) -> Block:
    return Block(stage, i, 196, embed, 2, qkv, mlp, embed * mlp, window, 1.0, 1.0)


def verdicts(blocks) -> list[str]:
    """Stage 3, windows, MLP ratios, Q-K-V narrower, Q-K-V shrinking, AutoFormer's reverse."""
    return [v.verdict for v in guidelines(blocks)]


JUDGED = "cannot be judged"


def test_a_network_after_the_book():
    stages = [1, 2, 3, 3, 3, 4]
    good = [block(i, s, 100.0 * s, 90.0 * s - 10 * i, 2 + i / 2, 7 * s) for i, s in enumerate(stages, 1)]
    assert verdicts(good) == ["follows"] * 6
    bad = [block(i, s, 100.0, 110.0 + 10 * i, 4 - i / 4, 7 * (5 - s)) for i, s in enumerate([1, 1, 1, 2, 3, 4], 1)]
    assert verdicts(bad) == ["does not"] * 6


def test_a_plain_network_has_neither_stages_nor_windows():
    found = guidelines([block(i, qkv=80 - 5 * i, mlp=2 + i / 4) for i in range(1, 9)])
    assert [v.verdict for v in found] == [JUDGED, JUDGED, "follows", "follows", "follows", "follows"]
    assert found[0].numbers == "one stage" and found[1].numbers == "no windows"
    assert "rho of MLP ratio with depth +1.00; mean 2.62 in the first half, 3.62 in the second" in found[2].numbers
    assert "in 8 of 8 blocks" in found[3].numbers


def test_equal_blocks_show_no_trend_and_a_weak_one_is_none():
    found = guidelines([block(i) for i in range(1, 7)])
    assert [v.verdict for v in found[2:]] == ["does not", "follows", "does not", "does not"]
    assert "the same MLP ratio in all 6 blocks: 4" in found[2].numbers
    ratios = [3, 5, 1, 6, 2, 4, 5, 3, 4, 3.5]
    weak = guidelines([block(i, mlp=m) for i, m in enumerate(ratios, 1)])[2]
    assert weak.verdict == "does not", weak.numbers


@pytest.mark.parametrize(
    "blocks",
    [
        [],
        [block(1)],
        [block(i, qkv=90 - i, mlp=i) for i in (1, 2, 3)],
        [Block(None, 1, *[None] * 9), Block(None, 2, *[None] * 9)],
    ],
)
def test_too_little_is_not_judged(blocks):
    assert set(verdicts(blocks)) <= {JUDGED, "follows"}
    assert all(v == JUDGED for v in verdicts(blocks)[4:])


def test_two_stages_have_no_third():
    assert "there is no stage 3 (stage 1: 1, stage 2: 1)" in guidelines([block(1, 1), block(2, 2)])[0].numbers


def candidate(inherited, final, test, **more):
    row = {"arch": {"family": "vit", "depth": 2}, "params": 5e6, "search_accuracy": inherited}
    return {**row, "final_search_accuracy": final, "test_accuracy": test, "chosen": False, **more}


def told(candidates=(), **more) -> Facts:
    result = {"final": "retrain", "candidates": list(candidates), **more.pop("result", {})}
    return Facts("run", True, result=result, **more)


def drawn(facts: Facts):
    found = {figure.key: figure for figure in checks.figures(facts)}
    for figure in found.values():
        ElementTree.fromstring(figure.svg)
        assert all(len(values) == len(figure.columns) for values in figure.rows)
        assert not re.search(r"\b(nan|inf|None)\b", figure.svg)
    return found


def test_candidates_are_ranked_before_and_after():
    facts = told([candidate(70, 75, 76), candidate(68, 76, 74), candidate(66, 73, 73, chosen=True)])
    text = checks.checks(facts)
    tau, rho = (
        stats.kendalltau([70, 68, 66], [75, 76, 73]).statistic,
        stats.spearmanr([70, 68, 66], [75, 76, 73]).statistic,
    )
    assert f"Kendall's tau-b {tau:+.2f}, Spearman's rho {rho:+.2f} over 3 candidates".replace("'", "&#x27;") in text
    assert "Kendall&#x27;s tau-b +1.00" in text, "against the test images"
    figure = drawn(facts)["checks-candidates"]
    assert figure.svg.count("<rect") == 9 and ">3*</text>" in figure.svg and "retrained" in figure.caption
    assert figure.rows[1] == (2, "depth 2", 5e6, 68, 76, 74, False)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([candidate(70, 75, 76)], "cannot be judged, for it takes 3 finished candidates and there are 1"),
        ([candidate(70, 75, 76)] * 4, "cannot be judged, for all 4 candidates are equal on one side"),
        ([candidate(None, 75, 76)] * 3, "No candidate had inherited weights"),
        ([], "No candidate has been finished yet"),
        ([candidate("x", float("nan"), 10**400), 5, None], "No candidate had inherited weights"),
    ],
)
def test_what_cannot_be_ranked_says_so(rows, words):
    facts = told(rows)
    drawn(facts)
    assert words in checks.checks(facts)


def test_many_candidates_are_drawn_in_part():
    figure = drawn(told([candidate(60 + i / 10, 70, 70) for i in range(60)]))["checks-candidates"]
    assert "Drawn are 40 of 60." in figure.caption and len(figure.rows) == 60


def space(t: int, params: float, repair: bool = False) -> SpaceStep:
    return SpaceStep(t, {"depth": (1, 2)}, params, 1e9, 3.0, repair, t)


def moved(before, after, gain=0.4, gamma="depth +1", **more) -> Facts:
    trials = [
        Trial(f"edf-{t}", a, 1e6, 1e8, "sample", None, {}) for t, each in enumerate((before, after)) for a in each
    ]
    legal = (Direction("mlp -1", 1e6, 0.1, 9.9), Direction("depth +1", 1e6, 0.9, gain))
    return told(trials=tuple(trials), decisions=(Decision(0, gamma, "Moved.", False, legal),), **more)


@pytest.mark.parametrize(
    ("before", "after", "gain", "verdict"),
    [
        ([60, 61, 62], [64, 65, 66], 0.4, "borne out"),
        ([64, 65, 66], [60, 61, 62], 0.4, "not borne out"),
        ([60, 61, 62], [60.1, 61.1, 62.1], 0.4, JUDGED),
        ([60, 61, 62], [64, 65, 66], None, JUDGED),
        ([60], [64, 65], 0.4, JUDGED),
        ([], [], 0.4, JUDGED),
    ],
)
def test_promises_of_moves(before, after, gain, verdict):
    facts = moved(before, after, gain)
    (found,) = checks.gains(facts)
    assert found.verdict == verdict and found.predicted == gain
    assert verdict in checks.checks(facts)
    assert ("checks-gains" in drawn(facts)) == (len(before) > 1)


def test_a_stop_is_no_move():
    facts = told(decisions=(Decision(0, "no move", "Stopped.", True, ()),))
    assert checks.gains(facts) == []
    assert "The space did not move" in checks.checks(facts)


def test_the_limit_at_every_step():
    limits = {"limits": {"params": {"max": 8e6, "min": None}}}
    facts = told(result=limits, spaces=(space(0, 7e6), space(1, 8e6)))
    assert checks.within(facts, "params") == (
        "The largest member of the space stayed within the limit of 8M parameters at all 2 spaces visited."
    )
    facts = told(result=limits, spaces=(space(0, 9e6), space(1, 7.5e6, True)))
    assert "exceeded the limit of 8M parameters in 1 of 2 spaces: 0 (9M)." in checks.checks(facts)
    assert checks.within(facts, "macs") == "" and checks.within(told(), "params") == ""


@pytest.mark.parametrize("kind", ["s4", "s3", "free", "fixed"])
def test_every_kind_of_run(make, kind):
    facts = collect(make(kind=kind))
    text = checks.checks(facts)
    assert text.count("<figure") == len(drawn(facts))
    assert "One network is no proof" in text and "Stage 3 has the most blocks (S3)" in text
    assert ("Did the moves of the space" in text) == (kind in ("s4", "s3"))
    assert ("No candidate had inherited weights" in text) == (kind == "free")


def test_half_finished_and_hostile(make):
    assert "There is no network to look at yet." in checks.checks(collect(make(finished=False)))
    evil = "<script>alert(1)</script>"
    facts = told([candidate(70, 75, 76, arch={"depth": evil})], decisions=(Decision(0, evil, evil, False, ()),))
    assert evil not in checks.checks(facts) and "&lt;script&gt;" in checks.checks(facts)
