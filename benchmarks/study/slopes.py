"""What S4's stored pairs say: which move step and raw slopes choose, and how often it would change if measured anew."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from study.sizes import Size
from tailorvit.seek.directions import Floats, best
from tailorvit.seek.moves import Move, moves
from tailorvit.space import Space

Table = dict[str, Any]
Units = Literal["step", "raw"]


def space_at(row: Table, step: int) -> Space | None:
    """The space S4 looked around from at a step: the last that was reached for it, repairs included."""
    found = [r["space"] for r in row["path"] if r.get("step", r["t"]) == step]
    return Space.from_dict(found[-1]) if found else None


def each_slope(facts: Table) -> Floats:
    """Points per unit of every stored pair of one dimension."""
    return np.array([(b - a) / (float(v) - float(u)) for u, v, a, b in facts["pairs"]], dtype=np.float64)


def options_at(row: Table, step: int, size: Size) -> tuple[Space, list[Move]] | None:
    """The space of a step and its legal neighbours."""
    here = space_at(row, step)
    return None if here is None else (here, moves(here, size.meter()))


def pick(options: list[Move], raw: Floats, shifts: Floats, units: Units) -> int:
    """The place of the chosen neighbour for given slopes per unit."""
    directions = np.array([m.gamma for m in options], dtype=np.int64)
    gains: Floats = directions @ (raw * shifts)
    return best(directions, raw * shifts if units == "step" else raw, gains, [m.size for m in options])[0]


def chosen(row: Table, step: int, units: Units, size: Size) -> Space | None:
    """The next space that the stored slopes of a step choose, read in these units; None where nothing is legal."""
    found, facts = options_at(row, step, size), [s for s in row["slopes"] if s["t"] == step]
    if found is None or not found[1] or not facts:
        return None
    raw, shifts = (np.array([float(s[k]) for s in facts]) for k in ("z", "shift"))
    return found[1][pick(found[1], raw, shifts, units)].space


def stability(row: Table, step: int, size: Size, draws: int = 300) -> Table | None:
    """Pairs drawn anew with replacement: how often each reading chooses the same move, and both the same.

    ``again`` is the share of draws with the commonest move; ``noise`` lists dimensions within two standard errors.
    """
    found, facts = options_at(row, step, size), [s for s in row["slopes"] if s["t"] == step]
    if found is None or not found[1] or not facts or any("pairs" not in s for s in facts):
        return None
    rng, each = np.random.default_rng(0), [each_slope(s) for s in facts]
    shifts = np.array([float(s["shift"]) for s in facts])
    picks: dict[Units, list[int]] = {"step": [], "raw": []}
    for _ in range(draws):
        again = np.array([rng.choice(e, len(e)).mean() if len(e) else 0.0 for e in each])
        for units, seen in picks.items():
            seen.append(pick(found[1], again, shifts, units))
    now = np.array([e.mean() if len(e) else 0.0 for e in each])
    first = {u: pick(found[1], now, shifts, u) for u in picks}
    return {
        "t": step,
        "legal": len(found[1]),
        "pairs": [len(e) for e in each],
        "z_step": {s["dim"]: round(s["z_step"], 3) for s in facts},
        "se_step": {s["dim"]: round(s["se_step"], 3) for s in facts},
        "noise": [s["dim"] for s in facts if abs(s["z"]) < 2 * s["se"]],
        "gamma": {u: list(found[1][k].gamma) for u, k in first.items()},
        "again": {u: float(np.mean(np.array(picks[u]) == k)) for u, k in first.items()},
        "same": float(np.mean(np.array(picks["step"]) == np.array(picks["raw"]))),
    }
