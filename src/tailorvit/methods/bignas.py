"""BigNAS: one supernet by the sandwich rule with in-place distillation, a search, and weights used as they are."""

from __future__ import annotations

from typing import Any

from tailorvit.methods.autoformer import autoformer
from tailorvit.methods.session import Session


def bignas(session: Session) -> dict[str, Any]:
    """Run BigNAS end to end.

    The procedure is AutoFormer's. What makes it BigNAS is the training, which config.STARTS puts into the recipe, so
    that the run's own copy states it and each part can be switched off by hand.
    """
    return autoformer(session)
