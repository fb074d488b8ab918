"""Trials as studies of optuna: opened again with optuna itself."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from tailorvit import cli
from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.optuna_trials import genes, write_optuna
from tailorvit.runs import Run
from tailorvit.space import Dim, Space

optuna = pytest.importorskip("optuna")

FIRST = Space("vit", (Dim("depth", (1, 2)), Dim("embed", (16, 24, 32)), Dim("mlp", (3, 3.5, 4), "block")))
LAST = Space("vit", (Dim("depth", (2, 3)), Dim("embed", (16, 24, 48)), Dim("mlp", (3, 3.5, 4), "block")))


def vit(depth: int, embed: int, *mlp: float) -> Arch:
    return Arch("vit", depth=depth, embed=embed, mlp=mlp)


def trial(arch: Arch, accuracy: float | None, params: int, **more) -> dict:
    return {"arch": arch, "accuracy": accuracy, "params": params, "macs": 2 * params, **more}


@pytest.fixture
def folder(tmp_path):
    """A run with two spaces, trials of both, and one whose accuracy is not a number."""
    with Run.create(tmp_path / "photos", '[search]\nname = "evolution"\n', {}) as run:
        run.record_space(0, FIRST, step=0)
        run.record_space(1, LAST, step=1)
        run.record_trials("edf-0", [trial(vit(2, 16, 3, 4), 20.0, 5, source="sample")])
        rows = [trial(vit(2, 16, 3, 3.5), 61.0, 10, source="random", generation=0)]
        rows += [trial(vit(3, 48, 3, 4, 4), 64.0, 30, source="cross", generation=2, costs={"latency": 0.25})]
        rows += [trial(vit(2, 24, 3, 3), float("nan"), 12)]
        run.record_trials("search", rows)
    return tmp_path / "photos"


def opened(path, name):
    return optuna.load_study(study_name=name, storage=f"sqlite:///{path}")


def test_values_parameters_and_the_best_trial(folder, tmp_path):
    out = tmp_path / "new" / "trials.db"
    assert write_optuna([folder], out) == {"photos/edf-0": 1, "photos/search": 3}
    study = opened(out, "photos/search")
    assert [d.name for d in study.directions] == ["MAXIMIZE"] and study.user_attrs == {"values": ["accuracy"]}
    first, best, broken = study.trials
    assert (first.value, best.value) == (61.0, 64.0) and broken.state.name == "FAIL"
    assert study.best_trial.number == 1
    assert first.params == {"depth": 2, "embed": 16, "mlp block 1": 3.0, "mlp block 2": 3.5}
    assert best.params == {"depth": 3, "embed": 48, "mlp block 1": 3.0, "mlp block 2": 4.0, "mlp block 3": 4.0}
    wanted = {"params": 30, "macs": 60, "latency": 0.25, "source": "cross", "generation": 2}
    assert best.user_attrs == {**wanted, "arch": vit(3, 48, 3, 4, 4).to_dict()}
    assert [p.name for p in out.parent.iterdir()] == ["trials.db"], "nothing is left beside it"


def test_parameters_have_the_choices_of_their_space(folder, tmp_path):
    write_optuna([folder], tmp_path / "trials.db")
    ints, floats = optuna.distributions.IntDistribution, optuna.distributions.FloatDistribution
    found = opened(tmp_path / "trials.db", "photos/search").trials[0].distributions
    assert found["depth"] == ints(2, 3) and found["mlp block 1"] == floats(3, 4, step=0.5)
    assert found["embed"] == optuna.distributions.CategoricalDistribution((16, 24, 48)), "gaps of 8 and 24"
    earlier = opened(tmp_path / "trials.db", "photos/edf-0").trials[0].distributions
    assert earlier["depth"] == ints(1, 2) and earlier["embed"] == ints(16, 32, step=8)


def test_a_search_by_accuracy_and_cost_has_two_directions(tmp_path):
    with Run.create(tmp_path / "two", '[search]\nname = "nsga2"\ncost = "macs"\n', {}) as run:
        archs = vit(1, 16, 3), vit(1, 24, 3), vit(1, 32, 3)
        run.record_trials("search", [trial(a, p, m) for a, p, m in zip(archs, (50.0, 70.0, 60.0), (5, 9, 11))])
    write_optuna([tmp_path / "two"], tmp_path / "trials.db")
    study = opened(tmp_path / "trials.db", "two/search")
    assert [d.name for d in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert study.user_attrs["values"] == ["accuracy", "macs"]
    assert [t.values for t in study.best_trials] == [[50.0, 10.0], [70.0, 18.0]]


def test_scores_and_several_families(tmp_path):
    with Run.create(tmp_path / "free", "", {}) as run:
        other = Arch("swin", **{"depth.1": 2, "embed.1": 24})
        run.record_trials("pool", [trial(vit(1, 16, 3), None, 5, score=1.5), trial(other, None, 6, score=2.5)])
    write_optuna([tmp_path / "free"], tmp_path / "trials.db")
    study = opened(tmp_path / "trials.db", "free/pool")
    assert study.user_attrs["values"] == ["score"] and study.best_value == 2.5
    assert study.best_params == {"family": "swin", "depth.1": 2, "embed.1": 24}
    assert genes(other) == study.best_params


def test_several_runs_of_one_name_and_the_command(folder, tmp_path):
    same = tmp_path / "elsewhere" / "photos"
    with Run.create(same, "", {}) as run:
        run.record_trials("search", [trial(vit(1, 16, 3), 30.0, 5)])
    out = tmp_path / "both.db"
    done = CliRunner().invoke(cli.app, ["compare", str(folder), str(same), "--to", "optuna", "--out", str(out)])
    assert done.exit_code == 0 and "  photos/search: 3 trials" in done.output.splitlines(), done.output
    names = optuna.get_all_study_names(f"sqlite:///{out}")
    assert sorted(names) == sorted(["photos/edf-0", "photos/search", f"{same.resolve()}/search"])


def test_refusals(folder, tmp_path, monkeypatch):
    (tmp_path / "there.db").write_text("mine")
    with pytest.raises(TailorError, match=r"there.db' is there already"):
        write_optuna([folder], tmp_path / "there.db")
    assert (tmp_path / "there.db").read_text() == "mine"
    with Run.create(tmp_path / "empty", "", {}):
        pass
    with pytest.raises(TailorError, match="has no trials"):
        write_optuna([tmp_path / "empty"], tmp_path / "new.db")
    with pytest.raises(TailorError, match="is not a run folder"):
        write_optuna([tmp_path / "nowhere"], tmp_path / "new.db")
    for words, sentence in ((["--to", "optuna"], "--out trials.db"), (["--to", "optun"], "Did you mean 'optuna'")):
        found = CliRunner().invoke(cli.app, ["compare", str(folder), *words])
        assert sentence in str(found.exception), words
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(TailorError, match=r"pip install 'tailorvit\[optuna\]'"):
        write_optuna([folder], tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()
