"""Why BigNAS's inherited weights are poor on digits: its supernet with one factor changed at a time.

    python benchmarks/digits/bignas.py                     # all variants, seeds 0 and 1
    python benchmarks/digits/bignas.py paper labels     # some of them
    python benchmarks/digits/bignas.py table               # the table of the page, from the stored results

`paper` is BigNAS as published: the others learn from the largest network's outputs alone. Ours is `half-labels` now.
A variant trains the supernet of `bignas-digits` and gives the test accuracy of its largest network, its smallest, and
the mean and the worst of 20 drawn at random. Nothing is searched: the search is not what is asked about here.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, machine, markdown, number, read, write

from tailorvit.config import configure, merged, overrides, read_recipe
from tailorvit.families import family
from tailorvit.methods.prepare import prepare
from tailorvit.rng import derive, generator, seed_everything
from tailorvit.train import RULES, Evaluator
from tailorvit.train.loop import Sink, Trainer
from tailorvit.train.optim import soft_cross_entropy, without_drop_path

RESULTS = Path(__file__).parent / "results" / "bignas-2026-11-18.json"
STAGE = "supernet-0"


@dataclass(frozen=True)
class Variant:
    """Keys set on top of the recipe, and what no key sets."""

    sets: tuple[str, ...] = ()
    temperature: float = 1.0  # of the teacher's softmax; under 1 sharper
    labels: float = 0.0  # share of the labels in the others' targets
    late: float = 0.0  # share of the training before the others learn from the largest
    calm: bool = False  # the teacher's outputs are taken in a second pass without drop path
    weights: tuple[float, ...] = field(default=())  # of the four losses; the mean or sum of the loop otherwise


VARIANTS: dict[str, Variant] = {
    "paper": Variant(),
    "labels": Variant(("train.distill=false",)),
    "no-drop-path": Variant(("train.drop_path=0",)),
    "calm-teacher": Variant(calm=True),
    "sharper": Variant(temperature=0.5),
    "softer": Variant(temperature=2.0),
    "half-labels": Variant(labels=0.5),
    "late": Variant(late=0.2),
    "low-rate": Variant(("train.lr=1e-3",)),
    "high-clip": Variant(("train.clip=5.0",)),
    "no-clip": Variant(("train.clip=0",)),
    "no-decay": Variant(("train.weight_decay=0",)),
    "teacher-first": Variant(weights=(3.0, 1 / 3, 1 / 3, 1 / 3)),
    "less-smallest": Variant(weights=(1.0, 0.25, 1.0, 1.0)),
    "no-augment": Variant(("train.augment=none",)),
    "longer": Variant(("train.epochs=100",)),
    "single-path": Variant(
        ("train.rule=single_path", "train.distill=false", "train.reg_largest_only=false", "train.drop_path=0")
    ),
}


class Study(Trainer):
    """The training loop with what a variant changes."""

    variant: Variant

    def _add_gradients(self, batch: Any, archs: Any, part: float = 1.0) -> tuple[float, int]:
        settings, variant, step = self.settings, self.variant, self.state.meta["step"]
        if not settings.distill:
            return super()._add_gradients(batch, archs, part)
        teaching = step >= variant.late * self.total
        share = part / len(archs) if settings.clip else part
        shares = [share * w for w in variant.weights or (1.0,) * len(archs)]
        target, mean, correct = batch.target, 0.0, 0
        for i, (arch, weight) in enumerate(zip(archs, shares, strict=True)):
            with without_drop_path(self.model) if settings.reg_largest_only and i else nullcontext():
                logits = self.call(batch.x, arch)
            loss = soft_cross_entropy(logits, target)
            (loss * weight).backward()
            if i == 0 and teaching:
                if variant.calm:
                    with torch.no_grad(), without_drop_path(self.model):
                        logits = self.call(batch.x, arch)
                soft = (logits.detach().float() / variant.temperature).softmax(-1)
                target = variant.labels * batch.target + (1 - variant.labels) * soft
            mean += part * float(loss.detach()) / len(archs)
            correct += int((logits.detach().argmax(-1) == batch.y).sum())
        return mean, correct


class Curve(Sink):
    """Keeps the loss of every epoch."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def epoch(self, epoch: int, facts: Any) -> None:
        """An epoch has ended."""
        self.losses.append(round(float(facts["loss"]), 3))


def measure(name: str, seed: int) -> dict[str, Any]:
    """Train one variant's supernet and score it on the test split."""
    variant, begin = VARIANTS[name], time.monotonic()
    config = configure(merged(merged(read_recipe("bignas-digits"), overrides(variant.sets)), {"seed": seed}))
    plan = prepare(config)
    settings, data, space = plan.config.train, plan.data, plan.space
    seed_everything(seed, "init", STAGE)
    model = family(space.family).supernet(space, settings.drop_path)
    batches = data.train_batches(
        settings.batch, derive(seed, STAGE, "data") % 2**31, data.augment(settings.augment), "cpu"
    )
    curve = Curve()
    trainer = Study(model, batches, RULES[settings.rule](space), settings, derive(seed, STAGE, "train") % 2**31, curve)
    trainer.variant = variant
    trainer.run()
    data.unseal_test("a study of the training, nothing is chosen by it")
    scores = Evaluator(model, list(data.eval_batches("test", 500)), "cpu", False)
    middle = space.sample_distinct(20, generator(0, "bignas-study"))
    largest, smallest, *others = scores([space.largest(), space.smallest(), *middle])
    return {
        "variant": name,
        "seed": seed,
        "largest": largest,
        "smallest": smallest,
        "mean": sum(others) / len(others),
        "worst": min(others),
        "seconds": round(time.monotonic() - begin, 1),
        "losses": curve.losses,
    }


def stored() -> list[dict[str, Any]]:
    """What was measured so far."""
    return list(read(RESULTS)["rows"]) if RESULTS.exists() else []


def tables() -> dict[str, str]:
    """The page's table: a row for every variant, with a figure for every seed."""
    rows, told = stored(), []
    for name in dict.fromkeys(r["variant"] for r in rows):
        own = [r for r in rows if r["variant"] == name]
        figures = [" / ".join(number(r[k], 1) for r in own) for k in ("largest", "smallest", "mean", "worst")]
        told.append((name, *figures))
    return {"bignas": markdown(("variant", "largest", "smallest", "mean of 20", "worst of 20"), told)}


def main(names: list[str]) -> None:
    """Measure the variants named, or all; what is stored is not measured again."""
    if names == ["table"]:
        fill(Path(__file__).parent / "README.md", tables())
        return
    torch.set_num_threads(1)
    for seed in (0, 1):
        for name in names or VARIANTS:
            if (name, seed) not in {(r["variant"], r["seed"]) for r in stored()}:
                row = measure(name, seed)
                write({**machine(), "rows": [*stored(), row]}, RESULTS)
                print({k: v for k, v in row.items() if k != "losses"}, flush=True)
    print(tables()["bignas"])


if __name__ == "__main__":
    main(sys.argv[1:])
