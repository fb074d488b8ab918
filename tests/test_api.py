"""The calls from Python: what they leave alone, what they return, and how they refuse."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import tailorvit
from tailorvit import api
from tailorvit.errors import TailorError
from tailorvit.lookup import list_runs, run_lines
from tailorvit.methods.stages import StageSink

QUICK_TUNING = {"train.epochs": 1, "data.limit": 60, "analysis.images": 0, "analysis.mistakes": 0}
QUICK = {**QUICK_TUNING, "method": "fixed", "train.batch": 200, "baseline": False, "threads": 1}


def quick(out, **options) -> tailorvit.Result:
    return tailorvit.run(out=out, tiny=True, settings=QUICK, progress="quiet", **options)


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> tailorvit.Result:
    return quick(tmp_path_factory.mktemp("runs") / "done")


# -- what a call leaves alone -----------------------------------------------------------------------------------------


def _global_state() -> list:
    """Everything a run could leave changed in the program that calls it."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    flags = [matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction]
    flags += [cudnn.benchmark, cudnn.deterministic, cudnn.enabled, torch.get_float32_matmul_precision()]
    flags += [torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()]
    legacy = np.random.get_state()  # noqa: NPY002 - the one a run seeds
    return [torch.get_rng_state().tolist(), legacy[1].tolist(), legacy[2:], random.getstate(), flags]


@pytest.fixture
def unusual():
    """State that no run would choose; afterwards as before."""
    with torch.random.fork_rng(devices=[]):
        before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
        reduced = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        torch.manual_seed(12345)
        np.random.seed(12345)  # noqa: NPY002
        random.seed(12345)
        torch.set_num_threads(3)
        torch.set_float32_matmul_precision("medium")
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = not reduced
        yield
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduced
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(before)


def test_generators_flags_and_threads_are_left_as_they_were(unusual, tmp_path, monkeypatch):
    before, inside = _global_state(), []
    inner = StageSink.epoch

    def epoch(self, *rest):
        inside.append(_global_state())
        return inner(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(StageSink, "epoch", epoch)
        found = quick(tmp_path / "run")
    assert _global_state() == before
    assert inside and inside[0][0] != before[0] and inside[0][-1][-1] == 1, "the run had its own seed and threads"
    options = {"tiny": True, "settings": QUICK_TUNING, "progress": "quiet"}
    tailorvit.finetune(found.folder, data="digits", out=tmp_path / "tuned", **options)
    assert _global_state() == before
    (tmp_path / "run" / "result.json").unlink()
    tailorvit.resume(tmp_path / "run", progress="quiet")
    assert _global_state() == before


def test_a_run_that_fails_or_is_stopped_leaves_them_too(unusual, tmp_path, monkeypatch):
    before = _global_state()

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StageSink, "progress", stop)
        quick(tmp_path / "run")
    assert _global_state() == before
    with pytest.raises(TailorError):
        quick(tmp_path / "other", data="nowhere")
    assert _global_state() == before


def test_the_callers_seed_does_not_matter(result, tmp_path):
    torch.manual_seed(99)
    again = quick(tmp_path / "run")
    assert {**again, "seconds": 0} == {**result, "seconds": 0}


# -- the result -------------------------------------------------------------------------------------------------------


def test_a_result_is_a_mapping_of_result_json(result):
    written = json.loads((result.folder / "result.json").read_text())
    assert dict(result) == written and len(result) == len(written) and list(result) == list(written)
    assert "params" in result and "facts" not in result and result.get("nothing", 3) == 3
    assert result["settings"] == result["fixed"], "the key was 'fixed' until version 0.1"


def test_a_result_has_attributes(result):
    assert result.params == result["params"] > 0 and result.test_accuracy == result["test_accuracy"]
    assert {"params", "macs", "test_accuracy", "folder", "summary"} <= set(dir(result))
    with pytest.raises(AttributeError, match=r"the result has no 'parms'; it has method, arch, params, macs,.*"):
        _ = result.parms
    assert not hasattr(result, "_missing") and not hasattr(result, "facts")
    with pytest.raises(KeyError):
        result["parms"]


def test_a_result_prints_what_was_found(result):
    text = repr(result)
    assert text == "\n".join(result.summary())
    assert f"{result.params:,} parameters" in text and str(result.folder) in text


def test_a_result_can_be_copied_and_sent(result):
    import copy
    import pickle

    for other in (copy.copy(result), copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert dict(other) == dict(result) and other.folder == result.folder


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"max_param": "60k"}, {"sets": ["seed=1"]}, {"command": "x"}, {"limits": {}}], ids=str
)
def test_a_wrong_argument_is_pythons_own_error(wrong, tmp_path):
    (name,) = wrong
    with pytest.raises(TypeError, match=rf"^run\(\) got an unexpected keyword argument '{name}'"):
        tailorvit.run(out=tmp_path / "run", **wrong)
    with pytest.raises(TypeError, match=rf"^finetune\(\) got an unexpected keyword argument '{name}'"):
        tailorvit.finetune("network", data="digits", **wrong)
    assert not (tmp_path / "run").exists()


def test_arguments_are_named():
    with pytest.raises(TypeError, match=r"^run\(\) takes from 0 to 1 positional arguments but 2 were given"):
        tailorvit.run("s4-digits", "digits")
    with pytest.raises(TypeError, match=r"^finetune\(\) missing 1 required keyword-only argument: 'data'"):
        tailorvit.finetune("network")


