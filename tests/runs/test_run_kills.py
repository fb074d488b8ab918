"""SIGKILL at random moments: what is on disk is consistent every time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from tailorvit.rng import generator
from tailorvit.runs import Run

# Each round: two trials, an epoch row, then the checkpoint that moves past them. The other order would leave holes.
WRITER = """
import sys, torch
from pathlib import Path
from tailorvit.arch import Arch
from tailorvit.runs import Run
run = Run.open(Path(sys.argv[1]))
found = run.load_checkpoint("net")
start = 0 if found is None else found[1]["round"] + 1
for i in range(start, 10**6):
    pair = [Arch("vit", depth=i + 1, embed=e) for e in (8, 16)]
    run.record_trials("search", [{"arch": a, "accuracy": float(i), "parents": pair} for a in pair])
    run.record_epoch("train", i, loss=float(i))
    run.save_checkpoint("net", {"w": torch.full((20000,), float(i))}, {"round": i})
    if i == start:
        print("ready", flush=True)
"""


def test_killed_at_random_moments(tmp_path):
    Run.create(tmp_path / "run", "", {}).close()
    rng = generator(0, "kills")
    reached = -1
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert writer.stdout.readline() == b"ready\n", writer.stderr.read().decode()
        time.sleep(0.3 * rng.random())
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        with Run.open(tmp_path / "run") as run:
            trials, found = run.trials(), run.load_checkpoint("net")
            assert found is not None
            tensors, meta = found
            assert (tensors["w"] == meta["round"]).all(), "weights and meta data belong together"
            assert len(trials) % 2 == 0, "a batch is in the table whole or not at all"
            assert [t["arch"]["depth"] for t in trials] == [i + 1 for i in range(len(trials) // 2) for _ in "ab"]
            assert len(trials) // 2 - 1 in (meta["round"], meta["round"] + 1)
            epochs = [e["epoch"] for e in run.epochs()]
            assert epochs == list(range(len(epochs))) and len(epochs) - 1 in (meta["round"], meta["round"] + 1)
            assert run.events() == [], "no checkpoint was ever found damaged"
            assert not list(run.folder.rglob("*.tmp"))
            assert meta["round"] > reached
            reached = meta["round"]
