"""One S4 step of every family on a tiny space: train the supernet, measure the slopes, choose a neighbour.

The windowed family of S3 has a dimension per stage, too many for S4's 3^n - 1 neighbours: it takes a step of its own
method, with as many evaluations as S4 would need pairs.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import tailorvit
from tailorvit.families import FAMILIES
from tailorvit.runs import Run

LIMIT, EPOCHS, PAIRS = "20k", 6, 10


def _recipe(name: str, quick: bool) -> list[str]:
    """The same step for all: automatic space, digits, single-path training, then as little as a run can end with."""
    sets = {
        "family": name,
        "train.epochs": 1 if quick else EPOCHS,
        "train.batch": 64,
        "s4.iterations": 1,
        "s4.pairs": 2 if quick else PAIRS,
        "s4.warm_start": "false",
        "search.population": 2,
        "search.parents": 1,
        "search.generations": 1,
        "search.crossover": 1,
        "search.mutation": 1,
        "final.how": "inherit",
        "baseline": "false",
        "analysis.samples": 0,
        "analysis.images": 0,
        "threads": 1,
    }
    if name == "windowed":
        sets |= {"method": "s3", "train.rule": "single_path", "s3.updates": 1, "s3.warm_start": "false"}
        sets |= {"s3.samples": 2 * int(sets["s4.pairs"]), "s3.top": 2, "s3.max_shift": 1}
    if name == "ladder":
        sets["trunk.source"] = "random:tiny"
    return [f"{key}={value}" for key, value in sets.items()]


def steps(quick: bool) -> list[dict[str, Any]]:
    """Seconds of the first supernet and of its slopes by family; the whole step against the ViT's."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        for name in FAMILIES:
            parts: list[dict[str, float]] = []
            for turn in range(1 if quick else 3):
                out = Path(place) / f"{name}-{turn}"
                tailorvit.run(
                    "s4-digits", limits={"max_params": LIMIT}, sets=_recipe(name, quick), out=out, progress="quiet"
                )
                with Run.open(out) as record:
                    spent, space = record.seconds(), record.spaces()[0]["space"]
                slopes = spent["et-0" if name == "windowed" else "slopes-0"]
                parts.append({"supernet": spent["supernet-0"], "slopes": slopes})
            middle = {part: statistics.median(p[part] for p in parts) for part in ("supernet", "slopes")}
            counter = tailorvit.Counter(name, dict(space.fixed))
            params, macs = counter.both(space.largest())
            method = "s3" if name == "windowed" else "s4"
            rows.append(
                {"family": name, "method": method, "dims": len(space.dims), "params": params, "macs": macs, **middle}
            )
    base = next(r["supernet"] + r["slopes"] for r in rows if r["family"] == "vit")
    return [{**row, "step_against_vit": (row["supernet"] + row["slopes"]) / base} for row in rows]
