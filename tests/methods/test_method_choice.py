"""Which network a run delivers: the best by the search images, and what decides where they cannot tell."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

import tailorvit
from tailorvit.arch import Arch
from tailorvit.costs import Limits, Meter
from tailorvit.errors import TailorError
from tailorvit.families import family, named_space
from tailorvit.methods import finish as finish_module
from tailorvit.methods.choice import Contender, choose
from tailorvit.methods.finish import best_candidates, budget_use, candidates_wanted
from tailorvit.rng import generator
from tailorvit.runs import Run
from tailorvit.search import Trial

SPACE = family("vit").shrink(named_space("vit-8px"))
QUICK = {
    "s4.iterations": 0,
    "train.epochs": 1,
    "final.train.epochs": 1,
    "train.batch": 200,
    "analysis.images": 0,
    "analysis.mistakes": 0,
    "analysis.samples": 0,
}


def right(*wrong: int, images: int = 100) -> np.ndarray:
    """Answers of a network that errs on these images."""
    found = np.ones(images, dtype=bool)
    found[list(wrong)] = False
    return found


# -- the rule ---------------------------------------------------------------------------------------------------------


def test_the_clearly_better_one_wins_whatever_its_size():
    large, small = Contender("baseline", 0.99, right(*range(30))), Contender("found", 0.4, right(*range(10)))
    for prefer in ("accuracy", "small"):
        choice = choose([small, large], prefer)
        assert choice.chosen == "found" and choice.tied == ("found",)
        assert choice.why == (
            "The network found is the most accurate on the 100 search images (90.0 %): 20.0 points more than the "
            "hand-designed baseline (95 % interval +11.7 to +27.5)."
        )
    other = choose([Contender("found", 0.99, large.correct), Contender("baseline", 0.4, small.correct)], "small")
    assert other.chosen == "baseline", "a run never hands out a network it knows to be worse"


def test_a_tie_goes_to_the_budget_or_to_the_smallest():
    found, baseline = Contender("found", 0.44, right(0, 1)), Contender("baseline", 0.99, right(2, 3, 4))
    choice = choose([found, baseline])
    assert choice.chosen == "baseline" and choice.tied == ("found", "baseline")
    assert "uses more of the budget (99 % against 44 %), the hand-designed baseline, was taken." in choice.why
    assert "cannot tell the network found and the hand-designed baseline apart" in choice.why
    small = choose([found, baseline], "small")
    assert small.chosen == "found" and "the smallest, the network found, was taken." in small.why
    (row,) = choice.comparison
    assert (row["first"], row["second"], row["clear"], row["images"]) == ("found", "baseline", False, 100)
    assert row["difference"] == pytest.approx(1.0) and row["low"] < 0 < row["high"]


def test_among_tied_networks_of_about_one_size_accuracy_decides():
    found, baseline = Contender("found", 0.93, right(0, 1)), Contender("baseline", 0.99, right(2, 3, 4))
    choice = choose([found, baseline])
    assert choice.chosen == "found" and "the most accurate, the network found, was taken." in choice.why
    even = choose([found, Contender("baseline", 0.99, right(2, 3))])
    assert (
        even.chosen == "baseline" and "all classify 98.0 % correctly" in even.why and "(99 % against 93 %)" in even.why
    )


def test_several_and_one_alone():
    rows = [Contender(f"found {i}", 0.5 + i / 10, right(*range(i))) for i in (1, 2, 3)]
    choice = choose([*rows, Contender("baseline", 1.0, right(*range(40, 80)))])
    assert (
        choice.tied == ("found 1", "found 2", "found 3") and choice.chosen == "found 3" and len(choice.comparison) == 6
    )
    assert "found network 1, found network 2 and found network 3 apart (97.0 to 99.0 % correct)" in choice.why
    alone = choose(rows[:1])
    assert (alone.chosen, alone.tied, alone.comparison) == ("found 1", ("found 1",), ())
    assert "nothing to choose" in alone.why
    unlimited = choose([Contender("found", 5e3, right(0)), Contender("baseline", 9e3, right(1, 2))], limited=False)
    assert unlimited.chosen == "baseline" and "the larger, the hand-designed baseline," in unlimited.why


def test_use_of_the_budget():
    arch = SPACE.largest()
    counter = Meter.for_space(SPACE).counter
    params, macs = counter.both(arch)
    assert budget_use(Meter.for_space(SPACE), arch) == params, "without an upper limit the size itself"
    assert budget_use(Meter.for_space(SPACE, Limits.of(max_params=2 * params)), arch) == pytest.approx(0.5)
    both = Limits.of(max_params=2 * params, max_macs=macs, min_params=10)
    assert budget_use(Meter.for_space(SPACE, both), arch) == pytest.approx(0.75)


# -- who is finished --------------------------------------------------------------------------------------------------


def fake(images: int, prefer: str = "accuracy", candidates: int = 0, limits: Limits | None = None) -> SimpleNamespace:
    return SimpleNamespace(
        data=SimpleNamespace(counts={"search": images}),
        config=SimpleNamespace(final=SimpleNamespace(candidates=candidates), prefer=prefer),
        meter=Meter.for_space(SPACE, limits),
        limits=limits or Limits(),
    )


def drawn(accuracies: list[float]) -> list[Trial]:
    archs = SPACE.sample_distinct(len(accuracies), generator(0, "choice"))
    counter = Meter.for_space(SPACE).counter
    return [Trial(a, p, *counter.both(a)) for a, p in zip(archs, accuracies, strict=True)]


def test_few_search_images_finish_several():
    assert [candidates_wanted(fake(n)) for n in (60, 499, 500)] == [3, 3, 1]
    assert candidates_wanted(fake(60, candidates=1)) == 1 and candidates_wanted(fake(9000, candidates=5)) == 5
    trials = drawn([70, 69, 68, 67, 66, 50, 40])  # one standard error of 70 % of 100 images is 4.6 points
    size = {t.arch: t.params for t in trials}
    near = sorted(trials[1:5], key=lambda t: -size[t.arch])
    assert best_candidates(fake(100), trials, True) == [trials[0], *near[:2]], "the best, and the largest near it"
    assert best_candidates(fake(100, "small"), trials, True) == [trials[0], *near[:-3:-1]]
    assert best_candidates(fake(100), trials, False) == trials[:3], "scores have no such error"
    assert best_candidates(fake(100, candidates=2), trials, True) == trials[:2]
    assert best_candidates(fake(100), drawn([70, 50, 40]), True)[1:] == [], "nothing else is near"


def test_a_measured_limit_is_kept_by_those_that_join(monkeypatch):
    monkeypatch.setattr(Meter, "_measure", lambda self, metric, arch: self.counter.params(arch) * 1e-8)
    trials = drawn([70, 69, 68, 67, 66])
    sizes = sorted(t.params for t in trials[1:])
    session = fake(100, limits=Limits.of(max_latency=sizes[1] * 1e-8))
    assert sorted(t.params for t in best_candidates(session, trials, True)[1:]) == sizes[:2]


# -- a run ------------------------------------------------------------------------------------------------------------


def rigged(monkeypatch, winner: str) -> list[str]:
    """The network of one stage answers everything right on the search images, the others nothing; the order of work."""
    work: list[str] = []
    inner, evaluate = finish_module.Session.plain, finish_module.hits
    stages: dict[int, str] = {}

    def plain(self, arch, settings, stage, weights=None, teacher=None):
        model = inner(self, arch, settings, stage, weights, teacher)
        stages[id(model)] = stage
        return model

    def answers(model, batches, device):
        found = evaluate(model, batches, device)
        work.append(stages[id(model)])
        return np.full(len(found), stages[id(model)] == winner)

    monkeypatch.setattr(finish_module.Session, "plain", plain)
    monkeypatch.setattr(finish_module, "hits", answers)
    monkeypatch.setattr(finish_module, "_open_test_split", lambda s: (work.append("test"), s.data.unseal_test("x")))
    return work


@pytest.mark.parametrize("winner", ["final", "baseline"])
def test_the_delivered_network_is_the_one_described(tmp_path, monkeypatch, winner):
    work = rigged(monkeypatch, winner)
    result = tailorvit.run("s4-digits", tiny=True, settings=QUICK, out=tmp_path / "run", progress="quiet")
    assert work == ["final", "baseline", "test"], "chosen before the test split is opened"
    assert result.chosen == ("baseline" if winner == "baseline" else "found") and result.tied == [
        "baseline" if winner == "baseline" else "found"
    ]
    network = tailorvit.load(tmp_path / "run")
    assert network.card.arch == Arch.from_dict(result.arch)
    assert sum(p.numel() for p in network.parameters()) == result.params
    by_name = {c["name"]: c for c in result.candidates}
    assert (result.arch == result.baseline["arch"]) == (winner == "baseline")
    assert by_name["baseline"]["params"] == result.baseline["params"] and by_name["baseline"]["search_accuracy"] is None
    with Run.open(tmp_path / "run", lock=False) as run:
        assert run.result("choice")["why"] == result.why == run.events("choice")[0]["text"]
    text = repr(result)
    assert ("Delivered the hand-designed baseline: depth" in text) == (winner == "baseline") and result.why in text
    assert f"{by_name['found']['params']:,} parameters" in text and f"{result.baseline['params']:,} parameters" in text


def test_a_choice_once_made_is_kept(tmp_path, monkeypatch):
    """Killed after the test split was opened: a resumed run does not choose again."""
    rigged(monkeypatch, "baseline")

    def full(*_, **__):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(finish_module, "save_network", full)
        with pytest.raises(TailorError, match="disk is full"):
            tailorvit.run("s4-digits", tiny=True, settings=QUICK, out=tmp_path / "run", progress="quiet")
    monkeypatch.setattr(finish_module, "choose", full)
    assert tailorvit.resume(tmp_path / "run", progress="quiet").chosen == "baseline"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["chosen"] == "baseline"


def test_a_given_network_is_not_replaced(tmp_path, monkeypatch):
    rigged(monkeypatch, "baseline")
    settings = {**QUICK, "method": "fixed", "arch": {"depth": 2, "embed": 16, "heads": 1, "mlp": 2}}
    result = tailorvit.run("s4-digits", tiny=True, settings=settings, out=tmp_path / "run", progress="quiet")
    assert result.chosen == "found" and [c["name"] for c in result.candidates] == ["found"]
    assert result.baseline["final_search_accuracy"] == 100 > result.final_search_accuracy
