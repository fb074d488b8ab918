"""Sizes as people write them: 30M, 1.5G, 12ms, 512MiB."""

from __future__ import annotations

import re
from fractions import Fraction

from tailorvit.errors import TailorError

_COUNT = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}  # the micro sign and the Greek letter
_BYTES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_TABLES: dict[str, tuple[dict[str, int] | dict[str, float], str]] = {
    "params": (_COUNT, "30M or 500k"),
    "macs": (_COUNT, "1.5G or 200M"),
    "latency": (_TIME, "12ms or 0.5s"),
    "memory": (_BYTES, "512MiB or 2GiB"),
    "time": ({"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}, "10m or 2h"),
}


def parse(text: str | int | float, metric: str) -> float:
    """Read a size of the given metric; plain numbers pass (latency in seconds, memory in bytes)."""
    table, example = _TABLES[metric]
    if isinstance(text, int | float) and not isinstance(text, bool):
        value = float(text)
    else:
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµμ]*)\s*", str(text))
        if not match or (match[2] and match[2] not in table):
            raise TailorError(f"Cannot read '{text}' as a limit on {metric}; write it like {example}.")
        # Exact before it is rounded once: 1.001M is 1,001,000 and holds a network of that size.
        value = float(match[1])
        if value < 1e200:
            value = float(Fraction(match[1]) * Fraction(str(table.get(match[2], 1))))
    if not 0 < value < 1e200:
        raise TailorError(f"A limit on {metric} must be above zero and finite, not '{text}'.")
    return value


def show(value: float, metric: str = "params") -> str:
    """Print a size the way it is read: three to four figures and a unit."""
    if metric == "latency":
        return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
    base, names = (1024, ["B", "KiB", "MiB", "GiB", "TiB"]) if metric == "memory" else (1000, ["", "k", "M", "G", "T"])
    power = 0
    while abs(value) >= base and power < len(names) - 1:
        value, power = value / base, power + 1
    digits = f"{value:.0f}" if power == 0 else f"{value:.4g}"
    return f"{digits} {names[power]}" if metric == "memory" else f"{digits}{names[power]}"
