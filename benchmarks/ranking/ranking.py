"""Which scores rank trained networks: every proxy against every accuracy of the reference tables, beside #params.

The tables are not part of the project; their folder is an argument. ``--predictor FILE`` fits the predictor that
comes with the package on all of them and writes it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tailorvit.costs.measure import cpu_name
from tailorvit.proxies import PROXIES
from tailorvit.proxies.agreement import agree
from tailorvit.proxies.base import ProxySettings
from tailorvit.proxies.predictor import pooled
from tailorvit.proxies.ranking import rank, scoring
from tailorvit.proxies.tables import Table, read_table

HERE = Path(__file__).parent
NAMES = ("imagenet_autoformer_tiny", "vitbench_autoformer_tiny", "vitbench_pit_tiny")
SLOW = ("dss", "snip", "naswot", "te_released", "te", "grasp")
BAND = 0.05


def band_tau(score: Sequence[float], table: Table, key: str) -> float | None:
    return agree(score, table.targets[key], table.params, BAND, bootstrap=0).band_tau.value


def matrix(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Predictors fitted on some tables, asked about each: in the band and among all pairs."""
    rows = []
    groups = [[i] for i in range(len(tables))]
    groups += [[k for k in range(len(tables)) if k != i] for i in range(len(tables))]
    for group in groups:
        model = pooled([tables[i] for i in group], BAND, bootstrap=0)
        for i, table in enumerate(tables):
            if i in group:
                continue
            score = model.predict([r.arch for r in table.rows], [r.fixed for r in table.rows])[0]
            for key, truth in table.targets.items():
                facts = agree(score.tolist(), truth, table.params, BAND, beside=table.params)
                rows.append(
                    {
                        "fitted_on": [tables[k].name for k in group],
                        "table": table.name,
                        "target": key,
                        **facts.to_dict(),
                        "params_band_tau": band_tau(table.params.tolist(), table, key),
                    }
                )
    return rows


def ceiling(table: Table) -> dict[str, dict[str, float | None]]:
    """Tau in the band between the accuracies themselves: what one training says about another."""
    return {a: {b: band_tau(table.targets[a].tolist(), table, b) for b in table.targets} for a in table.targets}


def few(table: Table, counts: Sequence[int], seeds: int = 5) -> list[dict[str, Any]]:
    """A predictor fitted on a few accuracies of the table itself, judged on the others."""
    from tailorvit.proxies.predictor import Predictor
    from tailorvit.rng import generator

    rows = []
    for key, truth in table.targets.items():
        for count in counts:
            if count > len(table.rows) // 2:
                continue
            found: list[dict[str, Any]] = []
            for seed in range(seeds):
                order = generator(seed, "few", count).permutation(len(table.rows))
                seen, rest = table.take(order[:count].tolist()), table.take(order[count:].tolist())
                model = Predictor.fit(seen.rows, seen.targets[key].tolist())
                mean, sd = model.predict([r.arch for r in rest.rows], [r.fixed for r in rest.rows])
                gaps = np.abs(mean - rest.targets[key])
                found.append(
                    {
                        "band_tau": band_tau(mean.tolist(), rest, key),
                        "params": band_tau(rest.params.tolist(), rest, key),
                        "inside": float((gaps < 1.96 * sd).mean()),
                        "error": float(np.sqrt((gaps**2).mean())),
                        "constant": float(np.sqrt(((seen.targets[key].mean() - rest.targets[key]) ** 2).mean())),
                        "says_it_helps": model.helps,
                    }
                )
            means = {k: float(np.mean([f[k] for f in found if f[k] is not None])) for k in found[0]}
            rows.append({"table": table.name, "target": key, "count": count, "truth_sd": float(truth.std()), **means})
    return rows


