"""From a bad start, which settings of S4 find their way? Small ViTs on Fashion-MNIST at a limit, minutes a run.

    python benchmarks/starts.py --out benchmarks/results/starts-DATE.json --jobs 2    # an hour and a half on two cores
    python benchmarks/starts.py table benchmarks/results/starts-DATE.json             # the tables, from a stored run
    python benchmarks/starts.py again benchmarks/results/starts-DATE.json             # train again what it found

The first space is deep and narrow (8 to 10 blocks of 24 to 40 channels). Uniform networks of the same size from shallow
to deep tell where it should go. What a search finds is trained three times from scratch, as one training says little.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

Table = dict[str, Any]
LIMIT, TRAININGS = 130_000, 3
FIXED = {"image_size": [28, 28], "patch": 7, "channels": 1, "classes": 10, "head_dim": 16, "reach": 3}
# low, high, step
SPANS = {"depth": (8, 10, 1), "embed": (24, 40, 8), "heads": (2, 4, 1), "mlp": (3, 4, 0.5)}
DEPTHS = (2, 3, 4, 6, 8, 10)
WARM = {"warm_start": True, "iterations": 4, "pairs": 6}
CASES: dict[str, Table] = {
    "autoformer": {"method": "autoformer"},
    "s4": {"method": "s4", "s4": WARM},
    "s4, sized by middle": {"method": "s4", "s4": {**WARM, "sized_by": "middle"}},
    "s4, per size": {"method": "s4", "s4": {**WARM, "per_size": True, "significance": 1.0}},
    "s4, both": {"method": "s4", "s4": {**WARM, "sized_by": "middle", "per_size": True, "significance": 1.0}},
    "s4, both, adaptive": {
        "method": "s4",
        "s4": {**WARM, "sized_by": "middle", "per_size": True, "significance": 1.0, "stride": "adaptive"},
    },
    "s4, survey": {
        "method": "s4",
        "s4": {"design": "survey", "iterations": 8, "sized_by": "middle"},
        "seek": {"evaluator": "training", "train_epochs": 4},
    },
}


def recipe(seed: int, images: int, epochs: int, more: Table) -> Table:
    """What all runs share, and what a case adds."""
    dims: Table = {}
    for name, (low, high, step) in SPANS.items():
        dims[name] = {"low": low, "high": high, "step": step, "shift": step, "minimum": step}
        dims[name] |= {"scope": "block"} if name in ("heads", "mlp") else {}
    train = {"epochs": epochs, "batch": 128, "lr": 2e-3, "warmup": epochs / 10, "augment": "none"}
    return {
        "seed": seed,
        "device": "cpu",
        "threads": 1,
        "baseline": False,
        "data": {"source": "fashion-mnist", "limit": images},
        "limits": {"max_params": LIMIT, "min_params": LIMIT * 9 // 10},
        "space": {"family": "vit", "fixed": FIXED, "dims": dims},
        "train": train,
        "search": {"population": 16, "parents": 4, "generations": 4, "crossover": 7, "mutation": 7},
        "final": {"how": "retrain", "train": train},
        "analysis": {"samples": 0, "images": 0, "mistakes": 0},
        **more,
    }


def run(table: Table, folder: Path) -> tuple[Table, list[Table], float]:
    """result.json, the spaces passed, and seconds of search."""
    import tomli_w

    from tailorvit import api
    from tailorvit.runs import Run

    written = folder.with_suffix(".toml")
    written.write_text(tomli_w.dumps(table), encoding="utf-8")
    facts = dict(api.run(str(written), out=folder, progress="quiet").facts)
    with Run.open(folder, lock=False) as record:
        spaces = [row["space"].to_dict() for row in record.spaces()]
        spent = sum(s for k, s in record.seconds().items() if k.partition("-")[0] not in ("final", "analysis"))
    return facts, spaces, spent


def one(job: tuple[str, int, Table, int, int]) -> Table:
    """A case with one seed; what it finds is trained again with other seeds."""
    case, seed, more, images, epochs = job
    place = Path(tempfile.mkdtemp(prefix="starts-"))
    begun = time.monotonic()
    try:
        facts, spaces, spent = run(recipe(seed, images, epochs, more), place / "run")
        tests = [facts["test_accuracy"], *again(facts, seed, images, epochs, place)]
    finally:
        shutil.rmtree(place, ignore_errors=True)
    row = {"case": case, "seed": seed, "tests": tests, "params": facts["params"], "arch": facts["arch"]}
    spans = [{k: [d["choices"][0], d["choices"][-1]] for k, d in s["dims"].items()} for s in spaces]
    return {**row, "spaces": spans, "search_seconds": spent, "seconds": time.monotonic() - begun}


def again(facts: Table, seed: int, images: int, epochs: int, place: Path) -> list[float]:
    """Test accuracies of the same network trained with other seeds, which draw other images too."""
    tests = []
    for k in range(1, TRAININGS):
        fixed = {"method": "fixed", "arch": facts["arch"], "limits": {"max_params": 10 * LIMIT}}
        other = run(recipe(100 * k + seed, images, epochs, fixed), place / f"again{k}")[0]
        if other["params"] != facts["params"]:
            raise ValueError(f"{other['params']} parameters are not the {facts['params']} of the network found.")
        tests.append(other["test_accuracy"])
    return tests


def retrained(path: Path) -> None:
    """Train what the searches of a file found again, and keep only their own first training."""
    kept = json.loads(path.read_text())
    for row in kept["rows"]:
        place = Path(tempfile.mkdtemp(prefix="starts-"))
        try:
            row["tests"][1:] = again(row, row["seed"], kept["images"], kept["epochs"], place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        print(row["case"], row["seed"], row["tests"], flush=True)
        path.write_text(json.dumps(kept) + "\n")


def uniform(depth: int) -> Table:
    """The widest network of equal blocks, ratio 4 and 3 heads, under the limit."""
    from tailorvit.costs.count import Counter
    from tailorvit.families.vit_named import vit_arch

    counter = Counter("vit", FIXED)
    fits = [e for e in range(8, 200, 4) if counter.both(vit_arch(depth=depth, embed=e, heads=3, mlp=4))[0] <= LIMIT]
    return {"family": "vit", "depth": depth, "embed": fits[-1], "heads": 3, "mlp": 4}


def jobs(seeds: Sequence[int], images: int, epochs: int, only: str) -> list[tuple[str, int, Table, int, int]]:
    """Searches first, as they take long."""
    every = [(case, s, more, images, epochs) for s in seeds for case, more in CASES.items()]
    fixed = {"method": "fixed", "limits": {"max_params": 10 * LIMIT}}
    every += [(f"uniform {d}", s, {**fixed, "arch": uniform(d)}, images, epochs) for s in seeds[:1] for d in DEPTHS]
    return [j for j in every if only in j[0]]


def told(rows: Sequence[Table]) -> str:
    """A line a case: mean over seeds of the mean of a network's trainings, and where the space ended."""
    lines = ["| case | searches | parameters | test % | deviation | search, s | depth, channels of what was found |"]
    lines.append("|---|---|---|---|---|---|---|")
    for case in dict.fromkeys(r["case"] for r in rows):
        some = [r for r in rows if r["case"] == case]
        means = [float(np.mean(r["tests"])) for r in some]
        spread = f"{np.std(means, ddof=1):.2f}" if len(means) > 1 else "-"
        found = ", ".join(f"{r['arch']['depth']} x {r['arch']['embed']}" for r in some)
        figures = [f"{np.mean([r['params'] for r in some]):,.0f}", f"{np.mean(means):.2f}", spread]
        seconds = f"{np.mean([r['search_seconds'] for r in some]):.0f}"
        lines.append(f"| {case} | {len(some)} | {' | '.join(figures)} | {seconds} | {found} |")
    inside = [np.var(r["tests"], ddof=1) for r in rows if len(r["tests"]) > 1]
    lines.append(f"\nDeviation of one training of one network: {np.sqrt(np.mean(inside)):.2f} points.")
    return "\n".join(lines)


