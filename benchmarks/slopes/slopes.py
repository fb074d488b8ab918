"""Are the slopes by which S4 moves a space the true ones? Small ViTs on Fashion-MNIST, judged in several ways.

    python benchmarks/slopes/slopes.py alone supernet survey --seeds 4 --out FILE    # half an hour on one core
    python benchmarks/slopes/slopes.py table                                         # the page's tables

A network of middle size and its eight neighbours, one dimension a step lower or higher in all blocks, are each trained
alone; the differences of their accuracies are the true slopes. The other judges estimate the same slopes.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import fill, machine, markdown, read, write

from tailorvit import Arch, Counter, Dim, Space
from tailorvit.data import Batch
from tailorvit.families import family
from tailorvit.rng import generator, seed_everything
from tailorvit.train import Fixed, Rule, Sandwich, SinglePath, TrainSettings, train

HERE = Path(__file__).parent
RESULTS = HERE / "results"
FILES = ("slopes-2026-11-15", "slopes-more-2026-11-15", "slopes-survey-2026-11-16")
FIXED = {"image_size": (28, 28), "patch": 7, "channels": 1, "classes": 10, "head_dim": 16, "reach": 3}
CHOICES: dict[str, tuple[float, ...]] = {
    "depth": (3, 4, 5),
    "embed": (32, 40, 48),
    "heads": (2, 3, 4),
    "mlp": (2, 3, 4),
}
MIDDLE = {k: v[1] for k, v in CHOICES.items()}
Place = tuple[str, int]  # a dimension and one step down or up; ("middle", 0)


def space() -> Space:
    """Three choices a dimension, heads and ratios by block."""
    scopes = {"heads": "block", "mlp": "block"}
    dims = tuple(Dim(k, v, scopes.get(k, "global")) for k, v in CHOICES.items())  # type: ignore[arg-type]
    return Space("vit", dims, tuple(FIXED.items()))


def neighbours() -> dict[Place, Arch]:
    """The middle network, and one step down or up along each dimension, equal in all blocks."""
    found = {("middle", 0): MIDDLE}
    for name, choices in CHOICES.items():
        for way in (-1, 1):
            found[name, way] = {**MIDDLE, name: choices[1 + way]}
    return {place: family("vit").arch({"family": "vit", **values}) for place, values in found.items()}


def slopes_of(figures: dict[Place, float]) -> dict[str, float]:
    """Points a step, from one step down to one up."""
    return {name: (figures[name, 1] - figures[name, -1]) / 2 for name in CHOICES}


# -- training ---------------------------------------------------------------------------------------------------------


class Images:
    """Training batches from arrays without augmentation, in an order of the seed."""

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


def idx(path: Path, head: int) -> np.ndarray:
    """The bytes of a file of MNIST's form after its head."""
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=head)


