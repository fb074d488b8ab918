"""Contract tests for plug-ins: inherit from a contract in your own test suite, and pytest runs it on your part.

    from tailorvit.testing import SearcherContract

    class TestMine(SearcherContract):
        name = "mine"
        ...

Needs pytest.
"""

from __future__ import annotations

from tailorvit.testing.searchers import SearcherContract
from tailorvit.testing.synthetic import Synthetic

__all__ = ["SearcherContract", "Synthetic"]
