"""The run folder: creating, opening, locking, tables that bear repetition."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.runs import Run
from tailorvit.runs import atomic as atomic_module
from tailorvit.space import Dim, Space

A = Arch("vit", depth=2, embed=64, heads=(2, 3), mlp=(3.5, 4))
B = A.replace(embed=96)
C = A.replace(embed=128)
SPACE = Space("vit", (Dim("depth", (1, 2)), Dim("heads", (2, 3), "block"), Dim("embed", (64, 96))), (("classes", 7),))


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "run", "seed = 3\n", {"seed": 3, "command": "tailorvit run"}) as made:
        yield made


def test_create_then_open_keeps_recipe_and_info(tmp_path):
    with Run.create(tmp_path / "a" / "b", "x = 'ü'\n", {"seed": 1, "classes": ["Blüte", "bad\udcff"]}) as run:
        assert run.info["started"]
    with Run.open(tmp_path / "a" / "b") as again:
        assert again.recipe == "x = 'ü'\n"
        assert again.info["classes"] == ["Blüte", "bad\udcff"]
        assert not again.finished


def test_create_refuses_what_is_there(tmp_path):
    Run.create(tmp_path / "run", "", {}).close()
    with pytest.raises(TailorError, match=r"unfinished.*tailorvit resume .*run"):
        Run.create(tmp_path / "run", "", {})
    with Run.open(tmp_path / "run") as run:
        run.write_json("result", {"method": "s4"})
    with pytest.raises(TailorError, match="finished run; choose another"):
        Run.create(tmp_path / "run", "", {})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.toml").write_text("precious")
    with pytest.raises(TailorError, match=r"something else \('recipe.toml'\)"):
        Run.create(tmp_path / "mine", "", {})
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["recipe.toml"]
    with pytest.raises(TailorError, match="Cannot write to"):
        Run.create(tmp_path / "mine" / "recipe.toml" / "run", "", {})


def test_create_killed_half_way_can_be_repeated(tmp_path, monkeypatch):
    def killed(path, data):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(atomic_module, "write_json", killed)
        Run.create(tmp_path / "run", "", {})
    assert not (tmp_path / "run" / "info.json").exists()
    with Run.create(tmp_path / "run", "second", {}) as run:
        assert run.recipe == "second"


def test_open_names_what_is_missing(tmp_path):
    with pytest.raises(TailorError, match="no such folder"):
        Run.open(tmp_path / "nowhere")
    Run.create(tmp_path / "run", "", {}).close()
    (tmp_path / "run" / "run.db").rename(tmp_path / "run.db")
    with pytest.raises(TailorError, match=r"not a run folder: run\.db is missing"):
        Run.open(tmp_path / "run")
    (tmp_path / "run.db").rename(tmp_path / "run" / "run.db")
    (tmp_path / "run" / "info.json").write_text('{"seed":')
    with pytest.raises(TailorError, match=r"info\.json is damaged"):
        Run.open(tmp_path / "run", lock=False)


def test_a_newer_or_damaged_database_is_a_clear_error(tmp_path):
    Run.create(tmp_path / "run", "", {}).close()
    link = sqlite3.connect(tmp_path / "run" / "run.db")
    link.execute("PRAGMA user_version=99")
    link.close()
    with pytest.raises(TailorError, match=r"newer TailorViT \(format 99"):
        Run.open(tmp_path / "run")
    with pytest.raises(TailorError, match="newer TailorViT"):
        Run.open(tmp_path / "run", lock=False).trials()
    (tmp_path / "run" / "run.db").write_bytes(b"rubbish" * 1000)
    with pytest.raises(TailorError, match="cannot be used"):
        Run.open(tmp_path / "run")


def test_one_process_at_a_time(run):
    with pytest.raises(TailorError, match="already open in this process"):
        Run.open(run.folder)
    code = (
        "import sys; from pathlib import Path\n"
        "from tailorvit.runs import Run; from tailorvit.errors import TailorError\n"
        "try: Run.open(Path(sys.argv[1])); print('opened')\n"
        "except TailorError as e: print(e)\n"
        "print(len(Run.open(Path(sys.argv[1]), lock=False).trials()))"
    )
    run.record_trials("search", [{"arch": A, "accuracy": 50.0}])

    def other():
        return subprocess.run(
            [sys.executable, "-c", code, str(run.folder)], capture_output=True, text=True, check=True
        ).stdout.split("\n")

    words, count, _ = other()
    assert "in use by process" in words and count == "1"
    run.close()
    assert other()[0] == "opened"


def test_reading_never_writes(run):
    run.finish("one", 1)
    reader = Run.open(run.folder, lock=False)
    assert reader.result("one") == 1
    for write in (lambda: reader.finish("two", 2), lambda: reader.event("info", "hello")):
        with pytest.raises(TailorError, match="reading only"):
            write()
    assert not (run.folder / "log.txt").exists()
    reader.close()


def test_stages_and_time_add_up_over_resumes(run):
    assert run.result("train") is None
    run.finish("train", {"a": [1, None], "b": np.float32(0.5)})
    run.finish("nothing", [])
    run.spend("train", 2.5)
    run.close()
    with Run.open(run.folder) as again:
        again.spend("train", 1.0)
        again.spend("search", 4)
        assert again.result("train") == {"a": [1, None], "b": 0.5}
        assert again.result("nothing") == []
        assert again.seconds() == {"train": 3.5, "search": 4.0}


def test_events_go_to_the_table_and_the_log(run):
    run.event("skipped", "two images\nwere skipped: bad\udcff.jpg", count=2, names=["bad\udcff.jpg"])
    run.event("resume", "went on")
    first, second = run.events()
    assert first["data"] == {"count": 2, "names": ["bad\udcff.jpg"]} and second["kind"] == "resume"
    assert [e["text"] for e in run.events("resume")] == ["went on"]
    assert len((run.folder / "log.txt").read_text().splitlines()) == 2


def test_trials_round_trip_and_bear_repetition(run):
    first = {
        "arch": A,
        "accuracy": np.float64(61.25),
        "params": np.int64(5_000_000),
        "macs": 10**9,
        "source": "cross",
        "generation": 2,
        "parents": [B, C],
        "seconds": 0.5,
        "costs": {"latency": 0.01},
        "split": "search",
    }
    run.record_trials("search", [first, {"arch": B, "accuracy": 60.0}])
    run.record_trials("search", [{"arch": B, "accuracy": 60.0}, first, {"arch": C, "accuracy": 59.0}])
    run.record_trials("slopes", [{"arch": A, "accuracy": 12.0}])
    rows = run.trials("search")
    assert [r["arch"] for r in rows] == [A, B, C], "work done twice keeps its first place"
    assert rows[0] == {**first, "stage": "search"}
    assert rows[1]["parents"] == [] and rows[1]["costs"] == {} and rows[1]["params"] is None
    assert len(run.trials()) == 4
    assert run.accuracy("search", A) == 61.25 and run.accuracy("slopes", A) == 12.0
    assert run.accuracy("slopes", B) is None


def test_trials_come_all_or_none(run):
    with pytest.raises(AttributeError):
        run.record_trials("search", [{"arch": A}, {"arch": "no arch"}])
    with pytest.raises(TailorError):
        run._database.write("INSERT INTO trials (stage) VALUES (?)", [("x",), ("y",)])
    assert run.trials() == []


def test_space_search_rows_bear_repetition(run):
    moved = SPACE.shift({"embed": 1})
    for _ in range(2):
        run.record_space(0, SPACE, largest={"params": 7}, repair=False)
        run.record_slope(0, "embed", {"z": 0.5, "se": 0.1})
        run.record_slope(0, "depth", {"z": -0.5, "se": 0.1})
        run.record_decision(0, {"t": 0, "gamma": {"embed": 1}, "stop": False})
        run.record_space(1, moved, repair=True)
        run.record_slope(1, "embed", {"z": 0.0})
        run.record_epoch("supernet.0", 0, loss=2.0)
        run.record_epoch("supernet.0", 1, loss=1.0)
    run.record_epoch("supernet.0", 0, loss=3.0)
    first, second = run.spaces()
    assert (first["space"], first["t"], first["largest"]) == (SPACE, 0, {"params": 7})
    assert second["space"] == moved and second["repair"] is True
    assert [(s["t"], s["dim"]) for s in run.slopes()] == [(0, "embed"), (0, "depth"), (1, "embed")]
    assert [s["z"] for s in run.slopes(0)] == [0.5, -0.5]
    assert run.decisions() == [{"t": 0, "gamma": {"embed": 1}, "stop": False}]
    assert [(e["epoch"], e["loss"]) for e in run.epochs("supernet.0")] == [(0, 3.0), (1, 1.0)]
    assert run.epochs("other") == []


def test_measurements(run):
    assert run.measured("latency", A) is None
    run.record_measured("latency", A, 0.25)
    run.record_measured("latency", A, 0.5)
    assert run.measured("latency", A) == 0.5 and run.measured("memory", A) is None


def test_json_files_are_whole_or_absent(run, monkeypatch):
    assert run.read_json("splits") is None
    run.write_json("splits.json", {"train": [1, 2]})
    assert run.read_json("splits") == {"train": [1, 2]}

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_module.os, "fsync", full)
    with pytest.raises(TailorError, match="No space left"):
        run.write_json("splits", {"train": []})
    assert run.read_json("splits") == {"train": [1, 2]}
    assert not list(run.folder.glob(".*.tmp"))
    (run.folder / "result.json").write_text('{"method": "s')
    assert not run.finished and run.read_json("result") is None
    assert "result.json is damaged" in run.events("damaged")[0]["text"]


def test_opening_removes_leftovers(run):
    run.close()
    leftover = run.folder / ".result.json.77.tmp"
    leftover.write_text("half")
    with Run.open(run.folder):
        assert not leftover.exists()


def test_a_closed_run_is_one_plain_database_file(run):
    run.record_trials("search", [{"arch": A, "accuracy": 1.0}])
    assert (run.folder / "run.db-wal").exists(), "WAL while open"
    run.close()
    assert not list(run.folder.glob("run.db-*"))
    assert json.loads((run.folder / "info.json").read_text())["seed"] == 3
