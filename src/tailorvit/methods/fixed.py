"""Fixed: train one given architecture, no search."""

from __future__ import annotations

from typing import Any

from tailorvit.methods.finish import finish
from tailorvit.methods.plan import fixed_arch
from tailorvit.methods.session import Session
from tailorvit.search import Candidate
from tailorvit.train import accuracy


def fixed(session: Session) -> dict[str, Any]:
    """Train the architecture the recipe gives."""
    arch, _ = fixed_arch(session.config)
    model = session.plain(arch, session.config.final.train, "final")
    percent = accuracy(model, session.search_batches(), session.device)
    return finish(session, [session.trial(Candidate(arch, "given"), percent, 0)], None)
