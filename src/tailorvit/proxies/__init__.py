"""Scores of untrained networks: PROXIES is the table, Scorer does the work."""

from __future__ import annotations

from collections.abc import Mapping

from tailorvit.errors import unknown
from tailorvit.proxies.base import Labelled, Proxy, ProxySettings, Refused, Scored, Task
from tailorvit.proxies.dss import DSS
from tailorvit.proxies.free import DEPTH, MACS, PARAMS
from tailorvit.proxies.grasp import GRASP
from tailorvit.proxies.learned import LEARNED
from tailorvit.proxies.naswot import NASWOT
from tailorvit.proxies.snip import SNIP
from tailorvit.proxies.te import TE, TE_RELEASED

PROXIES: Mapping[str, Proxy] = {
    p.name: p for p in (DSS, SNIP, GRASP, TE, TE_RELEASED, NASWOT, LEARNED, PARAMS, MACS, DEPTH)
}

__all__ = ["PROXIES", "Labelled", "Proxy", "ProxySettings", "Refused", "Scored", "Task", "proxy"]


def proxy(name: str) -> Proxy:
    """The proxy of that name."""
    if name not in PROXIES:
        raise unknown("proxy", name, PROXIES)
    return PROXIES[name]