def test_settings_may_be_a_list_or_a_mapping():
    listed = api.recipe_for(settings=["train.epochs=5", "search.generations=2"])
    assert listed == api.recipe_for(settings={"train.epochs": 5, "search.generations": 2})
    assert listed.train.epochs == 5 and listed.search["generations"] == 2


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, {}),
        ({"method": "s3"}, {"method": "s3"}),
        ({"start": "timm:vit"}, {"start": {"network": "timm:vit"}, "method": "tailor"}),
        (
            {"start": "timm:vit", "weights": Path("w.pth")},
            {"start": {"network": "timm:vit", "weights": "w.pth"}, "method": "tailor"},
        ),
        ({"start": "runs/one", "method": "finetune"}, {"start": {"network": "runs/one"}, "method": "finetune"}),
        ({"front": "2M, 4M,"}, {"tailor": {"front": ["2M", "4M"]}}),
        (
            {"start": "auto", "front": ["2M", 4_000_000]},
            {"start": {"network": "auto"}, "tailor": {"front": ["2M", 4_000_000]}, "method": "tailor"},
        ),
    ],
)
def test_a_pretrained_start_is_tailored_unless_told(options, keys):
    assert api.start_options(**options) == keys


def test_a_start_comes_over_the_recipe():
    config = api.recipe_for("s4-digits", start="timm:vit", weights="w.pth", method="s4")
    assert (config.start.network, config.start.weights, config.tailor.front) == ("timm:vit", "w.pth", [])


def test_weights_and_sizes_need_a_start():
    with pytest.raises(TailorError, match=r"start.weights is 'w.pth', but start.network"):
        api.recipe_for(weights="w.pth")
    with pytest.raises(TailorError, match=r"Several sizes \(2M, 4M\) are for a pretrained start"):
        api.recipe_for(front="2M,4M")
    with pytest.raises(TailorError, match="Cannot read 'large'"):
        api.recipe_for(settings={"tailor.front": ["2M", "large"]})


def test_limits_may_be_text_or_numbers():
    for size in ("60k", 60_000, 60e3):
        assert api.recipe_for(limits={"max_params": size}).budget().high("params") == 60_000


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("/usr/bin/tailorvit", "tailorvit run --tiny"),
        ("/site-packages/tailorvit/__main__.py", "tailorvit run --tiny"),
        ("/site-packages/pytest/__main__.py", "pytest run --tiny"),
        ("/home/me/my study.py", "'my study.py' run --tiny"),
    ],
)
def test_a_run_notes_the_program_that_started_it(monkeypatch, program, command):
    monkeypatch.setattr("sys.argv", [program, "run", "--tiny"])
    assert api._command() == command


# -- runs in a folder -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(result, tmp_path_factory):
    """A finished run, an unfinished one that began later, two damaged ones, and what is no run."""
    root = tmp_path_factory.mktemp("shelf")
    for name, started in (("b-done", "2030-01-01T00:00:00"), ("a-half", "2030-01-02T00:00:00")):
        shutil.copytree(result.folder, root / name)
        info = json.loads((root / name / "info.json").read_text())
        (root / name / "info.json").write_text(json.dumps({**info, "started": started}))
    (root / "a-half" / "result.json").unlink()
    for name, info, found in (("odd", "{", "[]"), ("torn", '{"versions": null, "data": 5}', '{"params": 7}')):
        (root / name).mkdir()
        (root / name / "info.json").write_text(info)
        (root / name / "result.json").write_text(found)
    (root / "notes").mkdir()
    (root / "file.txt").write_text("")
    return root


def test_runs_are_listed_oldest_first(runs, result):
    done, half, odd, torn = list_runs(runs)
    assert (done["name"], done["state"], done["method"], done["data"]) == ("b-done", "finished", "fixed", "digits")
    assert (done["params"], done["macs"], done["test_accuracy"]) == (result.params, result.macs, result.test_accuracy)
    assert done["version"] == tailorvit.__version__ and done["folder"] == str(runs / "b-done")
    assert (half["name"], half["state"], half["params"], half["test_accuracy"]) == ("a-half", "unfinished", None, None)
    assert half["started"] > done["started"] and half["method"] == "fixed"
    assert (odd["name"], odd["state"], odd["method"], odd["started"]) == ("odd", "unfinished", None, None)
    assert (torn["name"], torn["params"], torn["data"], torn["version"]) == ("torn", 7, None, None)
    assert tailorvit.list_runs is list_runs


def test_runs_for_people(runs, result, tmp_path):
    done, half, odd, torn = run_lines(runs, list_runs(runs))
    assert done.split()[:3] == ["b-done", "finished", "fixed"] and f"{result.params:,} parameters" in done
    assert done.endswith(f"{result.test_accuracy:.2f} %") and half.split() == ["a-half", "unfinished", "fixed", "-"]
    assert odd.split() == ["odd", "unfinished", "?", "-"] and torn.split()[:4] == ["torn", "finished", "?", "-"]
    assert run_lines(tmp_path, list_runs(tmp_path)) == [f"There are no runs in '{tmp_path}'."]
    with pytest.raises(TailorError, match=r"^There is no folder '.*nowhere'\.$"):
        list_runs(tmp_path / "nowhere")
