"""Checkpoints: round trips, damage, full disks."""

from __future__ import annotations

import errno
import json

import pytest
import torch

from tailorvit.errors import TailorError
from tailorvit.runs import Run, atomic


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "run", "", {}) as made:
        yield made


def state(value):
    return {"weight": torch.full((3, 4), float(value)), "step": torch.tensor(value)}


def path(run, name="net"):
    return run.folder / "checkpoints" / f"{name}.safetensors"


def damage(file, how):
    data = bytearray(file.read_bytes())
    if how == "truncated":
        data = data[: len(data) // 2]
    elif how == "payload":
        data[-3] ^= 1
    elif how == "header":
        data[40] ^= 1
    elif how == "meta":
        at = data.index(b"epoch")
        data[at] ^= 1
    elif how == "empty":
        data = bytearray()
    file.unlink()  # a new file: the previous one may be a link to this one
    file.write_bytes(data)


def test_round_trip_of_all_kinds(run):
    shared = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "a": shared,
        "tied": shared,
        "part": shared[:, 1:],
        "turned": shared.T,
        "spread": torch.ones(1).expand(5),
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "count": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "none": torch.zeros(0, 3),
        "grown": torch.ones(2, requires_grad=True),
    }
    meta = {"epoch": 3, "best": 61.5, "rng": [1, 2**63], "word": "ü", "nan": float("inf")}
    assert run.save_checkpoint("net", tensors, meta) is True
    loaded, back = run.load_checkpoint("net")
    assert back == meta and set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name], tensor)
    assert json.loads((run.folder / "checkpoints" / "net.json").read_text())["epoch"] == 3
    assert run.events() == []


def test_missing_is_none_and_dropping_is_complete(run):
    assert run.load_checkpoint("net") is None
    for epoch in range(3):
        run.save_checkpoint("net", state(epoch), {"epoch": epoch})
    run.drop_checkpoint("net")
    run.drop_checkpoint("net")
    assert run.load_checkpoint("net") is None and not list((run.folder / "checkpoints").iterdir())


@pytest.mark.parametrize("how", ["truncated", "payload", "header", "meta", "empty"])
def test_damage_falls_back_to_the_previous_one(run, how):
    run.save_checkpoint("net", state(1), {"epoch": 1})
    run.save_checkpoint("net", state(2), {"epoch": 2})
    assert run.load_checkpoint("net")[1] == {"epoch": 2}
    damage(path(run), how)
    tensors, meta = run.load_checkpoint("net")
    assert meta == {"epoch": 1} and torch.equal(tensors["weight"], state(1)["weight"])
    (event,) = run.events("checkpoint")
    assert "net is damaged (" in event["text"] and "continuing from the previous one" in event["text"]
    run.save_checkpoint("net", state(3), {"epoch": 3})
    damage(path(run), how)
    assert run.load_checkpoint("net")[1] == {"epoch": 1}, "the damaged file must not have become the previous one"


def test_a_moment_with_only_the_previous_one(run):
    run.save_checkpoint("net", state(1), {"epoch": 1})
    path(run).rename(path(run, "net.prev"))
    assert run.load_checkpoint("net")[1] == {"epoch": 1}
    assert "is missing; continuing" in run.events("checkpoint")[0]["text"]


@pytest.mark.parametrize("previous", [True, False])
def test_nothing_whole_left_is_none_with_an_event(run, previous):
    run.save_checkpoint("net", state(1), {"epoch": 1})
    if previous:
        run.save_checkpoint("net", state(2), {"epoch": 2})
        damage(path(run, "net.prev"), "truncated")
    damage(path(run), "payload")
    assert run.load_checkpoint("net") is None
    assert "starting over" in run.events("checkpoint")[0]["text"]


@pytest.mark.parametrize("database_full", [False, True])
def test_a_full_disk_keeps_the_old_checkpoint(run, monkeypatch, database_full):
    run.save_checkpoint("net", state(1), {"epoch": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse(*_):
        raise TailorError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        if database_full:
            patch.setattr(run._database, "write", refuse)
        assert run.save_checkpoint("net", state(2), {"epoch": 2}) is False
    assert run.load_checkpoint("net")[1] == {"epoch": 1}
    assert [p.name for p in sorted((run.folder / "checkpoints").iterdir())] == ["net.json", "net.safetensors"]
    if not database_full:
        assert "the disk is full" in run.events("checkpoint")[0]["text"]
    assert run.save_checkpoint("net", state(3), {"epoch": 3}) is True
    assert run.load_checkpoint("net")[1] == {"epoch": 3}


def test_without_hard_links(run, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr("os.link", refuse)
    run.save_checkpoint("net", state(1), {"epoch": 1})
    run.save_checkpoint("net", state(2), {"epoch": 2})
    damage(path(run), "payload")
    assert run.load_checkpoint("net")[1] == {"epoch": 1}


def test_leftovers_of_a_killed_save_are_swept(run):
    run.save_checkpoint("net", state(1), {"epoch": 1})
    leftover = run.folder / "checkpoints" / ".net.safetensors.5.tmp"
    leftover.write_bytes(b"half")
    run.close()
    with Run.open(run.folder) as again:
        assert again.load_checkpoint("net")[1] == {"epoch": 1} and not leftover.exists()


def test_a_reader_changes_nothing(run):
    run.save_checkpoint("net", state(1), {"epoch": 1})
    run.save_checkpoint("net", state(2), {"epoch": 2})
    damage(path(run), "payload")
    before = {p: p.read_bytes() for p in (run.folder / "checkpoints").iterdir()}
    reader = Run.open(run.folder, lock=False)
    assert reader.load_checkpoint("net")[1] == {"epoch": 1}
    assert {p: p.read_bytes() for p in (run.folder / "checkpoints").iterdir()} == before


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".hidden", "net.prev"])
def test_names_stay_in_their_folder(run, name):
    with pytest.raises(ValueError, match="checkpoint name"):
        run.save_checkpoint(name, state(1), {})


def test_no_pickle_in_the_room():
    import tailorvit.runs as room

    for file in atomic.Path(room.__file__).parent.glob("*.py"):
        text = file.read_text()
        assert "pickle" not in text and "torch.load" not in text and "torch.save" not in text
