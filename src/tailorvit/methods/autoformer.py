"""AutoFormer: one supernet in a fixed space, a search under the limits, inherited or retrained weights."""

from __future__ import annotations

from typing import Any

from tailorvit.methods.finish import finish
from tailorvit.methods.s4 import RunBook
from tailorvit.methods.session import Session


def autoformer(session: Session) -> dict[str, Any]:
    """Run AutoFormer end to end."""
    RunBook(session).space(0, session.space, False)
    net = session.supernet(session.space, 0)
    net.model()  # trained here, so that its time is not counted as the search's
    net.spread(0)
    trials = session.search(session.space, lambda candidates, generation: net.score("search", candidates, generation))
    return finish(session, trials, net)
