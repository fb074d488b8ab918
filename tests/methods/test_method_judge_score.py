"""S4 and S3 judged by scores: standard deviations as a scale, what scores say beyond size, where the space goes."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tailorvit
from tailorvit.arch import Arch
from tailorvit.config import configure
from tailorvit.errors import TailorError
from tailorvit.methods.judges import ScoreScale
from tailorvit.proxies import PROXIES, Proxy
from tailorvit.proxies.score import Scorer
from tailorvit.report import collect
from tailorvit.report.space import figures
from tailorvit.rng import generator
from tailorvit.runs import Run
from tailorvit.seek import s3, s4
from tailorvit.seek.slopes import POINTS, Scale, Slope
from tailorvit.space import Dim, Space

QUICK = ["train.epochs=1", "final.train.epochs=1", "train.batch=200", "train.checkpoint_seconds=0", "baseline=false"]
QUIET = ["analysis.images=0", "analysis.mistakes=0", "analysis.samples=3"]


def go(folder, *sets, method="s4", recipe="s4-dss-digits", **options):
    settings = [*QUICK, *QUIET, *sets]
    return tailorvit.run(recipe, method=method, out=folder, tiny=True, settings=settings, progress="quiet", **options)


def read(folder, *names):
    with Run.open(folder, lock=False) as run:
        return [getattr(run, name)() for name in names]


@pytest.fixture
def made_up(monkeypatch):
    """Register a proxy of the test's own; it sees architecture, parameters and MACs."""

    def add(measure, name="mine"):
        record = Proxy(name, "made up", "none", True, "counted", "nothing", lambda task: {"score": measure(task)})
        monkeypatch.setitem(PROXIES.added, name, record)
        return f"seek.evaluator={name}"

    return add


# -- the scale --------------------------------------------------------------------------------------------------------


def test_scores_are_counted_in_standard_deviations():
    rng = generator(0, "scores")
    scores, params = rng.normal(-5, 3, 400), rng.uniform(1e4, 9e4, 400)
    scale = ScoreScale.fit(scores.tolist(), params.tolist())
    z = np.array([scale(s, p) for s, p in zip(scores, params)])
    assert not scale.log and abs(z.mean()) < 1e-12 and z.std() == pytest.approx(1)
    assert np.corrcoef(z, np.log(params))[0, 1] == pytest.approx(0, abs=1e-9), "nothing of the size is left"
    assert np.corrcoef(z, scores)[0, 1] > 0.98 and scale(None, 1e4) is None


def test_beyond_size_only_the_rest_is_left():
    """A power of the size times a small factor: the factor is all that is seen."""
    rng = generator(1, "scores")
    params, factor = rng.uniform(1e4, 9e4, 400), rng.normal(0, 0.1, 400)
    scale = ScoreScale.fit((params**1.7 * np.exp(factor)).tolist(), params.tolist())
    assert scale.log and scale.slope == pytest.approx(1.7, abs=0.03) and scale.spread == pytest.approx(0.1, abs=0.01)
    for size in (1e4, 5e4, 2e5):
        better, worse = (scale(size**1.7 * math.exp(f), size) for f in (0.1, -0.1))
        assert better - worse == pytest.approx(2, abs=0.25)
    assert scale(0.0, 1e4) is None is scale(-1.0, 1e4), "a sample of positive scores knows no logarithm of these"


def test_a_score_that_is_size_says_nothing_beyond_it():
    params = [10_000, 20_000, 35_000, 80_000]
    assert {ScoreScale.fit(params, params)(float(p), p) for p in params} == {0.0}
    assert {ScoreScale.fit([3.0] * 4, params)(3.0, p) for p in params} == {0.0}


def test_sentences_name_the_unit():
    space = Space("any", (Dim("depth", (2, 3), maximum=9), Dim("embed", (16, 24))))
    slopes = [Slope("depth", 0.5, 0.1, 1, ()), Slope("embed", 0.0, 0.1, 8, ())]
    option = s4.Move((1, 0), space.shift({"depth": 1}), 100.0)
    for scale, unit in ((POINTS, "+0.50 points;"), (Scale("standard deviations of dss", 0.0), "deviations of dss;")):
        decision, _ = s4.decide(space, slopes, [option], s4.S4Settings(), 0, {space}, "params", scale)
        assert unit in decision.sentence
    still, _ = s4.decide(
        space,
        [Slope(d.key, 0.0, 0.0, 1, ()) for d in space.dims],
        [option],
        s4.S4Settings(),
        0,
        {space},
        "params",
        Scale("z", 0),
    )
    assert still.sentence.endswith("No dimension shows an effect on scores.")

    def by_depth(archs):
        return [float(a.one("depth")) for a in archs]

    settings = s3.S3Settings(samples=4, top=2)
    for scale, words in ((POINTS, "points of E-T error a choice"), (Scale("z", 0.0), "z lost a choice")):
        found = s3.fits(space, by_depth, settings, 0, 0, scale=scale)
        assert found[0].w == pytest.approx(-1) and found[0].errors[0] == pytest.approx(scale.full - 2)
        assert words in s3.decide(space, found, settings, 0, scale)[0].sentence


