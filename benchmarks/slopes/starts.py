"""The table of S4 from a bad start, from its stored rows; what was run, and how, is in the page."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import markdown, read

RESULTS = Path(__file__).parent / "results"


def tables() -> dict[str, str]:
    """One line a case: mean over searches of the mean of a network's three trainings, and what was found."""
    rows, lines = read(RESULTS / "starts-2026-11-15.json")["rows"], []
    for case in dict.fromkeys(r["case"] for r in rows):
        same = [r for r in rows if r["case"] == case]
        means = [float(np.mean(r["tests"])) for r in same]
        deviation = f"{np.std(means, ddof=1):.2f}" if len(means) > 1 else "-"
        shapes = ", ".join(f"{r['arch']['depth']} x {r['arch']['embed']}" for r in same)
        params, seconds = (f"{np.mean([r[k] for r in same]):,.0f}" for k in ("params", "search_seconds"))
        lines.append((case, len(same), params, f"{np.mean(means):.2f}", deviation, seconds, shapes))
    head = ("case", "searches", "parameters", "test %", "deviation", "search, s", "blocks x channels found")
    within = np.sqrt(np.mean([np.var(r["tests"], ddof=1) for r in rows if len(r["tests"]) > 1]))
    return {"starts": f"{markdown(head, lines)}\n\nDeviation of one training of one network: {within:.2f} points."}
