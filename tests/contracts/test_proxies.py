"""Every proxy of ours passes the contract that ships with the package."""

from __future__ import annotations

from tailorvit.proxies import PROXIES
from tailorvit.testing import ProxyContract

OURS = [name for name in PROXIES if PROXIES.origin(name) == "tailorvit"]
for _name in OURS:
    globals()[f"Test{_name.title().replace('_', '')}"] = type(f"Test{_name}", (ProxyContract,), {"name": _name})


def test_every_proxy_of_ours_is_tested():
    assert {kind.name for kind in ProxyContract.__subclasses__()} >= set(OURS) and len(OURS) > 10
