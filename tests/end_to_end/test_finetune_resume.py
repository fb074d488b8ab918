"""A fine-tuning that is killed and resumed ends exactly as the uninterrupted one, also when its source has gone."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

SETS = ["train.checkpoint_seconds=0", "train.epochs=3", "train.lr=1e-3", "analysis.images=0", "analysis.mistakes=0"]
KINDS = {"adamw": [], "sgd": ["train.optimizer=sgd", "train.lr=1e-2", "train.drop_path=0.1"]}


@pytest.fixture(scope="module")
def base(forks, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "run"
    sets = ["arch={depth=2, embed=16, heads=2, mlp=2}", "baseline=false"]
    code, _ = forks.do("run", "s4-digits", method="fixed", out=str(folder), tiny=True, settings=sets)
    assert code == 0, forks.said()
    return folder


def job(source: Path, folder: Path, kind: str) -> dict:
    return {
        "args": (str(source),),
        "options": {
            "data": "digits",
            "image_size": 10,
            "out": str(folder),
            "tiny": True,
            "seed": 3,
            "settings": [*SETS, *KINDS[kind]],
        },
    }


def outcome(folder: Path) -> dict:
    result = json.loads((folder / "result.json").read_text())
    result.pop("seconds")
    result["start"].pop("network")  # a place
    return {"result": result, "weights": (folder / "network" / "network.safetensors").read_bytes()}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_killed_in_every_part(forks, base, tmp_path, kind):
    whole = job(base, tmp_path / "whole", kind)
    code, writes = forks.do("finetune", *whole["args"], **whole["options"])
    assert code == 0, forks.said()
    reference = outcome(tmp_path / "whole")
    copied = next(i for i, w in enumerate(writes) if w == "after file network.json") + 1
    epochs = [i + 1 for i, w in enumerate(writes) if w.startswith("after epochs final")]
    assert len(epochs) == 3
    # After the second epoch; within the copy of the source, right after it, before the result.
    moments = [epochs[1] + 2, copied - 2, copied, writes.index("before file result.json") + 1]
    for number, moment in enumerate(moments if kind == "adamw" else moments[:1]):
        source, folder = tmp_path / f"source-{number}", tmp_path / f"run-{number}"
        shutil.copytree(base, source)
        mine = job(source, folder, kind)
        code, _ = forks.do("finetune", *mine["args"], moment=moment, **mine["options"])
        assert code == -signal.SIGKILL
        if moment >= copied:
            shutil.rmtree(source)
        assert forks.do("resume", str(folder))[0] == 0, forks.said()
        assert outcome(folder) == reference, moment
