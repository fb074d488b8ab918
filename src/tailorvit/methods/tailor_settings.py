"""The recipe table [tailor]: how a pretrained network is tailored."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailorvit import units


@dataclass(frozen=True)
class TailorSettings:
    """[tailor]."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    front: list[str | int] = field(default_factory=list)  # sizes such as "2M": one network is delivered for each

    def __post_init__(self) -> None:
        for size in self.front:
            units.parse(size, "params")
