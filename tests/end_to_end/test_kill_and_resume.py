"""Killed anywhere and resumed, a run ends exactly as the uninterrupted one, to the last bit."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tailorvit.report import write_report
from tailorvit.rng import generator
from tailorvit.runs import Run

# Every epoch a checkpoint, and a space that moves whatever the slopes say.
REPAIR = 'space = "vit-8px"\n[limits]\nmax_params = "90k"\n'  # its largest network has 174k
RECIPE = """
[train]
lr = 2e-3
checkpoint_seconds = 0
drop_path = 0.1
"""
SETS = ["s4.pairs=3"]
KINDS = {
    "plain": [],
    "repair": ["s4.repair=slope", "s4.iterations=1"],
    "warm": ["s4.warm_start=true", "final.how=finetune"],
    "s3": ["method=s3", "s3.samples=3", "s3.quantise=floor", "s3.warm_start=true", "train.rule=single_path"],
    "taught": ["s4.iterations=1", "train.rule=sandwich", "train.distill=true", "train.reg_largest_only=true"],
    "adaptive": [
        *("s4.adaptive=true", "train.rule=sandwich", "final.candidates=2", "train.class_weights=balanced"),
        *("final.train.keep=best", "final.train.patience=1", "final.train.epochs=4"),
    ],
}


def options(folder: Path, kind: str) -> dict:
    recipe = folder.parent / "mine.toml"
    recipe.write_text((REPAIR if kind == "repair" else "") + RECIPE)
    sets = [*SETS, *KINDS[kind]]
    return {"recipe": str(recipe), "out": str(folder), "tiny": True, "settings": sets, "seed": 3}


def outcome(folder: Path) -> dict:
    """Everything a run found, without times and places."""
    result = json.loads((folder / "result.json").read_text())
    result.pop("seconds")
    with Run.open(folder, lock=False) as run:
        tables = {
            "trials": run.trials(),
            "spaces": run.spaces(),
            "slopes": run.slopes(),
            "decisions": run.decisions(),
            "epochs": [{k: v for k, v in e.items() if k != "images_per_second"} for e in run.epochs()],
            "stages": {e["stage"]: run.result(e["stage"]) for e in run.epochs()},
            "messages": [e["text"] for e in run.events("decision")],
        }
    weights = (folder / "network" / "network.safetensors").read_bytes()
    card = json.loads((folder / "network" / "network.json").read_text())
    recipe = (folder / "recipe.toml").read_text()
    return {"result": result, "weights": weights, "card": card, "recipe": recipe, **tables}


def assert_same(folder: Path, reference: dict) -> None:
    found = outcome(folder)
    for key in reference:
        assert found[key] == reference[key], key


@pytest.fixture(scope="module")
def whole(forks, tmp_path_factory):
    """The uninterrupted run of each kind, made when first asked for, with the writes it made."""
    made = {}

    def get(kind: str) -> tuple[dict, list[str]]:
        if kind not in made:
            folder = tmp_path_factory.mktemp("whole") / kind
            code, writes = forks.do("run", **options(folder, kind))
            assert code == 0, forks.said()
            made[kind] = outcome(folder), writes
        return made[kind]

    return get


def test_two_uninterrupted_runs_are_the_same(forks, whole, tmp_path):
    reference, writes = whole("plain")
    code, again = forks.do("run", **options(tmp_path / "run", "plain"))
    assert code == 0 and len(again) == len(writes)
    assert_same(tmp_path / "run", reference)
    assert len(reference["spaces"]) > 1 and reference["trials"] and reference["weights"]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_killed_again_and_again(forks, whole, tmp_path, kind):
    """Each process dies after some dozens of writes; where is drawn, so that kills fall between any two writes."""
    reference, writes = whole(kind)
    folder, rng, deaths = tmp_path / "run", generator(11, kind), []
    job = ("run",), options(folder, kind)
    for _ in range(60):
        code, seen = forks.do(*job[0], moment=int(rng.integers(25, 90)), **job[1])
        assert code in (0, -signal.SIGKILL), forks.said()
        if code == 0:
            break
        deaths.append(seen[-1])
        job = ("resume", str(folder)), {}
    else:
        pytest.fail(f"no end after {len(deaths)} kills")
    assert_same(folder, reference)
    assert len(deaths) >= 4, f"of {len(writes)} writes"


STAGES = ["epochs supernet-0", "trials slopes-0", "decisions", "epochs supernet-1", "trials search", "epochs final"]


@pytest.mark.parametrize("stage", STAGES)
def test_killed_in_every_stage(forks, whole, tmp_path, stage):
    """Once in the middle of each stage's rows: half before a write, half after it."""
    reference, writes = whole("plain")
    at = [i for i, w in enumerate(writes) if w.split(" ", 1)[1].startswith(stage)]
    assert len(at) >= 2
    code, seen = forks.do("run", moment=at[len(at) // 2] + 1, **options(tmp_path / "run", "plain"))
    assert code == -signal.SIGKILL and seen[-1].split(" ", 1)[1].startswith(stage)
    page = write_report(tmp_path / "run")  # half-finished
    assert "<html" in page.read_text(encoding="utf-8")
    assert forks.do("resume", str(tmp_path / "run"))[0] == 0, forks.said()
    assert_same(tmp_path / "run", reference)


@pytest.mark.parametrize("moment", ["first", "splits", "network.safetensors", "result.json", "last"])
def test_killed_at_the_edges(forks, whole, tmp_path, moment):
    reference, writes = whole("plain")
    folder = tmp_path / "run"
    fixed = {"first": 1, "last": len(writes)}
    at = fixed.get(moment) or next(i for i, w in enumerate(writes) if w.startswith(f"before file {moment}")) + 1
    code, _ = forks.do("run", moment=at, **options(folder, "plain"))
    assert code == -signal.SIGKILL
    if (folder / "info.json").exists():
        assert forks.do("resume", str(folder))[0] == 0, forks.said()
    else:  # not yet a run: the same command starts it
        assert forks.do("run", **options(folder, "plain"))[0] == 0, forks.said()
    assert_same(folder, reference)
    assert (folder / "report.html").is_file()


def corrupt(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data[: len(data) // 2] if how == "cut" else data))


@pytest.mark.parametrize(
    ("kind", "stage", "how", "both"),
    [
        ("plain", "supernet-0", "cut", False),
        ("plain", "final", "flipped", False),
        ("warm", "last", "cut", True),
        ("warm", "final", "flipped", True),
    ],
)
def test_a_damaged_checkpoint_is_told_and_survived(forks, whole, tmp_path, kind, stage, how, both):
    """The last checkpoint falls back to the one before; where that is damaged too the stage starts over."""
    reference, writes = whole(kind)
    folder = tmp_path / "run"
    stop = "file network.safetensors" if stage == "final" else "trials search"
    at = next(i for i, w in enumerate(writes) if stop in w) + 1
    assert forks.do("run", moment=at, **options(folder, kind))[0] == -signal.SIGKILL
    if stage == "last":
        stage = max(p.stem for p in (folder / "checkpoints").glob("supernet-?.json"))
        assert stage > "supernet-0", "one that inherited"
    corrupt(folder / "checkpoints" / f"{stage}.safetensors", how)
    if both:
        corrupt(folder / "checkpoints" / f"{stage}.prev.safetensors", how)
    if stage == "supernet-0":  # its figures are all stored: lose some, so that it is needed
        with Run.open(folder) as run:
            run._database.write("DELETE FROM trials WHERE stage = ?", [("slopes-0",)])
    assert forks.do("resume", str(folder))[0] == 0, forks.said()
    with Run.open(folder, lock=False) as run:
        told = [e["text"] for e in run.events("checkpoint")]
    assert told and all(stage in t and "damaged" in t for t in told)
    assert any("previous one" in t for t in told)
    found, wanted = outcome(folder), dict(reference)
    if stage == "supernet-0":
        wanted.pop("trials"), found.pop("trials")  # the rows made anew come later in the table
    for key in wanted:
        assert found[key] == wanted[key], key


def test_ctrl_c_leaves_a_run_to_go_on_with(forks, whole, tmp_path):
    reference, _ = whole("plain")
    folder = tmp_path / "run"
    pid = forks.start("run", **options(folder, "plain"))
    for _ in range(4000):
        if forks.log.exists() and "epochs supernet-0" in forks.log.read_text():
            break
        time.sleep(0.005)
    os.kill(pid, signal.SIGINT)
    code, _ = forks.wait()
    assert code == 130
    with Run.open(folder, lock=False) as run:
        assert [e["kind"] for e in run.events()][-1] == "interrupted" and not run.finished
        assert run.seconds()["supernet-0"] > 0
    assert "stopped by the user" in (folder / "log.txt").read_text()
    assert forks.do("resume", str(folder))[0] == 0, forks.said()
    assert_same(folder, reference)


def test_a_run_in_use_is_not_resumed(forks, tmp_path):
    folder = tmp_path / "run"
    pid = forks.start("run", **options(folder, "plain"))
    for _ in range(4000):
        if (folder / "info.json").exists():
            break
        time.sleep(0.005)
    try:
        with pytest.raises(Exception, match=f"in use by process {pid}"):
            Run.open(folder)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert forks.wait()[0] == -signal.SIGKILL
    Run.open(folder).close()
