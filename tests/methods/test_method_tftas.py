"""TF-TAS as a run: what is scored and stored, what never wins, and that nothing is trained before the end."""

from __future__ import annotations

import json
import math

import pytest

import tailorvit
from tailorvit.arch import Arch
from tailorvit.config import configure, modernised, read_recipe
from tailorvit.costs import Limits, Meter
from tailorvit.errors import TailorError
from tailorvit.methods import team
from tailorvit.methods import untrained as untrained_module
from tailorvit.methods.finish import finish
from tailorvit.methods.untrained import UntrainedSettings, size_band
from tailorvit.proxies import PROXIES, Proxy, ProxySettings, Refused
from tailorvit.proxies.score import Scorer
from tailorvit.report import collect
from tailorvit.report.search import figures, merit_label
from tailorvit.runs import Run
from tailorvit.stats import kendall

QUICK = ["train.epochs=1", "final.train.epochs=1", "train.batch=200", "train.checkpoint_seconds=0", "baseline=false"]
QUIET = ["analysis.images=0", "analysis.mistakes=0"]
SIZES = ["limits.min_params=6000", "limits.max_params=12000"]  # the tiny recipe's own band holds seven networks


def go(folder, *sets, recipe="tftas-digits", **options):
    settings = [*QUICK, *QUIET, *(SIZES if recipe == "tftas-digits" else ()), *sets]
    return tailorvit.run(recipe, out=folder, tiny=True, settings=settings, progress="quiet", **options)


def trials(folder, stage="score") -> list[dict]:
    with Run.open(folder, lock=False) as run:
        return run.trials(stage)


def events(folder, kind) -> list[str]:
    with Run.open(folder, lock=False) as run:
        return [e["text"] for e in run.events(kind)]


@pytest.fixture
def made_up(monkeypatch):
    """Register a proxy of the test's own."""

    def add(name, measure, **rest):
        record = Proxy(name, "made up", "none", True, "counted", "nothing", measure, **rest)
        monkeypatch.setitem(PROXIES.added, name, record)

    return add


# -- a whole run ------------------------------------------------------------------------------------------------------


def test_scores_are_stored_and_the_best_is_trained(tmp_path, monkeypatch):
    seen = []

    def watched(session, found, net, *rest):
        assert net is None and session.data.test_opened is None, "the test split stays sealed until the end"
        seen.append(({e["stage"] for e in session.run.epochs()}, len(session.run.trials())))
        return finish(session, found, net, *rest)

    monkeypatch.setattr("tailorvit.methods.untrained.finish", watched)
    result = go(tmp_path / "run", "baseline=true", "final.candidates=2")
    rows = trials(tmp_path / "run")
    assert seen == [(set(), len(rows))], "nothing is trained before the candidates are chosen"
    assert len({r["arch"] for r in rows}) == len(rows) == 24 == result["proxy"]["scored"]
    assert all(r["accuracy"] is None and r["proxy"] == "dss" and r["source"] == "random" for r in rows)
    bounds = result["limits"]["params"]
    assert all(bounds["min"] <= r["params"] <= bounds["max"] for r in rows)
    best = sorted(rows, key=lambda r: -r["score"])[:2]
    assert result["candidates"][-1]["name"] == "baseline" and result["candidates"][-1]["score"] is None
    finished = {Arch.from_dict(c["arch"]): c for c in result["candidates"][:-1]}
    (chosen,) = [c for c in result["candidates"] if c["chosen"]]
    assert set(finished) == {r["arch"] for r in best} and chosen["arch"] == result["arch"]
    assert all(finished[r["arch"]]["score"] == r["score"] for r in best)
    assert result["search_accuracy"] is None and {c["search_accuracy"] for c in result["candidates"]} == {None}
    assert result["final"] == "retrain" and result["baseline"]["test_accuracy"] >= 0
    facts = result["proxy"]
    assert facts["tau_params"] == pytest.approx(kendall([r["score"] for r in rows], [r["params"] for r in rows]))
    assert facts["per_second"] == pytest.approx(24 / facts["seconds"]) and facts["without_score"] == 0
    assert result["seconds"]["score"] == facts["seconds"]
    assert [f["accuracy"] for f in result["front"]] == [None] * len(result["front"]) != []


def test_the_report_says_what_was_scored(tmp_path):
    go(tmp_path / "run")
    facts = collect(tmp_path / "run")
    assert merit_label(facts.trials) == "score (dss)"
    (cloud,) = [f for f in figures(facts) if f.key == "search-trials"]
    assert "scored without training" in cloud.caption and len(cloud.rows) == 24
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "scored 24 architectures without training (dss)" in page
    assert "untrained networks of the last space were scored (dss)" in page and "tau-b between score and" in page