# -- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["s4", "s3"])
def test_nothing_is_trained_while_the_space_moves(tmp_path, method):
    result = go(tmp_path / "run", method=method)
    spaces, decisions, trials, epochs = read(tmp_path / "run", "spaces", "decisions", "trials", "epochs")
    assert {e["stage"] for e in epochs} == {"final"} and result["final"] == "retrain"
    first = "slopes-0" if method == "s4" else "et-0"
    assert {"sample-0", first, "search"} <= {t["stage"] for t in trials}
    assert all(t["accuracy"] is None and t["proxy"] == "dss" for t in trials)
    assert any("standard deviations of dss" in d["sentence"] for d in decisions if d["kind"] == "move")
    last = spaces[-1]["space"]
    searched = [t for t in trials if t["stage"] == "search"]
    assert all(last.contains(t["arch"]) for t in searched)
    assert result["score"] == max(t["score"] for t in searched) and result["search_accuracy"] is None
    assert result["seek"] == {"evaluator": "dss", "samples": 200}
    facts = collect(tmp_path / "run")
    drawn = {f.key: f for f in figures(facts)}
    assert "standard deviations of dss" in drawn["slopes-0" if method == "s4" else "fits-0"].caption.lower()
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "No supernet was trained while the space moved" in page and "points of accuracy per step" not in page.lower()
    assert f"scored {len(trials)} architectures without training (dss)" in page


ROOMY = ["space=vit-8px", "limits.max_params=1M", "s4.iterations=1", "proxy.candidates=5", "proxy.band=1"]


def test_the_space_follows_the_score_and_not_the_size(tmp_path, made_up):
    """A score that grows with size and, at equal size, with the width: beyond size only the width counts."""
    evaluator = made_up(lambda task: task.params**2 * math.exp(0.1 * task.arch.one("embed")))
    result = go(tmp_path / "run", *ROOMY, evaluator, "s4.pairs=12")
    (slopes,) = read(tmp_path / "run", "slopes")
    steps = {s["dim"]: s["z_step"] for s in slopes if s["t"] == 0}
    others = [v for k, v in steps.items() if k != "embed"]
    before, after = (s["dims"] for s in result["spaces"])
    assert steps["embed"] > 0 and min(after["embed"]) > min(before["embed"])
    assert max(others) < 0, "the same size, spent otherwise, lacks the width"
    assert all(max(after[k]) < max(before[k]) for k in before if k != "embed")


def test_a_score_that_likes_small_does_not_shrink_the_space_away(tmp_path, made_up):
    """Without a lower limit in the recipe the band is one: the largest network of every space reaches it."""
    evaluator = made_up(lambda task: math.exp(-0.1 * task.arch.one("embed")))
    (tmp_path / "mine.toml").write_text("")
    sets = ["space=vit-8px", "limits.max_params=200k", "s4.iterations=3", "proxy.candidates=5"]
    result = go(tmp_path / "run", *sets, evaluator, recipe=str(tmp_path / "mine.toml"))
    sizes = [s["largest"]["params"] for s in result["spaces"]]
    assert len(sizes) > 1 and min(sizes) >= 0.8 * sizes[0]
    (events,) = read(tmp_path / "run", "events")
    assert any("The space moves only where it holds networks with params from" in e["text"] for e in events)


def test_size_alone_moves_no_space(tmp_path):
    go(tmp_path / "run", *ROOMY, "seek.evaluator=params")
    ((decision,),) = read(tmp_path / "run", "decisions")
    assert decision["reason"] == "no evidence" and "an effect on scores" in decision["sentence"]


def _recipe(folder):
    return configure(tailorvit.config.parse_recipe((folder / "recipe.toml").read_text(), "recipe"))


def test_what_has_no_score_counts_as_the_worst(tmp_path, made_up):
    """Deeper networks have no score; so the space does not go there."""
    evaluator = made_up(lambda task: math.nan if task.arch.one("depth") > 3 else 1 + 0.01 * task.arch.one("embed"))
    result = go(tmp_path / "run", *ROOMY, evaluator)
    slopes, events = read(tmp_path / "run", "slopes", "events")
    assert next(s["z"] for s in slopes if s["dim"] == "depth") < 0
    assert any("They count as worse than any other" in e["text"] for e in events)
    assert Arch.from_dict(result["arch"]).one("depth") <= 3


def test_interrupted_it_ends_the_same(tmp_path, monkeypatch):
    sets = ["s4.pairs=3"]
    go(tmp_path / "whole", *sets)
    scored, inner = [], Scorer._one
    stop = [0]

    def one(self, arch):
        scored.append(arch)
        if len(scored) == stop[0]:
            raise KeyboardInterrupt
        return inner(self, arch)

    monkeypatch.setattr(Scorer, "_one", one)
    stop[0] = 20  # among the first pairs; then among the second ones
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", *sets)
    stop[0] = 50
    with pytest.raises(KeyboardInterrupt):
        tailorvit.resume(tmp_path / "cut", progress="quiet")
    stop[0] = 0
    tailorvit.resume(tmp_path / "cut", progress="quiet")
    tables = ("trials", "spaces", "slopes", "decisions")
    assert read(tmp_path / "cut", *tables) == read(tmp_path / "whole", *tables)
    weights = [(tmp_path / n / "network" / "network.safetensors").read_bytes() for n in ("cut", "whole")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"evaluator": "dsss"}, r"Unknown seek\.evaluator 'dsss'\. Did you mean 'dss'\? Known: .*naswot.*supernet"),
        ({"evaluator": "te"}, "'te' only ranks candidates within one set, so it gives no slopes"),
    ],
)
def test_mistakes_are_refused_before_anything_is_done(table, match):
    with pytest.raises(TailorError, match=match):
        configure({"method": "s4", "seek": table})