def main() -> None:
    """Run the jobs that a file does not hold yet, and write it as they end."""
    if sys.argv[1:2] == ["table"]:
        print(told(json.loads(Path(sys.argv[2]).read_text())["rows"]))
        return
    if sys.argv[1:2] == ["again"]:
        retrained(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--images", type=int, default=3000, help="of each split")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    facts = {"date": date.today().isoformat(), "images": asked.images, "epochs": asked.epochs, "limit": LIMIT}
    rows: list[Table] = json.loads(asked.out.read_text())["rows"] if asked.out.is_file() else []
    known = {(r["case"], r["seed"]) for r in rows}
    todo = [j for j in jobs(range(asked.seeds), asked.images, asked.epochs, asked.only) if j[:2] not in known]
    with ProcessPoolExecutor(asked.jobs) as pool:
        for done in as_completed([pool.submit(one, j) for j in todo]):
            rows.append(done.result())
            asked.out.write_text(json.dumps({**facts, "rows": rows}) + "\n")
            row = rows[-1]
            print(
                f"{row['case']}, seed {row['seed']}: {np.mean(row['tests']):.2f} %, {row['seconds']:.0f} s", flush=True
            )
    print(told(sorted(rows, key=lambda r: (r["case"], r["seed"]))))


if __name__ == "__main__":
    main()
