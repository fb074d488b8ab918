"""Reading checkpoint files: wrappers are removed, objects are never unpickled."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tailorvit.checkpoints import checksum, read_state
from tailorvit.errors import TailorError

STATE = {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.ones(2)}


def same(found, expected=STATE):
    return found.keys() == expected.keys() and all(torch.equal(found[k], expected[k]) for k in expected)


@pytest.mark.parametrize(
    "wrapped",
    [
        STATE,
        {"model": STATE, "epoch": 3, "optimizer": {"state": {0: {"step": torch.ones(1)}}}},
        {"state_dict": {f"module.{k}": v for k, v in STATE.items()}},
        {"model": {f"module._orig_mod.{k}": v for k, v in STATE.items()}, "model_ema": {"a.weight": torch.zeros(2, 3)}},
        {"model_ema": STATE},
        {"model": {"state_dict": {f"model.{k}": v for k, v in STATE.items()}}},
        {"model": STATE, "args": argparse.Namespace(cfg="supernet-T.yaml", lr=5e-4, device=None)},
    ],
    ids=["bare", "model", "parallel", "ema beside", "ema alone", "nested", "options"],
)
def test_wrappers_are_removed(tmp_path, wrapped):
    torch.save(wrapped, tmp_path / "x.pth")
    assert same(read_state(tmp_path / "x.pth"))


@pytest.mark.parametrize("name", ["x.safetensors", "x.bin"])
def test_safetensors_are_recognised_by_content(tmp_path, name):
    save_file({k: v.half() for k, v in STATE.items()}, tmp_path / name)
    found = read_state(tmp_path / name)
    assert same(found) and found["a.weight"].dtype == torch.float32


def test_old_files_are_read(tmp_path):
    torch.save({"model": STATE}, tmp_path / "x.pth", _use_new_zipfile_serialization=False)
    assert same(read_state(tmp_path / "x.pth"))


class Trap:
    """Would make a file when unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


def test_objects_are_refused_and_never_unpickled(tmp_path):
    torch.save({"model": STATE, "extra": Trap(tmp_path / "sprung")}, tmp_path / "x.pth")
    with pytest.raises(TailorError, match=r"holds an object of posix\.mkdir besides tensors.*could run code") as caught:
        read_state(tmp_path / "x.pth")
    assert not (tmp_path / "sprung").exists() and str(caught.value).count("\n") == 0
    torch.save({"model": STATE, "where": Path("x")}, tmp_path / "y.pth")
    with pytest.raises(TailorError, match=r"besides tensors"):
        read_state(tmp_path / "y.pth")


@pytest.mark.parametrize("content", [b"", b"hello, this is no checkpoint", b"\x80\x04garbage", b"12345678{broken"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "x.pth").write_bytes(content)
    with pytest.raises(
        TailorError, match=r"neither a safetensors file nor a PyTorch checkpoint|not a readable safetensors"
    ):
        read_state(tmp_path / "x.pth")


def test_files_without_weights(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "x.pth")
    with pytest.raises(TailorError, match="holds no weights"):
        read_state(tmp_path / "x.pth")
    with pytest.raises(TailorError, match="There is no checkpoint file"):
        read_state(tmp_path / "absent.pth")


def test_the_checksum_is_the_files(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert checksum(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
