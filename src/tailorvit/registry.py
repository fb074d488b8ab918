"""Registry: one table for each kind of part, filled by this package, by ``register`` and by installed plug-ins.

A plug-in is a Python package with entry points: in its pyproject.toml, a line ``mine = "my_package:FAMILY"`` under
``[project.entry-points."tailorvit.families"]`` adds the family ``mine``. Parts are imported when they are first used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from typing import Any, Generic, Protocol, TypeVar

from tailorvit.errors import TailorError, unknown

HOME = "tailorvit"  # the origin of our own parts
HERE = "this program"  # the origin of parts registered by a call


class Named(Protocol):
    """What every record has."""

    @property
    def name(self) -> str:
        """The name recipes and commands use."""


T = TypeVar("T", bound=Named)


class Registry(Mapping[str, T], Generic[T]):
    """The records of one kind by name. Iterating gives names only, so that listing them imports nothing."""

    def __init__(self, kind: str, group: str, own: Mapping[str, str | T]) -> None:
        self.kind, self.group = kind, group
        self._own = dict(own)  # name to record, or to "module:attribute"
        self._loaded: dict[str, T] = {}
        self.added: dict[str, T] = {}  # by :meth:`register`
        self._plugins: dict[str, metadata.EntryPoint] | None = None

    def _installed(self) -> dict[str, metadata.EntryPoint]:
        """Entry points of other packages, read once; our own names cannot be replaced."""
        if self._plugins is None:
            points = metadata.entry_points(group=self.group)
            self._plugins = {p.name: p for p in sorted(points, key=_package) if p.name not in self._own}
        return self._plugins

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self._own, *self._installed(), *self.added])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self.added or name in self._installed()

    def __getitem__(self, name: str) -> T:
        if name in self.added:
            return self.added[name]
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The record of that name, or the default; an unknown name is a TailorError elsewhere, not a KeyError."""
        return self[name] if name in self else default  # noqa: SIM401

    def _load(self, name: str) -> T:
        if name in self._own:
            own = self._own[name]
            if not isinstance(own, str):
                return own
            module, _, attribute = own.partition(":")
            return getattr(import_module(module), attribute)  # type: ignore[no-any-return]
        point = self._installed().get(name)
        if point is None:
            raise unknown(self.kind, name, self)
        try:
            record: T = point.load()
        except Exception as error:  # a plug-in may fail in any way, and must not take the program with it
            reason = f"{type(error).__name__}: {error}"
            raise TailorError(f"The {self.kind} '{name}' of {_package(point)} cannot be loaded ({reason}).") from error
        if getattr(record, "name", None) != name:
            raise TailorError(
                f"The {self.kind} '{name}' of {_package(point)} is not a record with that name, but {record!r:.60}."
            )
        return record

    def working(self) -> Iterator[T]:
        """Every record that can be loaded; plug-ins that fail are passed over."""
        for name in self:
            with contextlib.suppress(TailorError):
                yield self[name]

    def register(self, record: T) -> T:
        """Add a record for this program."""
        if record.name in self._own or record.name in self._installed():
            raise TailorError(f"There is a {self.kind} '{record.name}' already, from {self.origin(record.name)}.")
        self.added[record.name] = record
        return record

    def origin(self, name: str) -> str:
        """Where a part comes from: this package, the name of a plug-in's package, or this program."""
        if name in self._own:
            return HOME
        point = self._installed().get(name)
        return HERE if point is None else _package(point)

    def rows(self) -> list[dict[str, Any]]:
        """Name, summary, origin and paper of every record; a plug-in that fails says so in its summary."""
        rows = []
        for name in self:
            try:
                record = self[name]
            except TailorError as error:
                rows.append({"name": name, "summary": str(error), "origin": self.origin(name), "broken": True})
                continue
            row = {"name": name, "summary": getattr(record, "summary", ""), "origin": self.origin(name)}
            row |= {key: value for key in ("paper", "experimental") if (value := getattr(record, key, None))}
            rows.append(row)
        return rows


def _package(point: metadata.EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
