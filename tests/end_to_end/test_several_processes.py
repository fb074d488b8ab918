"""Several processes give what one gives: trials, loss curves, results; also after one of them was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks_work import RUNS, begin

import tailorvit
from tailorvit.runs import Run
from tailorvit.train.loop import Trainer

WORK = Path(__file__).with_name("ranks_work.py")
CLOSE = 1e-4  # of losses around 2: sums of floats in another order


def torchrun(count: int, *what: str | Path, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """The processes of one torchrun, on a free port."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    command = [*start, f"--max-restarts={restarts}", *map(str, what)]
    own = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=own)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """All runs, by this process alone."""
    folder = tmp_path_factory.mktemp("alone")
    for name in RUNS:
        begin(name, folder)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """All runs by two processes, one of which is killed and started again."""
    folder = tmp_path_factory.mktemp("two")
    done = torchrun(2, WORK, folder, restarts=1)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def plain(value: Any) -> Any:
    """A result without its times; the calibration error, which follows every probability, to four digits."""
    if isinstance(value, dict):
        kept = {k: plain(v) for k, v in value.items() if k not in ("seconds", "per_second")}
        return {k: round(v, 4) if k == "calibration_error" else v for k, v in kept.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


def check_same(one: Path, other: Path) -> None:
    """The same trials in the same order, the same result, and losses as close as floats allow."""
    with Run.open(one, lock=False) as a, Run.open(other, lock=False) as b:
        rows = [
            [(t["stage"], t["arch"], t["accuracy"], t["source"], t["generation"], t.get("scores")) for t in r.trials()]
            for r in (a, b)
        ]
        assert rows[0] == rows[1]
        losses = [{(e["stage"], e["epoch"]): e["loss"] for e in r.epochs()} for r in (a, b)]
        assert losses[0].keys() == losses[1].keys() and losses[0]
        assert all(abs(losses[0][k] - losses[1][k]) < CLOSE for k in losses[0])
        results = [plain(r.read_json("result")) for r in (a, b)]
        if results[0]["arch"]["family"] == "hybrid":  # batch norms add up in another order: an image may be lost or won
            assert abs(results[0]["test_accuracy"] - results[1]["test_accuracy"]) < 5
        else:
            assert results[0] == results[1]


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_give_what_one_gives(alone, two, name):
    check_same(alone / name, two / name)


def test_a_killed_process_costs_the_work_since_the_last_checkpoint(two):
    with Run.open(two / "hybrid", lock=False) as run:
        assert next(e["text"] for e in run.events("resume")) == "the run goes on"
        assert any("final: resumed at step" in e["text"] for e in run.events("resume"))
        texts = [e["text"] for e in run.events("ranks")]
    assert texts == ["2 processes share the work of this run."]
    with Run.open(two / "recorded", lock=False) as run:
        assert not run.events("graphs"), "the steps were recorded"


def test_four_processes_resume_what_one_began(alone, tmp_path, monkeypatch):
    inner = Trainer.end_epoch

    def stop(self, facts):
        inner(self, facts)
        if self.state.meta["step"] == 2 * self.batches.steps_per_epoch:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "end_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        begin("hybrid", tmp_path)
    done = torchrun(4, "-m", "tailorvit", "resume", tmp_path / "hybrid", "--plain")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("report.html") == 1 and "4 processes share the work" in done.stdout
    check_same(alone / "hybrid", tmp_path / "hybrid")
    assert tailorvit.resume(tmp_path / "hybrid").arch["family"] == "hybrid"


BROKEN = """
import sys
from tailorvit import cli, ranks
from tailorvit.errors import TailorError
from tailorvit.train.loop import Trainer

def fail(self, batch):
    raise TailorError("no room for a step.")

if ranks.rank() == 1:
    Trainer.step = fail
cli.main()
"""


@pytest.mark.parametrize("failing", ["the writer", "another"])
def test_an_error_is_one_sentence(tmp_path, failing):
    """The sentence names the other process; a broken connection says nothing where the cause was said."""
    script, out = tmp_path / "broken.py", tmp_path / "run"
    script.write_text(BROKEN)
    if failing == "the writer":
        out.mkdir()
        (out / "notes.txt").touch()
    done = torchrun(2, script, "run", "--tiny", "--plain", "--out", out)
    said = [line for line in done.stderr.splitlines() if line.startswith("tailorvit:")]
    wanted = "holds something else ('notes.txt')" if failing == "the writer" else "Process 2 of 2: no room for a step."
    assert done.returncode != 0 and len(said) == 1 and wanted in said[0]
    assert 'tailorvit/api.py"' not in done.stderr  # no traceback of ours
    if failing == "another":
        with Run.open(out, lock=False) as run:
            assert not run.finished
