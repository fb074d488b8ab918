"""Contract tests for plug-ins: inherit from a contract in your own test suite, and pytest runs it on your part.

    from tailorvit.testing import FamilyContract

    class TestMine(FamilyContract):
        name = "mine"

Needs pytest.
"""

from __future__ import annotations

from tailorvit.testing.families import FamilyContract
from tailorvit.testing.proxies import ProxyContract
from tailorvit.testing.searchers import SearcherContract
from tailorvit.testing.synthetic import Synthetic

__all__ = ["FamilyContract", "ProxyContract", "SearcherContract", "Synthetic"]
