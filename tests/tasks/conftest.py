"""The made-up task, its pictures, and a small network to be its backbone."""

from __future__ import annotations

from pathlib import Path

import pytest
from task_toys import TASK, save_tiny, write_pictures

from tailorvit.tasks import TASKS


@pytest.fixture
def toy():
    TASKS.register(TASK)
    yield TASK
    del TASKS.added[TASK.name]


@pytest.fixture(scope="session")
def pictures(tmp_path_factory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures") / "data")


@pytest.fixture(scope="session")
def net(tmp_path_factory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("net") / "net")
