"""S3 as a run: what it stores, what a later session of the same run finds, warm starts, and going back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tailorvit.config import configure
from tailorvit.costs import Meter
from tailorvit.data import open_data
from tailorvit.families import family, named_space
from tailorvit.methods import team
from tailorvit.methods.feasibility import require_feasible
from tailorvit.methods.s3 import distinct_choices, s3
from tailorvit.methods.session import Plan, Session, Supernet
from tailorvit.progress import Progress
from tailorvit.report import collect
from tailorvit.report.space import figures
from tailorvit.runs import Run
from tailorvit.search import Candidate
from tailorvit.space import Dim, Space
from tailorvit.tiny import tiny

SPACE = family("vit").shrink(named_space("vit-8px"))
METER = Meter.for_space(SPACE)
RECIPE = {
    "method": "s3",
    "baseline": False,
    "train": {"epochs": 2, "batch": 50, "warmup": 0, "augment": "none"},
    "search": {"population": 4, "parents": 2, "generations": 1, "crossover": 1, "mutation": 1},
    "analysis": {"samples": 3, "images": 0, "mistakes": 0},
    "final": {"how": "inherit"},
    "s3": {"samples": 5, "top": 2, "max_shift": 1},
}


@pytest.fixture
def sessions(tmp_path):
    """A function that opens the run's next session, as a resumed process would."""
    Run.create(tmp_path / "run", "", {}).close()
    opened = []

    def make(limits=None, **changes) -> Session:
        while opened:
            opened.pop().close()
        run = Run.open(tmp_path / "run")
        opened.append(run)
        tables = {k: {**RECIPE[k], **v} for k, v in changes.items()}
        config = configure({**RECIPE, **tables, "limits": limits or {}})
        data = open_data("digits", limit=100)  # anew: a finished run has opened its test split
        return Session(Plan(config, data, SPACE, config.budget(), "cpu"), run, Progress())

    yield make
    while opened:
        opened.pop().close()


def larger_is_better(net, stage, source):
    """Accuracies that grow with the parameters, stored as the real ones are."""
    real = net.score

    def accuracies(archs):
        real(stage, [Candidate(a, source) for a in archs])
        return [METER.cost("params", a) / 1000 for a in archs]

    return accuracies


@pytest.fixture
def growing(monkeypatch):
    monkeypatch.setattr(Supernet, "accuracies", larger_is_better)


def tables(run):
    return run.trials(), run.spaces(), run.slopes(), run.decisions(), [e["text"] for e in run.events("decision")]


def test_what_a_run_stores_and_a_second_session_finds(sessions, monkeypatch):
    one = sessions()
    result = s3(one)
    decisions, spaces = one.run.decisions(), one.run.spaces()
    assert 1 <= len(decisions) <= 2 and all(d["sentence"].startswith(f"Step {i}:") for i, d in enumerate(decisions))
    assert [s["step"] for s in spaces] == list(range(len(spaces))) and result["backtracks"] == 0
    stages = {t["stage"] for t in one.run.trials()}
    assert stages == {"search", *(f"edf-{t}" for t in range(len(spaces))), *(f"et-{t}" for t in range(len(decisions)))}
    rows = [r for r in one.run.slopes() if r["t"] == 0]
    assert [r["dim"] for r in rows] == list(SPACE.keys)
    for row in rows:
        assert row["kind"] == "et" and row["choices"] == list(SPACE[row["dim"]].choices)
        assert len(row["errors"]) == len(row["choices"]) and row["k"] == decisions[0]["gamma"][row["dim"]]
        assert all(row["counts"]) and len(row["fit"]) == 2
    et = [t for t in one.run.trials() if t["stage"] == "et-0"]
    assert {t["source"] for t in et} == {"et"} and len(et) <= 5 * sum(len(d.choices) for d in SPACE.dims)
    assert {"et-0", "edf-0", "supernet-0", "search"} <= set(one.run.seconds())

    monkeypatch.setattr(team, "train", None)  # any training would fail
    two = sessions()
    before = tables(two.run)
    assert {**s3(two), "seconds": 0} == {**result, "seconds": 0} and tables(two.run) == before

    drawn = {f.key: f for f in figures(collect(two.run.folder))}
    assert {"fits-0", "edf"} <= set(drawn)
    assert {row[1] for row in drawn["fits-0"].rows} == set(SPACE.keys)


def test_warm_starts_train_half_as_long(sessions, growing):
    one = sessions(s3={"warm_start": True, "updates": 1}, train={"epochs": 4})
    s3(one)
    assert [len(one.run.epochs(f"supernet-{t}")) for t in (0, 1)] == [4, 2]


@pytest.mark.parametrize("warm", [False, True])
def test_going_back_searches_an_earlier_space_with_its_own_supernet(sessions, growing, warm):
    up = [SPACE.shift(dict.fromkeys(SPACE.keys, k)) for k in range(3)]
    limit = 1.05 * METER.cost("params", up[1].smallest())
    assert limit < METER.cost("params", up[2].smallest())
    one = sessions({"max_params": limit}, s3={"warm_start": warm})
    result = s3(one)
    spaces = one.run.spaces()
    back = result["backtracks"]
    assert back in (1, 2) and [s["step"] for s in spaces] == [0, 1, 2, 2 - back]
    assert spaces[-1]["space"] == spaces[2 - back]["space"]
    assert [d["kind"] for d in one.run.decisions()] == ["move", "move", "backtrack"]
    assert one.run.decisions()[-1]["backtracks"] == back
    found = [t["arch"] for t in one.run.trials() if t["stage"] == "search"]
    assert found and all(spaces[-1]["space"].contains(a) and METER.cost("params", a) <= limit for a in found)
    assert not one.run.epochs("supernet-2"), "sizes are counted, so the last supernet is never trained"
    trained = [len(one.run.epochs(f"supernet-{t}")) for t in (0, 1)]
    assert trained == ([2, 1] if warm else [2, 2])


def test_choices_cut_to_the_same_window_are_one():
    dims = (Dim("depth", (1, 2)), Dim("window", (7, 14, 21), "block"))
    space = Space("any", dims)

    def outline(_shared, arch):
        return [{"block": i, "window": min(w, 14)} for i, w in enumerate(arch.many("window"))]

    fake = SimpleNamespace(family=SimpleNamespace(outline=outline), meter=Meter.for_space(SPACE))
    distinct = distinct_choices(fake)
    assert list(distinct(space, dims[1])) == [7, 14, 14] and list(distinct(space, dims[0])) == [1, 2]


def test_no_two_choices_of_the_vit_are_the_same(sessions):
    distinct = distinct_choices(sessions())
    for dim in SPACE.dims:
        assert tuple(distinct(SPACE, dim)) == dim.choices


def test_s3_trains_a_sandwich_by_default():
    assert configure({"method": "s3"}).train.rule == "sandwich"
    assert configure({"method": "s3", "train": {"rule": "single_path"}}).train.rule == "single_path"


def test_the_tiny_form_is_small_and_bounded():
    small = configure(tiny({"method": "s3", "s3": {"updates": 7, "samples": 900}}, own_data=False)).s3
    assert (small.updates, small.samples, small.max_shift) == (2, 6, 1)
    assert configure(tiny({"method": "s3", "s3": {"updates": 0}}, own_data=False)).s3.updates == 0


def test_a_first_space_over_the_limit_is_refused_before_any_training():
    config = configure({"method": "s3", "limits": {"max_params": 100}})
    with pytest.raises(Exception, match="No architecture of the space has params <= 100"):
        require_feasible(config, SPACE, Meter.for_space(SPACE, config.budget()))
