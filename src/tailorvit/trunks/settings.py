"""What a recipe says about a frozen trunk."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tailorvit.errors import TailorError

FORBID = {"extra": "forbid"}


@dataclass(frozen=True)
class TrunkSettings:
    """Which tower, how much of it, and where its outputs are kept."""

    __pydantic_config__ = FORBID
    source: str = ""  # none unless given
    layers: int | None = None  # keep the first so many blocks
    taps: int | None = None  # of those kept, give the outputs of the last so many
    mirror: bool = False  # keep a second, mirrored view of the training images
    batch: int = 64  # images a pass through the trunk
    cache: str = ""  # folder; the user's cache folder unless given

    def __post_init__(self) -> None:
        for name in ("layers", "taps", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TailorError(f"trunk.{name} must be at least 1, not {value}.")
        if not self.source and any(getattr(self, f.name) != f.default for f in fields(self)):
            raise TailorError("The [trunk] table needs 'source', for example trunk.source = \"random:tiny\".")
