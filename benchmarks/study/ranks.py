"""Rank correlations of the CIFAR-10 study: what inherited accuracy and untrained scores know of retrained accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from study.sizes import Size
from study.worker import scores
from tailorvit.arch import Arch
from tailorvit.stats import kendall

Table = dict[str, Any]
DRAWS = 2000


def interval(a: Sequence[float], b: Sequence[float], draws: int = DRAWS) -> tuple[float, float] | None:
    """95 % bootstrap interval of Kendall's tau-b over the networks."""
    rng, found = np.random.default_rng(0), []
    x, y = np.asarray(a), np.asarray(b)
    for _ in range(draws if len(x) > 2 else 0):
        at = rng.integers(len(x), size=len(x))
        tau = kendall(x[at].tolist(), y[at].tolist())
        if tau is not None:
            found.append(tau)
    return (float(np.quantile(found, 0.025)), float(np.quantile(found, 0.975))) if found else None


def pairs(done: Mapping[str, Table], source: str, where: str) -> list[Table]:
    """Networks of one space with inherited accuracy and what they reach from scratch."""
    listed = (done.get(source) or {}).get("rank") or []
    found = []
    for k, row in enumerate(listed):
        own = done.get(f"rank-{where}-{k}")
        if own and "test" in own:
            found.append({**row, "space": where, "test": own["test"], "search": own["search"]})
    return found


def _within(rows: Sequence[Table], key: str) -> list[float]:
    """A figure less the mean over its space: supernets of two spaces differ in level, which is no ranking."""
    mean = {w: float(np.mean([r[key] for r in rows if r["space"] == w])) for w in {r["space"] for r in rows}}
    return [r[key] - mean[r["space"]] for r in rows]


def study(done: Mapping[str, Table], size: Size) -> Table:
    """Taus of everything that could have ranked the networks, per space and over both, with intervals."""
    rows = pairs(done, "b-autoformer-0", "first") + pairs(done, "e-s4-warm-0", "last")
    if len(rows) < 4:
        return {"networks": len(rows), "taus": []}
    known = scores([Arch.from_dict(r["genes"]) for r in rows], size)
    rows = [{**k, **r} for k, r in zip(known, rows, strict=True)]
    taus = []
    for where in ("first", "last", "both"):
        some = [r for r in rows if where in (r["space"], "both")]
        if len(some) < 4:
            continue
        truth = _within(some, "test")
        for key in ("inherited", "predictor", "dss", "params", "macs", "depth", "search"):
            if any(r.get(key) is None for r in some):
                continue
            mine = _within(some, key)
            tau, band = kendall(mine, truth), interval(mine, truth)
            taus.append({"space": where, "by": key, "networks": len(some), "tau": tau, "interval": band})
    gap = [r["search"] - r["inherited"] for r in rows]
    bias = {}
    for key in ("depth", "params"):
        x = np.array(_within(rows, key))
        y = np.array(_within([{**r, "gap": g} for r, g in zip(rows, gap, strict=True)], "gap"))
        unit = 1.0 if key == "depth" else 1e5
        bias[key] = float(x @ y / (x @ x)) * unit if float(x @ x) > 0 else None
    return {"networks": len(rows), "taus": taus, "rows": rows, "gap_per_block": bias["depth"]} | {
        "gap_per_100k": bias["params"]
    }
