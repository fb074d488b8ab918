"""Arch: one architecture as a frozen, hashable, JSON-able value.

Genes are numbers (global or stage dimensions) or tuples with one number per active block, so two spellings of one
network never differ: surplus layers are not stored and whole floats become integers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tailorvit.errors import TailorError
from tailorvit.texts import parse_json

Value = int | float
Gene = int | float | tuple[int | float, ...]


MOST_BLOCKS = 1000  # of a network; the deepest published ones have some hundred


def require_blocks(genes: Mapping[str, Any]) -> None:
    """Refuse more blocks than any network has, before a value is made for each of them."""
    for key, value in genes.items():
        count = len(value) if isinstance(value, list | tuple) else value if key.partition(".")[0] == "depth" else 0
        if isinstance(count, int | float) and count > MOST_BLOCKS:
            raise TailorError(f"A network has at most {MOST_BLOCKS} blocks; '{key}' asks for {count:.10g}.")


def number(value: Any) -> Value:
    """The one spelling of a number: whole values are int, others float."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TailorError(f"'{value}' is not a number.")
    try:
        real = float(value)
    except OverflowError:
        raise TailorError(f"A number of {len(str(value))} digits is too large.") from None
    if real != real or real in (float("inf"), float("-inf")):
        raise TailorError(f"'{value}' is not a finite number.")
    return int(real) if real.is_integer() else real


def gene(value: Any) -> Gene:
    """A number, or a tuple of numbers."""
    if isinstance(value, list | tuple):
        return tuple(number(v) for v in value)
    return number(value)


class Arch(Mapping[str, Gene]):
    """An architecture: ``Arch("vit", depth=2, embed=64, heads=(2, 3), mlp=(3.5, 4))``."""

    __slots__ = ("_genes", "_hash", "family")

    family: str
    _genes: dict[str, Gene]
    _hash: int

    def __init__(self, family: str, **genes: Any) -> None:
        require_blocks(genes)
        object.__setattr__(self, "family", family)
        object.__setattr__(self, "_genes", {k: gene(genes[k]) for k in sorted(genes)})
        object.__setattr__(self, "_hash", hash((family, tuple(self._genes.items()))))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an Arch is a value: build a new one instead of setting {name}")

    def __getitem__(self, key: str) -> Gene:
        return self._genes[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._genes)

    def __len__(self) -> int:
        return len(self._genes)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arch) and self.family == other.family and self._genes == other._genes

    def __reduce__(self) -> tuple[Any, ...]:
        return (Arch.from_dict, (self.to_dict(),))

    def __repr__(self) -> str:
        return f"Arch({self.family!r}, {', '.join(f'{k}={v}' for k, v in self._genes.items())})"

    def one(self, key: str) -> Value:
        """A gene known to be a single number."""
        value = self._genes[key]
        if isinstance(value, tuple):
            raise TypeError(f"gene '{key}' holds one value per block")
        return value

    def many(self, key: str) -> tuple[Value, ...]:
        """A gene known to hold one number per block."""
        value = self._genes[key]
        if not isinstance(value, tuple):
            raise TypeError(f"gene '{key}' holds a single value")
        return value

    def replace(self, **genes: Any) -> Arch:
        """A new Arch with some genes changed."""
        return Arch(self.family, **{**self._genes, **genes})

    def to_dict(self) -> dict[str, Any]:
        """Plain data: family plus genes, tuples as lists."""
        return {"family": self.family, **{k: list(v) if isinstance(v, tuple) else v for k, v in self._genes.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Arch:
        """Read :meth:`to_dict`'s form."""
        if not isinstance(data.get("family"), str):
            raise TailorError('An architecture needs a \'family\', for example {"family": "vit", "depth": 12, ...}.')
        return cls(data["family"], **{k: v for k, v in data.items() if k != "family"})

    def to_json(self) -> str:
        """Canonical one-line JSON; equal architectures give equal text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Arch:
        """Read :meth:`to_json`'s form."""
        try:
            data = parse_json(text)
        except ValueError as error:
            raise TailorError(f"The architecture is not valid JSON: {error}.") from None
        if not isinstance(data, dict):
            raise TailorError("An architecture is a JSON object with a 'family' and its genes.")
        return cls.from_dict(data)