def test_scores_are_those_of_the_scorer(tmp_path):
    """Whatever else is scored: one architecture of the run, alone, in a fresh process's place."""
    go(tmp_path / "run", seed=4)
    row = trials(tmp_path / "run")[17]
    recipe = configure(tailorvit.config.parse_recipe((tmp_path / "run" / "recipe.toml").read_text(), "recipe"))
    space = tailorvit.space.Space.from_dict(recipe.space)
    seed = untrained_module.derive(4, "untrained") % 2**31
    (alone,) = Scorer(space, settings=ProxySettings((recipe.proxy.name,)), seed=seed)([row["arch"]])
    assert alone.scores["dss"] == pytest.approx(row["score"], rel=1e-6)
    assert alone.parts["dss"] == pytest.approx(row["parts"]["dss"], rel=1e-6)


def test_a_plain_s4_recipe_runs_under_this_method(tmp_path):
    result = go(tmp_path / "run", recipe="s4-digits", method="tf-tas")
    assert result["method"] == "tf-tas" and result["final"] == "retrain", "its final.how has nothing to inherit from"
    assert len(result["spaces"]) == 1 and {t["stage"] for t in trials(tmp_path / "run", None)} == {"score"}


def test_images_come_from_the_training_split(tmp_path, monkeypatch):
    passed = []
    inner = untrained_module.Scorer
    monkeypatch.setattr(untrained_module, "Scorer", lambda *a, **k: passed.append(k["images"]) or inner(*a, **k))
    go(tmp_path / "run", "proxy.name=snip", "proxy.candidates=3")
    (images, labels) = passed[0]
    assert images.shape == (64, 1, 8, 8) and len(set(labels.tolist())) > 5, "in random order, so of many classes"


# -- evolution --------------------------------------------------------------------------------------------------------


def test_evolution_has_the_score_as_fitness(tmp_path):
    sets = ["proxy.evolution=true", "search.population=8", "search.generations=3", "proxy.candidates=100"]
    result = go(tmp_path / "run", *sets, "search.crossover=3", "search.mutation=3", "search.parents=2")
    rows = trials(tmp_path / "run")
    assert len({r["arch"] for r in rows}) == len(rows) and {r["generation"] for r in rows} == {0, 1, 2, 3}
    assert result["score"] == max(r["score"] for r in rows) and result["proxy"]["evolution"]
    for generation in (1, 2, 3):
        old = [r for r in rows if r["generation"] < generation]
        best = {r["arch"] for r in sorted(old, key=lambda r: (-r["score"], r["params"]))[:2]}
        bred = [set(r["parents"]) for r in rows if r["generation"] == generation and r["parents"]]
        assert bred and all(parents <= best for parents in bred)


def test_evolution_keeps_the_budget(tmp_path):
    go(tmp_path / "run", "proxy.evolution=true", "proxy.candidates=15")
    assert len(trials(tmp_path / "run")) == 12, "two generations of six; a third would be over"


# -- what has no score ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("evolution", ["false", "true"])
def test_what_has_no_score_never_wins(tmp_path, made_up, evolution):
    """The largest would win, but its score is not finite, or it is refused."""

    def measure(task):
        if task.params > 9_000:
            if task.params % 2:
                raise Refused("Too odd.")
            return {"score": math.inf if task.params % 4 else math.nan}
        return {"score": float(task.params)}

    made_up("big", measure)
    sets = ["proxy.name=big", f"proxy.evolution={evolution}"]
    result = go(tmp_path / "run", *sets)
    rows = trials(tmp_path / "run")
    lost = [r for r in rows if r["score"] is None]
    assert 0 < len(lost) < len(rows) and result["proxy"]["without_score"] == len(lost)
    assert all(r["problems"]["big"] for r in lost)
    assert result["params"] == max(r["params"] for r in rows if r["score"] is not None)
    (warning,) = [t for t in events(tmp_path / "run", "warning") if "no score" in t]
    assert warning.startswith(f"{len(lost)} of {len(rows)} architectures have no score and cannot be chosen")


def test_nothing_with_a_score_is_an_error_before_training(tmp_path, made_up):
    made_up("none", lambda task: {"score": math.nan})
    with pytest.raises(TailorError, match=r"None of 24 architectures has a score by none: none is nan"):
        go(tmp_path / "run", "proxy.name=none")
    with Run.open(tmp_path / "run", lock=False) as run:
        assert run.epochs() == []


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"name": "dsss"}, r"Unknown proxy 'dsss'\. Did you mean 'dss.*'\? Known: .*dss.*naswot"),
        ({"name": ["dss"]}, r"proxy\.name cannot be \['dss'\]"),
        ({"candidates": 0}, r"proxy\.candidates must be at least 1, not 0"),
        ({"band": 0}, r"proxy\.band must lie above 0"),
        ({"evolution": True, "name": "te"}, "te ranks candidates within one set"),
    ],
)
def test_mistakes_are_refused_before_the_run(table, match):
    with pytest.raises(TailorError, match=match):
        configure({"method": "tf-tas", "proxy": table})


# -- sizes ------------------------------------------------------------------------------------------------------------


class LimitedSession:
    """The part of a session that limits need."""

    def __init__(self, space, **limits):
        self.limits, self.device, self.said = Limits.of(**limits), "cpu", []
        self.meter, self.run = Meter.for_space(space, self.limits), type("Run", (), dict.fromkeys(["measured"]))
        self.measuring = {"device": "cpu"}
        self.run.record_measured = None

    def log_once(self, kind, text):
        self.said.append((kind, text))


