"""AutoFormer and BigNAS: one supernet in a fixed space, a search under the limits, inherited or retrained weights."""

from __future__ import annotations

from typing import Any

from tailorvit.methods import Method
from tailorvit.methods.finish import finish
from tailorvit.methods.session import Session, SpaceRecord


def autoformer(session: Session) -> dict[str, Any]:
    """Run AutoFormer end to end.

    BigNAS is the same procedure. What makes it BigNAS is the training: the sandwich rule with in-place distillation,
    and weights used as they are. ``config.METHOD_DEFAULTS`` puts that into the recipe.
    """
    SpaceRecord(session).space_reached(0, session.space)
    supernet = session.supernet(session.space, 0)
    return finish(session, supernet.search(0), supernet)


AUTOFORMER = Method(
    "autoformer", "one supernet in a fixed space, then a search under the limit (AutoFormer)", autoformer
)
BIGNAS = Method(
    "bignas",
    "a sandwich supernet that teaches its own sub-networks, searched and used as it is (BigNAS)",
    autoformer,
    experimental=True,  # measured on digits only, where its distillation gains nothing over labels (docs/log.md)
)
