"""Small picture folders for the data tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_pictures import fill


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return fill(tmp_path / "pets", {"cat": 10, "dog": 20, "owl": 3})


@pytest.fixture
def split_pets(tmp_path: Path) -> Path:
    counts = {"cat": 8, "dog": 6}
    return fill(tmp_path / "pets", {f"{part}/{c}": n for part in ("train", "valid", "test") for c, n in counts.items()})
