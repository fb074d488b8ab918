"""Which scores rank trained networks: every proxy against every accuracy of the reference tables, beside #params.

    python benchmarks/ranking/ranking.py TABLES --proxies dss                 # all rows
    python benchmarks/ranking/ranking.py TABLES --proxies snip,grasp,te_released,naswot --limit 60 --image-size 48
    python benchmarks/ranking/ranking.py table                                # the page's tables, from stored results

TABLES is the folder of the reference tables, which are not part of the project. The figures come from
`tailorvit rank`. The stored results also have a predictor, a linear model of the shape that was removed since.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, machine, markdown, read, write

HERE = Path(__file__).parent
RESULTS = HERE / "results"
NAMES = ("imagenet_autoformer_tiny", "vitbench_autoformer_tiny", "vitbench_pit_tiny")
SLOW = ("dss", "snip", "naswot", "te_released", "te", "grasp")
FREE = ("params", "macs", "depth")  # cost nothing and stand beside every score
Row = dict[str, Any]


def ranked(table: Path, proxies: Sequence[str], options: argparse.Namespace) -> list[Row]:
    """What `tailorvit rank` says about one table: a row for each score and accuracy."""
    command = [sys.executable, "-m", "tailorvit", "rank", str(table), "--proxy", ",".join(proxies)]
    command += ["--seeds", str(options.seeds), "--device", options.device, "--json"]
    for name, value in (("--limit", options.limit), ("--image-size", options.image_size)):
        command += [name, str(value)] if value else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} failed: {done.stderr.strip()[-600:]}")
    return [{"table": table.name, **row} for row in json.loads(done.stdout)["results"]]


def measure(options: argparse.Namespace) -> list[Row]:
    """All scores on all tables."""
    rows: list[Row] = []
    for name in NAMES:
        rows += ranked(options.tables / f"{name}.json", options.proxies.split(","), options)
        print(f"{name} done", flush=True)
    return rows


def table(rows: Sequence[Row], key: str = "band_tau") -> str:
    """tau-b of every score; bold where it is better than #params by more than the 95 % interval."""
    scores = list(dict.fromkeys(r["score"] for r in rows if not r["score"].startswith("rank:")))
    lines = []
    for name, target in dict.fromkeys((r["table"], r["target"]) for r in rows):
        here = {r["score"]: r for r in rows if (r["table"], r["target"]) == (name, target)}
        cells = []
        for score in scores:
            row = here.get(score, {})
            value = row[key]["value"] if row else None
            bold = "**" if key == "band_tau" and row and row["verdict"].startswith("better") else ""
            cells.append("-" if value is None else f"{bold}{value:+.2f}{bold}")
        short = name.removesuffix(".json").removesuffix("_tiny")
        lines.append((short, target, f"{here['params']['pairs']:,}", *cells))
    return markdown(("table", "accuracy", "pairs of equal size", *scores), lines)


def tables() -> dict[str, str]:
    """The page's tables by name."""
    dss, others = (read(RESULTS / f"ranking-{name}.json")["scores"] for name in ("2026-11-15", "others-2026-11-15"))
    return {"dss": table(dss), "dss-all": table(dss, "tau"), "others": table(others)}


def main() -> None:
    """Score, print, write."""
    if sys.argv[1:] == ["table"]:
        fill(HERE / "README.md", tables())
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, help="folder of the reference tables")
    parser.add_argument("--proxies", default=",".join(SLOW), help="proxies to score, with commas")
    parser.add_argument("--limit", type=int, help="at most so many rows of a table")
    parser.add_argument("--image-size", type=int, help="pixels a side (default: the tables' own 224)")
    parser.add_argument("--seeds", type=int, default=1, help="initialisations")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="few rows, small images, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.limit, options.image_size = 6, 32
    rows = measure(options)
    print(table(rows))
    if not options.quick:
        sizes = {"limit": options.limit, "image_size": options.image_size, "seeds": options.seeds}
        facts = {**machine(), "device": options.device, **sizes, "scores": rows}
        write(facts, RESULTS / f"ranking-{facts['date']}.json")


if __name__ == "__main__":
    main()
