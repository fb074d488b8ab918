"""Run folders of version 0.1: they are listed, reported and resumed.

unfinished-0.1.zip was written by version 0.1 and killed while it trained its second supernet:
``tailorvit run --tiny --max-params 4k --set data.limit=150 --set train.epochs=4 --set final.train.epochs=3 ...``.
Resumed on the machine that wrote it, it ended with the weights of version 0.1 to the bit.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

import tailorvit
from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.lookup import list_runs
from tailorvit.methods import session as session_module
from tailorvit.report import collect, write_report
from tailorvit.runs import Run
from tailorvit.space import Space


@pytest.fixture
def folder(tmp_path) -> Path:
    place = tmp_path / "runs" / "old"
    with zipfile.ZipFile(Path(__file__).parent / "unfinished-0.1.zip") as packed:
        packed.extractall(place)
    return place


def contents(folder: Path) -> tuple:
    with Run.open(folder, lock=False) as run:
        return run.trials(), run.epochs(), run.spaces(), run.slopes(0), run.decisions()


def test_an_unfinished_run_is_listed_and_reported(folder):
    (row,) = list_runs(folder.parent)
    assert (row["name"], row["state"], row["version"], row["method"]) == ("old", "unfinished", "0.1.0", "s4")
    page = write_report(folder).read_text(encoding="utf-8")
    facts = collect(folder)
    assert facts.missing == ("The run has not finished: no result yet.",) and "cannot be shown" not in page
    assert len(facts.spaces) == 2 and facts.decisions[0].sentence.startswith("Step 0: moved depth 1-2 -> 2-3,")


def test_an_unfinished_run_is_resumed_to_the_end(folder, monkeypatch):
    trials, epochs, spaces, slopes, decisions = contents(folder)
    assert {t["stage"] for t in trials} == {"edf-0", "slopes-0"}
    assert {e["stage"] for e in epochs} == {"supernet-0", "supernet-1"}
    trained, inner = [], session_module.Session.fit

    def fit(self, model, rule, settings, stage, evaluate=None, **more):
        if not (self.run.load_checkpoint(stage) or ({}, {}))[1].get("done"):
            trained.append(stage)
        return inner(self, model, rule, settings, stage, evaluate, **more)

    monkeypatch.setattr(session_module.Session, "fit", fit)
    result = tailorvit.resume(folder, progress="quiet")
    assert trained[0] == "supernet-1" and trained[-2:] == ["final", "baseline"] and "supernet-0" not in trained
    after = contents(folder)
    assert after[0][: len(trials)] == trials and after[1][: len(epochs)] == epochs, "what was there stays"
    assert after[2][:2] == spaces and after[4][0]["gamma"] == decisions[0]["gamma"]
    assert [{k: old[k] for k in new} for old, new in zip(slopes, after[3], strict=True)] == after[3], "the same slopes"
    with Run.open(folder, lock=False) as run:
        assert "supernet-1: resumed at step 2 of 4" in [e["text"] for e in run.events()]
        last = run.spaces()[-1]["space"]
    found = Arch.from_dict(result.candidates[0]["arch"])
    assert isinstance(last, Space) and last.contains(found) and result.params <= 4_000
    assert [c["name"] for c in result.candidates] == ["found", "baseline"], "a stored recipe's one candidate stays one"
    supernets = 4 + 2 * (len(after[2]) - 1)  # each after the first inherits and trains half as long
    assert result.final == "finetune" and result.baseline["epochs"] == supernets + 3
    network = tailorvit.load(folder)
    assert sum(p.numel() for p in network.parameters()) == result.params
    assert tailorvit.resume(folder, progress="quiet") == result, "a finished run gives its result"


def test_a_run_that_used_what_is_gone_says_so(folder):
    recipe = folder / "recipe.toml"
    text = recipe.read_text(encoding="utf-8")
    assert "\nmomentum = 0.0\n" in text and "\nsamples = 12\n" in text
    recipe.write_text(text.replace("\nmomentum = 0.0\n", "\nmomentum = 0.5\n"), encoding="utf-8")
    before = json.loads((folder / "info.json").read_text(encoding="utf-8"))
    with pytest.raises(TailorError, match=r"was written by TailorViT 0\.1\.0 and uses 's4\.momentum', which "):
        tailorvit.resume(folder, progress="quiet")
    assert json.loads((folder / "info.json").read_text(encoding="utf-8")) == before
    assert (folder / "checkpoints" / "supernet-1.safetensors").is_file()
