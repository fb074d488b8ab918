"""TF-TAS: score untrained architectures within the limits and train the best of them."""

from __future__ import annotations

from typing import Any

from tailorvit.methods.s4 import RunBook
from tailorvit.methods.session import Session
from tailorvit.methods.untrained import finish_untrained, search_untrained


def tftas(session: Session) -> dict[str, Any]:
    """Run TF-TAS end to end."""
    RunBook(session).space(0, session.space, False)
    return finish_untrained(session, search_untrained(session, session.space, session.config.proxy))
