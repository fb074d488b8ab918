"""The recipe table [tailor]: how a pretrained network is tailored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tailorvit import units
from tailorvit.errors import TailorError


@dataclass(frozen=True)
class TailorSettings:
    """[tailor]."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    front: list[str | int] = field(default_factory=list)  # sizes such as "2M": one network is delivered for each
    search: Literal["shapes", "supernet"] = (
        "shapes"  # blocks all alike, or evolution in a supernet of blocks that differ
    )
    epochs: int = 25  # of the whole network's fine-tuning, before anything is cut
    lr: float = 2e-4  # in it
    # In it: share of the rate that is left with every block before the last. One rate for all blocks forgets what the
    # network knew: 8 epochs on 572 pets 48.6 % (80.5 with 0.7), on 612 flowers 73.5 (87.0).
    layer_decay: float = 0.7

    def __post_init__(self) -> None:
        if self.epochs < 1 or not 0 < self.lr < 1:
            raise TailorError(f"tailor.epochs and tailor.lr must be above 0, not {self.epochs} and {self.lr}.")
        if not 0 < self.layer_decay <= 1:
            raise TailorError(f"tailor.layer_decay must be above 0 and at most 1, not {self.layer_decay}.")
        for size in self.front:
            units.parse(size, "params")
