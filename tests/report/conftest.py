"""Made-up runs for the tests of the report."""

from __future__ import annotations

import pytest

from fake_runs import write_run


@pytest.fixture
def make(tmp_path):
    """Build a fake run and hand back its folder; ``name`` for more than one."""

    def build(evil: str = "", name: str = "run", **how):
        return write_run(tmp_path / name, evil, **how)

    return build
