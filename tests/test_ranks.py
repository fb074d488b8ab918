"""Who a process is, by what torchrun tells it; what a machine with several GPUs is told."""

from __future__ import annotations

import pytest
import torch

from tailorvit import ranks
from tailorvit.methods.prepare import several_gpus


@pytest.fixture
def second_of_four(monkeypatch):
    """As torchrun starts a process."""
    for name, value in {"TORCHELASTIC_RUN_ID": "job-7", "RANK": "1", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)


def test_a_process_alone_is_the_writer(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("RANK", "3")  # of somebody else: torchrun did not start this one
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (ranks.rank(), ranks.world(), ranks.launch()) == (0, 1, None)
    assert ranks.is_writer() and ranks.may_speak() and not ranks.restarted()
    with ranks.joined():
        assert not torch.distributed.is_initialized()


def test_torchrun_says_who_a_process_is(second_of_four, monkeypatch):
    assert (ranks.rank(), ranks.world(), ranks.launch()) == (1, 4, "job-7")
    assert not ranks.is_writer() and not ranks.restarted()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert ranks.restarted()


def test_a_launch_without_a_name_is_known_by_its_place(second_of_four, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("MASTER_ADDR", "here")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert str(ranks.launch()).startswith("here:29500:")


def test_a_machine_with_several_gpus_says_how_to_use_them(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert "torchrun --nproc-per-node 4 -m tailorvit" in str(several_gpus("cuda"))
    assert several_gpus("cuda:1") is None and several_gpus("cpu") is None
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert several_gpus("cuda") is None


def test_all_processes_of_a_launch_know_of_the_others(second_of_four, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert several_gpus("cuda") is None
