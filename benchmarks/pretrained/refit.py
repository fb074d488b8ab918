"""What cut networks of a tailored run keep before any training, as they are cut and refitted (search images).

python benchmarks/pretrained/refit.py RUN --name flowers --limits 11M 6M 3M --out rows.jsonl

RUN is the folder of a run of method tailor whose whole network is tuned and ordered; its test images stay sealed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from tailorvit import api, units
from tailorvit.config import configure, read_recipe
from tailorvit.costs.limits import Limits
from tailorvit.costs.meter import Meter
from tailorvit.families.tailoring import tailoring_of
from tailorvit.memory import half_precision
from tailorvit.methods.finetune import read_start
from tailorvit.methods.session import Session
from tailorvit.methods.tailor import _empty_ordered, _some, even_shapes, fill
from tailorvit.progress import Progress
from tailorvit.runs import Run
from tailorvit.train import accuracy


def kept(folder: Path, limits: list[str]) -> list[dict[str, Any]]:
    """A row for every limit."""
    config = configure(read_recipe(str(folder / "recipe.toml")))
    splits = json.loads((folder / "splits.json").read_text(encoding="utf-8"))
    plan = api.prepare(config, splits, read_start(config, folder))
    with Run.open(folder, lock=False) as run:
        facts = run.result("ordered")
        session, order = Session(plan, run, Progress()), tuple(int(b) for b in facts["blocks"])
        session = session.for_space(session.space.with_settings(order=order))
        tuned = plan.start.network(session.data, session.seed)
        network = _empty_ordered(session, tuned)
        session.read_weights(network, "ordered")
        network = network.to(session.device).eval()
        supernet = session.family.supernet(session.space, 0.0)
        fill(supernet, network)
        images = [x for x, _ in _some(session, session.config.final.train)]
        refit, rows = tailoring_of(network).refit, list[dict[str, Any]]()

        def percent(model: torch.nn.Module) -> float:
            kind, half = torch.device(session.device).type, half_precision(session.device) == "bf16"
            with torch.autocast(kind, torch.bfloat16, enabled=half):
                return accuracy(model.eval(), session.search_batches(), session.device)

        for limit in limits:
            meter = Meter.for_space(session.space, Limits.of(max_params=units.parse(limit, "params")))
            arch = even_shapes(session.space, meter)[0]
            cut = session.family.extract(supernet, arch).to(session.device)
            before, begin = percent(cut), time.monotonic()
            refit(cut, network, order, images)
            took = time.monotonic() - begin
            row = {"limit": limit, "params": meter.counter.params(arch), "arch": arch.to_dict(), "cut": before}
            rows.append({**row, "refitted": percent(cut), "seconds": round(took, 1)})
            print(rows[-1], flush=True)
        return [{**row, "whole": percent(network)} for row in rows]


def main() -> None:
    """Measure and add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", required=True, help="of the images, in the table")
    parser.add_argument("--limits", nargs="+", default=["11M", "6M", "3M"])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = kept(options.run, options.limits)
    with options.out.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"data": options.name, **row}) + "\n" for row in found)


if __name__ == "__main__":
    main()
