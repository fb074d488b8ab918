"""JSON and TOML from outside: anything wrong with a text is a ValueError that says it in a few words."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DEEPEST = 50  # tables inside tables; ours have six
LARGEST = 10**50  # still a finite float


def parse_json(text: str) -> Any:
    """JSON as plain data."""
    return _parsed(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """TOML as plain data."""
    found: dict[str, Any] = _parsed(tomllib.loads, text)
    return found


def read_json(path: Path, largest: int | None = LARGEST) -> Any:
    """A JSON file as plain data; file names in it may hold bytes that are not UTF-8."""
    return _parsed(json.loads, path.read_text("utf-8", "surrogateescape"), largest)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain data; file names in it may hold bytes that are not UTF-8."""
    return parse_toml(path.read_text("utf-8", "surrogateescape"))


def read_table(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, not an object")
    return found


def shown(text: str, lines: bool = False) -> str:
    """Text for a terminal: control codes and bytes that are no text are escaped; ``lines`` keeps line breaks."""
    keep = "\n\t" if lines else ""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def _parsed(parse: Callable[[str], Any], text: str, largest: int | None = LARGEST) -> Any:
    try:
        found = parse(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        if "int_max_str_digits" in str(error):
            raise ValueError("it holds a number of thousands of digits") from None
        raise
    require_plain(found, largest)
    return found


def require_plain(data: Any, largest: int | None = LARGEST) -> None:
    """Refuse what is nested too deeply for code that walks it, and whole numbers that are too large."""
    level, depth = [data], 0
    while level:
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")
        below: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                below += value.values()
            elif isinstance(value, list | tuple):
                below += value
            elif isinstance(value, int) and largest is not None and abs(value) > largest:
                raise ValueError(f"it holds a number of {len(str(abs(value)))} digits")
        level, depth = below, depth + 1