def markdown(results: dict[str, Any]) -> str:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:+.2f}"

    lines = []
    names = list(dict.fromkeys(r["score"] for r in results["scores"] if not r["score"].startswith("rank:")))
    lines += [f"| table | accuracy | pairs | {' | '.join(names)} |", f"|---|---|---|{'---|' * len(names)}"]
    for table, target in dict.fromkeys((r["table"], r["target"]) for r in results["scores"]):
        rows = {r["score"]: r for r in results["scores"] if (r["table"], r["target"]) == (table, target)}
        marks = {"better than #params": "**", "": "", "worse than #params": "", "no clear difference from #params": ""}
        cells = [
            marks[rows[n]["verdict"]] + number(rows[n]["band_tau"]["value"]) + marks[rows[n]["verdict"]]
            if n in rows
            else ""
            for n in names
        ]
        lines.append(f"| {table} | {target} | {rows['params']['pairs']:,} | {' | '.join(cells)} |")
    lines += [
        "",
        "| fitted on | asked about | accuracy | #params | predictor | 95 % of the gain |",
        "|---|---|---|---|---|---|",
    ]
    for r in results["predictor"]:
        gain = r["gain"]
        ends = "" if gain["low"] is None else f"{gain['low']:+.2f} to {gain['high']:+.2f}"
        cells = [" + ".join(r["fitted_on"]), r["table"], r["target"], number(r["params_band_tau"])]
        lines.append(f"| {' | '.join([*cells, number(r['band_tau']['value']), ends])} |")
    return "\n".join(lines).replace(".json", "").replace("_tiny", "") + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, help="folder of the reference tables")
    parser.add_argument("--proxies", default=",".join(SLOW), help="scored ones, with commas")
    parser.add_argument("--limit", type=int, help="rows a table for the scored ones; the rest uses all")
    parser.add_argument("--image-size", type=int, help="pixels a side for proxies of a batch (default: 224)")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--predictor", type=Path, help="also fit on all tables and write the predictor here")
    parser.add_argument("--quick", action="store_true", help="few rows, small images, nothing written")
    args = parser.parse_args()
    limit, size = (6, 32) if args.quick else (args.limit, args.image_size)
    tables = [read_table(args.tables / f"{name}.json") for name in NAMES]
    started = time.perf_counter()
    if args.predictor:
        model = pooled(tables, BAND)
        command = f"python benchmarks/ranking.py TABLES --predictor {args.predictor}"
        replace(model, facts={**model.facts, "date": date.today().isoformat(), "command": command}).save(args.predictor)
    scores, notes, seconds = [], [], {}
    proxies = [p for p in args.proxies.split(",") if p in PROXIES]
    for table in tables:
        small = table.limit(limit)
        # Fitted without this table, and everything on the same rows: else columns could not be compared.
        unseen = pooled([t for t in tables if t is not table], BAND, bootstrap=0)
        scores += _results(rank(small, ["predictor"], band=BAND, predictor=unseen), table)
        for name in proxies:
            # One image at a time is cheap enough at the tables' own 224 px.
            side = size if PROXIES[name].batch > 1 or args.quick else None
            settings = ProxySettings(names=(name,), image_size=side, noise=True)
            start = time.perf_counter()
            names = [name, f"rank:{name}+params"]
            found = rank(small, names, scoring(settings, args.device), band=BAND, seeds=args.seeds)
            seconds[f"{table.name} {name}"] = (time.perf_counter() - start) / len(small.rows) / args.seeds
            scores += [r for r in _results(found, table) if r["score"] in names]
            notes += [f"{table.name}: {note}" for note in found.notes]
            print(f"{table.name} {name}: {seconds[f'{table.name} {name}']:.3f} s an architecture", flush=True)
    results = {
        "date": date.today().isoformat(),
        "machine": {"cpu": cpu_name(), "device": args.device, "torch": torch.__version__},
        "limit": limit,
        "image_size": size,
        "seeds": args.seeds,
        "band": BAND,
        "seconds": time.perf_counter() - started,
        "seconds_an_architecture": seconds,
        "scores": scores,
        "predictor": matrix(tables),
        "few": [row for table in tables for row in few(table, (16, 24) if args.quick else (16, 32, 64))],
        "targets_among_themselves": {t.name: ceiling(t) for t in tables if len(t.targets) > 1},
        "notes": notes,
    }
    print(markdown(results))
    if not args.quick:
        path = HERE / "results" / f"ranking-{results['date']}.json"
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")


def _results(ranking: Any, table: Table) -> list[dict[str, Any]]:
    return [{"table": table.name, **row} for row in ranking.to_dict()["results"]]


if __name__ == "__main__":
    main()
