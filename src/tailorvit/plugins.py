"""Plug-ins: add a part by a call. Packages do the same by entry points (docs/adding.md)."""

from __future__ import annotations

from typing import Any

from tailorvit.errors import TailorError
from tailorvit.registry import Registry


def registries() -> dict[str, tuple[type[Any], Registry[Any]]]:
    """Per kind of part, by the plural that ``tailorvit list`` takes: the record's class and the registry."""
    from tailorvit.data.sources import SOURCES as DATA
    from tailorvit.data.sources import DataSource
    from tailorvit.export import EXPORTERS, Exporter
    from tailorvit.families import FAMILIES, Family
    from tailorvit.methods import METHODS, Method
    from tailorvit.proxies import PROXIES, Proxy
    from tailorvit.search import SEARCHERS, SearchMethod
    from tailorvit.trunks import SOURCES as TRUNKS
    from tailorvit.trunks import TrunkSource

    return {
        "families": (Family, FAMILIES),
        "methods": (Method, METHODS),
        "searchers": (SearchMethod, SEARCHERS),
        "proxies": (Proxy, PROXIES),
        "exporters": (Exporter, EXPORTERS),
        "data": (DataSource, DATA),
        "trunks": (TrunkSource, TRUNKS),
    }


def register(record: Any) -> Any:
    """Add a family, method, searcher, proxy, exporter, data source or trunk source to this program.

    The record's class says what it is; its name must be new. Returns the record.
    """
    for kind, registry in registries().values():
        if isinstance(record, kind):
            return registry.register(record)
    known = ", ".join(kind.__name__ for kind, _ in registries().values())
    raise TailorError(f"A {type(record).__name__} is no part of TailorViT; register one of {known}.")
