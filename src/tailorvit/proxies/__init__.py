"""Scores of untrained networks: PROXIES is the table, Scorer in score.py computes them."""

from __future__ import annotations

from collections.abc import Mapping

from tailorvit.errors import unknown
from tailorvit.proxies.base import Labelled, Proxy, ProxySettings, Refused, Scored, Task
from tailorvit.proxies.counted import DEPTH, MACS, PARAMS, PREDICTOR
from tailorvit.proxies.dss import DSS, DSS_OFFICIAL, DSS_PAPER
from tailorvit.proxies.grasp import GRASP
from tailorvit.proxies.naswot import NASWOT
from tailorvit.proxies.snip import SNIP
from tailorvit.proxies.te import TE, TE_RELEASED

PROXIES: Mapping[str, Proxy] = {
    p.name: p
    for p in (
        *(DSS, DSS_PAPER, DSS_OFFICIAL),
        *(SNIP, GRASP),
        *(TE, TE_RELEASED),
        NASWOT,
        PREDICTOR,
        *(PARAMS, MACS, DEPTH),
    )
}

__all__ = ["PROXIES", "Labelled", "Proxy", "ProxySettings", "Refused", "Scored", "Task", "proxy"]


def proxy(name: str) -> Proxy:
    """The proxy of that name."""
    if name not in PROXIES:
        raise unknown("proxy", name, PROXIES)
    return PROXIES[name]
