"""Searches without training that are killed and resumed end exactly as the uninterrupted ones."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tailorvit.runs import Run

SETS = ["train.checkpoint_seconds=0", "train.epochs=2", "baseline=false", "analysis.images=0", "analysis.mistakes=0"]
SIZES = ["limits.min_params=6000", "limits.max_params=12000"]
KINDS = {
    "drawn": ("tftas-digits", SIZES),
    "evolved": ("tftas-digits", [*SIZES, "proxy.evolution=true", "search.generations=3", "proxy.candidates=40"]),
    "s4": ("s4-dss-digits", ["s4.pairs=3"]),
}


def options(folder: Path, kind: str) -> dict:
    recipe, sets = KINDS[kind]
    return {"recipe": recipe, "out": str(folder), "tiny": True, "settings": [*SETS, *sets], "seed": 3}


def outcome(folder: Path) -> dict:
    """Everything a run found, without times."""
    result = json.loads((folder / "result.json").read_text())
    result.pop("seconds")
    assert result["proxy"].pop("seconds") > 0 and result["proxy"].pop("per_second") > 0
    with Run.open(folder, lock=False) as run:
        tables = [run.trials(), run.spaces(), run.slopes(), run.decisions()]
        messages = [(e["kind"], e["text"]) for e in run.events() if e["kind"] != "resume"]
    weights = (folder / "network" / "network.safetensors").read_bytes()
    return {"result": result, "tables": tables, "messages": messages, "weights": weights}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_killed_between_any_two_parts(forks, tmp_path, kind):
    code, writes = forks.do("run", **options(tmp_path / "whole", kind))
    assert code == 0, forks.said()
    reference = outcome(tmp_path / "whole")
    scored = [i + 1 for i, w in enumerate(writes) if " trials " in w]
    assert len(scored) >= 4 and any("epochs final" in w for w in writes[scored[-1] :])
    assert not any("epochs" in w for w in writes[: scored[-1]]), "nothing is trained before all is scored"
    # Before and after the first rows and the last; within the last training; before the result.
    middle = next(i for i, w in enumerate(writes) if w.startswith("after epochs final")) + 1
    for number, moment in enumerate([scored[0], scored[1], scored[-2], middle]):
        folder = tmp_path / f"run-{number}"
        assert forks.do("run", moment=moment, **options(folder, kind))[0] == -signal.SIGKILL
        assert forks.do("resume", str(folder))[0] == 0, forks.said()
        assert outcome(folder) == reference, moment
