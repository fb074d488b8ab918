"""Shared by all tests: one thread a process, as two test processes with two threads each fight over two cores."""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is first imported

from tailorvit.plugins import registries

for _, registry in registries().values():
    registry._plugins = {}  # plug-ins that happen to be installed are not tested here


@pytest.fixture(autouse=True, scope="session")
def the_same_precision():
    """What a test trains in must not depend on the processor; processes that tests start try bf16 for themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailorvit.memory.bf16_pays", lambda: False)
        yield


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Outputs of trunks go to a folder of the tests, not to the user's."""
    os.environ["TAILORVIT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
