"""Do a supernet's slopes tell the truth? Small ViTs on Fashion-MNIST, in a supernet and trained by themselves.

    python benchmarks/slopes.py --out benchmarks/results/slopes-DATE.json    # half an hour on one core
    python benchmarks/slopes.py cosines FILE FILE...                         # every judge's with the truth in the first

The middle member of a small ViT space and its neighbours, one dimension a step lower or higher in all blocks, are each
trained by themselves; the differences of their accuracies are the true slopes. Beside them: the same after a short
training (`seek.evaluator = "training"`); the same members with weights inherited from a supernet whose training draws
members block by block (as published), and from one in which half of the members have blocks that are all alike
(`train.alike = 0.5`), at the end of training and half way; and inherited weights trained on alone for one epoch
(`"tuned"`). ``--more`` instead trains supernets four times as long, and as long by the sandwich rule, which is the same
work: largest, smallest and two random members a step. ``--survey`` trains members from around the space for half as
long as those alone and reads the slopes from a surface through them (`s4.design = "survey"`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from study.why import beyond_size, cosine
from torch import Tensor

from tailorvit.arch import Arch
from tailorvit.costs import Limits, Meter
from tailorvit.data import Batch
from tailorvit.data.idx import open_fashion, open_idx
from tailorvit.families import family
from tailorvit.families.vit_named import vit_arch
from tailorvit.rng import generator, seed_everything
from tailorvit.seek.survey import Survey
from tailorvit.space import Dim, Space
from tailorvit.train import Fixed, Sandwich, SinglePath, TrainSettings, train

VIT = family("vit")
FIXED = {"image_size": (28, 28), "patch": 7, "channels": 1, "classes": 10, "head_dim": 16, "reach": 3}
CHOICES: dict[str, tuple[float, ...]] = {
    "depth": (3, 4, 5),
    "embed": (32, 40, 48),
    "heads": (2, 3, 4),
    "mlp": (2, 3, 4),
}
MIDDLE = {k: v[1] for k, v in CHOICES.items()}


def space() -> Space:
    """Three choices a dimension, heads and ratios by block."""
    scopes = {"heads": "block", "mlp": "block"}
    return Space("vit", tuple(Dim(k, v, scopes.get(k, "global")) for k, v in CHOICES.items()), tuple(FIXED.items()))  # type: ignore[arg-type]


def members() -> dict[tuple[str, int], Arch]:
    """The middle, and one step down or up along each dimension, all blocks alike."""
    found = {("middle", 0): vit_arch(**MIDDLE)}
    for name, choices in CHOICES.items():
        for way in (-1, 1):
            found[name, way] = vit_arch(**{**MIDDLE, name: choices[1 + way]})
    return found


class Images:
    """Training batches from arrays, as they are, in an order of the seed."""

    def __init__(self, x: Tensor, y: Tensor, seed: int, batch: int = 128) -> None:
        self.x, self.y, self.seed, self.batch = x, y, seed, batch
        self.steps_per_epoch = len(x) // batch

    def iterate(self, start: int, stop: int) -> Iterator[Batch]:
        """Steps start..stop-1."""
        for step in range(start, stop):
            epoch, k = divmod(step, self.steps_per_epoch)
            order = generator(self.seed, "epoch", epoch).permutation(len(self.x))
            at = torch.from_numpy(order[k * self.batch : (k + 1) * self.batch])
            yield Batch(self.x[at], self.y[at], torch.nn.functional.one_hot(self.y[at], 10).float() * 0.9 + 0.01)


@torch.no_grad()
def accuracy(call: Any, x: Tensor, y: Tensor) -> float:
    """Percent."""
    return 100 * float(torch.cat([call(part).argmax(-1) for part in x.split(1000)]).eq(y).float().mean())


def slopes(figures: dict[tuple[str, int], float]) -> dict[str, float]:
    """Points a step, from one step down to one up."""
    return {name: (figures[name, 1] - figures[name, -1]) / 2 for name in CHOICES}


def split(folder: Path | None, seed: int, images: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Training images and labels, and 10,000 held out."""
    pool = open_idx(folder) if folder else open_fashion()
    if pool is None:
        raise SystemExit(f"{folder} holds no files of MNIST's form.")
    order = generator(seed, "split").permutation(60000)[: images + 10000]  # of the training images, which come first
    x = pool.read(order, order).float().div(255).sub(0.2860).div(0.3530)
    y = torch.from_numpy(np.asarray(pool.labels)[order]).long()
    return x[:images], y[:images], (x[images:], y[images:])


