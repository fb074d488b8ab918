"""Whether a run on one's own images that names no start begins with a pretrained network: for photos it does.

On 102 kinds of flowers a pretrained network cut to 3M parameters is over ten points ahead of the best trained from
scratch; under 2M, and on images unlike photos, from scratch suits better (benchmarks/pretrained).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailorvit.data.sources import read_source
from tailorvit.errors import TailorError
from tailorvit.methods.contest import AUTO
from tailorvit.methods.schedule import LEAST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from tailorvit.config import Config

LEAST_PARAMS = 3e6  # that the limits must allow
LEAST_SIDE = 64  # pixels
COLOURS = 3
OTHERWISE = "--from none trains from scratch"


def suits_pretrained(config: Config) -> bool:
    """Whether colour photos are to be classified by a network that may have millions of parameters.

    Nothing but files is looked at. What else is wrong with the data is told by the run itself.
    """
    limit, size = config.budget().high("params"), config.data.image_size
    chosen = config.family != AUTO or config.space != "auto" or bool(config.trunk.source or config.start.supernet)
    if config.method != "contest" or chosen or (limit is not None and limit < LEAST_PARAMS):
        return False
    if size is not None and min(size if isinstance(size, tuple | list) else (size,)) < LEAST_SIDE:
        return False
    try:
        images = read_source(config.data.source)
        if size is None:
            images.prepare(None, len(images.labels), 0)
    except TailorError:
        return False
    return images.channels == COLOURS and (size is not None or min(images.size) >= LEAST_SIDE)


def require_epochs(plan: Mapping[str, Any] | None) -> None:
    """Refuse a plan of so few epochs that nobody who did not ask for it should get it."""
    if plan is not None and min(plan["whole_epochs"], plan["final_epochs"]) < LEAST:
        raise TailorError(f"the time is enough for fewer than {LEAST} epochs of it")


def why_not(source: str, error: TailorError) -> str:
    """The sentence of a run that goes on from scratch instead."""
    reason = str(error).split(". ")[0].rstrip(".")
    return f"{source} is at hand but cannot be used here ({reason}), so the run goes on from scratch."
