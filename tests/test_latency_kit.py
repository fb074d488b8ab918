"""A latency kit: its script needs neither torch nor this package, and a run searches by the table that it writes."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tailorvit
from tailorvit.costs import measure_on_host as script
from tailorvit.costs.latency_table import read_latency_table
from tailorvit.errors import TailorError
from tailorvit.families import named_space
from tailorvit.latency_kit import drawn, latency_kit
from tailorvit.methods.stages import StageSink
from tailorvit.runs import Run

# A finder that knows only the standard library, numpy and onnxruntime with what that one needs.
ALONE = """
import runpy, sys
class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "tailorvit", "onnx", "onnxscript", "timm", "scipy", "pydantic"}:
            raise ImportError(name + " is not on this host")
sys.meta_path.insert(0, Forbid())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def on_host(kit: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ALONE, str(kit / "measure.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    place = tmp_path_factory.mktemp("kit") / "kit"
    latency_kit("vit-8px", place, n=10)
    return place


@pytest.fixture(scope="module")
def table(kit):
    done = on_host(kit, "--anyway", "--seconds", "0.02", "--threads", "1", "--name", "test")
    assert done.returncode == 0, done.stderr
    assert "table.json and table.csv: 10 networks" in done.stdout and "1/30  networks/000.onnx" in done.stderr
    return kit / "table.json"


# -- the kit ----------------------------------------------------------------------------------------------------------


def test_a_kit_holds_networks_manifest_and_script(kit):
    manifest = json.loads((kit / "manifest.json").read_text())
    archs = [tailorvit.Arch.from_dict(row["arch"]) for row in manifest["networks"]]
    space = named_space("vit-8px")
    assert archs == drawn(space, 10, 0) and len(set(archs)) == 10
    assert archs[:2] == [space.smallest(), space.largest()], "the ends, so that nothing lies beyond"
    assert manifest["weights"] == "random" and manifest["shape"] == [1, 1, 8, 8]
    assert (kit / "measure.py").read_bytes() == Path(script.__file__).read_bytes()
    assert "random" in (kit / "README.txt").read_text()


def test_what_cannot_be_a_kit_is_one_sentence(kit, tmp_path):
    with pytest.raises(TailorError, match="10 to 1000 networks, not 9"):
        latency_kit("vit-8px", tmp_path / "a", n=9)
    with pytest.raises(TailorError, match="is there already and not empty"):
        latency_kit("vit-8px", kit, n=10)
    with pytest.raises(TailorError, match="Unknown space"):
        latency_kit("vit-8", tmp_path / "a", n=10)
    assert not (tmp_path / "a").exists()


# -- the script -------------------------------------------------------------------------------------------------------


def test_the_script_needs_numpy_and_onnxruntime_only(table):
    found = json.loads(table.read_text())
    assert found["threads"] == 1 and found["provider"] == "CPUExecutionProvider"
    assert found["host"]["name"] == "test" and found["host"]["cores"] and "load_after" in found["host"]
    rows = list(csv.DictReader((table.parent / "table.csv").open()))
    assert [row["file"] for row in rows] == [row["file"] for row in found["rows"]] and len(rows) == 10
    for row in found["rows"]:
        assert 0 < row["low_ms"] <= row["median_ms"] <= row["high_ms"] and row["runs"] >= 3 * 3
        assert len(row["turns_ms"]) == 3
    assert read_latency_table(table).quality.rows == 10


def test_mistakes_at_the_host_are_one_sentence(kit, tmp_path):
    whole = tmp_path / "kit"
    shutil.copytree(kit, whole)
    for arguments, words in (
        (["--provider", "NpuProvider"], "no provider 'NpuProvider' here; it has"),
        (["--threads", "0"], "--threads must be 1 to 1024, not 0"),
        (["--out", str(tmp_path / "none")], "There is no folder"),
    ):
        done = on_host(whole, "--anyway", *arguments)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
    (whole / "networks" / "003.onnx").unlink()
    done = on_host(whole)
    assert done.returncode == 2 and "The kit is not whole" in done.stderr
    (whole / "manifest.json").write_text("{}")
    assert "holds no latency kit" in on_host(whole).stderr


class Host:
    """A clock that passes only while a network runs; every pass takes what the list says, over and over."""

    def __init__(self, *lengths: float) -> None:
        self.lengths, self.now, self.calls = lengths, 0.0, 0

    def __call__(self) -> None:
        self.now += self.lengths[self.calls % len(self.lengths)]
        self.calls += 1

    def clock(self) -> float:
        return self.now


def test_passes_repeat_until_the_median_is_steady():
    steady = Host(0.001)
    assert len(script.timed(steady, 1.0, steady.clock)) == script.LEAST
    assert steady.calls == script.LEAST + script.WARMUP, "the first passes do not count"
    wild = Host(*(0.001 * k for k in (1, 5, 2, 9, 3, 7)))
    assert len(script.timed(wild, 0.2, wild.clock)) > script.LEAST and wild.now < 0.3, "or until the time is over"
    slow = Host(60.0)
    assert len(script.timed(slow, 1.0, slow.clock)) == 3


def test_rows_say_whether_they_were_steady():
    entry = {"file": "a.onnx", "arch": {}}
    row = script.row_of(entry, [[0.001] * 20] * 3)
    assert row["median_ms"] == pytest.approx(1) and row["runs"] == 60 and row["steady"]
    assert not script.row_of(entry, [[0.001] * 20, [0.002] * 20, [0.001] * 20])["steady"], "one turn was disturbed"
    assert script.quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)


def test_networks_are_measured_in_turns():
    hosts = [Host(0.001), Host(0.002)]
    seen = [n for n, _ in script.turns([{"file": "a"}, {"file": "b"}], lambda e: hosts[e["file"] == "b"], 1, print)]
    assert seen == [0, 1] * script.ROUNDS


def test_a_busy_machine_is_refused(capsys):
    script.require_idle(None, False)
    script.require_idle(0.1, False)
    with pytest.raises(script.Refused, match=r"busy \(load 0.90 a core\).*--anyway"):
        script.require_idle(0.9, False)
    script.require_idle(0.9, True)
    assert "Warning: This machine is busy" in capsys.readouterr().err


# -- a run by a table -------------------------------------------------------------------------------------------------


def test_a_run_searches_by_the_table_and_resumes_without_the_file(table, tmp_path, monkeypatch):
    """Killed before the last training; the file is gone when it goes on, and nothing is timed at all."""
    mine, folder = tmp_path / "pi.json", tmp_path / "run"
    shutil.copy(table, mine)
    known = read_latency_table(mine)
    monkeypatch.setattr("tailorvit.costs.meter.measure_latency", lambda *_, **__: pytest.fail("measured"))
    sets = ["train.epochs=1", "final.train.epochs=1", "train.batch=200", "baseline=false", "train.checkpoint_seconds=0"]
    limit = sorted(known.seconds)[6]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            StageSink,
            "progress",
            lambda self, *_: (_ for _ in ()).throw(KeyboardInterrupt) if self.stage == "final" else None,
        )
        tailorvit.run(
            "s4-digits",
            method="autoformer",
            out=folder,
            tiny=True,
            settings=sets,
            latency_table=mine,
            max_latency=limit,
            progress="quiet",
            seed=2,
        )
    mine.unlink()
    with Run.open(folder, lock=False) as run:
        before = run.trials()
    result = tailorvit.resume(folder, progress="quiet")
    with Run.open(folder, lock=False) as run:
        assert run.trials() == before
        assert any("predicted for test" in event["text"] for event in run.events("latency"))
    assert all(t["costs"]["latency"] <= limit for t in before if t["stage"] == "search")
    assert result["latency_by"]["how"] == "predicted" and result["latency_by"]["table"]["rows"] == 10
    assert result["latency"] == known.predict(
        tailorvit.costs.Counter("vit", result["settings"]), tailorvit.Arch.from_dict(result["arch"])
    )
    assert any("predicted for test" in line for line in result.summary())
    assert "not measured there" in (folder / "report.html").read_text(encoding="utf-8")
    space = latency_kit(folder, tmp_path / "kit", n=10)["space"]
    assert space["dims"] == named_space("vit-8px").to_dict()["dims"], "a run's kit is of the run's space"