def study(
    folder: Path | None, seed: int, images: int, alone: int, short: int, shared: int, tell: Any
) -> dict[str, Any]:
    """All slopes of one seed."""
    x, y, held = split(folder, seed, images)
    rows: dict[str, Any] = {}
    looks = shared // max(shared // 10, 1)  # that the loop offers during a training
    for name, epochs in (("alone", alone), ("alone, short", short)):
        own: dict[tuple[str, int], float] = {}
        for key, arch in members().items():
            seed_everything(seed, "alone")
            model = VIT.build(VIT.frame(FIXED), arch)
            train(model, Images(x, y, seed), Fixed(), settings(epochs), seed)
            own[key] = accuracy(model.eval(), *held)
        rows[name] = {"slopes": slopes(own), "middle": own["middle", 0]}
        tell(f"seed {seed}: {name}: {rows[name]}")
    for alike in (0.0, 0.5):
        seed_everything(seed, "supernet")
        supernet: Any = VIT.supernet(space())
        seen: dict[int, dict[str, Any]] = {}
        calls: list[int] = []

        def look(net: Any = supernet, into: dict[int, Any] = seen, calls: Any = calls) -> dict[str, float]:
            calls.append(0)
            if len(calls) not in (looks // 2, looks):
                return {}
            net.eval()
            found = {k: accuracy(lambda part, a=a: net(part, a), *held) for k, a in members().items()}
            into[len(into)] = {"slopes": slopes(found), "middle": found["middle", 0]}
            return {}

        train(supernet, Images(x, y, seed), SinglePath(space(), alike), settings(shared), seed, evaluate=look)
        rows[f"supernet, alike {alike}"] = {"half way": seen[0], "end": seen[1]}
        tell(f"seed {seed}: alike {alike}: {seen[1]}")
        if not alike:
            tuned: dict[tuple[str, int], float] = {}
            for key, arch in members().items():
                model = VIT.extract(supernet, arch)
                train(model, Images(x, y, seed), Fixed(), settings(1), seed)
                tuned[key] = accuracy(model.eval(), *held)
            rows["tuned"] = {"slopes": slopes(tuned), "middle": tuned["middle", 0]}
            tell(f"seed {seed}: tuned: {rows['tuned']}")
    return rows


def more_work(folder: Path | None, seed: int, images: int, shared: int, tell: Any) -> dict[str, Any]:
    """Slopes of supernets that are given four times the work, spent in two ways."""
    x, y, held = split(folder, seed, images)
    rows: dict[str, Any] = {}
    for name, rule, epochs in (
        ("supernet, four times as long", SinglePath, 4 * shared),
        ("sandwich", Sandwich, shared),
    ):
        seed_everything(seed, "supernet")
        supernet: Any = VIT.supernet(space())
        train(supernet, Images(x, y, seed), rule(space()), settings(epochs), seed)
        supernet.eval()
        found = {k: accuracy(lambda part, a=a, net=supernet: net(part, a), *held) for k, a in members().items()}
        rows[name] = {"slopes": slopes(found), "middle": found["middle", 0]}
        tell(f"seed {seed}: {name}: {rows[name]}")
    return rows


def surveyed(folder: Path | None, seed: int, images: int, epochs: int, tell: Any) -> dict[str, Any]:
    """Slopes of a surface through 16 members from up to two steps around the space, of about the middle one's size."""
    x, y, held = split(folder, seed, images)
    high = Meter.for_space(space()).cost("params", vit_arch(**MIDDLE))

    def accuracies(archs: Sequence[Arch]) -> list[float]:
        found = []
        for arch in archs:
            seed_everything(seed, "alone")
            model = VIT.build(VIT.frame(FIXED), arch)
            train(model, Images(x, y, seed), Fixed(), settings(epochs), seed)
            found.append(accuracy(model.eval(), *held))
        return found

    survey = Survey(Meter.for_space(space(), Limits.of(max_params=high)), 16, 2, seed)
    read = survey.slopes(space(), 0, accuracies, space().keys)
    asked = [{**arch.to_dict(), "accuracy": value} for arch, value in survey.known]
    found = {"slopes": {s.dim: s.z_step for s in read}, "errors": {s.dim: s.se * float(s.shift) for s in read}}
    tell(f"seed {seed}: survey, {epochs} epochs: {found}")
    return {f"survey, {epochs} epochs": {**found, "members": asked}}


def settings(epochs: int) -> TrainSettings:
    """The same for all but the epochs; a tenth of them warms up."""
    return TrainSettings(epochs=epochs, batch=128, lr=2e-3, warmup=min(1.0, epochs / 10))


def main() -> None:
    """Run the seeds and write what came of them as they end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder of MNIST's files (default: Debian's Fashion-MNIST)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--alone", type=int, default=10, help="epochs of a network trained by itself")
    parser.add_argument("--short", type=int, default=3, help="epochs of a short one")
    parser.add_argument("--shared", type=int, default=20, help="epochs of a supernet")
    parser.add_argument("--more", action="store_true", help="only supernets that are given four times the work")
    parser.add_argument("--survey", action="store_true", help="only a survey around the space")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    start, rows = time.monotonic(), {}
    for seed in range(asked.first, asked.first + asked.seeds):
        tell = lambda text: print(f"[{time.monotonic() - start:6.0f} s] {text}", flush=True)  # noqa: E731
        if asked.survey:
            rows[str(seed)] = surveyed(asked.data, seed, asked.images, asked.alone // 2, tell)
        elif asked.more:
            rows[str(seed)] = more_work(asked.data, seed, asked.images, asked.shared, tell)
        else:
            rows[str(seed)] = study(asked.data, seed, asked.images, asked.alone, asked.short, asked.shared, tell)
        facts = {k: v if isinstance(v, int) else str(v) for k, v in vars(asked).items() if k not in ("data", "out")}
        text = json.dumps({"date": date.today().isoformat(), **facts, "choices": CHOICES, "seeds": rows}, indent=1)
        if asked.out:
            asked.out.write_text(text + "\n")
    print(table(rows))


def table(rows: dict[str, Any]) -> str:
    """Means and standard errors over seeds."""
    kinds = sorted(next(iter(rows.values())), key=lambda kind: kind == "tuned")  # last, as it is the last resort
    lines = ["| slope, points a step | " + " | ".join(kinds) + " |", "|" + "---|" * (len(kinds) + 1)]
    for name in CHOICES:
        cells = []
        for kind in kinds:
            each = [(r[kind].get("end") or r[kind])["slopes"][name] for r in rows.values()]
            error = f" ± {np.std(each, ddof=1) / len(each) ** 0.5:.2f}" if len(each) > 1 else ""
            cells.append(f"{np.mean(each):+.2f}{error}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def of(row: dict[str, Any], kind: str) -> Any:
    """Slopes of one seed in the order of CHOICES."""
    return np.array([(row[kind].get("end") or row[kind])["slopes"][name] for name in CHOICES])


def cosines(*files: dict[str, Any]) -> str:
    """Cosine of each judge's slopes with those of networks trained alone (mean over seeds, first file), by seed.

    Beside them the same without what size gives, which is all that a space at its limit can follow.
    """
    truth = np.mean([of(r, "alone") for r in files[0].values()], axis=0)
    meter = Meter.for_space(space())
    params = slopes({at: meter.cost("params", arch) for at, arch in members().items()})
    grows = np.array([params[name] for name in CHOICES])
    head = ("cosine with the truth", "by seed", "of the mean", "along the limit, by seed", "of the mean")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for rows in files:
        for kind in next(iter(rows.values())):
            every = [of(r, kind) for r in rows.values()]
            cells = [kind]
            for part in (np.asarray, lambda v: beyond_size(v, grows)):
                each = [cosine(part(v), part(truth)) or 0.0 for v in (*every, np.mean(every, 0))]
                cells += [", ".join(f"{c:.2f}" for c in each[:-1]), f"{each[-1]:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["cosines"]:
        print(cosines(*(json.loads(Path(name).read_text())["seeds"] for name in sys.argv[2:])))
    else:
        main()
