"""Fixed: train one architecture, no search."""

from __future__ import annotations

from typing import Any

from tailorvit.methods import Method
from tailorvit.methods.finish import finish
from tailorvit.methods.first_space import fixed_arch
from tailorvit.methods.session import Session
from tailorvit.search import Candidate


def fixed(session: Session) -> dict[str, Any]:
    """Train the architecture in the recipe."""
    arch, _ = fixed_arch(session.config)
    model = session.plain(arch, session.config.final.train, "final")
    trial = session.trial(Candidate(arch, "given"), session.search_accuracy(model), 0)
    return finish(session, [trial], None, given=True)


METHOD = Method("fixed", "train one given architecture, no search", fixed)
