"""Fields of a run's files: what may stand in them, and what is read where something else does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

from tailorvit.report.charts import trim

PART = ConfigDict(frozen=True, extra="allow")  # of a part of a file: keys of other versions are kept aside
CLASSES = 100_000
NAME = 200  # characters of a class name; a thousand endless names would make an endless page
LARGEST = 10**100  # a number beyond this is damage, and the range of an axis would overflow
_PICTURE = re.compile(r"data:image/(?:png|jpeg);base64,[A-Za-z0-9+/=]+")
_PICTURE_LENGTH = 200_000  # characters; the analysis keeps pictures of at most 128 pixels, about 10 kB


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -LARGEST <= value <= LARGEST else None


def whole(value: Any) -> int | None:
    """A whole number, or None."""
    found = number(value)
    return None if found is None else int(found)


def numbers(value: Any) -> tuple[float, ...]:
    """The finite numbers of a list."""
    return tuple(v for item in listed(value) if (v := number(item)) is not None)


def table(value: Any) -> Mapping[str, Any]:
    """A mapping, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> list[Any]:
    """A list, or an empty one."""
    return list(value) if isinstance(value, list | tuple) else []


def checked_picture(value: Any, most: int = _PICTURE_LENGTH) -> str | None:
    """A picture that the page may carry: PNG or JPEG bytes in the address itself, nothing else."""
    fits = isinstance(value, str) and len(value) <= most and _PICTURE.fullmatch(value)
    return value if fits else None


def between(low: float, high: float, kind: Callable[[Any], Any] = number) -> Callable[[Any], Any]:
    """A check for values from low to under high."""

    def check(value: Any) -> Any:
        found = kind(value)
        return found if found is not None and low <= found < high else None

    return check


def json_table(value: Any) -> Any:
    """A database column that holds a JSON object."""
    found = json.loads(value) if isinstance(value, str | bytes) else value
    if not isinstance(found, Mapping):
        raise ValueError("not an object")
    return found


def finite(value: Any) -> dict[str, float]:
    """The finite numbers of a mapping."""
    return {str(k): found for k, v in table(value).items() if (found := number(v)) is not None}


def objects(value: Any) -> list[Any]:
    """The mappings of a list."""
    return [row for row in listed(value) if row and isinstance(row, Mapping | BaseModel)]


def label(value: Any) -> str:
    """A short name; a number may be one."""
    found = number(value)
    return trim(value, NAME) if isinstance(value, str) else "" if found is None else f"{found:g}"


def whole_text(text: str) -> int | None:
    """A short text of digits as a number."""
    return int(text) if text.isdecimal() and len(text) < 7 else None


Number = Annotated[float | None, BeforeValidator(number)]
Whole = Annotated[int | None, BeforeValidator(whole)]
Amount = Annotated[float | None, BeforeValidator(between(0, 1e18))]
Positive = Annotated[int | None, BeforeValidator(between(1, 10**15, whole))]
Class = Annotated[int | None, BeforeValidator(between(0, CLASSES, whole))]
Share = Annotated[float | None, BeforeValidator(between(0, 1 + 1e-12))]
Picture = Annotated[str | None, BeforeValidator(lambda value: checked_picture(value))]
Flag = Annotated[bool, BeforeValidator(lambda value: value is True)]
Text = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else "")]
Name = Annotated[str, BeforeValidator(lambda value: trim(str(value or "no name"), 2 * NAME))]
Label = Annotated[str, BeforeValidator(label)]
Index = Annotated[int | None, BeforeValidator(between(0, 1000, whole))]
Table = Annotated[Mapping[str, Any], BeforeValidator(table)]
Column = Annotated[Mapping[str, Any], BeforeValidator(json_table)]
Numbers = Annotated[tuple[float, ...], BeforeValidator(numbers)]
Finite = Annotated[Mapping[str, float], BeforeValidator(finite)]
Words = Annotated[tuple[str, ...], BeforeValidator(lambda value: tuple(map(str, listed(value)[:20])))]
Sizes = Annotated[tuple[int, ...], BeforeValidator(lambda value: tuple(n for v in listed(value) if (n := whole(v))))]
