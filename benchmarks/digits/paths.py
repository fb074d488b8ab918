"""How many architectures a step of a supernet should see, each with a part of the batch (``train.paths``).

    python benchmarks/digits/paths.py            # 1, 2, 4 and 8 paths for seeds 0 to 4
    python benchmarks/digits/paths.py table      # the table of the page, from the stored results

Trains the supernet of `autoformer-digits` and gives the accuracy on the search images of its largest network, its
smallest, and the mean and the worst of 40 drawn at random.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, machine, markdown, number, read, spread, write

from tailorvit.config import configure, merged, read_recipe
from tailorvit.families import family
from tailorvit.methods.prepare import prepare
from tailorvit.rng import derive, generator, seed_everything
from tailorvit.train import Evaluator, rule_for, train

RESULTS = Path(__file__).parent / "results" / "paths-2026-11-19.json"
STAGE = "supernet-0"
FIGURES = ("largest", "smallest", "mean", "worst")


def measure(paths: int, seed: int) -> dict[str, Any]:
    """Train one supernet and score it."""
    begin = time.process_time()
    changes = {"seed": seed, "threads": 1, "train": {"paths": paths}}
    plan = prepare(configure(merged(read_recipe("autoformer-digits"), changes)))
    settings, data, space = plan.config.train, plan.data, plan.space
    seed_everything(seed, "init", STAGE)
    model = family(space.family).supernet(space, settings.drop_path)
    batches = data.train_batches(settings.batch, derive(seed, STAGE, "data") % 2**31, data.augment(settings.augment))
    trained = train(model, batches, rule_for(settings, space), settings, derive(seed, STAGE, "train") % 2**31)
    scores = Evaluator(model, list(data.eval_batches("search", 500)), "cpu", False)
    largest, smallest, *others = scores(
        [space.largest(), space.smallest(), *space.sample_distinct(40, generator(0, "paths-study"))]
    )
    found = {"largest": largest, "smallest": smallest, "mean": statistics.fmean(others), "worst": min(others)}
    seconds = round(time.process_time() - begin, 1)
    return {"paths": paths, "seed": seed, **found, "loss": round(trained.loss, 4), "seconds": seconds}


def stored() -> list[dict[str, Any]]:
    """What was measured so far."""
    return list(read(RESULTS)["rows"]) if RESULTS.exists() else []


def tables() -> dict[str, str]:
    """The page's table: a row for every number of paths."""
    told = []
    for paths in sorted({r["paths"] for r in stored()}):
        own = [r for r in stored() if r["paths"] == paths]
        figures = [spread([r[k] for r in own], 1) for k in FIGURES]
        told.append((str(paths), str(len(own)), *figures, number(statistics.fmean(r["seconds"] for r in own))))
    head = ("paths", "seeds", "largest", "smallest", "mean of 40", "worst of 40", "processor seconds")
    return {"paths": markdown(head, told)}


def main(words: list[str]) -> None:
    """Measure what is not stored yet, or fill the page."""
    if words == ["table"]:
        fill(Path(__file__).parent / "README.md", tables())
        return
    torch.set_num_threads(1)
    for seed in range(5):
        for paths in (1, 2, 4, 8):
            if (paths, seed) not in {(r["paths"], r["seed"]) for r in stored()}:
                row = measure(paths, seed)
                write({**machine(), "rows": [*stored(), row]}, RESULTS)
                print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
