"""Search for the task: the best networks of a run's search are tried on it, within limits of the whole network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from tailorvit import api, downstream
from tailorvit.errors import TailorError
from tailorvit.families import family
from tailorvit.methods.stages import load_weights
from tailorvit.report import write_report
from tailorvit.runs import Run
from tailorvit.tasks.candidates import candidates_of
from tailorvit.tasks.work import TaskConfig

FEW = {"train.epochs": 2, "train.checkpoint_seconds": 0, "beside": False, "candidate_share": 0.5}


@pytest.fixture(scope="module")
def searched(tmp_path_factory) -> Path:
    """A finished AutoFormer run of seconds."""
    folder = tmp_path_factory.mktemp("searched") / "run"
    sets = ["train.epochs=1", "final.how=inherit", "analysis.images=0", "analysis.mistakes=0", "analysis.samples=2"]
    api.run("autoformer-digits", tiny=True, settings=sets, baseline=None, out=folder, progress="quiet")
    return folder


def config(folder: Path, count: int) -> TaskConfig:
    return TaskConfig("x", str(folder), candidates=count)


def test_candidates_are_the_searchs_best_with_the_supernets_weights(searched):
    found = candidates_of(config(searched, 3))
    assert len(found) == 3 and found[0].name.startswith("number 1 of the search (")
    with Run.open(searched, lock=False) as run:
        delivered = run.read_json("result")["arch"]
        rows = [row for row in run.trials("search") if row["arch"].to_dict() != delivered]
        space, tensors = run.spaces()[-1]["space"], run.load_checkpoint("supernet-0")[0]
        archs = [row["arch"] for row in run.trials("search")]
    ordered = sorted((row["accuracy"] for row in rows), reverse=True)
    assert [f.name.partition("(")[2] for f in found] == [f"{value:.2f} %)" for value in ordered[:3]]
    assert len({str(f.plain) for f in found}) == 3
    supernet = family(space.family).supernet(space, 0.0)
    load_weights(supernet, tensors)
    x = torch.randn(2, 1, 8, 8)
    plain = family(space.family).plain.from_settings(found[0].plain["settings"])
    plain.load_state_dict(found[0].state)
    with torch.no_grad():
        mine = plain.eval()(x)
        theirs = [supernet.eval()(x, arch) for arch in archs]
    assert min(float((mine - y).abs().max()) for y in theirs) < 1e-4


def test_the_best_on_the_task_goes_on(searched, pictures, tmp_path, toy):
    out = tmp_path / "run"
    result = downstream.work(
        toy.name, searched, data=pictures, out=out, candidates=2, settings=FEW, seed=1, progress="quiet"
    )
    rows = result["candidates"]
    assert len(rows) == 3 and sum(row["chosen"] for row in rows) == 1 and rows[0]["name"] == str(searched)
    scores = [row["search"]["close"] for row in rows]
    assert rows[scores.index(max(scores))]["chosen"] and all(row["epochs"] == 1 for row in rows)
    chosen = next(row for row in rows if row["chosen"])
    assert result["network"]["name"] == chosen["name"] and result["params"] == chosen["params"]
    assert sum("candidate" in line for line in result.summary()) == 3
    page = write_report(out).read_text()
    assert "<h3>Candidates</h3>" in page and "(chosen)" in page
    (out / "result.json").unlink()
    again = downstream.resume(out, progress="quiet")
    assert again["candidates"] == rows and again["test"] == result["test"]


def test_limits_of_the_whole_leave_candidates_out(searched, pictures, tmp_path, toy):
    every = downstream.work(
        toy.name, searched, data=pictures, out=tmp_path / "a", candidates=3, settings=FEW, progress="quiet"
    )["candidates"]
    sizes = sorted({row["params"] for row in every})
    assert len(sizes) > 1, "networks of one size cannot show it"
    smaller = downstream.work(
        toy.name,
        searched,
        data=pictures,
        out=tmp_path / "b",
        candidates=3,
        max_params=sizes[0],
        settings=FEW,
        progress="quiet",
    )
    assert smaller["params"] == sizes[0]
    assert all(row["params"] <= sizes[0] for row in smaller.get("candidates", ()))


def test_a_run_without_candidates_is_refused(searched, net, tmp_path):
    with pytest.raises(TailorError, match="come from a finished run"):
        candidates_of(config(net, 2))
    bare = tmp_path / "bare"
    shutil.copytree(searched, bare)
    shutil.rmtree(bare / "checkpoints")
    with pytest.raises(TailorError, match="no longer in its checkpoints"):
        candidates_of(config(bare, 2))
    recipe = bare / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('method = "autoformer"', 'method = "fixed"'))
    with pytest.raises(TailorError, match="is a run of method 'fixed'"):
        candidates_of(config(bare, 2))
    assert json.loads((searched / "result.json").read_text())["method"] == "autoformer"
