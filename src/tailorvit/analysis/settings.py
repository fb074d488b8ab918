"""Settings of the analysis at the end of a run."""

from __future__ import annotations

from dataclasses import dataclass

from tailorvit.errors import TailorError

# Pictures and maps lie inside the report: 200 mistakes of 64 x 64 noise are 3.3 MB of its 8 MiB.
_MOST = {"samples": 100_000, "images": 16, "mistakes": 200}


@dataclass(frozen=True)
class AnalysisSettings:
    """How much is analysed; 0 leaves a part out."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by config.py

    samples: int = 60  # random sub-networks of every space visited, evaluated for its error distribution
    images: int = 4  # test images with attention maps
    mistakes: int = 24  # most confident mistakes kept as pictures

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= most:
                raise TailorError(f"analysis.{name} must be a whole number from 0 to {most}, not {value}.")
