"""What several processes cost: one training together, and sub-networks evaluated by whoever is free; on a CPU, gloo.

    python benchmarks/speed/ranks.py --out benchmarks/speed/results/ranks-DATE.json

The work is the same with one process and with several, each with one thread. ``efficiency`` is the processor time of
one process over that of all: what is lost to messages and to work that every process does. It does not depend on what
else the machine does; the time by the clock does, so that is kept with the load beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

STEPS, WARM, ITEMS = 12, 2, 48


def training(width: int, depth: int, batch: int) -> Callable[[], None]:
    """Steps of a ViT of 65 tokens on batches of digits at 32 px, shared by all processes."""
    from tailorvit import ranks
    from tailorvit.data import open_data
    from tailorvit.families import family
    from tailorvit.train import Fixed, Sink, TrainSettings
    from tailorvit.train.loop import Trainer
    from tailorvit.train.share import Share

    data, vit = open_data("digits", image_size=32), family("vit")
    settings = vit.settings({"classes": 10, "channels": 1, "image_size": (32, 32), "patch": 4})
    arch = vit.arch({"depth": depth, "embed": width, "heads": width // 64, "mlp": 4.0})
    model = vit.build(settings, arch, 0.1)
    batches = data.train_batches(batch, 0, data.augment("mild"))
    share = None
    if ranks.world() > 1:
        share = Share(model, batch, compiled=False)
        batches.only(share.places)
    trainer = Trainer(model, batches, Fixed(), TrainSettings(batch=batch), 0, Sink(), share=share)
    model.train()
    coming = batches.iterate(0, WARM + STEPS, 0)
    for _ in range(WARM):
        trainer.step(next(coming))

    def steps() -> None:
        for step in coming:
            trainer.step(step)

    return steps


def evaluation() -> Callable[[], None]:
    """Accuracies of sub-networks on 1,000 images, taken from the queue."""
    import torch

    from tailorvit import ranks
    from tailorvit.families import family, named_space
    from tailorvit.rng import generator
    from tailorvit.train import Evaluator

    space = named_space("vit-8px")
    archs = [space.sample(generator(0, i)) for i in range(ITEMS)]
    images = torch.randn(1000, 1, 8, 8), torch.zeros(1000, dtype=torch.long)
    judge = Evaluator(family("vit").supernet(space, 0.0), [images])
    judge(archs[:1])
    judge.known.clear()

    def items() -> None:
        if ranks.world() == 1:
            judge(archs)
            return
        queue = ranks.Queue(ITEMS)
        while (mine := queue.take()) is not None:
            queue.put(mine, judge([archs[mine]])[0])
        ranks.barrier()

    return items


CASES: dict[str, Callable[[], Callable[[], None]]] = {
    "training, 0.5M parameters, batch 64": lambda: training(128, 3, 64),
    "training, 3.6M parameters, batch 64": lambda: training(256, 5, 64),
    "evaluation of 48 sub-networks": evaluation,
}


def work(case: str) -> None:
    """One case; the writer prints every process's processor time, and the time by the clock."""
    import torch

    from tailorvit import ranks

    torch.set_num_threads(1)
    with ranks.joined():
        timed = CASES[case]()
        if ranks.world() > 1:
            ranks.barrier()
        begin, used = time.monotonic(), time.process_time()
        timed()
        mine = {"cpu": time.process_time() - used, "clock": time.monotonic() - begin}
        every = [mine] if ranks.world() == 1 else ranks.gather(mine)
        if ranks.is_writer():
            print(json.dumps(every), flush=True)


def run(case: str, processes: int) -> list[dict[str, float]]:
    """One case in that many processes."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [sys.executable, *start, __file__, "--work", case]
    own = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=own)
    found: list[dict[str, float]] = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("[{")))
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", help="run one case in this process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    rows: list[dict[str, Any]] = []
    for case in CASES:
        alone = [run(case, 1) for _ in range(options.rounds)]
        together = [run(case, options.processes) for _ in range(options.rounds)]
        one, all_of_them = (min(sum(p["cpu"] for p in r) for r in runs) for runs in (alone, together))
        rows.append({"case": case, "alone": alone, "together": together, "efficiency": one / all_of_them})
        print(f"{case}: {one:.2f} s alone, {all_of_them:.2f} s together, {100 * one / all_of_them:.0f} %", flush=True)
    facts = {"date": date.today().isoformat(), "cores": os.cpu_count(), "load": os.getloadavg()}
    if options.out:
        options.out.write_text(json.dumps({**facts, "processes": options.processes, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
