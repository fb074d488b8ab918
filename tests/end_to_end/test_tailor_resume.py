"""A pretrained network that is tailored, killed and resumed ends exactly as without a kill, its source gone or not."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tailorvit.checkpoints.starts import open_pretrained
from tailorvit.errors import TailorError
from tailorvit.report import write_report
from tailorvit.runs import Run

SETS = ["train.checkpoint_seconds=0", "final.train.checkpoint_seconds=0", "analysis.images=0", "analysis.mistakes=0"]
SETS += ["train.drop_path=0.1", "final.train.drop_path=0.1"]
# What is being written when the run is killed.
MOMENTS = {
    "start": "file pretrained.safetensors",
    "whole": "epochs whole",
    "ordered, before its weights": "file ordered",
    "ordered, before its facts": "stages ordered",
    "baseline": "epochs baseline",
    "size, its training": "epochs final-12k",
    "final": "epochs final",
    "choice": "stages choice",
    "size, its network": "file network.safetensors",
    "result": "file result.json",
}
COPIED = list(MOMENTS).index("whole")
SEARCHED = {"supernet": "epochs supernet-0", "search": "trials search"}  # where a supernet is searched
SWIN = ("whole", "ordered, before its weights", "ordered, before its facts", "size, its training", "final", "result")
BESIDE = {"slimmed": "epochs peer-uniform-slimming", "fresh": "epochs peer-training-from-scratch"}
TRIED = {"training": "epochs shape-1", "trial": "trials shape-1", "result": "stages shape-1 accuracy"}  # of a shape


@pytest.fixture
def source(tmp_path) -> Path:
    return weights(tmp_path / "start.safetensors")


def weights(path: Path) -> Path:
    """A weight file by timm's names."""
    state = open_pretrained("random:tiny").state
    save_file(dict(state), path)
    return path


def options(source: Path, folder: Path, *sets: str) -> dict:
    return {
        "recipe": "tailor",
        "start": f"{source}#heads=3",
        "max_params": "18k",
        "front": "12k",
        "out": str(folder),
        "tiny": True,
        "seed": 3,
        "settings": [*SETS, *sets],
    }


def outcome(folder: Path) -> dict:
    """Everything a run found, without times and places."""
    result = json.loads((folder / "result.json").read_text())
    result.pop("seconds")
    for peer in result["peers"]:
        peer.pop("seconds")
    result["whole"].pop("network")
    plan = result.pop("plan", {})  # how long things took differs; how long they are does not
    result |= {k: plan[k] for k in ("factor", "whole_epochs", "final_epochs") if plan}
    with Run.open(folder, lock=False) as run:
        tables = {
            "trials": run.trials(),
            "spaces": run.spaces(),
            "epochs": [{k: v for k, v in e.items() if k != "images_per_second"} for e in run.epochs()],
        }
    places = {name: folder / name / "network.safetensors" for name in ("network", "front/12k")}
    return {"result": result, **{name: path.read_bytes() for name, path in places.items()}, **tables}


@pytest.fixture(scope="module")
def whole(forks, tmp_path_factory):
    """The uninterrupted run, with the writes it made."""
    folder = tmp_path_factory.mktemp("whole")
    code, writes = forks.do("run", **options(weights(folder / "start.safetensors"), folder / "run"))
    assert code == 0, forks.said()
    return outcome(folder / "run"), writes


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_in_every_stage(forks, whole, source, tmp_path, moment):
    gone = list(MOMENTS).index(moment) >= COPIED  # the run has its own copy by then
    killed_and_resumed(forks, *whole, MOMENTS[moment], options(source, tmp_path / "run"), source if gone else None)


def test_a_swin_killed_in_its_stages(forks, source, tmp_path):
    asked = {**options(source, tmp_path / "whole"), "start": "random:tiny-swin", "max_params": "40k"}
    code, writes = forks.do("run", **asked)
    assert code == 0, forks.said()
    reference = outcome(tmp_path / "whole")
    assert reference["result"]["arch"]["family"] == "tailored-swin"
    for number, moment in enumerate(SWIN):
        again = {**asked, "out": str(tmp_path / str(number))}
        killed_and_resumed(forks, reference, writes, MOMENTS[moment], again, None)


