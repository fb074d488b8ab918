"""Peers: models of timm trained in the same run, by the same recipe, from kill to resume."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tailorvit
from tailorvit.api import recipe_for
from tailorvit.config import configure, parse_recipe, to_toml
from tailorvit.costs import Clock
from tailorvit.data import open_data
from tailorvit.errors import TailorError
from tailorvit.methods import peers as peers_module
from tailorvit.methods.peers import build_peer, check_peers, counted
from tailorvit.methods.session import Session
from tailorvit.runs import Run

PEER = "timm:test_efficientnet"  # made by timm for tests: 100k parameters, batch norms
QUICK = {
    "s4.iterations": 0,
    "train.epochs": 1,
    "final.train.epochs": 2,
    "final.train.drop_path": 0.1,
    "train.batch": 200,
    "train.checkpoint_seconds": 0,
    "final.train.checkpoint_seconds": 0,
    "analysis.images": 0,
    "analysis.mistakes": 0,
    "analysis.samples": 0,
}


def go(folder, baseline=PEER, **settings):
    sets = {**QUICK, **{k.replace("__", "."): v for k, v in settings.items()}}
    return tailorvit.run("s4-digits", baseline=baseline, tiny=True, settings=sets, out=folder, progress="quiet")


def facts_of(result) -> dict:
    """A result without its times."""
    found = json.loads(json.dumps(dict(result)))
    found.pop("seconds")
    for peer in found["peers"]:
        assert peer.pop("seconds") > 0
    return found


# -- what may be written ----------------------------------------------------------------------------------------------


def test_the_recipe_key():
    assert configure({}).hand_designed and configure({}).peers == ()
    only = configure({"baseline": "timm:resnet18"})
    assert not only.hand_designed and only.peers == ("timm:resnet18",)
    several = configure({"baseline": [True, "timm:a", "timm:b", "timm:a"]})
    assert several.hand_designed and several.peers == ("timm:a", "timm:b")
    assert configure(parse_recipe(to_toml(several), "stored")) == several
    for wrong in ("maybe", "timm:", ["resnet18"], [True, "hf:x"]):
        with pytest.raises(TailorError, match=r"baseline cannot be '.*': write true, false, timm:NAME or a list"):
            configure({"baseline": wrong})
    with pytest.raises(TailorError, match=r"^baseline cannot be 2\.5: "):
        configure({"baseline": 2.5})


def test_the_option_adds_to_the_recipe():
    assert recipe_for(baseline="timm:a").baseline == [True, "timm:a"]
    assert recipe_for(baseline=["timm:a", "timm:b"], settings={"baseline": False}).baseline == [
        False,
        "timm:a",
        "timm:b",
    ]
    assert recipe_for(baseline="timm:a", method="finetune").baseline == [False, "timm:a"]
    assert recipe_for().baseline is True


def test_names_and_sizes_are_checked_before_anything_is_trained(tmp_path):
    with pytest.raises(
        TailorError, match=r"^timm has no model 'test_efficientnt'; the nearest are .*test_efficientnet"
    ):
        go(tmp_path / "a", "timm:test_efficientnt")
    with pytest.raises(TailorError, match=r"^timm:test_vit cannot take images of 8x8 px with 1 channel\(s\): .*\.$"):
        go(tmp_path / "b", "timm:test_vit")
    with pytest.raises(TailorError, match=r"^timm:test_convnext cannot take images of 8x8 px .*Kernel size"):
        go(tmp_path / "c", "timm:test_convnext")
    assert not any((tmp_path / name).exists() for name in "abc")
    with pytest.raises(TailorError, match="takes images, and this run trains on the features of a trunk"):
        check_peers([PEER], SimpleNamespace(trunk="a trunk"))


@pytest.mark.parametrize("name", ["test_efficientnet", "test_byobnet", "test_resnet", "test_vit", "test_vit3"])
def test_a_peer_is_built_for_the_images_and_counted(name):
    """Models with and without img_size; the counter agrees with the meta device, where nothing is fused."""
    data = open_data("digits", image_size=32)
    model = build_peer(f"timm:{name}", data, drop_path=0.1)
    rates = [m.drop_prob for m in model.modules() if type(m).__name__ == "DropPath"]
    assert 0.05 < max(rates) < 0.11
    found = counted(name, model, data)
    assert found["params"] == sum(p.numel() for p in model.parameters())
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        assert model.to("meta")(torch.zeros(1, 1, 32, 32, device="meta")).shape == (1, 10)
    assert found["macs"] == counter.get_total_flops() // 2


def test_drop_path_is_left_out_where_a_model_has_none():
    data = open_data("digits", image_size=32)
    assert build_peer("timm:ghostnet_050", data, drop_path=0.1) is not None


# -- a run ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return go(tmp_path_factory.mktemp("peers") / "run", [PEER, "timm:test_byobnet"])


def test_facts_of_a_peer(whole):
    first, second = whole.peers
    assert (first["name"], second["name"]) == (PEER, "timm:test_byobnet") and whole.baseline["params"] > 0
    data = open_data("digits", image_size=8)
    for row in (first, second):
        assert {k: row[k] for k in ("params", "macs")} == counted("x", build_peer(row["name"], data), data)
        assert row["epochs"] == whole.baseline["epochs"] == 1 + 2 and row["seconds"] > 0
        assert 0 <= row["test_accuracy"] <= 100 and 0 <= row["final_search_accuracy"] <= 100
        assert row["gap"]["difference"] == pytest.approx(row["test_accuracy"] - whole.test_accuracy)
        assert row["over"].startswith("params ") and row["over"].endswith("> 20k"), "trained all the same"
    assert [c["name"] for c in whole.candidates] == ["found", "baseline"], "a peer is not delivered"
    with Run.open(whole.folder, lock=False) as run:
        assert "peer-test_byobnet" in run.seconds() and run.epochs("peer-test_efficientnet")[-1]["epoch"] == 3
    assert f"{PEER}: {first['params']:,} parameters, {first['test_accuracy']:.2f} %, over the limit" in repr(whole)


class Stop(Exception):
    """A kill."""


@pytest.mark.parametrize("at", ["peer-test_efficientnet", "peer-test_byobnet", "choice"])
def test_killed_in_a_peer_and_resumed_it_ends_the_same(tmp_path, monkeypatch, whole, at):
    record, finish = Run.record_epoch, Run.finish

    def epoch(self, stage, number, **facts):
        record(self, stage, number, **facts)
        if stage == at and number == 2:
            raise Stop

    def done(self, stage, result):
        if stage == at:
            raise Stop
        finish(self, stage, result)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "record_epoch", epoch)
        patch.setattr(Run, "finish", done)
        with pytest.raises(Stop):
            go(tmp_path / "run", [PEER, "timm:test_byobnet"])
    assert facts_of(tailorvit.resume(tmp_path / "run", progress="quiet")) == facts_of(whole)


def test_a_peer_alone_and_beside_a_given_network(tmp_path):
    settings = {**QUICK, "baseline": PEER, "method": "fixed", "arch": {"depth": 1, "embed": 16, "heads": 1, "mlp": 2}}
    result = tailorvit.run("s4-digits", tiny=True, settings=settings, out=tmp_path / "run", progress="quiet")
    assert result.baseline is None and [p["name"] for p in result.peers] == [PEER] and result.chosen == "found"


def test_a_better_peer_is_said_first(tmp_path, monkeypatch):
    inner = peers_module.tested

    def right(*args):
        found = inner(*args)
        return found._replace(predicted=found.truth)

    monkeypatch.setattr(peers_module, "tested", right)
    result = go(tmp_path / "run")
    assert result.peers[0]["gap"]["clear"] and result.peers[0]["gap"]["difference"] > 0
    assert repr(result).startswith(f"{PEER}, over the limit, was better than the network delivered: 100.00 % of the")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "test_efficientnet" in page


def test_a_peer_that_fails_costs_no_result(tmp_path, monkeypatch):
    inner = Session.fit

    def fit(self, model, rule, settings, stage, evaluate=None, **more):
        if stage.startswith("peer"):
            raise RuntimeError("CUDA out of memory\nsecond line")
        return inner(self, model, rule, settings, stage, evaluate, **more)

    monkeypatch.setattr(Session, "fit", fit)
    result = go(tmp_path / "run")
    (peer,) = result.peers
    assert peer["test_accuracy"] is None and peer["gap"] is None and peer["problem"] == "CUDA out of memory"
    assert result.test_accuracy > 0 and "could not be trained" in repr(result)


def test_a_latency_limit_is_measured_once(tmp_path, monkeypatch):
    calls = []

    def slow(*args, **kwargs):
        calls.append(args)
        return SimpleNamespace(median=7.0)

    monkeypatch.setattr(peers_module, "measure_latency", slow)
    data = open_data("digits")
    stored: dict = {}
    session = SimpleNamespace(
        run=SimpleNamespace(result=stored.get, finish=stored.__setitem__),
        data=data,
        limits=replace(configure({"limits": {"max_params": "10M", "max_latency": "12ms"}}).budget()),
        device="cpu",
        clock=Clock(),
    )
    for _ in range(2):
        found = peers_module._costs(session, PEER, "peer-x")
    assert len(calls) == 1 and found["latency"] == 7.0 and found["over"] == "latency 7 s > 12 ms"
