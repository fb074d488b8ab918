"""Anchors: corners of the first space trained by themselves, and what their gaps do to S4's slopes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from tailorvit.methods.anchors import RIDGE, anchored, biases, corner, design

import tailorvit
from tailorvit.config import configure
from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.methods import anchors
from tailorvit.runs import Run
from tailorvit.seek.slopes import Slope

SPACE = named_space("vit-8px")
QUICK = ["train.epochs=1", "final.train.epochs=1", "train.batch=200", "baseline=false", "analysis.samples=2"]


@pytest.mark.parametrize("count", [6, 8])
def test_a_design_tells_the_dimensions_apart(count):
    x = design(count, 4)
    assert set(np.unique(x)) == {-1.0, 1.0} and np.array_equal(x, design(count, 4))
    offset = np.hstack([np.ones((count, 1)), x])
    assert np.linalg.matrix_rank(offset) == 5
    # Eight corners have an orthogonal design (determinant 8^5); three hundred random ones come near it.
    assert np.linalg.det(offset.T @ offset) > (0.2 * 8**5 if count == 8 else 1000)


def test_corners_are_members_at_the_ends():
    low, high = (corner(SPACE, SPACE.keys, [s] * 4) for s in (-1, 1))
    assert low == SPACE.smallest() and high == SPACE.largest()
    mixed = corner(SPACE, ("depth",), [1])
    assert mixed["depth"] == 5 and mixed["embed"] == 48 and SPACE.contains(mixed)


def test_biases_are_what_was_put_in():
    x, truth = design(8, 3), np.array([2.0, 0.0, -1.0])
    found, _ = biases(x, 5 + x @ truth)
    inside = x - x.mean(axis=0)
    shrunk = np.linalg.solve(inside.T @ inside + RIDGE * np.eye(3), inside.T @ inside @ truth)
    assert found == pytest.approx(shrunk) and abs(found[0]) < 2, "a ridge makes effects a little smaller"
    rng = np.random.default_rng(0)
    noisy = [biases(x, x @ truth + rng.normal(0, 1, 8)) for _ in range(300)]
    spread = np.std([f for f, _ in noisy], axis=0)
    told = np.mean([e for _, e in noisy], axis=0)
    assert told == pytest.approx(spread, rel=0.4), "the errors told are those made"


def test_slopes_grow_by_what_anchors_reach_beyond_what_they_inherit(monkeypatch):
    """A block gives three points, the supernet shows one; 8 more in width cost a point that it does not show."""

    def inherited(_, candidates):
        return [SimpleNamespace(accuracy=50 + c.arch.one("depth")) for c in candidates]

    monkeypatch.setattr(anchors, "accuracy", lambda arch, *_: 50 + 3 * arch.one("depth") - arch.one("embed") / 8)
    session = SimpleNamespace(
        config=configure({"s4": {"anchors": 8, "dims": ["depth", "embed"]}}),
        seed=0,
        device="cpu",
        plain=lambda arch, *_: arch,
        search_batches=list,
        tell_once=lambda *_, **__: None,
    )
    correct = anchored(session, SimpleNamespace(at=lambda *_: SimpleNamespace(score=inherited)))
    given = [Slope(key, 1.0, 0.3, SPACE[key].shift, ((1, 2, 50.0, 51.0),)) for key in SPACE.keys]
    found = {s.dim: s for s in correct(SPACE, 0, given)}
    added = {"depth": 2 * 8 / 9, "embed": -1 / 8 * 8 / 9, "mlp": 0, "heads": 0}  # the ridge takes a ninth
    for key, more in added.items():
        assert found[key].added == pytest.approx(more) and found[key].z == pytest.approx(1 + more), key


def test_a_run_trains_its_anchors_once_and_corrects_every_step(tmp_path, monkeypatch):
    sets = [*QUICK, "s4.anchors=4", "s4.anchor_share=1.0", "s4.iterations=2", "analysis.images=0"]
    out = tmp_path / "run"
    made = tailorvit.run("s4-digits", out=out, small=True, sets=sets, progress="quiet", command="test")
    with Run.open(out, lock=False) as run:
        stages = run.seconds()
        told = run.events("anchors")
        slopes = run.slopes()
        assert len(run.trials("anchors")) >= 3
    assert {"anchor-0", "anchor-1", "anchor-2", "anchor-3"} >= {s for s in stages if s.startswith("anchor-")}
    assert len(told) == 1 and len(told[0]["data"]["own"]) == 4
    own, inherited = (np.array(told[0]["data"][k]) for k in ("own", "inherited"))
    assert np.abs(own - inherited).max() > 0
    by_dim = {s["dim"]: s["added"] for s in slopes if s["t"] == 0 and s["n"]}
    assert any(by_dim.values())
    for s in slopes:
        if s["n"]:
            plain = np.mean([(b - a) / (v - u) for u, v, a, b in s["pairs"]])
            assert s["z"] == pytest.approx(plain + s["added"])
            assert s["added"] == by_dim.get(s["dim"], 0.0), "the bias is measured once, per unit, and serves all steps"
    assert made["method"] == "s4"


def test_scores_have_no_anchors(tmp_path):
    with pytest.raises(TailorError, match=r"s4.anchors correct the slopes of supernets"):
        tailorvit.run(
            "s4-dss-digits",
            out=tmp_path / "run",
            small=True,
            sets=[*QUICK, "s4.anchors=4"],
            progress="quiet",
            command="test",
        )