def test_killed_while_a_supernet_is_trained_and_searched(forks, source, tmp_path):
    asked = options(source, tmp_path / "whole", "tailor.search=supernet")
    code, writes = forks.do("run", **asked)
    assert code == 0, forks.said()
    for name, text in SEARCHED.items():
        killed_and_resumed(
            forks, outcome(tmp_path / "whole"), writes, text, {**asked, "out": str(tmp_path / name)}, None
        )


def test_killed_while_shapes_are_tried(forks, source, tmp_path):
    asked = options(source, tmp_path / "whole")
    asked = {**asked, "max_params": None, "max_memory": "4MiB"}
    code, writes = forks.do("run", **asked)
    assert code == 0, forks.said()
    for name, text in TRIED.items():
        killed_and_resumed(
            forks, outcome(tmp_path / "whole"), writes, text, {**asked, "out": str(tmp_path / name)}, None
        )


def test_killed_under_a_budget_of_time(forks, source, tmp_path):
    """Time enough for the most that a plan gives, so that two runs have the same plan."""
    sets = ("tailor.epochs=1", "train.epochs=1", "data.limit=60", "train.batch=20", "device=cpu")
    sets += ("evaluate.throughput=false",)  # a time, which no two runs share
    asked = {**options(source, tmp_path / "whole", *sets), "data": "digits", "tiny": False, "budget": "1h"}
    code, writes = forks.do("run", **asked)
    assert code == 0, forks.said()
    reference = outcome(tmp_path / "whole")
    assert reference["result"]["factor"] == pytest.approx(3) and reference["result"]["final_epochs"] == 3
    for name, text in {"tuned": "epochs whole", "settled": "stages plan-final", "final": "epochs final"}.items():
        killed_and_resumed(forks, reference, writes, text, {**asked, "out": str(tmp_path / name)}, None)


def test_killed_while_others_are_trained_beside(forks, source, tmp_path):
    sets = ("start.beside=true", "baseline=false")
    asked = options(source, tmp_path / "whole", *sets)
    code, writes = forks.do("run", **asked)
    assert code == 0, forks.said()
    for name, text in BESIDE.items():
        killed_and_resumed(
            forks, outcome(tmp_path / "whole"), writes, text, {**asked, "out": str(tmp_path / name)}, None
        )


def killed_and_resumed(forks, reference, writes, text, asked, gone) -> None:
    """Kill a run when it writes this, resume it, and compare."""
    at = [i for i, w in enumerate(writes) if (w.split(" ", 1)[1] + " ").startswith((text + " ", text + "."))]
    assert at, sorted({w.split(" ", 1)[1] for w in writes})
    folder = Path(asked["out"])
    code, seen = forks.do("run", moment=at[len(at) // 2] + 1, **asked)
    assert code == -signal.SIGKILL and text in seen[-1]
    assert "<html" in write_report(folder).read_text(encoding="utf-8")
    if gone is not None:
        gone.unlink()
    assert forks.do("resume", str(folder))[0] == 0, forks.said()
    found = outcome(folder)
    for key in reference:
        assert found[key] == reference[key], key


def test_a_start_that_has_changed_is_refused(forks, whole, source, tmp_path):
    """Killed before the copy was whole: the file is read again, and it must be the one the run began with."""
    _, writes = whole
    at = next(i for i, w in enumerate(writes) if w == "within file pretrained.safetensors") + 1
    folder = tmp_path / "run"
    assert forks.do("run", moment=at, **options(source, folder))[0] == -signal.SIGKILL
    state = load_file(source)
    state["blocks.0.attn.proj.weight"] += 1
    save_file(state, source)
    assert forks.do("resume", str(folder))[0] == 1
    assert "The starting network of this run has changed since the run began" in forks.said()
    source.unlink()
    assert forks.do("resume", str(folder))[0] == 1
    assert TailorError.__name__ in forks.said().splitlines()[-1]