def test_an_upper_limit_alone_makes_a_band():
    space = tailorvit.named_space("vit-8px")
    one = LimitedSession(space, max_params="60k")
    assert size_band(one, space, 0.2).limits.to_dict() == {"params": {"min": 48e3, "max": 60e3}}
    assert "params from 48k to 60k" in one.said[0][1] and one.said[0][0] == "band"
    wide = LimitedSession(space, max_params="1M")  # the largest architecture has fewer: the band is below it
    most = wide.meter.cost("params", space.largest())
    assert size_band(wide, space, 0.2).limits.to_dict()["params"]["min"] == pytest.approx(0.8 * most)
    assert size_band(wide, space, 1.0) is wide.meter, "1: no band"
    both = LimitedSession(space, max_params="60k", min_params="10k")
    assert size_band(both, space, 0.2) is both.meter and both.said == []
    macs = LimitedSession(space, max_macs="1M", max_latency="1s")
    assert size_band(macs, space, 0.5).limits.to_dict()["macs"] == {"min": 5e5, "max": 1e6}
    free = LimitedSession(space)
    assert size_band(free, space, 0.2) is free.meter and "largest networks will win" in free.said[0][1]


# -- interrupted ------------------------------------------------------------------------------------------------------


def state(folder) -> dict:
    result = json.loads((folder / "result.json").read_text())
    result.pop("seconds")
    for key in ("seconds", "per_second"):
        result["proxy"].pop(key)
    with Run.open(folder, lock=False) as run:
        messages = [(e["kind"], e["text"]) for e in run.events() if e["kind"] not in ("resume", "interrupted")]
        tables = run.trials(), run.spaces(), run.decisions(), messages
    return {"result": result, "tables": tables, "weights": (folder / "network" / "network.safetensors").read_bytes()}


@pytest.mark.parametrize(
    "sets", [[], ["proxy.evolution=true"], ["proxy.name=te"]], ids=["sampled", "evolved", "ranked"]
)
def test_interrupted_it_scores_nothing_twice_and_ends_the_same(tmp_path, monkeypatch, sets):
    monkeypatch.setattr(untrained_module, "CHUNK", 5)
    scored, stop_at = [], [None]
    inner = Scorer._one

    def one(self, arch):
        scored.append(arch)
        if len(scored) == stop_at[0]:
            raise KeyboardInterrupt
        return inner(self, arch)

    monkeypatch.setattr(Scorer, "_one", one)
    go(tmp_path / "whole", *sets)
    whole = len(scored)
    scored.clear()
    stop_at[0] = 9
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", *sets)
    stored = len(trials(tmp_path / "cut"))
    assert stored == 5 or "proxy.evolution=true" in sets
    stop_at[0] = None
    tailorvit.resume(tmp_path / "cut", progress="quiet")
    assert len(scored) == 9 + whole - stored, "only the group that was cut short is scored again"
    assert state(tmp_path / "cut") == state(tmp_path / "whole")
    monkeypatch.setattr(team, "train", None)
    assert tailorvit.resume(tmp_path / "cut", progress="quiet")["arch"]


def test_the_recipes_are_what_they_say():
    tftas, seek = configure(read_recipe("tftas-digits")), configure(read_recipe("s4-dss-digits"))
    assert (tftas.method, tftas.proxy.name, seek.method, seek.seek.evaluator) == ("tf-tas", "dss", "s4", "dss")


# -- older run folders ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "name"),
    [
        ({"names": ["naswot"], "reading": "paper"}, "naswot"),
        ({"names": ["dss", "snip"], "reading": "fixed"}, "dss"),
        ({"names": ["dss"], "reading": "official"}, "dss_official"),
        ({"reading": "paper"}, "dss_paper"),
        ({}, "dss"),
    ],
)
def test_recipes_of_older_runs_are_read(old, name):
    recipe = {"method": "tf-tas", "proxy": {"candidates": 7, **old}}
    assert configure(modernised(recipe, "0.1.0")).proxy == UntrainedSettings(name, 7)
    seek = {"evaluator": "dss", "reading": old.get("reading", "fixed")}
    wanted = {"fixed": "dss", "paper": "dss_paper", "official": "dss_official"}[seek["reading"]]
    assert configure(modernised({"seek": seek}, "0.1.0")).seek.evaluator == wanted


def test_scores_stored_under_another_name_are_computed_again(tmp_path, monkeypatch):
    """A run cut short with reading = "official" holds scores of the proxy that was then called dss."""
    go(tmp_path / "whole", "proxy.name=dss_official")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

        def stop(*_):
            raise KeyboardInterrupt

        patch.setattr(untrained_module, "finish", stop)
        go(tmp_path / "cut", "proxy.name=dss_official")
    with Run.open(tmp_path / "cut") as run:
        old = [{**t, "proxy": "dss", "scores": {"dss": t["scores"]["dss_official"]}} for t in run.trials("score")]
        run.record_trials("score", old)
    tailorvit.resume(tmp_path / "cut", progress="quiet")
    assert trials(tmp_path / "cut") == trials(tmp_path / "whole")