class Task:
    """The images of one seed, and what is trained on them."""

    def __init__(self, seed: int, images: int, folder: Path) -> None:
        self.seed = seed
        order = generator(seed, "split").permutation(60000)[: images + 10000]
        x = torch.from_numpy(idx(folder / "train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[order])
        x = x.float().div(255).sub(0.2860).div(0.3530)
        y = torch.from_numpy(idx(folder / "train-labels-idx1-ubyte.gz", 8)[order]).long()
        self.x, self.y, self.held_out = x[:images], y[:images], (x[images:], y[images:])

    def fit(self, model: Any, rule: Rule, epochs: int) -> None:
        """Train; a tenth of the epochs, one at most, warms up."""
        settings = TrainSettings(epochs=epochs, batch=128, lr=2e-3, warmup=min(1.0, epochs / 10))
        train(model, Images(self.x, self.y, self.seed), rule, settings, self.seed)
        model.eval()

    @torch.no_grad()
    def accuracy(self, call: Callable[[Tensor], Tensor]) -> float:
        """Percent of the 10,000 images held out."""
        x, y = self.held_out
        return 100 * float(torch.cat([call(part).argmax(-1) for part in x.split(1000)]).eq(y).float().mean())

    def alone(self, arch: Arch, epochs: int) -> float:
        """Accuracy of a network trained alone."""
        seed_everything(self.seed, "alone")
        model = family("vit").build(family("vit").settings(FIXED), arch)
        self.fit(model, Fixed(), epochs)
        return self.accuracy(model)

    def supernet(self, rule: Rule, epochs: int) -> Any:
        """A trained supernet."""
        seed_everything(self.seed, "supernet")
        model = family("vit").supernet(space())
        self.fit(model, rule, epochs)
        return model


# -- the judges: slopes in points a step, and the accuracy of the middle network ---------------------------------------


def trained_alone(epochs: int) -> Callable[[Task], dict[str, Any]]:
    """Every network trained alone."""

    def judge(task: Task) -> dict[str, Any]:
        found = {place: task.alone(arch, epochs) for place, arch in neighbours().items()}
        return {"slopes": slopes_of(found), "middle": found["middle", 0]}

    return judge


def inherited(rule: Callable[[Space], Rule], epochs: int) -> Callable[[Task], dict[str, Any]]:
    """Every network with the weights of a supernet."""

    def judge(task: Task) -> dict[str, Any]:
        model = task.supernet(rule(space()), epochs)
        found = {k: task.accuracy(lambda x, a=arch: model(x, a)) for k, arch in neighbours().items()}
        return {"slopes": slopes_of(found), "middle": found["middle", 0]}

    return judge


def tuned(task: Task) -> dict[str, Any]:
    """The weights of a supernet, trained alone for one more epoch."""
    supernet, found = task.supernet(SinglePath(space()), 20), {}
    for place, arch in neighbours().items():
        model = family("vit").extract(supernet, arch)
        task.fit(model, Fixed(), 1)
        found[place] = task.accuracy(model)
    return {"slopes": slopes_of(found), "middle": found["middle", 0]}


def survey(task: Task) -> dict[str, Any]:
    """A surface through 16 networks from up to two steps around the space, of about the middle one's size."""
    from tailorvit.costs import Limits, Meter
    from tailorvit.seek.survey import Survey

    high = Counter("vit", FIXED).params(neighbours()["middle", 0])
    survey = Survey(Meter.for_space(space(), Limits.of(max_params=high)), 16, 2, task.seed)
    read_off = survey.slopes(space(), 0, lambda archs: [task.alone(a, 5) for a in archs], space().keys)
    return {"slopes": {s.dim: s.z_step for s in read_off}}


JUDGES: dict[str, Callable[[Task], dict[str, Any]]] = {
    "alone": trained_alone(10),
    "alone, short": trained_alone(3),
    "supernet": inherited(SinglePath, 20),
    "supernet, four times as long": inherited(SinglePath, 80),
    "sandwich": inherited(Sandwich, 20),
    "supernet, then one epoch alone": tuned,
    "survey": survey,
}
# Names in the stored files, and what they mean.
OLD = {
    "supernet, alike 0.0": "supernet",
    "supernet, alike 0.5": "supernet, half of the draws with equal blocks",
    "tuned": "supernet, then one epoch alone",
    "survey, 5 epochs": "survey",
}


# -- tables -----------------------------------------------------------------------------------------------------------


def vector(row: dict[str, Any]) -> np.ndarray:
    """Slopes of one judge and seed in the order of CHOICES; older files hold those of half way, too."""
    return np.array([(row.get("end") or row)["slopes"][name] for name in CHOICES])


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Of two rows of slopes; 0 where one is nothing."""
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length > 0 else 0.0


def without_size(slopes: np.ndarray, growth: np.ndarray) -> np.ndarray:
    """Slopes without their part along the growth of size: a space at its limit cannot grow, only trade."""
    return slopes - growth * (slopes @ growth) / (growth @ growth)


def stored() -> dict[str, list[np.ndarray]]:
    """Slopes of every judge and seed."""
    found: dict[str, list[np.ndarray]] = {}
    for name in FILES:
        for row in read(RESULTS / f"{name}.json")["seeds"].values():
            for judge, facts in row.items():
                found.setdefault(OLD.get(judge, judge), []).append(vector(facts))
    return found


def cosines(found: dict[str, list[np.ndarray]]) -> dict[str, tuple[list[float], list[float]]]:
    """By judge: cosines with the true slopes by seed, whole and along the limit."""
    truth = np.mean(found["alone"], axis=0)
    counter = Counter("vit", FIXED)
    params = slopes_of({place: counter.params(arch) for place, arch in neighbours().items()})
    growth = np.array([params[name] for name in CHOICES])
    along = without_size(truth, growth)
    return {
        judge: ([cosine(v, truth) for v in each], [cosine(without_size(v, growth), along) for v in each])
        for judge, each in found.items()
    }


def table(found: dict[str, list[np.ndarray]]) -> str:
    """Means and standard errors over seeds, one line a judge; cosines with the truth where it was measured."""
    agree = cosines(found) if "alone" in found else {}
    lines = []
    for judge, each in found.items():
        errors = np.std(each, axis=0, ddof=1) / len(each) ** 0.5 if len(each) > 1 else np.zeros(len(CHOICES))
        cells = [f"{m:+.2f} ± {e:.2f}" for m, e in zip(np.mean(each, axis=0), errors)]
        cells += [f"{min(some):.2f} to {max(some):.2f}" for some in agree.get(judge, ())] or ["-", "-"]
        lines.append((judge, *cells))
    return markdown(("judge", *CHOICES, "cosine with the true slopes", "the same along the limit"), lines)


def tables() -> dict[str, str]:
    """The page's tables by name."""
    import starts

    return {"slopes": table(stored()), **starts.tables()}


def main() -> None:
    """Run judges for some seeds and write what came of them."""
    if sys.argv[1:] == ["table"]:
        fill(HERE / "README.md", tables())
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judges", nargs="+", metavar="JUDGE", help=f"some of {'; '.join(JUDGES)}")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--images", type=int, default=6000, help="to train on")
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for judge in options.judges:
        if judge not in JUDGES:
            raise SystemExit(f"There is no judge '{judge}'; there are {'; '.join(JUDGES)}.")
    start, rows = time.monotonic(), {}
    for seed in range(options.seeds):
        task = Task(seed, options.images, options.data)
        rows[str(seed)] = {judge: JUDGES[judge](task) for judge in options.judges}
        print(f"[{time.monotonic() - start:6.0f} s] seed {seed}: {rows[str(seed)]}", flush=True)
        if options.out:
            write({**machine(), "images": options.images, "choices": CHOICES, "seeds": rows}, options.out)
    print(table({name: [vector(row[name]) for row in rows.values()] for name in rows["0"]}))


if __name__ == "__main__":
    main()
