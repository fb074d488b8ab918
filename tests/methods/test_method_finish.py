"""The end of every method: the baseline trains for as many epochs as the found network's weights have seen."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

import tailorvit
from tailorvit.config import configure
from tailorvit.families import family, named_space
from tailorvit.methods.finish import baseline_training
from tailorvit.methods.session import Supernet, Supernets
from tailorvit.runs import Run

SPACE = family("vit").shrink(named_space("vit-8px"))
QUICK = {
    "train.epochs": 4,
    "final.train.epochs": 3,
    "train.batch": 200,
    "s4.pairs": 2,
    "s4.iterations": 1,
    "analysis.images": 0,
    "analysis.mistakes": 0,
    "analysis.samples": 0,
}


@pytest.mark.parametrize(("how", "epochs"), [("inherit", 7), ("finetune", 7 + 3), ("retrain", 3)])
def test_epochs_of_the_baseline(how, epochs):
    """Seven in the supernet, three of its own where there is a last training."""
    config = configure({"train": {"epochs": 5}, "final": {"how": how, "train": {"epochs": 3, "lr": 0.25}}})
    session = SimpleNamespace(config=config)
    found = baseline_training(session, SimpleNamespace(epochs=7))
    assert found == replace(config.final.train, epochs=epochs), "all else is the last training's"
    assert baseline_training(session, None) == config.final.train, "nothing to inherit from"


def test_a_supernet_counts_the_epochs_of_those_it_inherited_from():
    session = SimpleNamespace(config=configure({"train": {"epochs": 8}}), device="cpu")
    session.supernet = lambda space, t, before=None: Supernet(session, space, f"supernet-{t}", before)
    for warm, epochs in ((True, [8, 8 + 4, 8 + 4 + 4]), (False, [8, 8, 8])):
        supernets = Supernets(session, warm)
        assert [supernets.at(SPACE, t).epochs for t in range(3)] == epochs


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("how", ["inherit", "finetune", "retrain"])
def test_a_run_trains_its_baseline_as_long_as_what_it_found(tmp_path, how, warm):
    settings = {**QUICK, "final.how": how, "s4.warm_start": warm}
    result = tailorvit.run("s4-digits", tiny=True, settings=settings, out=tmp_path / "run", progress="quiet")
    with Run.open(tmp_path / "run", lock=False) as run:
        trained: dict[str, int] = {}
        for row in run.epochs():
            trained[row["stage"]] = max(trained.get(row["stage"], 0), row["epoch"])
    baseline = trained.pop("baseline")
    assert trained.pop("supernet-0") == 4 and trained.pop("supernet-1") == (2 if warm else 4), "the space moved once"
    assert trained == ({} if how == "inherit" else {"final": 3})
    seen = 4 + 2 if warm else 4
    assert baseline == {"inherit": seen, "finetune": seen + 3, "retrain": 3}[how] == result["baseline"]["epochs"]


@pytest.mark.parametrize("how", ["inherit", "finetune", "retrain"])
def test_without_a_supernet_the_baseline_trains_as_the_network_does(tmp_path, how):
    settings = {**QUICK, "final.how": how, "method": "tf-tas", "proxy.candidates": 4}
    result = tailorvit.run("s4-digits", tiny=True, settings=settings, out=tmp_path / "run", progress="quiet")
    assert result["baseline"]["epochs"] == 3 and result["final"] == "retrain"
