"""Scores of untrained networks. PROXIES names them, plug-ins add to it; Scorer in score.py computes them."""

from __future__ import annotations

from tailorvit.proxies.base import Labelled, Proxy, ProxySettings, Refused, Scored, Task
from tailorvit.registry import Registry

PROXIES: Registry[Proxy] = Registry(
    "proxy",
    "tailorvit.proxies",
    {
        "dss": "tailorvit.proxies.dss:DSS",
        "dss_paper": "tailorvit.proxies.dss:DSS_PAPER",
        "dss_official": "tailorvit.proxies.dss:DSS_OFFICIAL",
        "snip": "tailorvit.proxies.snip:SNIP",
        "grasp": "tailorvit.proxies.grasp:GRASP",
        "te": "tailorvit.proxies.te:TE",
        "te_released": "tailorvit.proxies.te:TE_RELEASED",
        "naswot": "tailorvit.proxies.naswot:NASWOT",
        "params": "tailorvit.proxies.counted:PARAMS",
        "macs": "tailorvit.proxies.counted:MACS",
        "depth": "tailorvit.proxies.counted:DEPTH",
    },
)

__all__ = ["PROXIES", "Labelled", "Proxy", "ProxySettings", "Refused", "Scored", "Task", "proxy"]


def proxy(name: str) -> Proxy:
    """The proxy of that name."""
    return PROXIES[name]
