"""A seeded sample of faults; benchmarks/faults has more than a test run has time for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fault_cases import cases, outcome
from fault_harness import BASE, FAULTS, lost_epochs

import tailorvit
from tailorvit.methods import METHODS
from tailorvit.runs import Run

HOME = Path(__file__).parents[2]
SCRIPT = HOME / "benchmarks" / "faults" / "faults.py"
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(HOME / "src")}


def test_every_method_is_disturbed(tmp_path):
    assert {c.method for c in cases(tmp_path)} == set(METHODS)


def test_a_sample_of_faults_loses_nothing_silently(tmp_path):
    """Every kind of fault once, in runs that take half a second; a lost worker is tried by the end-to-end tests."""
    some = ("fixed", "fixed, batch norms", "fixed, pictures", "finetune")
    names = [word for name in some for word in ("--case", name)]
    out = tmp_path / "rows.jsonl"
    kinds = [kind for kind in FAULTS if kind != "lost worker"]
    count = len(kinds)
    assert kinds == list(FAULTS)[:count]
    command = [sys.executable, str(SCRIPT), "run", "--faults", str(count), "--seed", "7", "--out", str(out), *names]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == count and {r["fault"] for r in rows} == set(kinds)
    assert sum(r["end"] == "same" for r in rows) >= count // 2


def test_epochs_that_a_database_has_lost_are_told(tmp_path):
    folder = tmp_path / "run"
    _, (recipe,), options = BASE.job(folder)
    tailorvit.run(recipe, **options, progress="quiet")
    reference = outcome(folder)
    (folder / "result.json").unlink()
    with Run.open(folder) as run:
        run._database.write("DELETE FROM epochs WHERE stage = ? AND epoch = ?", [("final", 2)])
    tailorvit.resume(folder, progress="quiet")
    found = outcome(folder)
    assert [k for k in reference if found[k] != reference[k]] == ["epochs"]
    assert lost_epochs(folder)[0].startswith("final: the database has lost 1 of 2 epochs")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_line_says_how_to_go_on(tmp_path, number, code):
    """Within an epoch, and with the processes that read images signalled as well, as a terminal does it."""
    folder = tmp_path / "run"
    sets = ["data.limit=120", "final.train.batch=4", "final.train.epochs=1000", "baseline=false"]
    sets += ["arch={depth=2, embed=16, heads=2, mlp=2}", "final.train.augment=strong"]
    words = [w for s in sets for w in ("--set", s)]
    command = [
        sys.executable,
        "-m",
        "tailorvit",
        "run",
        "s4-digits",
        "--method",
        "fixed",
        "--tiny",
        "--out",
        str(folder),
    ]
    process = subprocess.Popen(
        [*command, *words, "--plain"],
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for line in process.stdout:
        if line.startswith("final: ") and not line.startswith("final: 1/"):
            break
    os.killpg(process.pid, number)
    began = time.monotonic()
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert said.strip() == f"Stopped. Go on with: tailorvit resume {folder}" and time.monotonic() - began < 30
    if code == 130:  # SIGTERM ends the readers at once, and the training where it waits for them
        assert json.loads((folder / "checkpoints" / "final.json").read_text())["step"] > 1
    assert ("by the user" if code == 130 else "by the system (SIGTERM)") in (folder / "log.txt").read_text()
