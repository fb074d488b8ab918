"""Dim: one dimension of a space, its choices, who shares a value, and how far a move of the space shifts it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from tailorvit.arch import Value, number, require_blocks
from tailorvit.errors import TailorError

Scope = Literal["global", "stage", "block"]
MOST_CHOICES = 1000
SCOPES: tuple[Scope, ...] = ("global", "stage", "block")


def _plus(value: Value, steps: int, step: Value) -> Value:
    """value + steps*step without binary drift: 3.1 + 2*0.1 is 3.3."""
    return number(Fraction(str(value)) + steps * Fraction(str(step)))


@dataclass(frozen=True)
class Dim:
    """One dimension: its choices, who shares a value (scope), how far one space move shifts it.

    A move shifts an interval and may lead it over a bound. The choices are the part of it that can be built;
    ``nominal`` is the whole of it, empty where that is the same, so that a move back brings the rest back.
    """

    name: str
    choices: tuple[Value, ...]
    scope: Scope = "global"
    stage: int | None = None
    shift: Value = 0
    minimum: Value = 0
    maximum: Value | None = None
    nominal: tuple[Value, ...] = ()

    def __post_init__(self) -> None:
        choices, nominal = (tuple(number(c) for c in values) for values in (self.choices, self.nominal))
        where = f"dimension '{self.key}'"
        if self.scope not in SCOPES:
            raise TailorError(f"The scope of {where} is '{self.scope}'; it must be one of {', '.join(SCOPES)}.")
        if max(len(choices), len(nominal)) > MOST_CHOICES:
            raise TailorError(f"A dimension has at most {MOST_CHOICES} choices; {where} has {len(choices)}.")
        if not choices or list(choices) != sorted(set(choices)) or choices[0] <= 0:
            raise TailorError(
                f"The choices of {where} must be positive, ascending and different, not {list(self.choices)}."
            )
        if self.name == "depth" and any(not isinstance(c, int) for c in choices):
            raise TailorError(f"The choices of {where} must be whole numbers, not {list(self.choices)}.")
        if self.name == "depth":
            require_blocks({self.key: choices[-1]})
        gaps = [_plus(b, -1, a) for a, b in itertools.pairwise(choices)]
        shift = number(self.shift) or (min(gaps) if gaps else 1)
        minimum = number(self.minimum) or (1 if all(isinstance(c, int) for c in choices) else min(shift, choices[0]))
        if choices[0] < minimum:
            raise TailorError(f"The smallest choice {choices[0]} of {where} lies under its minimum {minimum}.")
        maximum = None if self.maximum is None else number(self.maximum)
        if maximum is not None and choices[-1] > maximum:
            raise TailorError(f"The largest choice {choices[-1]} of {where} lies over its maximum {self.maximum}.")
        if shift < 0:
            raise TailorError(f"The shift of {where} must be positive, not {shift}.")
        if nominal and (list(nominal) != sorted(set(nominal)) or not set(choices) <= set(nominal)):
            raise TailorError(
                f"The nominal choices of {where} must be ascending, different and hold its choices {list(choices)}, "
                f"not {list(self.nominal)}."
            )
        object.__setattr__(self, "choices", choices)
        object.__setattr__(self, "nominal", () if nominal == choices else nominal)
        object.__setattr__(self, "shift", shift)
        object.__setattr__(self, "minimum", minimum)
        object.__setattr__(self, "maximum", maximum)

    @property
    def key(self) -> str:
        """The gene this dimension fills: its name, with the stage behind a dot where there is one."""
        return self.name if self.stage is None else f"{self.name}.{self.stage}"

    @property
    def interval(self) -> tuple[Value, ...]:
        """All choices of the interval, those that its bounds or a tie leave out included."""
        return self.nominal or self.choices

    def only(self, *choices: Value) -> Dim:
        """The dimension with these choices and no others behind them."""
        return replace(self, choices=choices, nominal=())

    @property
    def low(self) -> Value:
        """The smallest choice."""
        return self.choices[0]

    @property
    def high(self) -> Value:
        """The largest choice."""
        return self.choices[-1]

    @classmethod
    def span(cls, name: str, low: Value, high: Value, step: Value, **rest: Any) -> Dim:
        """A dimension with evenly spaced choices low, low+step, ..., high."""
        low, high, step = number(low), number(high), number(step)
        if step <= 0 or high < low:
            raise TailorError(f"Dimension '{name}' needs low <= high and step > 0, not {low}, {high}, {step}.")
        count = int((Fraction(str(high)) - Fraction(str(low))) / Fraction(str(step))) + 1
        if count > MOST_CHOICES:
            raise TailorError(f"A dimension has at most {MOST_CHOICES} choices; '{name}' has {count}.")
        choices = tuple(_plus(low, i, step) for i in range(count))
        if choices[-1] != high:
            raise TailorError(f"Dimension '{name}': {high} is not {low} plus whole steps of {step}.")
        return cls(name, choices, **{"shift": step, **rest})

    @lru_cache(maxsize=1024)  # noqa: B019 - a Dim is a value; S4 asks for the same few moves thousands of times
    def moved(self, steps: int, nonpositive: Literal["drop", "strict"] = "drop") -> Dim:
        """The interval moved by ``steps`` shifts; only choices within the bounds remain (strict: none may be lost)."""
        moved = tuple(_plus(c, steps, self.shift) for c in self.interval)
        kept = tuple(c for c in moved if c >= self.minimum and c > 0 and (self.maximum is None or c <= self.maximum))
        if not kept or (nonpositive == "strict" and len(kept) < len(self.choices)):
            bounds = f"under its minimum {self.minimum}" if steps < 0 else f"over its maximum {self.maximum}"
            raise TailorError(f"Dimension '{self.key}' cannot move by {steps}: {list(moved)} falls {bounds}.")
        return replace(self, choices=kept, nominal=moved)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        told = {"scope": self.scope, "stage": self.stage, "choices": list(self.choices), "shift": self.shift}
        told |= {"minimum": self.minimum, "maximum": self.maximum, "nominal": list(self.nominal) or None}
        return {k: v for k, v in told.items() if v is not None}

    @classmethod
    def from_dict(cls, key: str, data: Mapping[str, Any]) -> Dim:
        """Read plain data: explicit ``choices`` or ``low``/``high``/``step``."""
        known = {"scope", "stage", "choices", "nominal", "shift", "minimum", "maximum", "low", "high", "step"}
        extra = sorted(set(data) - known)
        if extra:
            raise TailorError(f"Dimension '{key}' has the unknown key '{extra[0]}'; known: {', '.join(sorted(known))}.")
        name, _, stage = key.partition(".")
        if str(data.get("stage", stage)) != stage:
            raise TailorError(f"Dimension '{key}' says stage {data['stage']}; write it in the name, like depth.1.")
        rest = {k: data[k] for k in ("scope", "shift", "minimum", "maximum", "nominal") if k in data}
        rest["stage"] = int(stage) if stage else None
        if "choices" in data:
            for what in ("choices", "nominal"):
                if not isinstance(data.get(what, ()), list | tuple):
                    raise TailorError(f"The {what} of dimension '{key}' must be a list, not {data[what]!r}.")
            return cls(name, tuple(data["choices"]), **rest)
        if not {"low", "high", "step"} <= set(data):
            raise TailorError(f"Dimension '{key}' needs 'choices', or 'low', 'high' and 'step'.")
        return cls.span(name, data["low"], data["high"], data["step"], **rest)
